//! Starts an NF in an OCI container.
//!
//! # Problem
//! An NF may come with all that it needs, as a bundle or a root directory, and may not be trusted
//! with anything of the host. The host's OCI runtime (crun, runc) can start it so. But a container
//! outlives its starter, is found again by a number that may be reused by then, and its
//! `config.json` may ask for any part of the host.
//!
//! # Approach
//! - The manager writes a `config.json` of its own for each start, in a folder of its own:
//!   [`Template::config`]. From a root directory it makes the whole file. From a bundle it takes
//!   what the program needs (arguments, environment, user, limits, memory mounts). It refuses
//!   beforehand what would reach the host ([`examine`]): bind mounts, hooks, devices, foreign
//!   namespaces.
//! - The container always has its own process, mount, network, IPC, host-name and cgroup
//!   namespaces, no capabilities, no new privileges, a read-only root directory (unless configured
//!   otherwise), and a filter of system calls: that of [NFs](super::filter) plus the bundle's
//!   denials. Of the host it is given only the NF socket, at [`SOCKET`].
//! - The runtime is started like any NF's program, with [`SpawnSpec::apart`]: as the first process
//!   of a process namespace. It stays the container's parent (`run` in the foreground). So a whole
//!   container ends when its runtime is killed, and the kernel kills the runtime with the manager.
//! - When the NF says hello, the kernel names its process by a pidfd (the NF socket). From then on
//!   the NF is scheduled, weighted, watched and stopped like any other, and the runtime is the
//!   *wrapper* that ends with it.
//! - The runtime sees one cgroup, made for it by the manager, instead of the host's. The manager
//!   itself places the NF's process in the cgroups that weight and freeze NFs. So hosts with
//!   cgroups of version 1, 2 or both look the same to the runtime (crun refuses a mixture), and it
//!   enables nothing outside of its own cgroup (runc would).
//! - A life leaves that folder and that cgroup: [`ContainerRun::clear`] removes both, and the
//!   [record](super::record) lists them before they are made.
//!
//! # Limits
//! - The runtime sees only its process namespace: `crun list` and `crun exec` on the host do not
//!   find its processes. Enter with `nsenter --all --target PID`, with the PID of `sluice nf list`.
//! - Mount points missing in a root directory (`/proc`, `/dev`, `/run`) are made before the runtime
//!   starts: of two runtimes that make them at once, one would fail.
//! - Limits of a bundle (`linux.resources`) are refused: the NF's cgroup is the manager's. A second
//!   user namespace is passed on.
//! - Root only: no rootless containers.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value, json};
use sluice_shm::handshake::{ENV_NF, ENV_SOCKET};

use super::filter;
use super::spawn::{ProcessLimits, SpawnSpec};
use super::user::User;

/// Path of the NF socket in a container.
pub const SOCKET: &str = "/run/sluice/nf.sock";

/// Folder below the runtime directory that holds a folder for each container.
pub const FOLDER: &str = "containers";

/// Child of a container's cgroup, in which the runtime places the container.
const INNER: &str = "container";

/// Namespaces that every container has for itself.
const NAMESPACES: [&str; 6] = ["pid", "mount", "network", "ipc", "uts", "cgroup"];

/// Default PATH of a program.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Maximum depth of a runtime's files of a container.
const DEPTH: usize = 4;

/// Maximum size of `config.json`, in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// What a container is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerBase {
    /// A folder with a `config.json`.
    Bundle(PathBuf),
    /// A root directory and the path of the program in it.
    Root { root: PathBuf, exec: PathBuf },
}

/// The common settings of a service's containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub source: ContainerBase,
    /// The OCI runtime, an absolute path.
    pub runtime: PathBuf,
    pub writable: bool,
    /// Arguments, after those of a bundle.
    pub args: Vec<String>,
    /// Variables; they override those of a bundle.
    pub env: Vec<(String, String)>,
    /// User; overrides that of a bundle. Root if neither is given.
    pub user: Option<User>,
    /// Maximum number of processes and threads, including the runtime's.
    pub pids: u32,
}

