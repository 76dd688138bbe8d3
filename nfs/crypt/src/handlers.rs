//! The handlers that encrypt and decrypt.

use sluice_nf::{Burst, Handler};
use sluice_nf_parts::reload::Reload;
use sluice_nf_parts::report::{Report, Reports};

use crate::format::{self, Nonces, Refused};
use crate::keys::Keys;

#[derive(Debug, Default)]
struct Counters {
    done: u64,
    malformed: u64,
    plain: u64,
    too_large: u64,
    exhausted: u64,
    unknown_key: u64,
    forged: u64,
}

impl Counters {
    #[inline]
    fn add(&mut self, outcome: Result<(), Refused>) {
        *match outcome {
            Ok(()) => &mut self.done,
            Err(Refused::Malformed) => &mut self.malformed,
            Err(Refused::Plain) => &mut self.plain,
            Err(Refused::TooLarge) => &mut self.too_large,
            Err(Refused::Exhausted) => &mut self.exhausted,
            Err(Refused::UnknownKey) => &mut self.unknown_key,
            Err(Refused::Forged) => &mut self.forged,
        } += 1;
    }
}

/// Encrypts every packet with the first key.
#[derive(Debug)]
pub struct Encrypt {
    keys: Keys,
    nonces: Nonces,
    fresh: Option<Reload<Keys>>,
    counters: Counters,
}

impl Encrypt {
    /// `fresh` brings new keys when the file is read again.
    pub fn new(keys: Keys, nonces: Nonces, fresh: Option<Reload<Keys>>) -> Self {
        Self { keys, nonces, fresh, counters: Counters::default() }
    }
}

impl Handler for Encrypt {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        let key = self.keys.first();
        for mut packet in burst.iter_mut() {
            let outcome = format::seal(&mut packet, key, &mut self.nonces);
            if outcome.is_err() {
                packet.drop();
            }
            self.counters.add(outcome);
        }
    }

    fn tick(&mut self, _now_ns: u64) {
        if let Some(keys) = self.fresh.as_ref().and_then(Reload::take) {
            self.keys = keys;
        }
    }
}

impl Reports for Encrypt {
    fn report(&self, _now_ns: u64) -> Report {
        let c = &self.counters;
        Report::new("encrypt")
            .counter("encrypted", c.done)
            .counter("dropped_malformed", c.malformed)
            .counter("dropped_too_large", c.too_large)
            .counter("dropped_nonces_exhausted", c.exhausted)
    }
}

/// Decrypts every packet with the key that it names.
#[derive(Debug)]
pub struct Decrypt {
    keys: Keys,
    /// Whether packets without encryption pass.
    pass_plain: bool,
    fresh: Option<Reload<Keys>>,
    counters: Counters,
}

impl Decrypt {
    /// `fresh` brings new keys when the file is read again.
    pub fn new(keys: Keys, pass_plain: bool, fresh: Option<Reload<Keys>>) -> Self {
        Self { keys, pass_plain, fresh, counters: Counters::default() }
    }
}

impl Handler for Decrypt {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        for mut packet in burst.iter_mut() {
            let outcome = format::open(&mut packet, &self.keys);
            match outcome {
                Ok(()) => {}
                Err(Refused::Plain) if self.pass_plain => {}
                Err(_) => packet.drop(),
            }
            self.counters.add(outcome);
        }
    }

    fn tick(&mut self, _now_ns: u64) {
        if let Some(keys) = self.fresh.as_ref().and_then(Reload::take) {
            self.keys = keys;
        }
    }
}

impl Reports for Decrypt {
    fn report(&self, _now_ns: u64) -> Report {
        let c = &self.counters;
        let plain = if self.pass_plain { "passed_plain" } else { "dropped_plain" };
        Report::new("decrypt")
            .counter("decrypted", c.done)
            .counter("dropped_malformed", c.malformed)
            .counter(plain, c.plain)
            .counter("dropped_unknown_key", c.unknown_key)
            .counter("dropped_forged", c.forged)
    }
}

#[cfg(test)]
mod tests {
    use sluice_nf::Verdict;
    use sluice_nf::harness::Harness;

    use super::*;

