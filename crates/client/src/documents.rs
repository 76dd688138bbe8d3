//! Checks that every command in documents and help texts exists on the command line.
//!
//! A command is what follows `sluice` in a code span, or in a line of a code block or of an
//! example. In a span it may be a part of one (`sluice nf move`); elsewhere it is whole, with
//! capitals as placeholders. Limits: a value's meaning is not checked, only that the key takes one;
//! of programs only the name is checked.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Command, CommandFactory};

use crate::args::Cli;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// A command in a text.
#[derive(Debug)]
struct Named {
    text: String,
    /// Whether it is in a code span, which may name a part.
    is_span: bool,
}

/// The rest of a text that begins with a program's name as a word.
fn after<'a>(text: &'a str, program: &str) -> Option<&'a str> {
    text.strip_prefix(program).filter(|rest| rest.is_empty() || rest.starts_with([' ', '\n']))
}

/// The commands of a program in a Markdown text.
fn named(text: &str, program: &str) -> Vec<Named> {
    let mut all = Vec::new();
    let mut prose = String::new();
    let mut is_code = false;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            // A span does not cross a block.
            prose.push_str("\n\n");
            continue;
        }
        if !is_code && !line.starts_with("    ") {
            prose.push_str(line);
            prose.push('\n');
            continue;
        }
        // A backslash at its end continues the line.
        let mut line = line.to_string();
        while let Some(begun) = line.strip_suffix('\\') {
            line = format!("{begun}{}", lines.next().unwrap_or_default().trim_start());
        }
        all.extend(in_shell(&line, program));
    }
    for paragraph in prose.split("\n\n") {
        let spans = paragraph.split('`').skip(1).step_by(2);
        let spans = spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" "));
        all.extend(spans.filter(|span| after(span, program).is_some()).map(|text| Named { text, is_span: true }));
    }
    all
}

/// The commands of a program in a line of a shell, or of an example: where a command may begin.
fn in_shell(line: &str, program: &str) -> Vec<Named> {
    let line = line.split(" #").next().unwrap_or_default();
    let begins = line.split("| ").flat_map(|part| part.split("&& ")).flat_map(|part| part.split("; "));
    let is_it = |part: &str| {
        let part = part.trim_start().trim_start_matches("$ ");
        after(part, program).map(|_| Named { text: part.to_string(), is_span: false })
    };
    begins.filter_map(is_it).collect()
}

/// The words of a command, without shell syntax.
fn words(command: &Named) -> Vec<String> {
    // An example's explanation follows its command after two spaces.
    let text = command.text.split("  ").next().unwrap_or_default();
    let words = shlex::split(text).unwrap_or_else(|| text.split_whitespace().map(str::to_owned).collect());
    words.into_iter().take_while(|word| !["|", ">", "<", "&", "&&", "…"].contains(&word.as_str())).collect()
}

/// The error of a command of `sluice`.
fn fault(command: &Named) -> Option<String> {
    let words = words(command);
    let wrong = |error: &clap::Error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => false,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingRequiredArgument | ErrorKind::MissingSubcommand => {
            !command.is_span
        }
        ErrorKind::InvalidValue if command.is_span && error.to_string().contains("a value is required") => false,
        // A word in capitals is a placeholder.
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            !words.iter().any(|word| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase()) || word == "N")
        }
        _ => true,
    };
    let error = Cli::command().try_get_matches_from(&words).err().filter(wrong)?;
    Some(format!("`{}`: {}", command.text, error.to_string().lines().next().unwrap_or_default()))
}

/// The help texts of a command and its subcommands.
fn help_of(command: &mut Command, texts: &mut Vec<String>) {
    texts.push(command.render_long_help().to_string());
    command.get_subcommands_mut().for_each(|inner| help_of(inner, texts));
}

/// The files below a folder whose names end so.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let inner = |path: PathBuf| if path.is_dir() { files(&path, end) } else { vec![path] };
    let all = entries.flat_map(inner);
    all.filter(|path| path.to_string_lossy().ends_with(end)).collect()
}

fn documents() -> Vec<(String, String)> {
    let names = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "fuzz/README.md"].map(|name| root().join(name));
    let all = names.into_iter().chain(files(&root().join("docs/src"), ".md"));
    all.map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())).collect()
}

#[test]
fn commands_of_documents_are_commands() {
    let mut faults = Vec::new();
    let mut found = 0;
    for (name, text) in documents() {
        let commands = named(&text, "sluice");
        found += commands.len();
        faults.extend(commands.iter().filter_map(fault).map(|fault| format!("{name}: {fault}")));
    }
    assert!(found > 150, "only {found} are found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn commands_of_help_texts_are_commands() {
    let mut command = Cli::command();
    command.build();
    let mut texts = Vec::new();
    help_of(&mut command, &mut texts);
    // sluiced's own help is in its source, beside the messages of daemon and lab.
    let sources = ["crates/daemon/src", "crates/manager/src", "crates/lab/src"]
        .into_iter()
        .flat_map(|folder| files(&root().join(folder), ".rs"));
    let source = |path: PathBuf| fs::read_to_string(path).unwrap();
    let (mut found, mut faults) = (0, Vec::new());
    for text in &texts {
        let lines = text.lines().flat_map(|line| in_shell(line, "sluice"));
        let commands: Vec<Named> = lines.chain(named(text, "sluice")).collect();
        found += commands.len();
        faults.extend(commands.iter().filter_map(fault));
    }
    for text in sources.map(source) {
        // Spans of comments and messages may continue in the next line, behind `///` or `//!`.
        let text = text.replace("\\\n", " ").replace("///", " ").replace("//!", " ");
        let begun = text.split("`sluice ").skip(1).filter_map(|rest| rest.split_once('`'));
        let spans = begun.map(|(span, _)| span.split_whitespace().collect::<Vec<_>>().join(" "));
        let commands = spans.map(|span| Named { text: format!("sluice {span}"), is_span: true });
        // A brace is a placeholder of the message.
        faults.extend({ commands }.filter(|command| !command.text.contains('{')).filter_map(|command| fault(&command)));
    }
    faults.sort();
    faults.dedup();
    assert!(found > 60, "only {found} are found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn programs_of_documents_are_programs() {
    // Each is a package of the workspace, or a program of one.
    let manifests: String =
        files(&root().join("nfs"), "Cargo.toml").into_iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let mut faults = Vec::new();
    for (name, text) in documents() {
        let spans = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        for program in spans.filter(|word| word.starts_with("sluice-nf-") && !word.ends_with('-')) {
            // NAME is a placeholder.
            let is_known =
                program == "sluice-nf-NAME" || program == "sluice-nf-parts" || manifests.contains(&format!("name = \"{program}\""));
            if !is_known {
                faults.push(format!("{name}: there is no program {program}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_command_that_is_none_is_found() {
    let text = "See `sluice show\nchains`, `sluice chain list` and `sluice nf`.\n\n```sh\nsluice check a.toml   # good\nsluice stop --now\n\
                sluiced a.toml & sluice top\n```\n";
    let faults: Vec<String> = named(text, "sluice").iter().filter_map(fault).collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].contains("--now") && faults[1].contains("show"), "{faults:?}");
}
