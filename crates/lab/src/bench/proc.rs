//! The kernel's counters of NF processes: CPU time, run-queue wait time, context switches; and the
//! time that cores have worked.
//!
//! Those of NFs are read from `/proc/PID/schedstat` (nanoseconds, not ticks) and
//! `/proc/PID/status`. Both cover a process's main thread, the only thread of an NF. The root of
//! the tree is an argument, for tests. Those of cores and of this process are in ticks.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use sluice_api::model::Nf;

/// Kernel counters of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Task {
    /// CPU time, in nanoseconds.
    pub run_ns: u64,
    /// Time runnable but not running, in nanoseconds.
    pub wait_ns: u64,
    /// Times that it got a processor.
    pub slices: u64,
    /// Times that it went to sleep.
    pub voluntary: u64,
    /// Times that it was preempted.
    pub involuntary: u64,
}

impl Task {
    /// Reads it; none if there is no such process or the kernel does not count.
    pub fn read(proc: &Path, pid: u32) -> Option<Self> {
        let folder = proc.join(pid.to_string());
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        let (run_ns, wait_ns, slices) = schedstat(&text("schedstat")?)?;
        let (voluntary, involuntary) = switches(&text("status")?)?;
        Some(Self { run_ns, wait_ns, slices, voluntary, involuntary })
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            run_ns: self.run_ns.saturating_sub(earlier.run_ns),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
            slices: self.slices.saturating_sub(earlier.slices),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

/// CPU time of all current threads of a process, in nanoseconds. Ended threads do not count.
pub fn threads_run_ns(pid: u32) -> std::io::Result<u64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    let of_one = |thread: std::fs::DirEntry| schedstat(&std::fs::read_to_string(thread.path().join("schedstat")).ok()?);
    Ok(threads.flatten().filter_map(of_one).map(|(run_ns, ..)| run_ns).sum())
}

/// CPU time of the thread of a process that has this name, in nanoseconds; none if there is none.
pub fn thread_run_ns(pid: u32, name: &str) -> std::io::Result<Option<u64>> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let text = |file: &str| std::fs::read_to_string(thread.path().join(file));
        if text("comm").is_ok_and(|comm| comm.trim_end() == name) {
            return Ok(text("schedstat").ok().and_then(|text| schedstat(&text)).map(|(run_ns, ..)| run_ns));
        }
    }
    Ok(None)
}

/// Run time, waiting time (both in nanoseconds) and slices.
fn schedstat(text: &str) -> Option<(u64, u64, u64)> {
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

/// Voluntary and involuntary context switches, from `/proc/PID/status`.
fn switches(status: &str) -> Option<(u64, u64)> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((field("voluntary_ctxt_switches:")?, field("nonvoluntary_ctxt_switches:")?))
}

/// The processes of NFs at one moment.
#[derive(Debug, Clone)]
pub struct Tasks {
    at: Instant,
    /// Process and counters, by name of the NF.
    tasks: BTreeMap<String, (u32, Task)>,
}

impl Tasks {
    /// Reads those of `nfs` now.
    pub fn of(nfs: &[Nf]) -> Self {
        Self::below(Path::new("/proc"), nfs)
    }

    fn below(proc: &Path, nfs: &[Nf]) -> Self {
        let read = |nf: &Nf| Some((nf.name.clone(), (nf.pid?, Task::read(proc, nf.pid?)?)));
        Self { at: Instant::now(), tasks: nfs.iter().filter_map(read).collect() }
    }

    /// Difference of an NF's counters since `earlier`; none if its process has changed.
    pub fn since(&self, earlier: &Self, nf: &str) -> Option<Task> {
        let ((now_pid, now), (then_pid, then)) = (self.tasks.get(nf)?, earlier.tasks.get(nf)?);
        (now_pid == then_pid).then(|| now.since(then))
    }

    pub fn seconds_since(&self, earlier: &Self) -> f64 {
        self.at.saturating_duration_since(earlier.at).as_secs_f64()
    }
}

/// Time that cores have worked, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CoreTimes {
    /// In processes, the kernel, and interrupts.
    pub busy_s: f64,
    /// The part of it in soft interrupts, where the kernel forwards.
    pub softirq_s: f64,
    /// The part of it in other interrupts.
    pub irq_s: f64,
    /// Time that a hypervisor gave to others, which is no part of it.
    pub stolen_s: f64,
}

