//! Decisions about a packet before it enters a chain.

pub use sluice_api::drops::Refusal;

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It takes the path with this number.
    Path(u32),
    /// It is dropped.
    Drop(Refusal),
    /// It waits.
    Wait(WaitFor),
}

/// What a packet waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum WaitFor {
    /// An answer about its flow ([`ChooseChain`](crate::steer::ChooseChain)).
    Answer = 0,
    /// An idle instance ([`ChooseInstances`](crate::steer::ChooseInstances)).
    Instance = 1,
    /// This thread does not know the instances of its chain yet, or any more.
    Steering = 2,
}

/// A [`Decision`] in 32 bits, for bursts and flow tables; equal iff the decisions are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packed(u32);

/// From here on numbers are not paths: [`PathRegistry`](crate::chain::PathRegistry) skips them.
const FIRST_CODE: u32 = u32::MAX - 31;
const FIRST_WAIT: u32 = FIRST_CODE + 16;

impl Packed {
    /// The decision for this path.
    #[inline(always)]
    pub const fn path(number: u32) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The path's number, if the decision is a path.
    #[inline(always)]
    pub fn number(self) -> Option<u32> {
        (self.0 < FIRST_CODE).then_some(self.0)
    }

    /// The decision that the bits encode.
    pub fn unpack(self) -> Decision {
        match self.0 {
            number if number < FIRST_CODE => Decision::Path(number),
            code if code < FIRST_WAIT => Decision::Drop(Refusal::ALL[(code - FIRST_CODE) as usize % Refusal::ALL.len()]),
            code => Decision::Wait(match code - FIRST_WAIT {
                0 => WaitFor::Answer,
                1 => WaitFor::Instance,
                _ => WaitFor::Steering,
            }),
        }
    }
}

impl From<Decision> for Packed {
    #[inline(always)]
    fn from(decision: Decision) -> Self {
        Self(match decision {
            Decision::Path(number) => number,
            Decision::Drop(why) => FIRST_CODE + why as u32,
            Decision::Wait(what) => FIRST_WAIT + what as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_decision_comes_back_from_its_bits() {
        let drops = Refusal::ALL.into_iter().map(Decision::Drop);
        let waits = [WaitFor::Answer, WaitFor::Instance, WaitFor::Steering].map(Decision::Wait);
        let paths = [0, 1, 1 << 28, FIRST_CODE - 1].map(Decision::Path);
        let all: Vec<Decision> = drops.chain(waits).chain(paths).collect();
        for (at, decision) in all.iter().enumerate() {
            let packed = Packed::from(*decision);
            assert_eq!(Packed::from_bits(packed.bits()).unpack(), *decision);
            assert_eq!(packed.number().is_some(), matches!(decision, Decision::Path(_)));
            assert!(all[..at].iter().all(|other| Packed::from(*other) != packed), "{decision:?}");
        }
    }
}
