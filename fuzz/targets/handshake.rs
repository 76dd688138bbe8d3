//! Fuzzes [`sluice_fuzz::handshake`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sluice_fuzz::handshake::run(bytes));
