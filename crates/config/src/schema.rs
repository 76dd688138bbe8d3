//! Every section and key: type, default, meaning.
//!
//! Derived from the types in [`sluice_api::config`]: names and doc comments of fields, defaults,
//! bounds. Their JSON schema fills the table here, by which [`super::load`] checks keys and types
//! and [`super::validate`] checks numbers. `sluice check --explain` prints it ([`reference()`]).
//! The book's page about the configuration is made of it.

use std::fmt::Write;
use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value as Json;
use sluice_api::config::Config;

/// What a key takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// `true` or `false`.
    Bool,
    /// A whole number within these bounds, both included.
    Integer(i64, i64),
    /// A finite number that is not negative.
    Number,
    /// A string.
    Text,
    /// A path; a relative one is relative to the folder of the file.
    Path,
    /// One of these words.
    Words(Vec<Word>),
    /// A list of core numbers.
    Cores,
    /// A list of strings.
    Texts,
    /// A list of names.
    Names,
    /// A table of strings.
    TextTable,
    /// A table of finite numbers that are not negative.
    NumberTable,
    /// A table of whole numbers within these bounds, both included.
    IntegerTable(i64, i64),
    /// An IP address.
    Address,
    /// A port number or a range of them.
    Ports,
    /// A list of pairs, each a size and a weight.
    Mix,
    /// A table with keys of its own.
    Keys(Vec<Key>),
}

/// A word that a key takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// The word.
    pub name: &'static str,
    /// Its description.
    pub meaning: String,
}

/// The value of a key that is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preset {
    /// None: the key is required.
    Needed,
    /// This value, as TOML.
    Value(String),
    /// Nothing: the meaning of the key describes it.
    Unset,
}

/// A key of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub takes: Type,
    /// Its value if it is left out.
    pub default: Preset,
    /// Its description.
    pub meaning: String,
}

/// A section of the file.
#[derive(Debug, Clone)]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// The kind of port that its keys belong to; empty if they belong to no kind.
    pub kind: &'static str,
    /// Whether it may occur several times, as `[[name]]`.
    pub many: bool,
    /// Its description.
    pub meaning: String,
    /// Its keys.
    pub keys: Vec<Key>,
}

impl Type {
    /// The type in words, for the reference and for errors.
    pub fn words(&self) -> String {
        match self {
            Self::Bool => "true or false".into(),
            Self::Integer(0, i64::MAX) => "a whole number, 0 or more".into(),
            Self::Integer(low, i64::MAX) => format!("a whole number, {low} or more"),
            Self::Integer(low, high) => format!("a whole number, {low} to {high}"),
            Self::Number => "a number, 0 or more".into(),
            Self::Text => "a string".into(),
            Self::Path => "a path (a string)".into(),
            Self::Words(words) => words.iter().map(|word| format!("{:?}", word.name)).collect::<Vec<_>>().join(" or "),
            Self::Cores => "a list of core numbers, such as [0, 1]".into(),
            Self::Texts => "a list of strings".into(),
            Self::Names => "a list of names, such as [\"a\", \"b\"]".into(),
            Self::TextTable => "a table of strings, such as { NAME = \"value\" }".into(),
            Self::NumberTable => "a table of numbers, such as { NAME = 2.0 }".into(),
            Self::IntegerTable(..) => "a table of whole numbers, such as { NAME = 2048 }".into(),
            Self::Address => "an IP address (a string)".into(),
            Self::Ports => "a port number, such as 80, or a range, such as \"1000-2000\"".into(),
            Self::Mix => "a list of [size, weight] pairs, such as [[60, 7], [1514, 1]]".into(),
            Self::Keys(keys) => {
                let names: Vec<String> = keys.iter().map(|key| format!("`{}`", key.name)).collect();
                format!("a table of {}", names.join(", "))
            }
        }
    }
}

static JSON: LazyLock<Json> =
    LazyLock::new(|| SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Config>().to_value());

