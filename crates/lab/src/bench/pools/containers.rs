//! `sluice bench containers`: 1 to 200 NFs in containers, beside as many plain processes.
//!
//! # Approach
//! As `pool-scale`, light NFs of one pool on one core with a flow each, and packets of 64 bytes as
//! fast as the chain takes them:
//! - `containers`: each NF is in an OCI container of its own, which the daemon starts with the
//!   first of crun and runc that the host has (`runtime`). All share a root directory in a
//!   temporary folder, which they cannot write to: the program and the libraries that `ldd` names.
//! - `processes`: the daemon starts the same program without a container. A container is not forked
//!   from a zygote, so none of these is.
//!
//! No packets come while NFs start, and while some are killed. Before all that, one container is
//! started by itself. If it does not start, containers are left out with what daemon and runtime
//! said.
//!
//! # Metrics
//! - `of_processes`: the delivered rate, relative to as many processes.
//! - `ready_s`: from the start of the daemon until all NFs run.
//! - `start_ms`: from the start of a process until the daemon admits the NF, the median of all. The
//!   process is the runtime's where there is a container. NFs start beside each other.
//! - `restart_ms`: from a kill until the NF runs again, the median of up to [`KILLS`] NFs, one
//!   after the other. It contains the daemon's pause before a restart, and a request to the daemon.
//! - `private_kib`: memory that the process of an NF shares with no other process, the median of
//!   all; `runtime_kib`: the same of the runtime's process, which stays as long as its container.
//!
//! # Limits
//! Needs root. What the kernel has for a container (namespaces, mounts, cgroups) is in no metric of
//! memory. There is no image, no registry and no engine such as Docker.
//!
//! # Source
//! Flurries, section 3.3, whose NFs are Docker containers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::Pid;
use serde_json::Value;
use sluice_api::model::{Nf, NfState};
use sluice_config::container::find_runtime;
use sluice_config::host::Host;
use sluice_host::process::Proc;

use super::{Kind, P50, P99, POOL, calm, nfs, pooled, ring, soak};
use crate::bench::daemon::{Daemon, open_to_nfs};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::Sample;
use crate::bench::report::{Params, median};
use crate::bench::sched::{COST, DELIVERED, params};
use crate::bench::setup::{Containers, Pool, Service, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "containers",
    about: "1 to 200 NFs in containers on one core, beside as many plain processes (Flurries, section 3.3)",
    run,
};

const CONTAINERS: &str = "containers";
const PROCESSES: &str = "processes";
const NFS: [u32; 4] = [1, 10, 50, 200];
/// The program, as it is called in a container.
const PROGRAM: &str = "/bin/nf";
/// Most NFs that are killed.
const KILLS: u32 = 3;
/// Time limit for all NFs to run.
const PATIENCE: Duration = Duration::from_secs(180);

const GROUP: Group = Group {
    title: "NFs in containers and plain processes, each with a flow of its own",
    keys: &["nfs", "runtime"],
    columns: &[
        DELIVERED,
        Column::new("of_processes", "of processes", 1.0, 3),
        P50,
        P99,
        Column::new("ready_s", "all ready after s", 1.0, 2),
        Column::new("start_ms", "one after ms", 1.0, 0),
        Column::new("restart_ms", "again after ms", 1.0, 0),
        Column::new("private_kib", "KiB each", 1.0, 0),
        Column::new("runtime_kib", "runtime's KiB", 1.0, 0),
    ],
    plotted: 2,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[COST])?;
    super::warn_of_small_pages();
    let folder = folder()?;
    let containers = prepare(&lab, folder.path())?;
    lab.run(&plan(&lab, containers.as_ref().map_err(String::as_str)))
}

/// The folder of the root directory. It is removed at the end, also after an error.
fn folder() -> anyhow::Result<tempfile::TempDir> {
    let made = tempfile::Builder::new().prefix("sluice-bench-").permissions(open_to_nfs()).tempdir();
    made.context("cannot make a temporary folder")
}

/// Makes the root directory below a folder, and starts one container of it; or the reason why
/// containers cannot run here.
///
/// # Errors
/// The root directory cannot be made, or the experiment was interrupted.
fn prepare(lab: &Lab, folder: &Path) -> anyhow::Result<Result<Containers, String>> {
    let runtime = match runtime(&Host::here()) {
        Ok(runtime) => runtime,
        Err(why) => return Ok(Err(why)),
    };
    let containers = Containers { root: folder.join("root"), runtime };
    make_root(&lab.programs.path(COST), &containers.root)?;
    Ok(try_one(lab, &containers)?.map(|()| containers))
}

