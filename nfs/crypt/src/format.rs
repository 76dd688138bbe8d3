//! Format of an encrypted packet.
//!
//! # Format
//! The MAC addresses and up to [`MOST_TAGS`] VLAN tags stay, so that switches can read them. Then
//! come
//!
//! | bytes | what |
//! |---|---|
//! | 2 | EtherType 0x88B5 (IEEE 802, local experiments) |
//! | 1 | version of this format: 1 |
//! | 1 | number of the key |
//! | 2 | length of the text in bytes, so that padding of short frames does no harm |
//! | 4 | salt of the sender |
//! | 8 | counter of the sender |
//! | n | the text, encrypted: the packet from its own EtherType to its end |
//! | 16 | tag of AES-GCM |
//!
//! Numbers are big-endian. Version, key number and length are authenticated with the text; salt and
//! counter are the nonce. MAC addresses and VLAN tags are neither encrypted nor authenticated,
//! because they may change on the way.
//!
//! # Nonces
//! A nonce never repeats under a key. A sender draws a random salt at its start, and its counter
//! begins at the wall-clock time in nanoseconds. So two senders at the same time differ by salt; a
//! restarted sender continues above all that it used before, even with the same salt, because no
//! sender sends a packet every nanosecond. (Both together fail only if the clock was set back and
//! the same of four billion salts is drawn.)
//!
//! # Limits
//! Replayed packets are not detected. A packet grows by [`OVERHEAD`] bytes; one that does not fit
//! its frame then is refused.

use sluice_nf::Packet;

use crate::keys::{Key, Keys, NONCE_BYTES, TAG_BYTES};

pub const ETHERTYPE: u16 = 0x88b5;
/// Most VLAN tags that stay in front.
pub const MOST_TAGS: usize = 2;
/// Bytes that a packet grows by.
pub const OVERHEAD: usize = HEADER_BYTES + TAG_BYTES;

/// From the EtherType to the counter.
const HEADER_BYTES: usize = 18;
const VERSION: u8 = 1;
/// Place of version, key number and length in the header.
const AUTHENTICATED: std::ops::Range<usize> = 2..6;
const NONCE: std::ops::Range<usize> = 6..18;

/// Why a packet was not encrypted or decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It has no whole Ethernet header, or violates this format.
    Malformed,
    /// Its EtherType is another.
    Plain,
    /// It grows beyond its frame.
    TooLarge,
    /// All nonces of this sender are used up.
    Exhausted,
    /// Its key is not in the key file.
    UnknownKey,
    /// It was changed on the way, or the key differs.
    Forged,
}

/// Source of nonces.
#[derive(Debug)]
pub struct Nonces {
    salt: [u8; 4],
    counter: Option<u64>,
}

impl Nonces {
    /// The nonces of a sender that starts at this time (nanoseconds since 1970).
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub fn new(wall_clock_ns: u64) -> Result<Self, getrandom::Error> {
        let mut salt = [0; 4];
        getrandom::fill(&mut salt)?;
        Ok(Self { salt, counter: Some(wall_clock_ns) })
    }

    /// A fresh nonce; None if all are used up.
    #[inline]
    fn draw(&mut self) -> Option<[u8; NONCE_BYTES]> {
        let counter = self.counter?;
        self.counter = counter.checked_add(1);
        let mut nonce = [0; NONCE_BYTES];
        nonce[..4].copy_from_slice(&self.salt);
        nonce[4..].copy_from_slice(&counter.to_be_bytes());
        Some(nonce)
    }
}

/// Offset of the EtherType behind the VLAN tags.
#[inline]
fn ethertype_at(data: &[u8]) -> Option<usize> {
    let mut at = 12;
    for _ in 0..MOST_TAGS {
        match word(data, at)? {
            0x8100 | 0x88a8 | 0x9100 => at += 4,
            _ => break,
        }
    }
    word(data, at).map(|_| at)
}

