//! Advice: the flow entries of an SDN controller, compiled, and looked up before the rules.
//!
//! Problem: thousands of entries change while packets flow, each with a priority and, for any
//! header field, a value and a mask. Find the best one within a microsecond; count packets by
//! entry.
//!
//! Approach: tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999). Entries with one mask
//! form one hash table. Tables are searched in the order of their highest priority, until none can
//! hold a better entry. An [`Advice`] is immutable; a change makes a new one. The flow table stores
//! the result with the number of the entry, by which packets are counted ([`Tally`]).
//!
//! Some fields (MAC addresses of IP packets, ICMP types, ARP's addresses) are not in the
//! [`FlowKey`]: flows that differ in them share one. If an entry with such a field could have
//! matched, the result holds for that one packet only ([`Found::settles`]).
//!
//! Limits: each distinct mask costs one look-up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_dataplane::classify::flow_table::MAX_NOTE;
use sluice_dataplane::classify::key::{self, FlowKey, WORDS};
use sluice_dataplane::counter::Counter;

/// Words of the fields outside of the flow key.
///
/// Destination MAC and presence of a VLAN tag; source MAC with ICMP type and code, or with ARP's
/// operation; ARP's protocol addresses; its two hardware addresses, a word each.
pub const BEYOND: usize = 5;

/// Words of a packet that entries compare: the flow key's, then those beyond.
pub const WIDE: usize = WORDS + BEYOND;

/// In place of an entry's number: the controller has not been asked about this flow yet.
pub(crate) const UNASKED: u32 = MAX_NOTE;

/// Largest number of an entry; the smallest is 1.
pub(crate) const MAX_NUMBER: u32 = MAX_NOTE - 1;

/// What happens to a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It goes through this chain.
    Chain(u16),
    /// The rules decide.
    Rules,
    Drop,
    /// The controller is asked, and gets up to this many bytes.
    Ask(u16),
}

/// What happens to a packet until the controller answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Meanwhile {
    /// The rules decide.
    #[default]
    Rules,
    /// It waits for the answer.
    Wait,
    Drop,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub number: u32,
    /// The highest of the matching entries wins.
    pub priority: u16,
    /// Bits that are compared.
    pub mask: [u64; WIDE],
    /// Their values.
    pub value: [u64; WIDE],
    pub answer: Answer,
}

impl Entry {
    /// Whether a packet matches: the definition, of which [`Advice::find`] is the fast form.
    pub fn matches(&self, words: &[u64; WIDE]) -> bool {
        words.iter().zip(&self.mask).zip(&self.value).all(|((word, mask), value)| word & mask == *value)
    }
}

#[derive(Debug)]
struct Tuple {
    mask: [u64; WIDE],
    highest: u16,
    looks_beyond: bool,
    entries: HashMap<[u64; WIDE], Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    pub entry: Option<&'a Entry>,
    /// Whether the result is the same for all packets of the flow.
    pub settles: bool,
}

#[derive(Debug, Default)]
pub struct Advice {
    tuples: Vec<Tuple>,
    looks_beyond: bool,
    /// Answer for packets without an entry. Never [`Answer::Ask`].
    otherwise: Option<Answer>,
    /// What happens to packets until the controller answers.
    pub meanwhile: Meanwhile,
    /// Answer for packets that waited too long. Never [`Answer::Ask`].
    unanswered: Option<Answer>,
}

impl Advice {
    /// Compiles entries. Of two with the same mask and value, the one of higher priority stays.
    ///
    /// `otherwise` is for packets without a match, `unanswered` for expired ones; neither asks.
    pub fn new(entries: impl IntoIterator<Item = Entry>, otherwise: Answer, meanwhile: Meanwhile, unanswered: Answer) -> Self {
        let mut tuples: HashMap<[u64; WIDE], Tuple> = HashMap::new();
        for entry in entries {
            let looks_beyond = entry.mask[WORDS..].iter().any(|word| *word != 0);
            let empty = || Tuple { mask: entry.mask, highest: 0, looks_beyond, entries: HashMap::new() };
            let tuple = tuples.entry(entry.mask).or_insert_with(empty);
            tuple.highest = tuple.highest.max(entry.priority);
            match tuple.entries.get(&entry.value) {
                Some(better) if better.priority >= entry.priority => {}
                _ => drop(tuple.entries.insert(entry.value, entry)),
            }
        }
        let mut tuples: Vec<Tuple> = tuples.into_values().collect();
        tuples.sort_by_key(|tuple| std::cmp::Reverse(tuple.highest));
        let looks_beyond = tuples.iter().any(|tuple| tuple.looks_beyond);
        Self { tuples, looks_beyond, otherwise: Some(otherwise), meanwhile, unanswered: Some(unanswered) }
    }

