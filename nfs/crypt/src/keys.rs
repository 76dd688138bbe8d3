//! The key file: a line for each key, `ID HEX`.
//!
//! ID is a number from 0 to 255 and travels in each packet; HEX is 32 hexadecimal digits (AES-128)
//! or 64 (AES-256). The first key of the file encrypts, any of them decrypts. So a key is changed
//! without loss: add the new one behind the old one at both ends, put it first at the encrypting
//! end, then remove the old one. `openssl rand -hex 32` makes a key.

use std::fmt;
use std::path::Path;

use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{AeadInOut, Aes128Gcm, Aes256Gcm, KeyInit};
use sluice_nf_parts::lines::{self, FileError, LineError, Words};

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 12;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

#[expect(
    clippy::large_enum_variant,
    reason = "there are at most 256, made at the start, and a pointer less counts on the packet path"
)]
enum Cipher {
    Aes128(Aes128Gcm),
    Aes256(Aes256Gcm),
}

/// A key and its number.
pub struct Key {
    id: u8,
    cipher: Cipher,
}

impl fmt::Debug for Key {
    /// Omits the key itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Key {
    pub fn id(&self) -> u8 {
        self.id
    }

    /// Encrypts `text` in place. None if it is too long for AES-GCM, which no packet is.
    pub fn seal(&self, nonce: &[u8; NONCE_BYTES], authenticated: &[u8], text: &mut [u8]) -> Option<[u8; TAG_BYTES]> {
        let (nonce, text) = (nonce.into(), InOutBuf::from(text));
        let tag = match &self.cipher {
            Cipher::Aes128(cipher) => cipher.encrypt_inout_detached(nonce, authenticated, text),
            Cipher::Aes256(cipher) => cipher.encrypt_inout_detached(nonce, authenticated, text),
        };
        tag.ok().map(Into::into)
    }

    /// Checks the tag and decrypts `text` in place. None if key, tag, nonce or any byte differs.
    pub fn open(&self, nonce: &[u8; NONCE_BYTES], authenticated: &[u8], text: &mut [u8], tag: &[u8; TAG_BYTES]) -> Option<()> {
        let (nonce, text, tag) = (nonce.into(), InOutBuf::from(text), tag.into());
        match &self.cipher {
            Cipher::Aes128(cipher) => cipher.decrypt_inout_detached(nonce, authenticated, text, tag),
            Cipher::Aes256(cipher) => cipher.decrypt_inout_detached(nonce, authenticated, text, tag),
        }
        .ok()
    }
}

/// The keys of a file.
#[derive(Debug)]
pub struct Keys {
    keys: Vec<Key>,
    /// Index in `keys` of each key number.
    by_id: Box<[Option<u8>; 256]>,
}

impl Keys {
    /// Reads a key file; fails on a bad line or without any key.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        warn_if_readable(path);
        lines::read(path, Self::parse)
    }

    /// Parses the text of a key file; fails on a bad line or without any key.
    pub fn parse(text: &str) -> Result<Self, LineError> {
        let mut keys: Vec<Key> = Vec::new();
        let mut by_id = Box::new([None; 256]);
        for mut words in lines::lines(text) {
            let id: u8 = words.parse("a key number from 0 to 255")?;
            let cipher = cipher(&mut words)?;
            words.end()?;
            if by_id[id as usize].is_some() {
                return Err(words.error(format!("key {id} is in this file already; give this one another number")));
            }
            by_id[id as usize] = Some(keys.len() as u8);
            keys.push(Key { id, cipher });
        }
        if keys.is_empty() {
            return Err(LineError {
                line: 0,
                message: "there is no key in this file; make one with `openssl rand -hex 32`".into(),
            });
        }
        Ok(Self { keys, by_id })
    }

    /// The key that encrypts: the first of the file.
    pub fn first(&self) -> &Key {
        &self.keys[0]
    }

    #[inline]
    pub fn get(&self, id: u8) -> Option<&Key> {
        self.by_id[id as usize].map(|place| &self.keys[place as usize])
    }
}

