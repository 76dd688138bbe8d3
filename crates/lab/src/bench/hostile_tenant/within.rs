//! A chain beside a hostile NF of its own tenant and core: before it comes, meanwhile, and after it
//! has ended.
//!
//! The NF attaches, so that it comes at a known time and nothing starts it again. It is killed
//! after [`ATTACK`], unless the manager has stopped it before.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sluice_shm::handshake::{ENV_NF, ENV_SOCKET};

use crate::bench::chaos::watch::dropped_inside;
use crate::bench::daemon::Daemon;
use crate::bench::lab::Lab;
use crate::bench::measure::Sample;
use crate::bench::stats::Window;
use sluice_api::model::Stats;

/// How long the NF goes on at most.
const ATTACK: Duration = Duration::from_secs(2);
/// The shortest time of which there is a rate.
const SHORT: Duration = Duration::from_millis(100);
/// Time limit for the NF to come.
const PATIENCE: Duration = Duration::from_secs(10);
/// Polling interval of its end.
const LOOK: Duration = Duration::from_millis(2);

/// An NF that attaches; killed on drop.
struct Guest(Child);

impl Guest {
    /// Starts it as the first of a service.
    fn start(daemon: &Daemon, service: &str, mut program: Command) -> anyhow::Result<Self> {
        program.env(ENV_SOCKET, daemon.run_dir().join("nf.sock")).env(ENV_NF, format!("{service}.0"));
        let child = program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Self(child.with_context(|| format!("cannot start the NF of {service}"))?))
    }

    fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The daemon's counters, in the order of time.
#[derive(Debug, Default)]
pub struct Readings {
    pub start: Stats,
    /// A while later.
    pub usual: Stats,
    /// The last ones before the NF came.
    pub came: Stats,
    /// After its end, or [`SHORT`] after it came if that is later.
    pub ended: Stats,
    /// [`SHORT`] later.
    pub first: Stats,
    /// [`SHORT`] later.
    pub next: Stats,
}

/// Whether an NF of a service has attached, though it may have ended by now.
fn has_come(stats: &Stats, service: &str) -> bool {
    stats.nfs.iter().filter(|nf| nf.service == service).any(|nf| nf.pid.is_some() || nf.stops > 0 || nf.violations > 0)
}

/// Lets an NF of a service come and go.
pub fn readings(lab: &Lab, daemon: &Daemon, service: &str, program: Command) -> anyhow::Result<Readings> {
    let start = daemon.stats()?;
    lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
    let usual = daemon.stats()?;
    let mut guest = Guest::start(daemon, service, program)?;
    let mut last = usual.clone();
    let came = daemon.wait_for("an NF that attaches", PATIENCE, |daemon| {
        let before = std::mem::replace(&mut last, daemon.stats()?);
        Ok(has_come(&last, service).then_some(before))
    })?;
    let since = Instant::now();
    while since.elapsed() < ATTACK && !guest.has_ended()? {
        lab.programs.pause(LOOK)?;
    }
    drop(guest);
    lab.programs.pause(SHORT.saturating_sub(since.elapsed()))?;
    let ended = daemon.stats()?;
    lab.programs.pause(SHORT)?;
    let first = daemon.stats()?;
    lab.programs.pause(SHORT)?;
    Ok(Readings { start, usual, came, ended, first, next: daemon.stats()? })
}

impl Readings {
    /// The rates of a chain by its sink, which has its name, and what it lost of the packets that
    /// it had let in.
    ///
    /// # Errors
    /// It had no packets before the NF came.
    pub fn rates(&self, chain: &str) -> anyhow::Result<Sample> {
        let pps = |before, after| Window { before, after }.tx_pps(chain);
        let usual = pps(&self.start, &self.usual);
        ensure!(usual > 0.0, "no packet of chain {chain} has arrived before the NF came");
        let meanwhile = pps(&self.came, &self.ended);
        let lost = |stats: &Stats| stats.chains.iter().filter(|c| c.name == chain).map(dropped_inside).sum::<u64>();
        Ok(Sample::from([
            ("delivered_pps".into(), meanwhile),
            ("of_before".into(), meanwhile / usual),
            ("of_before_first".into(), pps(&self.ended, &self.first) / usual),
            ("of_before_next".into(), pps(&self.first, &self.next) / usual),
            ("lost_inside_count".into(), (lost(&self.next) - lost(&self.start)) as f64),
            ("attack_ms".into(), Window { before: &self.came, after: &self.ended }.seconds() * 1e3),
        ]))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::stats::tests::partial;

    #[test]
    fn rates_are_of_the_time_before_and_losses_of_packets_that_were_let_in() {
        let at = |ms: u64, packets: u64, n: u64| {
            partial(json!({
                "time_ns": ms * 1_000_000,
                "ports": [{"name": "blue", "tx_packets": packets}, {"name": "out", "tx_packets": 9 * packets}],
                "chains": [{"name": "red", "drops": {"nf_died": 70 * n}},
                    {"name": "blue", "drops": {"entry": 50 * n, "nf_down": n, "ring_full": 2 * n, "nf_died": n}}],
            }))
        };
        let readings = Readings {
            start: at(1_000, 0, 1),
            usual: at(2_000, 1_000, 1),
            came: at(2_050, 1_050, 1),
            ended: at(4_050, 2_250, 2),
            first: at(4_150, 2_340, 4),
            next: at(4_250, 2_439, 4),
        };
        let rates = readings.rates("blue").unwrap();
        let of = |metric: &str| rates[metric];
        assert_eq!((of("delivered_pps"), of("of_before"), of("attack_ms")), (600.0, 0.6, 2_000.0));
        assert!((of("of_before_first") - 0.9).abs() < 1e-9 && (of("of_before_next") - 0.99).abs() < 1e-9, "{rates:?}");
        assert_eq!(of("lost_inside_count"), 9.0);
        assert!(Readings::default().rates("blue").unwrap_err().to_string().contains("before the NF came"));
    }

    #[test]
    fn an_nf_that_was_stopped_at_once_has_come() {
        let with = |nf: serde_json::Value| partial(json!({ "nfs": [nf, {"name": "blue.0", "service": "blue", "pid": 5}] }));
        assert!(!has_come(&with(json!({"name": "red.0", "service": "red"})), "red"));
        for sign in [json!({"pid": 7}), json!({"stops": 1}), json!({"violations": 3})] {
            let mut nf = json!({"name": "red.0", "service": "red"});
            nf.as_object_mut().unwrap().extend(sign.as_object().unwrap().clone());
            assert!(has_come(&with(nf), "red"), "{sign}");
        }
    }
}
