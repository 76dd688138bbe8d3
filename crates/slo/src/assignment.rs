//! One server's part of a placement, with the SLOs of its instances.
//!
//! The planner writes it and the agent applies it.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::placement::{Instance, PlacedServer, Placement, PlacementError};
use crate::profile::Key;
use crate::slo::{Slo, SloError};

/// An SLO that is kept on a server.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Promised {
    /// What is promised.
    pub slo: Slo,
    /// The profile by which it was admitted. With it, the agent checks that its programs and its
    /// processor are the profiled ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Key>,
}

/// What one server has to run.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// The server, with its instances.
    pub server: PlacedServer,
    /// The SLOs of these instances.
    pub slos: Vec<Promised>,
}

/// Why an assignment is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AssignmentError {
    #[error(transparent)]
    Placement(#[from] PlacementError),
    #[error(transparent)]
    Slo(#[from] SloError),
    #[error("two SLOs are named \"{0}\"")]
    Twice(String),
    #[error("instance {number} is of the SLO \"{slo}\", which the assignment does not have")]
    NoSlo { slo: String, number: u32 },
    #[error("the SLO \"{0}\" has no instance on this server: leave it out")]
    NoInstance(String),
    #[error("instance {number} of \"{slo}\" has no core")]
    NoCore { slo: String, number: u32 },
    #[error("instance {number} of \"{slo}\" is to be given {load_pps} packets/s: write a finite number, 0 or more")]
    Load { slo: String, number: u32, load_pps: f64 },
    #[error(
        "\"{slo}\" was admitted by a profile of \"{profile}\", and this server has \"{here}\": profile it here and admit it again"
    )]
    Cpu { slo: String, profile: String, here: String },
    #[error(
        "\"{slo}\" was admitted by a profile of another binary of \"{nf}\" ({profile}, here {here}): profile this one and admit it again"
    )]
    Binary { slo: String, nf: String, profile: Digest, here: Digest },
    #[error(
        "\"{slo}\" was admitted by a profile of another configuration of {runs} ({profile}, here {here}): its arguments, the files that they \
         name or its environment differ; start it as it was profiled, or profile it as it is and admit it again"
    )]
    Configuration { slo: String, runs: String, profile: Digest, here: Digest },
    #[error("\"{slo}\" runs {runs}, and the profile that it was admitted by is of {profile}")]
    Other { slo: String, runs: String, profile: String },
}

/// What is known of an NF's program on this server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    pub binary: Option<Digest>,
    /// Digest of its configuration ([`Digest::of_configuration`]).
    pub configuration: Option<Digest>,
}

impl Assignment {
    /// The part of one server in a placement, without SLOs that have no instance there; none if
    /// there is no such server.
    pub fn of(placement: &Placement, server: &str, slos: impl IntoIterator<Item = Promised>) -> Option<Self> {
        let server = placement.servers.iter().find(|other| other.name == server)?.clone();
        let here: BTreeSet<&str> = server.instances.iter().map(|instance| instance.slo.as_str()).collect();
        let slos = slos.into_iter().filter(|promised| here.contains(promised.slo.name.as_str())).collect();
        Some(Self { server, slos })
    }

    /// The instances of an SLO, by number.
    pub fn instances<'a>(&'a self, slo: &'a str) -> Vec<&'a Instance> {
        let mut found: Vec<&Instance> = self.server.instances.iter().filter(|instance| instance.slo == slo).collect();
        found.sort_by_key(|instance| instance.number);
        found
    }

    /// Packets per second that are promised to an SLO on this server: its whole promise, as far as
    /// its instances here carry it. Flows are not divided evenly over servers, and some stay while
    /// others are redirected; so the sum over all servers may exceed the promise. None on demand.
    pub fn throughput_pps(&self, slo: &Slo) -> Option<f64> {
        let promised = slo.promise.throughput_pps()?;
        let instances = self.instances(&slo.name);
        let here: f64 = instances.iter().map(|instance| instance.capacity_pps.max(instance.load_pps)).sum();
        Some(here.min(promised))
    }

