//! Swaps the destination and the source MAC address of every packet, so that it goes back where it came from. What every platform's
//! speed is measured with: it reads and writes the first 12 bytes of a packet and nothing else.
//!
//! A packet of fewer than 12 bytes has no two addresses, and is dropped.

use std::process::ExitCode;

use clap::Parser;
use sluice_nf::{Burst, Handler};

/// Swaps the destination and the source MAC address of every packet
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-macswap", version)]
struct Args {}

struct MacSwap;

impl Handler for MacSwap {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        for mut packet in burst.iter_mut() {
            match packet.data_mut().first_chunk_mut::<12>() {
                Some([d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5]) => {
                    for (d, s) in [(d0, s0), (d1, s1), (d2, s2), (d3, s3), (d4, s4), (d5, s5)] {
                        std::mem::swap(d, s);
                    }
                }
                None => packet.drop(),
            }
        }
    }
}

fn main() -> ExitCode {
    let Args {} = Args::parse();
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
        assert_eq!(nf.send(&[1; 12]).verdict, Verdict::Next);
    }

    #[test]
    fn a_packet_without_two_addresses_is_dropped() {
        let outcome = Harness::new(MacSwap).send(&[1; 11]);
        assert_eq!((outcome.verdict, outcome.bytes), (Verdict::Drop, vec![1; 11]));
    }
}
