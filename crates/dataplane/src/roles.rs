//! What a packet thread does, and which part of it where several threads have the role.

/// Which part of the NFs (or of their cores) a thread of a role has, where several have the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// How many threads have the role.
    pub of: usize,
    /// Which of them this is, from 0.
    pub this: usize,
}

impl Part {
    /// Whether number `n` is this thread's.
    #[inline(always)]
    pub fn has(self, n: usize) -> bool {
        self.of == 1 || n % self.of == self.this
    }
}

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles {
    /// Polls port queues, classifies, and opens or closes the gate.
    pub rx: bool,
    /// Drains NFs and forwards.
    pub tx: bool,
    /// Wakes cores.
    pub wakeup: bool,
    /// Looks for NFs that stand still.
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
