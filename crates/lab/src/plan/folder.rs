//! The folder of a plan: the servers, the profiles, the SLOs and their placement.
//!
//! - `servers.toml`, written by people: a `[[server]]` each, with its name and its resources for
//!   NFs.
//! - `profiles/*.json`, written by the profiler (`profiles.rs`).
//! - `placement.json`, written here alone: admitted SLOs, and where their instances run. It is
//!   replaced as a whole, so a reader sees the old or the new one. A writer holds a lock on the
//!   folder from before reading until it is replaced.
//! - `steps.json`, written beside it: the remaining steps to another placement (`steps.rs`).
//!
//! The servers of `servers.toml` are authoritative; an unused one may come, go and change. One in
//! use may change as long as the properties that its profiles depend on stay, and its instances
//! still fit.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use sluice_api::nearest::nearest;
use sluice_host::file::{self, Lock};
use sluice_slo::placement::{PlacedServer, Placement, ServerShape};
use sluice_slo::profile::Key;
use sluice_slo::slo::Slo;

/// Format version of `placement.json`.
const FORM: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admitted {
    pub slo: Slo,
    /// The profile by which it was admitted; none on demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Key>,
}

/// SLOs and their placement.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// In order of admission.
    pub slos: Vec<Admitted>,
    pub placement: Placement,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    form: u32,
    slos: Vec<Admitted>,
    placement: Placement,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Servers {
    server: Vec<Server>,
}

/// A server in `servers.toml`: [`ServerShape`] with a name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    name: String,
    cpu: String,
    cores: u32,
    llc_ways: u32,
    way_bytes: u64,
    ddio_ways: u32,
    min_ways: u32,
    classes: u32,
    memory_mib: u64,
    #[serde(default)]
    path_us: u32,
}

impl Server {
    fn empty(self) -> PlacedServer {
        let Self { name, cpu, cores, llc_ways, way_bytes, ddio_ways, min_ways, classes, memory_mib, path_us } = self;
        let shape = ServerShape { cpu, cores, llc_ways, way_bytes, ddio_ways, min_ways, classes, memory_mib, path_us };
        PlacedServer { name, shape, instances: Vec::new() }
    }
}

#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    pub fn at(path: &Path) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn placement(&self) -> PathBuf {
        self.path.join("placement.json")
    }

    pub fn steps(&self) -> PathBuf {
        self.path.join("steps.json")
    }

    /// Waits until no other process changes the plan. It is locked until the returned lock is
    /// dropped.
    pub fn lock(&self) -> anyhow::Result<Lock> {
        // Locks the folder itself, so that a command that changes nothing leaves no file.
        let folder = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(&self.path).map_err(|e| self.missing(&e))?;
        Lock::wait(folder)
            .with_context(|| format!("{} cannot be locked: name a folder on this host with --plan", self.path.display()))
    }

    fn missing(&self, why: &std::io::Error) -> anyhow::Error {
        let path = self.path.display();
        anyhow::anyhow!("there is no plan in {path} ({why}): make it, as `sluice plan --help` shows, or name another with --plan")
    }

    /// Reads and checks the plan.
    pub fn read(&self) -> anyhow::Result<Plan> {
        let servers = self.servers()?;
        let path = self.placement();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Plan { slos: Vec::new(), placement: Placement { servers } });
            }
            Err(error) => bail!(
                "cannot read {} ({error}): run as a user with permission to, or name another folder with --plan",
                path.display()
            ),
        };
        let foreign = |why: &dyn std::fmt::Display| {
            anyhow::anyhow!(
                "{} is no placement of this program ({why}): move it away, or name another folder with --plan",
                path.display()
            )
        };
        let kept: Kept = serde_json::from_slice(&text).map_err(|e| foreign(&e))?;
        if kept.form != FORM {
            return Err(foreign(&format!("it has form {} and this program knows {FORM}", kept.form)));
        }
        kept.placement.check().map_err(|e| foreign(&e))?;
        let placed: BTreeSet<&str> = kept.placement.instances().map(|(_, instance)| instance.slo.as_str()).collect();
        let promised: BTreeSet<&str> = kept.slos.iter().map(|admitted| admitted.slo.name.as_str()).collect();
        if placed != promised || promised.len() != kept.slos.len() {
            return Err(foreign(&"its SLOs are not those of its instances"));
        }
        Ok(Plan { slos: kept.slos, placement: united(servers, kept.placement)? })
    }

    fn servers(&self) -> anyhow::Result<Vec<PlacedServer>> {
        let path = self.path.join("servers.toml");
        let text = fs::read_to_string(&path).map_err(|e| self.missing(&e))?;
        let of = || format!("{} describes no servers", path.display());
        let servers: Servers = toml::from_str(&text).with_context(of)?;
        let placement = Placement { servers: servers.server.into_iter().map(Server::empty).collect() };
        ensure!(!placement.servers.is_empty(), "{}: write a [[server]] for each", of());
        placement.check().with_context(of)?;
        Ok(placement.servers)
    }

    /// Replaces the placement atomically.
    pub fn write(&self, plan: &Plan) -> anyhow::Result<()> {
        plan.placement.check().context("nothing was changed, for the new placement does not hold")?;
        let kept = Kept { form: FORM, slos: plan.slos.clone(), placement: plan.placement.clone() };
        let text = serde_json::to_string_pretty(&kept)? + "\n";
        let path = self.placement();
        file::replace(&path, text.as_bytes()).with_context(|| {
            format!("cannot write {}: run as a user with permission to, or name another folder with --plan", path.display())
        })
    }
}