    /// Checks that it is consistent.
    ///
    /// # Errors
    /// The first [`AssignmentError`].
    pub fn check(&self) -> Result<(), AssignmentError> {
        Placement { servers: vec![self.server.clone()] }.check()?;
        let mut names = BTreeSet::new();
        for Promised { slo, profile } in &self.slos {
            slo.check()?;
            if !names.insert(slo.name.as_str()) {
                return Err(AssignmentError::Twice(slo.name.clone()));
            }
            if self.instances(&slo.name).is_empty() {
                return Err(AssignmentError::NoInstance(slo.name.clone()));
            }
            if let Some(key) = profile.as_ref().filter(|key| key.workload != slo.workload) {
                let (runs, profile) = (slo.workload.to_string(), key.workload.to_string());
                return Err(AssignmentError::Other { slo: slo.name.clone(), runs, profile });
            }
        }
        for Instance { slo, number, cores, load_pps, .. } in &self.server.instances {
            let (slo, number, load_pps) = (slo.clone(), *number, *load_pps);
            if !names.contains(slo.as_str()) {
                return Err(AssignmentError::NoSlo { slo, number });
            }
            if cores.is_empty() {
                return Err(AssignmentError::NoCore { slo, number });
            }
            if !load_pps.is_finite() {
                return Err(AssignmentError::Load { slo, number, load_pps });
            }
        }
        Ok(())
    }