    const KEYS: &str = "1 000102030405060708090a0b0c0d0e0f\n2 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn encrypt(text: &str) -> Harness<Encrypt> {
        Harness::new(Encrypt::new(Keys::parse(text).unwrap(), Nonces::new(7).unwrap(), None))
    }

    fn decrypt(pass_plain: bool) -> Harness<Decrypt> {
        Harness::new(Decrypt::new(Keys::parse(KEYS).unwrap(), pass_plain, None))
    }

    fn packet(len: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        packet[12..14].copy_from_slice(&[0x08, 0x00]);
        packet
    }

    fn count(nf: &impl Reports, name: &str) -> u64 {
        nf.report(0).get(name).unwrap()
    }

    #[test]
    fn every_packet_comes_back_byte_for_byte() {
        for keys in [KEYS, KEYS.split_once('\n').unwrap().1] {
            let (mut there, mut back) = (encrypt(keys), decrypt(false));
            for len in (14..100).chain([1514, 1518, 2000]) {
                for tags in
                    [&[][..], &[0x81, 0, 0, 5], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 5], &[0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3]]
                {
                    let mut plain = packet(len);
                    plain.splice(12..12, tags.iter().copied());
                    let sealed = there.send(&plain);
                    assert_eq!((sealed.verdict, sealed.bytes.len()), (Verdict::Next, plain.len() + format::OVERHEAD));
                    assert_eq!(sealed.bytes[..12], plain[..12]);
                    let kept = tags.len().min(8);
                    assert_eq!(sealed.bytes[12..12 + kept], plain[12..12 + kept]);
                    assert_eq!(sealed.bytes[12 + kept..14 + kept], [0x88, 0xb5]);
                    let opened = back.send(&sealed.bytes);
                    assert_eq!((opened.verdict, &opened.bytes), (Verdict::Next, &plain));
                    let padded = [&sealed.bytes[..], &[0; 9]].concat();
                    assert_eq!(back.send(&padded).bytes, plain, "padding is taken off");
                }
            }
        }
    }

    #[test]
    fn a_packet_that_is_encrypted_already_is_encrypted_again() {
        let (mut there, mut back) = (encrypt(KEYS), decrypt(false));
        let plain = packet(60);
        let once = there.send(&plain).bytes;
        let twice = there.send(&once).bytes;
        assert_eq!(back.send(&twice).bytes, once);
        assert_eq!(back.send(&once).bytes, plain);
    }

    #[test]
    fn no_nonce_comes_twice_and_equal_packets_look_different() {
        let mut there = encrypt(KEYS);
        let mut seen = std::collections::HashSet::new();
        for outcome in there.burst(&vec![packet(60); 100]) {
            assert!(seen.insert(outcome.bytes[18..30].to_vec()));
            assert!(seen.insert(outcome.bytes[30..].to_vec()));
        }
    }

    #[test]
    fn any_changed_byte_behind_the_ethertype_is_found_out() {
        let (mut there, mut back) = (encrypt(KEYS), decrypt(true));
        let sealed = there.send(&packet(60)).bytes;
        for at in 14..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(back.send(&changed).verdict, Verdict::Drop, "byte {at}");
        }
        let mut moved = sealed.clone();
        moved[0] ^= 2;
        assert_eq!(back.send(&moved).verdict, Verdict::Next, "a router may change MAC addresses");
        assert_eq!(count(back.handler(), "dropped_unknown_key"), 1);
        assert_eq!(count(back.handler(), "dropped_malformed"), 1 + 2, "the version, and two lengths beyond the end");
        for len in 1..sealed.len() {
            assert_eq!(back.send(&sealed[..len]).verdict, Verdict::Drop, "cut to {len} bytes");
        }
    }

    #[test]
    fn what_cannot_be_done_is_dropped_and_counted() {
        // 192 bytes behind the headroom.
        let mut small = Harness::with_packet_bytes(Encrypt::new(Keys::parse(KEYS).unwrap(), Nonces::new(0).unwrap(), None), 192);
        assert_eq!(small.send(&packet(176)).verdict, Verdict::Next);
        let refused = small.send(&packet(177));
        assert_eq!((refused.verdict, refused.bytes), (Verdict::Drop, packet(177)));
        assert_eq!(small.send(&[0; 13]).verdict, Verdict::Drop);
        let mut spent = Harness::new(Encrypt::new(Keys::parse(KEYS).unwrap(), Nonces::new(u64::MAX).unwrap(), None));
        assert_eq!(spent.send(&packet(60)).verdict, Verdict::Next);
        assert_eq!(spent.send(&packet(60)).verdict, Verdict::Drop);
        for name in ["encrypted", "dropped_too_large", "dropped_malformed"] {
            assert_eq!(count(small.handler(), name), 1, "{name}");
        }
        assert_eq!(count(spent.handler(), "encrypted"), 1);
        assert_eq!(count(spent.handler(), "dropped_nonces_exhausted"), 1);
    }

    #[test]
    fn plain_packets_pass_only_if_asked() {
        for (pass, verdict) in [(true, Verdict::Next), (false, Verdict::Drop)] {
            let mut back = decrypt(pass);
            let outcome = back.send(&packet(60));
            assert_eq!((outcome.verdict, outcome.bytes), (verdict, packet(60)));
            assert_eq!(count(back.handler(), if pass { "passed_plain" } else { "dropped_plain" }), 1);
        }
    }
}
