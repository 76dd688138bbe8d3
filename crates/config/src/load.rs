//! Reads a configuration.
//!
//! Three passes over one text, each of which reports everything it finds: the TOML itself; the
//! *shape* (sections, keys, types, words and numbers, against [`super::schema`]); the meaning
//! ([`super::validate`]). A pass runs only if those before it found no error. serde fills the model
//! after the shape is right, so its own errors, without lines or nearest words, never appear.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::host::Host;
use super::problem::{ConfigErrors, Problem, Severity, SourceText};
use super::schema::{self, Key, Preset, Section, Type};
use super::{fuse, host, on_host, privileges, validate};
use sluice_api::config::{Config, MAX_CORE, Port, PortKind};
use sluice_api::nearest;

/// Largest file, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// A valid configuration, its warnings and its text.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loaded {
    /// The valid configuration. Relative paths are anchored if it was read from a file.
    pub config: Config,
    /// Probable mistakes.
    pub warnings: Vec<Problem>,
    /// The text, which gives later problems their line.
    pub source: SourceText,
}

/// Reads and validates a file. Relative paths in it are relative to its folder.
///
/// # Errors
/// All problems, each with its line and what to do.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    read(path).map(|l| l.config)
}

/// Reads and validates a text. Errors show `name`. Relative paths stay: see [`anchor`].
///
/// # Errors
/// As [`load`].
pub fn parse(text: &str, name: &str) -> Result<Config, ConfigErrors> {
    read_text(text, name).map(|l| l.config)
}

/// Makes paths absolute, relative to `folder`. A program's bare name stays.
pub fn anchor(config: &mut Config, folder: &Path) {
    let anchored = |path: &mut PathBuf| {
        // By components, so that "./nf" becomes "FOLDER/nf".
        let relative: PathBuf = path.components().filter(|c| *c != Component::CurDir).collect();
        *path = folder.join(relative);
    };
    anchored(&mut config.manager.runtime_dir);
    anchored(&mut config.manager.estimates);
    config.manager.history.iter_mut().for_each(anchored);
    anchored(&mut config.promises.resctrl);
    config.promises.placement.iter_mut().for_each(anchored);
    let page = &mut config.page;
    page.certificate.iter_mut().chain(&mut page.key).chain(&mut page.token).for_each(anchored);
    page.operators.values_mut().for_each(anchored);
    config.flow_log.file.iter_mut().for_each(anchored);
    anchored(&mut config.recorder.folder);
    for port in &mut config.ports {
        if let PortKind::Pcap(pcap) = &mut port.kind {
            pcap.read.iter_mut().chain(&mut pcap.write).for_each(anchored);
        }
    }
    config.services.iter_mut().filter_map(|s| s.pid_file.as_mut()).for_each(anchored);
    for container in config.services.iter_mut().filter_map(|s| s.container.as_mut()) {
        container.bundle.iter_mut().chain(&mut container.root).for_each(anchored);
        Some(&mut container.runtime).into_iter().filter(|runtime| !host::is_bare(runtime)).for_each(anchored);
    }
    config.services.iter_mut().filter_map(|s| s.exec.as_mut()).filter(|exec| !host::is_bare(exec)).for_each(anchored);
}

impl Loaded {
    /// Runs one more check on the configuration and gives its problems their lines.
    ///
    /// # Errors
    /// All problems, if the check reports an error.
    pub fn accept(mut self, check: impl FnOnce(&Config) -> Vec<Problem>) -> Result<Self, ConfigErrors> {
        let mut problems = check(&self.config);
        self.source.locate(&mut problems);
        self.warnings = sorted_out(std::mem::take(&mut self.warnings), problems)?;
        Ok(self)
    }
}

