//! Commands that change the configuration of a running daemon: apply, set, undo.
//!
//! Each plans first where a person is there to be asked, prints the plan like a diff, and goes on
//! after a yes. In scripts, where standard input or error is no terminal, nothing is asked.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use sluice_api::change::{Action, Change, SetKeys, Undo};
use sluice_api::client::{Client, ClientError};
use sluice_api::model::{Applied, Apply};
use sluice_cli::table::colour;
use sluice_cli::usage::{Usage, json, read};
use sluice_config::{edit, load};

use crate::args::{ApplyArgs, Caution, SetArgs, UndoArgs};
use crate::{save, show};

/// `sluice apply`.
pub fn apply(client: &mut Client, args: &ApplyArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let text = read(&args.config)?;
    // The absolute path: relative paths in the file start at its folder, which the daemon must
    // know.
    let file = std::fs::canonicalize(&args.config).ok().map(|path| path.display().to_string());
    let request = |dry_run| Apply { config: text.clone(), file: file.clone(), dry_run };
    let nothing = "nothing to change: sluiced runs this configuration already";
    carry_out(args.how, out, nothing, |dry_run| client.apply(&request(dry_run)))
}

/// `sluice set`. Asks nothing: what is to change was just written.
pub fn set(client: &mut Client, args: &SetArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let set = keys_of(args)?;
    let saved = match args.save {
        true => Some(to_save(client, &set)?),
        false => None,
    };
    let how = Caution { dry_run: args.dry_run, yes: true, json: args.json };
    carry_out(how, out, "nothing to change: sluiced runs with this already", |dry_run| {
        client.set(&SetKeys { dry_run, ..set.clone() })
    })?;
    if let Some((path, text)) = saved.filter(|_| !args.dry_run) {
        let failed = || format!("sluiced has changed, and {} could not be written", path.display());
        save::write(&path, &text).with_context(failed)?;
        if !args.json {
            writeln!(out, "saved in {}", path.display())?;
        }
    }
    Ok(())
}

/// `sluice undo`.
pub fn undo(client: &mut Client, args: &UndoArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let history = client.history()?;
    if args.list {
        return match (args.how.json, history.is_empty()) {
            (true, _) => json(out, &history),
            (false, true) => Ok(writeln!(out, "nothing is kept: no configuration was applied, and no key set")?),
            (false, false) => Ok(show::history(&history).print(out, colour())?),
        };
    }
    let found = history.iter().find(|former| args.to.is_none_or(|to| to == former.number));
    // Without one the daemon says what is wrong.
    if let Some(former) = found.filter(|_| !args.how.json) {
        writeln!(out, "back to configuration {}, {}", former.number, show::until(former))?;
    }
    // The one that was shown, whatever happens meanwhile.
    let to = found.map(|former| former.number).or(args.to);
    carry_out(args.how, out, "nothing to change: sluiced runs that configuration", |dry_run| client.undo(Undo { to, dry_run }))
}

/// What `sluice set KIND [NAME] KEY=VALUE...` sets.
fn keys_of(args: &SetArgs) -> Result<SetKeys, Usage> {
    let name = args.rest.first().filter(|word| !word.contains('=')).cloned();
    let keys = args.rest.iter().skip(usize::from(name.is_some())).map(String::as_str);
    let keys = edit::arguments(keys).map_err(Usage)?;
    if keys.is_empty() {
        return Err(Usage("no key is given; write KEY=VALUE, such as priority=2".into()));
    }
    Ok(SetKeys { kind: args.kind.clone(), name, keys, dry_run: args.dry_run })
}

/// The daemon's configuration file, and its text with these keys, which is valid.
fn to_save(client: &mut Client, set: &SetKeys) -> anyhow::Result<(PathBuf, String)> {
    let path = save::file_of(&client.status()?).map_err(|why| anyhow!(why))?;
    let text = read(&path)?;
    let wrong = |why: String| {
        anyhow!("{} cannot take it, so nothing was changed: {why}; leave --save out, or mend the file", path.display())
    };
    let text = save::edited(&text, set).map_err(wrong)?;
    load::read_text(&text, &path.display().to_string())?;
    Ok((path, text))
}

