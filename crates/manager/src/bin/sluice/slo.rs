//! `sluice slo`: what tenants are promised. Asked for, admitted or refused, listed, given back.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use sluice_slo::admission::{Refusal, admit, admit_all};
use sluice_slo::placement::{Instance, Placement};
use sluice_slo::profile::{Digest, Profile, Source};
use sluice_slo::slo::Slo;

use crate::args::Json;
use crate::commands::{Usage, json, read};
use crate::number;
use crate::plan::folder::{Admitted, Folder, Plan};
use crate::plan::profiles::{Asked, Profiles, Programs};
use crate::table::{Table, colour};

/// What `sluice slo --help` says below the options.
pub const HELP: &str = "\
Examples:
  sluice slo add --dry-run acme.toml    would it fit, and where?
  sluice slo add acme.toml              promise it: instances, cache ways, cores and servers
  sluice slo list
  sluice slo remove acme

An SLO is a file of TOML or JSON:
  name = \"acme\"
  workload = { nf = \"nat\" }               or { chain = [\"firewall\", \"nat\"] }
  traffic = \"64 B, 1000 flows\"            as its profile names it
  promise = { reserved = { throughput_pps = 2e6, latency_us = 80 } }
                                          or { on_demand = { latency_us = 80 } }
The latency is that of 95 % of the packets. `configuration`, the digest in the profile, is needed only where several are profiled.
What runs already is not moved. `sluice plan` shows the servers. No daemon is needed.";

/// Arguments of `sluice slo`.
#[derive(Debug, Args)]
pub struct SloArgs {
    #[command(flatten)]
    folder: Folder,
    /// What to do
    #[command(subcommand)]
    command: SloCommand,
}

#[derive(Debug, Subcommand)]
enum SloCommand {
    /// Promise SLOs if there is room: all of them, or none
    #[command(after_help = "\
Examples:
  sluice slo add acme.toml
  sluice slo add --binary nat=/usr/libexec/sluice/sluice-nf-nat acme.toml
                                        and be sure that the profile is of this program
  sluice slo add --json web.toml dns.toml | jq '.refused[].nearest'

If there is no room, nothing changes, and the nearest promise is told that would fit.")]
    Add(AddArgs),
    /// List what is promised
    List(Json),
    /// Show one SLO and its instances
    Show {
        /// The SLO
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Take a promise back: what its instances have is free
    #[command(visible_alias = "rm")]
    Remove {
        /// The SLOs
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct AddArgs {
    /// Files of one SLO each, TOML or JSON; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Program that runs as an NF: a profile of another is refused; for several NFs, several times
    #[arg(long = "binary", value_name = "NF=FILE")]
    binaries: Vec<String>,
    /// Say what would come of it, and change nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An instance, as it is told.
#[derive(Debug, Serialize)]
struct TellInstance<'a> {
    server: &'a str,
    #[serde(flatten)]
    instance: &'a Instance,
    /// Bits of its class, from the lowest way, in hexadecimal digits.
    mask: String,
}

/// An SLO and its instances, as they are told.
#[derive(Debug, Serialize)]
struct TellSlo<'a> {
    #[serde(flatten)]
    admitted: &'a Admitted,
    instances: Vec<TellInstance<'a>>,
}

/// What came of `add`.
#[derive(Debug, Serialize)]
struct TellAdded<'a> {
    dry_run: bool,
    added: Vec<TellSlo<'a>>,
    refused: Vec<TellRefused>,
}

#[derive(Debug, Serialize)]
struct TellRefused {
    name: String,
    reason: String,
    nearest: Option<sluice_slo::slo::Promise>,
}

/// Runs a command.
pub fn run(args: &SloArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let folder = &args.folder;
    match &args.command {
        SloCommand::Add(add) => self::add(folder, add, out),
        SloCommand::List(args) => list(&folder.read()?, args.json, out),
        SloCommand::Show { name, json } => show(&folder.read()?, name, json.json, out),
        SloCommand::Remove { names } => remove(folder, names, out),
    }
}

fn add(folder: &Folder, args: &AddArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let programs = programs(&args.binaries)?;
    let asked = args.files.iter().map(|file| asked(file)).collect::<anyhow::Result<Vec<_>>>()?;
    // Held until the new placement is written.
    let _lock = if args.dry_run { None } else { Some(folder.lock()?) };
    let mut plan = folder.read()?;
    let profiles = Profiles::read(folder)?;
    profiles.bad().iter().for_each(|bad| eprintln!("sluice: left out: {bad}"));
    let chosen = choose(&asked, &programs, &plan, &profiles)?;
    let (admitted, refused) = place(&mut plan.placement, chosen);
    if !refused.is_empty() {
        let text = refused.iter().map(|(name, refusal)| format!("\"{name}\" is refused: {refusal}")).collect::<Vec<_>>().join("\n");
        if args.json {
            let tell = |(name, refusal): (String, Refusal)| TellRefused {
                name,
                reason: refusal.reason.to_string(),
                nearest: refusal.nearest,
            };
            let refused = refused.into_iter().map(tell).collect();
            json(out, &TellAdded { dry_run: args.dry_run, added: Vec::new(), refused })?;
        }
        bail!("{text}\nnothing was changed");
    }
    let first = plan.slos.len();
    plan.slos.extend(admitted);
    if !args.dry_run {
        folder.write(&plan)?;
    }
    if args.json {
        let added = plan.slos[first..].iter().map(|admitted| tell(&plan, admitted)).collect();
        return json(out, &TellAdded { dry_run: args.dry_run, added, refused: Vec::new() });
    }
    for admitted in &plan.slos[first..] {
        let word = if args.dry_run { "would be added" } else { "added" };
        writeln!(
            out,
            "{word}: {}, {}{}",
            admitted.slo.name,
            admitted.slo.promise,
            source(profiles.of(&admitted.slo.name, &admitted.profile)?)
        )?;
        instances(&tell(&plan, admitted)).print(out, colour())?;
    }
    Ok(())
}

/// Where a promise comes from, if not from the hardware.
fn source(profile: &Profile) -> &'static str {
    match profile.source {
        Source::Measured => "",
        Source::Simulated => " (by a simulated profile)",
        Source::None => " (by a profile without cache control)",
    }
}

fn asked(file: &Path) -> anyhow::Result<Asked> {
    Asked::parse(&read(file)?).with_context(|| format!("{} is no SLO; `sluice slo --help` shows one", file.display()))
}

/// Reads `NF=FILE`.
fn programs(given: &[String]) -> anyhow::Result<Programs> {
    let mut programs = Programs::new();
    for text in given {
        let Some((nf, file)) = text.split_once('=').filter(|(nf, file)| !nf.is_empty() && !file.is_empty()) else {
            return Err(Usage(format!("\"{text}\" is not NF=FILE; write for example nat=/usr/libexec/sluice/sluice-nf-nat")).into());
        };
        let bytes = std::fs::read(file).with_context(|| format!("cannot read {file}, the program of {nf}"))?;
        programs.insert(nf.into(), Digest::of(&bytes));
    }
    Ok(programs)
}

/// The SLOs and their profiles, once all of them make sense.
fn choose<'a>(
    asked: &[Asked],
    programs: &Programs,
    plan: &Plan,
    profiles: &'a Profiles,
) -> anyhow::Result<Vec<(Slo, Vec<&'a Profile>)>> {
    let mut names: BTreeSet<&str> = plan.slos.iter().map(|admitted| admitted.slo.name.as_str()).collect();
    let mut chosen = Vec::new();
    for one in asked {
        one.with(&Digest::of(b"")).check()?;
        if !names.insert(&one.name) {
            bail!("an SLO named \"{}\" is there already: choose another name, or remove it first", one.name);
        }
        chosen.push(profiles.choose(one, programs, &plan.placement).with_context(|| format!("\"{}\" is refused", one.name))?);
    }
    for nf in programs.keys() {
        let runs = |one: &Asked| match &one.workload {
            sluice_slo::slo::Workload::Nf(service) => service == nf,
            sluice_slo::slo::Workload::Chain(services) => services.contains(nf),
        };
        if !asked.iter().any(runs) {
            return Err(Usage(format!("--binary {nf}=…: no SLO here runs an NF named \"{nf}\"")).into());
        }
    }
    Ok(chosen)
}

