//! Compares what is made of the code with its copy in the tree. `make reference` writes the copies.
//!
//! For tests. Other crates include this file by its path.

use std::fs;
use std::path::Path;

/// The line of a page below which all is made of the code. Above it stands what is written by hand.
const MARK: &str = "<!-- From here on this page is made of the code: make reference -->\n";

/// Compares a file of the repository with what is made; writes it first, if `SLUICE_WRITE` is set.
#[track_caller]
pub fn file(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join(name);
    if std::env::var_os("SLUICE_WRITE").is_some() {
        fs::write(&path, made).unwrap();
    }
    assert!(fs::read_to_string(&path).unwrap() == made, "{name} is not what the code says: make reference");
}

/// The same for the part of a page of the book that is made of the code.
#[track_caller]
pub fn page(name: &str, made: &str) {
    let name = format!("docs/src/{name}");
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(&name)).unwrap();
    let (head, _) = text.split_once(MARK).unwrap_or_else(|| panic!("{name} has no line {MARK:?}"));
    file(&name, &format!("{head}{MARK}{made}"));
}
