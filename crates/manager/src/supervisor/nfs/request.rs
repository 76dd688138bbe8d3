//! The priority that an NF asks for, as its page says.

/// Least time between two changes of it, in nanoseconds: an NF may ask as often as it likes.
const EVERY_NS: u64 = 100_000_000;

/// The priority that an NF's process asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PriorityRequest {
    /// In thousandths; 0: none.
    thousandths: u32,
    /// The number of the flow for which it asks.
    flow: u32,
    changed_ns: u64,
    /// Changes of the NF's priority that came of it, over all its processes.
    pub(crate) changes: u64,
}

/// What an NF asked for until now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FormerRequest {
    pub(crate) priority: Option<f64>,
    /// It is over because its flow is, and the NF asks for nothing yet for the next one.
    pub(crate) was_reset: bool,
}

impl PriorityRequest {
    /// The priority; none if it asks for none.
    pub(crate) fn priority(&self) -> Option<f64> {
        (self.thousandths > 0).then(|| f64::from(self.thousandths) / 1000.0)
    }

    /// Takes what the page says at `now_ns` for flow number `flow`. Returns what was before, if
    /// that was something else, and the change comes not too soon.
    pub(crate) fn take(&mut self, thousandths: u32, flow: u32, now_ns: u64) -> Option<FormerRequest> {
        if thousandths == self.thousandths {
            self.flow = flow;
            return None;
        }
        if now_ns.saturating_sub(self.changed_ns) < EVERY_NS {
            return None;
        }
        let former = FormerRequest { priority: self.priority(), was_reset: thousandths == 0 && flow != self.flow };
        (self.thousandths, self.flow, self.changed_ns) = (thousandths, flow, now_ns);
        Some(former)
    }

    /// Begins with another process, which has not asked.
    pub(crate) fn begin(&mut self) {
        self.thousandths = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_taken_once_and_none_too_soon_after_another() {
        let mut request = PriorityRequest::default();
        let mut take = |thousandths, now_ns| (request.take(thousandths, 0, now_ns).is_some(), request.priority());
        assert_eq!(take(0, 10 * EVERY_NS), (false, None));
        assert_eq!(take(2_500, 10 * EVERY_NS), (true, Some(2.5)));
        assert_eq!(take(2_500, 20 * EVERY_NS), (false, Some(2.5)), "it is known");
        assert_eq!(take(1, 20 * EVERY_NS), (true, Some(0.001)));
        assert_eq!(take(0, 21 * EVERY_NS - 1), (false, Some(0.001)));
        assert_eq!(take(0, 21 * EVERY_NS), (true, None));
        take(u32::MAX, 30 * EVERY_NS);
        request.begin();
        assert_eq!(request.priority(), None);
    }

    #[test]
    fn a_request_that_ends_with_its_flow_is_not_one_that_the_nf_withdraws() {
        let mut request = PriorityRequest::default();
        let mut at_ns = 0;
        let mut take = |thousandths, flow| {
            at_ns += EVERY_NS;
            request.take(thousandths, flow, at_ns)
        };
        let former = |priority, was_reset| Some(FormerRequest { priority, was_reset });
        assert_eq!([take(2_000, 3), take(0, 3)], [former(None, false), former(Some(2.0), false)], "withdrawn");
        assert_eq!([take(2_000, 3), take(0, 4)], [former(None, false), former(Some(2.0), true)], "its flow is over");
        assert_eq!([take(2_000, 4), take(3_000, 5)], [former(None, false), former(Some(2.0), false)], "it asks again");
        assert_eq!([take(3_000, 6), take(0, 6)], [None, former(Some(3.0), false)], "withdrawn in the next flow");
    }
}
