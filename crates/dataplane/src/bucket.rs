//! A token bucket that all Rx threads share.
//!
//! # Approach
//! One number says when the packets let in so far would have arrived at exactly the rate (the
//! theoretical arrival time of ATM's generic cell rate algorithm). A packet is let in while that
//! time is at most the burst ahead of the clock. So nothing needs refilling, and taking tokens for
//! a whole burst of packets is one atomic step.
//!
//! # Limits
//! Times are in 1/256 ns and differences span up to 1.1 years: no pause may be longer. A rate above
//! 25,600 million packets a second does not limit.

use std::sync::atomic::{AtomicU64, Ordering};

const TICKS: u64 = 256;

/// Largest age of a packet thread's clock, in ticks: it may lose its core during a round.
const LATE: u64 = 1_000_000_000 * TICKS;

/// A rate, and what was let in of it.
#[derive(Debug, Default)]
pub struct Bucket {
    /// Ticks per packet at the rate; 0 does not limit.
    packet: AtomicU64,
    /// Ticks that may be let in ahead of the clock.
    ahead: AtomicU64,
    /// Theoretical arrival time of what was let in, in ticks.
    arrival: AtomicU64,
}

impl Bucket {
    /// Sets the limit: packets a second, and burst; `None` lifts it. Packets let in ahead of the
    /// clock stay the same number of packets.
    pub fn limit(&self, now_ns: u64, limit: Option<(f64, u64)>) {
        let packet = limit.map_or(0, |(pps, _)| (1e9 * TICKS as f64 / pps.max(1e-3)) as u64);
        let most = packet.saturating_mul(limit.map_or(0, |(_, burst)| burst.max(1)));
        // Relaxed: the packets of one burst may meet a mixture of old and new.
        let was = self.packet.load(Ordering::Relaxed);
        if (was, self.ahead.load(Ordering::Relaxed)) == (packet, most) {
            return;
        }
        let now = now_ns.wrapping_mul(TICKS);
        let ahead = self.arrival.load(Ordering::Relaxed).wrapping_sub(now).cast_signed().max(0).cast_unsigned();
        let arrival = match ahead.checked_div(was).unwrap_or(0) {
            // Full, even by the clock of a thread that read it a while ago.
            0 => now.wrapping_sub(LATE),
            packets => now.wrapping_add(packets.saturating_mul(packet).min(most)),
        };
        self.arrival.store(arrival, Ordering::Relaxed);
        self.ahead.store(most, Ordering::Relaxed);
        self.packet.store(packet, Ordering::Relaxed);
    }

    /// How many of `n` packets may come in now.
    #[inline]
    pub fn take(&self, now_ns: u64, n: usize) -> usize {
        let packet = self.packet.load(Ordering::Relaxed);
        if packet == 0 {
            return n;
        }
        let now = now_ns.wrapping_mul(TICKS);
        let most = self.ahead.load(Ordering::Relaxed);
        // Relaxed: threads exchange nothing but this number.
        let mut arrival = self.arrival.load(Ordering::Relaxed);
        loop {
            let ahead = arrival.wrapping_sub(now).cast_signed().max(0).cast_unsigned();
            // No division while all may come in.
            let all = ahead.saturating_add(packet.saturating_mul(n as u64)) <= most;
            let taken = if all { n } else { (most.saturating_sub(ahead) / packet) as usize };
            if taken == 0 {
                return 0;
            }
            let next = now.wrapping_add(ahead).wrapping_add(packet.wrapping_mul(taken as u64));
            match self.arrival.compare_exchange_weak(arrival, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return taken,
                Err(other) => arrival = other,
            }
        }
    }

    /// Takes back tokens of packets that did not come in after all.
    pub fn give_back(&self, n: usize) {
        let packet = self.packet.load(Ordering::Relaxed);
        self.arrival.fetch_sub(packet.wrapping_mul(n as u64), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_burst_and_then_the_rate() {
        let bucket = Bucket::default();
        assert_eq!(bucket.take(0, 1 << 20), 1 << 20, "nothing is limited yet");
        // After two years, the clock has wrapped and the sign has changed.
        let now = 7 * MS + (1 << 56);
        bucket.limit(now, Some((1e6, 64)));
        assert_eq!((bucket.take(now, 100), bucket.take(now, 1)), (64, 0));
        assert_eq!(bucket.take(now + 10_000, 32), 10);
        bucket.give_back(4);
        assert_eq!(bucket.take(now + 10_000, 32), 4);
        assert_eq!(bucket.take(now + 1000 * MS, 100), 64, "what was not used is not saved up");
        bucket.limit(now, None);
        assert_eq!(bucket.take(now, 100), 100);
    }

    #[test]
    fn a_thread_that_has_read_the_clock_before_the_limit_came_is_let_in() {
        let bucket = Bucket::default();
        bucket.limit(9 * MS, Some((1e6, 1000)));
        assert_eq!(bucket.take(5 * MS, 32), 32, "it had lost its core for 4 ms in the middle of a round");
        assert_eq!(bucket.take(9 * MS, 2000), 1000, "and nobody is let in for that");
    }

    #[test]
    fn another_limit_counts_what_was_let_in_as_the_same_number_of_packets() {
        let bucket = Bucket::default();
        let now = 9 * MS;
        bucket.limit(now, Some((100.0, 64)));
        assert_eq!(bucket.take(now, 100), 64, "640 ms ahead");
        bucket.limit(now, Some((1e6, 64)));
        assert_eq!((bucket.take(now, 1), bucket.take(now + 64_000, 100)), (0, 64), "64 us ahead");
        bucket.limit(now + 64_000, Some((1e6, 16)));
        assert_eq!(bucket.take(now + 80_000, 100), 16);
        bucket.limit(now + 80_000, Some((1e6, 16)));
        assert_eq!(bucket.take(now + 80_000, 100), 0, "the same limit forgets nothing");
    }

    #[test]
    fn threads_share_it() {
        let bucket = Bucket::default();
        bucket.limit(MS, Some((1.0, 1000)));
        let taken: usize = std::thread::scope(|scope| {
            let take = || (0..1000).map(|_| bucket.take(MS, 3)).sum::<usize>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 1000);
    }

    proptest! {
        /// Over any time, at most the rate and a burst is let in, and no less if enough comes.
        #[test]
        fn the_rate_is_kept(
            pps in 10.0..2e7f64,
            burst in 1u64..1000,
            steps in prop::collection::vec((0u64..200_000, 1usize..64, any::<bool>()), 1..200),
        ) {
            let bucket = Bucket::default();
            let (mut now, mut taken, began) = (1u64 << 40, 0usize, 1u64 << 40);
            bucket.limit(now, Some((pps, burst)));
            // Packets that may come in now.
            let mut spare = burst as f64;
            for (gap, n, is_flood) in steps {
                now += gap;
                spare = (spare + gap as f64 * pps / 1e9).min(burst as f64);
                let mut got = 0;
                loop {
                    let more = bucket.take(now, n);
                    got += more;
                    if !is_flood || more == 0 {
                        break;
                    }
                }
                taken += got;
                let most = (now - began) as f64 * pps / 1e9 + burst as f64;
                prop_assert!(taken as f64 <= most * 1.001 + 1.0, "{taken} of {most}");
                prop_assert!(got as f64 + 1.0 >= if is_flood { spare } else { spare.min(n as f64) } * 0.999 - 0.5, "{got} of {n}, {spare}");
                spare = (spare - got as f64).max(0.0);
            }
        }
    }
}
