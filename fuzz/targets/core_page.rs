//! Fuzzes [`sluice_fuzz::core_page`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sluice_fuzz::core_page::run(bytes));
