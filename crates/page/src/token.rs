//! The tokens of the page's listener: secrets of files, what each may do, and the check of a
//! request for one.
//!
//! A request has it as `Authorization: Bearer TOKEN`, as Prometheus sends the text of a file, or as
//! the password of `Authorization: Basic`, for which browsers ask. Any user name will do.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sluice_api::config::WebPage;

use crate::files::{FileError, FileKind, FileWatch, read};

/// Bytes of a token.
const LENGTH: std::ops::RangeInclusive<usize> = 16..=256;

/// Time between two lines about requests with a wrong token: anyone may send these without end.
const EVERY: Duration = Duration::from_secs(10);

/// What requests with a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Read.
    Reader,
    /// Change what the control API can change, too.
    Operator,
}

/// The tokens of a listener. None of them is ever printed.
pub struct Tokens {
    files: Vec<TokenFile>,
    /// By file.
    last: Mutex<Vec<LastRead>>,
    known: RwLock<Vec<Arc<KnownToken>>>,
    wrong: Mutex<Wrong>,
}

/// Requests with a wrong token, since the last line about them.
#[derive(Default)]
struct Wrong {
    many: u64,
    /// Where the last one came from, if that is known.
    peer: Option<SocketAddr>,
    /// When the last line was logged.
    logged: Option<Instant>,
}

struct TokenFile {
    /// The key of `[page]` that names it.
    key: &'static str,
    name: String,
    role: Role,
    path: PathBuf,
}

/// What a file had when it was last read.
struct LastRead {
    watch: FileWatch,
    /// None if it had none.
    token: Option<Token>,
}

/// A token that is good.
pub(crate) struct KnownToken {
    /// Whose it is.
    pub name: String,
    pub role: Role,
    token: Token,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tokens", self.files.len())
    }
}

impl Tokens {
    /// Reads the tokens of a configuration: those that are good, and what is wrong with the others,
    /// each with its key of `[page]`.
    pub fn read(page: &WebPage) -> (Self, Vec<(&'static str, FileError)>) {
        let file = |key, name: &str, role, path: &PathBuf| TokenFile { key, name: name.into(), role, path: path.clone() };
        let reader = page.token.iter().map(|path| file("token", "token", Role::Reader, path));
        let operators = page.operators.iter().map(|(name, path)| file("operators", name, Role::Operator, path));
        let files: Vec<TokenFile> = reader.chain(operators).collect();
        let mut errors = Vec::new();
        let begin = |file: &TokenFile| {
            let watch = FileWatch::new(vec![file.path.clone()]);
            LastRead { watch, token: file.read(&mut errors) }
        };
        let last: Vec<LastRead> = files.iter().map(begin).collect();
        let known = good_ones(&files, &last, &mut errors);
        (Self { files, last: Mutex::new(last), known: RwLock::new(known), wrong: Mutex::default() }, errors)
    }

    /// Whether requests need none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether one may change something.
    pub fn have_operator(&self) -> bool {
        self.files.iter().any(|file| file.role == Role::Operator)
    }

    /// Reads again the files that have changed, and says whether other tokens are good now. One
    /// that cannot be used any more is refused from then on. Logs how many requests had a wrong
    /// one, too.
    pub fn look(&self) -> bool {
        if let Some(line) = self.refusals(Instant::now()) {
            warn!("{line}");
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut was_read, mut errors) = (false, Vec::new());
        for (file, last) in self.files.iter().zip(last.iter_mut()) {
            if last.watch.has_changed() {
                was_read = true;
                last.token = file.read(&mut errors);
            }
        }
        if !was_read {
            return false;
        }
        let known = good_ones(&self.files, &last, &mut errors);
        errors.iter().for_each(|(_, error)| warn!("{error}; until then this token is refused"));
        let mut former = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if former.len() == known.len() && former.iter().zip(&known).all(|(former, now)| former.is_same(now)) {
            return false;
        }
        *former = known;
        drop(former);
        info!("tokens of the page have changed, and were read again");
        true
    }

    /// Counts a request that is refused because its token is wrong.
    pub(crate) fn refuse(&self, peer: Option<SocketAddr>) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.many += 1;
        wrong.peer = peer;
    }

    /// The line to log about such requests now, if any.
    pub(crate) fn refusals(&self, now: Instant) -> Option<String> {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.many == 0 || wrong.logged.is_some_and(|logged| now.duration_since(logged) < EVERY) {
            return None;
        }
        wrong.logged = Some(now);
        let last = wrong.peer.take().map_or_else(String::new, |peer| format!(", the last from {peer}"));
        Some(format!("the page refused {} requests with a wrong token{last}", std::mem::take(&mut wrong.many)))
    }

