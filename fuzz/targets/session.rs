//! Fuzzes [`sluice_fuzz::session`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sluice_fuzz::session::run(bytes));
