//! Fuzzes [`sluice_fuzz::control`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sluice_fuzz::control::run(bytes));