    /// The token that the value of an `Authorization` header has. The time that it takes says
    /// nothing about the tokens, but for their lengths.
    pub(crate) fn find(&self, authorization: &[u8]) -> Option<Arc<KnownToken>> {
        let given = secret_in(authorization)?;
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for one in known.iter() {
            if one.token.is(&given) {
                found = Some(one.clone());
            }
        }
        found
    }
}

/// What is wrong with tokens, each with its key of `[page]`.
type Faults = Vec<(&'static str, FileError)>;

impl TokenFile {
    fn read(&self, errors: &mut Faults) -> Option<Token> {
        Token::read(&self.path).map_err(|error| errors.push((self.key, error))).ok()
    }
}

impl KnownToken {
    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.role == other.role && self.token.is(&other.token.0)
    }
}

/// The good ones of tokens. Of two that are the same it is the first, which may do less.
fn good_ones(files: &[TokenFile], last: &[LastRead], errors: &mut Faults) -> Vec<Arc<KnownToken>> {
    let mut known: Vec<Arc<KnownToken>> = Vec::new();
    for (TokenFile { key, name, role, path }, last) in files.iter().zip(last) {
        let Some(token) = &last.token else { continue };
        if known.iter().any(|other| other.token.is(&token.0)) {
            let why = "is another one's too; make one for each with `openssl rand -hex 32`";
            errors.push((*key, FileError::content(FileKind::Token, path, why)));
        } else {
            known.push(Arc::new(KnownToken { name: name.clone(), role: *role, token: token.clone() }));
        }
    }
    known
}

/// A secret that requests must have.
#[derive(Clone)]
struct Token(Vec<u8>);

impl Token {
    /// Reads a token from a file that its owner alone may read: one line.
    fn read(path: &Path) -> Result<Self, FileError> {
        let text = read(path, FileKind::Token)?;
        let token = text.trim_ascii_end();
        if !LENGTH.contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
            let why = "needs to be one line of 16 to 256 letters, digits or signs without blanks; `openssl rand -hex 32` makes one";
            return Err(FileError::content(FileKind::Token, path, why));
        }
        Ok(Self(token.to_vec()))
    }

    /// Compares in a time that does not depend on where two texts differ.
    fn is(&self, given: &[u8]) -> bool {
        let differs = self.0.iter().zip(given).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differs) == 0 && self.0.len() == given.len()
    }
}

