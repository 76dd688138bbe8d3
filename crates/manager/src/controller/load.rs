//! What NFs ask of their cores: how many packets want them, and what a packet costs.
//!
//! The Monitor role reads counters about once a millisecond: packets posted and refused from the manager's own memory, the sampled
//! service time from the NF's page. An NF may lie about its service time, up to what its packets can have taken at most: it then gets up to the
//! share that it would get if it used the core all the time. With many NFs, at most [`AT_ONCE`] are read in a round, in turn.
//!
//! Source: NFVnice (SIGCOMM 2017), sections 3.2 and 4.2: samples each millisecond, the median over a moving window of 100 ms.

use std::sync::atomic::Ordering;

use sluice_policy::sched::cost::MovingMedian;
use sluice_policy::sched::weight::ArrivalRate;
use sluice_shm::page::Counter;

use crate::forward::NfEnd;
use crate::nf::handle::NfHandle;
use crate::worker::Part;

/// How long a sample of the service time counts, in nanoseconds.
const WINDOW_NS: u64 = 100_000_000;
/// Time constant of arrival rates, in nanoseconds.
const SMOOTHED_NS: u64 = 10_000_000;
/// NFs that are read in one round.
pub const AT_ONCE: usize = 64;

#[derive(Debug)]
struct Meter {
    arrivals: ArrivalRate,
    /// Picoseconds a packet.
    cost: MovingMedian,
    /// Nanoseconds and packets of all samples, when last read.
    busy_ns: u64,
    sampled: u64,
    /// When it was read last, and what it had returned then.
    read_ns: u64,
    returned: u64,
}

impl Meter {
    fn new() -> Self {
        Self {
            arrivals: ArrivalRate::new(SMOOTHED_NS),
            cost: MovingMedian::new(WINDOW_NS),
            busy_ns: 0,
            sampled: 0,
            read_ns: 0,
            returned: 0,
        }
    }

    fn measure(&mut self, now_ns: u64, handle: &NfHandle) {
        self.arrivals.add(now_ns, handle.arrived());
        handle.load.arrival_pps.set(self.arrivals.pps());
        let word = |counter| handle.region.page.counter(counter).load(Ordering::Relaxed);
        let (busy_ns, sampled) = (word(Counter::BusyNs), word(Counter::Sampled));
        let (took, packets) = (busy_ns.wrapping_sub(self.busy_ns), sampled.wrapping_sub(self.sampled));
        (self.busy_ns, self.sampled) = (busy_ns, sampled);
        let (_, returned) = handle.posted_returned();
        let passed_ns = now_ns.saturating_sub(std::mem::replace(&mut self.read_ns, now_ns));
        let done = returned.saturating_sub(std::mem::replace(&mut self.returned, returned));
        if packets > 0 {
            // Whatever the NF wrote there: its packets cannot have taken longer than there was time.
            let most = u128::from(passed_ns.min(1_000_000_000)) * 1000 / u128::from(done.max(1));
            self.cost.add(now_ns, (u128::from(took) * 1000 / u128::from(packets)).min(most) as u64);
        }
        if let Some(cost) = self.cost.median(now_ns) {
            handle.load.service_ns.set(cost as f64 / 1000.0);
        }
    }
}

/// The meters of all NFs, by number.
#[derive(Debug, Default)]
pub struct Loads {
    meters: Vec<Option<Box<Meter>>>,
    next: usize,
}

impl Loads {
    /// Reads the next NFs.
    #[cold]
    pub fn measure(&mut self, now_ns: u64, nfs: &[Option<NfEnd>], part: Part) {
        if self.meters.len() < nfs.len() {
            self.meters.resize_with(nfs.len(), || None);
        }
        let mut left = AT_ONCE;
        for _ in 0..nfs.len() {
            let number = if self.next < nfs.len() { self.next } else { 0 };
            self.next = number + 1;
            if let Some(end) = nfs[number].as_ref().filter(|_| part.has(number)) {
                self.meters[number].get_or_insert_with(|| Box::new(Meter::new())).measure(now_ns, &end.handle);
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
    }

    /// Forgets an NF that is gone: another process starts anew.
    pub fn forget(&mut self, number: u16) {
        if let Some(meter) = self.meters.get_mut(number as usize) {
            *meter = None;
        }
    }
}
