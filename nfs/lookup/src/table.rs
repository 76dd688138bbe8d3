//! The table on disk: actions for IPv4 addresses, found with one read.
//!
//! # Format, version 1
//! Blocks of 512 bytes. The first is the header; the others are buckets.
//!
//! | offset | header |
//! |---|---|
//! | 0 | `sluiceLT` |
//! | 8 | version, 32 bits, little-endian: 1 |
//! | 12 | number of buckets, 32 bits, little-endian: a power of two |
//! | 16 | number of records, 64 bits, little-endian |
//! | 24 | zeroes |
//!
//! A bucket is 64 records of 8 bytes: the address as in a packet (4 bytes), the action (1 pass, 2
//! drop, 3 mark; 0 ends the bucket), the DSCP of a mark, two zeroes. With 2ᵏ buckets an address,
//! read as a big-endian number, is in bucket `(address × 0x9e3779b1 mod 2³²) >> (32 − k)`; one
//! bucket has all. The builder takes as many buckets as it needs for none to overflow.
//!
//! # Text
//! A line for each address: `10.0.0.1 pass`, `10.0.0.2 drop`, `10.0.0.3 mark 46`; comments: `#`.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use sluice_nf_parts::lines::{self, FileError, LineError};

/// Bytes of the header, and of a bucket.
pub const BLOCK: usize = 512;
const RECORD: usize = 8;
const MAGIC: &[u8; 8] = b"sluiceLT";
const VERSION: u32 = 1;
/// Most buckets, 2 to the power of this: 8 GiB.
const MOST_BITS: u32 = 24;

/// Action of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Pass,
    Drop,
    /// Pass with this DSCP.
    Mark(u8),
}

#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    #[error("{0}; build it with --build TEXT --table FILE")]
    Format(&'static str),
}

/// Reads the text of a table; fails on a bad line or a repeated address.
pub fn parse(text: &str) -> Result<Vec<(Ipv4Addr, Action)>, LineError> {
    let mut records = Vec::new();
    let mut seen = HashMap::new();
    for mut words in lines::lines(text) {
        let address: Ipv4Addr = words.parse("an IPv4 address such as 10.0.0.1")?;
        let action = match words.expect("an action: pass, drop or mark DSCP")? {
            "pass" => Action::Pass,
            "drop" => Action::Drop,
            "mark" => {
                let dscp: u8 = words.parse("a DSCP from 0 to 63")?;
                if dscp > 63 {
                    return Err(words.error(format!("{dscp} is no DSCP; they go from 0 to 63")));
                }
                Action::Mark(dscp)
            }
            other => return Err(words.error(format!("`{other}` is no action; give pass, drop or mark DSCP"))),
        };
        words.end()?;
        if let Some(line) = seen.insert(address, words.line()) {
            return Err(words.error(format!("{address} is in line {line} already; keep one of the two")));
        }
        records.push((address, action));
    }
    Ok(records)
}

/// Bucket of an address in a table with 2 to the power of `bits` buckets.
fn bucket_of(address: Ipv4Addr, bits: u32) -> usize {
    if bits == 0 { 0 } else { (address.to_bits().wrapping_mul(0x9e37_79b1) >> (32 - bits)) as usize }
}

/// The bytes of a table. None if one bucket gets so full that the table would grow past 8 GiB.
pub fn encode(records: &[(Ipv4Addr, Action)]) -> Option<Vec<u8>> {
    let fits = |bits: &u32| {
        let mut counts = vec![0; 1 << bits];
        records.iter().all(|(address, _)| {
            let count = &mut counts[bucket_of(*address, *bits)];
            *count += 1;
            *count <= BLOCK / RECORD
        })
    };
    let bits = (0..=MOST_BITS).find(fits)?;
    let mut bytes = vec![0; BLOCK << bits];
    let mut ends = vec![0; 1 << bits];
    for (address, action) in records {
        let bucket = bucket_of(*address, bits);
        let at = bucket * BLOCK + ends[bucket];
        ends[bucket] += RECORD;
        let (action, dscp) = match action {
            Action::Pass => (1, 0),
            Action::Drop => (2, 0),
            Action::Mark(dscp) => (3, *dscp),
        };
        bytes[at..at + 4].copy_from_slice(&address.octets());
        bytes[at + 4..at + 6].copy_from_slice(&[action, dscp]);
    }
    let mut header =
        [MAGIC, &VERSION.to_le_bytes()[..], &(1u32 << bits).to_le_bytes(), &(records.len() as u64).to_le_bytes()].concat();
    header.resize(BLOCK, 0);
    Some([header, bytes].concat())
}

/// Makes a table from a text, replacing an old one atomically. Returns its number of records.
pub fn build(text: &Path, table: &Path) -> Result<usize, FileError> {
    let records = lines::read(text, parse)?;
    let whole = |message: String| FileError::Whole { path: table.into(), message };
    let bytes = encode(&records).ok_or_else(|| whole("too many addresses fall together; leave some out".into()))?;
    let mut name = table.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}", std::process::id()));
    let fresh = table.with_file_name(name);
    let written = std::fs::write(&fresh, &bytes).and_then(|()| std::fs::rename(&fresh, table));
    written.map_err(|error| whole(format!("cannot write the table: {error}; check the folder and its permissions")))?;
    Ok(records.len())
}

