//! Fuzzes [`sluice_fuzz::config`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sluice_fuzz::config::run(bytes));