/// The placement on the servers that exist now.
fn united(mut servers: Vec<PlacedServer>, placed: Placement) -> anyhow::Result<Placement> {
    for was in placed.servers.into_iter().filter(|server| !server.instances.is_empty()) {
        let slos: BTreeSet<String> = was.instances.iter().map(|instance| instance.slo.clone()).collect();
        let names = slos.into_iter().collect::<Vec<_>>().join(", ");
        let Some(now) = servers.iter_mut().find(|server| server.name == was.name) else {
            bail!(
                "servers.toml lacks server \"{}\", where instances of {names} run: put it back, or remove these SLOs first",
                was.name
            );
        };
        let measured_on = |shape: &ServerShape| (shape.cpu.clone(), shape.way_bytes);
        ensure!(
            measured_on(&now.shape) == measured_on(&was.shape),
            "servers.toml gives server \"{}\" another processor than instances of {names} were admitted for: put it back, or remove these \
             SLOs first",
            was.name
        );
        ensure!(
            now.shape.path_us <= was.shape.path_us,
            "servers.toml gives server \"{}\" a longer path_us ({} µs) than instances of {names} were admitted with ({} µs): put it back, or \
             remove these SLOs first and add them again",
            was.name,
            now.shape.path_us,
            was.shape.path_us
        );
        now.instances = was.instances;
    }
    let placement = Placement { servers };
    placement.check().context("servers.toml gives a server less than what runs there: put it back, or remove SLOs first")?;
    Ok(placement)
}

impl Plan {
    pub fn find(&self, name: &str) -> anyhow::Result<&Admitted> {
        if let Some(found) = self.slos.iter().find(|admitted| admitted.slo.name == name) {
            return Ok(found);
        }
        let names: Vec<&str> = self.slos.iter().map(|admitted| admitted.slo.name.as_str()).collect();
        match nearest(name, &names) {
            Some(near) => bail!("no SLO is named \"{name}\"; did you mean \"{near}\"?"),
            None => bail!("no SLO is named \"{name}\"; `sluice slo list` shows all"),
        }
    }
}

/// Helpers for tests of several modules.
#[cfg(test)]
pub mod tests {
    use sluice_planner::samples::{KINDS, OnServer, server};
    use sluice_slo::slo::{Promise, Workload};

    use super::*;

    /// `servers.toml` with servers of the samples' shape.
    pub fn servers_toml(servers: usize) -> String {
        let ServerShape { cpu, cores, llc_ways, way_bytes, ddio_ways, min_ways, classes, memory_mib, .. } = server();
        let one = |i| {
            format!(
                "[[server]]\nname = \"s{i}\"\ncpu = \"{cpu}\"\ncores = {cores}\nllc_ways = {llc_ways}\nway_bytes = {way_bytes}\n\
                 ddio_ways = {ddio_ways}\nmin_ways = {min_ways}\nclasses = {classes}\nmemory_mib = {memory_mib}\n"
            )
        };
        (0..servers).map(one).collect()
    }

