//! Input of a simulation: machine, NFs, chains, policies.

/// Packets that an NF takes at once.
pub(super) const BURST: u32 = 32;

/// A machine and its operating system's costs, by default of a two-core virtual machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Cores for NFs. The manager has cores of its own.
    pub cores: usize,
    /// Cycles in a microsecond.
    pub mhz: u64,
    /// A switch of processes, with the work before the first and after the last packet, in ns.
    pub switch_ns: u64,
    /// Manager time to wake a process on another core, in nanoseconds.
    pub wake_cost_ns: u64,
    /// The same where the sleeper does not preempt and the core is busy, in nanoseconds.
    pub wake_quiet_cost_ns: u64,
    /// From the wake to being able to run, on an idle core, without the switch, in nanoseconds.
    pub wake_idle_ns: u64,
    /// The same on a busy core.
    pub wake_busy_ns: u64,
    /// What a busy core loses to a wake from another core that preempts, without the switches, in
    /// nanoseconds.
    pub interrupt_ns: u64,
    /// A round of the manager without wakes and packets, in nanoseconds.
    pub round_ns: u64,
    /// What packets take of the manager; None: nothing, and any number goes in a round.
    pub thread: Option<ThreadCosts>,
    /// Cost of a packet outside of the handler (rings, checks, remote cache lines), in cycles.
    pub hop_cycles: u64,
    /// Slice of the fair classes, in nanoseconds.
    pub slice_ns: u64,
    /// Time between two ticks of the timer, in nanoseconds.
    pub tick_ns: u64,
    /// Frames of packet memory; None: always enough.
    pub frames: Option<u32>,
    /// Other processes on the NFs' cores; None: there are none.
    pub others: Option<Others>,
}

/// Other processes, of the host and of the platform: each takes a core for a moment from the NF of
/// a fair class that runs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Others {
    /// Mean time from the end of one to the next, in nanoseconds.
    pub every_ns: u64,
    /// How long one has the core, with the switches, in nanoseconds.
    pub has_ns: u64,
}

/// What packets take of the manager's thread. It reads at most a burst of a source in a round, and
/// takes at most two of an NF.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThreadCosts {
    /// A packet that is read and let in or refused, in nanoseconds.
    pub entry_ns: f64,
    /// A packet that an NF returned and that is passed on, in nanoseconds.
    pub pass_ns: f64,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            cores: 1,
            mhz: 2300,
            switch_ns: 1600,
            wake_cost_ns: 8000,
            wake_quiet_cost_ns: 2000,
            wake_idle_ns: 20_000,
            wake_busy_ns: 11_000,
            interrupt_ns: 0,
            round_ns: 4000,
            thread: None,
            hop_cycles: 25,
            slice_ns: 1_400_000,
            tick_ns: 4_000_000,
            frames: None,
            others: None,
        }
    }
}

/// How the operating system schedules NFs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// SCHED_OTHER: weighted fair; a waking process may preempt.
    Other,
    /// SCHED_BATCH: the same without preemption.
    Batch,
    /// SCHED_RR with slices of this many milliseconds, in whole ticks; weights do not count.
    Rr(u32),
}

impl Class {
    /// The classes that experiments compare.
    pub const ALL: [Self; 4] = [Self::Other, Self::Batch, Self::Rr(1), Self::Rr(100)];
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Other => f.pad("other"),
            Self::Batch => f.pad("batch"),
            Self::Rr(ms) => f.pad(&format!("rr{ms}")),
        }
    }
}

/// Set of policies that are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// None: an NF is woken when packets arrive, and the operating system decides the rest.
    Default,
    /// CPU weights.
    Weights,
    /// Refusal of chains at their entry.
    Backpressure,
    /// Both: what the NFVnice paper compares with the default.
    Nfvnice,
    /// The same, and hand-over between NFs.
    Sluice,
    /// All NFs of a core in one process: no switches, no wakes. The class does not matter.
    Ideal,
}

