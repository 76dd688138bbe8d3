//! `sluice slo`: SLOs of tenants: admit, list, apply to the daemon, remove.

mod live;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Serialize;
use sluice_api::client::{Client, ClientError};
use sluice_cli::bars;
use sluice_cli::lab::slo::{AddArgs, SloArgs, SloCommand};
use sluice_cli::number;
use sluice_cli::table::{Table, colour};
use sluice_cli::usage::{Usage, json, read};
use sluice_planner::admission::{Refusal, admit, admit_all};
use sluice_slo::digest::Digest;
use sluice_slo::on_demand::{Footprint, LeaseError, lease};
use sluice_slo::placement::{Instance, Placement};
use sluice_slo::profile::{Key, Profile, Source};
use sluice_slo::slo::{Promise, Slo, Workload};

use crate::plan::folder::{Admitted, Folder, Plan};
use crate::plan::profiles::{Profiles, Programs, UNMEASURED, WrittenSlo};

/// An instance, as JSON output.
#[derive(Debug, Serialize)]
struct InstanceOutput<'a> {
    server: &'a str,
    #[serde(flatten)]
    instance: &'a Instance,
    /// Bits of its class, from the lowest way, in hexadecimal digits.
    mask: String,
}

/// An SLO and its instances, as JSON output.
#[derive(Debug, Serialize)]
struct SloOutput<'a> {
    #[serde(flatten)]
    admitted: &'a Admitted,
    instances: Vec<InstanceOutput<'a>>,
}

/// The result of `add`.
#[derive(Debug, Serialize)]
struct AddedOutput<'a> {
    dry_run: bool,
    added: Vec<SloOutput<'a>>,
    refused: Vec<RefusedOutput>,
}

#[derive(Debug, Serialize)]
struct RefusedOutput {
    name: String,
    reason: String,
    nearest: Option<Promise>,
}

pub fn run(args: &SloArgs, client: impl Fn() -> Result<Client, ClientError>, out: &mut dyn Write) -> anyhow::Result<()> {
    let folder = &Folder::at(&args.folder.plan);
    match &args.command {
        SloCommand::Add(add) => self::add(folder, add, out),
        SloCommand::List { live, json, .. } if live.live => live::list(&client()?.promises()?, json.json, out),
        SloCommand::List { json, .. } => list(&folder.read()?, json.json, out),
        SloCommand::Show { name, live, json, .. } if live.live => live::show(&client()?.promises()?, name, json.json, out),
        SloCommand::Show { name, json, .. } => show(&folder.read()?, name, json.json, out),
        SloCommand::Apply { server, json } => live::apply(&folder.read()?, server.as_deref(), &mut client()?, json.json, out),
        SloCommand::Withdraw(args) => live::withdraw(&mut client()?, args.json, out),
        SloCommand::Remove { names, .. } => remove(folder, names, out),
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
        let text = refused.iter().map(|(name, refused)| format!("\"{name}\" is refused: {refused}")).collect::<Vec<_>>().join("\n");
        if args.json {
            let output_of = |(name, refused): (String, Refused)| {
                let (reason, nearest) = match refused {
                    Refused::Reserved(refusal) => (refusal.reason.to_string(), refusal.nearest),
                    other => (other.to_string(), None),
                };
                RefusedOutput { name, reason, nearest }
            };
            let refused = refused.into_iter().map(output_of).collect();
            json(out, &AddedOutput { dry_run: args.dry_run, added: Vec::new(), refused })?;
        }
        bail!("{text}\nnothing was changed");
    }
    let first = plan.slos.len();
    plan.slos.extend(admitted);
    if !args.dry_run {
        folder.write(&plan)?;
    }
    if args.json {
        let added = plan.slos[first..].iter().map(|admitted| output_of(&plan, admitted)).collect();
        return json(out, &AddedOutput { dry_run: args.dry_run, added, refused: Vec::new() });
    }
    for admitted in &plan.slos[first..] {
        let word = if args.dry_run { "would be added" } else { "added" };
        writeln!(
            out,
            "{word}: {}, {}{}",
            admitted.slo.name,
            admitted.slo.promise,
            match &admitted.profile {
                Some(key) => source(profiles.of(&admitted.slo.name, key)?),
                None => "",
            }
        )?;
        instances(&output_of(&plan, admitted)).print(out, colour())?;
    }
    Ok(())
}

/// The source of a promise, unless it is the hardware.
fn source(profile: &Profile) -> &'static str {
    match profile.source {
        Source::Measured => "",
        Source::Simulated => " (by a simulated profile)",
        Source::None => " (by a profile without cache control)",
    }
}

