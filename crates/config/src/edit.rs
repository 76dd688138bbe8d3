//! Single keys of a configuration that is in force.
//!
//! The configuration is written as TOML, the keys are changed there, and the text is read as a file
//! is. So names, types, bounds and meaning of keys are checked in one place, whatever changes them.
//! Limits: a name cannot be changed, since it says which object it is; neither can a port's kind.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use sluice_api::change::SetKeys;
use sluice_api::config::Config;
use sluice_api::nearest;
use toml::{Table, Value};

use crate::load::{self, Loaded};
use crate::problem::{ConfigErrors, Problem};
use crate::schema::{Key, Preset, SECTIONS, Type};
use crate::{fuse, schema, validate};

/// Keys that say which object it is.
const FIXED: [&str; 2] = ["name", "kind"];

/// Most tables within each other that a key lies in, below its section.
const DEEPEST: usize = 2;

/// A configuration as TOML text, as it was before its chains got their groups.
///
/// # Errors
/// A number that TOML cannot have, in one sentence.
pub fn text(config: &Config) -> Result<String, ConfigErrors> {
    let mut config = config.clone();
    fuse::contract(&mut config);
    toml::to_string(&config).map_err(|error| unwritable(&error.to_string()))
}

/// As [`text`], without keys that have their default: for people to read, and for files.
///
/// # Errors
/// As [`text`].
pub fn short_text(config: &Config) -> Result<String, ConfigErrors> {
    let mut root: Table = text(config)?.parse().map_err(|error: toml::de::Error| unwritable(error.message()))?;
    for section in SECTIONS.iter() {
        let tables: Vec<&mut Table> = match root.get_mut(section.name) {
            Some(Value::Array(entries)) => entries.iter_mut().filter_map(Value::as_table_mut).collect(),
            Some(Value::Table(table)) => vec![table],
            _ => continue,
        };
        // Keys of a kind of port are a section of their own.
        let is_its = |table: &&mut Table| {
            section.kind.is_empty() || table.get("kind").and_then(Value::as_str).is_some_and(|kind| kind == section.kind)
        };
        tables.into_iter().filter(is_its).for_each(|table| leave_defaults_out(table, &section.keys));
    }
    root.retain(|_, value| match value {
        Value::Table(table) => !table.is_empty(),
        Value::Array(entries) => !entries.is_empty(),
        _ => true,
    });
    toml::to_string(&root).map_err(|error| unwritable(&error.to_string()))
}

fn leave_defaults_out(table: &mut Table, keys: &[Key]) {
    for key in keys {
        let is_default = |value: &Value| matches!(&key.default, Preset::Value(default) if *default == value.to_string());
        if table.get(key.name).is_some_and(is_default) {
            table.remove(key.name);
        }
        // A table that is empty then stays: it is not the same as none.
        if let (Type::Keys(inner), Some(Value::Table(table))) = (&key.takes, table.get_mut(key.name)) {
            leave_defaults_out(table, inner);
        }
    }
}

fn unwritable(why: &str) -> ConfigErrors {
    Problem::nowhere(format!("the configuration in force cannot be written as TOML: {why}"), "change that value first").into()
}

/// A configuration with some keys changed. Warnings are those that it did not have before.
///
/// # Errors
/// All that is wrong with the change, without places in a file.
pub fn with_keys(config: &Config, set: &SetKeys) -> Result<Loaded, ConfigErrors> {
    let mut root: Table = text(config)?.parse().map_err(|error: toml::de::Error| unwritable(error.message()))?;
    let table = object(&mut root, &set.kind, set.name.as_deref())?;
    if set.keys.is_empty() {
        return Err(Problem::nowhere("no key is given", "write KEY=VALUE, such as priority=2").into());
    }
    for (key, value) in &set.keys {
        put(table, &set.kind, key, value)?;
    }
    let text = toml::to_string(&root).map_err(|error| unwritable(&error.to_string()))?;
    let mut loaded = load::read_text(&text, "")
        .map_err(|errors| ConfigErrors { problems: errors.problems.into_iter().map(placeless).collect() })?;
    let known: Vec<String> = validate::validate(config).into_iter().map(|problem| problem.message).collect();
    loaded.warnings.retain(|warning| !known.contains(&warning.message));
    loaded.warnings = std::mem::take(&mut loaded.warnings).into_iter().map(placeless).collect();
    Ok(loaded)
}

/// A problem without a place in a text that nobody has seen.
fn placeless(problem: Problem) -> Problem {
    Problem { location: None, earlier_line: None, ..problem }
}

