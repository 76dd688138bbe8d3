//! Receive-side scaling in software, for ports whose device does not provide it.

/// Queue of a flow among `queues`, by its [symmetric hash](super::key::FlowKey::symmetric_hash):
/// the same for both directions. 0 if there are no queues.
#[inline(always)]
pub fn queue_of(symmetric_hash: u32, queues: u16) -> u16 {
    // The high bits, scaled: no division. The result is below 2^16 because `queues` is.
    ((u64::from(symmetric_hash) * u64::from(queues)) >> 32) as u16
}

/// Index among `threads` Rx threads of the one that owns a port's queue.
pub fn owner(port: u16, queue: usize, queues: usize, threads: usize) -> usize {
    let first = if queues.is_multiple_of(threads) { 0 } else { usize::from(port) };
    (first + queue) % threads.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_queues_get_their_share_and_none_else() {
        assert_eq!(queue_of(u32::MAX, 0), 0);
        assert_eq!(queue_of(u32::MAX, 1), 0);
        assert_eq!(queue_of(u32::MAX, u16::MAX), u16::MAX - 1);
        let mut count = [0; 3];
        for i in 0..30_000u32 {
            count[usize::from(queue_of(i.wrapping_mul(0x9e37_79b9), 3))] += 1;
        }
        assert!(count.iter().all(|n| (9_900..=10_100).contains(n)), "{count:?}");
    }
}