/// What one start of a container makes, and its end removes.
#[derive(Debug)]
pub struct ContainerRun {
    /// Its folder: `config.json` and the runtime's files.
    pub folder: PathBuf,
    /// The cgroup of its runtime, on hosts with cgroups of version 2.
    pub cgroup: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The bundle has become invalid since the configuration was checked.
    #[error("container of {nf}: {what}")]
    Bundle { nf: String, what: String },
    #[error("container of {nf}: cannot {doing} {path}: {source}")]
    System { nf: String, doing: &'static str, path: PathBuf, source: io::Error },
}

/// Reads the `config.json` of a bundle.
///
/// # Errors
/// A sentence that names the fault and its remedy.
pub fn read_bundle(bundle: &Path) -> Result<Value, String> {
    let path = bundle.join("config.json");
    let shown = path.display();
    let failed = |error: io::Error| {
        format!(
            "cannot read the bundle's {shown}: {error}; `crun spec` writes one, or write root = \"FOLDER\" and exec instead of bundle"
        )
    };
    if fs::metadata(&path).map_err(failed)?.len() > MAX_BYTES {
        return Err(format!("{shown} is too large for a config.json; keep it under 4 MiB"));
    }
    let text = fs::read_to_string(&path).map_err(failed)?;
    serde_json::from_str(&text).map_err(|error| format!("{shown} is no JSON: {error}; mend it, or write it anew with `crun spec`"))
}

/// Checks a bundle for forbidden and missing parts.
///
/// # Errors
/// A sentence that names the fault and its remedy.
pub fn examine(config: &Value) -> Result<(), String> {
    let is_given = |value: &Value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    };
    if program_of(config).is_none() {
        return Err("the bundle's config.json names no program; write process.args as a list of strings".into());
    }
    if !config["root"]["path"].is_string() {
        return Err("the bundle's config.json names no root directory; write root.path".into());
    }
    if is_given(&config["hooks"]) {
        return Err("the bundle has hooks, which run on the host; remove them from its config.json".into());
    }
    if is_given(&config["linux"]["devices"]) {
        return Err("the bundle asks for devices of the host; remove linux.devices from its config.json".into());
    }
    for namespace in list(&config["linux"]["namespaces"]) {
        if is_given(&namespace["path"]) {
            let path = &namespace["path"];
            return Err(format!("the bundle enters the namespace {path} of somebody else; remove `path` in linux.namespaces"));
        }
    }
    for mount in list(&config["mounts"]) {
        if is_bind(mount) {
            let (source, to) = (&mount["source"], &mount["destination"]);
            return Err(format!("the bundle binds {source} of the host to {to}; copy it into the bundle's root directory instead"));
        }
        if !is_dropped(mount) && !matches!(kind(mount), "proc" | "tmpfs" | "devpts" | "mqueue") {
            let (to, what) = (&mount["destination"], &mount["type"]);
            return Err(format!(
                "the bundle mounts {what} at {to}; a container is given proc, tmpfs, devpts and mqueue only: remove it"
            ));
        }
    }
    let limits = config["linux"]["resources"].as_object().into_iter().flatten();
    if let Some((what, _)) = limits.into_iter().find(|(what, value)| *what != "devices" && is_given(value)) {
        return Err(format!(
            "the bundle has limits (linux.resources.{what}), and the cgroup of an NF is the manager's; remove them from its config.json"
        ));
    }
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn kind(mount: &Value) -> &str {
    mount["type"].as_str().unwrap_or_default()
}

fn is_bind(mount: &Value) -> bool {
    let options = list(&mount["options"]);
    kind(mount) == "bind" || options.iter().any(|option| matches!(option.as_str(), Some("bind" | "rbind")))
}

/// Mounts of every bundle that show the host: an NF needs none of them.
fn is_dropped(mount: &Value) -> bool {
    matches!(kind(mount), "sysfs" | "cgroup" | "cgroup2")
}

/// The program of a bundle, as a path in the container.
pub fn program_of(config: &Value) -> Option<&Path> {
    let args = list(&config["process"]["args"]);
    args.first().filter(|_| args.iter().all(Value::is_string)).and_then(Value::as_str).filter(|arg| !arg.is_empty()).map(Path::new)
}

pub fn root_of(config: &Value, bundle: &Path) -> PathBuf {
    bundle.join(config["root"]["path"].as_str().unwrap_or_default())
}

/// The host's path of a path in a container, with links resolved as in the container.
///
/// None if it does not exist.
pub fn resolve_in(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut ahead: Vec<OsString> = path.components().rev().map(|part| part.as_os_str().into()).collect();
    let mut inside = PathBuf::new();
    // At most 40 links, as in the kernel.
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        match Path::new(&part).components().next() {
            Some(Component::Normal(name)) => {
                let next = inside.join(name);
                match fs::read_link(root.join(&next)) {
                    Ok(to) if links < 40 => {
                        links += 1;
                        ahead.extend(to.components().rev().map(|part| part.as_os_str().to_owned()));
                    }
                    Ok(_) => return None,
                    Err(_) => inside = next,
                }
            }
            Some(Component::RootDir) => inside.clear(),
            Some(Component::ParentDir) => drop(inside.pop()),
            Some(Component::CurDir | Component::Prefix(_)) | None => {}
        }
    }
    let found = root.join(inside);
    found.exists().then_some(found)
}

/// The loader of a program: PT_INTERP of a 64-bit little-endian ELF file.
///
/// None if it is linked statically, or is another kind of file.
pub fn loader_of(program: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    const INTERPRETER: u32 = 3;
    let at = |offset: usize, bytes: usize| {
        let slice = program.get(offset..offset.checked_add(bytes)?)?;
        Some(slice.iter().rev().fold(0u64, |number, byte| (number << 8) | u64::from(*byte)))
    };
    // 64 bit, little endian.
    if program.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let (table, size, count) = (at(32, 8)? as usize, at(54, 2)? as usize, at(56, 2)? as usize);
    for i in 0..count {
        let header = table.checked_add(i.checked_mul(size)?)?;
        if at(header, 4)? == u64::from(INTERPRETER) {
            let (offset, len) = (at(header.checked_add(8)?, 8)? as usize, at(header.checked_add(32)?, 8)? as usize);
            let name = program.get(offset..offset.checked_add(len)?)?.split(|byte| *byte == 0).next()?;
            return Some(OsString::from_vec(name.to_vec()).into());
        }
    }
    None
}