    /// A plan with servers, and profiles of the samples.
    pub fn plan(servers: usize) -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("servers.toml"), servers_toml(servers)).unwrap();
        fs::create_dir(dir.path().join("profiles")).unwrap();
        for kind in KINDS.iter().filter(|kind| ["firewall", "nat-zipf", "ids"].contains(&kind.name.as_str())) {
            let profile = OnServer { kind, way_bytes: server().way_bytes }.profile(&server()).unwrap();
            profile.save(&dir.path().join(format!("profiles/{}.json", kind.name))).unwrap();
        }
        let folder = Folder::at(dir.path());
        (dir, folder)
    }

    /// An SLO of one of the sample NFs.
    pub fn slo(name: &str, nf: &str, throughput_pps: f64, latency_us: f64) -> Slo {
        Slo {
            name: name.into(),
            workload: Workload::Nf(nf.into()),
            configuration: sluice_slo::digest::Digest::of(b""),
            traffic: "sample".into(),
            promise: Promise::Reserved { throughput_pps, latency_us },
        }
    }

    /// Admits an SLO, as the client does.
    pub fn admit(folder: &Folder, plan: &mut Plan, slo: Slo) {
        let Workload::Nf(nf) = &slo.workload else { panic!("{slo:?}") };
        let profile = sluice_slo::profile::Profile::load(&folder.path().join(format!("profiles/{nf}.json"))).unwrap();
        sluice_planner::admission::admit(&mut plan.placement, &slo, &profile).unwrap();
        plan.slos.push(Admitted { slo, profile: Some(profile.key) });
    }

    fn said(folder: &Folder) -> String {
        format!("{:#}", folder.read().unwrap_err())
    }

    #[test]
    fn a_plan_comes_back_as_it_was_written() {
        let (dir, folder) = plan(2);
        let mut plan = folder.read().unwrap();
        assert_eq!((plan.slos.len(), plan.placement.servers.len()), (0, 2));
        admit(&folder, &mut plan, slo("acme", "nat-zipf", 5e6, 100.0));
        folder.write(&plan).unwrap();
        assert_eq!(folder.read().unwrap().slos, plan.slos);
        assert_eq!(folder.read().unwrap().placement.instances().count(), plan.placement.instances().count());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "no file is left behind");
        assert!(plan.find("acme").is_ok());
        assert!(plan.find("acne").unwrap_err().to_string().contains("did you mean \"acme\"?"));
        assert!(plan.find("other").unwrap_err().to_string().contains("slo list"));
        plan.placement.servers[0].instances[0].ways = 40;
        assert!(folder.write(&plan).is_err());
    }

    #[test]
    fn servers_may_come_and_change_unless_somebody_runs_there() {
        let (dir, folder) = plan(1);
        let mut plan = folder.read().unwrap();
        admit(&folder, &mut plan, slo("acme", "nat-zipf", 5e6, 100.0));
        folder.write(&plan).unwrap();
        let servers = |text: &str| fs::write(dir.path().join("servers.toml"), text).unwrap();
        servers(&servers_toml(3));
        assert_eq!(folder.read().unwrap().placement.servers.len(), 3);
        servers(&servers_toml(1).replace("cores = 9", "cores = 10"));
        assert_eq!(folder.read().unwrap().placement.servers[0].shape.cores, 10);
        servers(&servers_toml(1).replace("memory_mib = 65536", "memory_mib = 100"));
        assert!(said(&folder).contains("less than what runs there"), "{}", said(&folder));
        servers(&servers_toml(1).replace("\"s0\"", "\"s7\""));
        assert!(said(&folder).contains("lacks server \"s0\", where instances of acme run"));
        servers(&servers_toml(1).replace("\"sample\"", "\"other\""));
        assert!(said(&folder).contains("another processor"));
        servers(&servers_toml(1).replace("memory_mib", "path_us = 20\nmemory_mib"));
        assert!(said(&folder).contains("a longer path_us (20 µs) than instances of acme were admitted with (0 µs)"));
        servers(&servers_toml(1).replace("cores", "cors"));
        assert!(said(&folder).contains("servers.toml describes no servers: ") && said(&folder).contains("cors"));
        servers("server = []");
        assert!(said(&folder).contains("write a [[server]]"));
    }

    #[test]
    fn what_is_foreign_or_not_there_is_said() {
        let nowhere = Folder::at(Path::new("/nonexistent/plan"));
        assert!(said(&nowhere).contains("there is no plan in /nonexistent/plan") && nowhere.lock().is_err());
        let (_dir, folder) = plan(1);
        for (text, word) in [
            ("{", "EOF"),
            ("{\"entries\": {}}", "unknown field `entries`"),
            ("{\"form\": 9, \"slos\": [], \"placement\": {\"servers\": []}}", "form 9"),
        ] {
            fs::write(folder.placement(), text).unwrap();
            let said = said(&folder);
            assert!(
                said.contains("is no placement of this program") && said.contains(word) && said.contains("move it away"),
                "{said}"
            );
        }
    }

    #[test]
    fn one_at_a_time_has_the_lock() {
        let (_dir, folder) = plan(1);
        let held = folder.lock().unwrap();
        let take = || Lock::take(File::open(folder.path()).unwrap());
        assert!(take().is_err());
        drop(held);
        assert!(take().is_ok());
    }
}
