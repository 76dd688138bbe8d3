//! Workflow order: NFs that do not cooperate take turns on a core in the order of their chains.
//!
//! # Problem
//! An NF that polls never gives its core away. The kernel's scheduler does not know rings: it lets
//! an NF poll an empty one for milliseconds, while the ring before it overflows. So a controller
//! outside must choose the NF that runs, look at the rings, and switch when that pays.
//!
//! # Terms and units
//! *Work*: packets that an NF was given and has not returned. *Unread*: those still in its ring.
//! *Room*: packets that it can still put on its output. *Turn*: from the switch to an NF to the
//! switch away from it. *Slice*: the longest turn while others wait. *Cost*: nanoseconds a packet.
//! *Depth*: how far down its chains an NF is; ties go by number. All times are nanoseconds.
//!
//! # Approach
//! The NFs of a core form a circle in the order of depth: after an NF comes the one that its
//! packets go to next, so its last batch is still in the caches. A turn ends when
//! - its slice is over,
//! - the input is almost empty (below [`Settings::near`]), after time to return packets in hand,
//! - the output is almost full, or
//! - the NF is held by backpressure.
//!
//! A switch takes its time, in which the NF still works: with [`Settings::stop_ns`] a turn ends as
//! soon as the NF will have returned all packets, or filled its output, before it is stopped.
//!
//! Then comes the next in the circle that has room and at least `near` packets, or any that has
//! waited for [`Settings::longest_wait_ns`]. If there is none, the next with any work, but no
//! sooner than a slice of the least length after the last switch (two switches, if the NF on the
//! core has nothing to do): so single packets do not turn all CPU time into switches. If no NF has
//! work, the NF keeps the core; after [`Settings::park_after_ns`] it is parked.
//!
//! A foreign program also has work that is not visible: timers and connections of its own
//! ([`Reading::background`]). Such an NF has the core while no NF has packets, and is not parked
//! for that; while others have packets it has a turn of the least length every [`BACKGROUND_NS`]. A
//! turn given for packets ends with them, and counts as a background turn only if it was as long as
//! one. Slices are no longer than [`Settings::longest_wait_ns`], because background work makes
//! packets look expensive. The caller may sleep while there is only background work.
//!
//! A slice is the cost of a ring full of packets, divided by [`Settings::divisor`] (the report's C:
//! cost of a burst × bursts in a ring / C), and at least [`Settings::least_switches`] times a
//! switch. Costs are read at each turn, so slices follow the load.
//!
//! # Limits
//! An NF with work waits at most for the slices of all others and one `longest_wait_ns`. The waits
//! of NFs that do not run are measured every [`LOOK_NS`], in time linear in the NFs of the core.
//!
//! Source: Anthony and Bai, "UNiS: A User-space Non-intrusive Workflow-aware Virtual Network
//! Function Scheduler" (workflow-aware order, preemption by rings, slices by estimated cost); the
//! order of the circle, the bounds on slices and the longest wait are ours.

/// Time between two looks at the NFs that do not run, in nanoseconds.
pub const LOOK_NS: u64 = 20_000;
/// Time between two turns of an NF for background work, in nanoseconds.
pub const BACKGROUND_NS: u64 = 10_000_000;
/// [`LOOK_NS`] while the NF on the core has nothing to do.
const IDLE_LOOK_NS: u64 = 1_000;

/// Parameters of the policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Packets below which an input is almost empty; slots below which an output is almost full.
    pub near: u32,
    /// Divisor of the cost of a ring full of packets that makes a slice; at least 1.
    pub divisor: f64,
    /// Time from the decision to switch until the other NF runs, as measured on the host.
    pub switch_ns: u64,
    /// Time from the decision to switch until the NF on the core stops, as measured on the host; 0:
    /// unknown.
    pub stop_ns: u64,
    /// Least length of a slice, in switches.
    pub least_switches: u32,
    /// Time after which an NF with fewer packets than `near` gets a turn.
    pub longest_wait_ns: u64,
    /// Time without work after which an NF is parked, though no other has work either.
    pub park_after_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            near: 32,
            divisor: 1.0,
            switch_ns: 14_000,
            stop_ns: 0,
            least_switches: 5,
            longest_wait_ns: 1_000_000,
            park_after_ns: 1_000_000,
        }
    }
}