impl Template {
    /// The `config.json` of an NF's container.
    ///
    /// # Errors
    /// A sentence that names the bundle's fault and its remedy.
    pub fn config(&self, nf: &str, socket: &Path) -> Result<Value, String> {
        let mut config = match &self.source {
            ContainerBase::Bundle(bundle) => {
                let config = read_bundle(bundle)?;
                examine(&config)?;
                let root = root_of(&config, bundle);
                let mut config = config;
                config["root"] = json!({ "path": root });
                config
            }
            ContainerBase::Root { root, exec } => plain(root, exec),
        };
        let mut own = |variable: &str, value: &str| set_variable(&mut config["process"]["env"], variable, value);
        self.env.iter().for_each(|(variable, value)| own(variable, value));
        own(ENV_SOCKET, SOCKET);
        own(ENV_NF, nf);
        config["root"]["readonly"] = json!(!self.writable);
        config["hostname"] = json!(nf);

        let process = &mut config["process"];
        if let Value::Array(args) = &mut process["args"] {
            args.extend(self.args.iter().map(|arg| json!(arg)));
        }
        if let Some(user) = &self.user {
            process["user"] = json!({ "uid": user.uid, "gid": user.gid, "additionalGids": user.groups });
        }
        process["terminal"] = json!(false);
        process["noNewPrivileges"] = json!(true);
        let none: [&str; 0] = [];
        process["capabilities"] =
            json!({ "bounding": none, "effective": none, "inheritable": none, "permitted": none, "ambient": none });

        let mut mounts: Vec<Value> = list(&config["mounts"]).iter().filter(|mount| !is_dropped(mount)).cloned().collect();
        if !mounts.iter().any(|mount| mount["destination"] == "/run") {
            mounts.push(memory("/run", "64k"));
        }
        // Connecting to a socket needs write permission, so no "ro"; the file stays the host's.
        mounts.push(json!({
            "destination": SOCKET, "type": "bind", "source": socket, "options": ["bind", "nosuid", "nodev", "noexec"],
        }));
        config["mounts"] = mounts.into();

        let linux = &mut config["linux"];
        if !linux.is_object() {
            *linux = Value::Object(Map::new());
        }
        let of_others = list(&linux["namespaces"]).iter().filter(|namespace| namespace["type"] == "user").cloned();
        let namespaces: Vec<Value> =
            NAMESPACES.iter().map(|kind| json!({ "type": kind })).chain(of_others.collect::<Vec<_>>()).collect();
        linux["namespaces"] = namespaces.into();
        linux["cgroupsPath"] = json!(format!("/{INNER}"));
        linux["maskedPaths"] = json!(MASKED);
        linux["readonlyPaths"] = json!(READ_ONLY);
        linux["seccomp"] = seccomp(&linux["seccomp"]);
        if let Some(linux) = linux.as_object_mut() {
            linux.remove("resources");
            linux.remove("rootfsPropagation");
        }
        Ok(config)
    }
}

