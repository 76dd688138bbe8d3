//! Fuzzes [`sluice_fuzz::packet`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sluice_fuzz::packet::run(bytes));
