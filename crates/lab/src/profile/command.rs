//! `sluice profile`: profiles of NFs and chains, for the planner of SLOs.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use sluice_api::config::{Service, hop};
use sluice_cache::CacheError;
use sluice_cache::control::CacheControl;
use sluice_cache::host::Processor;
use sluice_cache::resctrl::Resctrl;
use sluice_cache::trace::Traced;
use sluice_cli::lab::profile::{CacheSource, ProfileArgs};
use sluice_cli::table::{Table, colour};
use sluice_cli::usage::{Usage, json};
use sluice_config::host;
use sluice_slo::curve::{Confidence, Curve};
use sluice_slo::digest::Digest;
use sluice_slo::profile::{Key, Profile, Source};
use sluice_slo::slo::{Promise, Slo, Workload};

use super::again::Again;
use super::{Conditions, MeasureError, Ways, again, chain, chase, traffic};
use crate::bench::curves;
use crate::estimate::Subject;
use crate::estimate::command::{config, of_program, subject_of};

/// Advice for a busy host.
const QUIETER: &str = "nothing is written: run again on a quiet host, or give the NF a core that nothing else uses (isolcpus=, and --core N); \
                       --noisy writes it all the same";

/// The effect of a profile of the whole cache.
const WHOLE: &str = "by this profile, an SLO takes all cache ways of a server, and fits on one with ddio_ways = 0 only";

/// What is profiled: each NF with its arguments, in the order of the chain.
struct Target {
    workload: Workload,
    nfs: Vec<(Subject, Vec<String>)>,
}

impl Target {
    fn find(args: &ProfileArgs, here: &host::Host) -> anyhow::Result<Self> {
        let nf = |found| Self { workload: Workload::Nf(args.nf.clone()), nfs: vec![found] };
        let Some(path) = &args.config else { return Ok(nf(of_program(&args.nf, &args.args, here)?)) };
        let config = config(path)?;
        let found = |service: &Service| Ok::<_, anyhow::Error>((subject_of(&config, service, here)?, service.args.clone()));
        if let Some(service) = config.services.iter().find(|service| service.name == args.nf && !args.chain) {
            return Ok(nf(found(service)?));
        }
        let Some(chain) = config.chains.iter().find(|chain| chain.name == args.nf) else {
            let services: Vec<&str> = config.services.iter().map(|service| service.name.as_str()).collect();
            let chains: Vec<&str> = config.chains.iter().map(|chain| chain.name.as_str()).collect();
            let (path, name) = (path.display(), &args.nf);
            let known = format!("the services {} and the chains {}", services.join(", "), chains.join(", "));
            return Err(Usage(format!("{path} has no service or chain {name}; it has {known}")).into());
        };
        let cannot = |why: String| Usage(format!("chain {}: {why}", chain.name));
        let mut nfs = Vec::with_capacity(chain.services.len());
        for (i, written) in chain.services.iter().enumerate() {
            let (name, is_reverse) = hop(written);
            if is_reverse || chain.services[..i].iter().any(|other| hop(other).0 == name) {
                let why = format!("packets come to {name} twice, and only chains that meet a service once can be profiled");
                return Err(cannot(why).into());
            }
            let service = config.services.iter().find(|service| service.name == name);
            nfs.push(found(service.with_context(|| format!("there is no service {name}"))?)?);
        }
        if nfs.is_empty() {
            return Err(cannot("it has no services, so there is nothing to profile".into()).into());
        }
        Ok(Self { workload: Workload::Chain(chain.services.clone()), nfs })
    }

    fn key(&self, traffic: String) -> anyhow::Result<Key> {
        let mut binaries = Vec::with_capacity(self.nfs.len());
        for (subject, _) in &self.nfs {
            let program = std::fs::read(&subject.exec).with_context(|| format!("cannot read {}", subject.exec.display()))?;
            binaries.push(Digest::of(&program));
        }
        let of = |(subject, args): &(Subject, Vec<String>)| Digest::of_configuration(args, &subject.env);
        let configuration = Digest::of_configurations(&self.nfs.iter().map(of).collect::<Vec<_>>());
        let cpu = Processor::read(Path::new("/")).model;
        Ok(Key { workload: self.workload.clone(), binaries, configuration, traffic, cpu })
    }

