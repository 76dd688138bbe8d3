//! Fuzzes [`sluice_fuzz::openflow`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sluice_fuzz::openflow::run(bytes));