/// The runtime that the daemon would take, or why a host has no containers.
fn runtime(host: &Host) -> Result<PathBuf, String> {
    if host.uid != 0 {
        return Err("containers need root, for their namespaces; run it with sudo".into());
    }
    find_runtime(Path::new("auto"), host).map_err(|_| "this host has no OCI runtime; install crun or runc".into())
}

/// Makes a root directory of a program and its libraries.
fn make_root(program: &Path, root: &Path) -> anyhow::Result<()> {
    let put = |from: &Path, at: &str| {
        let to = root.join(at.trim_start_matches('/'));
        let copied = std::fs::create_dir_all(to.parent().unwrap_or(root)).and_then(|()| std::fs::copy(from, &to));
        copied.map(drop).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
    };
    put(program, PROGRAM)?;
    let ldd = Command::new("ldd").arg(program).output().context("cannot run ldd, which names the libraries of a program")?;
    // It fails where the program is linked statically and needs none.
    let said = String::from_utf8_lossy(&ldd.stdout);
    for library in libraries(&said) {
        put(Path::new(library), library)?;
    }
    Ok(())
}

/// The files that `ldd` names.
fn libraries(said: &str) -> impl Iterator<Item = &str> {
    said.split_whitespace().filter(|word| word.starts_with('/'))
}

/// Starts one container, without a pool, so that the daemon says why it does not start.
///
/// # Errors
/// It started, and the daemon did not stop well; or the experiment was interrupted.
fn try_one(lab: &Lab, containers: &Containers) -> anyhow::Result<Result<(), String>> {
    let mut setup = calm(&setup(lab, 1, Some(containers)));
    setup.services.iter_mut().for_each(|service| service.pool = None);
    let why = match lab.start(&setup) {
        Ok(daemon) => return daemon.stop().map(Ok),
        Err(Miss::LeaveOut(why)) => why,
        Err(Miss::Failed(error)) => format!("{error:#}"),
    };
    lab.programs.go_on()?;
    Ok(Err(format!("no container starts here: {why}")))
}

/// `containers` is what containers are made of, or the reason why they cannot run here.
fn plan(lab: &Lab, containers: Result<&Containers, &str>) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, of_processes, vec![(GROUP, |_| true)]);
    for members in NFS {
        match containers {
            Ok(containers) => {
                let setup = setup(lab, members, Some(containers));
                plan.cases.push(Case::one(CONTAINERS, nfs_of(members, &containers.runtime), move |lab| one(lab, &setup, members)));
            }
            Err(why) => plan.leave_out(CONTAINERS, nfs(members), why),
        }
        let setup = setup(lab, members, None);
        plan.cases.push(Case::one(PROCESSES, nfs(members), move |lab| one(lab, &setup, members)));
    }
    plan
}

/// The number of members, and the name of the runtime.
fn nfs_of(members: u32, runtime: &Path) -> Params {
    let runtime = runtime.file_name().unwrap_or_default().to_string_lossy().into_owned();
    params(&[("nfs", members.into()), ("runtime", runtime.into())])
}

/// A pool of containers, or else of processes.
fn setup(lab: &Lab, members: u32, containers: Option<&Containers>) -> Setup {
    let mut service = Service { zygote: false, ..pooled(lab, Kind::Light, Pool::of(members, ring(members))) };
    if let Some(containers) = containers {
        service.exec = PROGRAM.into();
        service.containers = Some(containers.clone());
    }
    Setup { services: vec![service], ..super::setup(lab, Kind::Light, members, 0.0) }
}

/// Runs a setup with this number of NFs, and measures it.
fn one(lab: &Lab, setup: &Setup, members: u32) -> Result<Sample, Miss> {
    let calm = calm(setup);
    let began = Instant::now();
    let daemon = lab.start(&calm)?;
    let all = daemon.wait_for("all NFs running", PATIENCE, |daemon| {
        let all = daemon.stats()?.nfs;
        let running = all.iter().filter(|nf| nf.state == NfState::Running).count();
        Ok((running == members as usize).then_some(all))
    })?;
    let ready_s = began.elapsed().as_secs_f64();
    daemon.apply(setup)?;
    lab.warm_up()?;
    let before = lab.read(&daemon)?;
    lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
    let after = lab.read(&daemon)?;
    daemon.apply(&calm)?;
    let mut out = super::sample(setup, &before, &after);
    out.insert("ready_s".into(), ready_s);
    put_median(&mut out, "start_ms", all.iter().filter_map(|nf| Some(nf.started_ns? as f64 / 1e6)).collect());
    // The processes are still those: one that had ended would have failed the readings.
    put_memory(&mut out, &all, setup.services.iter().any(|service| service.containers.is_some()));
    put_median(&mut out, "restart_ms", restarts_ms(&daemon, members)?);
    daemon.stop()?;
    Ok(out)
}

