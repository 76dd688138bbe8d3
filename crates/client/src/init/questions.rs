//! What `sluice init` asks on a terminal, where no option says it.
//!
//! Each question has an answer that Enter gives; all of these together are the example that is
//! written where there is no terminal. A wrong answer is explained, and the question comes again.
//!
//! Limits: one way for packets, and the way back. Arguments of an NF cannot have commas here.

use std::fs;
use std::io::{BufRead, Write};
use std::path::Path;

use anyhow::ensure;
use sluice_api::nearest;
use sluice_config::host::{Host, resolve_exec};

use crate::needs;

/// The values of options that the answers stand for.
#[derive(Debug, PartialEq, Eq)]
pub struct Answers {
    pub ports: Vec<String>,
    pub nfs: Vec<String>,
    pub chains: Vec<String>,
}

/// Where questions go, and answers come from.
pub struct Dialog<'a> {
    pub input: &'a mut dyn BufRead,
    pub out: &'a mut dyn Write,
}

impl Dialog<'_> {
    /// Asks until an answer is right; `fault` says what is wrong with one.
    fn ask(&mut self, question: &str, fault: impl Fn(&str) -> Option<String>) -> anyhow::Result<String> {
        loop {
            write!(self.out, "{question}: ")?;
            self.out.flush()?;
            let mut answer = String::new();
            ensure!(
                self.input.read_line(&mut answer)? > 0,
                "nothing was written: a question has no answer; give options instead, which `sluice init --help` lists"
            );
            match fault(answer.trim()) {
                None => return Ok(answer.trim().into()),
                Some(fault) => writeln!(self.out, "  {fault}")?,
            }
        }
    }
}

/// Asks where packets come in, what they pass, and where they leave.
///
/// # Errors
/// The answers end, or cannot be read.
pub fn ask(host: &Host, dialog: &mut Dialog<'_>) -> anyhow::Result<Answers> {
    let interfaces = interfaces(host);
    let list = if interfaces.is_empty() { "none here".into() } else { interfaces.join(", ") };
    let question = format!("Interface where packets come in ({list}; Enter: they are generated)");
    let from = dialog.ask(&question, |name| unknown(name, &interfaces))?;
    let others: Vec<String> = interfaces.into_iter().filter(|other| *other != from).collect();
    let to = dialog.ask("Interface where they leave (Enter: they are counted, and gone)", |name| unknown(name, &others))?;
    let question = "NFs that they pass, as NAME or NAME=PROGRAM with arguments, with commas between (Enter: monitor)";
    let fault = |list: &str| {
        let all = listed(list);
        all.iter().find_map(|nf| nf_fault(nf, host)).or_else(|| twice(&all))
    };
    let nfs = listed(&dialog.ask(question, fault)?);
    let names: Vec<&str> = nfs.iter().map(|nf| name_of(nf)).collect();
    let mut chains = vec![format!("in:{}:out", names.join(","))];
    if !from.is_empty() && !to.is_empty() {
        let fault = |word: &str| (!["", "y", "yes", "n", "no"].contains(&word)).then(|| String::from("write y or n"));
        if !dialog.ask("Others come back by the same NFs (y/n; Enter: y)", fault)?.starts_with('n') {
            let back: Vec<&str> = names.iter().rev().copied().collect();
            chains.push(format!("out:{}:in", back.join(",")));
        }
    }
    let port = |name: &str, interface: &str, without: &str| match interface {
        "" => format!("{name}={without}"),
        interface => format!("{name}=af_packet:interface={interface}"),
    };
    Ok(Answers { ports: vec![port("in", &from, "gen:rate=1000"), port("out", &to, "sink")], nfs, chains })
}

/// The host's interfaces but its loopback, which cannot be a port.
fn interfaces(host: &Host) -> Vec<String> {
    let entries = fs::read_dir(host.root.join("sys/class/net")).into_iter().flatten().flatten();
    let names = entries.filter(|entry| entry.path().is_dir()).filter_map(|entry| entry.file_name().into_string().ok());
    let mut all: Vec<String> = names.filter(|name| name != "lo").collect();
    all.sort_unstable();
    all
}

/// What is wrong with an interface that is none of these. Without a name there is none to find.
fn unknown(name: &str, interfaces: &[String]) -> Option<String> {
    let known: Vec<&str> = interfaces.iter().map(String::as_str).collect();
    let is_fine = name.is_empty() || known.contains(&name);
    (!is_fine).then(|| format!("no interface to choose is called {name:?}; {}", nearest::hint(name, &known)))
}

/// The NFs of an answer.
fn listed(answer: &str) -> Vec<String> {
    let all: Vec<String> = answer.split(',').map(str::trim).filter(|nf| !nf.is_empty()).map(str::to_owned).collect();
    if all.is_empty() { vec!["monitor".into()] } else { all }
}

fn name_of(nf: &str) -> &str {
    nf.split_once('=').map_or(nf, |(name, _)| name)
}

