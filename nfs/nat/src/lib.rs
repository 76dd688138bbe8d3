//! Source address translation for IPv4: hosts of inside prefixes share a few outside addresses.
//!
//! The module `nat` describes what is translated, `mapping` how ports are assigned and how long a
//! mapping lasts. The NF is in the line of both directions and tells them apart by address. It
//! answers no ARP: the outside addresses must be routed to it by their neighbour, or be addresses
//! of the inside router too.

mod mapping;
mod nat;

use std::error::Error;
use std::net::Ipv4Addr;

use clap::Parser;
use ipnet::Ipv4Net;
use sluice_nf::{Context, Handler};
use sluice_nf_parts::report::{ReportArgs, Reported};

use mapping::{Mappings, Timeouts};
use nat::Nat;

/// Source address translation for IPv4: TCP, UDP, ICMP, and the errors about them
#[derive(Debug, Parser)]
#[command(
    name = "sluice-nf-nat",
    version,
    after_help = "Example: sluice-nf-nat --inside 10.0.0.0/8 --outside 203.0.113.1,203.0.113.2"
)]
struct Args {
    /// Prefixes whose hosts are translated
    #[arg(long, value_name = "PREFIX", value_delimiter = ',', required = true)]
    inside: Vec<Ipv4Net>,
    /// Addresses that stand for them, at most 256
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required = true)]
    outside: Vec<Ipv4Addr>,
    /// Most mappings at a time
    #[arg(long, default_value_t = 131_072, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    mappings: u32,
    /// Seconds that an idle, established TCP connection is kept (RFC 5382 asks for 7440 at least)
    #[arg(long, value_name = "SECONDS", default_value_t = 7440)]
    tcp_timeout: u64,
    /// Seconds that an idle UDP mapping is kept (RFC 4787 asks for 120 at least)
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    udp_timeout: u64,
    /// Seconds that an idle ICMP mapping is kept
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    icmp_timeout: u64,
    #[command(flatten)]
    report: ReportArgs,
}

/// Arguments that are invalid together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum ArgsError {
    #[error("--outside {0} lies in --inside {1}; an outside address must be none of the inside's")]
    Overlap(Ipv4Addr, Ipv4Net),
    #[error("--outside {0} is given twice; once is enough")]
    Twice(Ipv4Addr),
    #[error("--outside takes at most 256 addresses, and {0} are given")]
    TooMany(usize),
}

fn nat(args: &Args) -> Result<Nat, ArgsError> {
    if args.outside.len() > 256 {
        return Err(ArgsError::TooMany(args.outside.len()));
    }
    for (i, address) in args.outside.iter().enumerate() {
        if let Some(prefix) = args.inside.iter().find(|prefix| prefix.contains(address)) {
            return Err(ArgsError::Overlap(*address, *prefix));
        }
        if args.outside[..i].contains(address) {
            return Err(ArgsError::Twice(*address));
        }
    }
    let timeouts = Timeouts { tcp_s: args.tcp_timeout, udp_s: args.udp_timeout, icmp_s: args.icmp_timeout };
    Ok(Nat::new(args.inside.clone(), Mappings::new(args.outside.clone(), args.mappings as usize, timeouts)))
}

fn make(args: Args, _context: &Context) -> Result<impl Handler + use<>, Box<dyn Error>> {
    Ok(Reported::new(nat(&args)?, &args.report)?)
}

sluice_nf_parts::nf!(Args, make);

#[cfg(test)]
mod tests {
    use super::*;

    fn error(args: &str) -> String {
        match Args::try_parse_from(["nat"].into_iter().chain(args.split(' '))) {
            Ok(args) => nat(&args).unwrap_err().to_string(),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn arguments_that_make_no_sense_are_refused() {
        assert!(error("--inside 10.0.0.0/8 --outside 10.1.1.1").contains("10.1.1.1 lies in --inside 10.0.0.0/8"));
        assert!(error("--inside 10.0.0.0/8 --outside 1.1.1.1,1.1.1.1").contains("twice"));
        assert!(error("--inside 10.0.0.0/8 --outside ::1").contains("--outside"));
        assert!(error("--inside 10.0.0.0/33 --outside 1.1.1.1").contains("--inside"));
        assert!(error("--inside 10.0.0.0/8").contains("--outside"));
        let many: Vec<String> = (0..=256).map(|i| Ipv4Addr::from(0xc000_0200 + i).to_string()).collect();
        assert!(error(&format!("--inside 10.0.0.0/8 --outside {}", many.join(","))).contains("257"));
    }
}
