//! The traffic of a profile, and its textual form.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

pub const MOST_FLOWS: u32 = 1 << 18;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crafted {
    /// With the Ethernet header.
    pub size: u32,
    pub flows: u32,
    /// Zipf's exponent; without one, all flows are equally frequent.
    pub zipf: Option<f64>,
    /// Whether destinations are spread over the address space, or all the same.
    pub spread: bool,
}

impl Default for Crafted {
    fn default() -> Self {
        Self { size: 60, flows: 1000, zipf: None, spread: false }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Traffic {
    Crafted(Crafted),
    /// The packets of a file, in turn.
    Captured(PathBuf),
}

/// A text does not describe traffic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{word}\" names no traffic; write size (60 to 1514), flows (1 to {MOST_FLOWS}), zipf (above 0, at most 8) and spread (0 or 1), \
     such as size=60,flows=1000,zipf=1.1, or the name of a capture that ends in .pcap or .pcapng"
)]
pub struct TrafficError {
    word: String,
}

impl FromStr for Traffic {
    type Err = TrafficError;

    fn from_str(text: &str) -> Result<Self, TrafficError> {
        if [".pcap", ".pcapng"].iter().any(|end| text.ends_with(end)) {
            return Ok(Self::Captured(text.into()));
        }
        let mut found = Crafted::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let wrong = || TrafficError { word: word.into() };
            let (key, value) = word.split_once('=').ok_or_else(wrong)?;
            let whole = |least: u32, most: u32| value.parse::<u32>().ok().filter(|n| (least..=most).contains(n)).ok_or_else(wrong);
            match key {
                "size" => found.size = whole(60, 1514)?,
                "flows" => found.flows = whole(1, MOST_FLOWS)?,
                "spread" => found.spread = whole(0, 1)? == 1,
                "zipf" => {
                    let exponent = value.parse::<f64>().ok().filter(|exponent| *exponent > 0.0 && *exponent <= 8.0);
                    found.zipf = Some(exponent.ok_or_else(wrong)?);
                }
                _ => return Err(wrong()),
            }
        }
        Ok(Self::Crafted(found))
    }
}

impl fmt::Display for Crafted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "size={},flows={}", self.size, self.flows)?;
        if let Some(exponent) = self.zipf {
            write!(f, ",zipf={exponent}")?;
        }
        f.write_str(if self.spread { ",spread=1" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_read_and_named_as_it_was() {
        let traffic: Traffic = "flows=5, size=100,zipf=1.1,spread=1".parse().unwrap();
        let wanted = Crafted { size: 100, flows: 5, zipf: Some(1.1), spread: true };
        assert_eq!(traffic, Traffic::Crafted(wanted));
        assert_eq!(wanted.to_string().parse::<Traffic>().unwrap(), traffic);
        assert_eq!("".parse::<Traffic>().unwrap(), Traffic::Crafted(Crafted::default()));
        assert_eq!("a/b.pcapng".parse::<Traffic>().unwrap(), Traffic::Captured("a/b.pcapng".into()));
        for wrong in ["size=59", "size=1515", "flows=0", "flows=x", "zipf=0", "spread=2", "colour=1", "60"] {
            let error = wrong.parse::<Traffic>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{wrong}\" names no traffic")), "{error}");
        }
    }
}
