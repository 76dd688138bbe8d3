//! Flows that had a slow packet, for the histograms of latencies.
//!
//! Problem: a histogram says that packets were slow, and not which. Approach: for each chain and
//! each power of two, the last flow that has ended and whose longest time is of it. Packet threads
//! time some packets in any case, and the meter has the longest time of each flow; so this costs
//! them nothing. Limits: only of flows that are kept for answers; of a flow that has had two
//! chains, the last; times are known to the microsecond, and one that may be of two powers is left
//! out.

use std::collections::HashMap;

use sluice_api::model::Exemplar;
use sluice_dataplane::meter::FlowRecord;

use super::FlowNames;

/// The precision of the meter's longest time, in nanoseconds.
const PRECISION: u64 = 1_000;

/// The longest time of the meter has 32 bits of microseconds.
const POWERS: usize = 43;

/// By name of the chain, those of each power of two.
#[derive(Debug, Default)]
pub struct Exemplars(HashMap<String, [Option<Exemplar>; POWERS]>);

/// The number of bits that a time has: times with one number are below one power of two.
fn bits(ns: u64) -> usize {
    (u64::BITS - ns.leading_zeros()) as usize
}

impl Exemplars {
    /// Takes a flow that has ended. `epoch_ns` is the wall clock minus the monotonic clock.
    pub fn take(&mut self, record: &FlowRecord, number: u64, names: &FlowNames, epoch_ns: u64) {
        let Some((_, ns)) = record.latency_ns() else { return };
        let Some(chain) = record.chain().and_then(|chain| names.hops.chains.get(&chain)) else { return };
        let power = bits(ns);
        if power != bits(ns + PRECISION - 1) {
            return;
        }
        let exemplar = Exemplar { ns, flow: number, last_ns: epoch_ns.wrapping_add(record.last_ns()) };
        match self.0.get_mut(chain) {
            Some(all) => all[power] = Some(exemplar),
            None => {
                let mut all = [None; POWERS];
                all[power] = Some(exemplar);
                self.0.insert(chain.clone(), all);
            }
        }
    }

    /// Forgets the flows before one.
    pub fn forget_before(&mut self, number: u64) {
        self.0.retain(|_, all| {
            all.iter_mut().filter(|one| one.is_some_and(|one| one.flow < number)).for_each(|one| *one = None);
            all.iter().any(Option::is_some)
        });
    }

    /// Those of a chain, from short to long times.
    pub fn of(&self, chain: &str) -> Vec<Exemplar> {
        self.0.get(chain).into_iter().flatten().flatten().copied().collect()
    }
}