/// All sections, in the order of the reference. Common keys of ports precede those of each kind.
pub static SECTIONS: LazyLock<Vec<Section>> = LazyLock::new(|| {
    let mut sections = Vec::new();
    for (name, schema) in fields(&JSON) {
        let many = schema["type"] == "array";
        let table = resolved(if many { &schema["items"] } else { schema });
        let section = |kind, meaning, keys| Section { name, kind, many, meaning, keys };
        let kinds = table["oneOf"].as_array().map_or(&[][..], Vec::as_slice);
        let mut keys = keys(table);
        let kind_of = |variant: &'static Json| variant["properties"][KIND]["const"].as_str().unwrap_or_default();
        if !kinds.is_empty() {
            let takes = Type::Words(kinds.iter().map(|kind| Word { name: kind_of(kind), meaning: meaning(kind) }).collect());
            let meaning = "The kind; it has keys of its own.".to_string();
            keys.insert(1, Key { name: KIND, takes, default: Preset::Needed, meaning });
        }
        sections.push(section("", meaning(table), keys));
        for variant in kinds {
            let own = self::keys(variant).into_iter().filter(|key| key.name != KIND).collect();
            sections.push(section(kind_of(variant), meaning(variant), own));
        }
    }
    sections
});

const KIND: &str = "kind";