fn asked(file: &Path) -> anyhow::Result<WrittenSlo> {
    WrittenSlo::parse(&read(file)?).with_context(|| format!("{} is no SLO; `sluice slo --help` shows one", file.display()))
}

/// Parses `NF=FILE`.
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

/// A valid SLO.
#[derive(Debug)]
enum Chosen<'a> {
    /// With its profiles, one per processor.
    Reserved(Slo, Vec<&'a Profile>),
    /// With the resources of its first instance.
    OnDemand(Slo, Footprint),
}

impl Chosen<'_> {
    fn slo(&self) -> &Slo {
        match self {
            Self::Reserved(slo, _) | Self::OnDemand(slo, _) => slo,
        }
    }
}

/// Why an SLO has no room.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Reserved(Refusal),
    #[error(transparent)]
    OnDemand(LeaseError),
    /// Nothing describes the resources of a reserved SLO.
    #[error("no profile of it is of a server's processor: profile it there")]
    NoProfile,
}

/// The SLOs and their profiles, if all of them are valid.
fn choose<'a>(asked: &[WrittenSlo], programs: &Programs, plan: &Plan, profiles: &'a Profiles) -> anyhow::Result<Vec<Chosen<'a>>> {
    let mut names: BTreeSet<&str> = plan.slos.iter().map(|admitted| admitted.slo.name.as_str()).collect();
    let mut chosen = Vec::new();
    for one in asked {
        let unmeasured = one.with(&Digest::of(b""));
        unmeasured.check()?;
        if !names.insert(&one.name) {
            bail!("an SLO named \"{}\" is there already: choose another name, or remove it first", one.name);
        }
        chosen.push(match one.promise {
            Promise::OnDemand { .. } => Chosen::OnDemand(unmeasured, one.footprint.unwrap_or(UNMEASURED)),
            Promise::Reserved { .. } => {
                let found = profiles.choose(one, programs, &plan.placement);
                let (slo, fit) = found.with_context(|| format!("\"{}\" is refused", one.name))?;
                Chosen::Reserved(slo, fit)
            }
        });
    }
    for nf in programs.keys() {
        let runs = |one: &WrittenSlo| match &one.workload {
            Workload::Nf(service) => service == nf,
            Workload::Chain(services) => services.contains(nf),
        };
        if !asked.iter().any(runs) {
            return Err(Usage(format!("--binary {nf}=…: no SLO here runs an NF named \"{nf}\"")).into());
        }
    }
    Ok(chosen)
}

/// Finds room for all SLOs; admitted ones are in the given order.
///
/// Reserved ones come first, largest first; one without room on servers of one processor is tried
/// on those of the next. Those on demand take what is left.
fn place(placement: &mut Placement, chosen: Vec<Chosen<'_>>) -> (Vec<Admitted>, Vec<(String, Refused)>) {
    let mut found: BTreeMap<usize, Result<Option<Key>, Refused>> = BTreeMap::new();
    let mut reserved: Vec<(usize, &[&Profile])> = Vec::new();
    let mut firsts: Vec<(&Slo, &Profile)> = Vec::new();
    for (i, one) in chosen.iter().enumerate() {
        let Chosen::Reserved(slo, fit) = one else { continue };
        if let Some((first, others)) = fit.split_first() {
            reserved.push((i, others));
            firsts.push((slo, first));
        } else {
            found.insert(i, Err(Refused::NoProfile));
        }
    }
    let results = admit_all(placement, &firsts);
    for (((i, others), (slo, first)), result) in reserved.into_iter().zip(firsts).zip(results) {
        let by = match result {
            Ok(_) => Ok(first),
            Err(mut refusal) => {
                let fits = others.iter().find(|other| match admit(placement, slo, other) {
                    Ok(_) => true,
                    Err(also) => {
                        refusal = refusal.clone().or_nearer(also, slo);
                        false
                    }
                });
                fits.copied().ok_or(Refused::Reserved(refusal))
            }
        };
        found.insert(i, by.map(|profile| Some(profile.key.clone())));
    }
    for (i, one) in chosen.iter().enumerate() {
        if let Chosen::OnDemand(slo, footprint) = one {
            found.insert(i, lease(placement, slo, *footprint).map(|_| None).map_err(Refused::OnDemand));
        }
    }
    let (mut admitted, mut refused) = (Vec::new(), Vec::new());
    for (i, found) in found {
        let slo = chosen[i].slo();
        match found {
            Ok(profile) => admitted.push(Admitted { slo: slo.clone(), profile }),
            Err(refusal) => refused.push((slo.name.clone(), refusal)),
        }
    }
    (admitted, refused)
}

