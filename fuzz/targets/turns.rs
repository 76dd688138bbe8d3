//! Fuzzes [`sluice_fuzz::turns`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sluice_fuzz::turns::run_one_of_many(bytes));
