//! Filter of the packets that are written: all given conditions must hold.

use std::net::IpAddr;
use std::str::FromStr;

use sluice_nf::header::parse;

/// Conditions on a packet's flow. A fragment has no ports, so no condition on ports holds for it.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Which packets (all conditions must hold; without any, all packets)")]
pub struct Filter {
    /// Protocol: tcp, udp, icmp, icmpv6, sctp or a number
    #[arg(long, value_parser = protocol)]
    pub protocol: Option<u8>,
    /// Source or destination port
    #[arg(long)]
    pub port: Option<u16>,
    /// Source port
    #[arg(long, value_name = "PORT")]
    pub src_port: Option<u16>,
    /// Destination port
    #[arg(long, value_name = "PORT")]
    pub dst_port: Option<u16>,
    /// Source address or prefix
    #[arg(long, value_name = "PREFIX")]
    pub src: Option<Prefix>,
    /// Destination address or prefix
    #[arg(long, value_name = "PREFIX")]
    pub dst: Option<Prefix>,
}

fn protocol(text: &str) -> Result<u8, String> {
    Ok(match text {
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "icmpv6" => 58,
        "sctp" => 132,
        number => number.parse().map_err(|_| "give tcp, udp, icmp, icmpv6, sctp or a number up to 255".to_owned())?,
    })
}

impl Filter {
    pub fn holds(&self, packet: &[u8]) -> bool {
        if self.is_empty() {
            return true;
        }
        let Some((headers, flow)) = parse(packet).and_then(|h| Some((h, h.flow(packet)?))) else { return false };
        let has_ports = headers.l4.is_some_and(|l4| l4.ports.is_some()) && headers.ip.is_some_and(|ip| ip.fragment.is_none());
        let is = |wanted: Option<u16>, port: u16| wanted.is_none_or(|wanted| has_ports && wanted == port);
        self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && is(self.src_port, flow.src_port)
            && is(self.dst_port, flow.dst_port)
            && (is(self.port, flow.src_port) || is(self.port, flow.dst_port))
            && self.src.is_none_or(|prefix| prefix.contains(flow.src))
            && self.dst.is_none_or(|prefix| prefix.contains(flow.dst))
    }

    fn is_empty(&self) -> bool {
        let ports = [self.port, self.src_port, self.dst_port];
        self.protocol.is_none() && ports.iter().all(Option::is_none) && self.src.is_none() && self.dst.is_none()
    }
}

/// An address and how many of its bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u32,
}

impl Prefix {
    /// Whether an address, of the same family, lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => self.bits == 0 || (a.to_bits() ^ b.to_bits()) >> (32 - self.bits) == 0,
            (IpAddr::V6(a), IpAddr::V6(b)) => self.bits == 0 || (a.to_bits() ^ b.to_bits()) >> (128 - self.bits) == 0,
            _ => false,
        }
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no prefix; give an address such as 10.0.0.1, or a prefix such as 10.0.0.0/8 or 2001:db8::/32");
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
        if bits > most { Err(wrong()) } else { Ok(Self { address, bits }) }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use etherparse::PacketBuilder;

    use super::*;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        filter: Filter,
    }

    fn holds(args: &str, packet: &[u8]) -> bool {
        Args::try_parse_from(["x"].into_iter().chain(args.split_whitespace())).unwrap().filter.holds(packet)
    }

    #[test]
    fn every_condition_must_hold() {
        let mut packet = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4([10, 0, 0, 1], [10, 1, 0, 1], 64)
            .udp(5000, 53)
            .write(&mut packet, b"x")
            .unwrap();
        for yes in [
            "",
            "--protocol udp",
            "--protocol 17",
            "--port 53",
            "--port 5000",
            "--src 10.0.0.0/16 --dst-port 53",
            "--dst 0.0.0.0/0",
        ] {
            assert!(holds(yes, &packet), "{yes}");
        }
        for no in ["--protocol tcp", "--port 54", "--src-port 53", "--dst 10.0.0.0/16", "--src ::/0", "--port 53 --dst-port 5000"] {
            assert!(!holds(no, &packet), "{no}");
        }
        assert!(holds("", b"short") && !holds("--protocol udp", b"short"));
        packet[20] |= 0x20;
        assert!(!holds("--port 53", &packet) && holds("--src 10.0.0.1", &packet), "a fragment has no ports");
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for wrong in ["10.0.0.0/33", "10.0.0/8", "::/129", "x", "10.0.0.0/"] {
            assert!(wrong.parse::<Prefix>().unwrap_err().contains("such as 10.0.0.1"), "{wrong}");
        }
        assert!(protocol("256").is_err());
    }
}