impl Settings {
    /// The least length of a slice.
    pub fn least_slice_ns(&self) -> u64 {
        self.switch_ns * u64::from(self.least_switches)
    }

    /// The slice of an NF whose packets cost `cost_ns` each (0: unknown) and whose ring has `ring`
    /// slots. `weight` scales it; 1 is usual. It is never longer than a ring full of packets takes.
    pub fn slice_ns(&self, cost_ns: f64, ring: u32, weight: f64) -> u64 {
        let least = self.least_slice_ns();
        if cost_ns <= 0.0 {
            return 4 * least;
        }
        let full = cost_ns * f64::from(ring);
        let slice = (full / self.divisor.max(1.0) * weight).min(full);
        // A ring that is processed in less time ends the turn by being empty.
        (slice as u64).max(least)
    }
}

/// An NF in the circle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Member {
    /// Number of the NF.
    pub nf: u16,
    /// How far down its chains it is.
    pub depth: u32,
    /// Slots of its ring.
    pub ring: u32,
}

impl Member {
    /// [`Settings::near`], but at most half of the ring.
    fn near(&self, settings: &Settings) -> u32 {
        settings.near.min(self.ring / 2).max(1)
    }
}

/// State of an NF at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reading {
    /// Packets that it was given and has not returned.
    pub work: u32,
    /// Those of them that it has not taken from its ring.
    pub unread: u32,
    /// Packets that its output can take.
    pub room: u32,
    /// It must not run: its output would wait further on, or it is gone.
    pub held: bool,
    /// It may have background work.
    pub background: bool,
}

/// Access to the rings of a core's NFs.
pub trait Rings {
    /// Reads the state of an NF.
    fn read(&self, nf: u16) -> Reading;
    /// Cost of its packets, in nanoseconds; 0 if unknown.
    fn cost_ns(&self, nf: u16) -> f64;
    /// Weight of its slices; 1 is usual.
    fn weight(&self, nf: u16) -> f64;
}

/// Why a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Why {
    /// Its slice was over.
    Slice = 0,
    /// Its input was almost empty.
    Empty = 1,
    /// Its output was almost full.
    Full = 2,
    /// It was held.
    Held = 3,
    /// No NF had work for a while.
    Idle = 4,
}

impl Why {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Slice, Self::Empty, Self::Full, Self::Held, Self::Idle];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slice => "slice",
            Self::Empty => "empty",
            Self::Full => "full",
            Self::Held => "held",
            Self::Idle => "idle",
        }
    }
}

/// What the caller must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Nothing.
    Stay,
    /// Give the core, which no NF has, to this NF.
    Run(u16),
    /// Switch from one NF to another.
    Switch {
        /// The NF that has the core.
        from: u16,
        /// The NF that gets it.
        to: u16,
        /// Why the turn ended.
        why: Why,
    },
    /// Park the NF that has the core.
    Park(u16, Why),
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    member: Member,
    /// Since when it has work and no turn.
    waits_ns: Option<u64>,
    /// Since when it has had no background turn.
    background_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    began_ns: u64,
    ends_ns: u64,
    /// It was given for background work, not for packets alone.
    is_background: bool,
    /// Since when the NF had had no background turn.
    background_ns: Option<u64>,
    /// Once the input is almost empty: until when packets in hand may still be returned.
    finishing_ns: Option<u64>,
    /// Since when it has had nothing to do.
    idle_ns: Option<u64>,
    /// When it would have ended last, but no other NF could run.
    in_vain_ns: Option<u64>,
}

/// The circle of a core.
#[derive(Debug, Clone)]
pub struct Workflow {
    settings: Settings,
    circle: Vec<Entry>,
    /// Place in the circle of the NF that has the core.
    current: Option<usize>,
    turn: Turn,
    looked_ns: u64,
    /// The longest wait of an NF with work since [`Workflow::take_longest_wait_ns`].
    longest_ns: u64,
}

