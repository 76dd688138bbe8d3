//! Traffic classes: the value of `class` in `[service.pool]`.

use std::str::FromStr;

use sluice_api::parse;

/// What packets of one class have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TrafficClass {
    /// The tenant that their rule names. Packets of rules without a tenant form a class too.
    Tenant,
    /// The VLAN; usually one for each tenant.
    Vlan,
    /// The ingress port; usually one for each customer.
    Port,
    /// The DSCP.
    Dscp,
    /// The network of the source address, or of the destination address.
    Prefix {
        /// Whether it is the source address.
        source: bool,
        /// Bits of an IPv4 network, 0 to 32.
        v4: u8,
        /// Bits of an IPv6 network, 0 to 128.
        v6: u8,
    },
}

/// Bits of an IPv6 network if only those of IPv4 are given.
const USUAL_V6: u8 = 64;

impl FromStr for TrafficClass {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = "write `tenant`, `vlan`, `port`, `dscp`, `source-prefix/24` or `destination-prefix/24` (and `/24/56` for another \
                     length of IPv6 networks than 64)";
        match text {
            "tenant" => return Ok(Self::Tenant),
            "vlan" => return Ok(Self::Vlan),
            "port" => return Ok(Self::Port),
            "dscp" => return Ok(Self::Dscp),
            _ => {}
        }
        let mut parts = text.split('/');
        let source = match parts.next() {
            Some("source-prefix") => true,
            Some("destination-prefix") => false,
            _ => return Err(known),
        };
        let mut bits = |most: u8| match parts.next() {
            None => Ok(None),
            Some(text) => parse::bits(text, most).map(Some).ok_or(known),
        };
        let v4 = bits(32)?.ok_or(known)?;
        let v6 = bits(128)?.unwrap_or(USUAL_V6);
        if parts.next().is_some() {
            return Err(known);
        }
        Ok(Self::Prefix { source, v4, v6 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_said_in_words() {
        for (text, class) in [
            ("tenant", TrafficClass::Tenant),
            ("vlan", TrafficClass::Vlan),
            ("port", TrafficClass::Port),
            ("dscp", TrafficClass::Dscp),
            ("source-prefix/24", TrafficClass::Prefix { source: true, v4: 24, v6: 64 }),
            ("destination-prefix/0/128", TrafficClass::Prefix { source: false, v4: 0, v6: 128 }),
        ] {
            assert_eq!(text.parse::<TrafficClass>(), Ok(class), "{text}");
        }
        for text in [
            "",
            "tenants",
            "source-prefix",
            "source-prefix/33",
            "source-prefix/24/129",
            "source-prefix/24/56/1",
            "prefix/+4",
            "source-prefix/+4",
        ] {
            assert!(text.parse::<TrafficClass>().is_err(), "{text}");
        }
    }
}