/// Layout of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    bits: u32,
    pub records: u64,
}

impl Layout {
    /// From the header and the length of a file; fails if that is not a whole table.
    pub fn new(header: &[u8; BLOCK], bytes: u64) -> Result<Self, TableError> {
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if &header[..8] != MAGIC {
            return Err(TableError::Format("it is no table of this NF"));
        }
        if word(8) != VERSION {
            return Err(TableError::Format("it is a table of another version"));
        }
        let buckets = word(12);
        if !buckets.is_power_of_two() || bytes != (1 + u64::from(buckets)) * BLOCK as u64 {
            return Err(TableError::Format("it is a table, but not a whole one"));
        }
        Ok(Self { bits: buckets.trailing_zeros(), records: u64::from(word(16)) | u64::from(word(20)) << 32 })
    }

    /// Offset of the bucket of an address; it has [`BLOCK`] bytes.
    pub fn offset(&self, address: Ipv4Addr) -> u64 {
        (1 + bucket_of(address, self.bits) as u64) * BLOCK as u64
    }
}

/// The action for an address in its bucket, if there is one.
pub fn find(bucket: &[u8], address: Ipv4Addr) -> Option<Action> {
    let records = bucket.chunks_exact(RECORD).take_while(|record| record[4] != 0);
    let record = records.into_iter().find(|record| record[..4] == address.octets())?;
    match record[4] {
        1 => Some(Action::Pass),
        2 => Some(Action::Drop),
        3 => Some(Action::Mark(record[5] & 63)),
        // Only a later version has more actions, and its version number differs.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn look_up(table: &[u8], address: Ipv4Addr) -> Option<Action> {
        let layout = Layout::new(table[..BLOCK].try_into().unwrap(), table.len() as u64).unwrap();
        let at = layout.offset(address) as usize;
        find(&table[at..at + BLOCK], address)
    }

    #[test]
    fn lines_become_records_and_errors_have_a_line() {
        let text = "# which\n10.0.0.1 pass\n10.0.0.2 drop # why\n0.0.0.0 mark 46\n";
        let records = parse(text).unwrap();
        assert_eq!(records.iter().map(|r| r.1).collect::<Vec<_>>(), [Action::Pass, Action::Drop, Action::Mark(46)]);
        let table = encode(&records).unwrap();
        for (address, action) in records {
            assert_eq!(look_up(&table, address), Some(action));
        }
        assert_eq!(look_up(&table, [10, 0, 0, 3].into()), None);
        for (text, words) in [
            ("10.0.0 drop", "1: `10.0.0` is not an IPv4 address"),
            ("\n10.0.0.1", "2: the line ends where an action"),
            ("10.0.0.1 mark 64", "0 to 63"),
            ("10.0.0.1 kill", "`kill` is no action"),
            ("10.0.0.1 drop it", "one word too many"),
            ("1.1.1.1 drop\n1.1.1.1 pass", "2: 1.1.1.1 is in line 1 already"),
        ] {
            assert!(parse(text).unwrap_err().to_string().contains(words), "{text}");
        }
    }

    #[test]
    fn the_layout_is_what_is_written_down() {
        let table = encode(&[([10, 0, 0, 1].into(), Action::Mark(10))]).unwrap();
        let header = b"sluiceLT\x01\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0";
        assert_eq!((&table[..24], table.len()), (&header[..], 1024));
        assert_eq!(table[512..528], [10, 0, 0, 1, 3, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        // 0x0a000001 × 0x9e3779b1 mod 2³² is 0x883779b1, and 0xc0a80001 × 0x9e3779b1 is 0x3a5f79b1:
        // buckets 8 and 3 of 16.
        let sixteen = Layout { bits: 4, records: 0 };
        assert_eq!(sixteen.offset([10, 0, 0, 1].into()), 9 * 512);
        assert_eq!(sixteen.offset([192, 168, 0, 1].into()), 4 * 512);
    }

    #[test]
    fn what_is_no_whole_table_is_refused() {
        let table = encode(&[([10, 0, 0, 1].into(), Action::Drop)]).unwrap();
        let header: [u8; BLOCK] = table[..BLOCK].try_into().unwrap();
        let error = |at: usize, value: u8, bytes| {
            let mut header = header;
            header[at] = value;
            Layout::new(&header, bytes).unwrap_err().to_string()
        };
        assert!(error(0, b'x', 1024).contains("no table"));
        assert!(error(8, 2, 1024).contains("another version"));
        assert!(error(12, 3, 2048).contains("not a whole one"));
        assert!(error(8, 1, 1023).contains("not a whole one"));
    }

    proptest! {
        #[test]
        fn every_address_is_found_and_no_other(addresses in prop::collection::hash_set(any::<u32>(), 0..2000), other: u32) {
            let action = |address: u32| [Action::Pass, Action::Drop, Action::Mark((address % 64) as u8)][(address % 3) as usize];
            let records: Vec<_> = addresses.iter().map(|a| (Ipv4Addr::from_bits(*a), action(*a))).collect();
            let table = encode(&records).unwrap();
            for (address, action) in &records {
                prop_assert_eq!(look_up(&table, *address), Some(*action));
            }
            prop_assert_eq!(look_up(&table, other.into()).is_some(), addresses.contains(&other));
        }
    }
}
