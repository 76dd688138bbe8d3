//! Fuzzes [`sluice_fuzz::capture`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sluice_fuzz::capture::run(bytes));
