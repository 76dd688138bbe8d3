//! The ends of threads that write to disks and networks.
//!
//! Such a thread may be stuck for as long as the disk is. The daemon waits for it for a while, and
//! then leaves it: it ends with the process.

use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Time between two looks at a thread.
const LOOK: Duration = Duration::from_millis(5);

/// Waits for the end of a thread, for this long at most. Returns whether it has ended.
pub(crate) fn join_within(thread: JoinHandle<()>, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while !thread.is_finished() {
        if Instant::now() >= until {
            return false;
        }
        sleep(LOOK);
    }
    // One that has panicked has said so.
    let _ = thread.join();
    true
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_thread_that_is_stuck_is_left() {
        assert!(join_within(std::thread::spawn(|| {}), Duration::from_secs(600)));
        let (to, from) = channel::<()>();
        assert!(!join_within(
            std::thread::spawn(move || {
                let _ = from.recv();
            }),
            Duration::ZERO
        ));
        drop(to);
    }
}
