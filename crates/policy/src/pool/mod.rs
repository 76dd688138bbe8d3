//! A pool of NFs of one service, each of which has one flow at a time.
//!
//! # Problem
//! A flow gets an idle NF of its own, keeps it to its end, and gives it back. Between the first
//! packet of a flow and the reset of the NF's state no packet of another flow may reach it. The
//! choice is made at the first packet of each flow, among some hundred nanoseconds of other work.
//!
//! # Terms and units
//! *Member*: an NF of the pool, known by a small number, its *slot*. Times: monotonic nanoseconds.
//!
//! | state | the member | becomes | when |
//! |---|---|---|---|
//! | absent | has no process, or is not of this pool | idle | its process was admitted |
//! | idle | waits for a flow | assigned | a flow came |
//! | | | absent | it was dismissed, or died |
//! | assigned | has a flow | lingering | the flow has ended |
//! | | | draining | the flow was silent for too long |
//! | | | absent | it died |
//! | lingering | late packets of its flow still meet it | draining | the linger is over |
//! | | | absent | it died |
//! | draining | gets no more packets; some are still inside | resetting | the last has left |
//! | | | absent | it died |
//! | resetting | gets a fresh state | idle | that is done |
//! | | | absent | its process was replaced, or died |
//!
//! # Approach
//! Idle members form a first-in, first-out queue, a list through the slots: a member is taken from
//! anywhere in it in constant time. Only [`Pool::new`] and [`Pool::extend`] allocate. [`life`]
//! decides when a flow ends, [`sizing`] how many members there should be.
//!
//! # Limits
//! Not thread-safe: with several threads, each has a pool of its own.
//!
//! Source: W. Zhang et al., "Flurries: Countless Fine-Grained NFs for Flexible Per-Flow
//! Customization", CoNEXT 2016, sections 3 and 4.

pub mod life;
pub mod sizing;

const NONE: u32 = u32::MAX;

/// State of a member; see the table of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum State {
    /// No member.
    #[default]
    Absent,
    /// Waits for a flow.
    Idle,
    /// Has a flow.
    Assigned,
    /// Its flow has ended.
    Lingering,
    /// Gets no more packets.
    Draining,
    /// It is cleaned for its next flow.
    Resetting,
}

impl State {
    /// All states, in the order of the table.
    pub const ALL: [Self; 6] = [Self::Absent, Self::Idle, Self::Assigned, Self::Lingering, Self::Draining, Self::Resetting];

    /// States that may follow this one.
    pub const fn successors(self) -> &'static [Self] {
        match self {
            Self::Absent => &[Self::Idle],
            Self::Idle => &[Self::Assigned, Self::Absent],
            Self::Assigned => &[Self::Lingering, Self::Draining, Self::Absent],
            Self::Lingering => &[Self::Draining, Self::Absent],
            Self::Draining => &[Self::Resetting, Self::Absent],
            Self::Resetting => &[Self::Idle, Self::Absent],
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    state: State,
    /// Neighbours in the queue of idle members.
    before: u32,
    behind: u32,
    /// Time of the last assignment.
    since_ns: u64,
}

/// A pool. See the module.
#[derive(Debug)]
pub struct Pool {
    slots: Vec<Slot>,
    head: u32,
    tail: u32,
    counts: [u32; State::ALL.len()],
}

impl Pool {
    /// A pool for up to `most` members, all absent.
    pub fn new(most: usize) -> Self {
        let mut pool = Self { slots: Vec::new(), head: NONE, tail: NONE, counts: [0; State::ALL.len()] };
        pool.extend(most);
        pool
    }

    /// Extends the pool to at least `most` slots.
    pub fn extend(&mut self, most: usize) {
        let more = most.saturating_sub(self.slots.len());
        let absent = Slot { state: State::Absent, before: NONE, behind: NONE, since_ns: 0 };
        self.slots.resize(self.slots.len() + more, absent);
        self.counts[State::Absent as usize] += more as u32;
    }

    /// Number of members in a state.
    #[inline]
    pub fn count(&self, state: State) -> u32 {
        self.counts[state as usize]
    }

    /// Number of members.
    pub fn size(&self) -> u32 {
        self.slots.len() as u32 - self.count(State::Absent)
    }

    /// State of a slot.
    pub fn state(&self, slot: u32) -> State {
        self.slots.get(slot as usize).map_or(State::Absent, |s| s.state)
    }

    /// Time of its last assignment.
    pub fn since_ns(&self, slot: u32) -> u64 {
        self.slots.get(slot as usize).map_or(0, |s| s.since_ns)
    }

