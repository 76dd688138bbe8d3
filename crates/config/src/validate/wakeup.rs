//! Checks of wake policies.

use super::Validation;
use crate::problem::At;
use sluice_api::config::{Mode, Per, Service, Wakeup, hop};

impl Validation<'_> {
    pub(super) fn wakeups(&mut self) {
        let config = self.config;
        for (i, service) in config.services.iter().enumerate() {
            let Some(wakeup) = &service.wakeup else { continue };
            let at = At::entry("service", i, "wakeup");
            self.wakeup(at, wakeup);
            let awake = if service.is_foreign() {
                "is foreign, and is fed by the manager"
            } else if service.mode == Mode::Poll {
                "polls, and never sleeps"
            } else {
                continue;
            };
            self.error(at, format!("service \"{}\" {awake}: nobody wakes it", service.name), "remove `wakeup`");
        }
    }

    pub(super) fn wakeup_of_rule(&mut self, i: usize, chain: &str, wakeup: &Wakeup) {
        let at = At::entry("rule", i, "wakeup");
        self.wakeup(at, wakeup);
        let follows = |service: &Service| service.per == Per::Flow && service.wakeup.is_some_and(|w| w.rules().is_some());
        let services = self.config.chains.iter().find(|c| c.name == chain).map_or(&[][..], |c| &c.services);
        if !self.config.services.iter().any(|s| follows(s) && services.iter().any(|written| hop(written).0 == s.name)) {
            self.error(
                at,
                format!("no service of chain \"{chain}\" wakes its instances by the flow that they have"),
                "write per = \"flow\" and wakeup = { policy = \"adaptive\" } in one of them, or remove `wakeup`",
            );
        }
    }

    fn wakeup(&mut self, at: At, wakeup: &Wakeup) {
        if wakeup.least > wakeup.most {
            self.error(
                at,
                format!("an instance is woken at {} packets at least, and at {} at most", wakeup.least, wakeup.most),
                "make least at most most",
            );
        }
        if wakeup.has_idle_bounds() {
            self.error(
                at,
                "early, least, most and timer_us are for the policy \"adaptive\"",
                "remove them, or write policy = \"adaptive\"",
            );
        }
    }
}
