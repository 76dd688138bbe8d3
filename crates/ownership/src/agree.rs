//! A bit that follows words which several threads write.

use crate::sync::{Ordering, fence};

/// Has a bit follow a condition on words of several threads: each changes its word, then calls this
/// with `wanted` for the condition. `write` writes the bit, unless it is so already. When all have
/// returned, the bit is as the condition is, whatever the order.
#[inline]
pub fn follow(wanted: impl Fn() -> bool, write: impl Fn(bool)) {
    // SeqCst: this thread's word is visible before it looks at the bit, and below the bit before it
    // looks at the words again. So of two threads the later one sees the word or the bit of the
    // other one.
    fence(Ordering::SeqCst);
    loop {
        let is_wanted = wanted();
        write(is_wanted);
        fence(Ordering::SeqCst);
        if wanted() == is_wanted {
            return;
        }
    }
}