/// What is wrong with NFs of which two have one name.
fn twice(all: &[String]) -> Option<String> {
    let is_second = |(i, nf): &(usize, &String)| all[..*i].iter().any(|other| name_of(other) == name_of(nf));
    let (_, nf) = all.iter().enumerate().find(is_second)?;
    Some(format!(
        "{0} comes twice: give one of them another name, as in other={1}",
        name_of(nf),
        nf.split_once('=').map_or_else(|| format!("sluice-nf-{nf}"), |(_, program)| program.into())
    ))
}

/// What is wrong with an NF: its program is not there, or needs arguments.
fn nf_fault(nf: &str, host: &Host) -> Option<String> {
    let (name, program) = nf.split_once('=').unwrap_or((nf, ""));
    let Some(exec) = program.split_whitespace().next() else {
        let usual = needs::usual(name).map(|args| args.join(" "));
        return match usual.or(needs::needed(name).map(str::to_owned)) {
            Some(args) => Some(format!("{name} needs arguments, such as {name}=sluice-nf-{name} {args}")),
            None => resolve_exec(Path::new(&format!("sluice-nf-{name}")), host).err(),
        };
    };
    // A path counts from the file's folder, which is this one unless it is named otherwise.
    let whole = std::path::absolute(exec).ok().filter(|_| exec.contains('/'));
    resolve_exec(whole.as_deref().unwrap_or(Path::new(exec)), host).err()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A host with two interfaces and the programs of two NFs.
    fn host() -> (tempfile::TempDir, Host) {
        let folder = tempfile::tempdir().unwrap();
        for name in ["lo", "eth0", "eth1"] {
            fs::create_dir_all(folder.path().join("sys/class/net").join(name)).unwrap();
        }
        fs::write(folder.path().join("sys/class/net/bonding_masters"), "").unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        for name in ["monitor", "nat"] {
            let program = folder.path().join("bin").join(format!("sluice-nf-{name}"));
            fs::write(&program, "").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let host = Host { root: folder.path().into(), beside: Some("/bin".into()), path: Vec::new(), ..Host::here() };
        (folder, host)
    }

    fn asked(host: &Host, answers: &str) -> (anyhow::Result<Answers>, String) {
        let mut out = Vec::new();
        let answers = ask(host, &mut Dialog { input: &mut answers.as_bytes(), out: &mut out });
        (answers, String::from_utf8(out).unwrap())
    }

    fn words(all: &[&str]) -> Vec<String> {
        all.iter().map(|word| word.to_string()).collect()
    }

    #[test]
    fn enter_everywhere_is_the_example() {
        let (_folder, host) = host();
        let (answers, said) = asked(&host, "\n\n\n");
        let example = Answers {
            ports: words(&["in=gen:rate=1000", "out=sink"]),
            nfs: words(&["monitor"]),
            chains: words(&["in:monitor:out"]),
        };
        assert_eq!(answers.unwrap(), example);
        assert!(said.contains("(eth0, eth1; Enter: they are generated)") && !said.contains("come back"), "{said}");
    }

    #[test]
    fn between_two_interfaces_there_is_a_way_back() {
        let (_folder, host) = host();
        let nat = "nat=sluice-nf-nat --outside 192.0.2.1";
        let (answers, _) = asked(&host, &format!("eth0\neth1\nmonitor, {nat}\n\n"));
        let answers = answers.unwrap();
        assert_eq!(answers.ports, ["in=af_packet:interface=eth0", "out=af_packet:interface=eth1"]);
        assert_eq!(answers.nfs, ["monitor", nat]);
        assert_eq!(answers.chains, ["in:monitor,nat:out", "out:nat,monitor:in"]);
        let (answers, _) = asked(&host, "eth1\neth0\n\nno\n");
        assert_eq!(answers.unwrap().chains, ["in:monitor:out"]);
    }

    #[test]
    fn a_wrong_answer_is_explained_and_asked_for_again() {
        let (_folder, host) = host();
        let (answers, said) =
            asked(&host, "eht0\nlo\neth0\neth0\neth1\nfirewall\nbrige\nnat=sluice-nf-none -x\nmonitor\nmaybe\ny\n");
        assert_eq!(answers.unwrap().chains.len(), 2);
        for wanted in [
            "no interface to choose is called \"eht0\"; did you mean \"eth0\"?",
            "no interface to choose is called \"lo\"",
            "no interface to choose is called \"eth0\"; did you mean \"eth1\"?",
            "firewall needs arguments, such as firewall=sluice-nf-firewall --rules RULES",
            "there is no program sluice-nf-brige",
            "there is no program sluice-nf-none",
            "write y or n",
        ] {
            assert!(said.contains(wanted), "{wanted}: {said}");
        }
    }

    #[test]
    fn answers_that_end_write_nothing() {
        let (_folder, host) = host();
        let error = asked(&host, "eth0\n").0.unwrap_err().to_string();
        assert!(error.contains("nothing was written") && error.contains("sluice init --help"), "{error}");
    }
}
