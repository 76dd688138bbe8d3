//! The life of a zygote as a state machine: events in, actions out.
//!
//! | stage | instances | leaves it when |
//! |---|---|---|
//! | starting: no hello yet | wait | hello → making; ended → pausing; no hello in time → unfit |
//! | making: its handler is being made | wait | ready; cannot be forked → unfit; ended → pausing |
//! | ready | are forked | ended → pausing |
//! | pausing: it has ended | are spawned | a growing pause is over → starting |
//! | unfit: it cannot be forked, and was ended | are spawned | its service is replaced |
//!
//! It is asked for one instance after another, and answers each by name. One that sends anything
//! but a requested answer, once, is ended.

use std::collections::VecDeque;

use sluice_policy::restart::{RestartDecision, Streak};

use super::life::{BACKOFF, HELLO_PATIENCE};

/// Most unanswered fork requests to a zygote: they never fill a socket.
pub(crate) const ASKED: usize = 32;

/// The stage of a zygote; see the table of this module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    Starting,
    Making,
    Ready,
    Pausing,
    Unfit(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ZygoteEvent {
    Spawned,
    /// It has sent its hello and got its welcome.
    Introduced,
    /// It reports that its handler is made.
    Ready,
    /// It reports that it cannot be forked: why.
    SaysUnfit(String),
    /// It reports that it has forked the instance of this name.
    Forked(String),
    /// It reports that it cannot fork the instance of this name.
    Failed(String),
    /// It has sent an invalid message, or closed its end.
    Nonsense,
    Unfit(String),
    /// Its process has ended, or could not be spawned.
    Ended,
    /// A requested instance has not come in time.
    Late(u16),
    /// The deadline of its stage has passed.
    Due,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ZygoteAction {
    Start,
    /// Kill its process. The end is noticed.
    Kill,
    /// Kill its process, and ignore the end.
    LetGo,
    /// Log that instances are spawned from now on: why.
    ReportUnfit(String),
    /// Take over the process that was forked for this instance.
    Adopt(u16),
    /// Start this instance by its program.
    Spawn(u16),
}

#[derive(Debug)]
pub(crate) struct ZygoteLife {
    stage: Stage,
    /// Instances that are to be requested, in this order.
    waiting: VecDeque<u16>,
    /// Requested and unanswered instances, with their names at the request.
    asked: Vec<(u16, String)>,
    /// How many instances it and its predecessors have forked.
    forks: u64,
    streak: Streak,
    started_ns: u64,
    /// When its stage ends by itself: no hello, or the end of a pause.
    deadline_ns: Option<u64>,
}

impl ZygoteLife {
    pub(crate) fn new() -> Self {
        Self {
            stage: Stage::Pausing,
            waiting: VecDeque::new(),
            asked: Vec::new(),
            forks: 0,
            streak: Streak::default(),
            started_ns: 0,
            deadline_ns: None,
        }
    }

    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    pub(crate) fn forks(&self) -> u64 {
        self.forks
    }

    pub(crate) fn started_ns(&self) -> u64 {
        self.started_ns
    }

    pub(crate) fn begins(&mut self, now_ns: u64) {
        self.started_ns = now_ns;
    }

    /// Whether instances can wait for it.
    pub(crate) fn may_fork(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Making | Stage::Ready)
    }

    pub(crate) fn wants(&mut self, number: u16) {
        self.waiting.push_back(number);
    }

    /// The instance to request next, if it can take a request.
    pub(crate) fn next_to_ask(&mut self) -> Option<u16> {
        if self.stage != Stage::Ready || self.asked.len() >= ASKED { None } else { self.waiting.pop_front() }
    }

    /// Puts an instance back that could not be requested.
    pub(crate) fn not_asked(&mut self, number: u16) {
        self.waiting.push_front(number);
    }

    /// Notes a request for an instance of this name.
    pub(crate) fn was_asked(&mut self, number: u16, name: String) {
        self.asked.push((number, name));
    }

    /// Whether an instance was requested and is not answered.
    pub(crate) fn is_asked_for(&self, number: u16) -> bool {
        self.asked.iter().any(|(asked, _)| *asked == number)
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.asked.is_empty()
    }

    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.deadline_ns.is_some_and(|deadline| now_ns >= deadline)
    }

    /// Handles an event, and returns the actions in their order.
    pub(crate) fn on(&mut self, now_ns: u64, event: ZygoteEvent) -> Vec<ZygoteAction> {
        let is_making = self.stage == Stage::Making;
        match event {
            ZygoteEvent::Spawned => {
                self.stage = Stage::Starting;
                self.deadline_ns = Some(now_ns + HELLO_PATIENCE.as_nanos() as u64);
                Vec::new()
            }
            ZygoteEvent::Introduced => {
                (self.stage, self.deadline_ns) = (Stage::Making, None);
                Vec::new()
            }
            ZygoteEvent::Ready if is_making => {
                self.stage = Stage::Ready;
                Vec::new()
            }
            ZygoteEvent::SaysUnfit(why) if is_making => self.give_up(why),
            ZygoteEvent::Forked(name) => match self.answers(&name) {
                Some(number) => {
                    self.forks += 1;
                    vec![ZygoteAction::Adopt(number)]
                }
                None => vec![ZygoteAction::Kill],
            },
            ZygoteEvent::Failed(name) => vec![self.answers(&name).map_or(ZygoteAction::Kill, ZygoteAction::Spawn)],
            ZygoteEvent::Ready | ZygoteEvent::SaysUnfit(_) | ZygoteEvent::Nonsense => vec![ZygoteAction::Kill],
            ZygoteEvent::Unfit(why) => self.give_up(why),
            ZygoteEvent::Ended => self.pause(now_ns),
            ZygoteEvent::Late(number) => {
                vec![if self.is_asked_for(number) { ZygoteAction::Kill } else { ZygoteAction::Spawn(number) }]
            }
            ZygoteEvent::Due => self.due(now_ns),
        }
    }

    /// The number of a requested instance of this name, which is answered now.
    fn answers(&mut self, name: &str) -> Option<u16> {
        let at = self.asked.iter().position(|(_, asked)| asked == name)?;
        Some(self.asked.swap_remove(at).0)
    }

    /// Spawns all instances that wait for it.
    fn spawn_all(&mut self) -> Vec<ZygoteAction> {
        let waiting = self.asked.drain(..).map(|(number, _)| number).chain(self.waiting.drain(..));
        waiting.map(ZygoteAction::Spawn).collect()
    }

    fn give_up(&mut self, why: String) -> Vec<ZygoteAction> {
        (self.stage, self.deadline_ns) = (Stage::Unfit(why.clone()), None);
        let mut todo = vec![ZygoteAction::LetGo, ZygoteAction::ReportUnfit(why)];
        todo.append(&mut self.spawn_all());
        todo
    }

    /// Pauses before the next one starts.
    fn pause(&mut self, now_ns: u64) -> Vec<ZygoteAction> {
        self.stage = Stage::Pausing;
        self.deadline_ns = match BACKOFF.after_failure(&mut self.streak, now_ns.saturating_sub(self.started_ns)) {
            RestartDecision::StartAfter(pause_ns) => Some(now_ns + pause_ns),
            RestartDecision::GiveUp => None,
        };
        self.spawn_all()
    }

    fn due(&mut self, now_ns: u64) -> Vec<ZygoteAction> {
        if !self.is_due(now_ns) {
            return Vec::new();
        }
        self.deadline_ns = None;
        match self.stage {
            Stage::Pausing => vec![ZygoteAction::Start],
            Stage::Starting => self.give_up(format!(
                "its zygote said no hello within {} s; is it written with this library?",
                HELLO_PATIENCE.as_secs()
            )),
            Stage::Making | Stage::Ready | Stage::Unfit(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// A zygote that can fork and has these requests.
    fn ready(asked: &[u16]) -> ZygoteLife {
        let mut zygote = ZygoteLife::new();
        for event in [ZygoteEvent::Spawned, ZygoteEvent::Introduced, ZygoteEvent::Ready] {
            assert_eq!(zygote.on(0, event), []);
        }
        for number in asked {
            zygote.wants(*number);
            let number = zygote.next_to_ask().unwrap();
            zygote.was_asked(number, name(number));
        }
        zygote
    }

    fn name(number: u16) -> String {
        format!("nat.{number}")
    }

    #[test]
    fn instances_wait_until_its_handler_is_made_and_are_asked_for_in_their_order() {
        let mut zygote = ZygoteLife::new();
        zygote.on(0, ZygoteEvent::Spawned);
        assert!(zygote.may_fork());
        (0..3).for_each(|number| zygote.wants(number));
        assert_eq!(zygote.next_to_ask(), None);
        zygote.on(0, ZygoteEvent::Introduced);
        assert_eq!(zygote.next_to_ask(), None);
        zygote.on(0, ZygoteEvent::Ready);
        assert_eq!([zygote.next_to_ask(), zygote.next_to_ask()], [Some(0), Some(1)]);
    }

    #[test]
    fn it_is_asked_for_no_more_than_its_socket_takes() {
        let mut zygote = ready(&(0..ASKED as u16).collect::<Vec<_>>());
        zygote.wants(99);
        assert_eq!(zygote.next_to_ask(), None);
        zygote.on(0, ZygoteEvent::Forked(name(3)));
        assert_eq!(zygote.next_to_ask(), Some(99));
    }

    #[test]
    fn one_that_could_not_be_asked_for_is_the_next() {
        let mut zygote = ready(&[]);
        (5..7).for_each(|number| zygote.wants(number));
        let first = zygote.next_to_ask().unwrap();
        zygote.not_asked(first);
        assert_eq!(zygote.next_to_ask(), Some(5));
    }

    #[test]
    fn what_it_has_forked_is_taken_in_once() {
        let mut zygote = ready(&[4]);
        assert!(zygote.is_busy() && zygote.is_asked_for(4));
        assert_eq!(zygote.on(0, ZygoteEvent::Forked(name(4))), [ZygoteAction::Adopt(4)]);
        assert_eq!((zygote.forks(), zygote.is_busy()), (1, false));
        assert_eq!(zygote.on(0, ZygoteEvent::Forked(name(4))), [ZygoteAction::Kill]);
        assert_eq!(zygote.forks(), 1);
    }

    #[test]
    fn what_it_cannot_fork_is_spawned() {
        let mut zygote = ready(&[4]);
        assert_eq!(zygote.on(0, ZygoteEvent::Failed(name(4))), [ZygoteAction::Spawn(4)]);
    }

    #[test]
    fn one_that_says_what_it_was_not_asked_for_is_ended() {
        for event in [ZygoteEvent::Ready, ZygoteEvent::SaysUnfit("x".into()), ZygoteEvent::Failed(name(9)), ZygoteEvent::Nonsense] {
            assert_eq!(ready(&[4]).on(0, event), [ZygoteAction::Kill]);
        }
    }

    #[test]
    fn when_it_dies_all_that_wait_are_spawned_and_the_next_one_is_started_after_a_pause() {
        let mut zygote = ready(&[4, 5]);
        zygote.wants(6);
        let spawned = zygote.on(S, ZygoteEvent::Ended);
        assert_eq!(spawned, [4, 5, 6].map(ZygoteAction::Spawn));
        assert!(!zygote.may_fork());
        assert_eq!(zygote.on(S, ZygoteEvent::Due), [ZygoteAction::Start], "the first death is answered at once");
        zygote.begins(S);
        zygote.on(S, ZygoteEvent::Spawned);
        zygote.on(S, ZygoteEvent::Ended);
        assert_eq!(zygote.on(S + 9_999_999, ZygoteEvent::Due), []);
        assert_eq!(zygote.on(S + 10_000_000, ZygoteEvent::Due), [ZygoteAction::Start]);
    }

    #[test]
    fn a_program_that_cannot_be_forked_is_reported_once_and_its_instances_are_spawned() {
        let mut zygote = ZygoteLife::new();
        zygote.on(0, ZygoteEvent::Spawned);
        zygote.on(0, ZygoteEvent::Introduced);
        zygote.wants(1);
        let todo = zygote.on(0, ZygoteEvent::SaysUnfit("it has threads".into()));
        assert_eq!(todo, [ZygoteAction::LetGo, ZygoteAction::ReportUnfit("it has threads".into()), ZygoteAction::Spawn(1)]);
        assert!(!zygote.may_fork());
        assert_eq!(zygote.on(100 * S, ZygoteEvent::Due), [], "it is not tried again");
    }

    #[test]
    fn one_that_says_no_hello_is_given_up() {
        let mut zygote = ZygoteLife::new();
        zygote.on(0, ZygoteEvent::Spawned);
        assert_eq!(zygote.on(10 * S - 1, ZygoteEvent::Due), []);
        let todo = zygote.on(10 * S, ZygoteEvent::Due);
        assert!(matches!(&todo[1], ZygoteAction::ReportUnfit(why) if why.contains("no hello within 10 s")));
        assert!(matches!(zygote.stage(), Stage::Unfit(_)));
    }

    #[test]
    fn its_handler_may_take_as_long_as_it_likes() {
        let mut zygote = ZygoteLife::new();
        zygote.on(0, ZygoteEvent::Spawned);
        zygote.on(0, ZygoteEvent::Introduced);
        assert_eq!(zygote.on(1000 * S, ZygoteEvent::Due), []);
        assert!(zygote.may_fork());
    }

    #[test]
    fn one_that_does_not_answer_is_ended_and_one_that_was_never_asked_for_is_spawned() {
        let mut zygote = ready(&[4]);
        assert_eq!(zygote.on(0, ZygoteEvent::Late(4)), [ZygoteAction::Kill]);
        assert_eq!(zygote.on(0, ZygoteEvent::Late(7)), [ZygoteAction::Spawn(7)]);
    }
}
