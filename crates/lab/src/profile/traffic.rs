//! The traffic of a profile: crafted packets with a flow distribution, or a capture.
//!
//! # Approach
//! Crafted packets equal those that a traced NF creates for itself (`crates/nf/src/trace.rs`): UDP
//! from 10.0.0.0 and up, so that the model's NF and the one on the stand process the same traffic.
//! First comes a packet of each flow; then flows are drawn, uniformly or by Zipf's law, with the
//! same random numbers each time.
//!
//! # Limits
//! Draws repeat after `DRAWS` packets, or fewer where packets are large.

use std::path::{Path, PathBuf};

use sluice_cache::trace::{self, chain::Feed};
use sluice_cli::lab::traffic::{Crafted, Traffic};
use sluice_slo::digest::Digest;

use crate::estimate::EstimateError;
use crate::estimate::packets::{self, PacketsError};
use crate::estimate::stand::Sequence;

const DRAWS: usize = 1 << 18;
/// Memory of all packets, in bytes.
const ROOM: usize = 256 << 20;
/// Traced packets, and warm-up packets before them.
const FOLLOWED: u64 = 1_000_000;
const WARM_UP: u64 = 100_000;

#[derive(Debug, Clone)]
pub struct Packets {
    /// One packet of each flow, sent once.
    pub first: Sequence,
    /// The measured packets.
    pub drawn: Sequence,
    /// Their name in profiles and SLOs.
    pub name: String,
}

