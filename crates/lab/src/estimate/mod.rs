//! What a packet costs an NF, measured from outside before it is in use.
//!
//! # Problem
//! Who decides how long an NF may run, or which NFs fit on a core, has to know what a burst takes it: before it has run, and without
//! its help, because an NF may be a program that measures nothing or says what it likes.
//!
//! # Approach
//! The NF runs alone, on a core of its own, between two rings and nothing else ([`stand`]). Bursts of crafted or captured packets are
//! put on its ring and awaited: first a single one, then a *row* of eight at once; each time from the moment at which they are on the ring
//! until the last packet has come back. The way between the cores, there and back, is in both, so a seventh of the difference is what one
//! burst takes in a row of them. The same is done, in turns, with two references; what a burst takes such an NF, less what its own library
//! says of its handler, is what it spends on its rings. That is taken off, so that the handler's time is left.
//!
//! Why two: what the rings need next is fetched while the handler works, so an NF with little to do waits for its rings longer than one
//! with much. [`IDLE`] does next to nothing, and [`BUSY`] enough to hide all that can be hidden. For an NF whose bursts take less than
//! those of the second, the rings are taken to cost in between, by how long its bursts take (`Rings::at`).
//!
//! A sample costs an NF some hundred nanoseconds, once a millisecond: its counters lie in lines that the caller reads. So rounds with a
//! sample tell what is inside and nothing else. What is outside is the time of the others, those next before a sample where the two
//! are compared; where no round is without a sample, its cost is nothing beside the handler's.
//!
//! # Terms and units
//! A *round* is a single burst and a row. Times are nanoseconds, or cycles of the time-stamp counter. *Inside* is what the NF's library
//! sampled of its handler in the rows of the same rounds: only for comparison.
//!
//! # Limits
//! Caches are warm: the NF has the core for itself. Packets that a handler keeps (to wait for a disk, say) end a round late or never;
//! after [`PATIENCE`] that is an error. Costs below some tens of nanoseconds a burst are within the noise of the rings: what is taken off is a
//! median with a spread of its own, and [`Estimate::ring_spread_ns`] is how far it was from turn to turn.
//!
//! Source: UNiS (Anthony and Bai), the cycle estimator; what it takes off for the ring is what its report left open.

pub mod command;
pub mod packets;
pub mod stand;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use sluice_config::estimates::{Estimate, Spread};
use sluice_shm::BURST;
use sluice_shm::clock::monotonic_ns;

use sluice_host::spawn::SpawnError;
use sluice_host::user::User;
use stand::{MOST_BURSTS, Stand};

/// Program beside the daemon whose handler does next to nothing.
pub const IDLE: &str = "sluice-nf-bridge";
/// Program beside the daemon that works on each packet.
pub const BUSY: &str = "sluice-nf-cost";
/// Its cycles a packet: a burst takes longer than some lines need from another core.
const BUSY_CYCLES: &str = "50";
/// How long an NF may take to attach, and a burst to come back.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Bursts of a round: one alone, and a row.
pub const BURSTS: u32 = 1 + MOST_BURSTS as u32;
/// Rounds before those that count: caches fill, branches are learnt.
const WARM_UP: u64 = 100;
/// What rings take of a burst is some hundred nanoseconds. Where it differs by more than this from turn to turn, somebody else had the core.
const MOST_SPREAD_NS: f64 = 10_000.0;
/// How often it is tried then.
const TRIES: u32 = 3;
/// How often the NF is started and measured, each time between two measurements of both references.
const TURNS: u32 = 3;
/// Shortest measurement of a turn, in nanoseconds: the NF's library samples its handler once a millisecond.
const SHORTEST_NS: u64 = 200_000_000;
/// Longest, however many rounds are wanted: on a core that others use too a round may take as long as their slices.
const LONGEST_NS: u64 = 5_000_000_000;

/// An NF to be measured.
#[derive(Debug, Clone, Default)]
pub struct Subject {
    /// Name for messages, and the one that the NF is told.
    pub name: String,
    /// Its program, an absolute path.
    pub exec: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its environment, besides what attaching needs.
    pub env: Vec<(OsString, OsString)>,
    /// Its user; that of the caller without.
    pub user: Option<User>,
    /// Names of ports, services and chains that it may ask for.
    pub names: Names,
}

/// Names that an NF may ask for, by number.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Of ports.
    pub ports: Vec<String>,
    /// Of services.
    pub services: Vec<String>,
    /// Of chains.
    pub chains: Vec<String>,
}