    /// The lowest slot without a member.
    pub fn vacant(&self) -> Option<u32> {
        self.slots.iter().position(|s| s.state == State::Absent).map(|slot| slot as u32)
    }

    /// Adds a member: absent → idle, last of the queue. False without such a vacant slot.
    pub fn join(&mut self, slot: u32) -> bool {
        self.state(slot) == State::Absent && self.step(slot, State::Idle)
    }

    /// Removes a member in any state, and returns that state.
    pub fn leave(&mut self, slot: u32) -> State {
        let was = self.state(slot);
        self.step(slot, State::Absent);
        was
    }

    /// Assigns an idle member to a flow: `preferred` if idle, else the one that was idle longest.
    #[inline]
    pub fn take(&mut self, preferred: Option<u32>, now_ns: u64) -> Option<u32> {
        let slot = preferred.filter(|slot| self.state(*slot) == State::Idle).unwrap_or(self.head);
        if !self.step(slot, State::Assigned) {
            return None;
        }
        self.slots[slot as usize].since_ns = now_ns;
        Some(slot)
    }

    /// The flow of a member has ended: assigned → lingering.
    pub fn linger(&mut self, slot: u32) -> bool {
        self.step(slot, State::Lingering)
    }

    /// A member gets no more packets: assigned or lingering → draining.
    pub fn drain(&mut self, slot: u32) -> bool {
        self.step(slot, State::Draining)
    }

    /// The last packet has left a member: draining → resetting.
    pub fn reset(&mut self, slot: u32) -> bool {
        self.step(slot, State::Resetting)
    }

    /// A member is clean: resetting → idle, last of the queue.
    pub fn ready(&mut self, slot: u32) -> bool {
        self.state(slot) == State::Resetting && self.step(slot, State::Idle)
    }

    /// Removes the member that was idle for the shortest time, and returns its slot.
    pub fn dismiss(&mut self) -> Option<u32> {
        let slot = self.tail;
        self.step(slot, State::Absent).then_some(slot)
    }

    /// Makes a transition of the table. Returns false, without a change, if it has none.
    #[inline]
    fn step(&mut self, slot: u32, next: State) -> bool {
        let Some(was) = self.slots.get(slot as usize).map(|s| s.state) else { return false };
        if !was.successors().contains(&next) {
            return false;
        }
        if was == State::Idle {
            self.unlink(slot);
        }
        self.slots[slot as usize].state = next;
        self.counts[was as usize] -= 1;
        self.counts[next as usize] += 1;
        if next == State::Idle {
            self.append(slot);
        }
        true
    }