    fn traced(&self, given: Option<&Path>) -> Result<Vec<Traced>, MeasureError> {
        let of = |(subject, args): &(Subject, Vec<String>)| {
            let program = match given {
                Some(folder) if folder.is_dir() => folder.join(subject.exec.file_name().unwrap_or_default()),
                Some(program) => program.into(),
                None => super::traced(&subject.exec)?,
            };
            Ok(Traced { program, args: args.clone(), env: subject.env.clone() })
        };
        self.nfs.iter().map(of).collect()
    }
}

pub fn run(args: &ProfileArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let here = host::Host::here();
    let target = Target::find(args, &here)?;
    let packets = traffic::packets(&args.traffic)?;
    let key = target.key(packets.name.clone())?;
    let core = args.core.or_else(|| here.allowed.last().copied()).unwrap_or(0);
    if let Some(path) = &args.check {
        let [(subject, _)] = target.nfs.as_slice() else {
            return Err(Usage("a chain's profile is composed of its NFs': check those, one by one".into()).into());
        };
        let kept = Profile::load(path)?;
        is_of(&kept, &key)?;
        let found = again::measure(subject, core, packets, &kept, args.loads)?;
        return if args.json { json(out, &found) } else { Ok(print_again(&found, out)?) };
    }
    // Unwritable files are reported before the measurement.
    for path in [&args.out, &args.plot].into_iter().flatten() {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        anyhow::ensure!(folder.is_dir(), "there is no folder {} for {}", folder.display(), path.display());
    }
    let (mut found, note) = match (&target.workload, target.nfs.as_slice()) {
        (Workload::Nf(_), [(subject, _)]) => {
            let (ways, note) = ways(args, &target)?;
            (super::measure(subject, Conditions { core, packets, ways }, key)?, note)
        }
        _ => {
            let (model, note) = model(args, &target)?;
            let subjects: Vec<Subject> = target.nfs.iter().map(|(subject, _)| subject.clone()).collect();
            (chain::measure(&subjects, chain::Conditions { core, packets, model }, key)?, note)
        }
    };
    found.throughput.notes.extend(note);
    // First, because a host that is too noisy may be the reason that nothing is promised.
    accept(&mut found, args.noisy)?;
    found.check()?;
    if found.source == Source::None {
        eprintln!("{WHOLE}");
    }
    if let Some(path) = &args.out {
        found.save(path)?;
    }
    if let Some(path) = &args.plot {
        let picture = curves::svg(&found).context("there is nothing to draw")?;
        std::fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        return json(out, &found);
    }
    Ok(print(&found, out)?)
}

/// Checks that the host was quiet enough, or notes that it was not if the profile is forced.
fn accept(found: &mut Profile, noisy: bool) -> anyhow::Result<()> {
    if let Err(why) = found.check_quiet() {
        anyhow::ensure!(noisy, "{why}; {QUIETER}");
        found.latency.notes.push(why.to_string());
    }
    Ok(())
}

/// The source of throughput with fewer ways, and a note on it.
fn ways(args: &ProfileArgs, target: &Target) -> anyhow::Result<(Ways, Option<String>)> {
    let modelled = || {
        let (misses, cache_bytes) =
            super::misses(&target.traced(args.ways.traced.as_deref())?[0], &traffic::followed(&args.traffic)?)?;
        let (miss_ns, note) = miss(args, cache_bytes);
        Ok((Ways::Simulated { misses, miss_ns }, Some(note)))
    };
    match args.ways.cache {
        CacheSource::None => Ok((Ways::None, None)),
        CacheSource::Resctrl => {
            let control = Resctrl::open(&args.ways.resctrl, Path::new("/"))?;
            Ok((Ways::Controlled(Box::new(alone(control)?)), None))
        }
        CacheSource::Simulated => modelled(),
        CacheSource::Auto => {
            if let Ok(control) = Resctrl::open(&args.ways.resctrl, Path::new("/"))
                && control.shape().ways > 0
            {
                return Ok((Ways::Controlled(Box::new(alone(control)?)), None));
            }
            modelled().or_else(|why| Ok((Ways::None, Some(without(&why)))))
        }
    }
}