/// How to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Core of the NF. The caller has another one.
    pub core: usize,
    /// Rounds that count, at least; more until 0.6 s have passed, and fewer after 15 s.
    pub rounds: u32,
    /// Packets, dealt in turn: Ethernet frames.
    pub packets: Vec<Vec<u8>>,
}

/// Why there is no estimate.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    /// There is nothing to send.
    #[error("there are no packets to send: give a capture with packets, or leave it out for crafted ones")]
    NoPackets,
    /// A packet does not fit in a frame.
    #[error(
        "a packet of {bytes} bytes does not fit in a frame; at most {most} do: cut the capture, for instance with `editcap -s {most}`"
    )]
    TooLong {
        /// Its bytes.
        bytes: usize,
        /// What fits.
        most: usize,
    },
    /// There is no other core to measure from.
    #[error("NF and measurement need a core each, and core {core} is the only one that this process may use; allow it another one")]
    OneCore {
        /// The core.
        core: usize,
    },
    /// A reference program is missing.
    #[error(
        "{0} is missing: it is what the cost of the rings is measured with; it stands beside sluice (`make build` builds both)"
    )]
    NoReference(&'static str),
    /// The program could not be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// It ended before it was through.
    #[error("{name} ended ({how}) {when}; look at its arguments{said}")]
    Ended {
        /// Its name.
        name: String,
        /// How.
        how: String,
        /// Before or while what.
        when: &'static str,
        /// Its last words, on lines of their own.
        said: String,
    },
    /// It did not attach.
    #[error("{name} did not attach within {} s: only programs that use Sluice's NF library can be measured", PATIENCE.as_secs())]
    Silent {
        /// Its name.
        name: String,
    },
    /// It keeps packets.
    #[error("{name} has returned {returned} of {packets} packets after {} s: it keeps packets, so what a burst takes cannot be said",
            PATIENCE.as_secs())]
    Keeps {
        /// Its name.
        name: String,
        /// Packets that came back.
        returned: usize,
        /// Packets that it was given.
        packets: usize,
    },
    /// It breaks the rules of its rings.
    #[error("{name} breaks the rules of its rings: {what}; it would be stopped in use")]
    Broken {
        /// Its name.
        name: String,
        /// What it did.
        what: &'static str,
    },
    /// Something else had the cores.
    #[error(
        "other programs keep the cores so busy that what a burst takes cannot be told: in between, the rings alone took up to \
             {spread_us:.0} µs of it more than at best; stop them, or measure when they are done"
    )]
    Disturbed {
        /// How much more, in microseconds.
        spread_us: f64,
    },
    /// The system's answer.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The answer.
        source: std::io::Error,
    },
}

/// Rounds of one NF.
#[derive(Default)]
struct Rounds {
    /// Times of a burst in the rounds without a sample, in ticks.
    ticks: Vec<u64>,
    /// Of each row in which the NF's library sampled its handler: the time of a burst in the round without a sample next before it, in
    /// ticks, and the sample, in nanoseconds.
    sampled: Vec<(u64, u64)>,
    /// Rounds, with a sample or without.
    count: u64,
    dropped: u64,
    packets: u64,
}

impl Rounds {
    /// Nanoseconds for a burst by the library's samples.
    fn inside_ns(&self) -> Option<f64> {
        let mut samples: Vec<u64> = self.sampled.iter().map(|(_, inside_ns)| *inside_ns).collect();
        (!samples.is_empty()).then(|| Spread::of(&mut samples).median)
    }

    /// Ticks of a burst.
    fn burst(&self) -> f64 {
        Spread::of(&mut self.ticks.clone()).median
    }

    /// Ticks of a burst without the handler, by the library's samples.
    fn rest(&self) -> f64 {
        let ns_per_tick = stand::ns_per_tick();
        let mut left: Vec<f64> = self.sampled.iter().map(|(ticks, ns)| *ticks as f64 - *ns as f64 / ns_per_tick).collect();
        middle(&mut left).unwrap_or(0.0).max(0.0)
    }

    /// Adds those of another process of it.
    fn add(&mut self, mut more: Self) {
        self.ticks.append(&mut more.ticks);
        self.sampled.append(&mut more.sampled);
        self.count += more.count;
        self.dropped += more.dropped;
        self.packets += more.packets;
    }
}

/// What the rings take of a burst, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Rings {
    /// Of [`IDLE`]: of a whole burst, and of the rings in it.
    idle: (f64, f64),
    /// Of [`BUSY`], the same.
    busy: (f64, f64),
}

