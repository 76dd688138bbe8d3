//! The progress of a service to another version, as a state machine.
//!
//! 1. Trial: instances of the new version run beside the old ones, without packets: one for each,
//!    or one for a whole pool whose members have flows. When all are ready, the service goes over,
//!    and a pool grows. If one has ended or is not ready in time, the version is given up.
//! 2. Growing, of a pool: as many new members as there are old ones start, and stay idle. When none
//!    is starting any more, or the time is over, new flows switch to them.

use std::time::Duration;

use super::state::State;

/// Longest time until instances of a new version are ready, handlers included.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait for the growth of a new version's pool.
const GROWTH_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) state: State,
    /// Whether its library has reported that its handler is made.
    pub(crate) is_made: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Advance {
    Wait,
    /// The new version does not work: remove what was started for it.
    GiveUp,
    /// The new version works, and becomes the service's.
    GoOver,
    /// New flows go to the new members.
    Switch,
}

/// A version that is tried, and then takes over.
#[derive(Debug)]
pub(crate) struct Trial {
    grows: bool,
    until_ns: u64,
    trouble: Option<String>,
}

impl Trial {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { grows: false, until_ns: now_ns + READY_PATIENCE.as_nanos() as u64, trouble: None }
    }

    /// Notes that the new version does not work. The first reason is reported.
    pub(crate) fn fails_for(&mut self, why: String) {
        self.trouble.get_or_insert(why);
    }

    /// Whether the new version is known not to work.
    pub(crate) fn has_failed(&self) -> bool {
        self.trouble.is_some()
    }

    /// Why the new version is known not to work.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// It works, and its pool grows from now on.
    pub(crate) fn grows_from(&mut self, now_ns: u64) {
        (self.grows, self.until_ns) = (true, now_ns + GROWTH_PATIENCE.as_nanos() as u64);
    }

    /// Whether the new version has yet to show that it works.
    pub(crate) fn is_open(&self) -> bool {
        !self.grows
    }

    pub(crate) fn why(self) -> String {
        self.trouble.unwrap_or_else(|| format!("it is not ready after {} s", READY_PATIENCE.as_secs()))
    }

    /// The next step, with these instances of the new version; `None` is an instance that is gone.
    pub(crate) fn step(&self, now_ns: u64, mut instances: impl Iterator<Item = Option<Instance>>) -> Advance {
        let is_late = now_ns >= self.until_ns;
        let works = |instance: Option<Instance>| instance.is_some_and(|i| i.state == State::Running && i.is_made);
        let has_settled = |instance: Option<Instance>| instance.is_none_or(|i| i.state != State::Starting);
        match self.grows {
            true if is_late || instances.all(has_settled) => Advance::Switch,
            true => Advance::Wait,
            false if self.trouble.is_some() || is_late => Advance::GiveUp,
            false if instances.all(works) => Advance::GoOver,
            false => Advance::Wait,
        }
    }
}

/// The next step of several upgrades that succeed or fail together.
pub(crate) fn step_of_all(steps: impl Iterator<Item = Advance>) -> Advance {
    steps.fold(Advance::GoOver, |all, step| match (all, step) {
        (Advance::GiveUp, _) | (_, Advance::GiveUp) => Advance::GiveUp,
        (Advance::Wait, _) | (_, Advance::Wait) => Advance::Wait,
        _ => all,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: Option<Instance> = Some(Instance { state: State::Running, is_made: true });
    const STARTS: Option<Instance> = Some(Instance { state: State::Starting, is_made: false });
    const S: u64 = 1_000_000_000;

    fn step(trial: &Trial, now_ns: u64, instances: &[Option<Instance>]) -> Advance {
        trial.step(now_ns, instances.iter().copied())
    }

    #[test]
    fn a_service_goes_over_when_all_new_instances_are_ready_and_not_before() {
        let trial = Trial::new(0);
        assert_eq!(step(&trial, S, &[READY, STARTS]), Advance::Wait);
        assert_eq!(step(&trial, S, &[READY, READY]), Advance::GoOver);
    }

    #[test]
    fn an_instance_whose_handler_is_not_made_yet_is_not_ready() {
        let attached = Some(Instance { state: State::Running, is_made: false });
        assert_eq!(step(&Trial::new(0), S, &[attached]), Advance::Wait);
    }

    #[test]
    fn an_instance_that_has_gone_is_not_ready() {
        assert_eq!(step(&Trial::new(0), S, &[READY, None]), Advance::Wait);
    }

    #[test]
    fn one_that_fails_gives_the_whole_trial_up_even_if_all_others_are_ready() {
        let mut trial = Trial::new(0);
        trial.fails_for("x ended before its handler was ready".into());
        trial.fails_for("y as well".into());
        assert_eq!(step(&trial, S, &[READY, READY]), Advance::GiveUp);
        assert_eq!(trial.why(), "x ended before its handler was ready");
    }

    #[test]
    fn a_trial_that_takes_too_long_is_given_up_and_says_how_long_it_was_waited_for() {
        let trial = Trial::new(0);
        assert_eq!(step(&trial, 30 * S - 1, &[STARTS]), Advance::Wait);
        assert_eq!(step(&trial, 30 * S, &[STARTS]), Advance::GiveUp);
        assert_eq!(trial.why(), "it is not ready after 30 s");
    }

    #[test]
    fn a_pool_is_switched_when_no_member_starts_any_more() {
        let mut trial = Trial::new(0);
        trial.grows_from(20 * S);
        assert!(!trial.is_open());
        assert_eq!(step(&trial, 21 * S, &[READY, STARTS]), Advance::Wait);
        assert_eq!(step(&trial, 21 * S, &[READY, None]), Advance::Switch);
    }

    #[test]
    fn a_pool_that_grows_slowly_is_switched_with_what_it_has() {
        let mut trial = Trial::new(0);
        trial.grows_from(20 * S);
        assert_eq!(step(&trial, 30 * S - 1, &[STARTS]), Advance::Wait);
        assert_eq!(step(&trial, 30 * S, &[STARTS]), Advance::Switch);
    }

    #[test]
    fn a_configuration_goes_over_with_all_its_services_or_with_none() {
        let of = |steps: &[Advance]| step_of_all(steps.iter().copied());
        assert_eq!(of(&[Advance::GoOver, Advance::GoOver]), Advance::GoOver);
        assert_eq!(of(&[Advance::GoOver, Advance::Wait]), Advance::Wait);
        assert_eq!(of(&[Advance::Wait, Advance::GiveUp, Advance::GoOver]), Advance::GiveUp);
        assert_eq!(of(&[]), Advance::GoOver);
    }
}