/// A container's filter of system calls: that of NFs, plus the denials of its bundle.
///
/// If the bundle denies only some calls, the rules of NFs are added. If it allows only some, the
/// calls that NFs may not make are taken out of those. A combined rule that libseccomp cannot
/// express is left out, which denies the call.
fn seccomp(bundle: &Value) -> Value {
    let denies = |action: &Value| {
        let action = action.as_str().unwrap_or_default();
        action == "SCMP_ACT_ERRNO" || action == "SCMP_ACT_TRAP" || action.starts_with("SCMP_ACT_KILL")
    };
    let is_open = !denies(&bundle["defaultAction"]);
    let never: BTreeSet<&str> = filter::denied_names().chain(["clone3"]).collect();
    let mut by_argument: BTreeMap<&str, Vec<(u8, u32, u32)>> = BTreeMap::new();
    // Input can only be injected into a terminal, and a container has none of the host's.
    for (name, argument, mask, value) in filter::denied_arguments().filter(|(name, ..)| is_open || *name != "ioctl") {
        by_argument.entry(name).or_default().push((argument, mask, value));
    }
    let mut calls = Vec::new();
    // Calls that the bundle denies for all arguments. Two rules for one call would conflict.
    let mut denied: BTreeSet<&str> = BTreeSet::new();
    for rule in list(&bundle["syscalls"]) {
        if denies(&rule["action"]) {
            if list(&rule["args"]).is_empty() {
                denied.extend(list(&rule["names"]).iter().filter_map(Value::as_str));
            }
            calls.push(rule.clone());
            continue;
        }
        let is_ours = |name: &&str| never.contains(name) || by_argument.contains_key(name);
        let (ours, theirs): (Vec<&str>, Vec<&str>) = list(&rule["names"]).iter().filter_map(Value::as_str).partition(is_ours);
        if !theirs.is_empty() {
            let mut rule = rule.clone();
            rule["names"] = json!(theirs);
            calls.push(rule);
        }
        if !is_open {
            let rest = ours.iter().filter_map(|name| Some((name, by_argument.get(name)?)));
            calls.extend(rest.flat_map(|(name, rules)| what_is_left(name, rule, rules)));
        }
    }
    if !denied.contains("clone3") {
        // C libraries then use `clone`, which the filter can inspect.
        calls.push(json!({ "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": libc::ENOSYS }));
    }
    if is_open {
        let names: Vec<&str> = filter::denied_names().filter(|name| !denied.contains(name)).collect();
        calls.push(json!({ "names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": libc::EPERM }));
        for (name, rules) in by_argument.into_iter().filter(|(name, _)| !denied.contains(name)) {
            calls.extend(rules.into_iter().map(|(argument, mask, value)| {
                let is = json!({ "index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" });
                json!({ "names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": libc::EPERM, "args": [is] })
            }));
        }
    }
    // Other keys (architectures, a listener on the host) are not copied.
    let mut filter = json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": calls });
    for key in ["defaultAction", "defaultErrnoRet", "flags"] {
        if !bundle[key].is_null() {
            filter[key] = bundle[key].clone();
        }
    }
    filter
}

/// A rule that allows a call, without what `rules` deny. All `rules` are of one argument.
fn what_is_left(name: &str, allowing: &Value, rules: &[(u8, u32, u32)]) -> Vec<Value> {
    let Some((argument, ..)) = rules.first() else { return Vec::new() };
    let (same, mut others): (Vec<&Value>, Vec<&Value>) =
        list(&allowing["args"]).iter().partition(|condition| condition["index"] == json!(argument));
    let allow = |conditions: &[&Value]| json!({ "names": [name], "action": allowing["action"], "args": conditions });
    if rules.iter().all(|(_, mask, value)| mask == value) {
        // None of these bits, and none of those that the bundle names itself.
        let is_of_bits =
            |condition: &&&Value| condition["op"] == "SCMP_CMP_MASKED_EQ" && condition["valueTwo"].as_u64().unwrap_or(0) == 0;
        if !same.iter().all(|condition| is_of_bits(&condition)) {
            return Vec::new();
        }
        let own = same.iter().filter_map(|condition| condition["value"].as_u64());
        let bits = own.chain(rules.iter().map(|(_, mask, _)| u64::from(*mask))).fold(0, |all, bits| all | bits);
        let none = json!({ "index": argument, "value": bits, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" });
        others.push(&none);
        return vec![allow(&others)];
    }
    if !same.is_empty() {
        return Vec::new();
    }
    let of_values = |(mask, value): (u32, u32)| {
        let is = json!({ "index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" });
        allow(&others.iter().copied().chain([&is]).collect::<Vec<_>>())
    };
    let denied: Vec<(u32, u32)> = rules.iter().map(|(_, mask, value)| (*mask, *value)).collect();
    complement((0, 0), &denied).into_iter().map(of_values).collect()
}

/// The numbers of `within` that are in none of `denied`: each a mask, and what a number masked is.
/// Not by inequalities, which a filter applies to 64 bits where the kernel reads 32.
fn complement(within: (u32, u32), denied: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let (fixed, bits) = within;
    let here: Vec<(u32, u32)> = denied.iter().copied().filter(|(mask, value)| (value ^ bits) & mask & fixed == 0).collect();
    let open = here.iter().fold(0, |all, (mask, _)| all | mask) & !fixed;
    if here.is_empty() {
        return vec![within];
    }
    if here.iter().any(|(mask, _)| mask & !fixed == 0) {
        return Vec::new();
    }
    let bit = 1 << open.ilog2();
    [0, bit].into_iter().flat_map(|value| complement((fixed | bit, bits | value), &here)).collect()
}

/// Files of `/proc` that expose the host.
const MASKED: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Whether a runtime is crun, which has an option to leave cgroups alone.
pub fn is_crun(runtime: &Path) -> bool {
    runtime.file_name().is_some_and(|name| name == "crun")
}

/// The configuration of a bare root directory, as a bundle would have it.
fn plain(root: &Path, exec: &Path) -> Value {
    json!({
        "ociVersion": "1.0.0",
        "process": { "user": { "uid": 0, "gid": 0 }, "args": [exec], "env": [PATH], "cwd": "/" },
        "root": { "path": root },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "nodev", "noexec"] },
            {
                "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                "options": ["nosuid", "noexec", "strictatime", "mode=755", "size=64k"],
            },
        ],
    })
}

fn memory(at: &str, size: &str) -> Value {
    json!({
        "destination": at, "type": "tmpfs", "source": "tmpfs",
        "options": ["nosuid", "nodev", "noexec", "mode=755", format!("size={size}")],
    })
}

