//! `sluice replay`: a capture through NFs, without a configuration.
//!
//! Problem: to see what NFs make of a capture takes a configuration and a running daemon. Approach:
//! the command makes the configuration in a temporary folder, starts a daemon there for itself,
//! waits until each packet has left or was dropped, and stops it. NFs that need arguments get usual
//! ones where there are such.
//!
//! Limits: the order of packets is kept, their spacing only with `--recorded`. A file is written
//! beside its place and moved there at the end, so a replay that fails changes nothing.

mod own_daemon;

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use sluice_api::client::Client;
use sluice_api::model::{NfState, Port, PortState, Stats};
use sluice_cli::number::grouped;
use sluice_cli::table::{Table, colour};
use sluice_cli::usage::{Usage, json};
use sluice_config::host::{Host, resolve_exec};
use sluice_config::load;
use toml::Value;

use crate::init::{Keys, section};
use crate::needs::RULES_FILE;
use crate::{needs, other, output};
use own_daemon::{LOOK, OwnDaemon, configuration, runtime_dir};

/// Help text below the options of `sluice replay`.
pub const HELP: &str = "\
Examples:
  sluice replay in.pcap --through firewall,nat                what passes, and what is dropped
  sluice replay in.pcap --through monitor,nat -w out.pcapng   and write what comes out
  sluice replay in.pcapng --through fw --nf 'fw=sluice-nf-firewall --rules fw.rules' -w out.pcapng

No configuration and no running daemon is needed. By default `firewall` allows every packet, and `nat` gives private addresses the
address 203.0.113.1; --nf gives them, and NFs that need some, their arguments.
Captures of raw IP, loopback, PPP and Linux cooked get Ethernet headers, which the interfaces of the written file say. Written
packets have the time, to the nanosecond, and the original length of the capture that was replayed.";

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The capture: pcap or pcapng
    pub file: PathBuf,
    /// NFs that its packets pass, in order
    #[arg(long, value_name = "NF,…", value_delimiter = ',', required = true)]
    pub through: Vec<String>,
    /// An NF's program with arguments; sluice-nf-NAME by default
    #[arg(long = "nf", value_name = "NAME=PROGRAM")]
    pub nfs: Vec<String>,
    /// File to write what comes out to, as pcapng
    #[arg(long, short, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// At the recorded times, not as fast as the NFs go
    #[arg(long)]
    pub recorded: bool,
    /// Print JSON: every counter, as the API returns it
    #[arg(long)]
    pub json: bool,
}

/// Names of the ports and the chain.
const SOURCE: &str = "capture";
const TARGET: &str = "out";
const CHAIN: &str = "replay";

/// Frames of packet memory, and packets of a ring. Frames hold the largest packet that any can.
const FRAMES: i64 = 1024;
const RING: i64 = 256;
const PACKET_BYTES: i64 = 65_344;

/// How long nothing may move, once no packet is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Rules of a firewall without any.
const RULES: &str = "default allow\nnon-ip allow\n";

/// An NF of the chain.
#[derive(Debug, PartialEq, Eq)]
struct Hop {
    name: String,
    exec: String,
    args: Vec<String>,
}

/// `sluice replay`.
pub fn run(args: &ReplayArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let stops = output::stops()?;
    let host = Host::here();
    let daemon = other::daemon().map_err(|error| anyhow!("{error}; install the package sluice, or put it beside sluice"))?;
    let folder = tempfile::Builder::new().prefix("sluice-replay-").tempdir().context("cannot make a temporary folder")?;
    // NFs run as users of their own where this one is root.
    let opened = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    opened(folder.path(), 0o755).context("cannot open a temporary folder to NFs")?;
    let rules = folder.path().join("firewall.rules");
    fs::write(&rules, RULES).and_then(|()| opened(&rules, 0o644)).context("cannot write the rules of a firewall")?;
    let hops = hops(args, &rules)?;
    for hop in &hops {
        resolve_exec(Path::new(&hop.exec), &host).map_err(|error| Usage(format!("{}: {error}", hop.name)))?;
    }
    let mut target = args.write.as_deref().map(|path| Target::new(path, &args.file)).transpose()?;
    let partial = target.as_ref().map(|target| target.partial.as_path());
    let file = configuration(folder.path());
    fs::write(&file, text(args, &hops, partial, &host, folder.path())?).context("cannot write a configuration")?;
    check(&file, &host)?;
    let (mut daemon, mut client) = OwnDaemon::start(&daemon, folder, &stops)?;
    let stats = pass(&mut daemon, &mut client, args.recorded, &stops)?;
    daemon.stop()?;
    if let Some(target) = &mut target {
        target.keep()?;
    }
    if args.json { json(out, &stats) } else { report(args, &stats, out, colour()) }
}

