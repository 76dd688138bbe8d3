//! The profiles of a plan, and the choice of one for an SLO.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use sluice_slo::digest::Digest;
use sluice_slo::on_demand::Footprint;
use sluice_slo::placement::Placement;
use sluice_slo::profile::{Key, Profile, ProfileError};
use sluice_slo::slo::{Promise, Slo, Workload};

use super::folder::Folder;

/// An SLO as written; the configuration is optional if only one is profiled.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenSlo {
    pub name: String,
    pub workload: Workload,
    pub configuration: Option<Digest>,
    /// Its traffic, as named in the profile. Not needed on demand.
    #[serde(default)]
    pub traffic: String,
    pub promise: Promise,
    /// Resources of an instance on demand; [`UNMEASURED`] by default. For a reserved SLO they come
    /// from a profile.
    pub footprint: Option<Footprint>,
}

/// Default resources of an instance: a core, and the memory of an NF with medium tables.
pub const UNMEASURED: Footprint = Footprint { cores: 1, memory_mib: 64 };

impl WrittenSlo {
    /// Reads one from TOML, or from JSON if it begins with a brace.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(if text.trim_start().starts_with('{') { serde_json::from_str(text)? } else { toml::from_str(text)? })
    }

    /// The SLO with this configuration, unless it names one.
    pub fn with(&self, configuration: &Digest) -> Slo {
        let Self { name, workload, traffic, promise, .. } = self.clone();
        Slo { name, workload, configuration: self.configuration.as_ref().unwrap_or(configuration).clone(), traffic, promise }
    }
}

/// The known programs of NFs.
pub type Programs = BTreeMap<String, Digest>;

pub struct Profiles {
    folder: PathBuf,
    good: Vec<(PathBuf, Profile)>,
    /// Errors of unusable profiles.
    bad: Vec<String>,
}