impl Rings {
    /// Of an NF whose bursts take so long, rings and all: by the straight line between the two references, and beyond them as there.
    fn at(&self, burst: f64) -> f64 {
        let between = self.busy.0 - self.idle.0;
        if between <= 0.0 {
            return self.busy.1;
        }
        let part = ((burst - self.idle.0) / between).clamp(0.0, 1.0);
        self.idle.1 + part * (self.busy.1 - self.idle.1)
    }

    /// Those of two measurements, one before and one after.
    fn midpoint(&self, other: &Self) -> Self {
        let mid = |a: (f64, f64), b: (f64, f64)| (a.0.midpoint(b.0), a.1.midpoint(b.1));
        Self { idle: mid(self.idle, other.idle), busy: mid(self.busy, other.busy) }
    }
}

/// The two programs that the cost of the rings is measured with.
#[derive(Debug, Clone, Default)]
pub struct References {
    /// The path of [`IDLE`].
    pub idle: PathBuf,
    /// The path of [`BUSY`].
    pub busy: PathBuf,
}

impl References {
    fn measure(&self, plan: &Plan) -> Result<Rings, EstimateError> {
        let of = |exec: &PathBuf, args: &[&str]| {
            let args = args.iter().map(OsString::from).collect();
            let found = rounds(&Subject { name: "reference".into(), exec: exec.clone(), args, ..Subject::default() }, plan)?;
            Ok::<_, EstimateError>((found.burst(), found.rest()))
        };
        Ok(Rings { idle: of(&self.idle, &[])?, busy: of(&self.busy, &["--cycles", BUSY_CYCLES])? })
    }
}