/// The NFs of a command, each with its program and arguments. `rules` is the file of [`RULES`].
fn hops(args: &ReplayArgs, rules: &Path) -> Result<Vec<Hop>, Usage> {
    let mut given: Vec<(&str, &str)> = Vec::new();
    for nf in &args.nfs {
        let wrong =
            || Usage(format!("--nf {nf}: write NAME=PROGRAM with its arguments, such as 'fw=sluice-nf-firewall --rules FILE'"));
        let (name, program) = nf.split_once('=').ok_or_else(wrong)?;
        if program.trim().is_empty() {
            return Err(wrong());
        }
        if !args.through.iter().any(|hop| hop == name) {
            return Err(Usage(format!("--nf {nf}: no packet passes {name}; name it in --through too")));
        }
        if given.iter().any(|(other, _)| *other == name) {
            return Err(Usage(format!("--nf {nf}: the program of {name} is given twice")));
        }
        given.push((name, program));
    }
    let mut hops: Vec<Hop> = Vec::new();
    for (at, nf) in args.through.iter().enumerate() {
        if nf.is_empty() || nf.contains(char::is_whitespace) {
            return Err(Usage(format!(
                "--through names no NF with {nf:?}; write names with commas and no blanks, such as firewall,nat"
            )));
        }
        let program = given.iter().find(|(name, _)| name == nf).map(|(_, program)| *program);
        let (exec, hop_args) = match program {
            Some(program) => {
                let mut words = program.split_whitespace().map(str::to_string);
                let exec = words.next().unwrap_or_default();
                // A path counts from here, and the configuration is in another folder.
                let whole = std::path::absolute(&exec).ok().filter(|_| exec.contains('/'));
                (whole.map_or(exec, |path| path.display().to_string()), words.collect())
            }
            None => (format!("sluice-nf-{nf}"), usual(nf, rules)?),
        };
        // An NF that is passed again is a service of its own.
        let before = args.through[..at].iter().filter(|other| *other == nf).count();
        let name = if before == 0 { nf.clone() } else { format!("{nf}-{}", before + 1) };
        if hops.iter().any(|hop| hop.name == name) {
            return Err(Usage(format!("--through has another NF of the name {name}; name the second one differently, with --nf")));
        }
        hops.push(Hop { name, exec, args: hop_args });
    }
    Ok(hops)
}

/// The arguments of an NF for which none are given.
fn usual(nf: &str, rules: &Path) -> Result<Vec<String>, Usage> {
    if let Some(needed) = needs::needed(nf) {
        return Err(Usage(format!("{nf} needs arguments: give them by --nf '{nf}=sluice-nf-{nf} {needed}'")));
    }
    let args = needs::usual(nf).unwrap_or_default();
    Ok(args.iter().map(|arg| if *arg == RULES_FILE { rules.display().to_string() } else { (*arg).to_string() }).collect())
}

