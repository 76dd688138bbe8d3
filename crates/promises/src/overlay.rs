//! Turns a configuration into one that keeps an assignment, and back.
//!
//! # As profiled
//! A profile is measured with a polling NF, alone on a core. Instances of a reserved SLO with a
//! profile poll too where they have their cores to themselves: a sleeping one would need tens of
//! microseconds to wake at low load, which its profile does not contain. Otherwise a polling NF
//! would force slices on all others; so they keep their service's mode, and a note says what falls
//! short of the profile. The mode is written in the configuration, so a polling NF has its own core
//! as any service with `mode = "poll"`.
//!
//! # Limits
//! When such a core changes hands, or another configuration places another NF there, both are on it
//! for a while, and one polls: meanwhile the core has slices, as any core with a polling NF. The
//! first time, a mechanism for that is measured on the core: tens of milliseconds for each
//! candidate, and seconds on a host with overloaded cores, in which the supervisor does nothing
//! else.

use std::collections::{BTreeMap, BTreeSet};

use sluice_slo::assignment::Assignment;
use sluice_slo::placement::Instance;
use sluice_slo::slo::Promise;

use sluice_api::config::{Config, Mode, Service, hop};
use sluice_config::diff;

#[derive(Debug, Clone)]
pub struct Overlaid {
    pub config: Config,
    /// The services made for it, by SLO and template.
    pub services: BTreeMap<(String, String), String>,
    /// The services of the SLOs' chains without it.
    pub base: BTreeMap<String, Vec<String>>,
    /// Deviations from profiles, for people.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OverlayError {
    /// No chain selects the packets.
    #[error(
        "no chain is named as the SLO \"{0}\"; add a chain of that name, with the services that the SLO runs, and rules that lead to it"
    )]
    NoChain(String),
    /// The chain passes other services.
    #[error("the SLO \"{slo}\" runs {runs}, and the chain of that name passes {passes}; make them the same")]
    Differs {
        slo: String,
        /// The SLO's services.
        runs: String,
        /// The chain's services.
        passes: String,
    },
    #[error("the chain \"{slo}\" passes service \"{service}\", which there is not")]
    NoService { slo: String, service: String },
    /// The service cannot be duplicated.
    #[error("the SLO \"{slo}\" needs instances of its own of service \"{service}\", which {why}")]
    Template { slo: String, service: String, why: &'static str },
    /// The placement counts more cores than there are.
    #[error(
        "the placement is for a server with {cores} cores for NFs, and `cores` in [promises] names {places}; make them the same"
    )]
    Places {
        /// Of the server's shape.
        cores: u32,
        /// Of the configuration.
        places: usize,
    },
}

