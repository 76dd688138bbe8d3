//! The packets that an NF is traced on.
//!
//! The generator keeps no table, so that only the NF fills a cache: Zipf by rejection-inversion,
//! and powers by series, where the C library's have tables of some KiB.
//!
//! # Source
//! W. Hörmann and G. Derflinger, Rejection-inversion to generate variates from monotone discrete
//! distributions, 1996.

use sluice_shm::BURST;

use super::{TracedTraffic, made, mark};
use crate::header::checksum;

/// The warm-up's part of a sufficient number of accesses is one in this many.
const WARM_UP_PART: u64 = 10;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Flows,
    WarmUp,
    Counted,
    Ended,
}

/// All packets of a trace, burst by burst.
pub(super) struct PacketSource {
    traffic: TracedTraffic,
    draw: Draw,
    maker: Maker,
    burst: Vec<Vec<u8>>,
    stage: Stage,
    /// Packets of this stage so far, and the loads and stores at its beginning.
    sent: u64,
    began: u64,
}

impl PacketSource {
    pub(super) fn new(traffic: TracedTraffic) -> Self {
        let maker = Maker::new(traffic.bytes, traffic.spread);
        let burst = vec![maker.whole.clone(); BURST];
        Self { traffic, draw: Draw::new(&traffic), maker, burst, stage: Stage::Flows, sent: 0, began: made() }
    }

    /// The next burst; call it while not following. None: the trace and all marks are complete.
    pub(super) fn burst(&mut self) -> Option<&[Vec<u8>]> {
        loop {
            let TracedTraffic { flows, warm_up, packets, accesses, .. } = self.traffic;
            let (count, enough) = match self.stage {
                Stage::Flows => (u64::from(flows), None),
                Stage::WarmUp => (warm_up, accesses.map(|accesses| accesses / WARM_UP_PART)),
                Stage::Counted => (packets, accesses),
                Stage::Ended => return None,
            };
            if self.sent < count && enough.is_none_or(|enough| made() < self.began + enough) {
                let n = (count - self.sent).min(BURST as u64);
                for (packet, i) in self.burst.iter_mut().zip(self.sent..self.sent + n) {
                    let flow = if self.stage == Stage::Flows { i as u32 } else { self.draw.flow() };
                    self.maker.write(packet, flow);
                }
                self.sent += n;
                return Some(&self.burst[..n as usize]);
            }
            self.stage = match self.stage {
                Stage::Flows => Stage::WarmUp,
                Stage::WarmUp => {
                    mark(made());
                    Stage::Counted
                }
                Stage::Counted | Stage::Ended => {
                    mark(made());
                    if accesses.is_some() {
                        mark(self.sent);
                    }
                    Stage::Ended
                }
            };
            (self.sent, self.began) = (0, made());
        }
    }
}

/// The natural logarithm of a number above 0, to nine digits.
fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let (mut exponent, mut part) = ((bits >> 52) as f64 - 1023.0, f64::from_bits(bits & MANTISSA | 1023 << 52));
    if part > std::f64::consts::SQRT_2 {
        (exponent, part) = (exponent + 1.0, part / 2.0);
    }
    // 2 artanh(z), where z is at most .172.
    let z = (part - 1.0) / (part + 1.0);
    let square = z * z;
    let series = (0..7).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    2.0 * z * series + exponent * std::f64::consts::LN_2
}

/// e to the power of a number, within a float's range, to nine digits.
fn exp(y: f64) -> f64 {
    let twos = (y / std::f64::consts::LN_2).round().clamp(-1022.0, 1023.0);
    let rest = y - twos * std::f64::consts::LN_2;
    let series = (1..11).rev().fold(1.0, |sum, k| 1.0 + rest / f64::from(k) * sum);
    series * f64::from_bits(((twos + 1023.0) as u64) << 52)
}

fn pow(x: f64, y: f64) -> f64 {
    if x <= 0.0 { 0.0 } else { exp(y * ln(x)) }
}

/// Random numbers from 0 to 1, and from 1 to `n` by Zipf's law.
struct Draw {
    state: u64,
    n: f64,
    s: f64,
    first: f64,
    last: f64,
    near: f64,
}

impl Draw {
    fn new(traffic: &TracedTraffic) -> Self {
        let s = traffic.zipf.unwrap_or(0.0);
        let n = f64::from(traffic.flows);
        let mut draw = Self { state: traffic.seed | 1 << 63, n, s, first: 0.0, last: 0.0, near: 0.0 };
        draw.first = draw.area(1.5) - 1.0;
        draw.last = draw.area(n + 0.5);
        draw.near = 2.0 - draw.area_inverse(draw.area(2.5) - pow(2.0, -s));
        draw
    }

    fn unit(&mut self) -> f64 {
        // Xorshift, Marsaglia 2003, with Vigna's multiplier.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn area(&self, x: f64) -> f64 {
        if (self.s - 1.0).abs() < 1e-9 { ln(x) } else { (pow(x, 1.0 - self.s) - 1.0) / (1.0 - self.s) }
    }

