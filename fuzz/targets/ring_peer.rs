//! Fuzzes [`sluice_fuzz::ring_peer`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sluice_fuzz::ring_peer::run(bytes));
