//! Swaps the MAC addresses of every packet, so that it returns to its sender.
//!
//! The usual benchmark of platforms: it accesses only the first 12 bytes of a packet. A packet
//! shorter than an Ethernet header is dropped.

use std::process::ExitCode;

use clap::Parser;
use sluice_nf::header::Headers;
use sluice_nf::{Burst, Handler};
use sluice_nf_parts::parse_args;

/// Swaps the destination and the source MAC address of every packet
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-macswap", version)]
struct Args {}

struct MacSwap;

impl Handler for MacSwap {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        for mut packet in burst.iter_mut() {
            if Headers::swap_macs(packet.data_mut()).is_err() {
                packet.drop();
            }
        }
    }
}

fn main() -> ExitCode {
    let Args {} = parse_args();
    sluice_nf::run(|_| Ok(MacSwap))
}

#[cfg(test)]
mod tests {
    use sluice_nf::Verdict;
    use sluice_nf::harness::Harness;

    use super::*;

    #[test]
    fn addresses_are_swapped_and_nothing_else_changes() {
        let mut nf = Harness::new(MacSwap);
        let outcome = nf.send(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 8, 0, 99]);
        assert_eq!(outcome.verdict, Verdict::Next);
        assert_eq!(outcome.bytes, [7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 8, 0, 99]);
        assert_eq!(nf.send(&[1; 14]).verdict, Verdict::Next);
    }

    #[test]
    fn a_packet_without_an_ethernet_header_is_dropped() {
        let outcome = Harness::new(MacSwap).send(&[1; 13]);
        assert_eq!((outcome.verdict, outcome.bytes), (Verdict::Drop, vec![1; 13]));
    }
}