impl Profiles {
    /// Reads the profiles; none without the folder. An unusable one matters only where it is
    /// needed.
    pub fn read(plan: &Folder) -> anyhow::Result<Self> {
        let folder = plan.path().join("profiles");
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        let cannot = || format!("cannot read {}: put profiles there, as `sluice plan --help` shows", folder.display());
        let mut paths = Vec::new();
        match std::fs::read_dir(&folder) {
            Ok(entries) => {
                for entry in entries {
                    paths.push(entry.with_context(cannot)?.path());
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(cannot),
        }
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        for path in paths {
            match Profile::load(&path) {
                Ok(profile) => good.push((path, profile)),
                // Its message names the file.
                Err(error @ ProfileError::File { .. }) => bad.push(format!("{error}; move it away, or profile again")),
                Err(error) => bad.push(format!("profile {}: {error}", path.display())),
            }
        }
        Ok(Self { folder, good, bad })
    }

    pub fn bad(&self) -> &[String] {
        &self.bad
    }

    /// The profile by which an SLO was admitted.
    pub fn of(&self, slo: &str, key: &Key) -> anyhow::Result<&Profile> {
        let found = self.good.iter().find(|(_, profile)| profile.key == *key);
        let bad = if self.bad.is_empty() { String::new() } else { format!(" ({})", self.bad.join("; ")) };
        found.map(|(_, profile)| profile).with_context(|| {
            let folder = self.folder.display();
            format!("the profile by which {slo} was admitted is no longer in {folder}{bad}: put it back, or remove and add the SLO")
        })
    }

    /// The profiles for an SLO, one per processor of servers, and the SLO with its configuration.
    pub fn choose(&self, asked: &WrittenSlo, programs: &Programs, placement: &Placement) -> anyhow::Result<(Slo, Vec<&Profile>)> {
        ensure!(asked.footprint.is_none(), "a profile says what a reserved SLO takes: leave `footprint` out");
        ensure!(!asked.traffic.is_empty(), "it names no traffic: write traffic = \"…\", as its profile does");
        let own: Vec<_> = self.good.iter().filter(|(_, profile)| profile.key.workload == asked.workload).collect();
        if own.is_empty() {
            let folder = self.folder.display();
            ensure!(self.bad.is_empty(), "no profile of \"{}\" in {folder} can be used: {}", asked.workload, self.bad.join("; "));
            let known: BTreeSet<String> = self.good.iter().map(|(_, profile)| profile.key.workload.to_string()).collect();
            let known = if known.is_empty() { "none".into() } else { known.into_iter().collect::<Vec<_>>().join(", ") };
            bail!("no profile of \"{}\" is in {folder}: put one there; there are profiles of: {known}", asked.workload);
        }
        let (mut fit, mut nearest): (Vec<&Profile>, Option<(u32, String)>) = (Vec::new(), None);
        for (path, profile) in own {
            match is_for(profile, asked, programs, placement) {
                Ok(()) if fit.iter().any(|other| other.key == profile.key) => {}
                Ok(()) => fit.push(profile),
                Err(error) => {
                    let rank = how_near(&error);
                    if nearest.as_ref().is_none_or(|(best, _)| rank > *best) {
                        nearest = Some((rank, format!("{}: {error}", path.display())));
                    }
                }
            }
        }
        let Some(first) = fit.first() else { bail!("{}", nearest.map_or_else(String::new, |(_, text)| text)) };
        if let Some(other) = fit.iter().find(|other| other.key.configuration != first.key.configuration) {
            let (a, b) = (&first.key.configuration, &other.key.configuration);
            bail!(
                "\"{}\" is profiled with several configurations ({a}, {b}): say which in the SLO, configuration = \"{a}\"",
                asked.workload
            );
        }
        if fit.iter().any(|other| other.key.binaries != first.key.binaries) {
            bail!("several binaries of \"{}\" are profiled: say which runs, with --binary NF=FILE", asked.workload);
        }
        Ok((asked.with(&first.key.configuration), fit))
    }
}

/// Whether a profile matches the SLO, the known programs, and some server's processor.
fn is_for(profile: &Profile, asked: &WrittenSlo, programs: &Programs, placement: &Placement) -> Result<(), ProfileError> {
    let services = match &asked.workload {
        Workload::Nf(service) => std::slice::from_ref(service),
        Workload::Chain(services) => services,
    };
    let mut binaries = profile.key.binaries.clone();
    for (binary, service) in binaries.iter_mut().zip(services) {
        if let Some(known) = programs.get(service) {
            *binary = known.clone();
        }
    }
    let cpus = || placement.servers.iter().map(|server| server.shape.cpu.as_str());
    let cpu = cpus().find(|cpu| *cpu == profile.key.cpu).or_else(|| cpus().next()).unwrap_or_default();
    profile.is_for(&asked.with(&profile.key.configuration), &binaries, cpu)
}

/// How closely a profile matches, by its error.
fn how_near(error: &ProfileError) -> u32 {
    match error {
        ProfileError::Cpu { .. } => 3,
        ProfileError::Binary { .. } => 2,
        ProfileError::Other { what: "traffic", .. } => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::folder::tests::plan;
    use super::*;

    const TOML: &str = r#"
name = "acme"
workload = { nf = "nat-zipf" }
traffic = "sample"
promise = { reserved = { throughput_pps = 2e6, latency_us = 80 } }
"#;

    fn said(folder: &Folder, asked: &WrittenSlo, programs: &Programs) -> String {
        let (profiles, plan) = (Profiles::read(folder).unwrap(), folder.read().unwrap());
        format!("{:#}", profiles.choose(asked, programs, &plan.placement).unwrap_err())
    }

    /// Changes the profile of the NAT into another file.
    fn change(folder: &Folder, file: &str, change: impl FnOnce(&mut Profile)) {
        let at = |name: &str| folder.path().join("profiles").join(name);
        let mut profile = Profile::load(&at("nat-zipf.json")).unwrap();
        change(&mut profile);
        profile.save(&at(file)).unwrap();
    }

    #[test]
    fn toml_and_json_say_the_same() {
        let asked = WrittenSlo::parse(TOML).unwrap();
        let json = r#" {"name": "acme", "workload": {"nf": "nat-zipf"}, "traffic": "sample",
            "promise": {"reserved": {"throughput_pps": 2e6, "latency_us": 80}}}"#;
        assert_eq!(WrittenSlo::parse(json).unwrap(), asked);
        for (good, wrong) in [("latency_us", "latency_ms"), ("traffic", "trafic"), ("{ nf =", "{ fn =")] {
            let error = WrittenSlo::parse(&TOML.replace(good, wrong)).unwrap_err().to_string();
            assert!(error.contains(wrong.trim_start_matches("{ ").trim_end_matches(" =")), "{error}");
        }
    }

    #[test]
    fn the_profile_is_found_and_gives_the_configuration() {
        let (_dir, folder) = plan(1);
        let (profiles, plan) = (Profiles::read(&folder).unwrap(), folder.read().unwrap());
        let (slo, found) = profiles.choose(&WrittenSlo::parse(TOML).unwrap(), &Programs::new(), &plan.placement).unwrap();
        assert_eq!((slo.configuration, found.len()), (Digest::of(b""), 1));
        let programs = Programs::from([("nat-zipf".into(), Digest::of(b"nat-zipf"))]);
        assert!(profiles.choose(&WrittenSlo::parse(TOML).unwrap(), &programs, &plan.placement).is_ok());
        assert!(profiles.of("acme", &found[0].key).is_ok());
        let other = Key { traffic: "other".into(), ..found[0].key.clone() };
        assert!(profiles.of("acme", &other).unwrap_err().to_string().contains("put it back"));
    }

    #[test]
    fn what_is_of_something_else_is_refused() {
        let (_dir, folder) = plan(1);
        let (asked, none) = (WrittenSlo::parse(TOML).unwrap(), Programs::new());
        let of = |from: &str, to: &str| WrittenSlo::parse(&TOML.replace(from, to)).unwrap();
        let unknown = said(&folder, &of("nat-zipf", "dpi"), &none);
        assert!(unknown.contains("no profile of \"dpi\"") && unknown.contains("firewall, ids, nat-zipf"), "{unknown}");
        let traffic = said(&folder, &of("sample", "1518 B"), &none);
        assert!(traffic.contains("nat-zipf.json: the profile is of traffic \"sample\""), "{traffic}");
        let programs = Programs::from([("nat-zipf".into(), Digest::of(b"newer"))]);
        assert!(said(&folder, &asked, &programs).contains("another binary of \"nat-zipf\""));
        let configured = WrittenSlo { configuration: Some(Digest::of(b"x")), ..asked.clone() };
        assert!(said(&folder, &configured, &none).contains("the profile is of configuration"));
        change(&folder, "nat-zipf.json", |profile| profile.key.cpu = "A".into());
        assert!(said(&folder, &asked, &none).contains("made on \"A\" and the server has \"sample\": profile there"));
    }

    #[test]
    fn without_the_folder_there_are_no_profiles() {
        let (_dir, folder) = plan(1);
        let asked = WrittenSlo::parse(TOML).unwrap();
        std::fs::remove_dir_all(folder.path().join("profiles")).unwrap();
        let said = said(&folder, &asked, &Programs::new());
        assert!(said.contains("put one there; there are profiles of: none"), "{said}");
        // A file in place of the folder is an error.
        std::fs::write(folder.path().join("profiles"), "").unwrap();
        assert!(Profiles::read(&folder).err().unwrap().to_string().contains("put profiles there"));
    }

    #[test]
    fn a_choice_that_is_not_clear_is_asked_for() {
        let (_dir, folder) = plan(1);
        let (asked, none) = (WrittenSlo::parse(TOML).unwrap(), Programs::new());
        change(&folder, "two.json", |profile| profile.key.binaries = vec![Digest::of(b"two")]);
        assert!(said(&folder, &asked, &none).contains("--binary NF=FILE"));
        change(&folder, "two.json", |profile| profile.key.configuration = Digest::of(b"two"));
        assert!(said(&folder, &asked, &none).contains("say which in the SLO, configuration = "));
    }

    #[test]
    fn a_broken_profile_matters_where_it_is_needed() {
        let (_dir, folder) = plan(1);
        let asked = WrittenSlo::parse(TOML).unwrap();
        let at = |name: &str| folder.path().join("profiles").join(name);
        std::fs::write(at("broken.json"), "not json").unwrap();
        let (profiles, plan) = (Profiles::read(&folder).unwrap(), folder.read().unwrap());
        assert!(profiles.bad()[0].contains("broken.json") && profiles.bad().len() == 1);
        assert!(profiles.choose(&asked, &Programs::new(), &plan.placement).is_ok());
        std::fs::remove_file(at("broken.json")).unwrap();
        change(&folder, "nat-zipf.json", |profile| profile.throughput.points[1].y = 0.0);
        let said = said(&folder, &asked, &Programs::new());
        assert!(said.contains("nat-zipf.json: the throughput curve is not monotone") && said.contains("profile again"), "{said}");
    }
}