    pub fn otherwise(&self) -> Answer {
        self.otherwise.unwrap_or(Answer::Rules)
    }

    pub fn unanswered(&self) -> Answer {
        self.unanswered.unwrap_or(Answer::Rules)
    }

    /// The matching entry of highest priority. `beyond` is called only if an entry needs it.
    pub fn find(&self, key: &FlowKey, beyond: impl FnOnce() -> [u64; BEYOND]) -> Found<'_> {
        let mut words = [0; WIDE];
        words[..WORDS].copy_from_slice(key.words());
        if self.looks_beyond {
            words[WORDS..].copy_from_slice(&beyond());
        }
        let mut found = Found { entry: None, settles: true };
        for tuple in &self.tuples {
            if found.entry.is_some_and(|best: &Entry| best.priority >= tuple.highest) {
                break;
            }
            found.settles &= !tuple.looks_beyond;
            let mut masked = words;
            masked.iter_mut().zip(&tuple.mask).for_each(|(word, mask)| *word &= mask);
            if let Some(entry) = tuple.entries.get(&masked)
                && found.entry.is_none_or(|best| best.priority < entry.priority)
            {
                found.entry = Some(entry);
            }
        }
        found
    }
}

/// The words of a packet that are not in the flow key, from a copy of its first bytes.
pub fn beyond(bytes: &[u8]) -> [u64; BEYOND] {
    let mac = |at: usize| number::<6>(bytes, at);
    let tagged = matches!(key::u16_at(bytes, 12), Some(0x8100 | 0x88a8 | 0x9100));
    let mut words = [mac(0) | u64::from(tagged) << 48, mac(6), 0, 0, 0];
    let Some((_, ethertype, at)) = key::link(bytes) else { return words };
    match ethertype {
        0x0806 => {
            words[1] |= number::<2>(bytes, at + 6) << 48;
            words[2] = number::<4>(bytes, at + 14) << 32 | number::<4>(bytes, at + 24);
            words[3] = number::<6>(bytes, at + 8);
            words[4] = number::<6>(bytes, at + 18);
        }
        0x0800 if bytes.get(at + 9) == Some(&sluice_api::protocol::ICMP) => {
            let header = usize::from(bytes[at] & 0xf) * 4;
            words[1] |= number::<2>(bytes, at + header) << 48;
        }
        0x86dd => {
            if let Some(at) = icmpv6(bytes, at) {
                words[1] |= number::<2>(bytes, at) << 48;
            }
        }
        _ => {}
    }
    words
}

/// Offset of the ICMPv6 header in an IPv6 packet, if it has one.
fn icmpv6(bytes: &[u8], ip: usize) -> Option<usize> {
    let mut next = *bytes.get(ip + 6)?;
    let mut at = ip + 40;
    for _ in 0..=key::MAX_EXTENSIONS {
        if next == sluice_api::protocol::ICMPV6 {
            return Some(at);
        }
        if !key::is_extension(next) {
            return None;
        }
        let length = if next == key::FRAGMENT_HEADER { 8 } else { 8 + usize::from(*bytes.get(at + 1)?) * 8 };
        next = *bytes.get(at)?;
        at += length;
    }
    None
}

/// A big-endian number of `N` bytes; 0 if some are missing.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    key::word::<N>(bytes, at).map_or(0, |bytes| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// Counts of one thread for one entry.
#[derive(Debug, Default)]
struct Line {
    packets: Counter,
    bytes: Counter,
    seen_ms: AtomicU64,
}

/// Packets by entry, counted by each thread. Counts never decrease, even if a number is reused.
#[derive(Debug)]
pub struct Tally(Box<[Box<[Line]>]>);

impl Tally {
    pub fn new(threads: usize, most: u32) -> Self {
        let lines = || (0..=most.min(MAX_NUMBER)).map(|_| Line::default()).collect();
        Self((0..threads).map(|_| lines()).collect())
    }