/// Makes the configuration that keeps an assignment.
///
/// `places` are the cores that the assignment counts. `made` are services made for an earlier
/// assignment: those that fit, or differ only in some instances, keep their names and so their
/// other instances. A changed service gets a new name, so that the new one is ready before the old
/// one goes.
///
/// # Errors
/// [`OverlayError`]. The result's check as a configuration finds other faults.
pub fn overlay(base: &Config, assignment: &Assignment, places: &[usize], made: &[Service]) -> Result<Overlaid, OverlayError> {
    let cores = assignment.server.shape.cores;
    if cores as usize > places.len() {
        return Err(OverlayError::Places { cores, places: places.len() });
    }
    let mut overlaid = Overlaid { config: base.clone(), services: BTreeMap::new(), base: BTreeMap::new(), notes: Vec::new() };
    let crowd = Crowd::of(base, assignment, places);
    let mut taken: BTreeSet<String> = base.services.iter().chain(made).map(|service| service.name.clone()).collect();
    for promised in &assignment.slos {
        let slo = &promised.slo;
        let is_profiled = promised.profile.is_some() && matches!(slo.promise, Promise::Reserved { .. });
        let instances = assignment.instances(&slo.name);
        overlaid.notes.extend(crowd.parts(&slo.name, &instances).filter(|_| is_profiled));
        let chain = overlaid.config.chains.iter_mut().find(|chain| chain.name == slo.name);
        let chain = chain.ok_or_else(|| OverlayError::NoChain(slo.name.clone()))?;
        let passes: Vec<&str> = chain.services.iter().map(|written| hop(written).0).collect();
        if passes != slo.workload.services() {
            let (runs, passes) = (slo.workload.to_string(), passes.join(" → "));
            return Err(OverlayError::Differs { slo: slo.name.clone(), runs, passes });
        }
        overlaid.base.insert(slo.name.clone(), chain.services.clone());
        let mut own: Vec<(String, String)> = Vec::new();
        for template in passes {
            if own.iter().any(|(known, _)| known == template) {
                continue;
            }
            let found = base.services.iter().find(|service| service.name == template);
            let found = found.ok_or_else(|| OverlayError::NoService { slo: slo.name.clone(), service: template.into() })?;
            if let Some(why) = why_no_template(found) {
                return Err(OverlayError::Template { slo: slo.name.clone(), service: template.into(), why });
            }
            let (nth, all_shards) = (own.len(), true);
            let cores: Vec<usize> =
                instances.iter().filter_map(|i| places.get(*i.cores.get(nth % i.cores.len().max(1))? as usize).copied()).collect();
            let mut wanted = Service { name: String::new(), instances: instances.len() as u32, cores, all_shards, ..found.clone() };
            if is_profiled && wanted.mode == Mode::Sleep && !wanted.is_foreign() {
                match crowd.why_not_alone(&wanted) {
                    None => wanted.mode = Mode::Poll,
                    // The note on parts of a core covers it.
                    Some(Company::Places) => {}
                    Some(why) => overlaid.notes.push(format!(
                        "\"{}\" was profiled while it polled, and {template} sleeps here when it has nothing to do, because {why}: at low \
                         load its packets wait for it to wake, tens of microseconds that its profile does not count",
                        slo.name
                    )),
                }
            }
            let is_used = |name: &String| overlaid.services.values().any(|used| used == name);
            let free = made.iter().filter(|service| is_of(&service.name, &slo.name, template) && !is_used(&service.name));
            let name = made_before(&free.collect::<Vec<_>>(), &wanted);
            let name = name.unwrap_or_else(|| fresh(&slo.name, template, &taken));
            taken.insert(name.clone());
            own.push((template.into(), name.clone()));
            overlaid.services.insert((slo.name.clone(), template.into()), name.clone());
            overlaid.config.services.push(Service { name, ..wanted });
        }
        chain.services.iter_mut().for_each(|written| replace(written, &own));
    }
    Ok(overlaid)
}

/// Why a service cannot be a template, whose instances are made for one SLO.
fn why_no_template(service: &Service) -> Option<&'static str> {
    match service {
        _ if service.is_pooled() => Some("gives its instances to flows one at a time"),
        _ if service.netns.is_some() || service.pid_file.is_some() => {
            Some("has one network namespace or process, which cannot be there twice")
        }
        _ => None,
    }
}

/// The name of the service that is as wanted, or else of one that keeps instances by becoming so.
fn made_before(made: &[&Service], wanted: &Service) -> Option<String> {
    let unnamed = |service: &Service| Service { name: String::new(), ..service.clone() };
    let same = made.iter().find(|service| unnamed(service) == *wanted);
    let same = same.or_else(|| made.iter().find(|service| diff::some_stay(&unnamed(service), wanted)));
    same.map(|service| service.name.clone())
}

/// Replaces a template in a chain by the service that was made of it.
fn replace(written: &mut String, made: &[(String, String)]) {
    let (template, reverse) = hop(written);
    let name = made.iter().find(|(known, _)| known == template).map(|(_, name)| name.as_str()).unwrap_or(template);
    *written = if reverse { format!("{name}:reverse") } else { name.into() };
}

/// The use of each core.
struct Crowd<'a> {
    config: &'a Config,
    places: &'a [usize],
    /// Number of the assignment's NFs on each core.
    placed: BTreeMap<usize, usize>,
}