impl Workflow {
    /// An empty circle.
    pub fn new(settings: Settings) -> Self {
        let turn = Turn {
            began_ns: 0,
            ends_ns: 0,
            is_background: false,
            background_ns: None,
            finishing_ns: None,
            idle_ns: None,
            in_vain_ns: None,
        };
        Self { settings, circle: Vec::new(), current: None, turn, looked_ns: 0, longest_ns: 0 }
    }

    /// Parameters of the policy.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Adds an NF, which does not run.
    pub fn add(&mut self, member: Member) {
        self.remove(member.nf);
        let current = self.running();
        self.circle.push(Entry { member, waits_ns: None, background_ns: None });
        self.sort(current);
    }

    /// Removes an NF. If it had the core, no NF has it.
    pub fn remove(&mut self, nf: u16) {
        let current = self.running().filter(|running| *running != nf);
        self.circle.retain(|entry| entry.member.nf != nf);
        self.sort(current);
    }

    /// Sets the depths of the NFs again.
    pub fn reorder(&mut self, depth: impl Fn(u16) -> u32) {
        let current = self.running();
        self.circle.iter_mut().for_each(|entry| entry.member.depth = depth(entry.member.nf));
        self.sort(current);
    }

    fn sort(&mut self, current: Option<u16>) {
        self.circle.sort_by_key(|entry| (entry.member.depth, entry.member.nf));
        self.current = current.and_then(|nf| self.circle.iter().position(|entry| entry.member.nf == nf));
    }

    /// The NFs in the order of turns.
    pub fn order(&self) -> impl Iterator<Item = u16> {
        self.circle.iter().map(|entry| entry.member.nf)
    }

    /// The NF that has the core.
    pub fn running(&self) -> Option<u16> {
        self.current.map(|at| self.circle[at].member.nf)
    }

    /// Whether no NF had work at the last look, so that only new packets change anything.
    pub fn is_idle(&self) -> bool {
        (self.current.is_none() || self.turn.idle_ns.is_some()) && self.circle.iter().all(|entry| entry.waits_ns.is_none())
    }

    /// When the current turn ends at the latest; None if no NF waits.
    pub fn deadline_ns(&self) -> Option<u64> {
        let waits = || self.circle.iter().any(|entry| entry.waits_ns.is_some());
        (self.current.is_some() && waits()).then_some(self.turn.ends_ns)
    }

    /// The longest wait of an NF with work since the last call.
    pub fn take_longest_wait_ns(&mut self) -> u64 {
        std::mem::take(&mut self.longest_ns)
    }

    /// Decides what the caller must do.
    #[inline]
    pub fn step(&mut self, now_ns: u64, rings: &impl Rings) -> Move {
        let Some(at) = self.current else { return self.begin(now_ns, rings) };
        let reading = rings.read(self.circle[at].member.nf);
        let why = self.ending(at, reading, now_ns, rings);
        if let Some(why) = why {
            return self.change(at, reading, why, now_ns, rings);
        }
        if now_ns.saturating_sub(self.looked_ns) >= LOOK_NS {
            self.look(now_ns, rings);
        }
        Move::Stay
    }

    /// Whether the turn is over, and why.
    #[inline]
    fn ending(&mut self, at: usize, reading: Reading, now_ns: u64, rings: &impl Rings) -> Option<Why> {
        let near = self.circle[at].member.near(&self.settings);
        if reading.held {
            return Some(Why::Held);
        }
        if reading.room < near {
            return Some(Why::Full);
        }
        if reading.work == 0 {
            let may_stay = self.turn.is_background && reading.background && now_ns < self.background_until_ns();
            return (!may_stay).then_some(Why::Empty);
        }
        self.turn.idle_ns = None;
        if now_ns >= self.turn.ends_ns {
            return Some(Why::Slice);
        }
        if let Some(why) = self.foreseen(at, reading, now_ns, rings) {
            return Some(why);
        }
        if reading.unread >= near {
            self.turn.finishing_ns = None;
            return None;
        }
        // Almost empty: packets in hand would wait for the next turn, and take less than a switch.
        let until = *self.turn.finishing_ns.get_or_insert_with(|| {
            let burst = 2.0 * rings.cost_ns(self.circle[at].member.nf) * f64::from(near);
            let patience = (burst as u64).clamp(2_000, self.settings.switch_ns.max(2_000));
            now_ns.max(self.turn.began_ns + self.settings.switch_ns) + patience
        });
        (now_ns >= until).then_some(Why::Empty)
    }

