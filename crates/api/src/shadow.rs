//! Shadows: another version of a service's program gets copies of packets, and what it does with
//! them is compared with what the old one does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/services/{name}/shadow`: another version of the service's program, which gets
/// copies of an instance's packets for a time.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShadowRequest {
    /// Its program, as in an upgrade.
    pub exec: String,
    /// Its arguments; by default those of the old version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// How long it gets copies, in seconds; then its version takes over, if no more packets differ
    /// than may.
    #[schemars(range(min = 1, max = 86_400))]
    pub seconds: u64,
    /// How many packets may differ.
    #[serde(default)]
    pub allow: u64,
    /// How many percent of the compared packets may differ, if that is more.
    #[serde(default)]
    pub allow_percent: f64,
    /// Its core. Left out: that of the instance whose packets it gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<usize>,
}

/// Answer of `GET /v1/services/{name}/shadow`: the present shadow of a service, or the last one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct ShadowReport {
    /// The shadow.
    pub nf: String,
    /// Its program.
    pub exec: String,
    /// The instance whose packets it gets.
    pub of: String,
    /// Whether it still gets copies.
    pub runs: bool,
    /// Why its version does not take over, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// What was compared.
    pub counts: ShadowCounts,
    /// The first packets that differ.
    #[serde(default)]
    pub differences: Vec<ShadowDifference>,
}

/// Packets of a shadow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct ShadowCounts {
    /// Packets that both versions had and that were compared.
    pub compared: u64,
    /// Of these: those with the same verdict, bytes and order.
    pub equal: u64,
    /// Of these: those with another verdict.
    pub verdict: u64,
    /// Of these: those with the same verdict and other bytes.
    pub bytes: u64,
    /// Of these: those that came back behind another packet of their flow.
    pub order: u64,
    /// Of these: those that the old version has returned, and the new one has not.
    pub kept: u64,
    /// Copies that were not made in time, and packets that were not compared for that or because
    /// the shadow had too many. One that lacks a copy can count twice.
    pub missed: u64,
}

/// What of a packet differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DifferenceKind {
    /// The verdict.
    Verdict,
    /// The bytes.
    Bytes,
    /// Its place among the packets of its flow.
    Order,
    /// The new version has not returned it.
    Kept,
}

/// A packet with which two versions did not do the same.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ShadowDifference {
    /// Its number among the packets that the shadow got, from 0.
    pub number: u64,
    /// What differs.
    pub kind: DifferenceKind,
    /// The packet as both versions got it, as hexadecimal digits.
    pub packet: String,
    /// The verdict of the old version: `next`, `drop`, `port N` or `service N` (its number).
    pub old: String,
    /// The verdict of the new version; also `invalid` or `kept`.
    pub new: String,
    /// The packet as the old version returned it, as hexadecimal digits; none if it dropped it.
    pub old_bytes: String,
    /// The packet as the new version returned it.
    pub new_bytes: String,
}

impl ShadowCounts {
    /// Compared packets that are not equal.
    pub fn different(&self) -> u64 {
        self.compared - self.equal
    }
}

impl std::fmt::Display for ShadowCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { compared, equal, verdict, bytes, order, kept, missed } = self;
        let different = self.different();
        write!(f, "{compared} packets compared: {equal} equal, {different} different")?;
        if different > 0 {
            write!(f, " (verdict {verdict}, bytes {bytes}, order {order}, kept {kept})")?;
        }
        write!(f, "; {missed} missed")
    }
}

impl ShadowDifference {
    /// The first byte that differs, if both versions passed the packet on and their bytes differ.
    pub fn first_byte(&self) -> Option<usize> {
        if self.old_bytes == self.new_bytes || self.kind != DifferenceKind::Bytes {
            return None;
        }
        let same = self.old_bytes.bytes().zip(self.new_bytes.bytes()).take_while(|(old, new)| old == new).count();
        Some(same / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_say_what_differs_only_if_something_does() {
        let counts = ShadowCounts { compared: 10, equal: 10, missed: 2, ..ShadowCounts::default() };
        assert_eq!(counts.to_string(), "10 packets compared: 10 equal, 0 different; 2 missed");
        let counts = ShadowCounts { equal: 6, verdict: 1, bytes: 1, order: 1, kept: 1, ..counts };
        let said = "10 packets compared: 6 equal, 4 different (verdict 1, bytes 1, order 1, kept 1); 2 missed";
        assert_eq!((counts.different(), counts.to_string().as_str()), (4, said));
    }

    #[test]
    fn the_first_byte_that_differs_is_found() {
        let of = |old: &str, new: &str, kind| ShadowDifference {
            number: 0,
            kind,
            packet: String::new(),
            old: "next".into(),
            new: "next".into(),
            old_bytes: old.into(),
            new_bytes: new.into(),
        };
        for (old, new, first) in [("00ff", "00fe", Some(1)), ("10", "00", Some(0)), ("00", "0000", Some(1)), ("00", "00", None)] {
            assert_eq!(of(old, new, DifferenceKind::Bytes).first_byte(), first, "{old} {new}");
        }
        assert_eq!(of("00", "", DifferenceKind::Verdict).first_byte(), None);
    }
}