impl Variant {
    /// All variants, in the order of tables.
    pub const ALL: [Self; 6] = [Self::Default, Self::Weights, Self::Backpressure, Self::Nfvnice, Self::Sluice, Self::Ideal];

    /// Usual settings of this variant.
    pub fn platform(self) -> Platform {
        Platform {
            fused: self == Self::Ideal,
            handover: self == Self::Sluice,
            weights: matches!(self, Self::Weights | Self::Nfvnice | Self::Sluice),
            backpressure: !matches!(self, Self::Default | Self::Weights),
            ..Platform::default()
        }
    }
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Default => "default",
            Self::Weights => "weights",
            Self::Backpressure => "backpressure",
            Self::Nfvnice => "nfvnice",
            Self::Sluice => "sluice",
            Self::Ideal => "ideal",
        })
    }
}

/// Settings of the platform.
#[derive(Debug, Clone, PartialEq)]
pub struct Platform {
    /// Whether consecutive NFs of a chain on a core run in one process.
    pub fused: bool,
    /// Whether a sleeping NF starts the next one; else the manager wakes each that has packets.
    pub handover: bool,
    /// Rate-cost proportional CPU shares.
    pub weights: bool,
    /// Refusal of chains at their entry; else full rings inside drop.
    pub backpressure: bool,
    /// Slots of a ring, unless [`Nf::ring`] is set.
    pub ring: u32,
    /// Percent of a ring from which on a queue is watched.
    pub high_watermark: u32,
    /// Percent of a ring below which a queue is clear.
    pub low_watermark: u32,
    /// Queueing time above which a watched NF throttles its chains, in nanoseconds.
    pub queueing_ns: u64,
    /// Time between two decisions about weights, in nanoseconds.
    pub weight_every_ns: u64,
    /// Least difference of a share that is written, in percent.
    pub weight_margin_percent: f64,
    /// Smallest share, 0 to 1.
    pub min_share: f64,
}

impl Default for Platform {
    fn default() -> Self {
        Self {
            fused: false,
            handover: true,
            weights: true,
            backpressure: true,
            ring: 4096,
            high_watermark: 80,
            low_watermark: 60,
            queueing_ns: 100_000,
            weight_every_ns: 10_000_000,
            weight_margin_percent: 5.0,
            min_share: 0.01,
        }
    }
}

/// Cost of a packet in an NF's handler, in cycles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cost {
    /// The same for each packet.
    Fixed(u64),
    /// These in turn.
    List(Vec<u64>),
    /// One of these at random, by the scenario's seed.
    Random(Vec<u64>),
    /// By the number of the packet's flow in its chain.
    ByFlow(Vec<u64>),
}

/// An NF.
#[derive(Debug, Clone, PartialEq)]
pub struct Nf {
    /// Index of its core.
    pub core: usize,
    /// Cost of a packet.
    pub cost: Cost,
    /// Its priority; usually 1.
    pub priority: f64,
    /// Times in nanoseconds, ascending, and the factor of the cost from then on.
    pub factors: Vec<(u64, u64)>,
    /// Slots of its rings; [`Platform::ring`] if None.
    pub ring: Option<u32>,
}

impl Nf {
    /// An NF of priority 1 with a fixed cost.
    pub fn fixed(core: usize, cycles: u64) -> Self {
        Self { core, cost: Cost::Fixed(cycles), priority: 1.0, factors: Vec::new(), ring: None }
    }
}

/// A chain and its traffic.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    /// Numbers of the NFs that packets visit, in order.
    pub nfs: Vec<usize>,
    /// Packets a second that arrive.
    pub rate_pps: u64,
    /// Number of flows, to which packets belong in turn.
    pub flows: u32,
}

/// All inputs of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// The machine.
    pub machine: Machine,
    /// The NFs.
    pub nfs: Vec<Nf>,
    /// The chains.
    pub chains: Vec<Chain>,
    /// The operating system's scheduler.
    pub class: Class,
    /// The platform.
    pub platform: Platform,
    /// Time before counting starts, in nanoseconds.
    pub warmup_ns: u64,
    /// Time that is counted, in nanoseconds.
    pub measure_ns: u64,
    /// Seed of random costs.
    pub seed: u64,
}