/// Why an NF must share its core.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Company {
    /// Its service has a wake policy.
    Wakeup,
    /// The core is several places.
    Places,
    Manager(usize),
    Service(usize, String),
    /// Other NFs of the same instance.
    Chain(usize),
}

impl std::fmt::Display for Company {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wakeup => f.write_str("its service says when it is woken (wakeup)"),
            Self::Places => f.write_str("it has a part of a core"),
            Self::Manager(core) => write!(f, "packet threads of the manager are on core {core}"),
            Self::Service(core, name) => write!(f, "service \"{name}\" is on core {core} too"),
            Self::Chain(core) => write!(f, "another NF of its chain is on core {core} too"),
        }
    }
}

impl<'a> Crowd<'a> {
    fn of(config: &'a Config, assignment: &Assignment, places: &'a [usize]) -> Self {
        let mut placed: BTreeMap<usize, usize> = BTreeMap::new();
        for slo in assignment.slos.iter().map(|promised| &promised.slo) {
            let nfs = slo.workload.services().into_iter().collect::<BTreeSet<_>>().len();
            for instance in assignment.instances(&slo.name) {
                let cores = (0..nfs).filter_map(|nth| places.get(*instance.cores.get(nth % instance.cores.len().max(1))? as usize));
                cores.for_each(|core| *placed.entry(*core).or_default() += 1);
            }
        }
        Self { config, places, placed }
    }

    /// Number of a core's places.
    fn places_of(&self, core: usize) -> usize {
        self.places.iter().filter(|other| **other == core).count()
    }

    /// Why a service's NFs do not have their cores to themselves, if so.
    fn why_not_alone(&self, service: &Service) -> Option<Company> {
        let one = |core: usize| {
            let instances =
                |s: &Service| (0..s.most_instances() as usize).any(|i| s.cores.get(i % s.cores.len().max(1)) == Some(&core));
            if self.places_of(core) > 1 {
                return Some(Company::Places);
            }
            if self.config.manager.cores().any(|thread| thread == core) {
                return Some(Company::Manager(core));
            }
            if let Some(other) = self.config.services.iter().find(|other| instances(other)) {
                return Some(Company::Service(core, other.name.clone()));
            }
            (self.placed.get(&core).copied().unwrap_or(0) > 1).then_some(Company::Chain(core))
        };
        let first = service.cores.iter().find_map(|core| one(*core));
        first.or_else(|| service.wakeup.as_ref().map(|_| Company::Wakeup))
    }

    /// The note on an SLO that has parts of cores.
    fn parts(&self, slo: &str, instances: &[&Instance]) -> Option<String> {
        let core_of = |place: &u32| self.places.get(*place as usize).copied();
        let cores: BTreeSet<usize> = instances.iter().flat_map(|instance| &instance.cores).filter_map(core_of).collect();
        let parts: Vec<String> = cores
            .into_iter()
            .map(|core| (core, self.places_of(core)))
            .filter(|(_, places)| *places > 1)
            .map(|(core, places)| format!("1/{places} of core {core}"))
            .collect();
        let has = parts.join(", ");
        (!parts.is_empty()).then(|| {
            format!(
                "\"{slo}\" is kept on a part of a core ({has}): a profile that `sluice profile` made is of a whole one, with an NF that polls, so \
                 less is carried here than it says, and later"
            )
        })
    }
}

fn first_name(slo: &str, template: &str) -> String {
    format!("{slo}-{template}")
}

/// Whether a service's name was made for this SLO and template.
fn is_of(name: &str, slo: &str, template: &str) -> bool {
    let rest = name.strip_prefix(&first_name(slo, template));
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('-').is_some_and(|n| n.parse::<u32>().is_ok()))
}

fn fresh(slo: &str, template: &str, taken: &BTreeSet<String>) -> String {
    let first = first_name(slo, template);
    let mut names = std::iter::once(first.clone()).chain((2..).map(|n: u32| format!("{first}-{n}")));
    names.find(|name| !taken.contains(name)).unwrap_or(first)
}