/// The value in the middle.
fn middle(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Measures an NF several times, and the references before and after each. Where something else had the cores meanwhile, it is tried again.
///
/// # Errors
/// [`EstimateError`].
pub fn estimate(subject: &Subject, references: &References, plan: &Plan) -> Result<Estimate, EstimateError> {
    if plan.packets.is_empty() {
        return Err(EstimateError::NoPackets);
    }
    if let Some(long) = plan.packets.iter().map(Vec::len).find(|bytes| *bytes > stand::ROOM) {
        return Err(EstimateError::TooLong { bytes: long, most: stand::ROOM });
    }
    let _pin = stand::Pin::away_from(plan.core)?;
    for _ in 1..TRIES {
        match measure(subject, references, plan) {
            Err(EstimateError::Disturbed { .. }) => {}
            other => return other,
        }
    }
    measure(subject, references, plan)
}

fn measure(subject: &Subject, references: &References, plan: &Plan) -> Result<Estimate, EstimateError> {
    let ns_per_cycle = stand::ns_per_tick();
    let each = Plan { rounds: plan.rounds.div_ceil(TURNS), ..plan.clone() };
    let mut found = Rounds::default();
    let (mut ticks, mut taken_off, mut off) = (Vec::new(), Vec::new(), Vec::new());
    let mut before = references.measure(&each)?;
    for _ in 0..TURNS {
        let turn = rounds(subject, &each)?;
        let after = references.measure(&each)?;
        // Processor speeds come and go: a turn is compared with what was measured beside it.
        let ring = before.midpoint(&after).at(turn.burst());
        before = after;
        taken_off.push(ring);
        ticks.extend(turn.ticks.iter().map(|ticks| (*ticks as f64 - ring).max(0.0) as u64));
        off.extend(
            turn.sampled.iter().map(|(ticks, inside_ns)| (*ticks as f64 - ring) * ns_per_cycle / (*inside_ns).max(1) as f64 - 1.0),
        );
        found.add(turn);
    }
    let ring = middle(&mut taken_off).unwrap_or(0.0);
    let ring_spread = taken_off.last().unwrap_or(&0.0) - taken_off.first().unwrap_or(&0.0);
    if ring_spread * ns_per_cycle > MOST_SPREAD_NS {
        return Err(EstimateError::Disturbed { spread_us: ring_spread * ns_per_cycle / 1e3 });
    }
    let cycles_per_burst = Spread::of(&mut ticks);
    let per_packet = 1.0 / BURST as f64;
    Ok(Estimate {
        rounds: found.count,
        burst: BURST as u32,
        ns_per_burst: cycles_per_burst.times(ns_per_cycle),
        ns_per_packet: cycles_per_burst.times(ns_per_cycle * per_packet),
        cycles_per_burst,
        cycles_per_packet: cycles_per_burst.times(per_packet),
        ring_ns: ring * ns_per_cycle,
        ring_spread_ns: ring_spread * ns_per_cycle,
        inside_ns: found.inside_ns(),
        off_inside: middle(&mut off),
        dropped: found.dropped,
        packets: found.packets,
        ns_per_cycle,
    })
}

/// Starts an NF, sends bursts, and stops it.
fn rounds(subject: &Subject, plan: &Plan) -> Result<Rounds, EstimateError> {
    let mut stand = Stand::start(subject, plan.core)?;
    let mut next = 0;
    let mut packets = |bursts: usize| {
        let from = next;
        next = (next + bursts * BURST) % plan.packets.len();
        move |i: usize| plan.packets[(from + i) % plan.packets.len()].as_slice()
    };
    let (mut single, mut row) = (stand::Load::new(1), stand::Load::new(MOST_BURSTS));
    let (mut dropped, mut began) = (0, 0);
    let mut found = Rounds { ticks: Vec::with_capacity(plan.rounds as usize), ..Rounds::default() };
    let mut unsampled = None;
    for turn in 0u64.. {
        if turn == WARM_UP {
            (dropped, began) = (stand.dropped, monotonic_ns());
        }
        if found.count > 0 {
            let passed_ns = monotonic_ns() - began;
            if passed_ns >= LONGEST_NS || found.count >= u64::from(plan.rounds) && passed_ns >= SHORTEST_NS {
                break;
            }
        }
        // All packets are written first: between the two rounds the NF hardly waits. So a sample that came due while it waited is of
        // the single burst, which finds everything cold, and those of the row are of bursts as good as any.
        stand.fill(&mut single, packets(1));
        stand.fill(&mut row, packets(MOST_BURSTS));
        let start = stand.sampled();
        let one = stand.round(&single)?;
        let between = stand.sampled();
        let all = stand.round(&row)?;
        let end = stand.sampled();
        if turn < WARM_UP {
            continue;
        }
        // The way there and back is in both, and falls out.
        let ticks = all.saturating_sub(one) / (MOST_BURSTS as u64 - 1);
        if end == start {
            unsampled = Some(ticks);
            found.ticks.push(ticks);
        }
        found.sampled.extend(end.burst_ns_since(&between).map(|inside_ns| (unsampled.unwrap_or(ticks), inside_ns)));
        found.count += 1;
        found.packets += u64::from(BURSTS) * BURST as u64;
    }
    if found.ticks.is_empty() {
        // Bursts that take a millisecond and more.
        found.ticks = found.sampled.iter().map(|(ticks, _)| *ticks).collect();
    }
    found.dropped = stand.dropped - dropped;
    stand.stop()?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_that_of_the_sorted() {
        assert_eq!((middle(&mut [3.0, 1.0, 2.0]), middle(&mut [])), (Some(2.0), None));
    }

    #[test]
    fn rings_cost_less_where_the_handler_hides_them() {
        let rings = Rings { idle: (700.0, 600.0), busy: (1500.0, 400.0) };
        assert_eq!([0.0, 700.0, 1100.0, 1500.0, 9000.0].map(|burst| rings.at(burst)), [600.0, 600.0, 500.0, 400.0, 400.0]);
        let other = Rings { idle: (900.0, 800.0), busy: (1500.0, 600.0) };
        assert_eq!(rings.midpoint(&other), Rings { idle: (800.0, 700.0), busy: (1500.0, 500.0) });
        // Measured while something else ran: the references are in the wrong order.
        assert_eq!(Rings { idle: (1500.0, 400.0), busy: (700.0, 600.0) }.at(1000.0), 600.0);
    }

    #[test]
    fn the_rest_of_a_burst_is_what_no_sample_has() {
        let ns = |n: f64| (n / stand::ns_per_tick()) as u64;
        let found = Rounds { ticks: vec![ns(300.0)], sampled: vec![(ns(300.0), 100), (ns(400.0), 100)], ..Rounds::default() };
        assert!((found.rest() * stand::ns_per_tick() - 300.0).abs() < 3.0, "{}", found.rest());
        assert_eq!((found.inside_ns(), Rounds::default().rest()), (Some(100.0), 0.0));
    }

    #[test]
    fn what_cannot_be_sent_is_refused_before_anything_starts() {
        let plan = |packets| Plan { core: 0, rounds: 1, packets };
        let run = |packets| estimate(&Subject::default(), &References::default(), &plan(packets));
        assert!(matches!(run(Vec::new()), Err(EstimateError::NoPackets)));
        assert!(matches!(run(vec![vec![0; 64], vec![0; 5000]]), Err(EstimateError::TooLong { bytes: 5000, .. })));
    }
}