fn cipher(words: &mut Words<'_>) -> Result<Cipher, LineError> {
    const WANTED: &str = "a key is 32 hexadecimal digits (AES-128) or 64 (AES-256)";
    let digits = words.expect("the key in hexadecimal digits")?;
    // The digits stay out of the message, which may end up in a log.
    let mut bytes = [0; 32];
    let nibbles = digits.chars().map(|c| c.to_digit(16)).collect::<Option<Vec<u32>>>();
    let Some(nibbles) = nibbles.filter(|n| n.len() == 32 || n.len() == 64) else { return Err(words.error(WANTED)) };
    for (byte, pair) in bytes.iter_mut().zip(nibbles.chunks(2)) {
        *byte = (pair[0] << 4 | pair[1]) as u8;
    }
    let made = match nibbles.len() {
        32 => Aes128Gcm::new_from_slice(&bytes[..16]).map(Cipher::Aes128),
        _ => Aes256Gcm::new_from_slice(&bytes).map(Cipher::Aes256),
    };
    made.map_err(|_| words.error(WANTED))
}

fn warn_if_readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    if path.metadata().is_ok_and(|m| m.permissions().mode() & 0o077 != 0) {
        eprintln!("warning: others may read the keys in {0}; run `chmod 600 {0}`", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_encrypts_and_all_are_found() {
        let keys = Keys::parse(&format!("# keys\n7 {}\n0 {} # old\n", "ab".repeat(32), "01".repeat(16))).unwrap();
        assert_eq!(keys.first().id(), 7);
        assert_eq!(keys.get(0).map(Key::id), Some(0));
        assert!(keys.get(1).is_none());
        assert!(!format!("{keys:?}").contains("ab"), "a key is never shown");
    }

    #[test]
    fn errors_name_the_line_and_never_the_key() {
        let good = "ab".repeat(16);
        for (text, error) in [
            (String::new(), "0: there is no key"),
            (format!("256 {good}"), "1: `256` is not a key number"),
            (format!("1 {good}\n\n1 {good}"), "3: key 1 is in this file already"),
            ("1".into(), "1: the line ends where the key"),
            (format!("1 {good}ab"), "1: a key is 32 hexadecimal digits"),
            (format!("1 x{}", &good[1..]), "1: a key is 32 hexadecimal digits"),
            (format!("1 {good} y"), "1: `y` is one word too many"),
        ] {
            let got = Keys::parse(&text).unwrap_err().to_string();
            assert!(got.starts_with(error) && !got.contains("abab"), "{text:?}: {got}");
        }
    }

    #[test]
    fn it_is_aes_gcm() {
        // GCM specification (McGrew and Viega): test case 3 without the additional data of test
        // case 4 (AES-128), and test case 15 (AES-256).
        let text = concat!(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525",
            "b16aedf5aa0de657ba637b391aafd255"
        );
        for (key, tag) in [
            ("feffe9928665731c6d6a8f9467308308".to_string(), "4d5c2af327cd64a62cf35abd2ba6fab4"),
            ("feffe9928665731c6d6a8f9467308308".repeat(2), "b094dac5d93471bdec1a502270e3cc6c"),
        ] {
            let keys = Keys::parse(&format!("1 {key}")).unwrap();
            let nonce = 0xcafe_babe_face_dbad_deca_f888_u128.to_be_bytes()[4..].try_into().unwrap();
            let mut bytes: Vec<u8> = (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect();
            let plain = bytes.clone();
            let got = keys.first().seal(&nonce, b"", &mut bytes).unwrap();
            assert_eq!(u128::from_be_bytes(got), u128::from_str_radix(tag, 16).unwrap());
            assert!(keys.first().open(&nonce, b"x", &mut bytes, &got).is_none());
            keys.first().open(&nonce, b"", &mut bytes, &got).unwrap();
            assert_eq!(bytes, plain);
        }
    }
}