/// The configuration. `partial` is the file to write, `folder` that of the daemon.
fn text(args: &ReplayArgs, hops: &[Hop], partial: Option<&Path>, host: &Host, folder: &Path) -> anyhow::Result<String> {
    let mut cores = host.allowed.iter().map(|core| *core as i64);
    let first = cores.next().unwrap_or(0);
    let second = cores.next().unwrap_or(first);
    let key = |name: &str, value: Value| (name.to_string(), value);

    let mut text = String::from("# Written by `sluice replay`.\n");
    let mut manager: Keys = vec![key("runtime_dir", path(&runtime_dir(folder))?), key("idle", "sleep".into())];
    manager.extend(["rx", "tx", "wakeup", "monitor"].map(|role| key(role, vec![first].into())));
    section(&mut text, "[manager]", manager);
    let frames = key("frames", FRAMES.into());
    section(&mut text, "[memory]", vec![frames, key("packet_bytes", PACKET_BYTES.into()), key("hugepages", "never".into())]);
    let mut source: Keys = vec![key("name", SOURCE.into()), key("kind", "pcap".into()), key("read", path(&args.file)?)];
    source.push(key("speed", if args.recorded { "recorded" } else { "fast" }.into()));
    source.push(key("overload", "wait".into()));
    section(&mut text, "[[port]]", source);
    let mut target: Keys = vec![key("name", TARGET.into())];
    match partial {
        Some(file) => target.extend([key("kind", "pcap".into()), key("write", path(file)?), key("times", "recorded".into())]),
        None => target.push(key("kind", "sink".into())),
    }
    section(&mut text, "[[port]]", target);
    for Hop { name, exec, args } in hops {
        let mut service: Keys = vec![key("name", name.as_str().into()), key("exec", exec.as_str().into())];
        service.extend([key("args", args.clone().into()), key("cores", vec![second].into()), key("ring", RING.into())]);
        section(&mut text, "[[service]]", service);
    }
    let services: Vec<String> = hops.iter().map(|hop| hop.name.clone()).collect();
    let chain: Keys = vec![key("name", CHAIN.into()), key("services", services.into()), key("egress", TARGET.into())];
    section(&mut text, "[[chain]]", chain);
    section(&mut text, "[[rule]]", vec![key("port", SOURCE.into()), key("chain", CHAIN.into())]);
    Ok(text)
}

/// A path for the configuration, which is in another folder.
fn path(path: &Path) -> anyhow::Result<Value> {
    let whole = std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))?;
    let text = whole.to_str().ok_or_else(|| Usage(format!("{} is not UTF-8; rename it, or link to it", whole.display())))?;
    Ok(text.into())
}

/// Checks the configuration as `sluice check` does. Its lines mean nothing to the caller: it gets
/// the first mistake alone.
fn check(file: &Path, host: &Host) -> anyhow::Result<()> {
    let checked = load::read_for(file, host).and_then(|loaded| loaded.accept(|config| other::port_problems(file, config)));
    let Err(errors) = checked else { return Ok(()) };
    match errors.problems.iter().find(|problem| problem.is_error()) {
        Some(problem) if problem.help.is_empty() => bail!("{}", problem.message),
        Some(problem) => bail!("{}; {}", problem.message, problem.help),
        None => Ok(()),
    }
}

/// A file to write. The daemon writes another one in the same folder, which goes unless it is kept.
#[derive(Debug)]
struct Target {
    path: PathBuf,
    partial: PathBuf,
    is_kept: bool,
}

