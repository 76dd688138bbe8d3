//! The pattern file, and the automaton that finds all patterns in one pass.
//!
//! # Pattern file
//! A line for each pattern: `ACTION [nocase] text TEXT` or `ACTION [nocase] hex BYTES`. ACTION is
//! `alert` or `drop`, TEXT is the rest of the line without blanks at its ends, and BYTES are
//! hexadecimal, with optional blanks. Lines that begin with `#` are comments; elsewhere a `#` is
//! part of the pattern.
//!
//! # Approach
//! One Aho-Corasick automaton for all patterns. If a pattern ignores case, the automaton ignores it
//! for all, and its matches of the others are compared again, byte for byte. A pattern counts at
//! most once a packet.
//!
//! # Limits
//! At most [`MAX_MATCHES`] matches are handled in a packet, so that a text of nothing but matches
//! has a bounded cost.

use aho_corasick::{AhoCorasick, MatchKind};
use sluice_nf_parts::lines::{LineError, Words};

pub const MAX_MATCHES: usize = 1024;

/// Action for a packet that contains a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Alert,
    Drop,
}

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Its line, from 1.
    pub line: usize,
    pub action: Action,
    /// Whether `a` matches `A`.
    pub nocase: bool,
    pub bytes: Vec<u8>,
}

/// Parses a pattern file; fails on a bad line or without any pattern.
pub fn parse(text: &str) -> Result<Vec<Pattern>, LineError> {
    let mut patterns = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let mut words = Words::raw(i + 1, line);
        if words.rest().is_empty() || words.rest().starts_with('#') {
            continue;
        }
        let action = match words.expect("`alert` or `drop`")? {
            "alert" => Action::Alert,
            "drop" => Action::Drop,
            other => return Err(words.error(format!("`{other}` is no action; a line begins with `alert` or `drop`"))),
        };
        let nocase = words.skip("nocase");
        let bytes = match words.expect("`text` or `hex`")? {
            "text" => words.rest().as_bytes().to_vec(),
            "hex" => hex(words.rest()).map_err(|message| words.error(message))?,
            other => return Err(words.error(format!("`{other}` is not `text` or `hex`, one of which stands before the pattern"))),
        };
        if bytes.is_empty() {
            return Err(words.error("the pattern is empty"));
        }
        patterns.push(Pattern { line: i + 1, action, nocase, bytes });
    }
    if patterns.is_empty() {
        return Err(LineError {
            line: 0,
            message: "there is no pattern in this file; add a line such as `alert text evil.example`".into(),
        });
    }
    Ok(patterns)
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    let mut digits = Vec::new();
    for c in text.chars().filter(|c| !c.is_whitespace()) {
        digits.push(c.to_digit(16).ok_or_else(|| format!("`{c}` is not a hexadecimal digit"))? as u8);
    }
    if digits.len() % 2 != 0 {
        return Err("the number of hexadecimal digits is odd; two make a byte".into());
    }
    Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// The automaton, and a counter for each pattern.
#[derive(Debug)]
pub struct Searcher {
    automaton: AhoCorasick,
    patterns: Vec<Pattern>,
    /// Packets that contained the pattern.
    hits: Vec<u64>,
    /// Number of the last packet that contained the pattern.
    last: Vec<u64>,
    packet: u64,
}

/// Result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// Different patterns in the packet.
    pub patterns: u32,
    /// Whether one of them drops it.
    pub drop: bool,
}

impl Searcher {
    /// Builds the automaton; fails if the patterns are too many or too long.
    pub fn new(patterns: Vec<Pattern>) -> Result<Self, aho_corasick::BuildError> {
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .ascii_case_insensitive(patterns.iter().any(|p| p.nocase))
            .build(patterns.iter().map(|p| &p.bytes))?;
        let zeros = vec![0; patterns.len()];
        Ok(Self { automaton, hits: zeros.clone(), last: zeros, patterns, packet: 0 })
    }

