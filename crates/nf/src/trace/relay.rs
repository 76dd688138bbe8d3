//! Packets from one traced NF to the next of a chain, by way of the reader of the traces.
//!
//! All is in words of eight bytes, little-endian.
//! - *Input.* With `input=1` batches of packets come from standard input: a word with the number of
//!   bytes, then bursts. A batch is read whole before its first burst is handled, so that reader
//!   and writer never wait for each other. A burst is a word with its number of packets, then the
//!   packets; [`MARK`] instead of the number is a mark. A packet is a word with its length, then
//!   its bytes, padded to whole words. All output for a batch is written before the next one is
//!   read.
//! - *Output.* With `output=1`, amid the records and after those of each burst, there is [`ON`]
//!   with the number of packets that go on to the next hop, then these packets.

use std::io::{self, Read};

/// In place of a number of packets: a mark.
pub(super) const MARK: u64 = u64::MAX;

/// A store of no bytes, which no access is.
pub(super) const ON: u64 = 1 << 63;

const MOST_BYTES: u64 = 1 << 30;

const WORD: usize = 8;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part<'a> {
    /// Packets.
    Burst(Vec<&'a [u8]>),
    /// The end of the warm-up, or of the trace.
    Mark,
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("SLUICE_TRACE: {what}"))
}

/// Reads a batch; None at the end of the stream.
///
/// # Errors
/// The batch cannot be read, ends too early, or is invalid.
pub(super) fn read(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut word = [0; WORD];
    let mut have = 0;
    while have < WORD {
        match stream.read(&mut word[have..]) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err(broken("standard input ends within a word")),
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let bytes = u64::from_le_bytes(word);
    if bytes > MOST_BYTES {
        return Err(broken("a batch on standard input is too long"));
    }
    let mut batch = vec![0; bytes as usize];
    stream.read_exact(&mut batch)?;
    Ok(Some(batch))
}

/// The parts of a batch.
///
/// # Errors
/// The batch ends too early.
pub(super) fn parts(mut batch: &[u8]) -> io::Result<Vec<Part<'_>>> {
    let mut parts = Vec::new();
    while !batch.is_empty() {
        parts.push(part(&mut batch).ok_or_else(|| broken("a batch on standard input ends within a burst"))?);
    }
    Ok(parts)
}

fn word(rest: &mut &[u8]) -> Option<u64> {
    let (first, others) = rest.split_first_chunk::<WORD>()?;
    *rest = others;
    Some(u64::from_le_bytes(*first))
}

fn part<'a>(rest: &mut &'a [u8]) -> Option<Part<'a>> {
    let count = word(rest)?;
    if count == MARK {
        return Some(Part::Mark);
    }
    let mut packets = Vec::new();
    for _ in 0..count {
        let len = usize::try_from(word(rest)?).ok()?;
        let (packet, others) = rest.split_at_checked(len.checked_next_multiple_of(WORD)?)?;
        packets.push(&packet[..len]);
        *rest = others;
    }
    Some(Part::Burst(packets))
}

pub(super) fn words(packet: &[u8]) -> impl Iterator<Item = u64> {
    let (whole, rest) = packet.as_chunks::<WORD>();
    let mut last = [0; WORD];
    last[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(last);
    std::iter::once(packet.len() as u64).chain(whole.iter().copied().chain(last).map(u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(parts: &[Part<'_>]) -> Vec<u8> {
        let of = |part: &Part<'_>| match part {
            Part::Mark => vec![MARK],
            Part::Burst(packets) => {
                std::iter::once(packets.len() as u64).chain(packets.iter().flat_map(|packet| words(packet))).collect()
            }
        };
        let all: Vec<u64> = parts.iter().flat_map(of).collect();
        std::iter::once(all.len() as u64 * 8).chain(all).flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn batches_are_read_as_they_were_written() {
        let wanted = vec![Part::Burst(vec![&[1; 60], &[2; 61], &[]]), Part::Mark, Part::Burst(Vec::new())];
        let bytes = batch(&wanted);
        let mut stream = bytes.as_slice();
        assert_eq!(parts(&read(&mut stream).unwrap().unwrap()).unwrap(), wanted);
        assert_eq!(read(&mut stream).unwrap(), None);
    }

    #[test]
    fn what_is_no_batch_is_reported() {
        let bytes = batch(&[Part::Burst(vec![&[1; 60]])]);
        for cut in [3, 8, 20, bytes.len() - 1] {
            assert!(read(&mut &bytes[..cut]).is_err(), "{cut}");
        }
        assert!(read(&mut &u64::MAX.to_le_bytes()[..]).unwrap_err().to_string().contains("too long"));
        // More packets, and longer ones, than there are bytes.
        for wrong in [vec![8, 5], vec![16, 1, 9], vec![16, 1, u64::MAX]] {
            let bytes: Vec<u8> = wrong.into_iter().flat_map(u64::to_le_bytes).collect();
            let batch = read(&mut bytes.as_slice()).unwrap().unwrap();
            assert!(parts(&batch).unwrap_err().to_string().contains("ends within a burst"));
        }
    }
}
