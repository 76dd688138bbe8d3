//! Numbers of ports, chains and services: their assignment, rest and reuse.
//!
//! # Uses of a former owner's number
//! Paths name chains, services and ports while packets are on them
//! ([`PathRegistry::names`](sluice_dataplane::chain::PathRegistry::names)). Packets for a port may
//! wait between two packet threads; they are gone when all threads have had as many rounds as it
//! takes to empty such a ring ([`ROUNDS`]). Other uses of a number last seconds: packets that wait
//! for an NF or an answer, and the flows that a foreign program is known by. So a number rests for
//! a minute after its owner is gone ([`REST`]), and longer while a path names it.
//!
//! NFs learn names and numbers when they attach, and keep them: a verdict names a port or a service
//! by its number, and a packet its chain. So a number also rests until all NFs that attached during
//! its former owner's life have ended. No remaining NF knows the former owner of a reused number.
//! A zygote learns them once, too, for its handler and those of all its forks. It is no obstacle to
//! numbers of owners that came later, however long it lives.
//!
//! # Limits
//! What was there when an NF or a zygote attached keeps its number for as long as that lives.
//!
//! An SDN controller knows ports and chains by their numbers, and its entries outlive them. With a
//! controller, each of these numbers is assigned once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sluice_shm::BURST;

use super::nfs::{Learned, at_once};
use super::{Supervisor, SupervisorError};
use crate::dataplane::LANE;

/// Least rest of a number.
pub(super) const REST: Duration = Duration::from_secs(60);
/// Least rest in rounds of all packet threads: each round empties a burst of a ring between two
/// threads. One of them may have begun before, and in one the rest of a buffer comes to the ring.
const ROUNDS: u64 = (LANE as u64).div_ceil(BURST as u64) + 2;

/// Time between two checks whether numbers can be reused.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Numbering {
    begun: Vec<Instant>,
    resting: Vec<Rest>,
    free: VecDeque<u16>,
}

#[derive(Debug)]
struct Rest {
    number: u16,
    /// When its owner came and went.
    owned: (Instant, Instant),
    /// The round of the packet threads in which its owner went.
    round: u64,
}

impl Rest {
    fn is_due(&self, now: Instant, round: u64, learned: &Learned) -> bool {
        let (begun, ended) = self.owned;
        let is_known = || learned.iter().any(|(first, last)| *first <= ended && *last >= begun);
        now.duration_since(ended) >= REST && round.saturating_sub(self.round) >= ROUNDS && !is_known()
    }
}

impl Numbering {
    /// The next number, after `given` numbers were assigned; [`Numbering::take`] takes it.
    ///
    /// # Errors
    /// [`SupervisorError::Conflict`] if none is left.
    pub fn next(&self, given: usize, what: &str) -> Result<u16, SupervisorError> {
        let refused = || {
            SupervisorError::Conflict(format!(
                "all numbers of {what} are in use, or were a moment ago; try again in a minute, and if that does not help, restart the daemon"
            ))
        };
        // The largest number stands for none.
        let fresh = || u16::try_from(given).ok().filter(|n| *n < u16::MAX);
        self.free.front().copied().or_else(fresh).ok_or_else(refused)
    }

    /// Assigns a number to an owner, and stores the owner at that index.
    pub fn take<T>(&mut self, number: u16, of: &mut Vec<Option<T>>, owner: T, now: Instant) {
        let at = usize::from(number);
        self.free.retain(|free| *free != number);
        if of.len() <= at {
            of.resize_with(at + 1, || None);
        }
        of[at] = Some(owner);
        self.begun.resize(self.begun.len().max(at + 1), now);
        self.begun[at] = now;
    }

    /// Notes that the owner of a number is gone, in this round of the packet threads.
    pub fn rest(&mut self, number: u16, now: Instant, round: u64) {
        let begun = self.begun.get(usize::from(number)).copied().unwrap_or(now);
        self.resting.push(Rest { number, owned: (begun, now), round });
    }

    pub fn rest_some(&self) -> bool {
        !self.resting.is_empty()
    }

    /// Whether numbers have rested, so that it is worth checking whether paths name them.
    pub fn are_due(&self, now: Instant, round: u64, learned: &Learned) -> bool {
        self.resting.iter().any(|rest| rest.is_due(now, round, learned))
    }

    /// Frees numbers that have rested and that nothing names.
    pub fn settle(&mut self, now: Instant, round: u64, learned: &Learned, is_named: impl Fn(u16) -> bool) {
        let is_over = |rest: &mut Rest| rest.is_due(now, round, learned) && !is_named(rest.number);
        self.free.extend(self.resting.extract_if(.., is_over).map(|rest| rest.number));
    }
}

impl Supervisor {
    /// Frees numbers that nothing means any more, and packet memory of tenants that are gone.
    pub(super) fn free_numbers(&mut self) {
        self.end_services();
        if self.nfs.rest_some() {
            let names = self.plane.registry().names();
            let plane = &self.plane;
            self.nfs.free_numbers(|number| !names.nfs.contains(&number) && plane.in_flight(number) == 0);
        }
        let now = Instant::now();
        if now.duration_since(self.changes.numbers_looked) >= LOOK {
            self.changes.numbers_looked = now;
            self.free_others(now);
            self.give_up_memory(now);
        }
    }