/// Reads and validates a file; keeps its warnings and its text. Fused chains have their groups.
///
/// # Errors
/// As [`load`].
pub fn read(path: &Path) -> Result<Loaded, ConfigErrors> {
    let name = path.display().to_string();
    let cannot = |what: String, help: &str| ConfigErrors::from(Problem::nowhere(format!("{name}: {what}"), help));
    let failed = |error: std::io::Error| {
        let help = match error.kind() {
            std::io::ErrorKind::NotFound => "give the path of a configuration; `sluice check --explain` says what one can say",
            std::io::ErrorKind::PermissionDenied => "run as a user with permission to read it, or change its mode",
            _ => "give the path of a readable file",
        };
        cannot(format!("cannot read the configuration: {error}"), help)
    };
    let mut bytes = Vec::new();
    // What has no size beforehand, such as a pipe, may have no end.
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if read as u64 > MAX_BYTES {
        return Err(cannot("it is too large for a configuration".into(), "keep it under 64 MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid].iter().filter(|b| **b == b'\n').count() + 1;
        cannot(format!("line {line} is not UTF-8 text"), "save the file as UTF-8")
    })?;
    let mut loaded = read_text(&text, &name)?;
    let whole = fs::canonicalize(path).map_err(failed)?;
    anchor(&mut loaded.config, whole.parent().unwrap_or(Path::new("/")));
    fuse::expand(&mut loaded.config);
    Ok(loaded)
}

/// Reads a file, validates it, checks it against the host and resolves the programs of services.
///
/// # Errors
/// As [`load`], and what the host lacks.
pub fn read_for(path: &Path, host: &Host) -> Result<Loaded, ConfigErrors> {
    let mut loaded = read(path)?.accept(|config| {
        let mut problems = on_host::check(config, host);
        problems.extend(privileges::check(config, host));
        problems
    })?;
    host::resolve(&mut loaded.config, host);
    fuse::resolve(&mut loaded.config, host);
    Ok(loaded)
}

/// Reads and validates a text; keeps its warnings.
///
/// # Errors
/// As [`load`].
pub fn read_text(text: &str, name: &str) -> Result<Loaded, ConfigErrors> {
    let (config, source) = read_shape(text, name)?;
    let mut problems = validate::validate(&config);
    source.locate(&mut problems);
    let is_empty = config.ports.is_empty() && config.services.is_empty() && config.chains.is_empty() && config.rules.is_empty();
    // Errors hide this warning: it would only distract from them.
    if is_empty && !problems.iter().any(Problem::is_error) {
        problems.push(Problem {
            severity: Severity::Warning,
            ..source.problem(
                0..0,
                "this configuration has no port, no service, no chain and no rule, so no packet goes anywhere",
                "`sluice check --explain` says what a configuration can have",
            )
        });
    }
    let warnings = sorted_out(Vec::new(), problems)?;
    Ok(Loaded { config, warnings, source })
}

/// Reads one port from its keys. Only their shape is checked, not whether the port fits the rest.
///
/// # Errors
/// The problems, without locations: keys of a command line have none.
pub fn read_port(keys: toml::Table) -> Result<Port, ConfigErrors> {
    let name = keys.get("name").and_then(toml::Value::as_str).unwrap_or_default().to_string();
    let file = toml::Table::from_iter([("port".to_string(), toml::Value::Array(vec![keys.into()]))]);
    let bare = |problem: Problem| Problem::nowhere(format!("port \"{name}\": {}", problem.message), problem.help);
    let read = read_shape(&file.to_string(), "").map(|(config, _)| config.ports.into_iter().next());
    match read {
        Ok(Some(port)) => Ok(port),
        Ok(None) => Err(Problem::nowhere("there is no port", "give it a name and a kind").into()),
        Err(errors) => Err(ConfigErrors { problems: errors.problems.into_iter().map(bare).collect() }),
    }
}

fn read_shape(text: &str, name: &str) -> Result<(Config, SourceText), ConfigErrors> {
    let source = SourceText::new(name, text);
    let root = DeTable::parse_recoverable(text);
    if !root.1.is_empty() {
        let mut problems: Vec<Problem> = root.1.iter().map(|e| syntax(&source, e)).collect();
        source.locate(&mut problems);
        problems.sort_by_key(|p| p.location.as_ref().map(|l| (l.line, l.column)));
        // One mistake often makes several errors on its line; the first is the one to fix.
        problems.dedup_by_key(|p| p.location.as_ref().map(|l| l.line));
        return Err(ConfigErrors { problems });
    }
    let root = root.0;
    let mut shape = Shape { source: &source, problems: Vec::new() };
    shape.root(root.get_ref());
    let mut problems = shape.problems;
    if !problems.is_empty() {
        source.locate(&mut problems);
        return Err(ConfigErrors { problems });
    }
    let config = Config::deserialize(toml::de::Deserializer::from(root))
        .map_err(|e| source.problem(e.span().unwrap_or(0..0), e.message(), ""))?;
    Ok((config, source))
}

/// Returns the problems if none is an error, and an error with all of them otherwise.
fn sorted_out(mut before: Vec<Problem>, problems: Vec<Problem>) -> Result<Vec<Problem>, ConfigErrors> {
    before.extend(problems);
    before.sort_by_key(|p| p.location.as_ref().map(|l| (l.line, l.column)));
    if before.iter().any(Problem::is_error) { Err(ConfigErrors { problems: before }) } else { Ok(before) }
}

fn syntax(source: &SourceText, error: &toml::de::Error) -> Problem {
    let help = match error.message() {
        m if m.contains("duplicate key") => "a key may stand once in its section; remove one",
        m if m.contains("string") => "put strings between double quotes",
        _ => "the file is TOML; https://toml.io says how it is written",
    };
    source.problem(error.span().unwrap_or(0..0), format!("not valid TOML: {}", error.message()), help)
}

struct Shape<'a> {
    source: &'a SourceText,
    problems: Vec<Problem>,
}