    pub fn search(&mut self, payload: &[u8]) -> Found {
        self.packet += 1;
        let mut found = Found::default();
        for hit in self.automaton.find_overlapping_iter(payload).take(MAX_MATCHES) {
            let number = hit.pattern().as_usize();
            let pattern = &self.patterns[number];
            if self.last[number] == self.packet || !pattern.nocase && payload[hit.range()] != pattern.bytes {
                continue;
            }
            self.last[number] = self.packet;
            self.hits[number] += 1;
            found.patterns += 1;
            found.drop |= pattern.action == Action::Drop;
        }
        found
    }

    /// Each pattern and the number of packets that contained it.
    pub fn hits(&self) -> impl Iterator<Item = (&Pattern, u64)> {
        self.patterns.iter().zip(self.hits.iter().copied())
    }

    /// Takes over the counters of patterns that are in an older searcher too.
    pub fn inherit(&mut self, older: &Self) {
        for (pattern, hits) in self.patterns.iter().zip(&mut self.hits) {
            let same = |p: &Pattern| (p.action, p.nocase, &p.bytes) == (pattern.action, pattern.nocase, &pattern.bytes);
            *hits = older.hits().find(|(p, _)| same(p)).map_or(0, |(_, n)| n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn searcher(text: &str) -> Searcher {
        Searcher::new(parse(text).unwrap()).unwrap()
    }

    fn hits(searcher: &Searcher) -> Vec<u64> {
        searcher.hits().map(|(_, n)| n).collect()
    }

    #[test]
    fn a_file_is_read() {
        let patterns = parse("# c\nalert text a # b\n\ndrop nocase hex 4D 5a90\n").unwrap();
        assert_eq!(patterns[0], Pattern { line: 2, action: Action::Alert, nocase: false, bytes: b"a # b".to_vec() });
        assert_eq!(patterns[1], Pattern { line: 4, action: Action::Drop, nocase: true, bytes: vec![0x4d, 0x5a, 0x90] });
    }

    #[test]
    fn errors_name_the_line() {
        for (text, error) in [
            ("", "0: there is no pattern"),
            ("\nwarn text x", "2: `warn` is no action"),
            ("alert evil", "1: `evil` is not `text` or `hex`"),
            ("alert", "1: the line ends where `text` or `hex` is expected"),
            ("alert text ", "1: the pattern is empty"),
            ("drop hex 123", "1: the number of hexadecimal digits is odd"),
            ("drop hex 1g", "1: `g` is not a hexadecimal digit"),
        ] {
            let got = parse(text).unwrap_err().to_string();
            assert!(got.starts_with(error), "{text:?}: {got}");
        }
    }

    #[test]
    fn overlapping_patterns_all_count_once_a_packet() {
        let mut s = searcher("alert text he\nalert text she\nalert text hers\ndrop text his");
        assert_eq!(s.search(b"ushers and ushers"), Found { patterns: 3, drop: false });
        assert_eq!(s.search(b"this"), Found { patterns: 1, drop: true });
        assert_eq!(s.search(b"none of tHem"), Found::default());
        assert_eq!(hits(&s), [1, 1, 1, 1]);
    }

    #[test]
    fn case_is_ignored_only_where_the_line_says_so() {
        let mut s = searcher("alert nocase text Evil\nalert text GET");
        assert_eq!(s.search(b"eVIL get").patterns, 1);
        assert_eq!(s.search(b"GET").patterns, 1);
        assert_eq!(s.search(b"get GET EVIL").patterns, 2);
    }

    #[test]
    fn a_packet_of_nothing_but_matches_costs_a_bounded_time() {
        let text: String = (1..200).map(|n| format!("alert text {}\n", "a".repeat(n))).collect();
        let mut s = searcher(&text);
        let found = s.search(&[b'a'; 9000]);
        assert!(found.patterns > 0 && found.patterns as usize <= MAX_MATCHES);
    }

    #[test]
    fn counters_survive_a_new_file() {
        let mut old = searcher("alert text a\nalert text b");
        old.search(b"ab");
        let mut new = searcher("alert text b\ndrop text a");
        new.inherit(&old);
        assert_eq!(hits(&new), [1, 0]);
    }
}