/// Removes an assignment from a configuration.
pub fn strip(config: &Config, services: &BTreeMap<(String, String), String>, base: &BTreeMap<String, Vec<String>>) -> Config {
    let mut config = config.clone();
    config.services.retain(|service| !services.values().any(|name| *name == service.name));
    for chain in &mut config.chains {
        if let Some(passes) = base.get(&chain.name) {
            chain.services.clone_from(passes);
        }
    }
    config
}

/// Also used by tests of other modules.
#[cfg(test)]
pub(crate) mod tests {
    use sluice_slo::assignment::Promised;
    use sluice_slo::digest::Digest;
    use sluice_slo::placement::{PlacedServer, ServerShape};
    use sluice_slo::profile::Key;
    use sluice_slo::slo::{Slo, Workload};

    use super::*;

    pub(crate) fn shape(cores: u32) -> ServerShape {
        let (cpu, memory_mib, way_bytes) = ("A".into(), 1 << 10, 1 << 20);
        ServerShape { cpu, cores, llc_ways: 11, way_bytes, ddio_ways: 2, min_ways: 1, classes: 16, memory_mib, path_us: 0 }
    }

    /// An SLO: name, services, places of each instance, ways.
    type Asked<'a> = (&'a str, &'a [&'a str], &'a [&'a [u32]], u32);

    pub(crate) fn assignment(slos: &[Asked<'_>]) -> Assignment {
        let mut server = PlacedServer::empty("s0", &shape(4));
        let mut promised = Vec::new();
        for (name, services, instances, ways) in slos {
            for (number, cores) in instances.iter().enumerate() {
                server.instances.push(Instance {
                    slo: name.to_string(),
                    number: number as u32,
                    cores: cores.to_vec(),
                    ways: *ways,
                    memory_mib: 16,
                    capacity_pps: 2e5,
                    load_pps: 1e5,
                });
            }
            let workload = match services {
                [one] => Workload::Nf(one.to_string()),
                more => Workload::Chain(more.iter().map(|s| s.to_string()).collect()),
            };
            let slo = Slo {
                name: name.to_string(),
                workload,
                configuration: Digest::of(b""),
                traffic: "64 B".into(),
                promise: Promise::Reserved { throughput_pps: 1e5 * instances.len() as f64, latency_us: 200.0 },
            };
            promised.push(Promised { slo, profile: None });
        }
        Assignment { server, slos: promised }
    }

    pub(crate) fn config() -> Config {
        let text = r#"
            port = [{ name = "a", kind = "gen" }, { name = "b", kind = "gen" }, { name = "out", kind = "sink" }]
            service = [{ name = "fw", exec = "fw", cores = [3] }, { name = "nat", exec = "nat", args = ["-x"], cores = [3] }]
            chain = [{ name = "acme", services = ["nat"], egress = "out" },
                     { name = "web", services = ["fw", "nat", "fw"], egress = "out" }]
            rule = [{ port = "a", chain = "acme" }, { port = "b", chain = "web" }]
        "#;
        sluice_config::load::parse(text, "a.toml").unwrap_or_else(|errors| panic!("{errors}"))
    }

    const PLACES: [usize; 4] = [1, 2, 2, 3];

    fn made(overlaid: &Overlaid) -> Vec<Service> {
        let is_made = |service: &&Service| overlaid.services.values().any(|name| *name == service.name);
        overlaid.config.services.iter().filter(is_made).cloned().collect()
    }

    #[test]
    fn each_slo_has_services_of_its_own_on_its_places() {
        let base = config();
        let both = assignment(&[("acme", &["nat"], &[&[0], &[3]], 2), ("web", &["fw", "nat", "fw"], &[&[1, 2]], 0)]);
        let overlaid = overlay(&base, &both, &PLACES, &[]).unwrap();
        let told: Vec<(String, Vec<usize>, u32)> = made(&overlaid).into_iter().map(|s| (s.name, s.cores, s.instances)).collect();
        let expected = [("acme-nat", vec![1, 3], 2), ("web-fw", vec![2], 1), ("web-nat", vec![2], 1)];
        assert_eq!(told, expected.map(|(name, cores, n)| (name.to_string(), cores, n)));
        assert_eq!(made(&overlaid)[0].args, ["-x"]);
        let chains: Vec<&[String]> = overlaid.config.chains.iter().map(|chain| &chain.services[..]).collect();
        assert_eq!(chains, [&["acme-nat"][..], &["web-fw", "web-nat", "web-fw"]]);
        assert!(sluice_config::validate::validate(&overlaid.config).iter().all(|problem| !problem.is_error()));
        assert_eq!(strip(&overlaid.config, &overlaid.services, &overlaid.base), base, "and back");
    }

    #[test]
    fn what_stays_keeps_its_instances_and_what_changes_gets_another_name() {
        let base = config();
        let before = overlay(&base, &assignment(&[("acme", &["nat"], &[&[0]], 2)]), &PLACES, &[]).unwrap();
        let more = assignment(&[("web", &["fw", "nat", "fw"], &[&[1, 2]], 0), ("acme", &["nat"], &[&[0]], 2)]);
        let after = overlay(&base, &more, &PLACES, &made(&before)).unwrap();
        assert_eq!(after.services[&("acme".into(), "nat".into())], "acme-nat");
        let moved = overlay(&base, &assignment(&[("acme", &["nat"], &[&[3]], 2)]), &PLACES, &made(&before)).unwrap();
        assert_eq!(moved.services[&("acme".into(), "nat".into())], "acme-nat-2");
        let again = overlay(&base, &assignment(&[("acme", &["nat"], &[&[0]], 2)]), &PLACES, &made(&moved)).unwrap();
        assert_eq!(again.services[&("acme".into(), "nat".into())], "acme-nat");
        let grown = overlay(&base, &assignment(&[("acme", &["nat"], &[&[0], &[3]], 2)]), &PLACES, &made(&before)).unwrap();
        assert_eq!(
            made(&grown).into_iter().map(|s| (s.name, s.cores, s.instances)).collect::<Vec<_>>(),
            [("acme-nat".into(), vec![1, 3], 2)]
        );
        // Without the first instance it is the same service, with the second one only.
        let shrunk = overlay(&base, &assignment(&[("acme", &["nat"], &[&[3]], 2)]), &PLACES, &made(&grown)).unwrap();
        assert_eq!(made(&shrunk).into_iter().map(|s| (s.name, s.cores)).collect::<Vec<_>>(), [("acme-nat".into(), vec![3])]);
    }

    /// An assignment whose SLOs were admitted by profiles.
    fn profiled(slos: &[Asked<'_>]) -> Assignment {
        let mut assignment = assignment(slos);
        for Promised { slo, profile } in &mut assignment.slos {
            *profile = Some(Key {
                workload: slo.workload.clone(),
                binaries: slo.workload.services().into_iter().map(|nf| Digest::of(nf.as_bytes())).collect(),
                configuration: slo.configuration.clone(),
                traffic: slo.traffic.clone(),
                cpu: "A".into(),
            });
        }
        assignment
    }

    #[test]
    fn what_was_profiled_polls_where_it_is_alone_on_its_cores() {
        let modes = |config: &Config, assignment: &Assignment, places: &[usize]| {
            let overlaid = overlay(config, assignment, places, &[]).unwrap();
            let modes: Vec<Mode> = made(&overlaid).into_iter().map(|service| service.mode).collect();
            (modes, overlaid.notes)
        };
        let base = config();
        let alone = profiled(&[("acme", &["nat"], &[&[0], &[1]], 2)]);
        assert_eq!(modes(&base, &alone, &[1, 2, 4, 5]), (vec![Mode::Poll], Vec::new()));
        // Without a profile, or without a reservation.
        assert_eq!(modes(&base, &assignment(&[("acme", &["nat"], &[&[0]], 2)]), &[1, 2, 4, 5]), (vec![Mode::Sleep], Vec::new()));
        let mut on_demand = alone.clone();
        on_demand.slos[0].slo.promise = Promise::OnDemand { latency_us: 1.0, cap: Default::default() };
        assert_eq!(modes(&base, &on_demand, &[1, 2, 4, 5]), (vec![Mode::Sleep], Vec::new()));
        // A core for each NF of a chain, or one for all.
        let chain = profiled(&[("web", &["fw", "nat", "fw"], &[&[0, 1]], 2)]);
        assert_eq!(modes(&base, &chain, &[1, 2, 4, 5]), (vec![Mode::Poll; 2], Vec::new()));
        let one = profiled(&[("web", &["fw", "nat", "fw"], &[&[0]], 2)]);
        let (found, notes) = modes(&base, &one, &[1, 2, 4, 5]);
        assert!(
            found == [Mode::Sleep; 2] && notes.len() == 2 && notes[0].contains("another NF of its chain is on core 1"),
            "{notes:?}"
        );
        // Both services of the configuration run on core 3, and packet threads on core 0.
        for (core, why) in [(3, "service \"fw\" is on core 3 too"), (0, "packet threads of the manager are on core 0")] {
            let (found, notes) = modes(&base, &alone, &[1, core, 4, 5]);
            assert!(found == [Mode::Sleep] && notes.len() == 1 && notes[0].contains(why), "{notes:?}");
        }
        let mut woken = base.clone();
        woken.services[1].wakeup = Some(Default::default());
        let (found, notes) = modes(&woken, &alone, &[1, 2, 4, 5]);
        assert!(found == [Mode::Sleep] && notes[0].contains("when it is woken"), "{notes:?}");
    }

    #[test]
    fn parts_of_a_core_are_those_that_were_profiled() {
        let base = config();
        let notes = |assignment: &Assignment| overlay(&base, assignment, &PLACES, &[]).unwrap().notes;
        let half = profiled(&[("acme", &["nat"], &[&[0], &[1]], 2)]);
        let told = notes(&half);
        assert!(told.len() == 1 && told[0].contains("\"acme\" is kept on a part of a core (1/2 of core 2)"), "{told:?}");
        assert_eq!(notes(&assignment(&[("acme", &["nat"], &[&[1]], 2)])), Vec::<String>::new());
        assert_eq!(made(&overlay(&base, &half, &PLACES, &[]).unwrap())[0].mode, Mode::Sleep);
    }

    #[test]
    fn nfs_that_attach_can_keep_an_slo() {
        let mut base = config();
        base.services[1] = Service { exec: None, args: Vec::new(), attach: true, ..base.services[1].clone() };
        let overlaid = overlay(&base, &assignment(&[("acme", &["nat"], &[&[0], &[3]], 2)]), &PLACES, &[]).unwrap();
        let made: Vec<(String, bool, Vec<usize>)> = made(&overlaid).into_iter().map(|s| (s.name, s.attach, s.cores)).collect();
        assert_eq!(made, [("acme-nat".into(), true, vec![1, 3])]);
        assert!(sluice_config::validate::validate(&overlaid.config).iter().all(|problem| !problem.is_error()));
        assert_eq!(strip(&overlaid.config, &overlaid.services, &overlaid.base), base, "and back");
    }

    #[test]
    fn what_does_not_go_is_reported() {
        let base = config();
        let said = |assignment: &Assignment, config: &Config| overlay(config, assignment, &PLACES, &[]).unwrap_err().to_string();
        assert!(said(&assignment(&[("dns", &["nat"], &[&[0]], 2)]), &base).contains("no chain is named as the SLO \"dns\""));
        assert!(
            said(&assignment(&[("acme", &["fw"], &[&[0]], 2)]), &base).contains("runs fw, and the chain of that name passes nat")
        );
        let mut pooled = base.clone();
        pooled.services[1].per = sluice_api::config::Per::Flow;
        assert!(said(&assignment(&[("acme", &["nat"], &[&[0]], 2)]), &pooled).contains("one at a time"));
        let few = overlay(&base, &assignment(&[]), &PLACES[..2], &[]).unwrap_err();
        assert_eq!(few, OverlayError::Places { cores: 4, places: 2 });
    }
}
