//! Digests of files and configurations.

use std::ffi::OsString;
use std::io::Read;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most bytes read from a file that an argument names. Of a larger one (a capture, a log) only the
/// length counts, so that no caller waits for it.
const MOST_FILE: u64 = 16 << 20;

/// Name of a file's contents: distinguishes files, but is no protection against deliberate
/// collisions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
pub struct Digest(pub String);

impl Digest {
    /// FNV-1a of 128 bits, in hexadecimal digits.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hash: u128 = 0x6c62272e07bb014262b821756295c58d;
        for byte in bytes {
            hash = (hash ^ u128::from(*byte)).wrapping_mul(0x0000000001000000000000000000013b);
        }
        Self(format!("{hash:032x}"))
    }

    /// Digest of what an NF is started with: its arguments, the present contents of files that they
    /// name (`--rules FILE` and `--rules=FILE`), and its environment in this order. Relative paths
    /// start at the working directory; of a file that cannot be read only the name counts.
    pub fn of_configuration(args: &[String], env: &[(OsString, OsString)]) -> Self {
        let mut bytes = Vec::new();
        let mut add = |part: &[u8]| {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        };
        for arg in args {
            add(arg.as_bytes());
            let value = arg.strip_prefix('-').and_then(|option| option.split_once('=')).map(|(_, value)| value);
            if let Some(file) = contents(arg).or_else(|| contents(value?)) {
                add(&file);
            }
        }
        for (key, value) in env {
            add(key.as_encoded_bytes());
            add(value.as_encoded_bytes());
        }
        Self::of(&bytes)
    }

    /// Digest of the configurations of a chain's NFs, in its order; for one NF, that of its
    /// configuration.
    pub fn of_configurations(all: &[Self]) -> Self {
        match all {
            [one] => one.clone(),
            all => Self::of(all.iter().map(Self::to_string).collect::<String>().as_bytes()),
        }
    }
}

/// What counts of a file; none if it is not a readable regular file.
fn contents(path: &str) -> Option<Vec<u8>> {
    let length = std::fs::metadata(path).ok().filter(|file| file.is_file())?.len();
    if length > MOST_FILE {
        return Some(length.to_le_bytes().into());
    }
    let mut contents = Vec::new();
    // It may grow meanwhile.
    std::fs::File::open(path).ok()?.take(MOST_FILE).read_to_end(&mut contents).ok()?;
    Some(contents)
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_fnv_1a() {
        assert_eq!(Digest::of(b"").0, "6c62272e07bb014262b821756295c58d");
        assert_eq!(Digest::of(b"a").0, "d228cb696f1a8caf78912b704e4a8964");
    }

    #[test]
    fn a_configuration_is_its_arguments_its_files_and_its_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules");
        let of = |words: &[&str]| {
            let args: Vec<String> = words.iter().map(|word| (*word).to_string()).collect();
            Digest::of_configuration(&args, &[])
        };
        assert_eq!(of(&[]), Digest::of(b""));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        let path = file.to_str().unwrap();
        let missing = of(&["--rules", path]);
        std::fs::write(&file, "deny\n").unwrap();
        let deny = of(&["--rules", path]);
        std::fs::write(&file, "allow\n").unwrap();
        assert!(missing != deny && deny != of(&["--rules", path]));
        let joined = format!("--rules={path}");
        let allow = of(&[joined.as_str()]);
        std::fs::write(&file, "deny\n").unwrap();
        assert_ne!(allow, of(&[joined.as_str()]));
        // Of a large file, the length counts.
        std::fs::File::create(&file).unwrap().set_len(MOST_FILE + 1).unwrap();
        let large = of(&[path]);
        std::fs::File::create(&file).unwrap().set_len(MOST_FILE + 2).unwrap();
        assert_ne!(large, of(&[path]));
        assert_ne!(Digest::of_configuration(&[], &[("A".into(), "b".into())]), of(&[]));
        let (one, other) = (of(&["a"]), of(&["b"]));
        assert_eq!(Digest::of_configurations(std::slice::from_ref(&one)), one);
        assert_ne!(Digest::of_configurations(&[one.clone(), other.clone()]), Digest::of_configurations(&[other, one]));
    }
}
