//! What a timeline is about: objects, their tracks, and observations.

use std::collections::{BTreeMap, HashMap};

use sluice_dataplane::chain::DropReason;

/// What is observed of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Track {
    /// Of an NF: another process is behind its name; counts begin at 0.
    Begins,
    /// Of a core: the number of the object that has it, an NF; 0: none.
    Runs,
    /// Of an NF: see [`SLEEPS`], [`AWAKE`] and [`WAITS`].
    Awake,
    /// Whether the chains that pass the NF are refused.
    Throttled,
    /// Whether the NF must sleep.
    Held,
    /// Packets that the NF was given and has not returned.
    Queue,
    /// Packets that have a credit of the NF.
    InFlight,
    /// Its share of its core, in percent.
    Share,
    /// Times that it started the next NF of its core.
    HandOvers,
    /// Times that a packet thread woke it.
    Wakes,
    /// Time slices that it was given.
    Slices,
    /// Times that it was throttled.
    Throttles,
    /// Violations that it committed.
    Violations,
    /// Why it must be stopped, as [`StopReason`](sluice_dataplane::handle::StopReason).
    MustStop,
    /// Of a chain: packets dropped for a reason, by its number.
    Dropped(u8),
    /// Of a port: packets dropped before any NF.
    EntryDrops,
    /// Of a port: packets that it did not accept in time.
    TxDrops,
    /// Of the daemon: nanoseconds for which nothing was sampled before this.
    Missed,
}

/// A value of [`Track::Awake`]: it sleeps, or has no process.
pub const SLEEPS: u64 = 0;
/// A value of [`Track::Awake`]: it runs, or could.
pub const AWAKE: u64 = 1;
/// A value of [`Track::Awake`]: it waits for something other than packets.
pub const WAITS: u64 = 2;

/// How a track is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Slices, from a value other than 0 to the next value.
    State,
    /// A curve.
    Gauge,
    /// A curve of what was counted since the recording began.
    Count,
    /// An instant for each increase.
    Instant,
}

impl Track {
    /// Its number among the tracks of its object, from 1.
    pub fn code(self) -> u8 {
        match self {
            Self::Begins => 1,
            Self::Runs => 2,
            Self::Awake => 3,
            Self::Throttled => 4,
            Self::Held => 5,
            Self::Queue => 6,
            Self::InFlight => 7,
            Self::Share => 8,
            Self::HandOvers => 9,
            Self::Wakes => 10,
            Self::Slices => 11,
            Self::Throttles => 12,
            Self::Violations => 13,
            Self::MustStop => 14,
            Self::EntryDrops => 15,
            Self::TxDrops => 16,
            Self::Missed => 17,
            Self::Dropped(why) => 64u8.saturating_add(why),
        }
    }

    /// How it is drawn.
    pub fn style(self) -> Style {
        match self {
            Self::Runs | Self::Awake | Self::Throttled | Self::Held => Style::State,
            Self::Queue | Self::InFlight | Self::Share => Style::Gauge,
            Self::HandOvers | Self::Dropped(_) | Self::EntryDrops | Self::TxDrops => Style::Count,
            Self::Begins | Self::Wakes | Self::Slices | Self::Throttles | Self::Violations | Self::MustStop | Self::Missed => {
                Style::Instant
            }
        }
    }

    /// Whether it counts, from the beginning of what is behind its object.
    pub fn is_counted(self) -> bool {
        matches!(self.style(), Style::Count | Style::Instant)
    }

    /// Its name below that of its object.
    pub fn name(self) -> String {
        let name = match self {
            Self::Begins => "begins",
            Self::Runs => "has the core",
            Self::Awake => "awake",
            Self::Throttled => "throttled",
            Self::Held => "held",
            Self::Queue => "queue",
            Self::InFlight => "in flight",
            Self::Share => "share of the core, percent",
            Self::HandOvers => "hand-overs",
            Self::Wakes => "woken",
            Self::Slices => "time slice",
            Self::Throttles => "throttled",
            Self::Violations => "violation",
            Self::MustStop => "must stop",
            Self::Dropped(why) => {
                let why = DropReason::ALL.get(usize::from(why)).map_or("for another reason", |why| why.name());
                return format!("dropped: {why}");
            }
            Self::EntryDrops => "dropped at the entry",
            Self::TxDrops => "dropped: not accepted",
            Self::Missed => "not sampled",
        };
        name.into()
    }
}

/// A value that differs from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Number of the object.
    pub object: u32,
    pub track: Track,
    pub value: u64,
}

/// Label of the object that recordings themselves are about.
pub const DAEMON: &str = "sluiced";

/// The objects, by number and by label: `core 1`, `nf fw.0`, `chain web`, `port lan`. A label keeps
/// its number while something uses it, and no number is used again.
#[derive(Debug, Default)]
pub struct Objects {
    numbers: HashMap<String, u32>,
    labels: BTreeMap<u32, String>,
    last: u32,
}

impl Objects {
    /// The number of a label.
    pub fn number(&mut self, label: &str) -> u32 {
        if let Some(number) = self.numbers.get(label) {
            return *number;
        }
        self.last += 1;
        self.numbers.insert(label.into(), self.last);
        self.labels.insert(self.last, label.into());
        self.last
    }

    /// The label of a number.
    pub fn label(&self, number: u32) -> &str {
        self.labels.get(&number).map_or("", String::as_str)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.labels.len()
    }

    /// Forgets the objects that nothing uses.
    pub fn retain(&mut self, is_used: impl Fn(u32) -> bool) {
        self.labels.retain(|number, _| is_used(*number));
        self.numbers.retain(|_, number| is_used(*number));
    }
}
