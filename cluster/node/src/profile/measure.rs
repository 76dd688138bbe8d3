//! A measurement: `sluice profile`, as a process.
//!
//! NFs are programs that tenants name. Here, as in the daemon, they run as a user of their own, so
//! that they cannot read the token of the agent, and not reach the daemon's control socket.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use serde_json::{Value, json};
use sluice_api::config::Config;
use sluice_cluster_types::{NetworkFunction, NetworkFunctionSpec, ProfileRequest, ProfileRequestSpec, ServiceChain};
use sluice_slo::profile::Profile;
use sluice_slo::slo::Workload;

use crate::api::within;
use crate::merge;

/// Longest time of a measurement.
pub const LIMIT: Duration = Duration::from_secs(3600);
/// The user of NFs: one that owns nothing.
const USER: &str = "65534";
/// What is measured, in the configuration for it.
const CHAIN: &str = "profiled";
/// Most bytes of an error that are shown: its end.
const LONGEST: usize = 1000;

/// Where profiles are made.
#[derive(Debug, Clone)]
pub struct Place {
    pub node: String,
    pub class: String,
    /// `sluice`.
    pub program: PathBuf,
    /// The configuration of this server without a plan.
    pub base: PathBuf,
}

/// What became of a measurement.
#[derive(Debug)]
pub enum Outcome {
    Done(Box<Profile>),
    Failed(String),
    /// It is to begin anew, here or elsewhere.
    Again(String),
}

/// What is measured, and how.
#[derive(Debug, Clone)]
pub struct Job {
    /// NFs in the order of the chain, each with its name in profiles.
    nfs: Vec<(String, NetworkFunctionSpec)>,
    is_chain: bool,
    /// Core of an NF.
    core: Option<usize>,
    spec: ProfileRequestSpec,
}

/// What a request asks for, by the objects that it names.
///
/// # Errors
/// What is missing, or the API server does not answer.
pub async fn job(client: &Client, place: &Place, request: &ProfileRequest) -> Result<Job, Outcome> {
    let namespace = request.metadata.namespace.clone().unwrap_or_default();
    let away = |error: kube::Error| Outcome::Again(format!("the API server does not say what is to be measured: {error}"));
    let missing = |kind: &str, name: &str| {
        Outcome::Failed(format!("there is no {kind} \"{name}\" in {namespace}: make it, and then another request"))
    };
    let names = match (&request.spec.function, &request.spec.chain) {
        (Some(function), _) => vec![function.clone()],
        (None, Some(name)) => {
            let api: Api<ServiceChain> = Api::namespaced(client.clone(), &namespace);
            let chain = within(api.get_opt(name)).await.map_err(away)?;
            chain.ok_or_else(|| missing("ServiceChain", name))?.spec.services
        }
        (None, None) => Vec::new(),
    };
    let api: Api<NetworkFunction> = Api::namespaced(client.clone(), &namespace);
    let mut nfs = Vec::with_capacity(names.len());
    for name in &names {
        let function = within(api.get_opt(name)).await.map_err(away)?.ok_or_else(|| missing("NetworkFunction", name))?;
        if function.spec.exec.is_none() {
            let why =
                format!("\"{name}\" is an NF of pods, and a profile is of a program: name it in exec, and make another request");
            return Err(Outcome::Failed(why));
        }
        nfs.push((function.profiled_as().to_string(), function.spec));
    }
    let base = std::fs::read_to_string(&place.base).ok().and_then(|text| toml::from_str::<Config>(&text).ok());
    let core = base.and_then(|base| base.promises.cores.first().copied());
    // The plan has a profile of the NF for a chain of one.
    let is_chain = nfs.len() > 1;
    Ok(Job { nfs, is_chain, core, spec: request.spec.clone() })
}

impl Job {
    fn service(i: usize) -> String {
        format!("nf{i}")
    }

    /// A configuration with these NFs, by names of their own.
    fn config(&self) -> Result<String, toml::ser::Error> {
        let service = |(i, (_, spec)): (usize, &(String, NetworkFunctionSpec))| {
            let mut written = json!({"name": Self::service(i), "user": USER});
            merge::extend(&mut written, merge::program(spec.exec.as_deref().unwrap_or_default(), spec));
            written
        };
        let services: Vec<Value> = self.nfs.iter().enumerate().map(service).collect();
        let names: Vec<String> = (0..services.len()).map(Self::service).collect();
        toml::to_string(&json!({
            "port": [{"name": "in", "kind": "gen"}, {"name": "out", "kind": "sink"}],
            "rule": [{"port": "in", "chain": CHAIN}],
            "service": services,
            "chain": [{"name": CHAIN, "services": names, "egress": "out"}],
        }))
    }

    fn arguments(&self, config: &Path) -> Vec<OsString> {
        let name = if self.is_chain { CHAIN.into() } else { Self::service(0) };
        let spec = &self.spec;
        let mut arguments: Vec<OsString> = vec!["profile".into(), name.into(), "--json".into(), "--config".into(), config.into()];
        let mut more = vec![format!("--traffic={}", spec.traffic), format!("--cache={}", spec.cache.word())];
        more.extend(self.core.map(|core| format!("--core={core}")));
        more.extend(spec.noisy.then(|| "--noisy".to_string()));
        arguments.extend(more.into_iter().map(OsString::from));
        arguments
    }