type Table<'i> = DeTable<'i>;
type Entry<'i> = Spanned<DeValue<'i>>;

impl Shape<'_> {
    fn report(&mut self, at: std::ops::Range<usize>, message: String, help: impl Into<String>) {
        self.problems.push(self.source.problem(at, message, help));
    }

    fn root(&mut self, root: &Table<'_>) {
        for (key, value) in root.iter() {
            let name: &str = key.get_ref();
            let Some(section) = schema::sections(name).next() else {
                let names = schema::section_names();
                let homes = homes_of(name);
                let help = match nearest::nearest(name, &names) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None if !homes.is_empty() => format!("it is a key of {}; write it below that line", homes.join(", ")),
                    None => nearest::one_of(&names),
                };
                self.report(key.span(), format!("no section is called \"{name}\""), help);
                continue;
            };
            match (section.many, value.get_ref()) {
                (false, DeValue::Table(table)) => self.section(section, table, value.span()),
                (true, DeValue::Array(entries)) => {
                    for entry in entries.iter() {
                        match entry.get_ref() {
                            DeValue::Table(table) => self.section(section, table, entry.span()),
                            other => self.report(
                                entry.span(),
                                format!("an entry of {name} is a table, not {}", article(other)),
                                format!("write [[{name}]] on a line, and its keys below"),
                            ),
                        }
                    }
                }
                (true, _) => self.report(
                    key.span(),
                    format!("there can be several of {name}, so each stands below double brackets"),
                    format!("write [[{name}]]"),
                ),
                (false, other) => self.report(
                    key.span(),
                    format!("{name} is one table, not {}", article(other)),
                    format!("write [{name}] on a line, once, and its keys below"),
                ),
            }
        }
    }

    fn section(&mut self, section: &Section, table: &Table<'_>, span: std::ops::Range<usize>) {
        let kind = table.get("kind").and_then(|k| k.get_ref().as_str());
        let own: Option<&Section> = match section.name {
            "port" => schema::sections("port").find(|s| Some(s.kind) == kind && !s.kind.is_empty()),
            _ => None,
        };
        // Only the common keys of a port of unknown kind can be checked.
        let lenient = section.name == "port" && own.is_none();
        let keys: Vec<&Key> = section.keys.iter().chain(own.iter().flat_map(|s| &s.keys)).collect();
        for (key, value) in table.iter() {
            let name: &str = key.get_ref();
            if let Some(known) = keys.iter().find(|k| k.name == name) {
                self.value(known, value);
            } else if !(lenient && homes_of(name).iter().any(|h| h.contains("kind"))) {
                self.unknown(section, own, &keys, name, key.span());
            }
        }
        for key in keys.iter().filter(|k| k.default == Preset::Needed && table.get(k.name).is_none()) {
            let title = match table.get("name").and_then(|n| n.get_ref().as_str()) {
                Some(name) => format!("{} \"{name}\"", section.name),
                None => format!("this {}", section.name),
            };
            self.report(span.clone(), format!("{title} lacks `{}`", key.name), format!("write {} = {}", key.name, sample(key)));
        }
    }

    fn unknown(&mut self, section: &Section, own: Option<&Section>, keys: &[&Key], name: &str, span: std::ops::Range<usize>) {
        let names: Vec<&str> = keys.iter().map(|k| k.name).collect();
        let homes = homes_of(name);
        let title = match own {
            Some(own) => format!("a port of kind \"{}\"", own.kind),
            None if section.many => format!("[[{}]]", section.name),
            None => format!("[{}]", section.name),
        };
        let help = match nearest::nearest(name, &names) {
            _ if !homes.is_empty() => format!("it is a key of {}", homes.join(", ")),
            Some(near) => format!("did you mean \"{near}\"?"),
            None => nearest::one_of(&names),
        };
        self.report(span, format!("{title} has no key \"{name}\""), help);
    }

    /// Checks a value, and the items in it, against the type of its key.
    fn value(&mut self, key: &Key, value: &Entry<'_>) {
        let found = value.get_ref();
        match (&key.takes, found) {
            (Type::Bool, DeValue::Boolean(_)) | (Type::Text | Type::Ports, DeValue::String(_)) => {}
            (Type::Path, DeValue::String(path)) => {
                if path.is_empty() || path.contains('\0') {
                    self.report(value.span(), format!("{} is no path", key.name), "write a path, or leave the key out");
                }
            }
            (Type::Integer(low, high), DeValue::Integer(_)) => self.integer(key.name, value, *low, *high),
            (Type::Number, DeValue::Integer(_) | DeValue::Float(_)) => self.number(key, value),
            (Type::Words(words), DeValue::String(word)) => {
                let words: Vec<&str> = words.iter().map(|word| word.name).collect();
                if !words.contains(&&**word) {
                    let help = match nearest::nearest(word, &words) {
                        Some(near) => format!("did you mean \"{near}\"?"),
                        None => nearest::one_of(&words),
                    };
                    self.report(value.span(), format!("{} cannot be \"{word}\"", key.name), help);
                }
            }
            (Type::Cores | Type::Texts | Type::Names, DeValue::Array(items)) => items.iter().for_each(|item| self.item(key, item)),
            (Type::TextTable, DeValue::Table(table)) => {
                for (_, item) in table.iter().filter(|(_, item)| !item.get_ref().is_str()) {
                    self.wrong_type(key, item.span(), item.get_ref());
                }
            }
            (Type::NumberTable, DeValue::Table(table)) => {
                let inner = Key { takes: Type::Number, ..key.clone() };
                table.iter().for_each(|(_, item)| self.value(&inner, item));
            }
            (Type::IntegerTable(low, high), DeValue::Table(table)) => {
                let inner = Key { takes: Type::Integer(*low, *high), ..key.clone() };
                table.iter().for_each(|(_, item)| self.value(&inner, item));
            }
            (Type::Keys(keys), DeValue::Table(table)) => self.inner_table(key, keys, table),
            (Type::Address, DeValue::String(text)) => {
                if text.parse::<std::net::IpAddr>().is_err() {
                    self.report(
                        value.span(),
                        format!("{text:?} is no IP address"),
                        "write it like \"192.0.2.1\" or \"2001:db8::1\"",
                    );
                }
            }
            (Type::Ports, DeValue::Integer(_)) => self.integer(key.name, value, 0, i64::from(u16::MAX)),
            (Type::Mix, DeValue::Array(pairs)) => pairs.iter().for_each(|pair| self.pair(key, pair)),
            _ => self.wrong_type(key, value.span(), found),
        }
    }

    fn number(&mut self, key: &Key, value: &Entry<'_>) {
        let found = value.get_ref();
        let number = match found {
            DeValue::Float(f) => f.as_str().parse::<f64>().ok(),
            other => integer(other).map(|i| i as f64),
        };
        match number {
            Some(number) if number.is_finite() && number >= 0.0 => {}
            // TOML integers have 64 bits.
            None if found.as_integer().is_some_and(|digits| !digits.as_str().starts_with('-')) => self.report(
                value.span(),
                format!("{} cannot be {}: a whole number is {} at most", key.name, written(found), i64::MAX),
                "write it with a point or an exponent, such as 1e6",
            ),
            _ => self.out_of_range(key.name, value, &key.takes),
        }
    }

    fn item(&mut self, key: &Key, item: &Entry<'_>) {
        match (&key.takes, item.get_ref()) {
            (Type::Cores, DeValue::Integer(_)) => self.integer(key.name, item, 0, MAX_CORE.into()),
            (Type::Texts | Type::Names, DeValue::String(_)) => {}
            (_, other) => self.wrong_type(key, item.span(), other),
        }
    }

    fn inner_table(&mut self, key: &Key, keys: &[Key], table: &Table<'_>) {
        for (name, item) in table.iter() {
            let written: &str = name.get_ref();
            match keys.iter().find(|inner| inner.name == written) {
                Some(inner) => self.value(inner, item),
                None => {
                    let names: Vec<&str> = keys.iter().map(|inner| inner.name).collect();
                    let help = nearest::hint(written, &names);
                    self.report(name.span(), format!("`{}` has no key \"{written}\"", key.name), help);
                }
            }
        }
    }

    fn pair(&mut self, key: &Key, pair: &Entry<'_>) {
        match pair.get_ref() {
            DeValue::Array(two) if two.len() == 2 && two.iter().all(|n| n.get_ref().is_integer()) => {
                let size = schema::SECTIONS.iter().flat_map(|s| &s.keys).find(|k| k.name == "size");
                let Some(Type::Integer(low, high)) = size.map(|k| &k.takes) else { return };
                self.integer("a size", &two[0], *low, *high);
                self.integer("a weight", &two[1], 1, i64::from(u32::MAX));
            }
            other => self.wrong_type(key, pair.span(), other),
        }
    }

    fn wrong_type(&mut self, key: &Key, span: std::ops::Range<usize>, found: &DeValue<'_>) {
        let (name, takes) = (key.name, &key.takes);
        let help = match (takes, found) {
            // A scalar where a list of one is needed.
            (Type::Texts | Type::Names, DeValue::String(text)) => format!("write {name} = [{}]", toml::Value::from(&**text)),
            (Type::Cores, DeValue::Integer(core)) => format!("write {name} = [{core}]"),
            _ if name == "rate" => format!("write packets per second as a number, such as {name} = {}", sample(key)),
            _ => format!("write {name} = {}", sample(key)),
        };
        self.report(span, format!("{name} takes {}, not {}", takes.words(), article(found)), help);
    }

    fn integer(&mut self, name: &str, value: &Entry<'_>, low: i64, high: i64) {
        if !integer(value.get_ref()).is_some_and(|n| (low..=high).contains(&n)) {
            self.out_of_range(name, value, &Type::Integer(low, high));
        }
    }

    fn out_of_range(&mut self, name: &str, value: &Entry<'_>, takes: &Type) {
        let written = written(value.get_ref());
        self.report(value.span(), format!("{name} cannot be {written}"), format!("write {}", takes.words()));
    }
}

