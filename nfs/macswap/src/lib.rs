//! Swaps the MAC addresses of every packet, so that it returns to its sender.
//!
//! The usual benchmark of platforms: it accesses only the first 12 bytes of a packet. A packet
//! shorter than an Ethernet header is dropped.

use clap::Parser;
use sluice_nf::header::Headers;
use sluice_nf::{Burst, Context, Handler};
use std::error::Error;

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

fn make(_args: Args, _context: &Context) -> Result<impl Handler + use<>, Box<dyn Error>> {
    Ok(MacSwap)
}

sluice_nf_parts::nf!(Args, make);

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
