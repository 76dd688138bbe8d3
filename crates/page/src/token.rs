//! The token of the page's listener: a secret of a file, and the check of a request for it.
//!
//! A request has it as `Authorization: Bearer TOKEN`, as Prometheus sends the text of a file, or as
//! the password of `Authorization: Basic`, for which browsers ask. Any user name will do.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Bytes of a token.
const LENGTH: std::ops::RangeInclusive<usize> = 16..=256;

/// The file of a token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("cannot read the token of the page from {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Other users could read it.
    #[error("others than its owner may read or write {0}, the token of the page; write `chmod 600 {0}`")]
    Open(PathBuf),
    /// Another user made it.
    #[error("{path}, the token of the page, belongs to user {uid}; it needs to be root's or the daemon's own")]
    Owner {
        /// The file.
        path: PathBuf,
        /// The user's number.
        uid: u32,
    },
    /// It is no file, too short, too long, or has characters that no header has.
    #[error(
        "{0} is no token of the page: it needs one line of 16 to 256 letters, digits or signs without blanks; \
         `openssl rand -hex 32` makes one"
    )]
    NoToken(PathBuf),
}

/// A secret that requests must have.
pub struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads a token from a file that its owner alone may read: one line.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Read { path: path.to_owned(), source };
        // A pipe is not waited for, and a link may be another user's.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let file = File::from(opened.map_err(|error| failed(error.into()))?);
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(TokenError::NoToken(path.to_owned()));
        }
        if ![rustix::process::geteuid().as_raw(), 0].contains(&about.uid()) {
            return Err(TokenError::Owner { path: path.to_owned(), uid: about.uid() });
        }
        if about.mode() & 0o077 != 0 {
            return Err(TokenError::Open(path.to_owned()));
        }
        let mut text = Vec::new();
        file.take(*LENGTH.end() as u64 + 3).read_to_end(&mut text).map_err(failed)?;
        let token = text.trim_ascii_end();
        if !LENGTH.contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
            return Err(TokenError::NoToken(path.to_owned()));
        }
        Ok(Self(token.to_vec()))
    }

    /// Whether the value of an `Authorization` header has the token.
    pub(crate) fn is_in(&self, authorization: &[u8]) -> bool {
        let Some(blank) = authorization.iter().position(|byte| *byte == b' ') else { return false };
        let (scheme, value) = (&authorization[..blank], authorization[blank..].trim_ascii());
        if scheme.eq_ignore_ascii_case(b"bearer") {
            return self.is(value);
        }
        if !scheme.eq_ignore_ascii_case(b"basic") {
            return false;
        }
        let Some(pair) = of_base64(value) else { return false };
        pair.iter().position(|byte| *byte == b':').is_some_and(|colon| self.is(&pair[colon + 1..]))
    }

    /// Compares in a time that does not depend on where two texts differ.
    fn is(&self, given: &[u8]) -> bool {
        let differs = self.0.iter().zip(given).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differs) == 0 && self.0.len() == given.len()
    }
}

/// The bytes of a text in base64; None if it is none.
fn of_base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let (mut bytes, mut bits, mut many) = (Vec::with_capacity(text.len() * 3 / 4), 0u32, 0);
    for byte in text {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        // At most six bits are left of the byte before.
        bits = ((bits << 6) | u32::from(value)) & 0xfff;
        many += 6;
        if many >= 8 {
            many -= 8;
            bytes.push((bits >> many) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SECRET: &str = "0123456789abcdef";

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    #[test]
    fn base64_is_read_as_it_is_written() {
        for (text, bytes) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmFyOg==", "foobar:"), ("Pz8/Pj4+", "???>>>")]
        {
            assert_eq!(of_base64(text.as_bytes()).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        assert_eq!(of_base64(b"Zg\n"), None);
        assert_eq!(of_base64(b"Z===="), None);
    }

    #[test]
    fn a_request_has_the_token_or_is_refused() {
        let (_folder, path) = file(&format!("{SECRET}\n"), 0o600);
        let token = Token::read(&path).unwrap();
        // `any:0123456789abcdef`
        for right in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef ", "Basic YW55OjAxMjM0NTY3ODlhYmNkZWY="] {
            assert!(token.is_in(right.as_bytes()), "{right}");
        }
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789abcdeF",
            "Digest 0123456789abcdef",
            // Without a colon.
            "Basic MDEyMzQ1Njc4OWFiY2RlZg==",
            "Basic ?",
        ] {
            assert!(!token.is_in(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{token:?}"), "Token");
    }

    #[test]
    fn a_file_that_is_no_secret_is_refused() {
        let (_folder, path) = file(SECRET, 0o644);
        assert!(matches!(Token::read(&path), Err(TokenError::Open(_))));
        for text in ["", "short\n", &"x".repeat(257), "0123456789 abcdef", "0123456789abcdef\n0123456789abcdef"] {
            let (_folder, path) = file(text, 0o600);
            assert!(matches!(Token::read(&path), Err(TokenError::NoToken(_))), "{text}");
        }
        assert!(matches!(Token::read(Path::new("/nonexistent")), Err(TokenError::Read { .. })));
        let (folder, path) = file(SECRET, 0o600);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(Token::read(&link), Err(TokenError::Read { .. })));
        assert!(matches!(Token::read(folder.path()), Err(TokenError::NoToken(_))));
        // Root may read it, and another user knows it.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4242), None).unwrap();
            assert!(matches!(Token::read(&path), Err(TokenError::Owner { uid: 4242, .. })));
        }
    }
}