/// The table of an object.
fn object<'a>(root: &'a mut Table, kind: &str, name: Option<&str>) -> Result<&'a mut Table, ConfigErrors> {
    let Some(section) = schema::sections(kind).next() else {
        let names = schema::section_names();
        return Err(Problem::nowhere(format!("no section is called {kind:?}"), nearest::hint(kind, &names)).into());
    };
    match (section.many, name) {
        (false, None) => match root.entry(kind).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(table) => Ok(table),
            _ => Err(Problem::nowhere(format!("{kind} is no table"), "").into()),
        },
        (false, Some(name)) => {
            let help = format!("leave the name out: sluice set {kind} KEY=VALUE");
            Err(Problem::nowhere(format!("there is one {kind}, and {name:?} is no key with a value"), help).into())
        }
        (true, None) => {
            Err(Problem::nowhere(format!("which {kind}?"), format!("write its name: sluice set {kind} NAME KEY=VALUE")).into())
        }
        (true, Some(name)) => {
            let entries: &mut [Value] = match root.get_mut(kind) {
                Some(Value::Array(entries)) => entries,
                _ => &mut [],
            };
            let labels: Vec<String> = entries.iter().enumerate().map(|(at, entry)| label(kind, at, entry)).collect();
            let known: Vec<&str> = labels.iter().map(String::as_str).collect();
            let missing = || {
                let help = if known.is_empty() { "there is none".into() } else { nearest::hint(name, &known) };
                Problem::nowhere(format!("no {kind} is called {name:?}"), help).into()
            };
            let at = known.iter().position(|label| *label == name).ok_or_else(missing)?;
            entries[at].as_table_mut().ok_or_else(missing)
        }
    }
}

/// The name of an entry; a rule may have none.
fn label(kind: &str, at: usize, entry: &Value) -> String {
    entry.get("name").and_then(Value::as_str).map_or_else(|| format!("{kind}.{at}"), str::to_owned)
}

/// Sets one key, or removes it for a null.
fn put(table: &mut Table, kind: &str, key: &str, value: &Json) -> Result<(), ConfigErrors> {
    if FIXED.contains(&key) {
        let help = format!("apply a configuration with another {kind} instead");
        return Err(Problem::nowhere(format!("{key} of a {kind} cannot be set: it says which {kind} it is"), help).into());
    }
    let (path, last): (Vec<&str>, &str) = match key.rsplit_once('.') {
        Some((path, last)) => (path.split('.').collect(), last),
        None => (Vec::new(), key),
    };
    if path.len() > DEEPEST {
        return Err(Problem::nowhere(format!("no table has a key as deep as {last}"), "see `sluice check --explain`").into());
    }
    let mut table = table;
    for step in path {
        table = match table.entry(step).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(inner) => inner,
            _ => {
                return Err(
                    Problem::nowhere(format!("{key} cannot be set: {step} is no table"), "see `sluice check --explain`").into()
                );
            }
        };
    }
    if value.is_null() {
        table.remove(last);
        return Ok(());
    }
    let refused = |error: toml::ser::Error| {
        ConfigErrors::from(Problem::nowhere(format!("{key} cannot be {value}: {error}"), "write a value as in a configuration"))
    };
    table.insert(last.to_string(), Value::try_from(value).map_err(refused)?);
    Ok(())
}

/// The values of `KEY=VALUE` arguments, by key: TOML values, or else the text as it is. Nothing
/// after the sign is null, which sets the key back to its default.
///
/// # Errors
/// The argument that has no sign, or a key that comes twice, with what to write.
pub fn arguments<'a>(all: impl IntoIterator<Item = &'a str>) -> Result<BTreeMap<String, Json>, String> {
    let mut keys = BTreeMap::new();
    for argument in all {
        let (key, value) =
            argument.split_once('=').ok_or_else(|| format!("{argument:?} is not KEY=VALUE; write for example priority=2"))?;
        let value = if value.is_empty() { Json::Null } else { json(value) };
        if keys.insert(key.trim().to_string(), value).is_some() {
            return Err(format!("{key} is given twice"));
        }
    }
    Ok(keys)
}