/// A number as it is written, or the type of another value.
fn written(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(i) => i.to_string(),
        DeValue::Float(f) => f.to_string(),
        other => other.type_str().into(),
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// The type of a value, with its article.
fn article(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(true) => "true",
        DeValue::Boolean(false) => "false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// A value that a key takes, as TOML.
fn sample(key: &Key) -> String {
    match (&key.default, &key.takes) {
        // Not the default, "as fast as possible": users copy the sample.
        (_, Type::Number) if key.name == "rate" => "1e6".into(),
        (Preset::Value(value), Type::Bool | Type::Integer(..) | Type::Number | Type::Words(_) | Type::Cores | Type::Path) => {
            value.clone()
        }
        (_, Type::Bool) => "true".into(),
        (_, Type::Integer(low, _)) => low.to_string(),
        (_, Type::Number) => "1000".into(),
        (_, Type::Words(words)) => format!("{:?}", words[0].name),
        (_, Type::Cores) => "[0, 1]".into(),
        (_, Type::Texts | Type::Names) => "[\"a\", \"b\"]".into(),
        (_, Type::TextTable) => "{ NAME = \"value\" }".into(),
        (_, Type::NumberTable) => "{ NAME = 2.0 }".into(),
        (_, Type::IntegerTable(..)) => "{ NAME = 2048 }".into(),
        (_, Type::Keys(keys)) => match keys.first() {
            Some(first) => format!("{{ {} = {} }}", first.name, sample(first)),
            None => "{ }".into(),
        },
        (_, Type::Address) => "\"192.0.2.1\"".into(),
        (_, Type::Ports) => "80".into(),
        (_, Type::Mix) => "[[60, 7], [1514, 1]]".into(),
        (_, Type::Text | Type::Path) => "\"…\"".into(),
    }
}

/// The sections that have a key of this name, as they are written in TOML.
fn homes_of(name: &str) -> Vec<String> {
    let homes = schema::SECTIONS.iter().filter(|s| s.keys.iter().any(|k| k.name == name));
    homes
        .map(|s| match (s.many, s.kind) {
            (false, _) => format!("[{}]", s.name),
            (true, "") => format!("[[{}]]", s.name),
            (true, kind) => format!("[[port]] of kind \"{kind}\""),
        })
        .collect()
}