/// Plans a change, prints it, asks if somebody is there, and makes it. `change` takes whether it is
/// only planned; `nothing` says that there is nothing to do.
fn carry_out(
    how: Caution,
    out: &mut dyn Write,
    nothing: &str,
    mut change: impl FnMut(bool) -> Result<Applied, ClientError>,
) -> anyhow::Result<()> {
    if !how.asks() {
        let applied = change(how.dry_run)?;
        if how.json {
            return json(out, &applied);
        }
        if said(out, &applied, nothing)? {
            let rest = if applied.dry_run { "; nothing was done, as asked" } else { " done" };
            writeln!(out, "{}{rest}", count(&applied))?;
        }
        return Ok(());
    }
    let plan = change(true)?;
    if !said(out, &plan, nothing)? {
        return Ok(());
    }
    out.flush()?;
    if !confirmed(&format!("make {}?", count(&plan)))? {
        return Ok(writeln!(out, "nothing was changed")?);
    }
    let applied = change(false)?;
    if applied.changes != plan.changes {
        writeln!(out, "sluiced had changed meanwhile; this was done instead:")?;
        said(out, &applied, nothing)?;
    }
    Ok(writeln!(out, "{} done", count(&applied))?)
}

impl Caution {
    /// Whether a person is there to be asked, and is to be.
    fn asks(&self) -> bool {
        let is_silent = self.yes || self.dry_run || self.json;
        !is_silent && io::stdin().is_terminal() && io::stderr().is_terminal()
    }
}

/// Asks on the terminal. Anything but a yes is a no.
fn confirmed(question: &str) -> io::Result<bool> {
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

fn count(applied: &Applied) -> String {
    match applied.changes.len() {
        1 => "1 change".into(),
        n => format!("{n} changes"),
    }
}

/// Prints warnings and changes. Returns whether there are changes.
fn said(out: &mut dyn Write, applied: &Applied, nothing: &str) -> io::Result<bool> {
    applied.warnings.iter().for_each(|warning| eprintln!("{warning}"));
    if applied.changes.is_empty() {
        writeln!(out, "{nothing}")?;
        return Ok(false);
    }
    applied.changes.iter().try_for_each(|change| diff(out, change, colour()))?;
    Ok(true)
}

/// Prints a change like a diff: its keys before and after, if they are known, or else in words.
fn diff(out: &mut dyn Write, change: &Change, colour: bool) -> io::Result<()> {
    const RED: &str = "31";
    const GREEN: &str = "32";
    let line = |out: &mut dyn Write, code: &str, text: String| match colour {
        true => writeln!(out, "\x1b[{code}m{text}\x1b[0m"),
        false => writeln!(out, "{text}"),
    };
    let head = match change.action {
        Action::Add => GREEN,
        Action::Remove => RED,
        Action::Change | Action::Restart => "33",
    };
    if change.keys.is_empty() {
        return line(out, head, change.to_string());
    }
    line(out, head, format!("{} {} {}", change.action.sign(), change.kind, change.name))?;
    for key in &change.keys {
        if let Some(before) = &key.before {
            line(out, RED, format!("-     {} = {before}", key.key))?;
        }
        if let Some(after) = &key.after {
            line(out, GREEN, format!("+     {} = {after}", key.key))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sluice_api::change::ChangedKey;

    use super::*;

    fn printed(change: &Change, colour: bool) -> String {
        let mut out = Vec::new();
        diff(&mut out, change, colour).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_change_is_printed_like_a_diff() {
        let key = |key: &str, before: Option<&str>, after: Option<&str>| ChangedKey {
            key: key.into(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
        };
        let keys = vec![key("args", None, Some("-v")), key("ring", Some("256"), Some("512")), key("user", Some("x"), None)];
        let detail = "in words".to_string();
        let change = Change { action: Action::Change, kind: "service".into(), name: "fw".into(), detail, keys };
        let lines = "~ service fw\n+     args = -v\n-     ring = 256\n+     ring = 512\n-     user = x\n";
        assert_eq!(printed(&change, false), lines);
        assert!(printed(&change, true).contains("\x1b[31m-     ring = 256\x1b[0m\n\x1b[32m+     ring = 512\x1b[0m\n"));
        let change = Change { keys: Vec::new(), ..change };
        assert_eq!(printed(&change, false), "~ service fw: in words\n");
    }

    #[test]
    fn the_words_of_set_are_a_name_if_there_is_one_and_keys() {
        let of = |words: &str| {
            let mut words = words.split(' ').map(str::to_owned);
            let args = SetArgs { kind: words.next().unwrap(), rest: words.collect(), save: false, dry_run: false, json: false };
            keys_of(&args)
        };
        let set = of("service ids priority=2").unwrap();
        assert_eq!((set.name.as_deref(), set.keys.len(), &set.keys["priority"]), (Some("ids"), 1, &2.into()));
        assert_eq!(of("sched ecn=false").unwrap().name, None);
        assert!(of("service ids").unwrap_err().to_string().contains("no key is given"));
        assert!(of("sched ecn=false x").unwrap_err().to_string().contains("KEY=VALUE"));
    }
}