    /// Checks that the profiles are of this processor and of these programs (by name of the NF) as
    /// configured. SLOs without a profile pass, and so does what is unknown.
    ///
    /// # Errors
    /// [`AssignmentError::Cpu`], [`AssignmentError::Binary`], [`AssignmentError::Configuration`].
    pub fn check_profiles(&self, cpu: &str, programs: &BTreeMap<String, Program>) -> Result<(), AssignmentError> {
        for (slo, key) in self.slos.iter().filter_map(|promised| Some((&promised.slo, promised.profile.as_ref()?))) {
            let name = || slo.name.clone();
            if key.cpu != cpu {
                return Err(AssignmentError::Cpu { slo: name(), profile: key.cpu.clone(), here: cpu.into() });
            }
            let services = slo.workload.services();
            for (nf, profile) in services.iter().zip(&key.binaries) {
                let here = programs.get(*nf).and_then(|program| program.binary.as_ref());
                if let Some(here) = here.filter(|here| *here != profile) {
                    let (profile, here) = (profile.clone(), here.clone());
                    return Err(AssignmentError::Binary { slo: name(), nf: nf.to_string(), profile, here });
                }
            }
            let here = services.iter().map(|nf| programs.get(*nf)?.configuration.clone()).collect::<Option<Vec<_>>>();
            let here = here.map(|here| Digest::of_configurations(&here));
            if let Some(here) = here.filter(|here| *here != key.configuration) {
                let (runs, profile) = (slo.workload.to_string(), key.configuration.clone());
                return Err(AssignmentError::Configuration { slo: name(), runs, profile, here });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::shape;
    use crate::slo::{Cap, Promise, Workload};

    fn instance(slo: &str, number: u32, core: u32, load_pps: f64) -> Instance {
        Instance { slo: slo.into(), number, cores: vec![core], ways: 2, memory_mib: 64, capacity_pps: 2e6, load_pps }
    }

    #[test]
    fn numbers_survive_json_to_the_last_bit() {
        // What a curve gives between two points is as crooked as these.
        let mut load_pps = 1e6 / 3.0;
        for _ in 0..1_000 {
            let one = instance("web", 0, 0, load_pps);
            let text = serde_json::to_string(&one).unwrap();
            assert_eq!(serde_json::from_str::<Instance>(&text).unwrap(), one, "{text}");
            load_pps = load_pps * 1.000_7 + 1.0 / 7.0;
        }
    }

    fn promised(name: &str, throughput_pps: f64) -> Promised {
        let slo = Slo {
            name: name.into(),
            workload: Workload::Nf("nat".into()),
            configuration: Digest::of(b""),
            traffic: "64 B".into(),
            promise: Promise::Reserved { throughput_pps, latency_us: 50.0 },
        };
        Promised { slo, profile: None }
    }

    fn assignment() -> Assignment {
        let mut server = PlacedServer::empty("s0", &shape());
        server.instances = vec![instance("acme", 1, 1, 0.5e6), instance("acme", 0, 0, 1e6)];
        Assignment { server, slos: vec![promised("acme", 3e6)] }
    }

    #[test]
    fn what_is_promised_here_is_all_of_it_as_far_as_instances_here_carry_it() {
        let assignment = assignment();
        let slo = &assignment.slos[0].slo;
        assert_eq!(assignment.check(), Ok(()));
        assert_eq!(assignment.instances("acme")[0].number, 0);
        assert_eq!(assignment.throughput_pps(slo), Some(3e6));
        let mut fewer = assignment.clone();
        fewer.server.instances.pop();
        assert_eq!(fewer.throughput_pps(slo), Some(2e6), "the others are elsewhere");
        // It gets no new flows, but its old ones are admitted.
        fewer.server.instances[0].load_pps = 0.0;
        assert_eq!(fewer.throughput_pps(slo), Some(2e6));
        let cap = Cap { instances: Some(1), load_pps: None };
        let on_demand = Slo { promise: Promise::OnDemand { latency_us: 50.0, cap }, ..slo.clone() };
        assert_eq!(fewer.throughput_pps(&on_demand), None);
        let placement = Placement { servers: vec![assignment.server.clone()] };
        let all = [promised("acme", 3e6), promised("elsewhere", 1e6)];
        assert_eq!(Assignment::of(&placement, "s0", all).unwrap(), assignment);
        assert!(Assignment::of(&placement, "s1", []).is_none());
    }

    #[test]
    fn what_cannot_be_is_reported() {
        let said = |change: fn(&mut Assignment)| {
            let mut assignment = assignment();
            change(&mut assignment);
            assignment.check().unwrap_err().to_string()
        };
        assert!(said(|a| a.slos.clear()).contains("which the assignment does not have"));
        assert!(said(|a| a.slos.push(promised("acme", 1.0))).contains("two SLOs"));
        assert!(said(|a| a.slos.push(promised("web", 1.0))).contains("leave it out"));
        assert!(said(|a| a.server.instances[0].cores = vec![0]).contains("two instances"));
        assert!(said(|a| a.server.instances[0].cores.clear()).contains("no core"));
        assert!(said(|a| a.server.instances[0].load_pps = f64::NAN).contains("packets/s"));
        assert!(said(|a| a.slos[0].slo.promise = Promise::OnDemand { latency_us: 0.0, cap: Cap { instances: Some(1), load_pps: None } }).contains("above 0"));
    }

    #[test]
    fn profiles_are_of_this_host() {
        let mut assignment = assignment();
        let key = Key {
            workload: Workload::Nf("nat".into()),
            binaries: vec![Digest::of(b"nat")],
            configuration: Digest::of(b""),
            traffic: "64 B".into(),
            cpu: "A".into(),
        };
        assignment.slos[0].profile = Some(key.clone());
        let program = |binary: &[u8], configuration: &[u8]| {
            let (binary, configuration) = (Some(Digest::of(binary)), Some(Digest::of(configuration)));
            BTreeMap::from([("nat".to_string(), Program { binary, configuration })])
        };
        let programs = |text: &[u8]| program(text, b"");
        assert_eq!(assignment.check_profiles("A", &programs(b"nat")), Ok(()));
        let unknown = BTreeMap::from([("nat".to_string(), Program::default())]);
        assert_eq!(assignment.check_profiles("A", &unknown), Ok(()));
        let other = assignment.check_profiles("A", &program(b"nat", b"--log")).unwrap_err().to_string();
        assert!(other.contains("another configuration of nat") && other.contains("admit it again"), "{other}");
        assert_eq!(assignment.check_profiles("A", &BTreeMap::new()), Ok(()));
        assert!(assignment.check_profiles("B", &programs(b"nat")).unwrap_err().to_string().contains("profile it here"));
        assert!(assignment.check_profiles("A", &programs(b"new")).unwrap_err().to_string().contains("another binary of \"nat\""));
        assignment.slos[0].profile = Some(Key { workload: Workload::Nf("ids".into()), ..key.clone() });
        assert!(assignment.check().unwrap_err().to_string().contains("runs nat"));
        // The digest of a chain is that of all its NFs.
        let workload = Workload::Chain(vec!["nat".into(), "ids".into()]);
        let all = [Digest::of(b"1"), Digest::of(b"2")];
        assignment.slos[0].slo.workload = workload.clone();
        assignment.slos[0].profile = Some(Key { workload, configuration: Digest::of_configurations(&all), ..key });
        let of = |nf: &str, digest: &Digest| (nf.to_string(), Program { configuration: Some(digest.clone()), binary: None });
        assert_eq!(assignment.check_profiles("A", &BTreeMap::from([of("nat", &all[0]), of("ids", &all[1])])), Ok(()));
        assert_eq!(assignment.check_profiles("A", &BTreeMap::from([of("nat", &all[1])])), Ok(()), "not all is known");
        assert!(assignment.check_profiles("A", &BTreeMap::from([of("nat", &all[1]), of("ids", &all[0])])).is_err());
    }
}
