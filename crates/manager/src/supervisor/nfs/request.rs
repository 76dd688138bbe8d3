//! The priority that an NF asks for, as its page says.

/// Least time between two changes of it, in nanoseconds: an NF may ask as often as it likes.
const EVERY_NS: u64 = 100_000_000;

/// The priority that an NF's process asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PriorityRequest {
    /// In thousandths; 0: none.
    thousandths: u32,
    heard_ns: u64,
    /// Changes of the NF's priority that came of it, over all its processes.
    pub(crate) changes: u64,
}

impl PriorityRequest {
    /// The priority; none if it asks for none.
    pub(crate) fn priority(&self) -> Option<f64> {
        (self.thousandths > 0).then(|| f64::from(self.thousandths) / 1000.0)
    }

    /// Takes what the page says at `now_ns`, if that is news and not too soon. Returns whether.
    pub(crate) fn hear(&mut self, thousandths: u32, now_ns: u64) -> bool {
        let is_news = thousandths != self.thousandths && now_ns.saturating_sub(self.heard_ns) >= EVERY_NS;
        if is_news {
            (self.thousandths, self.heard_ns) = (thousandths, now_ns);
        }
        is_news
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
    fn a_change_is_heard_once_and_none_too_soon_after_another() {
        let mut request = PriorityRequest::default();
        assert_eq!((request.hear(0, 10 * EVERY_NS), request.priority()), (false, None));
        assert_eq!((request.hear(2_500, 10 * EVERY_NS), request.priority()), (true, Some(2.5)));
        assert!(!request.hear(2_500, 20 * EVERY_NS), "it is known");
        assert!(request.hear(1, 20 * EVERY_NS));
        assert_eq!((request.hear(0, 21 * EVERY_NS - 1), request.priority()), (false, Some(0.001)));
        assert_eq!((request.hear(0, 21 * EVERY_NS), request.priority()), (true, None));
        request.hear(u32::MAX, 30 * EVERY_NS);
        request.begin();
        assert_eq!(request.priority(), None);
    }
}