/// The secret that the value of an `Authorization` header has.
fn secret_in(authorization: &[u8]) -> Option<Cow<'_, [u8]>> {
    let blank = authorization.iter().position(|byte| *byte == b' ')?;
    let (scheme, value) = (&authorization[..blank], authorization[blank..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(Cow::Borrowed(value));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let pair = of_base64(value)?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(Cow::Owned(pair[colon + 1..].to_vec()))
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
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SECRET: &str = "0123456789abcdef";
    const OTHER: &str = "fedcba9876543210";

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// A file that its owner alone may read.
        fn file(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path
        }
    }

    fn page(token: Option<&Path>, operators: &[(&str, &Path)]) -> WebPage {
        let operators: BTreeMap<String, PathBuf> =
            operators.iter().map(|(name, path)| (name.to_string(), path.to_path_buf())).collect();
        WebPage { token: token.map(Path::to_owned), operators, ..WebPage::default() }
    }

    /// Whose the token of a request is, and what it may do.
    fn whose(tokens: &Tokens, authorization: &str) -> Option<(String, Role)> {
        tokens.find(authorization.as_bytes()).map(|known| (known.name.clone(), known.role))
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
    fn a_request_has_a_token_or_is_refused() {
        let folder = Folder::new();
        let (tokens, errors) = Tokens::read(&page(Some(&folder.file("token", &format!("{SECRET}\n"))), &[]));
        assert!(errors.is_empty() && !tokens.is_empty() && !tokens.have_operator());
        // `any:0123456789abcdef`
        for right in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef ", "Basic YW55OjAxMjM0NTY3ODlhYmNkZWY="] {
            assert_eq!(whose(&tokens, right), Some(("token".into(), Role::Reader)), "{right}");
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
            assert_eq!(whose(&tokens, wrong), None, "{wrong}");
        }
        assert_eq!(format!("{tokens:?}"), "1 tokens");
        assert!(Tokens::read(&WebPage::default()).0.is_empty());
    }

    #[test]
    fn a_token_has_the_role_of_its_key() {
        let folder = Folder::new();
        let (reader, alice) = (folder.file("reader", SECRET), folder.file("alice", OTHER));
        let (tokens, errors) = Tokens::read(&page(Some(&reader), &[("alice", &alice)]));
        assert!(errors.is_empty() && tokens.have_operator());
        assert_eq!(whose(&tokens, &format!("Bearer {SECRET}")), Some(("token".into(), Role::Reader)));
        assert_eq!(whose(&tokens, &format!("Bearer {OTHER}")), Some(("alice".into(), Role::Operator)));
    }

    #[test]
    fn a_token_that_two_have_does_no_more_than_one_of_them_may() {
        let folder = Folder::new();
        let (reader, alice) = (folder.file("reader", SECRET), folder.file("alice", SECRET));
        let (tokens, errors) = Tokens::read(&page(Some(&reader), &[("alice", &alice)]));
        assert_eq!(whose(&tokens, &format!("Bearer {SECRET}")), Some(("token".into(), Role::Reader)));
        let [(key, error)] = &errors[..] else { panic!("{errors:?}") };
        assert!(*key == "operators" && error.to_string().contains("is another one's too; make one for each"), "{key}: {error}");
        assert!(!error.to_string().contains(SECRET));
    }

    #[test]
    fn a_file_that_has_no_token_is_refused() {
        let folder = Folder::new();
        for text in ["", "short\n", &"x".repeat(257), "0123456789 abcdef", "0123456789abcdef\n0123456789abcdef"] {
            let (_, errors) = Tokens::read(&page(Some(&folder.file("token", text)), &[]));
            let [("token", error)] = &errors[..] else { panic!("{text}: {errors:?}") };
            assert!(error.to_string().contains("one line of 16 to 256 letters"), "{text}: {error}");
            assert!(text.is_empty() || !error.to_string().contains(text.trim_end()), "{error}");
        }
        let (tokens, errors) = Tokens::read(&page(Some(Path::new("/nonexistent")), &[]));
        assert!(matches!(&errors[..], [("token", FileError::Read { .. })]));
        assert!(!tokens.is_empty(), "requests need one nevertheless");
        assert_eq!(whose(&tokens, "Bearer "), None);
    }

    #[test]
    fn a_token_that_is_replaced_or_goes_is_good_no_more() {
        let folder = Folder::new();
        let (reader, alice) = (folder.file("reader", SECRET), folder.file("alice", OTHER));
        let (tokens, _) = Tokens::read(&page(Some(&reader), &[("alice", &alice)]));
        assert!(!tokens.look());
        folder.file("alice", "abcdefghijklmnopqrstuvwxyz");
        assert!(!tokens.look() && tokens.look());
        assert_eq!(whose(&tokens, &format!("Bearer {OTHER}")), None);
        assert_eq!(whose(&tokens, "Bearer abcdefghijklmnopqrstuvwxyz"), Some(("alice".into(), Role::Operator)));
        std::fs::remove_file(&reader).unwrap();
        assert!(!tokens.look() && tokens.look());
        assert_eq!(whose(&tokens, &format!("Bearer {SECRET}")), None);
        assert!(whose(&tokens, "Bearer abcdefghijklmnopqrstuvwxyz").is_some(), "others stay");
        assert!(!tokens.is_empty());
        folder.file("reader", SECRET);
        assert!(!tokens.look() && tokens.look());
        assert!(whose(&tokens, &format!("Bearer {SECRET}")).is_some());
    }

    #[test]
    fn a_token_that_is_written_again_is_no_change() {
        let folder = Folder::new();
        let alice = folder.file("alice", OTHER);
        let (tokens, _) = Tokens::read(&page(None, &[("alice", &alice)]));
        // Another file with the same token, and a newline.
        std::fs::rename(folder.file("new", &format!("{OTHER}\n")), &alice).unwrap();
        assert!((0..3).all(|_| !tokens.look()));
        assert!(whose(&tokens, &format!("Bearer {OTHER}")).is_some());
        folder.file("alice", SECRET);
        assert!(!tokens.look() && tokens.look());
    }

    #[test]
    fn a_token_that_is_being_written_delays_no_other() {
        let folder = Folder::new();
        let (reader, alice) = (folder.file("reader", SECRET), folder.file("alice", OTHER));
        let (tokens, _) = Tokens::read(&page(Some(&reader), &[("alice", &alice)]));
        std::fs::remove_file(&reader).unwrap();
        folder.file("alice", &"a".repeat(20));
        assert!(!tokens.look());
        folder.file("alice", &"a".repeat(30));
        assert!(tokens.look());
        assert_eq!(whose(&tokens, &format!("Bearer {SECRET}")), None);
        assert!(whose(&tokens, &format!("Bearer {OTHER}")).is_some(), "it is not read while it is written");
        assert!(tokens.look());
        assert!(whose(&tokens, &format!("Bearer {}", "a".repeat(30))).is_some());
    }
}
