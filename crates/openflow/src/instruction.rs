//! Instructions and actions (sections 5.9, 5.12, 7.2.4 and 7.2.5).
//!
//! Supports apply, write and clear actions with outputs. The decoder refuses all others.

use crate::fault::Fault;
use crate::wire::{Put, Reader};

/// An action: output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Output {
    pub port: u32,
    /// Most bytes for the controller; valid only for an output to it.
    pub max_len: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Executes these at once.
    Apply(Vec<Output>),
    /// Adds these to the action set.
    Write(Vec<Output>),
    /// Clears the action set.
    Clear,
}

const OUTPUT: u16 = 0;
const EXPERIMENTER: u16 = 0xffff;

/// Decodes actions up to the end of `from`.
pub(crate) fn decode_actions(mut from: Reader<'_>) -> Result<Vec<Output>, Fault> {
    let mut actions = Vec::new();
    while !from.is_empty() {
        let short = |_| Fault::ACTION_LEN;
        let kind = from.u16().map_err(short)?;
        let length = usize::from(from.u16().map_err(short)?);
        let mut body = from.part(length.checked_sub(4).ok_or(Fault::ACTION_LEN)?).map_err(short)?;
        match kind {
            OUTPUT if length == 16 => {
                actions.push(Output { port: body.u32().map_err(short)?, max_len: body.u16().map_err(short)? });
            }
            OUTPUT => return Err(Fault::ACTION_LEN),
            EXPERIMENTER => return Err(Fault::ACTION_EXPERIMENTER),
            _ => return Err(Fault::ACTION_TYPE),
        }
    }
    Ok(actions)
}

pub(crate) fn encode_actions(actions: &[Output], out: &mut Vec<u8>) {
    for action in actions {
        out.u16(OUTPUT);
        out.u16(16);
        out.u32(action.port);
        out.u16(action.max_len);
        out.zeros(6);
    }
}

/// Decodes instructions up to the end of `from`.
pub(crate) fn decode(mut from: Reader<'_>) -> Result<Vec<Instruction>, Fault> {
    let mut all = Vec::new();
    let mut seen = Vec::new();
    while !from.is_empty() {
        let short = |_| Fault::INSTRUCTION_LEN;
        let kind = from.u16().map_err(short)?;
        let length = usize::from(from.u16().map_err(short)?);
        let mut body = from.part(length.checked_sub(4).ok_or(Fault::INSTRUCTION_LEN)?).map_err(short)?;
        if seen.contains(&kind) {
            return Err(Fault::DUPLICATE_INSTRUCTION);
        }
        seen.push(kind);
        match kind {
            // There is no other table.
            1 => return Err(Fault::INSTRUCTION_TABLE),
            3..=5 => {
                body.skip(4).map_err(short)?;
                match kind {
                    3 => all.push(Instruction::Write(decode_actions(body)?)),
                    4 => all.push(Instruction::Apply(decode_actions(body)?)),
                    _ if body.is_empty() => all.push(Instruction::Clear),
                    _ => return Err(Fault::INSTRUCTION_LEN),
                }
            }
            // Metadata and meters.
            2 | 6 => return Err(Fault::UNSUPPORTED_INSTRUCTION),
            EXPERIMENTER => return Err(Fault::INSTRUCTION_EXPERIMENTER),
            _ => return Err(Fault::UNKNOWN_INSTRUCTION),
        }
    }
    Ok(all)
}

pub(crate) fn encode(all: &[Instruction], out: &mut Vec<u8>) {
    for instruction in all {
        let start = out.len();
        let (kind, actions): (u16, &[Output]) = match instruction {
            Instruction::Write(actions) => (3, actions),
            Instruction::Apply(actions) => (4, actions),
            Instruction::Clear => (5, &[]),
        };
        out.u16(kind);
        out.u16(0);
        out.zeros(4);
        encode_actions(actions, out);
        out.length_at(start + 2, start);
    }
}

/// The only output of instructions; None drops packets.
///
/// # Errors
/// [`Fault::TOO_MANY_ACTIONS`] if there are several.
pub fn output_of(all: &[Instruction]) -> Result<Option<Output>, Fault> {
    let outputs: Vec<Output> = all
        .iter()
        .flat_map(|instruction| match instruction {
            Instruction::Apply(actions) | Instruction::Write(actions) => actions.as_slice(),
            Instruction::Clear => &[],
        })
        .copied()
        .collect();
    match outputs[..] {
        [] => Ok(None),
        [only] => Ok(Some(only)),
        _ => Err(Fault::TOO_MANY_ACTIONS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_supported_has_its_own_error() {
        let fault = |bytes: &[u8]| decode(Reader(bytes)).unwrap_err();
        assert_eq!(fault(&[0, 1, 0, 8, 1, 0, 0, 0]), Fault::INSTRUCTION_TABLE);
        assert_eq!(fault(&[0, 6, 0, 8, 0, 0, 0, 1]), Fault::UNSUPPORTED_INSTRUCTION);
        assert_eq!(fault(&[0, 9, 0, 8, 0, 0, 0, 1]), Fault::UNKNOWN_INSTRUCTION);
        assert_eq!(fault(&[0xff, 0xff, 0, 8, 0, 0, 0, 1]), Fault::INSTRUCTION_EXPERIMENTER);
        assert_eq!(fault(&[0, 4, 0, 3]), Fault::INSTRUCTION_LEN);
        assert_eq!(fault(&[0, 4, 0, 16, 0, 0, 0, 0]), Fault::INSTRUCTION_LEN);
        assert_eq!(fault(&[0, 5, 0, 8, 0, 0, 0, 0, 0, 5, 0, 8, 0, 0, 0, 0]), Fault::DUPLICATE_INSTRUCTION);
        // A group; decrement TTL; an output that is too short.
        let apply = |action: [u8; 8]| [&[0, 4, 0, 16, 0, 0, 0, 0][..], &action].concat();
        assert_eq!(fault(&apply([0, 22, 0, 8, 0, 0, 0, 1])), Fault::ACTION_TYPE);
        assert_eq!(fault(&apply([0, 24, 0, 8, 0, 0, 0, 0])), Fault::ACTION_TYPE);
        assert_eq!(fault(&apply([0, 0, 0, 8, 0, 0, 0, 0])), Fault::ACTION_LEN);
        assert_eq!(fault(&apply([0, 0, 0, 2, 0, 0, 0, 0])), Fault::ACTION_LEN);
    }

    #[test]
    fn one_output_or_none() {
        let to = |port| Output { port, max_len: 0 };
        assert_eq!(output_of(&[]), Ok(None));
        assert_eq!(output_of(&[Instruction::Apply(vec![]), Instruction::Clear]), Ok(None));
        assert_eq!(output_of(&[Instruction::Write(vec![to(3)])]), Ok(Some(to(3))));
        assert_eq!(output_of(&[Instruction::Write(vec![to(3)]), Instruction::Apply(vec![to(4)])]), Err(Fault::TOO_MANY_ACTIONS));
    }
}
