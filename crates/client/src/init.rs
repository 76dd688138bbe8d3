//! `sluice init`: a first configuration, made of options, or of answers on a terminal.

mod questions;

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use sluice_cli::usage::Usage;
use sluice_config::host::Host;
use sluice_config::load;
use toml::Value;

use crate::values::{inline, value};
use questions::{Answers, Dialog};

/// Help text below the options of `sluice init`.
pub const HELP: &str = "\
Examples:
  sluice init                  ask, and write sluice.toml; Enter everywhere makes a chain that runs on any host
  sluice init edge.toml --port lan=af_packet:interface=eth1 --port wan=af_packet:interface=eth2 --nf monitor --chain lan:monitor:wan
  sluice init fw.toml --port in=gen:size=60,rate=1000 --port out=sink --nf 'fw=sluice-nf-firewall --rules fw.rules' --chain in:fw:out

Without options it asks, unless standard input or standard error is no terminal: then it is as with Enter everywhere.
All packets of a chain's first port take it. Of the cores that this process may use, the first is for the daemon and the second for NFs.
`sluice check --explain` lists what else can be written into the file.";

#[derive(Debug, Args)]
pub struct InitArgs {
    /// The file to write; it must not exist
    #[arg(default_value = "sluice.toml")]
    pub file: PathBuf,
    /// A port: its name, its kind and keys of the kind
    #[arg(long = "port", value_name = "NAME=KIND:KEY=VALUE,…")]
    pub ports: Vec<String>,
    /// A service: its name, and its program with arguments; sluice-nf-NAME by default
    #[arg(long = "nf", value_name = "NAME=PROGRAM")]
    pub nfs: Vec<String>,
    /// A chain: the port where packets come in, services, and the port where they leave
    #[arg(long = "chain", value_name = "PORT:NF,…:PORT")]
    pub chains: Vec<String>,
}

/// Keys of a section, with their values.
pub type Keys = Vec<(String, Value)>;

/// Writes the file, of answers where no option is given and there is a terminal. Fails if it
/// exists, or what it would say is no valid configuration.
pub fn run(args: &InitArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let is_asked = args.is_empty() && io::stdin().is_terminal() && io::stderr().is_terminal();
    if !is_asked {
        return make(args, out);
    }
    if fs::symlink_metadata(&args.file).is_ok() {
        return Err(exists(&args.file));
    }
    let asked = questions::ask(&Host::here(), &mut Dialog { input: &mut io::stdin().lock(), out: &mut io::stderr() });
    let Answers { ports, nfs, chains } = asked?;
    make(&InitArgs { file: args.file.clone(), ports, nfs, chains }, out)
}

impl InitArgs {
    fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.nfs.is_empty() && self.chains.is_empty()
    }
}

fn exists(file: &Path) -> anyhow::Error {
    anyhow::anyhow!("{} exists and stays as it is: name another file", file.display())
}

/// Writes the file of these options.
fn make(args: &InitArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let text = text(args, &Host::here())?;
    load::parse(&text, "what these options make")?;
    let shown = args.file.display();
    let mut file = match OpenOptions::new().write(true).create_new(true).open(&args.file) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(exists(&args.file)),
        opened => opened.with_context(|| format!("cannot write {shown}"))?,
    };
    if let Err(error) = file.write_all(text.as_bytes()) {
        // A part of it would be in the way of the next try.
        let _ = fs::remove_file(&args.file);
        bail!("cannot write {shown}: {error}");
    }
    Ok(writeln!(out, "wrote {shown}: `sluice check {shown}` says what this host lacks for it, `sluiced {shown}` runs it")?)
}

fn text(args: &InitArgs, host: &Host) -> Result<String, Usage> {
    let InitArgs { ports, nfs, chains, .. } = args;
    if args.is_empty() {
        let words = |all: &[&str]| -> Vec<String> { all.iter().map(|word| (*word).to_string()).collect() };
        let ports = words(&["in=gen:rate=1000", "out=sink"]);
        let example = InitArgs { file: args.file.clone(), ports, nfs: words(&["monitor"]), chains: words(&["in:monitor:out"]) };
        return text(&example, host);
    }
    let mut cores = host.allowed.iter().map(|core| *core as i64);
    let first = cores.next().unwrap_or(0);
    let second = cores.next().unwrap_or(first);

    let mut text = String::from("# Written by `sluice init`; `sluice check --explain` lists all keys.\n");
    let mut manager = Keys::new();
    if host.uid != 0 {
        // Beside this file; the default is for root.
        manager.push(("runtime_dir".into(), "run".into()));
    }
    manager.extend(["rx", "tx", "wakeup", "monitor"].map(|role| (role.into(), vec![first].into())));
    section(&mut text, "[manager]", manager);
    for port in ports {
        section(&mut text, "[[port]]", port_of(port)?);
    }
    for nf in nfs {
        section(&mut text, "[[service]]", service_of(nf, second));
    }
    let chains = chains.iter().map(|chain| chain_of(chain)).collect::<Result<Vec<_>, _>>()?;
    let (chains, rules): (Vec<Keys>, Vec<Keys>) = chains.into_iter().unzip();
    chains.into_iter().for_each(|chain| section(&mut text, "[[chain]]", chain));
    rules.into_iter().for_each(|rule| section(&mut text, "[[rule]]", rule));
    Ok(text)
}

