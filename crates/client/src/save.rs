//! Keys of a configuration in its file: `sluice set --save`.
//!
//! The file keeps its comments, its order and its layout; only the values of the keys differ. The
//! daemon may run more than the file says, so what is saved is the keys and not what runs.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use sluice_api::change::SetKeys;
use sluice_api::model::Status;
use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, TomlError, Value};

/// The daemon's configuration file, as this process finds it.
///
/// # Errors
/// Why there is none, in one sentence.
pub fn file_of(status: &Status) -> Result<PathBuf, String> {
    let path = status.config.as_ref().ok_or("the daemon has no configuration file; leave --save out")?;
    // A relative path counts from the folder of the daemon's start.
    let whole = Path::new("/proc").join(status.pid.to_string()).join("cwd").join(path);
    fs::canonicalize(&whole).map_err(|error| format!("cannot find {path}, the daemon's configuration: {error}; leave --save out"))
}

/// A text with keys changed.
///
/// # Errors
/// What the file does not have, in one sentence.
pub fn edited(text: &str, set: &SetKeys) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error: TomlError| error.to_string())?;
    in_object(document.as_table_mut(), set)?;
    Ok(document.to_string())
}

fn in_object(root: &mut Table, set: &SetKeys) -> Result<(), String> {
    let kind = set.kind.as_str();
    let Some(name) = set.name.as_deref() else {
        let section = root.entry(kind).or_insert_with(|| Item::Table(Table::new()));
        let section = section.as_table_like_mut().ok_or_else(|| format!("its {kind} is no table"))?;
        return put_all(section, set);
    };
    let missing = || format!("it has no {kind} with the name {name:?}");
    match root.get_mut(kind) {
        Some(Item::ArrayOfTables(tables)) => {
            let found = tables.iter_mut().find(|table| table.get("name").and_then(Item::as_str) == Some(name));
            put_all(found.ok_or_else(missing)?, set)
        }
        Some(Item::Value(Value::Array(entries))) => {
            let mut tables = entries.iter_mut().filter_map(Value::as_inline_table_mut);
            let found = tables.find(|table| table.get("name").and_then(Value::as_str) == Some(name));
            put_all(found.ok_or_else(missing)?, set)
        }
        _ => Err(missing()),
    }
}

fn put_all(table: &mut dyn TableLike, set: &SetKeys) -> Result<(), String> {
    for (key, value) in &set.keys {
        let steps: Vec<&str> = key.split('.').collect();
        put(table, &steps, value)?;
    }
    Ok(())
}

/// Puts a value at a path, or removes it for a null.
fn put(table: &mut dyn TableLike, path: &[&str], value: &Json) -> Result<(), String> {
    let Some((key, rest)) = path.split_first() else { return Ok(()) };
    if !rest.is_empty() {
        let inner = table.entry(key).or_insert_with(|| Item::Value(Value::InlineTable(InlineTable::new())));
        return put(inner.as_table_like_mut().ok_or_else(|| format!("its {key} is no table"))?, rest, value);
    }
    if value.is_null() {
        table.remove(key);
        return Ok(());
    }
    let written = toml::Value::try_from(value).map_err(|error| error.to_string())?.to_string();
    let mut new: Value = written.parse().map_err(|error: TomlError| error.to_string())?;
    match table.get_mut(key) {
        Some(item) => {
            if let Some(old) = item.as_value() {
                // With the comment behind it.
                *new.decor_mut() = old.decor().clone();
            }
            *item = Item::Value(new);
        }
        None => _ = table.insert(key, Item::Value(new)),
    }
    Ok(())
}

/// Replaces a file, which keeps its owner and its mode.
///
/// # Errors
/// The system's; the file is as it was.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
    let new = path.with_file_name(format!(".{name}.sluice-{}", std::process::id()));
    let replaced = (|| {
        let before = fs::metadata(path)?;
        // At no time can others read what they could not before.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        // Only root may, and only where it differs.
        let _ = fchown(&file, Some(before.uid()), Some(before.gid()));
        file.set_permissions(before.permissions())?;
        file.sync_all()?;
        fs::rename(&new, path)
    })();
    if replaced.is_err() {
        let _ = fs::remove_file(&new);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Ours.\n[sched]   # shares\necn = true # marks\n\n[[service]]\nname = \"ids\"\nexec = \"ids\"\npriority = 1   # low\n\n\
                        [[service]]\nname = \"fw\" # first\n";

    fn set(kind: &str, name: Option<&str>, keys: &[(&str, Json)]) -> SetKeys {
        let keys = keys.iter().map(|(key, value)| (key.to_string(), value.clone())).collect();
        SetKeys { kind: kind.into(), name: name.map(str::to_owned), keys, dry_run: false }
    }

    #[test]
    fn only_the_value_differs() {
        let text = edited(TEXT, &set("service", Some("ids"), &[("priority", 2.into())])).unwrap();
        assert_eq!(text, TEXT.replace("priority = 1   # low", "priority = 2   # low"));
        let text = edited(TEXT, &set("sched", None, &[("ecn", false.into()), ("high_watermark", 70.into())])).unwrap();
        assert_eq!(text, TEXT.replace("ecn = true # marks\n", "ecn = false # marks\nhigh_watermark = 70\n"));
        let text = edited(TEXT, &set("service", Some("ids"), &[("priority", Json::Null)])).unwrap();
        assert_eq!(text, TEXT.replace("priority = 1   # low\n", ""));
        let text = edited(TEXT, &set("manager", None, &[("log_level", "warn".into())])).unwrap();
        assert_eq!(text.parse::<toml::Table>().unwrap()["manager"]["log_level"].as_str(), Some("warn"));
        assert!(text.starts_with(TEXT), "{text}");
    }

    #[test]
    fn entries_may_be_inline_and_keys_nested() {
        let inline = "service = [{ name = \"ids\", pool = { min = 1 } }, { name = \"fw\" }]\n";
        let text = edited(inline, &set("service", Some("ids"), &[("pool.min", 2.into())])).unwrap();
        assert_eq!(text, inline.replace("min = 1", "min = 2"));
        let text = edited(inline, &set("service", Some("fw"), &[("pool.max", 9.into())])).unwrap();
        assert_eq!(text.parse::<toml::Table>().unwrap()["service"][1]["pool"]["max"].as_integer(), Some(9));
    }

    #[test]
    fn what_the_file_does_not_have_is_reported() {
        let said = edited(TEXT, &set("service", Some("nat"), &[("priority", 2.into())])).unwrap_err();
        assert_eq!(said, "it has no service with the name \"nat\"");
        let said = edited(TEXT, &set("rule", Some("rule.0"), &[("priority", 2.into())])).unwrap_err();
        assert!(said.contains("rule.0"), "{said}");
        let said = edited(TEXT, &set("service", Some("ids"), &[("exec.x", 2.into())])).unwrap_err();
        assert_eq!(said, "its exec is no table");
        assert!(edited("[", &set("sched", None, &[])).is_err());
    }

    #[test]
    fn a_file_is_replaced_with_its_mode() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        write(&path, "new").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), fs::metadata(&path).unwrap().mode() & 0o777), ("new", 0o640));
        assert!(write(&folder.path().join("none/a.toml"), "new").is_err());
        // What has the name of the new file is not written to.
        let other = folder.path().join("other");
        fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, folder.path().join(format!(".a.toml.sluice-{}", std::process::id()))).unwrap();
        assert_eq!(write(&path, "newer").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        write(&path, "newer").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), fs::read_to_string(&other).unwrap()), ("newer".into(), "other".into()));
        fs::remove_file(&other).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