impl Scenario {
    /// These NFs and chains under a variant and a class, for one second after 0.2 s of warm-up.
    pub fn new(nfs: Vec<Nf>, chains: Vec<Chain>, variant: Variant, class: Class) -> Self {
        let cores = nfs.iter().map(|nf| nf.core + 1).max().unwrap_or(1);
        Self {
            machine: Machine { cores, ..Machine::default() },
            nfs,
            chains,
            class,
            platform: variant.platform(),
            warmup_ns: 200_000_000,
            measure_ns: 1_000_000_000,
            seed: 1,
        }
    }

    /// Checks whether the scenario can be run; returns the first error.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let every_ns = self.machine.others.map_or(1, |others| others.every_ns);
        if [self.machine.mhz, self.machine.round_ns, self.machine.slice_ns, self.machine.tick_ns, every_ns].contains(&0) {
            return Err(ScenarioError::Machine);
        }
        for (number, nf) in self.nfs.iter().enumerate() {
            if nf.core >= self.machine.cores {
                return Err(ScenarioError::Core { nf: number, core: nf.core, cores: self.machine.cores });
            }
            if matches!(&nf.cost, Cost::List(c) | Cost::Random(c) | Cost::ByFlow(c) if c.is_empty()) {
                return Err(ScenarioError::NoCosts { nf: number });
            }
        }
        for (number, chain) in self.chains.iter().enumerate() {
            if chain.nfs.is_empty() {
                return Err(ScenarioError::EmptyChain { chain: number });
            }
            if let Some(nf) = chain.nfs.iter().find(|nf| **nf >= self.nfs.len()) {
                return Err(ScenarioError::NoSuchNf { chain: number, nf: *nf, nfs: self.nfs.len() });
            }
        }
        let p = &self.platform;
        let rings = self.nfs.iter().filter_map(|nf| nf.ring).chain([p.ring]);
        if let Some(ring) = rings.min().filter(|ring| *ring < BURST) {
            return Err(ScenarioError::Ring { ring });
        }
        if p.high_watermark > 100 || p.low_watermark > p.high_watermark {
            return Err(ScenarioError::Watermarks { low: p.low_watermark, high: p.high_watermark });
        }
        Ok(())
    }
}

/// Why a scenario cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// The clock, the length of a round, a slice or a tick, or the time to another process is 0.
    #[error("the machine has 0 MHz, or a round, a slice, a tick or another process each 0 ns; give it all of them")]
    Machine,
    /// An NF is on a core that the machine lacks.
    #[error("NF {nf} is on core {core}, but there are {cores}; give the machine more cores or the NF another one")]
    Core {
        /// The NF's number.
        nf: usize,
        /// The core's number.
        core: usize,
        /// Cores of the machine.
        cores: usize,
    },
    /// A list of costs is empty.
    #[error("NF {nf} has an empty list of costs; name at least one cost")]
    NoCosts {
        /// The NF's number.
        nf: usize,
    },
    /// A chain has no NFs.
    #[error("chain {chain} visits no NF; name at least one, or leave the chain out")]
    EmptyChain {
        /// The chain's number.
        chain: usize,
    },
    /// A chain visits an NF that does not exist.
    #[error("chain {chain} visits NF {nf}, but NFs are numbered from 0 to below {nfs}")]
    NoSuchNf {
        /// The chain's number.
        chain: usize,
        /// The NF's number.
        nf: usize,
        /// Number of NFs.
        nfs: usize,
    },
    /// A ring holds less than a burst.
    #[error("rings hold {ring} packets, less than a burst of 32; make them larger")]
    Ring {
        /// Packets of a ring.
        ring: u32,
    },
    /// The watermarks are out of order.
    #[error("watermarks of {low} and {high} percent are out of order; the low one is at most the high one, which is at most 100")]
    Watermarks {
        /// The low one, in percent.
        low: u32,
        /// The high one, in percent.
        high: u32,
    },
}
