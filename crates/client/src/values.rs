//! Values of KEY=VALUE arguments.

/// The keys of an inline table: `size = 60, flows = 10`.
pub fn inline(text: &str) -> Option<toml::Table> {
    match format!("inline = {{ {text} }}").parse::<toml::Table>().ok()?.remove("inline") {
        Some(toml::Value::Table(table)) => Some(table),
        _ => None,
    }
}

/// A TOML value, or else the text as it is: a path or an interface needs no quotes.
pub fn value(text: &str) -> toml::Value {
    inline(&format!("value = {text}")).and_then(|mut table| table.remove("value")).unwrap_or_else(|| text.into())
}