impl Target {
    /// `source` is the capture that is replayed.
    fn new(path: &Path, source: &Path) -> anyhow::Result<Self> {
        let path = std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))?;
        let shown = path.display().to_string();
        let Some((folder, name)) = path.parent().zip(path.file_name()) else {
            return Err(Usage(format!("{shown} is a folder; name a file with -w")).into());
        };
        ensure!(folder.is_dir(), "cannot write {shown}: there is no folder {}", folder.display());
        if let Ok(is) = fs::symlink_metadata(&path) {
            // Other things cannot be moved over as a whole: a pipe, a link, /dev/null.
            ensure!(is.is_file(), "cannot write {shown}: it is no regular file; name another one");
            let is_source = fs::metadata(source).is_ok_and(|other| (other.dev(), other.ino()) == (is.dev(), is.ino()));
            ensure!(!is_source, "cannot write {shown}: it is the capture that is replayed; name another file with -w");
        }
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(format!(".{}.pcapng", std::process::id()));
        Ok(Self { partial: path.with_file_name(partial), path, is_kept: false })
    }

    /// Puts what was written in its place.
    fn keep(&mut self) -> anyhow::Result<()> {
        fs::rename(&self.partial, &self.path).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.is_kept {
            // It may never have been made.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// The two ports.
fn ports(stats: &Stats) -> Option<(&Port, &Port)> {
    let port = |name: &str| stats.ports.iter().find(|port| port.name == name);
    Some((port(SOURCE)?, port(TARGET)?))
}

/// Packets that did not leave.
fn dropped(stats: &Stats) -> u64 {
    stats.drops.values().sum()
}

/// Whether each packet has left or was dropped, and what left is in the file.
fn is_over(stats: &Stats) -> bool {
    let Some((source, target)) = ports(stats) else { return false };
    let is_read = source.details.get("packets_in_file").is_some_and(|packets| source.rx_packets as f64 >= *packets);
    let is_written = target.details.get("written").is_none_or(|written| *written >= target.tx_packets as f64);
    let is_empty = stats.status.memories.iter().all(|memory| memory.in_use == 0 && memory.free == memory.frames)
        && stats.nfs.iter().all(|nf| nf.frames_held == 0);
    let gone = target.tx_packets + dropped(stats);
    source.finished && is_read && is_written && is_empty && gone >= source.rx_packets
}

/// A number that changes whenever a packet moves.
fn moves(stats: &Stats) -> u64 {
    let ports: u64 = stats.ports.iter().map(|port| port.rx_packets + port.tx_packets).sum();
    let nfs: u64 = stats.nfs.iter().map(|nf| nf.rx_packets + nf.tx_packets).sum();
    let written: f64 = stats.ports.iter().filter_map(|port| port.details.get("written")).sum();
    ports + nfs + dropped(stats) + written as u64
}

/// Waits until each packet has left or was dropped, and returns the counters.
fn pass(daemon: &mut OwnDaemon, client: &mut Client, is_paced: bool, stops: &AtomicBool) -> anyhow::Result<Stats> {
    let (mut moved, mut since) = (0, Instant::now());
    loop {
        let answer = client.stats();
        // A daemon of the same terminal is interrupted too.
        ensure!(!stops.load(Ordering::Relaxed), "interrupted; nothing was written");
        daemon.is_there()?;
        let stats = answer?;
        if let Some(nf) = stats.nfs.iter().find(|nf| nf.state == NfState::Failed) {
            let why = nf.last_death.as_ref().map_or("it has failed", |death| death.what.as_str());
            bail!("{} takes no packets any more: {why}\n{}", nf.name, daemon.log());
        }
        if is_over(&stats) {
            return Ok(stats);
        }
        let now = moves(&stats);
        // Between two packets of a capture may be any time.
        let waits = is_paced && ports(&stats).is_some_and(|(source, _)| !source.finished);
        if now != moved || waits {
            (moved, since) = (now, Instant::now());
        }
        ensure!(since.elapsed() < PATIENCE, "{}\n{}", stuck(&stats), daemon.log());
        std::thread::sleep(LOOK);
    }
}

/// Why nothing moves.
fn stuck(stats: &Stats) -> String {
    let mut words = vec![format!("nothing has moved for {} s", PATIENCE.as_secs())];
    if stats.ports.iter().any(|port| port.state == PortState::Blocked) {
        words.push("the file cannot be written: see whether the disk is full".into());
    }
    let holders = stats.nfs.iter().filter(|nf| nf.frames_held > 0);
    words.extend(holders.map(|nf| format!("{} keeps {} packets", nf.name, grouped(nf.frames_held))));
    words.join("; ")
}

/// Prints what came of the packets.
fn report(args: &ReplayArgs, stats: &Stats, out: &mut dyn Write, colour: bool) -> anyhow::Result<()> {
    let (source, target) = ports(stats).context("the daemon does not say what became of the packets")?;
    let counts = [source.rx_packets, target.tx_packets, dropped(stats)].map(grouped);
    writeln!(out, "packets of {}: {} came, {} left, {} dropped", args.file.display(), counts[0], counts[1], counts[2])?;
    let detail = |name: &str| source.details.get(name).map_or(0, |value| *value as u64);
    for (packets, what) in [
        (detail("headers_made"), "with a made Ethernet header"),
        (detail("cut"), "in the capture in part; they keep their original length"),
        (detail("empty"), "without a byte in the capture, left out"),
    ] {
        if packets > 0 {
            writeln!(out, "  {} {what}", grouped(packets))?;
        }
    }
    writeln!(out)?;
    let mut table = Table::new(&["NF", ">IN", ">OUT", ">DROPPED", ">RESTARTS"]);
    for nf in &stats.nfs {
        let counts = [nf.rx_packets, nf.tx_packets.saturating_sub(nf.verdict_drops), nf.verdict_drops, nf.restarts].map(grouped);
        let [rx, tx, drops, restarts] = counts;
        table.row(vec![nf.name.as_str().into(), rx.into(), tx.into(), drops.into(), restarts.into()]);
    }
    table.print(out, colour)?;
    let reasons: Vec<(&String, &u64)> = stats.drops.iter().filter(|(_, packets)| **packets > 0).collect();
    if !reasons.is_empty() {
        writeln!(out)?;
        let mut table = Table::new(&["REASON", ">DROPPED"]);
        for (reason, packets) in reasons {
            table.row(vec![reason.as_str().into(), grouped(*packets).into()]);
        }
        table.print(out, colour)?;
    }
    if let Some(path) = &args.write {
        writeln!(out, "\nwrote {}", path.display())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;
    use sluice_api::config::{Overload, PcapTimes, PortKind};
    use sluice_api::model::{Memory, Nf};

    use super::*;
    use crate::args::{Cli, Command};

    fn args(line: &str) -> ReplayArgs {
        let words = ["sluice".into(), "replay".into()].into_iter().chain(shlex::split(line).unwrap());
        let Command::Replay(args) = Cli::try_parse_from(words).unwrap().command else { panic!("{line}") };
        args
    }

    fn names_and_args(line: &str) -> Vec<(String, String)> {
        let hops = hops(&args(line), Path::new("/rules")).unwrap();
        hops.into_iter().map(|hop| (hop.name, [vec![hop.exec], hop.args].concat().join(" "))).collect()
    }

    #[test]
    fn a_replay_makes_a_valid_configuration() {
        let host = Host { allowed: [2, 5].into(), ..Host::here() };
        let args = args("dir/in.pcap --through firewall,nat,bridge,bridge --nf 'nat=./my-nat --inside 10.0.0.0/8'");
        let hops = hops(&args, Path::new("/rules")).unwrap();
        let text = text(&args, &hops, Some(Path::new("/x/.out.pcapng")), &host, Path::new("/tmp/here")).unwrap();
        let config = load::parse(&text, "a.toml").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        assert_eq!(config.manager.runtime_dir, Path::new("/tmp/here/run"));
        assert_eq!(config.chains[0].services.join(" "), "firewall nat bridge bridge-2");
        assert_eq!((config.manager.rx.as_slice(), config.services[3].cores.as_slice()), (&[2][..], &[5][..]));
        assert_eq!(config.services[0].args.join(" "), "--rules /rules");
        let exec = config.services[1].exec.as_deref().unwrap();
        assert!(exec.is_absolute() && exec.ends_with("my-nat"), "{}", exec.display());
        let PortKind::Pcap(source) = &config.ports[0].kind else { panic!("{text}") };
        assert!(source.read.as_ref().is_some_and(|read| read.is_absolute() && read.ends_with("dir/in.pcap")), "{text}");
        assert_eq!(config.ports[0].overload, Overload::Wait);
        let PortKind::Pcap(target) = &config.ports[1].kind else { panic!("{text}") };
        assert_eq!((target.write.as_deref(), target.times), (Some(Path::new("/x/.out.pcapng")), PcapTimes::Recorded));
        // Without a file, packets end in a sink.
        let text = super::text(&args, &hops, None, &host, Path::new("/tmp/here")).unwrap();
        assert!(matches!(load::parse(&text, "a.toml").unwrap().ports[1].kind, PortKind::Sink(_)), "{text}");
    }

    #[test]
    fn nfs_get_the_arguments_that_are_given_or_usual() {
        let nat = "sluice-nf-nat --inside 10.0.0.0/8,172.16.0.0/12,192.168.0.0/16 --outside 203.0.113.1";
        let of = |name: &str, program: &str| (name.to_string(), program.to_string());
        assert_eq!(
            names_and_args("a.pcap --through firewall,nat,monitor"),
            [of("firewall", "sluice-nf-firewall --rules /rules"), of("nat", nat), of("monitor", "sluice-nf-monitor")]
        );
        assert_eq!(
            names_and_args("a.pcap --through lb,fw --nf 'fw=x --rules r' --nf 'lb=/nfs/lb --vip 192.0.2.1:80'"),
            [of("lb", "/nfs/lb --vip 192.0.2.1:80"), of("fw", "x --rules r")]
        );
        for (name, needed) in needs::NEEDED {
            let line = format!("a.pcap --through {name}");
            let error = hops(&args(&line), Path::new("/rules")).unwrap_err().to_string();
            assert!(error.contains(&format!("--nf '{name}=sluice-nf-{name} {needed}'")), "{error}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, words) in [
            ("a.pcap --through nat --nf nat", "write NAME=PROGRAM"),
            ("a.pcap --through nat --nf 'nat= '", "write NAME=PROGRAM"),
            ("a.pcap --through nat --nf fw=x", "name it in --through too"),
            ("a.pcap --through nat --nf nat=x --nf nat=y", "given twice"),
            ("a.pcap --through bridge-2,bridge,bridge", "another NF of the name bridge-2"),
            ("a.pcap --through bridge,,nat", "names no NF with \"\""),
            ("a.pcap --through 'bridge, nat'", "names no NF with \" nat\""),
        ] {
            let error = hops(&args(line), Path::new("/rules")).unwrap_err().to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
        assert!(Cli::try_parse_from(["sluice", "replay", "a.pcap"]).is_err(), "packets pass something");
    }

    #[test]
    fn a_file_changes_only_when_the_replay_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let (source, path) = (folder.path().join("in.pcap"), folder.path().join("out.pcapng"));
        fs::write(&source, "capture").unwrap();
        fs::write(&path, "old").unwrap();
        let refused = |path: &Path| Target::new(path, &source).unwrap_err().to_string();
        assert!(refused(&source).contains("the capture that is replayed"));
        assert!(refused(folder.path()).contains("no regular file"));
        assert!(refused(Path::new("/dev/null")).contains("no regular file"));
        assert!(refused(&folder.path().join("no/out")).contains("there is no folder"));
        let target = Target::new(&path, &source).unwrap();
        let partial = target.partial.clone();
        assert_eq!((partial.parent(), partial.extension()), (Some(folder.path()), path.extension()));
        fs::write(&partial, "new").unwrap();
        drop(target);
        assert!(!partial.exists());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let mut target = Target::new(&path, &source).unwrap();
        fs::write(&target.partial, "new").unwrap();
        target.keep().unwrap();
        drop(target);
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(!partial.exists());
    }

    /// Counters of a replay of ten packets, one of which the NF drops.
    fn ended() -> Stats {
        let details = |name: &str, value: f64| BTreeMap::from([(name.to_string(), value)]);
        let port = |name: &str| Port { name: name.into(), ..Port::default() };
        let source = Port { rx_packets: 10, finished: true, details: details("packets_in_file", 10.0), ..port(SOURCE) };
        let target = Port { tx_packets: 9, details: details("written", 9.0), ..port(TARGET) };
        let drops = BTreeMap::from([("verdict".to_string(), 1)]);
        let nf = Nf { name: "fw.0".into(), rx_packets: 10, tx_packets: 10, verdict_drops: 1, ..Nf::default() };
        let mut stats = Stats { ports: vec![source, target], nfs: vec![nf], drops, ..Stats::default() };
        stats.status.memories = vec![Memory { frames: 512, free: 512, ..Memory::default() }];
        stats
    }

    #[test]
    fn a_replay_is_over_when_each_packet_has_left_or_was_dropped() {
        assert!(is_over(&ended()));
        let changes: [fn(&mut Stats); 8] = [
            |s| s.ports[0].finished = false,
            |s| s.ports[0].details.clear(),
            |s| s.ports[0].rx_packets = 9,
            |s| s.ports[1].tx_packets = 8,
            |s| {
                s.ports[1].details.insert("written".into(), 8.0);
            },
            |s| s.drops.clear(),
            |s| s.status.memories[0].free = 511,
            |s| s.nfs[0].frames_held = 1,
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut stats = ended();
            change(&mut stats);
            assert!(!is_over(&stats), "change {number}");
        }
    }

    #[test]
    fn the_report_says_what_became_of_the_packets() {
        let mut stats = ended();
        stats.ports[0].details.insert("headers_made".into(), 10.0);
        let mut out = Vec::new();
        report(&args("in.pcap --through fw --nf fw=x -w o.pcapng"), &stats, &mut out, false).unwrap();
        let wanted = "packets of in.pcap: 10 came, 9 left, 1 dropped\n  10 with a made Ethernet header\n\n\
                      NF    IN  OUT  DROPPED  RESTARTS\nfw.0  10    9        1         0\n\n\
                      REASON   DROPPED\nverdict        1\n\nwrote o.pcapng\n";
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }
}