/// resctrl for this profile alone; removes the class of an interrupted one first.
fn alone(mut control: Resctrl) -> Result<Resctrl, CacheError> {
    if control.take_over(super::CLASS)? {
        eprintln!("removed the cache class {}, which a profile before this one has left", super::CLASS);
    }
    Ok(control)
}

/// The misses of a chain, and a note on them.
fn model(args: &ProfileArgs, target: &Target) -> anyhow::Result<(Option<chain::Model>, Option<String>)> {
    let modelled = || {
        let (misses, cache_bytes) =
            super::chain_misses(&target.traced(args.ways.traced.as_deref())?, &traffic::followed(&args.traffic)?)?;
        let (miss_ns, note) = miss(args, cache_bytes);
        Ok((Some(chain::Model { misses, miss_ns }), Some(note)))
    };
    match args.ways.cache {
        CacheSource::None => Ok((None, None)),
        CacheSource::Resctrl => {
            Err(Usage("ways of a chain are modelled, not measured: use --cache simulated, or --cache none".into()).into())
        }
        CacheSource::Simulated => modelled(),
        CacheSource::Auto => modelled().or_else(|why| Ok((None, Some(without(&why))))),
    }
}

/// Reports why there are no ways; returns a note.
fn without(why: &anyhow::Error) -> String {
    eprintln!("one throughput, with the whole cache: {why:#}");
    format!("no cache ways: {why:#}")
}

/// The cost of a miss, and its source.
fn miss(args: &ProfileArgs, cache_bytes: u64) -> (f64, String) {
    let (ns, what) = match (args.ways.miss_ns, args.ways.miss_ns.is_none().then(|| chase::miss_ns(cache_bytes)).flatten()) {
        (Some(ns), _) => (ns, "as given"),
        (None, Some(ns)) => (ns, "measured"),
        (None, None) => (chase::STATED_NS, "stated: there is too little memory to measure it"),
    };
    (ns, format!("a miss costs {ns:.0} ns, {what}"))
}

fn print(found: &Profile, out: &mut dyn Write) -> std::io::Result<()> {
    let source = match found.source {
        Source::Measured => "measured with cache classes",
        Source::Simulated => "simulated",
        Source::None => "without cache ways",
    };
    writeln!(out, "{}, traffic {}, {source}, on {}", found.key.workload, found.key.traffic, found.key.cpu)?;
    let mut table = Table::new(&[">WAYS", ">MPPS", ">PROMISED"]);
    for point in &found.throughput.points {
        let promised = point.y * (1.0 - found.throughput.margin) / 1e6;
        let ways = if found.source == Source::None { "all".into() } else { format!("{:.0}", point.x) };
        table.row(vec![ways.into(), format!("{:.3}", point.y / 1e6).into(), format!("{promised:.3}").into()]);
    }
    table.print(out, colour())?;
    let mut table = Table::new(&[">LOAD MPPS", ">95TH PERCENTILE µS", ">PROMISED"]);
    for point in &found.latency.points {
        let promised = point.y * (1.0 + found.latency.margin);
        table.row(vec![format!("{:.3}", point.x / 1e6).into(), format!("{:.1}", point.y).into(), format!("{promised:.1}").into()]);
    }
    table.print(out, colour())?;
    for (which, curve) in [("throughput", &found.throughput), ("latency", &found.latency)] {
        writeln!(out, "{which}: {}", summary(curve))?;
    }
    Ok(())
}

/// Checks that a profile matches what is to be measured.
fn is_of(profile: &Profile, key: &Key) -> anyhow::Result<()> {
    let Key { workload, binaries, configuration, traffic, cpu } = key.clone();
    let promise = Promise::Reserved { throughput_pps: 1.0, latency_us: 1.0 };
    let slo = Slo { name: String::new(), workload, configuration, traffic, promise };
    Ok(profile.is_for(&slo, &binaries, &cpu)?)
}

