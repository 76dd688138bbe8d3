//! The configuration: any text is either refused with a reason or gives a configuration.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_manager::config::model::Config;

fuzz_target!(|text: &str| {
    if let Err(errors) = Config::parse(text, "fuzz") {
        assert!(!errors.to_string().trim().is_empty(), "a refusal says why");
    }
});