    fn free_others(&mut self, now: Instant) {
        // A controller's flow entries outlive ports and chains.
        let given_once = self.published.sdn.is_there();
        let mut kinds = vec![&self.changes.service_numbers];
        kinds.extend([&self.changes.port_numbers, &self.changes.chain_numbers].into_iter().filter(|_| !given_once));
        if !kinds.iter().any(|numbers| numbers.rest_some()) {
            return;
        }
        let round = self.plane.rounds();
        let nfs = self.nfs.values().flat_map(|nf| nf.learned.iter().copied());
        let zygotes = self.services.iter().flatten().filter_map(|service| service.zygote.as_ref()?.learned());
        let learned: Learned = nfs.chain(zygotes.map(at_once)).collect();
        if !kinds.iter().any(|numbers| numbers.are_due(now, round, &learned)) {
            return;
        }
        let names = self.plane.registry().names();
        self.changes.service_numbers.settle(now, round, &learned, |number| names.services.contains(&number));
        if !given_once {
            self.changes.port_numbers.settle(now, round, &learned, |number| names.ports.contains(&number));
            self.changes.chain_numbers.settle(now, round, &learned, |number| names.chains.contains(&number));
        }
    }

    /// Forgets services that were removed and whose instances are gone.
    fn end_services(&mut self) {
        let is_over = |(number, service): (usize, &Option<super::ServiceState>)| {
            let number = number as u16;
            let is_removed = service.as_ref().is_some_and(|service| service.config.name.is_empty() && service.zygote.is_none());
            let is_used = || self.nfs.values().any(|nf| nf.service == number) || self.is_upgrading(number);
            (is_removed && !is_used()).then_some(number)
        };
        let over: Vec<u16> = self.services.iter().enumerate().filter_map(is_over).collect();
        if over.is_empty() {
            return;
        }
        for number in &over {
            let Some(service) = self.services[usize::from(*number)].take() else { continue };
            if let Some(pool) = service.pool {
                self.close_pool(*number, pool);
            }
            if let Some(allowed) = self.published.allowed.get_mut(usize::from(*number)) {
                *allowed = Default::default();
            }
        }
        self.publish();
        // After the publication of tables without them.
        let (now, round) = (Instant::now(), self.plane.rounds());
        over.into_iter().for_each(|number| self.changes.service_numbers.rest(number, now, round));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_again_when_they_have_rested_and_nothing_names_them() {
        let (begin, mut numbers, mut owners) = (Instant::now(), Numbering::default(), Vec::new());
        for owner in 0..3 {
            let number = numbers.next(owners.len(), "chains").unwrap();
            numbers.take(number, &mut owners, owner, begin);
        }
        owners[1] = None;
        numbers.rest(1, begin, 7);
        let (late, many) = (begin + REST, 7 + ROUNDS);
        numbers.settle(late - Duration::from_millis(1), many, &Learned::new(), |_| false);
        assert_eq!(numbers.next(owners.len(), "chains").unwrap(), 3, "it has rested for a moment");
        numbers.settle(late, many - 1, &Learned::new(), |_| false);
        assert_eq!(numbers.next(owners.len(), "chains").unwrap(), 3, "a thread may not have had its core");
        numbers.settle(late, many, &Learned::new(), |number| number == 1);
        assert_eq!(numbers.next(owners.len(), "chains").unwrap(), 3, "a path names it");
        let learned = Learned::new();
        assert!(numbers.are_due(late, many, &learned) && !numbers.are_due(begin, many, &learned));
        numbers.settle(late, many, &Learned::new(), |_| false);
        assert_eq!(numbers.next(owners.len(), "chains").unwrap(), 1);
        numbers.take(1, &mut owners, 9, late);
        assert_eq!((numbers.next(owners.len(), "chains").unwrap(), numbers.rest_some()), (3, false));
        assert_eq!(owners, [Some(0), Some(9), Some(2)]);
    }

    #[test]
    fn a_number_that_an_nf_knows_is_not_given_to_others() {
        let (begin, mut numbers, mut owners) = (Instant::now(), Numbering::default(), Vec::new());
        let at = |s: u64| begin + Duration::from_secs(s);
        numbers.take(0, &mut owners, (), at(10));
        owners[0] = None;
        numbers.rest(0, at(20), 0);
        let mut is_free = |known: (u64, u64)| {
            numbers.settle(at(1000), ROUNDS, &vec![(at(known.0), at(known.1))], |_| false);
            numbers.next(owners.len(), "ports").unwrap() == 0
        };
        assert!(![(15, 15), (10, 10), (20, 20), (5, 12), (18, 30), (0, 900)].into_iter().any(&mut is_free));
        assert!(is_free((5, 9)), "it knows none of this number");
    }

    #[test]
    fn as_many_may_follow_each_other_as_like_beside_a_zygote_and_its_forks() {
        let (mut now, mut numbers, mut owners) = (Instant::now(), Numbering::default(), Vec::new());
        let begin = now;
        for owner in 0..70_000u64 {
            let number = numbers.next(owners.len(), "chains").unwrap();
            numbers.take(number, &mut owners, owner, now);
            owners[usize::from(number)] = None;
            numbers.rest(number, now, owner);
            now += Duration::from_secs(1);
            // An instance is forked again and again from a zygote that was there first.
            let forked = now - Duration::from_secs(owner % 10);
            numbers.settle(now, owner + ROUNDS, &[begin, forked].map(at_once).to_vec(), |_| false);
        }
        assert!(owners.len() < 100, "{}", owners.len());
    }

    #[test]
    fn numbers_end() {
        let numbers = Numbering::default();
        assert_eq!(numbers.next(65_534, "ports").unwrap(), 65_534);
        for given in [65_535, 65_536, 70_000] {
            let said = numbers.next(given, "ports").unwrap_err().to_string();
            assert!(said.contains("ports") && said.contains("try again in a minute"), "{said}");
        }
    }
}