fn output_of<'a>(plan: &'a Plan, admitted: &'a Admitted) -> SloOutput<'a> {
    let mut instances = Vec::new();
    for server in &plan.placement.servers {
        let masks = server.masks();
        let own = server.instances.iter().filter(|instance| instance.slo == admitted.slo.name);
        instances.extend(own.map(|instance| {
            let mask = masks.get(&(instance.slo.clone(), instance.number)).copied().unwrap_or(0);
            InstanceOutput { server: &server.name, instance, mask: format!("{mask:x}") }
        }));
    }
    instances.sort_by_key(|entry| entry.instance.number);
    SloOutput { admitted, instances }
}

fn instances(slo: &SloOutput<'_>) -> Table {
    let mask = |entry: &InstanceOutput<'_>| u64::from_str_radix(&entry.mask, 16).unwrap_or(0);
    bars::instances(slo.instances.iter().map(|entry| (entry.server, entry.instance, mask(entry))))
}

fn list(plan: &Plan, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let all: Vec<SloOutput<'_>> = plan.slos.iter().map(|admitted| output_of(plan, admitted)).collect();
    if as_json {
        return json(out, &all);
    }
    if all.is_empty() {
        return Ok(writeln!(out, "nothing is promised")?);
    }
    let mut table = Table::new(&["NAME", "WORKLOAD", ">PROMISED", ">95 % WITHIN", ">INSTANCES", ">CORES", ">WAYS", "SERVERS"]);
    for SloOutput { admitted: Admitted { slo, .. }, instances } in &all {
        let servers: BTreeSet<&str> = instances.iter().map(|entry| entry.server).collect();
        let sum = |of: &dyn Fn(&Instance) -> u64| instances.iter().map(|entry| of(entry.instance)).sum::<u64>().to_string();
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
    let found = output_of(plan, plan.find(name)?);
    if as_json {
        return json(out, &found);
    }
    let Admitted { slo, profile } = found.admitted;
    writeln!(out, "{}: {}", slo.name, slo.promise)?;
    match profile {
        Some(profile) => {
            writeln!(out, "runs {} with configuration {}", slo.workload, slo.configuration)?;
            writeln!(out, "traffic: {}\nadmitted by the profile on \"{}\"", slo.traffic, profile.cpu)?;
        }
        // Its configuration is unknown, unless specified.
        None => {
            let known = Some(&slo.configuration).filter(|digest| **digest != Digest::of(b""));
            let with = known.map(|digest| format!(" with configuration {digest}")).unwrap_or_default();
            writeln!(out, "runs {}{with}", slo.workload)?;
            writeln!(out, "admitted without a profile: the daemon finds out what it needs, up to its cap")?;
        }
    }
    Ok(instances(&found).print(out, colour())?)
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
        let found: serde_json::Value = serde_json::from_str(&text(|out| show(&plan, "acme", true, out))).unwrap();
        assert_eq!((&found["slo"]["name"], &found["instances"][0]["server"]), (&"acme".into(), &"s0".into()), "{found}");
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
            WrittenSlo::parse(&text).unwrap()
        };
        let chosen = choose(&[asked("a", 1e6), asked("b", 9e8)], &Programs::new(), &plan, &profiles).unwrap();
        let (admitted, refused) = place(&mut plan.placement, chosen);
        assert_eq!(admitted.iter().map(|one| one.slo.name.as_str()).collect::<Vec<_>>(), ["a"]);
        let (name, Refused::Reserved(refusal)) = &refused[0] else { panic!("{refused:?}") };
        assert!(name == "b" && refusal.nearest.is_some(), "{refused:?}");
        let twice = choose(&[asked("a", 1e6), asked("a", 1e6)], &Programs::new(), &plan, &profiles).unwrap_err();
        assert!(twice.to_string().contains("named \"a\" is there already"));
        let nonsense = choose(&[asked("a", -1.0)], &Programs::new(), &plan, &profiles).unwrap_err();
        assert!(nonsense.to_string().contains("above 0 and finite"), "{nonsense}");
        let unused = Programs::from([("ids".into(), Digest::of(b""))]);
        assert!(choose(&[asked("a", 1e6)], &unused, &plan, &profiles).unwrap_err().is::<Usage>());
    }

    #[test]
    fn one_on_demand_needs_no_profile_and_takes_a_place() {
        let (_dir, folder) = plan(1);
        let (mut plan, profiles) = (folder.read().unwrap(), Profiles::read(&folder).unwrap());
        let asked = |more: &str| {
            let text = format!(
                "name = \"web\"\nworkload = {{ nf = \"anything\" }}\n{more}\n\
                 promise = {{ on_demand = {{ latency_us = 80, cap = {{ instances = 4 }} }} }}"
            );
            WrittenSlo::parse(&text).unwrap()
        };
        let chosen = choose(&[asked("")], &Programs::new(), &plan, &profiles).unwrap();
        let (admitted, refused) = place(&mut plan.placement, chosen);
        assert!(refused.is_empty() && admitted[0].profile.is_none(), "{refused:?}");
        plan.slos.extend(admitted);
        folder.write(&plan).unwrap();
        let plan = folder.read().unwrap();
        let shown = text(|out| show(&plan, "web", false, out));
        assert!(shown.contains("on demand up to 4 instances") && shown.contains("without a profile"), "{shown}");
        assert!(shown.contains("runs anything\n"), "nothing is shown about an unknown configuration: {shown}");
        let row: Vec<&str> = shown.lines().last().unwrap().split_whitespace().collect();
        assert_eq!((row[0], row[2], &row[row.len() - 2..]), ("web.0", "0", &["-", "-"][..]), "{shown}");
        let big = WrittenSlo { name: "big".into(), ..asked("footprint = { cores = 99, memory_mib = 1 }") };
        let chosen = choose(&[big], &Programs::new(), &plan, &profiles).unwrap();
        let (_, refused) = place(&mut plan.placement.clone(), chosen);
        assert!(refused[0].1.to_string().contains("no server has 99 cores"), "{refused:?}");
        let reserved =
            "name = \"a\"\nworkload = { nf = \"nat-zipf\" }\npromise = { reserved = { throughput_pps = 1, latency_us = 100 } }\n";
        for (more, why) in
            [("", "names no traffic"), ("traffic = \"sample\"\nfootprint = { cores = 1, memory_mib = 1 }", "`footprint`")]
        {
            let asked = WrittenSlo::parse(&format!("{reserved}{more}")).unwrap();
            let error = choose(&[asked], &Programs::new(), &plan, &profiles).err().unwrap();
            assert!(format!("{error:#}").contains(why), "{error:#}");
        }
    }

    #[test]
    fn those_on_demand_take_what_reserved_ones_leave() {
        // Two servers of a core each, with different processors: the second SLO finds room by its
        // second profile only.
        let (_dir, folder) = plan(1);
        let toml = std::fs::read_to_string(folder.path().join("servers.toml")).unwrap();
        let other = toml.replace("\"s0\"", "\"s1\"").replace("\"sample\"", "\"other\"");
        let small = toml.replace("cores = 9", "cores = 1");
        std::fs::write(folder.path().join("servers.toml"), small + &other.replace("cores = 9", "cores = 1")).unwrap();
        let at = |name: &str| folder.path().join("profiles").join(name);
        let mut profile = Profile::load(&at("nat-zipf.json")).unwrap();
        profile.key.cpu = "other".into();
        profile.save(&at("other.json")).unwrap();
        let (mut plan, profiles) = (folder.read().unwrap(), Profiles::read(&folder).unwrap());
        let reserved = |name: &str| {
            format!(
                "name = \"{name}\"\nworkload = {{ nf = \"nat-zipf\" }}\ntraffic = \"sample\"\n\
                 promise = {{ reserved = {{ throughput_pps = 1e5, latency_us = 100 }} }}"
            )
        };
        let web = "name = \"web\"\nworkload = { nf = \"anything\" }\n\
                   promise = { on_demand = { latency_us = 80, cap = { instances = 1 } } }";
        let asked = [web.to_string(), reserved("a"), reserved("b")].map(|text| WrittenSlo::parse(&text).unwrap());
        let chosen = choose(&asked, &Programs::new(), &plan, &profiles).unwrap();
        let (admitted, refused) = place(&mut plan.placement, chosen);
        assert_eq!(admitted.iter().map(|one| one.slo.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(matches!(&refused[..], [(name, Refused::OnDemand(_))] if name == "web"), "{refused:?}");
    }

    #[test]
    fn a_reserved_one_without_a_profile_is_refused() {
        let (_dir, folder) = plan(1);
        let mut plan = folder.read().unwrap();
        let (admitted, refused) = place(&mut plan.placement, vec![Chosen::Reserved(slo("a", "nat-zipf", 1e6, 100.0), Vec::new())]);
        assert!(admitted.is_empty() && refused[0].1.to_string().contains("profile it there"), "{refused:?}");
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
