//! MAC addresses in files and reports.

use std::fmt;
use std::str::FromStr;

/// A MAC address, written `02:00:00:00:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

/// The text is no MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("six pairs of hexadecimal digits with colons between are one")]
pub struct NoMac;

impl FromStr for Mac {
    type Err = NoMac;

    fn from_str(text: &str) -> Result<Self, NoMac> {
        let mut mac = [0; 6];
        let mut pairs = text.split(':');
        for byte in &mut mac {
            let pair = pairs.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit())).ok_or(NoMac)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| NoMac)?;
        }
        pairs.next().map_or(Ok(Self(mac)), |_| Err(NoMac))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        let text = "02:ab:00:00:0f:ff";
        assert_eq!(text.parse::<Mac>().unwrap().to_string(), text);
        assert_eq!("02:AB:00:00:0F:FF".parse::<Mac>().unwrap().0, [2, 0xab, 0, 0, 0x0f, 0xff]);
        for wrong in ["", "02:ab:00:00:0f", "02:ab:00:00:0f:ff:00", "2:ab:00:00:0f:ff", "02-ab-00-00-0f-ff", "+2:ab:00:00:0f:ff"] {
            assert_eq!(wrong.parse::<Mac>(), Err(NoMac), "{wrong}");
        }
    }
}