/// Follows the reference of a schema, if it has one, and unwraps an optional value.
fn resolved(schema: &'static Json) -> &'static Json {
    if let Some(path) = schema["$ref"].as_str() {
        return JSON.pointer(path.trim_start_matches('#')).map_or(&Json::Null, resolved);
    }
    match schema["anyOf"].as_array().map(Vec::as_slice) {
        Some([written, left_out]) if left_out["type"] == "null" => resolved(written),
        _ => schema,
    }
}

fn meaning(schema: &Json) -> String {
    schema["description"].as_str().unwrap_or_default().replace('\n', " ").replace("[`Gen`]", "`gen`")
}

/// The fields of a table in the order of its type, or else alphabetically.
fn fields(table: &'static Json) -> Vec<(&'static str, &'static Json)> {
    let order: Vec<&str> = table["x-order"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    let all = table["properties"].as_object().into_iter().flatten();
    let mut all: Vec<_> = all.map(|(name, schema)| (name.as_str(), schema)).collect();
    all.sort_by_key(|(name, _)| order.iter().position(|one| one == name));
    all
}

fn keys(table: &'static Json) -> Vec<Key> {
    let needed: Vec<&str> = table["required"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    let key = |(name, schema): (&'static str, &'static Json)| {
        let default = match schema.get("default").filter(|default| !default.is_null()) {
            _ if needed.contains(&name) => Preset::Needed,
            Some(default) => Preset::Value(toml::Value::try_from(default).map_or_else(|_| default.to_string(), |v| v.to_string())),
            None => Preset::Unset,
        };
        Key { name, takes: takes(schema), default, meaning: meaning(schema) }
    };
    let mut keys: Vec<Key> = fields(table).into_iter().map(key).collect();
    if table["x-order"].is_null() {
        keys.sort_by_key(|key| key.default != Preset::Needed);
    }
    keys
}

fn takes(schema: &'static Json) -> Type {
    let schema = resolved(schema);
    if let Some(words) = schema["oneOf"].as_array() {
        let word = |word: &'static Json| Some(Word { name: word["const"].as_str()?, meaning: meaning(word) });
        return Type::Words(words.iter().filter_map(word).collect());
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"].as_array()?.first()?.as_str());
    match (kind, schema["format"].as_str()) {
        (Some("boolean"), _) => Type::Bool,
        (Some("integer"), format) => {
            let most = if format == Some("uint32") { u32::MAX.into() } else { i64::MAX };
            Type::Integer(schema["minimum"].as_i64().unwrap_or(0), schema["maximum"].as_i64().unwrap_or(most))
        }
        (Some("number"), _) => Type::Number,
        (Some("string"), Some("path")) => Type::Path,
        (Some("string"), Some("ip")) => Type::Address,
        (Some("string"), _) => Type::Text,
        (Some("array"), _) => match takes(&schema["items"]) {
            Type::Integer(..) => Type::Cores,
            Type::Text if schema["items"]["format"] == "name" => Type::Names,
            Type::Text => Type::Texts,
            _ => Type::Mix,
        },
        (Some("object"), _) if schema["properties"].is_object() => Type::Keys(keys(schema)),
        (Some("object"), _) => match takes(&schema["additionalProperties"]) {
            Type::Integer(low, high) => Type::IntegerTable(low, high),
            Type::Number => Type::NumberTable,
            _ => Type::TextTable,
        },
        _ => Type::Ports,
    }
}

/// The sections with a name: one, or for ports the common one and those of each kind.
pub fn sections(name: &str) -> impl Iterator<Item = &'static Section> {
    SECTIONS.iter().filter(move |s| s.name == name)
}

/// The names of all sections.
pub(crate) fn section_names() -> Vec<&'static str> {
    SECTIONS.iter().filter(|s| s.kind.is_empty()).map(|s| s.name).collect()
}

fn describe(out: &mut String, key: &Key) {
    let default = match &key.default {
        Preset::Needed => "needed".to_string(),
        Preset::Value(value) => format!("default {value}"),
        Preset::Unset => "may be left out".to_string(),
    };
    let _ = write!(out, "  {}: {}; {default}\n      {}\n", key.name, key.takes.words(), key.meaning);
    if let Type::Words(words) = &key.takes {
        for Word { name, meaning } in words {
            let _ = writeln!(out, "      {name:?}: {meaning}");
        }
    }
}

/// All tables of a configuration: each as it is written, with its meaning and its keys.
fn tables() -> Vec<(String, &'static str, &'static [Key])> {
    let mut tables = Vec::new();
    for section in SECTIONS.iter() {
        let head = match (section.many, section.kind) {
            (false, _) => format!("[{}]", section.name),
            (true, "") => format!("[[{}]]", section.name),
            (true, kind) => format!("[[{}]] with kind = {kind:?}", section.name),
        };
        tables.push((head, section.meaning.as_str(), section.keys.as_slice()));
        for key in &section.keys {
            if let Type::Keys(inner) = &key.takes {
                tables.push((format!("[{}.{}]", section.name, key.name), key.meaning.as_str(), inner.as_slice()));
            }
        }
    }
    tables
}

/// Every key with its type, its default and its meaning, for people to read.
pub fn reference() -> String {
    let mut out = String::from("A configuration is one TOML file. Relative paths count from its folder.\n");
    for (head, meaning, keys) in tables() {
        let _ = write!(out, "\n{head}\n{meaning}\n");
        keys.iter().for_each(|key| describe(&mut out, key));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_the_tree;

    /// `make reference` writes the schema, which editors use.
    #[test]
    fn the_schema_in_the_tree_is_that_of_the_types() {
        in_the_tree::file("deploy/config.schema.json", &format!("{:#}\n", *JSON));
    }

    /// `make reference` writes it.
    #[test]
    fn the_page_in_the_tree_is_that_of_the_types() {
        let mut page = String::new();
        for (head, meaning, keys) in tables() {
            page += &format!("\n## `{head}`\n\n{meaning}\n{}", if keys.is_empty() { "" } else { "\n" });
            for key in keys {
                let default = match &key.default {
                    Preset::Needed => "needed".to_string(),
                    Preset::Value(value) => format!("default `{value}`"),
                    Preset::Unset => "may be left out".to_string(),
                };
                page += &format!("- `{}`: {}; {default}. {}\n", key.name, key.takes.words(), key.meaning);
                if let Type::Words(words) = &key.takes {
                    words.iter().for_each(|word| page += &format!("  - `{:?}`: {}\n", word.name, word.meaning));
                }
            }
        }
        in_the_tree::page("ref-configuration.md", &page);
    }

    #[test]
    fn the_reference_says_of_every_key_what_it_takes_and_means() {
        let reference = reference();
        let inner = |key: &'static Key| match &key.takes {
            Type::Keys(keys) => keys.iter().collect(),
            _ => Vec::new(),
        };
        let keys: Vec<&Key> = SECTIONS.iter().flat_map(|s| &s.keys).flat_map(|key| [vec![key], inner(key)].concat()).collect();
        assert!(keys.len() > 150, "{}", keys.len());
        for key in keys {
            assert!(key.meaning.len() > 5, "{} has no meaning", key.name);
            assert!(reference.contains(&format!("\n  {}: {}; ", key.name, key.takes.words())), "{}", key.name);
            assert!(reference.contains(&key.meaning));
        }
        assert!(
            reference
                .contains("[[port]] with kind = \"gen\"\nGenerates traffic.\n  size: a whole number, 42 to 65344; default 60\n")
        );
        assert!(reference.contains("\n  max_violations: a whole number, 1 or more; default 64\n"));
    }
}
