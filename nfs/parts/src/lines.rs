//! Files of words on lines: rules, routes, backends, patterns, keys.
//!
//! A `#` starts a comment, blank lines are skipped, words are separated by white space. Every error
//! names the file and the line and says what was expected there.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {path}: {source}; check the path and its permissions")]
    Read { path: PathBuf, source: std::io::Error },
    /// A line is invalid.
    #[error("{path}:{error}")]
    Line { path: PathBuf, error: LineError },
    /// The file as a whole is invalid.
    #[error("{path}: {message}")]
    Whole { path: PathBuf, message: String },
}

/// An error in a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {message}")]
pub struct LineError {
    /// From 1; 0 stands for the whole text.
    pub line: usize,
    /// What is wrong and what was expected.
    pub message: String,
}

/// Reads a file and parses its text with `parse`.
pub fn read<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, LineError>) -> Result<T, FileError> {
    let text = std::fs::read_to_string(path).map_err(|source| FileError::Read { path: path.into(), source })?;
    parse(&text).map_err(|error| match error.line {
        0 => FileError::Whole { path: path.into(), message: error.message },
        _ => FileError::Line { path: path.into(), error },
    })
}

/// The non-empty lines, without comments.
pub fn lines(text: &str) -> impl Iterator<Item = Words<'_>> {
    text.lines().enumerate().filter_map(|(i, line)| {
        let words = Words { line: i + 1, rest: line.split('#').next().unwrap_or_default().trim() };
        (!words.rest.is_empty()).then_some(words)
    })
}

/// The words of one line, taken from left to right.
#[derive(Debug, Clone)]
pub struct Words<'a> {
    line: usize,
    rest: &'a str,
}

impl<'a> Words<'a> {
    /// A line with its comments, for files in which `#` may be data.
    pub fn raw(line: usize, text: &'a str) -> Self {
        Self { line, rest: text.trim() }
    }

    /// Line number, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The rest, which has not been taken.
    pub fn rest(&self) -> &'a str {
        self.rest
    }

    /// The next word, without taking it.
    pub fn peek(&self) -> Option<&'a str> {
        self.rest.split_whitespace().next()
    }

    /// Takes the next word, if there is one.
    #[expect(clippy::should_implement_trait, reason = "words are taken one by one, with other calls between")]
    pub fn next(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.rest = self.rest[word.len()..].trim_start();
        Some(word)
    }

    /// Takes the next word if it is `word`.
    pub fn skip(&mut self, word: &str) -> bool {
        let same = self.peek() == Some(word);
        if same {
            self.next();
        }
        same
    }

    /// Takes the next word; `what` names it in the error.
    pub fn expect(&mut self, what: &str) -> Result<&'a str, LineError> {
        self.next().ok_or_else(|| self.error(format!("the line ends where {what} is expected")))
    }

    /// Takes and parses the next word; `what` names it in the error, best with an example.
    pub fn parse<T: FromStr<Err: Display>>(&mut self, what: &str) -> Result<T, LineError> {
        let word = self.expect(what)?;
        word.parse().map_err(|e| self.error(format!("`{word}` is not {what} ({e})")))
    }

    /// Fails if there is a word left.
    pub fn end(&self) -> Result<(), LineError> {
        self.peek().map_or(Ok(()), |word| Err(self.error(format!("`{word}` is one word too many; take it away"))))
    }

    /// An error in this line.
    pub fn error(&self, message: impl Into<String>) -> LineError {
        LineError { line: self.line, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_without_comments_and_know_their_line() {
        let text = "# head\n\n  allow  tcp # why\n\t deny\n";
        let mut found = lines(text);
        let mut first = found.next().unwrap();
        assert_eq!((first.line(), first.rest()), (3, "allow  tcp"));
        assert_eq!(first.next(), Some("allow"));
        assert!(!first.skip("udp"));
        assert!(first.skip("tcp"));
        assert_eq!(first.end(), Ok(()));
        assert_eq!(found.next().unwrap().line(), 4);
        assert!(found.next().is_none());
    }

    #[test]
    fn errors_say_where_and_what() {
        let mut words = lines("\nport x y").next().unwrap();
        words.next();
        assert_eq!(words.parse::<u16>("a port").unwrap_err().to_string(), "2: `x` is not a port (invalid digit found in string)");
        assert_eq!(words.end().unwrap_err().to_string(), "2: `y` is one word too many; take it away");
        words.next();
        assert_eq!(words.expect("a name").unwrap_err().to_string(), "2: the line ends where a name is expected");
    }

    #[test]
    fn a_files_error_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules");
        let missing = read(&path, |_| Ok(())).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read ") && missing.contains("rules"), "{missing}");
        std::fs::write(&path, "a\nb").unwrap();
        let bad = read::<()>(&path, |_| Err(LineError { line: 2, message: "no b".into() })).unwrap_err().to_string();
        assert!(bad.ends_with("rules:2: no b"), "{bad}");
        let whole = read::<()>(&path, |_| Err(LineError { line: 0, message: "empty".into() })).unwrap_err().to_string();
        assert!(whole.ends_with("rules: empty"), "{whole}");
        assert_eq!(read(&path, |text| Ok(text.len())).unwrap(), 3);
    }
}