fn set_variable(env: &mut Value, variable: &str, value: &str) {
    let mut all: Vec<Value> = list(env).to_vec();
    let is_it = |one: &Value| one.as_str().and_then(|one| one.split_once('=')).is_some_and(|(name, _)| name == variable);
    all.retain(|one| !is_it(one));
    all.push(format!("{variable}={value}").into());
    *env = all.into();
}

impl ContainerRun {
    /// The paths of one start of an NF's container. `number` is unique to the start.
    pub fn new(nf: &str, number: u64, runtime_dir: &Path, home: Option<&Path>) -> Self {
        Self {
            folder: runtime_dir.join(FOLDER).join(format!("{nf}-{number}")),
            cgroup: home.map(|home| home.join(format!("sluice-{}-{nf}-{number}", std::process::id()))),
        }
    }

    /// The cgroups to be made, the inner one last.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        self.cgroup.iter().flat_map(|cgroup| [cgroup.clone(), cgroup.join(INNER)]).collect()
    }

    /// Makes what the start needs, and returns how to start the runtime. Record it before.
    ///
    /// # Errors
    /// [`ContainerError`]; call [`Self::clear`] even then.
    pub fn prepare(&self, nf: &str, template: &Template, socket: &Path) -> Result<SpawnSpec, ContainerError> {
        let config = template.config(nf, socket).map_err(|what| ContainerError::Bundle { nf: nf.into(), what })?;
        let system = |doing, path: &Path| {
            let (nf, path) = (nf.to_string(), path.to_path_buf());
            move |source| ContainerError::System { nf, doing, path, source }
        };
        if let Some(cgroup) = &self.cgroup {
            fs::create_dir(cgroup).map_err(system("make the cgroup", cgroup))?;
            // Missing where this hierarchy does not limit pids; one of version 1 may.
            let limit = OpenOptions::new().write(true).open(cgroup.join("pids.max"));
            let _ = limit.and_then(|mut to| to.write_all(template.pids.to_string().as_bytes()));
        }
        let state = self.folder.join("state");
        DirBuilder::new().mode(0o700).recursive(true).create(&state).map_err(system("make", &state))?;
        let file = self.folder.join("config.json");
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file);
        written.and_then(|mut to| to.write_all(config.to_string().as_bytes())).map_err(system("write", &file))?;
        make_mount_points(&config);

        let mut args: Vec<OsString> = vec!["--root".into(), state.into()];
        if is_crun(&template.runtime) {
            args.push("--cgroup-manager=disabled".into());
        }
        let id = self.folder.file_name().unwrap_or_default();
        args.extend(["run".into(), "--bundle".into(), self.folder.clone().into(), id.into()]);
        let path = std::env::var_os("PATH").map(|path| ("PATH".into(), path));
        Ok(SpawnSpec {
            args,
            env: path.into_iter().collect(),
            cgroup: self.cgroup.as_ref().map(|cgroup| cgroup.join("cgroup.procs")),
            apart: true,
            // Inherited by the container, unless its bundle sets another value.
            limits: ProcessLimits { goes_first: true, ..ProcessLimits::default() },
            ..SpawnSpec::new(nf, &template.runtime)
        })
    }

    /// Removes what is left after the runtime's end; returns the removed paths and the errors.
    pub fn clear(self) -> (Vec<PathBuf>, Vec<io::Error>) {
        let (mut gone, mut failed) = (Vec::new(), Vec::new());
        let mut is_gone = |path: PathBuf, removed: io::Result<()>| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => failed.push(error),
            _ => gone.push(path),
        };
        for cgroup in self.cgroups().into_iter().rev() {
            let removed = fs::remove_dir(&cgroup);
            is_gone(cgroup, removed);
        }
        let removed = remove_folder(&self.folder);
        is_gone(self.folder, removed);
        (gone, failed)
    }
}

/// Makes missing mount points directly below the root. Ignores errors: the runtime reports them.
fn make_mount_points(config: &Value) {
    let Some(root) = config["root"]["path"].as_str().map(Path::new) else { return };
    for mount in list(&config["mounts"]) {
        let mut parts = Path::new(mount["destination"].as_str().unwrap_or_default()).components();
        if let (Some(Component::RootDir), Some(Component::Normal(name)), None) = (parts.next(), parts.next(), parts.next()) {
            let _ = DirBuilder::new().mode(0o755).create(root.join(name));
        }
    }
}

/// Removes the folder of a container, to a limited depth and without following links.
///
/// # Errors
/// The system's; [`io::ErrorKind::InvalidInput`] for a folder that is no container's.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    if folder.parent().and_then(Path::file_name) != Some(FOLDER.as_ref()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no folder of a container"));
    }
    remove_below(folder, DEPTH)
}

