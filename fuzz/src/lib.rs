//! What comes from outside, and what must hold of any of it. Each module is a fuzz target: [`TARGETS`] lists them.
//!
//! `make fuzz` runs each with a fuzzer that follows coverage; the test of this crate runs each over the inputs in `fuzz/seeds`, among them
//! every input that ever failed.

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

/// A target: its name, which its folder of inputs and its program have as well, and what it does with an input. It panics if something
/// does not hold.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
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
                // The name of the input stands above the words of what fails.
                println!("{}", seed.display());
                run(&std::fs::read(&seed).unwrap());
            }
            run(&[]);
        }
    }
}