/// Finds room, largest first; who finds none on servers of one processor is tried on those of the next. Admitted ones are in the
/// order given.
fn place(placement: &mut Placement, chosen: Vec<(Slo, Vec<&Profile>)>) -> (Vec<Admitted>, Vec<(String, Refusal)>) {
    let firsts: Vec<(&Slo, &Profile)> = chosen.iter().filter_map(|(slo, fit)| Some((slo, *fit.first()?))).collect();
    let results = admit_all(placement, &firsts);
    let (mut admitted, mut refused) = (Vec::new(), Vec::new());
    for ((slo, fit), result) in chosen.iter().zip(results) {
        let found = match result {
            Ok(_) => Ok(fit[0]),
            Err(refusal) => fit[1..].iter().find(|other| admit(placement, slo, other).is_ok()).copied().ok_or(refusal),
        };
        match found {
            Ok(profile) => admitted.push(Admitted { slo: slo.clone(), profile: profile.key.clone() }),
            Err(refusal) => refused.push((slo.name.clone(), refusal)),
        }
    }
    (admitted, refused)
}

fn tell<'a>(plan: &'a Plan, admitted: &'a Admitted) -> TellSlo<'a> {
    let mut instances = Vec::new();
    for server in &plan.placement.servers {
        let masks = server.masks();
        let own = server.instances.iter().filter(|instance| instance.slo == admitted.slo.name);
        instances.extend(own.map(|instance| {
            let mask = masks.get(&(instance.slo.clone(), instance.number)).copied().unwrap_or(0);
            TellInstance { server: &server.name, instance, mask: format!("{mask:x}") }
        }));
    }
    instances.sort_by_key(|told| told.instance.number);
    TellSlo { admitted, instances }
}