impl CoreTimes {
    /// Those of some cores, since the host was started.
    ///
    /// # Errors
    /// The kernel does not count.
    pub fn read(cores: &[usize]) -> anyhow::Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        Self::parse(&stat, cores, ticks_per_s())
    }

    /// From `/proc/stat`, whose lines of cores have ticks: user, nice, system, idle, iowait, irq,
    /// softirq, steal.
    fn parse(stat: &str, cores: &[usize], ticks_per_s: f64) -> anyhow::Result<Self> {
        let mut times = Self::default();
        for core in cores {
            let name = format!("cpu{core}");
            let line = stat.lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(' '));
            let ticks: Option<Vec<f64>> =
                line.map(|line| line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect());
            let ticks = ticks.with_context(|| format!("/proc/stat has no {name}"))?;
            ensure!(ticks.len() >= 8, "/proc/stat has too few numbers of {name}");
            times.busy_s += (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) / ticks_per_s;
            times.softirq_s += ticks[6] / ticks_per_s;
            times.irq_s += ticks[5] / ticks_per_s;
            times.stolen_s += ticks[7] / ticks_per_s;
        }
        Ok(times)
    }
}

/// CPU time of this process and of the children that it has collected, in seconds.
pub fn own_cpu_s() -> Option<f64> {
    own_ticks(&std::fs::read_to_string("/proc/self/stat").ok()?).map(|ticks| ticks as f64 / ticks_per_s())
}

/// From `/proc/PID/stat`: ticks in user and system mode, of the process and of its children.
fn own_ticks(stat: &str) -> Option<u64> {
    // The name is in brackets, and may contain brackets. The state is the first word behind it.
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    words.get(11..15)?.iter().map(|word| word.parse::<u64>().ok()).sum()
}

fn ticks_per_s() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_cores_are_added() {
        let stat =
            "cpu  9 9 9 9 9 9 9 9\ncpu0 100 10 50 900 7 1 39 5 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\ncpu10 100 0 0 0 0 0 100 0\nintr 7\n";
        let of = |cores: &[usize]| CoreTimes::parse(stat, cores, 100.0);
        assert_eq!(of(&[0, 1]).unwrap(), CoreTimes { busy_s: 2.0, softirq_s: 0.39, irq_s: 0.01, stolen_s: 0.05 });
        assert_eq!(of(&[10]).unwrap(), CoreTimes { busy_s: 2.0, softirq_s: 1.0, irq_s: 0.0, stolen_s: 0.0 });
        assert!(of(&[2]).unwrap_err().to_string().contains("no cpu2"));
        assert!(CoreTimes::parse("cpu0 1 2\n", &[0], 100.0).unwrap_err().to_string().contains("too few"));
    }

    #[test]
    fn the_time_of_children_is_this_processs_own() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 200 0 0 30 4 500 6 20 0 1 0 100";
        assert_eq!(own_ticks(stat), Some(540));
        assert_eq!((own_ticks("7 (a) S 1 7"), own_ticks("7 a S")), (None, None));
        assert!(own_cpu_s().is_some());
    }

    fn write(proc: &Path, pid: u32, schedstat: &str, switches: (u64, u64)) {
        let folder = proc.join(pid.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("schedstat"), schedstat).unwrap();
        let (voluntary, involuntary) = switches;
        let status = format!("Name:\tnf\nvoluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{involuntary}\n");
        std::fs::write(folder.join("status"), status).unwrap();
    }

    fn nf(name: &str, pid: Option<u32>) -> Nf {
        Nf { name: name.into(), pid, ..Nf::default() }
    }

    #[test]
    fn what_came_between_is_reported() {
        let proc = tempfile::tempdir().unwrap();
        write(proc.path(), 7, "1000 50 3\n", (10, 2));
        let nfs = [nf("a.0", Some(7)), nf("b.0", None), nf("c.0", Some(9))];
        let before = Tasks::below(proc.path(), &nfs);
        write(proc.path(), 7, "4000 90 5\n", (14, 9));
        let after = Tasks::below(proc.path(), &nfs);
        let want = Task { run_ns: 3000, wait_ns: 40, slices: 2, voluntary: 4, involuntary: 7 };
        assert_eq!(after.since(&before, "a.0"), Some(want));
        assert_eq!((after.since(&before, "b.0"), after.since(&before, "c.0")), (None, None));
        assert!(after.seconds_since(&before) >= 0.0);
    }

    #[test]
    fn another_process_is_not_compared() {
        let proc = tempfile::tempdir().unwrap();
        write(proc.path(), 7, "1000 50 3\n", (10, 2));
        write(proc.path(), 8, "4000 90 5\n", (14, 9));
        let before = Tasks::below(proc.path(), &[nf("a.0", Some(7))]);
        assert_eq!(Tasks::below(proc.path(), &[nf("a.0", Some(8))]).since(&before, "a.0"), None);
    }

    #[test]
    fn broken_files_tell_nothing() {
        assert_eq!(schedstat("1 2\n"), None);
        assert_eq!(schedstat("1 x 3\n"), None);
        assert_eq!(switches("Name:\tx\n"), None);
    }

    #[test]
    fn this_process_can_be_read() {
        let known = Path::new("/proc/self/schedstat").exists();
        assert_eq!(Task::read(Path::new("/proc"), std::process::id()).is_some(), known);
    }
}