    /// Why the turn will be over before a switch that is decided now stops the NF, if it will. Not
    /// before the NF runs, nor if the cost of its packets is unknown, if its ring is worth little
    /// more than a switch, or if no other waits or could run lately.
    #[inline]
    fn foreseen(&self, at: usize, reading: Reading, now_ns: u64, rings: &impl Rings) -> Option<Why> {
        let stop_ns = self.settings.stop_ns.min(self.settings.switch_ns) as f64;
        let is_in_vain = self.turn.in_vain_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) < LOOK_NS);
        if stop_ns == 0.0 || is_in_vain || now_ns < self.turn.began_ns + self.settings.switch_ns {
            return None;
        }
        let member = self.circle[at].member;
        // Of what it has read it may have returned all but a burst: it publishes late.
        let in_hand = reading.work.saturating_sub(reading.unread).min(member.near(&self.settings));
        let left = reading.unread.saturating_add(in_hand);
        // An unknown cost is 0: then a ring is worth nothing.
        let cost_ns = rings.cost_ns(member.nf);
        let is_soon = cost_ns * f64::from(left.min(reading.room)) <= stop_ns && cost_ns * f64::from(member.ring) >= 4.0 * stop_ns;
        let is_wanted = || self.circle.iter().any(|entry| entry.waits_ns.is_some());
        (is_soon && is_wanted()).then_some(if reading.room < left { Why::Full } else { Why::Empty })
    }

    /// When the current turn is as long as a background turn.
    fn background_until_ns(&self) -> u64 {
        self.turn.began_ns + self.settings.switch_ns + self.settings.least_slice_ns()
    }

    fn begin(&mut self, now_ns: u64, rings: &impl Rings) -> Move {
        self.look(now_ns, rings);
        let able = |this: &Self, at: &usize, wants: fn(&Reading) -> bool| {
            let reading = rings.read(this.circle[*at].member.nf);
            wants(&reading) && !reading.held && reading.room >= this.circle[*at].member.near(&this.settings)
        };
        let first = |wants: fn(&Reading) -> bool| (0..self.circle.len()).find(|at| able(self, at, wants));
        match first(|reading| reading.work > 0).or_else(|| first(|reading| reading.background)) {
            Some(at) => {
                self.give(at, now_ns, rings);
                Move::Run(self.circle[at].member.nf)
            }
            None => Move::Stay,
        }
    }

    /// Ends the turn of `at`, and finds the next one.
    fn change(&mut self, at: usize, reading: Reading, why: Why, now_ns: u64, rings: &impl Rings) -> Move {
        if self.turn.idle_ns.is_none() || now_ns.saturating_sub(self.looked_ns) >= IDLE_LOOK_NS {
            self.look(now_ns, rings);
        }
        let from = self.circle[at].member.nf;
        if let Some(next) = self.next(at, now_ns, rings) {
            if reading.work > 0 {
                self.circle[at].waits_ns = Some(now_ns);
            }
            // A turn that was too short for background work was no background turn.
            let since_ns = self.turn.background_ns.filter(|_| now_ns < self.background_until_ns()).unwrap_or(now_ns);
            self.circle[at].background_ns = reading.background.then_some(since_ns);
            self.give(next, now_ns, rings);
            return Move::Switch { from, to: self.circle[next].member.nf, why };
        }
        match why {
            // No other NF can run.
            Why::Slice => {
                self.turn.ends_ns = now_ns + self.slice_ns(at, rings);
                Move::Stay
            }
            Why::Held => {
                self.current = None;
                self.circle[at].waits_ns = (reading.work > 0).then_some(now_ns);
                Move::Park(from, why)
            }
            _ if reading.work > 0 => {
                // It goes on as far as it can, and is looked at again.
                self.turn.in_vain_ns = Some(now_ns);
                self.turn.ends_ns = self.turn.ends_ns.max(now_ns + self.settings.least_slice_ns());
                Move::Stay
            }
            _ => {
                let idle_ns = *self.turn.idle_ns.get_or_insert(now_ns);
                if reading.background || now_ns.saturating_sub(idle_ns) < self.settings.park_after_ns {
                    return Move::Stay;
                }
                self.current = None;
                Move::Park(from, Why::Idle)
            }
        }
    }

    fn next(&self, at: usize, now_ns: u64, rings: &impl Rings) -> Option<usize> {
        let longest_wait_ns = self.settings.longest_wait_ns;
        // An NF without work loses nothing by a switch; the one that switches does.
        let pause_ns = if self.turn.idle_ns.is_some() { 2 * self.settings.switch_ns } else { self.settings.least_slice_ns() };
        let rested = now_ns.saturating_sub(self.turn.began_ns) >= pause_ns;
        let mut small = None;
        for step in 1..self.circle.len() {
            let place = (at + step) % self.circle.len();
            let Entry { member, waits_ns, background_ns } = self.circle[place];
            let is_due = is_due(background_ns, now_ns);
            if waits_ns.is_none() && !is_due {
                continue;
            }
            let (reading, near) = (rings.read(member.nf), member.near(&self.settings));
            if reading.held || reading.room < near {
                continue;
            }
            if is_due && reading.background {
                return Some(place);
            }
            let Some(since_ns) = waits_ns.filter(|_| reading.work > 0) else { continue };
            if reading.work >= near || now_ns.saturating_sub(since_ns) >= longest_wait_ns {
                return Some(place);
            }
            if rested && small.is_none() {
                small = Some(place);
            }
        }
        small
    }

    /// Notes which NFs wait, and since when.
    fn look(&mut self, now_ns: u64, rings: &impl Rings) {
        self.looked_ns = now_ns;
        for (at, entry) in self.circle.iter_mut().enumerate() {
            if self.current == Some(at) {
                continue;
            }
            let reading = rings.read(entry.member.nf);
            entry.background_ns = reading.background.then(|| entry.background_ns.unwrap_or(now_ns));
            if reading.work == 0 {
                entry.waits_ns = None;
            } else if reading.held || reading.room < entry.member.near(&self.settings) {
                // It does not wait for the core: its wait begins when it could run.
                entry.waits_ns = Some(now_ns);
            } else {
                let since_ns = *entry.waits_ns.get_or_insert(now_ns);
                self.longest_ns = self.longest_ns.max(now_ns.saturating_sub(since_ns));
            }
        }
    }

    fn give(&mut self, at: usize, now_ns: u64, rings: &impl Rings) {
        self.circle[at].waits_ns = None;
        let background_ns = self.circle[at].background_ns.take();
        self.current = Some(at);
        let has_packets = rings.read(self.circle[at].member.nf).work > 0;
        let slice_ns = if has_packets { self.slice_ns(at, rings) } else { self.settings.least_slice_ns() };
        let ends_ns = now_ns + self.settings.switch_ns + slice_ns;
        let is_background = !has_packets || is_due(background_ns, now_ns);
        self.turn =
            Turn { began_ns: now_ns, ends_ns, is_background, background_ns, finishing_ns: None, idle_ns: None, in_vain_ns: None };
    }

    fn slice_ns(&self, at: usize, rings: &impl Rings) -> u64 {
        let member = &self.circle[at].member;
        // Relative to the largest weight: a slice is never longer than a ring of packets takes.
        let largest = self.circle.iter().map(|entry| rings.weight(entry.member.nf)).fold(f64::MIN_POSITIVE, f64::max);
        let slice_ns = self.settings.slice_ns(rings.cost_ns(member.nf), member.ring, rings.weight(member.nf) / largest);
        // Background work counts as cost, and no empty input ends its turn: slices would grow on.
        let longest_ns = self.settings.longest_wait_ns.max(self.settings.least_slice_ns());
        if rings.read(member.nf).background { slice_ns.min(longest_ns) } else { slice_ns }
    }
}

/// Whether an NF without a background turn since `background_ns` is due for one.
fn is_due(background_ns: Option<u64>, now_ns: u64) -> bool {
    background_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= BACKGROUND_NS)
}

#[cfg(test)]
#[path = "workflow_tests.rs"]
mod tests;