    fn workload(&self) -> Workload {
        let mut names: Vec<String> = self.nfs.iter().map(|(name, _)| name.clone()).collect();
        if self.is_chain { Workload::Chain(names) } else { Workload::Nf(names.remove(0)) }
    }
}

/// Runs the program, at most for this time. It ends with this future.
///
/// # Errors
/// Why there is no profile, and what to do.
pub async fn run(program: &Path, job: &Job, limit: Duration) -> Result<Profile, String> {
    let here = |error: std::io::Error| format!("the agent cannot write the configuration of the measurement: {error}");
    let folder = tempfile::tempdir().map_err(here)?;
    let config = folder.path().join("profile.toml");
    std::fs::write(&config, job.config().map_err(|error| error.to_string())?).map_err(here)?;
    let mut command = tokio::process::Command::new(program);
    command.args(job.arguments(&config)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // Nothing of the agent's own environment is the business of NFs.
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "TMPDIR"));
    let child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!(
            "the agent of this node finds no {}: its image is to have sluice and sluice-lab (`make oci-cluster`), or name it by --profiler",
            program.display()
        ),
        _ => format!("cannot start {}: {error}", program.display()),
    })?;
    let ended = tokio::time::timeout(limit, child.wait_with_output()).await;
    let took_too_long = |_| format!("it took longer than {} min: give it less traffic or fewer NFs", limit.as_secs() / 60);
    let output = ended.map_err(took_too_long)?.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("sluice profile ended with {}: {}", output.status, tail(&output.stderr)));
    }
    let mut profile: Profile = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("sluice profile printed no profile: {error}; are agent and sluice of the same version?"))?;
    profile.key.workload = job.workload();
    profile.check().map_err(|error| error.to_string())?;
    Ok(profile)
}

/// The end of what a program has said.
fn tail(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let text = text.trim();
    let from = text.char_indices().map(|(at, _)| at).find(|at| text.len() - at <= LONGEST).unwrap_or(0);
    text[from..].into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;

    use sluice_cluster_types::CacheSource;

    use super::*;

    fn job(nfs: &[&str]) -> Job {
        let nf = |name: &&str| {
            let env = BTreeMap::from([("KEY".to_string(), "value".to_string())]);
            let (exec, args) = (Some("sluice-nf-nat".into()), vec!["--inside".into(), "10.0.0.0/8".into()]);
            ((*name).to_string(), NetworkFunctionSpec { exec, args, env, storage: true, ..NetworkFunctionSpec::default() })
        };
        let spec = ProfileRequestSpec { traffic: "flows=10".into(), cache: CacheSource::None, ..ProfileRequestSpec::default() };
        Job { nfs: nfs.iter().map(nf).collect(), is_chain: nfs.len() > 1, core: Some(3), spec }
    }

    /// A program with this script.
    fn program(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("sluice");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn nfs_are_measured_by_their_place_and_as_another_user() {
        let job = job(&["v1.2", "nat"]);
        let config: Config = toml::from_str(&job.config().unwrap()).unwrap();
        let services: Vec<_> = config.services.iter().map(|one| (one.name.as_str(), one.user.as_deref(), one.env.len())).collect();
        assert_eq!(services, [("nf0", Some(USER), 1), ("nf1", Some(USER), 1)]);
        assert!(config.services.iter().all(|one| one.storage && one.args.len() == 2));
        assert_eq!(config.chains[0].services, ["nf0", "nf1"]);
        assert_eq!(job.workload(), Workload::Chain(vec!["v1.2".into(), "nat".into()]));
        let arguments = job.arguments(Path::new("/x"));
        let wanted = ["profile", CHAIN, "--json", "--config", "/x", "--traffic=flows=10", "--cache=none", "--core=3"];
        assert_eq!(arguments, wanted.map(OsString::from));
    }

    // One test: while a process starts beside it, a script that was just written cannot be started.
    #[tokio::test]
    async fn what_the_program_prints_is_the_profile_or_why_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let printed = serde_json::to_string(&sluice_slo::examples::profile()).unwrap();
        let script = format!("echo '{printed}'");
        let at = |script: &str| program(folder.path(), script);
        let profile = run(&at(&script), &job(&["v1.2"]), LIMIT).await.unwrap();
        assert_eq!(profile.key.workload, Workload::Nf("v1.2".into()));
        let why = run(&at("echo the host is too noisy >&2; exit 1"), &job(&["nat"]), LIMIT).await.unwrap_err();
        assert!(why.contains("the host is too noisy"), "{why}");
        let why = run(&at("echo {}"), &job(&["nat"]), LIMIT).await.unwrap_err();
        assert!(why.contains("printed no profile"), "{why}");
        let why = run(&at("exec sleep 3600"), &job(&["nat"]), Duration::from_millis(1)).await.unwrap_err();
        assert!(why.contains("took longer"), "{why}");
        let why = run(&folder.path().join("none"), &job(&["nat"]), LIMIT).await.unwrap_err();
        assert!(why.contains("make oci-cluster"), "{why}");
        assert_eq!(tail("µ".repeat(LONGEST).as_bytes()).len(), LONGEST);
    }
}