    fn area_inverse(&self, y: f64) -> f64 {
        if (self.s - 1.0).abs() < 1e-9 { exp(y) } else { pow(1.0 + y * (1.0 - self.s), 1.0 / (1.0 - self.s)) }
    }

    /// A flow's number, from 0.
    fn flow(&mut self) -> u32 {
        if self.s == 0.0 {
            return (self.unit() * self.n) as u32;
        }
        loop {
            let u = self.last + self.unit() * (self.first - self.last);
            let x = self.area_inverse(u);
            let k = x.round().clamp(1.0, self.n);
            if k - x <= self.near || u >= self.area(k + 0.5) - pow(k, -self.s) {
                return k as u32 - 1;
            }
        }
    }
}

/// Makes UDP packets that differ only in their flows, so that little is written for each.
struct Maker {
    /// The packet without a flow.
    whole: Vec<u8>,
    /// The sum of its header's words.
    sum: u32,
    spread: bool,
}

impl Maker {
    fn new(bytes: usize, spread: bool) -> Self {
        let mut whole = vec![0; bytes];
        whole[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        whole[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        whole[12..14].copy_from_slice(&[8, 0]);
        let ip_bytes = (bytes - 14) as u16;
        whole[14..24].copy_from_slice(&[0x45, 0, (ip_bytes >> 8) as u8, ip_bytes as u8, 0, 0, 0x40, 0, 64, 17]);
        whole[36..38].copy_from_slice(&9u16.to_be_bytes());
        whole[38..40].copy_from_slice(&(ip_bytes - 20).to_be_bytes());
        let sum = u32::from(!checksum::compute(&whole[14..34]));
        Self { whole, sum, spread }
    }

    /// Turns a packet into one of this flow.
    fn write(&self, packet: &mut [u8], flow: u32) {
        let from = 10 << 24 | flow & 0xff_ffff;
        let mut to = u32::from_be_bytes([198, 18, 0, 1]);
        if self.spread {
            to = flow.wrapping_mul(0x9e37_79b1);
            // Host addresses: not 0/8, 127/8, or above 223.
            to = to & 0xff_ffff | (1 + (to >> 24) % 126) << 24;
        }
        let port = 1_024 + (flow % 60_000) as u16;
        let addresses = u64::from(from) << 32 | u64::from(to);
        let words = (from >> 16) + (from & 0xffff) + (to >> 16) + (to & 0xffff);
        let mut sum = self.sum + words;
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        // The checksum, both addresses and the source port.
        packet[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        packet[26..34].copy_from_slice(&addresses.to_be_bytes());
        packet[34..36].copy_from_slice(&port.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_by_series_are_those_of_the_library() {
        for x in [1e-9, 0.3, 0.999, 1.0, 1.41, 1.42, 2.0, 777.5, 1.7e7] {
            for y in [-8.0, -1.3, -0.01, 0.3, 1.0, 7.0] {
                let wanted = f64::powf(x, y);
                assert!((pow(x, y) / wanted - 1.0).abs() < 1e-6, "{x} {y}: {} {wanted}", pow(x, y));
            }
            assert!((ln(x) - x.ln()).abs() < 1e-8, "{x}");
        }
        assert_eq!(pow(0.0, 3.0), 0.0);
    }

    #[test]
    fn flows_follow_the_law() {
        for s in [0.7, 1.0, 1.3] {
            let mut draw = Draw::new(&TracedTraffic { zipf: Some(s), flows: 100, ..TracedTraffic::parse("").unwrap() });
            let mut counts = [0u32; 100];
            (0..200_000).for_each(|_| counts[draw.flow() as usize] += 1);
            let sum: f64 = (1..=100).map(|k| f64::from(k).powf(-s)).sum();
            for k in [1u32, 2, 10, 100] {
                let (got, wanted) = (f64::from(counts[k as usize - 1]), 200_000.0 * f64::from(k).powf(-s) / sum);
                assert!((got - wanted).abs() < 5.0 * wanted.sqrt(), "{s} {k}: {got} {wanted}");
            }
        }
        let mut draw = Draw::new(&TracedTraffic::parse("flows=10").unwrap());
        assert!((0..1_000).all(|_| draw.flow() < 10));
    }

    #[test]
    fn packets_are_ones_that_nfs_take() {
        for (flow, bytes, spread) in [(0, 60, false), (70_000, 1_514, true), ((1 << 24) - 1, 60, true)] {
            let maker = Maker::new(bytes, spread);
            let mut packet = maker.whole.clone();
            // Over another one, as in use.
            for flow in [9, flow] {
                maker.write(&mut packet, flow);
            }
            let headers = crate::header::parse(&packet).unwrap();
            assert!(headers.flow(&packet).is_some());
            assert_eq!(checksum::compute(&packet[14..34]), 0);
            assert_eq!(u32::from_be_bytes(packet[26..30].try_into().unwrap()), 10 << 24 | flow);
        }
    }
}