/// Adds a median, if there are values.
fn put_median(out: &mut Sample, metric: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    if !values.is_empty() {
        out.insert(metric.into(), median(&values));
    }
}

/// Adds the memory of NFs, and of the parents of their processes where these are runtimes.
fn put_memory(out: &mut Sample, all: &[Nf], are_contained: bool) {
    let proc = Proc::default();
    let kib = |pid: Pid| Some(proc.private_bytes(pid).ok()? as f64 / 1024.0);
    let pids: Vec<Pid> = all.iter().filter_map(|nf| Pid::from_raw(i32::try_from(nf.pid?).ok()?)).collect();
    put_median(out, "private_kib", pids.iter().filter_map(|pid| kib(*pid)).collect());
    if are_contained {
        let runtimes = pids.iter().filter_map(|pid| proc.ancestors(*pid).ok()?.first().copied());
        put_median(out, "runtime_kib", runtimes.filter_map(kib).collect());
    }
}

/// Kills some of the NFs, one after the other; returns the time until each runs again, in
/// milliseconds.
fn restarts_ms(daemon: &Daemon, members: u32) -> anyhow::Result<Vec<f64>> {
    let killed = (0..members.min(KILLS)).map(|number| -> anyhow::Result<f64> {
        let name = format!("{POOL}.{number}");
        let before = daemon.nf(&name)?;
        let pid = before.pid.with_context(|| format!("{name} has no process"))?;
        let began = Instant::now();
        ensure!(soak::kill(pid)?, "{name} ended before it was killed; sluiced says: {}", daemon.log());
        daemon.wait_for("the NF that was killed", PATIENCE, |daemon| {
            let now = daemon.nf(&name)?;
            Ok((now.restarts > before.restarts && now.state == NfState::Running).then_some(()))
        })?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    });
    killed.collect()
}