fn instances(slo: &TellSlo<'_>) -> Table {
    let mut table = Table::new(&["INSTANCE", "SERVER", "CORES", "WAYS", ">CARRIES", ">IS GIVEN"]);
    for TellInstance { server, instance, mask } in &slo.instances {
        let cores = instance.cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let ways = if instance.ways == 0 { format!("shared ({mask})") } else { format!("{} ({mask})", instance.ways) };
        table.row(vec![
            format!("{}.{}", instance.slo, instance.number).into(),
            (*server).into(),
            cores.into(),
            ways.into(),
            number::rate(instance.capacity_pps).into(),
            number::rate(instance.load_pps).into(),
        ]);
    }
    table
}

fn list(plan: &Plan, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let all: Vec<TellSlo<'_>> = plan.slos.iter().map(|admitted| tell(plan, admitted)).collect();
    if as_json {
        return json(out, &all);
    }
    if all.is_empty() {
        return Ok(writeln!(out, "nothing is promised")?);
    }
    let mut table = Table::new(&["NAME", "WORKLOAD", ">PROMISED", ">95 % WITHIN", ">INSTANCES", ">CORES", ">WAYS", "SERVERS"]);
    for TellSlo { admitted: Admitted { slo, .. }, instances } in &all {
        let servers: BTreeSet<&str> = instances.iter().map(|told| told.server).collect();
        let sum = |of: &dyn Fn(&Instance) -> u64| instances.iter().map(|told| of(told.instance)).sum::<u64>().to_string();
        table.row(vec![
            slo.name.clone().into(),
            slo.workload.to_string().into(),
            slo.promise.throughput_pps().map_or_else(|| "on demand".into(), number::rate).into(),
            latency(slo).into(),
            instances.len().to_string().into(),
            sum(&|instance| instance.cores.len() as u64).into(),
            sum(&|instance| u64::from(instance.ways)).into(),
            servers.into_iter().collect::<Vec<_>>().join(" ").into(),
        ]);
    }
    Ok(table.print(out, colour())?)
}

fn latency(slo: &Slo) -> String {
    number::time((slo.promise.latency_us() * 1e3) as u64)
}

fn show(plan: &Plan, name: &str, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let told = tell(plan, plan.find(name)?);
    if as_json {
        return json(out, &told);
    }
    let Admitted { slo, profile } = told.admitted;
    writeln!(out, "{}: {}", slo.name, slo.promise)?;
    writeln!(out, "runs {} with configuration {}", slo.workload, slo.configuration)?;
    writeln!(out, "traffic: {}", slo.traffic)?;
    writeln!(out, "admitted by the profile on \"{}\"", profile.cpu)?;
    Ok(instances(&told).print(out, colour())?)
}