fn json(text: &str) -> Json {
    let parsed = format!("value = {text}").parse::<Table>().ok().filter(|table| table.len() == 1);
    let value = parsed.and_then(|mut table| table.remove("value"));
    let value = value.and_then(|value| serde_json::to_value(value).ok());
    // JSON has no infinite numbers, and a null is a default.
    value.filter(|value| !value.is_null()).unwrap_or_else(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        port = [{ name = "in", kind = "gen", rate = 5.0 }, { name = "out", kind = "sink" }]
        service = [{ name = "ids", exec = "/bin/ids", per = "flow", pool = { min = 2, max = 8 } },
                   { name = "fw", exec = "/bin/fw", memory = 64 }, { name = "nat", exec = "/bin/nat" }]
        chain = [{ name = "web", services = ["fw", "nat"], egress = "out", run = "fused" }, { name = "all", services = ["ids"], egress = "out" }]
        rule = [{ chain = "web", vlan = 1 }, { name = "rest", chain = "all" }]
    "#;

    fn config() -> Config {
        let mut config = load::parse(TEXT, "a.toml").unwrap_or_else(|errors| panic!("{errors}"));
        fuse::expand(&mut config);
        config
    }

    #[test]
    fn a_short_text_is_the_same_configuration_without_defaults() {
        let mut config = config();
        config.manager.latency_sample = 7;
        let short = short_text(&config).unwrap();
        let read = |text: &str| load::parse(text, "a.toml").unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(read(&short), read(&text(&config).unwrap()));
        for wanted in ["latency_sample = 7", "rate = 5.0", "memory = 64", "run = \"fused\"", "[service.pool]", "max = 8"] {
            assert!(short.contains(wanted), "{wanted} is not in\n{short}");
        }
        for default in ["runtime_dir", "ring =", "[sched]", "on_failure", "overload"] {
            assert!(!short.contains(default), "{default} is in\n{short}");
        }
        assert_eq!(short_text(&Config::default()).unwrap(), "");
    }

    fn set(words: &str) -> Result<Config, String> {
        let mut words = words.split(' ');
        let kind = words.next().unwrap().to_string();
        let rest: Vec<&str> = words.collect();
        let name = rest.first().filter(|word| !word.contains('=')).map(|word| word.to_string());
        let keys = arguments(rest.iter().skip(usize::from(name.is_some())).copied())?;
        let set = SetKeys { kind, name, keys, dry_run: false };
        with_keys(&config(), &set).map(|loaded| loaded.config).map_err(|errors| errors.to_string())
    }

    #[test]
    fn only_the_named_keys_change() {
        let mut before = config();
        fuse::contract(&mut before);
        let mut wanted = before.clone();
        wanted.services[2].priority = 1.0;
        assert_eq!(set("service nat priority=1"), Ok(wanted.clone()));
        (wanted.services[0].pool.as_mut().unwrap().max, wanted.services[0].priority) = (16, 2.0);
        assert_eq!(set("service ids pool.max=16 priority=2"), Ok(wanted));
        let mut wanted = before.clone();
        (wanted.sched.high_watermark, wanted.sched.ecn) = (70, false);
        wanted.sched.tenants.insert("gold".into(), 4.0);
        assert_eq!(set("sched high_watermark=70 ecn=false tenants.gold=4"), Ok(wanted));
        let mut wanted = before.clone();
        wanted.rules[0].priority = Some(3.0);
        assert_eq!(set("rule rule.0 priority=3"), Ok(wanted));
        let mut wanted = before;
        wanted.services[1].memory = None;
        wanted.manager.log_level = None;
        assert_eq!(set("service fw memory="), Ok(wanted));
    }

    #[test]
    fn what_is_wrong_is_reported_with_what_to_do() {
        for (words, what) in [
            ("servise ids priority=2", "did you mean \"service\"?"),
            ("service idz priority=2", "did you mean \"ids\"?"),
            ("service priority=2", "which service?"),
            ("sched ids ecn=false", "leave the name out"),
            ("service ids", "no key is given"),
            ("service ids prio=2", "has no key \"prio\""),
            ("service ids priority=high", "priority"),
            ("service ids priority=nan", "priority"),
            ("service ids name=x", "says which service it is"),
            ("port in kind=sink", "says which port it is"),
            ("service ids pool.maxx=3", "maxx"),
            ("service fw exec.path=3", "exec is no table"),
            ("sched low_watermark=90", "low_watermark"),
            ("sched ecn=false ecn=true", "twice"),
            ("manager log_level=loud", "is no level"),
            ("service fw priority=2", "differ in `priority`"),
            ("service ids a.b.c.d=2", "as deep as d"),
        ] {
            let said = set(words).expect_err(words);
            assert!(said.contains(what) && !said.contains("1:"), "{words}: {said}");
        }
    }

    #[test]
    fn warnings_that_were_there_before_are_not_repeated() {
        let mut before = config();
        before.chains.push(sluice_api::config::Chain { name: "spare".into(), ..before.chains[1].clone() });
        let keys = arguments(["priority=2"]).unwrap();
        let set = SetKeys { kind: "service".into(), name: Some("ids".into()), keys, dry_run: false };
        assert_eq!(with_keys(&before, &set).unwrap().warnings, []);
    }

    #[test]
    fn arguments_are_values_of_toml_or_text() {
        let keys = arguments(["a=1", "b=2.5", "c=true", "d=[0, 1]", "e=some text", "f=", "g=\"x\"", "h = 3\nb = 4"]).unwrap();
        let wanted = serde_json::json!({
            "a": 1, "b": 2.5, "c": true, "d": [0, 1], "e": "some text", "f": null, "g": "x", "h": " 3\nb = 4"
        });
        assert_eq!(serde_json::to_value(keys).unwrap(), wanted);
        assert!(arguments(["a"]).unwrap_err().contains("KEY=VALUE"));
    }
}
