//! Configuration text: refused with a reason, or accepted.

pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(errors) = sluice_config::load::parse(text, "fuzz") {
        assert!(!errors.to_string().trim().is_empty(), "a refusal says why");
    }
}