fn print_again(found: &Again, out: &mut dyn Write) -> std::io::Result<()> {
    let mut table = Table::new(&[">LOAD MPPS", ">95TH PERCENTILE µS", ">LOWEST", ">CURVE", ">PROMISED"]);
    for at in &found.latency {
        let us = [at.now_us, at.least_us, at.curve_us, at.promised_us].map(|us| format!("{us:.1}").into());
        table.row([format!("{:.3}", at.load_pps / 1e6).into()].into_iter().chain(us).collect());
    }
    table.print(out, colour())?;
    let [now, promised] = [found.now_pps, found.promised_pps].map(|pps| pps / 1e6);
    writeln!(out, "throughput: {now:.3} Mpps, promised {promised:.3}")?;
    let ((above, always), of) = (found.loads_above(), found.latency.len());
    let worst =
        found.above().filter(|above| *above > 0.0).map_or(String::new(), |part| format!(", by {:.1} % at most", part * 100.0));
    let distance = found.distance() * 100.0;
    writeln!(out, "latency: {distance:.1} % from the curve (median); above what is promised at {above} of {of} loads{worst}")?;
    writeln!(out, "  and at {always} of them whenever it was measured: there the profile promises too much, or the host is busier")
}

fn summary(curve: &Curve) -> String {
    let Curve { measured, error_bound, spread, margin, confidence, .. } = curve;
    let [error, spread, margin] = [error_bound, spread, margin].map(|part| part * 100.0);
    let points = if *measured == 1 { "1 point".into() } else { format!("{measured} points") };
    let mut text = format!("{points}, within {error:.1} %, spread {spread:.1} %, margin {margin:.1} %");
    if confidence.samples > 0 {
        let Confidence { samples, within, .. } = confidence;
        let percent = f64::from(*within) * 100.0 / f64::from(*samples);
        text.push_str(&format!("; {within} of {samples} samples ({percent:.0} %) within what is promised"));
    }
    for note in &curve.notes {
        text.push_str("\n  ");
        text.push_str(note);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_odd_is_reported_below_a_curve() {
        let curve = Curve { measured: 1, spread: 0.012, margin: 0.05, notes: vec!["noisy".into()], ..Curve::default() };
        let confidence = Confidence { samples: 40, within: 30, points: 1, unsure: 0 };
        let with = summary(&Curve { confidence, ..curve.clone() });
        assert!(with.contains("margin 5.0 %; 30 of 40 samples (75 %) within what is promised\n  noisy"), "{with}");
        assert_eq!(summary(&curve), "1 point, within 0.0 %, spread 1.2 %, margin 5.0 %\n  noisy");
    }

    #[test]
    fn a_host_that_is_too_noisy_gets_a_profile_only_if_asked() {
        let mut found: Profile = serde_json::from_str(
            r#"{"form":1,"key":{"workload":{"nf":"x"},"binaries":[],"configuration":"0","traffic":"t","cpu":"c"},"source":"none","cores":1,
                "memory_mib":1,"throughput":{"points":[{"x":20,"y":1e6}],"measured":1,"error_bound":0,"spread":0,"margin":0},
                "latency":{"points":[{"x":5e4,"y":1},{"x":9.5e5,"y":9}],"measured":12,"error_bound":0,"spread":0,"margin":0},"best_ways":20}"#,
        )
        .unwrap();
        accept(&mut found, false).unwrap();
        found.latency.confidence = Confidence { samples: 520, within: 312, points: 12, unsure: 3 };
        accept(&mut found, false).unwrap();
        found.latency.confidence.unsure = 7;
        let refused = accept(&mut found, false).unwrap_err().to_string();
        assert!(refused.starts_with("host too noisy: at 7 of 12 points the latency is not known to within half"), "{refused}");
        assert!(
            refused.contains("312 of 520 samples") && refused.contains("--noisy") && found.latency.notes.is_empty(),
            "{refused}"
        );
        accept(&mut found, true).unwrap();
        assert!(found.latency.notes[0].starts_with("host too noisy"), "{found:?}");
        let read: Profile = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
        assert_eq!(read, found, "the confidence is in the file");
    }
}