    fn append(&mut self, slot: u32) {
        let tail = std::mem::replace(&mut self.tail, slot);
        self.slots[slot as usize].before = tail;
        self.slots[slot as usize].behind = NONE;
        match self.slots.get_mut(tail as usize) {
            Some(last) => last.behind = slot,
            None => self.head = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { before, behind, .. } = self.slots[slot as usize];
        match self.slots.get_mut(before as usize) {
            Some(neighbour) => neighbour.behind = behind,
            None => self.head = behind,
        }
        match self.slots.get_mut(behind as usize) {
            Some(neighbour) => neighbour.before = before,
            None => self.tail = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_table_in_the_documentation_is_the_one_in_force() {
        let mut from = None;
        let mut documented = Vec::new();
        for line in include_str!("mod.rs").lines().filter_map(|l| l.strip_prefix("//! |")) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let named = |word: &str| State::ALL.into_iter().find(|s| format!("{s:?}").to_lowercase() == word);
            from = named(cells[0]).or(from);
            if let (Some(from), Some(to)) = (from, named(cells[2])) {
                documented.push((from as u8, to as u8));
            }
        }
        let steps = |from: State| from.successors().iter().map(move |to| (from as u8, *to as u8));
        let mut in_force: Vec<_> = State::ALL.into_iter().flat_map(steps).collect();
        in_force.sort_unstable();
        documented.sort_unstable();
        assert_eq!(documented, in_force);
    }

    #[test]
    fn a_member_goes_round_and_to_the_end_of_the_queue() {
        let mut pool = Pool::new(3);
        assert_eq!(pool.take(None, 0), None);
        assert!((0..3).all(|slot| pool.join(slot)));
        assert!(!pool.join(1) && !pool.join(3));
        assert_eq!(pool.take(None, 7), Some(0));
        assert_eq!(pool.since_ns(0), 7);
        assert!(!pool.ready(0) && !pool.reset(0), "it has its flow");
        assert!(pool.linger(0) && pool.drain(0) && pool.reset(0) && pool.ready(0));
        assert_eq!([None, None, None, None].map(|p| pool.take(p, 8)), [Some(1), Some(2), Some(0), None]);
        assert_eq!(pool.leave(2), State::Assigned);
        assert_eq!(pool.vacant(), Some(2));
    }

    #[test]
    fn one_that_is_preferred_is_taken_if_it_is_idle() {
        let mut pool = Pool::new(4);
        (0..4).for_each(|slot| assert!(pool.join(slot)));
        assert_eq!(pool.take(Some(2), 0), Some(2));
        assert_eq!(pool.take(Some(2), 0), Some(0), "it is not idle any more");
        assert_eq!(pool.take(Some(99), 0), Some(1), "there is none such");
        assert_eq!(pool.dismiss(), Some(3));
        assert_eq!(pool.dismiss(), None);
        assert_eq!(pool.size(), 3);
    }

    #[derive(Debug, Clone)]
    enum Act {
        Join(u32),
        Leave(u32),
        Take(Option<u32>),
        Linger(u32),
        Drain(u32),
        Reset(u32),
        Ready(u32),
        Dismiss,
    }

    fn act() -> impl Strategy<Value = Act> {
        let slot = || 0..10u32;
        prop_oneof![
            3 => slot().prop_map(Act::Join),
            1 => slot().prop_map(Act::Leave),
            6 => prop::option::of(slot()).prop_map(Act::Take),
            2 => slot().prop_map(Act::Linger),
            3 => slot().prop_map(Act::Drain),
            3 => slot().prop_map(Act::Reset),
            3 => slot().prop_map(Act::Ready),
            1 => Just(Act::Dismiss),
        ]
    }

    proptest! {
        // Against a plain implementation of the states and the queue.
        #[test]
        fn behaves_as_states_and_a_queue(acts in prop::collection::vec(act(), 1..300)) {
            const MOST: usize = 8;
            let mut pool = Pool::new(3);
            pool.extend(MOST);
            let mut states = [State::Absent; MOST];
            let mut queue: VecDeque<u32> = VecDeque::new();
            for act in acts {
                let at = |slot: u32| states.get(slot as usize).copied();
                let (slot, from, to): (u32, &[State], State) = match act {
                    Act::Join(slot) => (slot, &[State::Absent], State::Idle),
                    Act::Leave(slot) => (slot, &State::ALL[1..], State::Absent),
                    Act::Take(preferred) => {
                        let wanted = preferred.filter(|slot| at(*slot) == Some(State::Idle)).or(queue.front().copied());
                        prop_assert_eq!(pool.take(preferred, 0), wanted);
                        if let Some(slot) = wanted {
                            queue.retain(|s| *s != slot);
                            states[slot as usize] = State::Assigned;
                        }
                        continue;
                    }
                    Act::Linger(slot) => (slot, &[State::Assigned], State::Lingering),
                    Act::Drain(slot) => (slot, &[State::Assigned, State::Lingering], State::Draining),
                    Act::Reset(slot) => (slot, &[State::Draining], State::Resetting),
                    Act::Ready(slot) => (slot, &[State::Resetting], State::Idle),
                    Act::Dismiss => {
                        let wanted = queue.pop_back();
                        prop_assert_eq!(pool.dismiss(), wanted);
                        wanted.into_iter().for_each(|slot| states[slot as usize] = State::Absent);
                        continue;
                    }
                };
                let allowed = at(slot).is_some_and(|state| from.contains(&state));
                let done = match act {
                    Act::Join(slot) => pool.join(slot),
                    Act::Leave(slot) => pool.leave(slot) != State::Absent,
                    Act::Linger(slot) => pool.linger(slot),
                    Act::Drain(slot) => pool.drain(slot),
                    Act::Reset(slot) => pool.reset(slot),
                    _ => pool.ready(slot),
                };
                prop_assert_eq!(done, allowed);
                if allowed {
                    queue.retain(|s| *s != slot);
                    states[slot as usize] = to;
                    if to == State::Idle {
                        queue.push_back(slot);
                    }
                }
                for state in State::ALL {
                    prop_assert_eq!(pool.count(state) as usize, states.iter().filter(|s| **s == state).count());
                }
                prop_assert_eq!(pool.size() as usize, states.iter().filter(|s| **s != State::Absent).count());
            }
            while let Some(next) = queue.pop_front() {
                prop_assert_eq!(pool.take(None, 0), Some(next));
            }
            prop_assert_eq!(pool.take(None, 0), None);
        }
    }
}