fn remove_below(folder: &Path, depth: usize) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true if depth > 0 => remove_below(&entry.path(), depth - 1)?,
            true => fs::remove_dir(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_dir(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn template(source: ContainerBase) -> Template {
        Template {
            source,
            runtime: "/usr/bin/crun".into(),
            writable: false,
            args: vec!["--fast".into()],
            env: vec![("A".into(), "2".into())],
            user: None,
            pids: 256,
        }
    }

    fn of_root() -> Template {
        template(ContainerBase::Root { root: "/srv/nf".into(), exec: "/bin/nf".into() })
    }

    /// A bundle as written by `crun spec`, with a change.
    fn bundle(change: impl FnOnce(&mut Value)) -> Value {
        let mut config = json!({
            "ociVersion": "1.0.0",
            "process": {
                "terminal": true, "user": { "uid": 1, "gid": 2 }, "args": ["/bin/nf", "-v"], "env": ["PATH=/bin", "A=1"], "cwd": "/data",
                "capabilities": { "bounding": ["CAP_KILL"], "effective": ["CAP_KILL"] },
                "rlimits": [{ "type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024 }],
            },
            "root": { "path": "rootfs", "readonly": false },
            "hostname": "crun",
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
                { "destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue" },
                { "destination": "/sys", "type": "sysfs", "source": "sysfs" },
                { "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup" },
            ],
            "linux": {
                "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
                "namespaces": [{ "type": "pid" }, { "type": "mount" }],
            },
        });
        change(&mut config);
        config
    }

    fn strings(value: &Value) -> Vec<&str> {
        list(value).iter().filter_map(Value::as_str).collect()
    }

    /// Asserts what every container has.
    fn assert_fenced(config: &Value) {
        for set in ["bounding", "effective", "inheritable", "permitted", "ambient"] {
            assert_eq!(config["process"]["capabilities"][set], json!([]), "{set}");
        }
        assert_eq!(config["process"]["noNewPrivileges"], true);
        assert_eq!(config["process"]["terminal"], false);
        assert_eq!(config["root"]["readonly"], true);
        let namespaces: Vec<&str> = list(&config["linux"]["namespaces"]).iter().filter_map(|n| n["type"].as_str()).collect();
        assert_eq!(namespaces, NAMESPACES);
        let bound: Vec<&Value> = list(&config["mounts"]).iter().filter(|mount| is_bind(mount)).collect();
        assert_eq!(bound.len(), 1, "the socket, and nothing else of the host");
        assert_eq!((&bound[0]["source"], &bound[0]["destination"]), (&json!("/run/sluice/nf.sock"), &json!(SOCKET)));
        assert!(list(&config["mounts"]).iter().all(|mount| !is_dropped(mount)));
        assert_eq!(verdict(&config["linux"]["seccomp"], "ptrace", &[]), "SCMP_ACT_ERRNO");
        assert!(config["linux"]["resources"].is_null());
    }

    #[test]
    fn a_root_directory_gets_a_configuration() {
        let mut template = of_root();
        let config = template.config("ids.0", Path::new("/run/sluice/nf.sock")).unwrap();
        assert_fenced(&config);
        assert_eq!(config["root"]["path"], "/srv/nf");
        assert_eq!(config["hostname"], "ids.0");
        assert_eq!(strings(&config["process"]["args"]), ["/bin/nf", "--fast"]);
        assert_eq!(strings(&config["process"]["env"]), [PATH, "A=2", "SLUICE_SOCKET=/run/sluice/nf.sock", "SLUICE_NF=ids.0"]);
        assert_eq!(config["process"]["user"], json!({ "uid": 0, "gid": 0 }));
        template.user = Some(User { uid: 7, gid: 8, groups: vec![9] });
        template.writable = true;
        let config = template.config("ids.0", Path::new("/run/sluice/nf.sock")).unwrap();
        assert_eq!(config["process"]["user"], json!({ "uid": 7, "gid": 8, "additionalGids": [9] }));
        assert_eq!(config["root"]["readonly"], false);
    }

    #[test]
    fn a_bundle_keeps_what_its_program_needs() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), bundle(|_| ()).to_string()).unwrap();
        let template = template(ContainerBase::Bundle(folder.path().into()));
        let config = template.config("ids.0", Path::new("/run/sluice/nf.sock")).unwrap();
        assert_fenced(&config);
        assert_eq!(config["root"]["path"], json!(folder.path().join("rootfs")));
        assert_eq!(strings(&config["process"]["args"]), ["/bin/nf", "-v", "--fast"]);
        assert_eq!(
            strings(&config["process"]["env"]),
            ["PATH=/bin", "A=2", "SLUICE_SOCKET=/run/sluice/nf.sock", "SLUICE_NF=ids.0"]
        );
        assert_eq!(config["process"]["user"], json!({ "uid": 1, "gid": 2 }));
        assert_eq!(config["process"]["cwd"], "/data");
        assert_eq!(config["process"]["rlimits"][0]["hard"], 1024);
        // A bundle's own filter stays, as far as it denies more.
        let own = bundle(|config| config["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_ERRNO" }));
        fs::write(folder.path().join("config.json"), own.to_string()).unwrap();
        let config = template.config("ids.0", Path::new("/run/sluice/nf.sock")).unwrap();
        assert_eq!(verdict(&config["linux"]["seccomp"], "read", &[]), "SCMP_ACT_ERRNO");
    }

    /// A filter's answer to a call: that of the first matching rule.
    fn verdict(filter: &Value, name: &str, args: &[u64]) -> String {
        let fits = |condition: &Value| {
            let number = |key: &str| condition[key].as_u64().unwrap_or(0);
            let argument = args.get(number("index") as usize).copied().unwrap_or(0);
            match condition["op"].as_str().unwrap() {
                "SCMP_CMP_MASKED_EQ" => argument & number("value") == number("valueTwo"),
                "SCMP_CMP_EQ" => argument == number("value"),
                other => panic!("{other}"),
            }
        };
        let is_it = |rule: &&Value| strings(&rule["names"]).contains(&name) && list(&rule["args"]).iter().all(fits);
        let mut rules = list(&filter["syscalls"]).iter().filter(is_it);
        let action = |rule: &Value| rule["action"].as_str().unwrap().to_owned();
        let first = rules.next().map(action);
        assert!(rules.all(|rule| Some(action(rule)) == first), "{name}: rules contradict each other");
        first.unwrap_or_else(|| filter["defaultAction"].as_str().unwrap().into())
    }

    #[test]
    fn no_filter_of_a_bundle_allows_what_nfs_may_not() {
        let names = json!([
            "read",
            "madvise",
            "fallocate",
            "clone",
            "clone3",
            "ptrace",
            "sched_setaffinity",
            "io_uring_setup",
            "unshare",
            "ioctl",
            "prctl",
            "futex",
            "futex_waitv"
        ]);
        let allow = json!({ "names": names, "action": "SCMP_ACT_ALLOW" });
        let deny = json!({ "names": ["mkdir", "kcmp"], "action": "SCMP_ACT_ERRNO" });
        // Docker's rule: threads, but no namespaces.
        let threads = json!({ "index": 0, "value": 0x7e02_0000_u32, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" });
        let docker = json!({ "names": ["clone", "madvise"], "action": "SCMP_ACT_ALLOW", "args": [threads] });
        let open = json!({ "defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/host", "syscalls": [allow, deny] });
        let shut = json!({ "defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86"], "syscalls": [allow, deny] });
        let narrow = json!({ "defaultAction": "SCMP_ACT_KILL", "syscalls": [docker] });
        for (bundle, others) in [(Value::Null, true), (open, true), (shut, false), (narrow, false)] {
            let filter = seccomp(&bundle);
            assert!(filter["listenerPath"].is_null() && filter["architectures"].is_null());
            let may = |name: &str, args: &[u64]| verdict(&filter, name, args) == "SCMP_ACT_ALLOW";
            for name in filter::denied_names() {
                assert!(!may(name, &[]), "{name}: {bundle}");
            }
            for (name, argument, _, value) in filter::denied_arguments().filter(|(name, ..)| others || *name != "ioctl") {
                let mut args = [0; 6];
                args[usize::from(argument)] = value.into();
                assert!(!may(name, &args), "{name} {value}: {bundle}");
            }
            assert!(!may("clone3", &[]));
            assert_eq!(may("getpid", &[]), others, "{bundle}");
            assert!(may("clone", &[libc::CLONE_VM as u64]), "{bundle}");
            if bundle["defaultAction"] != "SCMP_ACT_KILL" {
                assert!(may("read", &[]) && may("fallocate", &[0, 1]) && may("madvise", &[0, 0, 4]), "{bundle}");
                assert!(bundle.is_null() || !may("mkdir", &[]), "{bundle}");
                // A lock of one process, its wake, two futexes at once, and no new privileges.
                for operation in [libc::FUTEX_WAIT, libc::FUTEX_WAKE, libc::FUTEX_LOCK_PI] {
                    assert!(may("futex", &[0, (operation | libc::FUTEX_PRIVATE_FLAG) as u64]), "{operation}: {bundle}");
                }
                assert!(may("futex_waitv", &[0, 2]) && may("prctl", &[libc::PR_SET_NO_NEW_PRIVS as u64]), "{bundle}");
                // The kernel reads 32 bits.
                assert!(!may("futex", &[0, 1 << 32 | libc::FUTEX_LOCK_PI as u64]), "{bundle}");
            }
        }
    }

    #[test]
    fn a_complement_has_each_other_number_once() {
        let denied = [(u32::MAX, 9), (u32::MAX, 21), (!256, 6), (128 | 64, 64)];
        let rest = complement((0, 0), &denied);
        let fits = |number: u32, all: &[(u32, u32)]| all.iter().filter(|(mask, value)| number & mask == *value).count();
        for number in (0..1024).chain((10..32).map(|bit| 1 << bit)).chain([u32::MAX]) {
            assert_eq!(fits(number, &rest), usize::from(fits(number, &denied) == 0), "{number}");
        }
        assert_eq!(complement((0, 0), &[(0, 0)]), []);
    }

    #[test]
    fn what_reaches_the_host_is_refused() {
        assert_eq!(examine(&bundle(|_| ())), Ok(()));
        assert_eq!(examine(&bundle(|c| c["hooks"] = json!({}))), Ok(()), "none");
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 9] = [
            (|c| c["hooks"] = json!({ "prestart": [{ "path": "/bin/true" }] }), "has hooks, which run on the host"),
            (|c| c["linux"]["devices"] = json!([{ "path": "/dev/vfio/1" }]), "asks for devices of the host"),
            (|c| c["linux"]["namespaces"][0]["path"] = json!("/proc/1/ns/pid"), "enters the namespace \"/proc/1/ns/pid\""),
            (
                |c| c["mounts"][1] = json!({ "destination": "/h", "type": "bind", "source": "/" }),
                "binds \"/\" of the host to \"/h\"",
            ),
            (
                |c| c["mounts"][1] = json!({ "destination": "/h", "type": "none", "source": "/etc", "options": ["rbind"] }),
                "binds \"/etc\" of the host",
            ),
            (
                |c| c["mounts"][1] = json!({ "destination": "/d", "type": "ext4", "source": "/dev/vda" }),
                "mounts \"ext4\" at \"/d\"",
            ),
            (|c| c["linux"]["resources"]["memory"] = json!({ "limit": 1 }), "has limits (linux.resources.memory)"),
            (|c| c["process"]["args"] = json!([]), "names no program"),
            (|c| c["process"]["args"] = json!(["/bin/nf", 7]), "names no program"),
        ];
        for (change, wanted) in cases {
            let said = examine(&bundle(change)).unwrap_err();
            assert!(said.contains(wanted) && said.contains("; "), "{said}");
        }
    }

    #[test]
    fn a_life_is_prepared_and_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let life = ContainerRun::new("ids.0", 3, folder.path(), None);
        let spec = life.prepare("ids.0", &of_root(), Path::new("/run/sluice/nf.sock")).unwrap();
        assert_eq!(life.folder, folder.path().join("containers/ids.0-3"));
        assert!(spec.apart && spec.cgroup.is_none() && spec.user.is_none());
        let args: Vec<String> = spec.args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let shown = life.folder.display();
        assert_eq!(
            args.join(" "),
            format!("--root {shown}/state --cgroup-manager=disabled run --bundle {shown} ids.0-3"),
            "crun has nothing to do with cgroups"
        );
        let written: Value = serde_json::from_str(&fs::read_to_string(life.folder.join("config.json")).unwrap()).unwrap();
        assert_fenced(&written);
        assert!(
            life.prepare("ids.0", &of_root(), Path::new("/s")).unwrap_err().to_string().contains("cannot write"),
            "no second time"
        );

        let outside = folder.path().join("precious");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "").unwrap();
        fs::create_dir_all(life.folder.join("state/ids.0-3")).unwrap();
        fs::write(life.folder.join("state/ids.0-3/status"), "").unwrap();
        symlink(&outside, life.folder.join("state/link")).unwrap();
        let (gone, failed) = life.clear();
        assert!(gone.len() == 1 && failed.is_empty(), "{gone:?} {failed:?}");
        assert!(outside.join("file").exists(), "links are not followed");
        assert_eq!(fs::read_dir(folder.path().join("containers")).unwrap().count(), 0);
        assert_eq!(remove_folder(&outside).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn mount_points_that_the_root_lacks_are_made_in_it_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("dev")).unwrap();
        symlink("/nowhere", root.join("run")).unwrap();
        let mounts = ["/proc", "/dev", "/dev/pts", "/run", "/../up", "relative", "/"].map(|at| json!({ "destination": at }));
        make_mount_points(&json!({ "root": { "path": root }, "mounts": mounts }));
        let mut made: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        made.sort();
        assert_eq!(made, ["dev", "proc", "run"]);
        assert!(fs::read_link(root.join("run")).is_ok() && fs::read_dir(root.join("dev")).unwrap().next().is_none());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn each_start_has_names_of_its_own() {
        let life = ContainerRun::new("ids.0", 4, Path::new("/run/sluice"), Some(Path::new("/sys/fs/cgroup/a")));
        let outer = PathBuf::from(format!("/sys/fs/cgroup/a/sluice-{}-ids.0-4", std::process::id()));
        assert_eq!(life.cgroups(), [outer.clone(), outer.join("container")]);
    }

    #[test]
    fn what_is_no_program_has_no_loader() {
        for bytes in [&b""[..], b"#!/bin/sh", b"\x7fELF\x02\x01", &[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 255, 255]] {
            assert_eq!(loader_of(bytes), None);
        }
        // A header table beyond the end of the file.
        let mut wild = vec![0u8; 64];
        wild[..6].copy_from_slice(b"\x7fELF\x02\x01");
        wild[32..40].fill(0xff);
        wild[54..58].fill(0xff);
        assert_eq!(loader_of(&wild), None);
    }
}