/// Adds a section to a configuration.
pub fn section(text: &mut String, head: &str, keys: Keys) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "\n{head}");
    for (key, value) in keys {
        let _ = writeln!(text, "{key} = {value}");
    }
}

fn port_of(text: &str) -> Result<Keys, Usage> {
    let wrong = || {
        Usage(format!(
            "--port {text}: write NAME=KIND, or with keys NAME=KIND:KEY=VALUE,KEY=VALUE, such as lan=af_packet:interface=eth1"
        ))
    };
    let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
    let (kind, given) = rest.split_once(':').unwrap_or((rest, ""));
    let mut keys: Keys = vec![("name".into(), name.into()), ("kind".into(), kind.into())];
    // As TOML, where values may have commas; or else without quotes.
    if let Some(table) = inline(given) {
        keys.extend(table);
        return Ok(keys);
    }
    for pair in given.split(',') {
        let (key, text) = pair.split_once('=').ok_or_else(wrong)?;
        keys.push((key.trim().into(), value(text)));
    }
    Ok(keys)
}

fn service_of(text: &str, core: i64) -> Keys {
    let (name, program) = text.split_once('=').unwrap_or((text, ""));
    let mut words = program.split_whitespace().map(str::to_string);
    let exec = words.next().unwrap_or_else(|| format!("sluice-nf-{name}"));
    let args: Vec<String> = words.collect();
    let mut keys: Keys = vec![("name".into(), name.into()), ("exec".into(), exec.into())];
    if !args.is_empty() {
        keys.push(("args".into(), args.into()));
    }
    keys.push(("cores".into(), vec![core].into()));
    keys
}

/// A chain, and the rule that leads all packets of its first port there.
fn chain_of(text: &str) -> Result<(Keys, Keys), Usage> {
    let parts: Vec<&str> = text.split(':').collect();
    let &[from, services, to] = parts.as_slice() else {
        return Err(Usage(format!("--chain {text}: write PORT:NF,NF:PORT, such as lan:firewall,nat:wan")));
    };
    let name = format!("{from}-{to}");
    let services: Vec<String> = services.split(',').filter(|service| !service.is_empty()).map(str::to_string).collect();
    let chain: Keys =
        vec![("name".into(), name.clone().into()), ("services".into(), services.into()), ("egress".into(), to.into())];
    Ok((chain, vec![("port".into(), from.into()), ("chain".into(), name.into())]))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    /// The arguments of a command line, as a shell reads it.
    fn args(line: &str) -> InitArgs {
        let cli = Cli::try_parse_from(["sluice".into(), "init".into()].into_iter().chain(shlex::split(line).unwrap())).unwrap();
        let Command::Init(args) = cli.command else { panic!("{line}") };
        args
    }

    fn host(uid: u32) -> Host {
        Host { allowed: [2, 5, 6].into(), uid, ..Host::here() }
    }

    #[test]
    fn what_is_written_is_valid() {
        let text = text(&args(""), &host(0)).unwrap();
        let config = load::parse(&text, "a.toml").unwrap();
        assert_eq!(
            (config.ports.len(), config.services[0].cores.as_slice(), config.manager.rx.as_slice()),
            (2, &[5][..], &[2][..])
        );
        assert!(!text.contains("runtime_dir"), "{text}");
        // With quotes, with commas in a value, and as another user than root.
        let line = "--port 'in=gen:imix=[[60, 7], [590, 4]], flows=10' --port out=pcap:write=a.pcap --nf fw='sluice-nf-firewall --rules r' \
                    --nf nat --chain in:fw,nat:out";
        let text = super::text(&args(line), &host(1000)).unwrap();
        let config = load::parse(&text, "a.toml").unwrap();
        assert_eq!((config.services[0].args.join(" "), config.chains[0].services.join(" ")), ("--rules r".into(), "fw nat".into()));
        assert_eq!((config.rules[0].port.as_deref(), config.rules[0].chain.as_str()), (Some("in"), "in-out"));
        assert!(text.contains("runtime_dir = \"run\"") && text.contains("exec = \"sluice-nf-nat\""), "{text}");
    }

    #[test]
    fn a_file_that_exists_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.toml");
        let args = InitArgs { file: file.clone(), ..args("") };
        make(&args, &mut Vec::new()).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, "mine").unwrap();
        let error = make(&args, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("exists and stays as it is"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
        assert!(text.starts_with("# Written by"), "{text}");
    }

    #[test]
    fn mistakes_are_reported_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        for (line, wanted) in [
            ("--port lan", "such as lan=af_packet:interface=eth1"),
            ("--port lan=af_packet:eth1", "such as lan=af_packet:interface=eth1"),
            ("--port lan=sink --chain lan:wan", "such as lan:firewall,nat:wan"),
            ("--port lan=af_paket:interface=eth1", "af_packet"),
            ("--port lan=gen --port wan=sink --chain lan:nat:wan", "nat"),
        ] {
            let file = folder.path().join("a.toml");
            let error = make(&InitArgs { file: file.clone(), ..args(line) }, &mut Vec::new()).unwrap_err().to_string();
            assert!(error.contains(wanted) && !file.exists(), "{line}: {error}");
        }
    }
}