/// Adds `of_processes` to the rows of containers.
fn of_processes(rows: &mut [Row]) -> Vec<Row> {
    let processes: Vec<(Option<Value>, f64)> = rows
        .iter()
        .filter(|row| row.name == PROCESSES)
        .filter_map(|row| Some((row.params.get("nfs").cloned(), row.get("delivered_pps").filter(|pps| *pps > 0.0)?)))
        .collect();
    for row in rows.iter_mut().filter(|row| row.name == CONTAINERS) {
        let of = processes.iter().find(|(nfs, _)| nfs.as_ref() == row.params.get("nfs")).map(|(_, pps)| *pps);
        let ratio = of.and_then(|of| Some(row.get("delivered_pps")? / of));
        row.put("of_processes", ratio);
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;

    use sluice_host::container::loader_of;

    use super::*;
    use crate::bench::daemon::tests::{assert_accepted, built};
    use crate::bench::lab::tests::lab;
    use crate::skip::skip;

    fn made() -> Containers {
        Containers { root: "/srv/nf".into(), runtime: "/usr/bin/crun".into() }
    }

    #[test]
    fn containers_are_beside_processes_or_left_out_with_the_reason() {
        let lab = lab(1);
        let both = plan(&lab, Ok(&made()));
        let label = |case: &Case| (case.name.clone(), case.params.clone());
        let wanted = NFS.map(|members| {
            let runtime = params(&[("nfs", members.into()), ("runtime", "crun".into())]);
            [(CONTAINERS.to_string(), runtime), (PROCESSES.to_string(), nfs(members))]
        });
        assert_eq!(both.cases.iter().map(label).collect::<Vec<_>>(), wanted.concat());
        let without = plan(&lab, Err("no runtime"));
        assert!(without.cases.iter().all(|case| case.name == PROCESSES));
        assert!(without.left_out.iter().all(|left| left.name == CONTAINERS && left.why == "no runtime"));
        assert_eq!((without.cases.len(), without.left_out.len()), (4, 4));
    }

    #[test]
    fn only_the_container_differs() {
        let (contained, plain) = (setup(&lab(1), 200, Some(&made())), setup(&lab(1), 200, None));
        [&contained, &plain].iter().for_each(|setup| assert_accepted(setup, &[COST]));
        let text = contained.toml(Path::new("/tmp/x"));
        let wanted = "container = { root = \"/srv/nf\", runtime = \"/usr/bin/crun\" }\n\n[service.pool]\nmin = 200\nmax = 200\n";
        assert!(text.contains(wanted) && text.contains("exec = \"/bin/nf\""), "{text}");
        let mut same = contained;
        same.services[0].containers = None;
        same.services[0].exec = COST.into();
        assert_eq!(same, plain);
        assert!(!plain.services[0].zygote);
    }

    #[test]
    fn a_host_says_what_it_lacks() {
        let root = tempfile::tempdir().unwrap();
        let path = vec![PathBuf::from("/usr/bin")];
        let mut host = Host { root: root.path().into(), allowed: BTreeSet::new(), uid: 1000, beside: None, path, dpdk: false };
        assert!(runtime(&host).unwrap_err().contains("need root"));
        host.uid = 0;
        assert!(runtime(&host).unwrap_err().contains("no OCI runtime"));
        std::fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        let runc = root.path().join("usr/bin/runc");
        std::fs::write(&runc, "").unwrap();
        std::fs::set_permissions(&runc, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(runtime(&host).unwrap(), Path::new("/usr/bin/runc"));
    }

    #[test]
    fn a_root_directory_has_a_program_and_its_libraries() {
        let said = "\tlinux-vdso.so.1 (0x7ffc)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f3a)\n\t/lib64/ld.so.2 (0x7f3b)\n";
        assert_eq!(libraries(said).collect::<Vec<_>>(), ["/lib/libc.so.6", "/lib64/ld.so.2"]);
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        make_root(&own, folder.path()).unwrap();
        let copy = std::fs::read(folder.path().join("bin/nf")).unwrap();
        let loader = loader_of(&copy).expect("this test is linked dynamically");
        assert!(folder.path().join(loader.strip_prefix("/").unwrap()).is_file(), "{}", loader.display());
        let error = make_root(Path::new("/nowhere/nf"), folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot copy /nowhere/nf to "), "{error}");
    }

    #[test]
    fn rates_are_relative_to_as_many_processes() {
        let row = |name: &str, of: Params, pps: f64| Row::new(name, &of, Sample::from([("delivered_pps".into(), pps)]));
        let mut rows = vec![
            row(CONTAINERS, nfs_of(1, Path::new("/usr/bin/crun")), 9.0),
            row(PROCESSES, nfs(1), 10.0),
            row(CONTAINERS, nfs_of(10, Path::new("/usr/bin/crun")), 3.0),
            row(PROCESSES, nfs(10), 4.0),
            row(CONTAINERS, nfs_of(50, Path::new("/usr/bin/crun")), 3.0),
            row(PROCESSES, nfs(50), 0.0),
        ];
        of_processes(&mut rows);
        let ratios: Vec<Option<f64>> = rows.iter().map(|row| row.get("of_processes")).collect();
        assert_eq!(ratios, [Some(0.9), None, Some(0.75), None, None, None]);
    }

    #[test]
    fn a_median_is_of_something() {
        let mut out = Sample::new();
        put_median(&mut out, "start_ms", vec![7.0, 1.0, 2.0]);
        put_median(&mut out, "restart_ms", Vec::new());
        assert_eq!(out, Sample::from([("start_ms".to_string(), 2.0)]));
    }

    #[test]
    fn both_are_measured_in_the_same_way() {
        let Some(programs) = built(&[COST]) else { return };
        let args = BenchArgs { seconds: 0.1, repeats: 1, ..BenchArgs::default() };
        let lab = Lab::with(&args, programs).unwrap();
        let folder = folder().unwrap();
        let containers = match prepare(&lab, folder.path()).unwrap() {
            Ok(containers) => containers,
            Err(why) => return skip(why),
        };
        let metrics = |containers: Option<&Containers>| -> Vec<&'static str> {
            let sample = one(&lab, &setup(&lab, 2, containers), 2).unwrap();
            let wanted = ["ready_s", "start_ms", "restart_ms", "private_kib", "runtime_kib"];
            wanted.into_iter().filter(|metric| sample.contains_key(*metric)).collect()
        };
        assert_eq!(metrics(None), ["ready_s", "start_ms", "restart_ms", "private_kib"]);
        assert_eq!(metrics(Some(&containers)), ["ready_s", "start_ms", "restart_ms", "private_kib", "runtime_kib"]);
    }
}
