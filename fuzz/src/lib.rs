//! Fuzz targets for input from outside, and what must hold for any input.
//!
//! `make fuzz` runs each with a coverage-guided fuzzer; this crate's test runs each over the inputs
//! in `fuzz/seeds`, which include every input that ever failed.

pub mod capture;
pub mod config;
pub mod control;
pub mod core_page;
pub mod handshake;
pub mod openflow;
pub mod packet;
pub mod ring_peer;
pub mod session;
pub mod turns;

/// The name of a target, of its folder of inputs and of its program, and its function, which panics
/// if a property does not hold.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 10] = [
    ("ring-peer", ring_peer::run),
    ("handshake", handshake::run),
    ("config", config::run),
    ("packet", packet::run),
    ("openflow", openflow::run),
    ("session", session::run),
    ("capture", capture::run),
    ("control", control::run),
    ("core-page", core_page::run),
    ("turns", turns::run),
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_was_found_once_holds() {
        for (name, run) in TARGETS {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
            let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            let mut seeds: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            assert!(!seeds.is_empty(), "{name} has no inputs in {}", folder.display());
            seeds.sort();
            for seed in seeds {
                // The name of the input is printed before what fails.
                println!("{}", seed.display());
                run(&std::fs::read(&seed).unwrap());
            }
            run(&[]);
        }
    }
}