fn remove(folder: &Folder, names: &[String], out: &mut dyn Write) -> anyhow::Result<()> {
    let _lock = folder.lock()?;
    let mut plan = folder.read()?;
    let mut freed = Vec::new();
    for name in names {
        plan.find(name)?;
        plan.slos.retain(|admitted| admitted.slo.name != *name);
        freed.push((name, plan.placement.remove(name)));
    }
    folder.write(&plan)?;
    for (name, instances) in freed {
        writeln!(out, "removed {name}: {instances} instance{} gone", if instances == 1 { " is" } else { "s are" })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::folder::tests::{admit as admitted, plan, slo};

    fn text(of: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>) -> String {
        let mut out = Vec::new();
        of(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_promised_is_listed_and_shown() {
        let (_dir, folder) = plan(2);
        let mut plan = folder.read().unwrap();
        assert_eq!(text(|out| list(&plan, false, out)), "nothing is promised\n");
        admitted(&folder, &mut plan, slo("acme", "nat-zipf", 5e6, 100.0));
        let listed = text(|out| list(&plan, false, out));
        assert!(listed.starts_with("NAME  WORKLOAD"), "{listed}");
        let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!((row[0], row[1], row.last()), ("acme", "nat-zipf", Some(&"s0")), "{listed}");
        let shown = text(|out| show(&plan, "acme", false, out));
        assert!(shown.contains("acme: 5000000 packets/s, 95 % within 100.0 µs\nruns nat-zipf with"), "{shown}");
        assert!(shown.contains("acme.0"), "{shown}");
        let told: serde_json::Value = serde_json::from_str(&text(|out| show(&plan, "acme", true, out))).unwrap();
        assert_eq!((&told["slo"]["name"], &told["instances"][0]["server"]), (&"acme".into(), &"s0".into()), "{told}");
        assert!(show(&plan, "acmes", false, &mut Vec::new()).is_err());
    }

    #[test]
    fn several_are_placed_together_or_refused_one_by_one() {
        let (_dir, folder) = plan(1);
        let (mut plan, profiles) = (folder.read().unwrap(), Profiles::read(&folder).unwrap());
        let asked = |name: &str, pps: f64| {
            let text = format!(
                "name = \"{name}\"\nworkload = {{ nf = \"nat-zipf\" }}\ntraffic = \"sample\"\n\
                 promise = {{ reserved = {{ throughput_pps = {pps:e}, latency_us = 100 }} }}"
            );
            Asked::parse(&text).unwrap()
        };
        let chosen = choose(&[asked("a", 1e6), asked("b", 9e8)], &Programs::new(), &plan, &profiles).unwrap();
        let (admitted, refused) = place(&mut plan.placement, chosen);
        assert_eq!(admitted.iter().map(|one| one.slo.name.as_str()).collect::<Vec<_>>(), ["a"]);
        assert!(refused[0].0 == "b" && refused[0].1.nearest.is_some(), "{refused:?}");
        let twice = choose(&[asked("a", 1e6), asked("a", 1e6)], &Programs::new(), &plan, &profiles).unwrap_err();
        assert!(twice.to_string().contains("named \"a\" is there already"));
        let nonsense = choose(&[asked("a", -1.0)], &Programs::new(), &plan, &profiles).unwrap_err();
        assert!(nonsense.to_string().contains("above 0 and finite"), "{nonsense}");
        let unused = Programs::from([("ids".into(), Digest::of(b""))]);
        assert!(choose(&[asked("a", 1e6)], &unused, &plan, &profiles).unwrap_err().is::<Usage>());
    }

    #[test]
    fn programs_are_named() {
        let (dir, _) = plan(1);
        let file = dir.path().join("servers.toml");
        let known = programs(&[format!("nat={}", file.display())]).unwrap();
        assert_eq!(known["nat"], Digest::of(&std::fs::read(&file).unwrap()));
        assert!(programs(&["nat".into()]).unwrap_err().is::<Usage>());
        assert!(programs(&["nat=/nonexistent".into()]).unwrap_err().to_string().contains("the program of nat"));
    }
}
