//! The roles of a packet thread, and its part where several threads share a role.

/// A thread's part of the NFs where several threads share a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Portion {
    /// Number of threads with the role.
    pub of: usize,
    /// Index of this thread among them.
    pub this: usize,
}

impl Portion {
    /// Whether number `n` is this thread's.
    #[inline(always)]
    pub fn has(self, n: usize) -> bool {
        self.of == 1 || n % self.of == self.this
    }
}

/// The roles of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles {
    /// Polls port queues, classifies, and admits packets.
    pub rx: bool,
    /// Drains NFs and forwards.
    pub tx: bool,
    /// Wakes cores.
    pub wakeup: bool,
    /// Measures NFs, and finds those that stand still.
    pub monitor: bool,
}

impl Roles {
    /// Their names.
    pub fn names(self) -> Vec<&'static str> {
        [(self.rx, "rx"), (self.tx, "tx"), (self.wakeup, "wakeup"), (self.monitor, "monitor")]
            .into_iter()
            .filter(|(on, _)| *on)
            .map(|(_, name)| name)
            .collect()
    }
}
