//! Passes the packets of one connection until its state is cleaned, and drops all others.
//!
//! This checks what an NF of a pool with `per = "flow"` assumes: in a correct pool it drops
//! nothing. A connection is both directions of a 5-tuple. TCP packets of a connection whose SYN it
//! has not seen are dropped too: another instance has seen it. Packets without a 5-tuple pass.

use std::process::ExitCode;

use clap::Parser;
use sluice_nf::header::{Flow, parse};
use sluice_nf::{Burst, Handler};
use sluice_nf_parts::parse_args;

/// Passes the packets of one connection, and drops those of any other
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-single", version)]
struct Args {}

#[derive(Debug, Default)]
struct Single {
    /// The connection, in the direction of its first packet.
    connection: Option<Flow>,
}

impl Single {
    fn is_ours(&mut self, packet: &[u8]) -> bool {
        let Some(headers) = parse(packet) else { return true };
        let Some(flow) = headers.flow(packet) else { return true };
        match self.connection {
            Some(known) => known == flow || known.reversed() == flow,
            None => {
                let begins = headers.tcp(packet).is_none_or(|tcp| tcp.syn());
                self.connection = begins.then_some(flow);
                begins
            }
        }
    }
}

impl Handler for Single {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        for mut packet in burst.iter_mut() {
            if !self.is_ours(packet.data()) {
                packet.drop();
            }
        }
    }

    fn clean(&mut self) {
        self.connection = None;
    }
}

fn main() -> ExitCode {
    let Args {} = parse_args();
    sluice_nf::run(|_| Ok(Single::default()))
}

#[cfg(test)]
mod tests {
    use sluice_nf::Verdict;
    use sluice_nf::harness::Harness;

    use super::*;

    /// A TCP packet between 10.0.0.1 and 10.0.0.2, forwards or back.
    fn tcp(port: u16, back: bool, flags: u8) -> Vec<u8> {
        let mut packet = vec![0; 54];
        packet[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        packet[16..18].copy_from_slice(&40u16.to_be_bytes());
        packet[22..24].copy_from_slice(&[64, 6]);
        let ends = [([10, 0, 0, 1], port), ([10, 0, 0, 2], 80)];
        let [(src, src_port), (dst, dst_port)] = if back { [ends[1], ends[0]] } else { ends };
        packet[26..30].copy_from_slice(&src);
        packet[30..34].copy_from_slice(&dst);
        packet[34..36].copy_from_slice(&src_port.to_be_bytes());
        packet[36..38].copy_from_slice(&dst_port.to_be_bytes());
        packet[46..48].copy_from_slice(&[0x50, flags]);
        packet
    }

    #[test]
    fn one_connection_passes_in_both_directions_until_the_state_is_cleaned() {
        let mut nf = Harness::new(Single::default());
        let mut passes = |packet: &[u8]| nf.send(packet).verdict == Verdict::Next;
        assert!(!passes(&tcp(1, false, 0x10)), "its SYN went somewhere else");
        assert!(passes(&tcp(1, false, 0x02)) && passes(&tcp(1, true, 0x12)) && passes(&tcp(1, false, 0x10)));
        assert!(!passes(&tcp(2, false, 0x02)) && !passes(&tcp(2, true, 0x10)));
        assert!(passes(&[0; 14]), "no connection");
        nf.clean();
        assert!(nf.send(&tcp(2, false, 0x02)).verdict == Verdict::Next);
        assert!(nf.send(&tcp(1, false, 0x10)).verdict == Verdict::Drop);
    }
}