#[inline]
fn word(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// Encrypts a packet in place. If that is refused, the packet must be dropped.
pub fn seal(packet: &mut Packet<'_>, key: &Key, nonces: &mut Nonces) -> Result<(), Refused> {
    let at = ethertype_at(packet.data()).ok_or(Refused::Malformed)?;
    let length = u16::try_from(packet.len() - at).map_err(|_| Refused::TooLarge)?;
    if packet.headroom() < HEADER_BYTES || packet.tailroom() < TAG_BYTES {
        return Err(Refused::TooLarge);
    }
    let nonce = nonces.draw().ok_or(Refused::Exhausted)?;
    packet.push(HEADER_BYTES).map_err(|_| Refused::TooLarge)?;
    packet.append(TAG_BYTES).map_err(|_| Refused::TooLarge)?;
    let data = packet.data_mut();
    data.copy_within(HEADER_BYTES..HEADER_BYTES + at, 0);
    let (header, rest) = data[at..].split_at_mut(HEADER_BYTES);
    let (text, tag) = rest.split_at_mut(length as usize);
    header[..2].copy_from_slice(&ETHERTYPE.to_be_bytes());
    header[2] = VERSION;
    header[3] = key.id();
    header[4..6].copy_from_slice(&length.to_be_bytes());
    header[NONCE].copy_from_slice(&nonce);
    tag.copy_from_slice(&key.seal(&nonce, &header[AUTHENTICATED], text).ok_or(Refused::TooLarge)?);
    Ok(())
}

/// Decrypts a packet in place. A packet that is [`Refused::Plain`] is unchanged; all other refused
/// ones must be dropped.
pub fn open(packet: &mut Packet<'_>, keys: &Keys) -> Result<(), Refused> {
    let at = ethertype_at(packet.data()).ok_or(Refused::Malformed)?;
    let data = packet.data_mut();
    if word(data, at) != Some(ETHERTYPE) {
        return Err(Refused::Plain);
    }
    let (header, rest) = data[at..].split_at_mut_checked(HEADER_BYTES).ok_or(Refused::Malformed)?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[2] != VERSION || length < 2 {
        return Err(Refused::Malformed);
    }
    let (text, rest) = rest.split_at_mut_checked(length).ok_or(Refused::Malformed)?;
    let tag = rest.first_chunk().ok_or(Refused::Malformed)?;
    let padding = rest.len() - TAG_BYTES;
    let key = keys.get(header[3]).ok_or(Refused::UnknownKey)?;
    let mut nonce = [0; NONCE_BYTES];
    nonce.copy_from_slice(&header[NONCE]);
    key.open(&nonce, &header[AUTHENTICATED], text, tag).ok_or(Refused::Forged)?;
    data.copy_within(..at, HEADER_BYTES);
    packet.pull(HEADER_BYTES).map_err(|_| Refused::Malformed)?;
    packet.trim(TAG_BYTES + padding).map_err(|_| Refused::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_count_up_and_end() {
        let mut nonces = Nonces::new(5).unwrap();
        let (a, b) = (nonces.draw().unwrap(), nonces.draw().unwrap());
        assert_eq!(a[..4], b[..4]);
        assert_eq!((a[11], b[11]), (5, 6));
        let mut last = Nonces { salt: [1; 4], counter: Some(u64::MAX) };
        assert!(last.draw().is_some());
        assert_eq!(last.draw(), None);
        assert_eq!(last.draw(), None);
    }

    #[test]
    fn the_ethertype_stands_behind_the_tags() {
        let mut data = [0; 30];
        assert_eq!(ethertype_at(&data), Some(12));
        data[12..14].copy_from_slice(&[0x88, 0xa8]);
        data[16..18].copy_from_slice(&[0x81, 0x00]);
        data[20..22].copy_from_slice(&[0x81, 0x00]);
        assert_eq!(ethertype_at(&data), Some(20), "a third tag is text");
        assert_eq!(ethertype_at(&data[..21]), None);
        assert_eq!(ethertype_at(&data[..13]), None);
    }
}
