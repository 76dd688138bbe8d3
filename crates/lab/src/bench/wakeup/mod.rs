//! Experiments on pools with one flow per NF, and on when NFs are woken.
//!
//! # Terms
//! A *policy* says when a sleeping NF is woken ([`POLICIES`]); `per` is what a member of the pool
//! gets: one flow (`flow`), or the flows of one hash (`rss`). A variant is named `POLICY/PER`.
//!
//! # Source
//! Zhang et al., *Flurries: Countless Fine-Grained NFs for Flexible Per-Flow Customization*, CoNEXT
//! 2016, section 6. Each module names its figure or table.

pub mod idle_pool;
pub mod mixed;
pub mod web;

use sluice_api::model::NfState;
use std::fmt::Write;
use std::time::Duration;

use crate::bench::daemon::Daemon;
use crate::bench::measure::Reading;

pub const POLICIES: [&str; 4] = ["min", "adaptive", "naive-100us", "naive-1ms"];

/// A service with a pool, as TOML: `members` NFs of a cost, on a core.
pub fn pooled(name: &str, core: usize, cycles: u64, (policy, per): (&str, &str), members: u32) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "[[service]]\nname = \"{name}\"\nexec = \"{}\"\nargs = [\"--cycles\", \"{cycles}\"]\ncores = [{core}]\nzygote = true\n\
         per = \"{per}\"\nwakeup = {{ policy = \"{policy}\" }}\n\n[service.pool]\nmin = {members}\nmax = {members}\nring = 256\n\
         linger_ms = 10\nqueue = 4096\n",
        crate::bench::sched::COST
    );
    out
}

/// Waits until this many NFs run: members of a pool start after the daemon is ready.
pub fn wait_for_members(daemon: &Daemon, nfs: u32) -> anyhow::Result<()> {
    daemon.wait_for("all NFs running", Duration::from_secs(60), |daemon| {
        let running = daemon.stats()?.nfs.iter().filter(|nf| nf.state == NfState::Running).count();
        Ok((running == nfs as usize).then_some(()))
    })
}

/// Activity of all NFs together between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Together {
    /// By the kernel's count.
    pub switches_per_s: f64,
    /// By the manager.
    pub wakes_per_s: f64,
    /// Between NFs.
    pub hand_overs_per_s: f64,
    /// CPU time, in percent of a core.
    pub cpu_percent: f64,
}

impl Together {
    pub fn of(before: &Reading, after: &Reading) -> Self {
        let seconds = after.tasks.seconds_since(&before.tasks).max(1e-9);
        let mut sum = Self::default();
        for now in &after.stats.nfs {
            let Some(then) = before.stats.nfs.iter().find(|nf| nf.name == now.name) else { continue };
            sum.wakes_per_s += now.wakes.saturating_sub(then.wakes) as f64 / seconds;
            sum.hand_overs_per_s += now.hand_overs.saturating_sub(then.hand_overs) as f64 / seconds;
            let Some(task) = after.tasks.since(&before.tasks, &now.name) else { continue };
            sum.switches_per_s += (task.voluntary + task.involuntary) as f64 / seconds;
            sum.cpu_percent += task.run_ns as f64 / 1e7 / seconds;
        }
        sum
    }

    pub fn metrics(self) -> [(String, f64); 4] {
        [
            ("switches_per_s".into(), self.switches_per_s),
            ("wakes_per_s".into(), self.wakes_per_s),
            ("hand_overs_per_s".into(), self.hand_overs_per_s),
            ("cpu_percent".into(), self.cpu_percent),
        ]
    }
}