    /// Counts one packet. Only thread `thread` may call this.
    #[inline]
    pub fn add(&self, thread: usize, number: u32, bytes: u16, now_ms: u64) {
        if let Some(line) = self.0.get(thread).and_then(|lines| lines.get(number as usize)) {
            line.packets.add(1);
            line.bytes.add(bytes.into());
            // Relaxed: one writer, and it publishes nothing else.
            line.seen_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Packets, bytes and time of the last packet, in milliseconds, of a number.
    pub fn get(&self, number: u32) -> (u64, u64, u64) {
        let lines = self.0.iter().filter_map(|lines| lines.get(number as usize));
        lines.fold((0, 0, 0), |(packets, bytes, seen), line| {
            let at = line.seen_ms.load(Ordering::Relaxed);
            (packets + line.packets.get(), bytes + line.bytes.get(), seen.max(at))
        })
    }

    pub fn total(&self) -> u64 {
        self.0.iter().flatten().map(|line| line.packets.get()).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(n: u64) -> FlowKey {
        let mut packet = [0u8; 64];
        packet[12..15].copy_from_slice(&[0x08, 0, 0x45]);
        packet[17] = 46;
        packet[23] = 17;
        packet[26..34].copy_from_slice(&n.to_be_bytes());
        FlowKey::parse(&packet, 64, 1)
    }

    fn entry(number: u32, priority: u16, at: usize, mask: u64, value: u64) -> Entry {
        let mut entry = Entry { number, priority, mask: [0; WIDE], value: [0; WIDE], answer: Answer::Drop };
        (entry.mask[at], entry.value[at]) = (mask, value & mask);
        entry
    }

    proptest! {
        #[test]
        fn finds_what_a_list_would(
            entries in prop::collection::vec((0..4u16, 0..3usize, 0..4u64, 0..4u64), 0..20),
            packets in prop::collection::vec((0..16u64, 0..4u64), 1..20),
        ) {
            let entries: Vec<Entry> = entries
                .iter()
                .enumerate()
                .map(|(i, (priority, at, mask, value))| entry(1 + i as u32, *priority, [1, 3, WORDS][*at], *mask, *value))
                .collect();
            let advice = Advice::new(entries.clone(), Answer::Rules, Meanwhile::Rules, Answer::Rules);
            for (n, far) in packets {
                let key = key(n << 32 | n);
                let mut words = [0; WIDE];
                words[..WORDS].copy_from_slice(key.words());
                words[WORDS] = far;
                let best = entries.iter().filter(|e| e.matches(&words)).map(|e| e.priority).max();
                let found = advice.find(&key, || [far, 0, 0, 0, 0]);
                prop_assert_eq!(found.entry.map(|e| e.priority), best);
                prop_assert!(found.entry.is_none_or(|e| e.matches(&words)));
                if found.settles {
                    for other in 0..4 {
                        let again = advice.find(&key, || [other, 0, 0, 0, 0]);
                        prop_assert_eq!(again.entry.map(|e| e.priority), best, "settled, and yet different");
                    }
                }
            }
        }

        #[test]
        fn any_bytes_have_words(bytes in prop::collection::vec(any::<u8>(), 0..120), ethertype in prop::sample::select(vec![0x0800u16, 0x86dd, 0x0806, 0x8100])) {
            let mut bytes = bytes;
            if bytes.len() > 14 {
                bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
            }
            beyond(&bytes);
        }
    }

    #[test]
    fn what_is_in_no_key() {
        let mut arp = vec![0xffu8; 42];
        arp[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 5]);
        arp[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        arp[22..42].copy_from_slice(&[2, 0, 0, 0, 0, 5, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 1, 2]);
        let words = [0xffff_ffff_ffff, 1 << 48 | 0x0200_0000_0005, 0x0a00_0002_0a00_0102, 0x0200_0000_0005, 0];
        assert_eq!(beyond(&arp), words);
        let mut ping = vec![0u8; 60];
        ping[12..16].copy_from_slice(&[0x81, 0, 0, 7]);
        ping[16..19].copy_from_slice(&[8, 0, 0x46]);
        ping[27] = 1;
        ping[42..44].copy_from_slice(&[8, 3]);
        assert_eq!(beyond(&ping)[..2], [1 << 48, 0x0803 << 48]);
    }
}