#[derive(Debug, thiserror::Error)]
pub enum NoPackets {
    #[error(transparent)]
    Capture(#[from] PacketsError),
    /// A packet is too long, or there is none.
    #[error("{path}: {why}", path = path.display())]
    Unfit { path: PathBuf, why: EstimateError },
    #[error("{flows} flows of packets of {size} bytes do not fit in {} MiB; choose fewer flows or smaller packets", ROOM >> 20)]
    Room {
        flows: u32,
        /// Bytes of a packet.
        size: u32,
    },
}

/// The packets of a traffic.
pub fn packets(traffic: &Traffic) -> Result<Packets, NoPackets> {
    match traffic {
        Traffic::Crafted(crafted) => made(crafted),
        Traffic::Captured(path) => captured(path),
    }
}

/// A traffic as input of a traced NF.
pub fn followed(traffic: &Traffic) -> Result<Followed, NoPackets> {
    match traffic {
        Traffic::Crafted(Crafted { size, flows, zipf, spread }) => {
            let (packets, warm_up) = (FOLLOWED, WARM_UP);
            let (flows, zipf, bytes, spread) = (*flows, *zipf, *size, *spread);
            Ok(Followed::Made(trace::TracedTraffic {
                packets,
                warm_up,
                accesses: Some(trace::ENOUGH),
                flows,
                zipf,
                bytes,
                spread,
                seed: 1,
            }))
        }
        Traffic::Captured(path) => Ok(Followed::Given(packets::captured(path)?)),
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Followed {
    /// Created by the NF itself.
    Made(trace::TracedTraffic),
    /// Fed to it, in turn.
    Given(Vec<Vec<u8>>),
}

impl Followed {
    /// How it is fed: all packets of a capture once before those that count.
    pub fn feed(&self) -> Feed<'_> {
        match self {
            Self::Made(traffic) => Feed::Made(traffic),
            Self::Given(packets) => Feed::Given { packets, warm_up: WARM_UP.max(packets.len() as u64), count: FOLLOWED },
        }
    }
}

fn captured(path: &Path) -> Result<Packets, NoPackets> {
    let unfit = |why| NoPackets::Unfit { path: path.into(), why };
    let mut drawn = Sequence::default();
    let packets = packets::captured(path)?;
    let mut whole = Vec::new();
    for packet in &packets {
        drawn.push(packet).map_err(unfit)?;
        whole.extend_from_slice(packet);
    }
    if drawn.is_empty() {
        return Err(unfit(EstimateError::NoPackets));
    }
    // Distinguishes two captures of one name.
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(Packets { first: drawn.clone(), drawn, name: format!("{name} {}", &Digest::of(&whole).0[..12]) })
}

fn made(crafted: &Crafted) -> Result<Packets, NoPackets> {
    let size = crafted.size as usize;
    let draws = (ROOM / size).saturating_sub(crafted.flows as usize).min(DRAWS);
    let fail = || NoPackets::Room { flows: crafted.flows, size: crafted.size };
    if draws < crafted.flows as usize {
        return Err(fail());
    }
    let mut bytes = vec![0; size];
    let (mut first, mut drawn) = (Sequence::default(), Sequence::default());
    let mut add = |to: &mut Sequence, flow: u32| {
        write(crafted, &mut bytes, flow);
        to.push(&bytes).map_err(|_| fail())
    };
    for flow in 0..crafted.flows {
        add(&mut first, flow)?;
    }
    let mut draw = Draw::new(crafted);
    for _ in 0..draws {
        let flow = draw.flow();
        add(&mut drawn, flow)?;
    }
    Ok(Packets { first, drawn, name: crafted.to_string() })
}

/// Writes a packet of a flow over `bytes`.
fn write(crafted: &Crafted, bytes: &mut [u8], flow: u32) {
    let ip_bytes = (bytes.len() - 14) as u16;
    bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    bytes[12..14].copy_from_slice(&[8, 0]);
    let length = ip_bytes.to_be_bytes();
    bytes[14..26].copy_from_slice(&[0x45, 0, length[0], length[1], 0, 0, 0x40, 0, 64, 17, 0, 0]);
    let [_, a, b, c] = flow.to_be_bytes();
    bytes[26..30].copy_from_slice(&[10, a, b, c]);
    let mut to = [198, 18, 0, 1];
    if crafted.spread {
        to = flow.wrapping_mul(0x9e37_79b1).to_be_bytes();
        // Addresses of hosts: not 0/8, 127/8, or above 223.
        to[0] = 1 + to[0] % 126;
    }
    bytes[30..34].copy_from_slice(&to);
    bytes[34..36].copy_from_slice(&(1024 + (flow % 60_000) as u16).to_be_bytes());
    bytes[36..38].copy_from_slice(&9u16.to_be_bytes());
    bytes[38..40].copy_from_slice(&(ip_bytes - 20).to_be_bytes());
    bytes[40..42].copy_from_slice(&[0, 0]);
    // RFC 1071: the header is twenty bytes, so the carries fit after two folds.
    let words = bytes[14..34].as_chunks::<2>().0.iter();
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    bytes[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
}

/// Randomly drawn flows.
struct Draw {
    state: u64,
    /// For each flow, the cumulative probability up to it; empty for a uniform distribution.
    up_to: Vec<f64>,
    flows: u32,
}

impl Draw {
    fn new(crafted: &Crafted) -> Self {
        let mut sum = 0.0;
        let mut up_to: Vec<f64> = Vec::new();
        if let Some(exponent) = crafted.zipf {
            up_to.extend((1..=crafted.flows).map(|k| {
                sum += f64::from(k).powf(-exponent);
                sum
            }));
            up_to.iter_mut().for_each(|part| *part /= sum);
        }
        Self { state: 1 | 1 << 63, up_to, flows: crafted.flows }
    }

    fn flow(&mut self) -> u32 {
        // Xorshift, Marsaglia 2003, with Vigna's multiplier.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let unit = (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64;
        let flow = match self.up_to.as_slice() {
            [] => (unit * f64::from(self.flows)) as u32,
            up_to => up_to.partition_point(|part| *part <= unit) as u32,
        };
        flow.min(self.flows - 1)
    }
}

#[cfg(test)]
mod tests {
    use sluice_cli::lab::traffic::MOST_FLOWS;

    use super::*;

    #[test]
    fn a_traced_nf_makes_its_packets_or_gets_a_captures() {
        let traffic: Traffic = "flows=5, size=100,zipf=1.1,spread=1".parse().unwrap();
        assert!(matches!(followed(&traffic).unwrap(), Followed::Made(trace::TracedTraffic { bytes: 100, flows: 5, .. })));
        assert!(followed(&Traffic::Captured("/nowhere/x.pcap".into())).is_err());
    }

    #[test]
    fn packets_are_whole_and_of_their_flows() {
        for spread in [false, true] {
            let mut bytes = vec![0xff; 100];
            write(&Crafted { size: 100, spread, ..Crafted::default() }, &mut bytes, 70_000);
            let parsed = etherparse::SlicedPacket::from_ethernet(&bytes).expect("a whole packet");
            let Some(etherparse::NetSlice::Ipv4(ip)) = parsed.net else { panic!("it is IPv4") };
            assert_eq!(ip.header().source(), [10, 1, 0x11, 0x70]);
            assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
        }
    }

    #[test]
    fn flows_follow_the_law() {
        let (n, flows) = (100_000, 50u32);
        for zipf in [None, Some(1.1)] {
            let mut draw = Draw::new(&Crafted { flows, zipf, ..Crafted::default() });
            let mut counts = vec![0u32; flows as usize];
            (0..n).for_each(|_| counts[draw.flow() as usize] += 1);
            let weight = |k: u32| zipf.map_or(1.0, |s| f64::from(k).powf(-s));
            let sum: f64 = (1..=flows).map(weight).sum();
            for k in [1, 2, flows] {
                let (got, wanted) = (f64::from(counts[k as usize - 1]), f64::from(n) * weight(k) / sum);
                assert!((got - wanted).abs() < 6.0 * wanted.sqrt(), "{zipf:?} {k}: {got} {wanted}");
            }
        }
    }

    #[test]
    fn what_cannot_be_sent_is_said() {
        let many = Crafted { size: 1514, flows: MOST_FLOWS, ..Crafted::default() };
        assert!(packets(&Traffic::Crafted(many)).unwrap_err().to_string().contains("fewer flows"));
        assert!(packets(&Traffic::Captured("/nowhere.pcap".into())).unwrap_err().to_string().contains("/nowhere.pcap"));
        let packets = packets(&Traffic::Crafted(Crafted { flows: 10, ..Crafted::default() })).unwrap();
        assert_eq!((packets.first.len(), packets.drawn.len(), packets.name.as_str()), (10, DRAWS, "size=60,flows=10"));
    }
}
