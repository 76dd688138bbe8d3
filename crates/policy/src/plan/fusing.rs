//! What it saves to run the NFs of a chain in one process.
//!
//! # Problem
//! Between two NFs a packet costs rings, and its part of a wake and of a switch. Where handlers do
//! little, that is much of what the NFs use. Where they do much, fusing gains nothing and takes
//! away the protection of one from another.
//!
//! # Terms and units
//! *Used*: CPU time of an NF's process over time, in cores, with wakes and switches
//! ([`load`](super::load)). *Handler*: packets a second × the time of a packet in the handler, in
//! cores. *Hand-over*: used less handler.
//!
//! # Approach
//! One process of all handlers hands over once. So of the services of a chain on a core, the
//! hand-over of the dearest stays, and the others' are saved:
//!
//! ```text
//! hand-over = max(0, used − pps × packet_ns / 1e9)    for each service, over its instances there
//! saved     = sum(hand-over) − max(hand-over)         in cores
//! ```
//!
//! `used` and `pps` are measured over one period. `packet_ns` is the median of the load monitor
//! (NFVnice §3.2): a mean would count the pauses in which a handler was preempted, and on a busy
//! host those are more than all hand-overs. It is worth saying from a tenth of what the NFs use and
//! a twentieth of the core on.
//!
//! # Limits
//! Work besides packets, such as ticks, counts as hand-over, and so does what dear packets take
//! above the median. A polling NF uses all of its core, and its hand-over is not known: leave out
//! chains that have one.

/// Least part of what the NFs use.
const LEAST_OF_USED: f64 = 0.1;
/// Least part of a core.
const LEAST: f64 = 0.05;

/// An NF of a chain, as last measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The number of its service in the chain.
    pub service: usize,
    /// Its core.
    pub core: usize,
    /// CPU time used, in cores.
    pub used: f64,
    /// Packets per second that it handled.
    pub pps: f64,
    /// Median time of a packet in its handler, in nanoseconds; 0 if unknown.
    pub packet_ns: f64,
}

/// What one process would save.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Saving {
    /// The core on which most is saved.
    pub core: usize,
    /// What is saved there, in cores.
    pub saved: f64,
    /// Time of a packet in the handlers of all services, in nanoseconds.
    pub packet_ns: f64,
}

/// The saving for a chain of this many services. None if it is small, or something is not known.
pub fn saving(services: usize, nfs: &[Measured]) -> Option<Saving> {
    let is_known = |nf: &Measured| nf.used > 0.0 && nf.pps > 0.0 && nf.packet_ns > 0.0;
    if !nfs.iter().all(is_known) {
        return None;
    }
    let packet_ns = (0..services).map(|service| mean_ns(nfs.iter().filter(|nf| nf.service == service))).sum::<Option<f64>>()?;
    let on_core = |core: usize| {
        let of = |service: usize| nfs.iter().filter(move |nf| (nf.service, nf.core) == (service, core));
        let hand_over = |service| of(service).map(|nf| nf.used - nf.pps * nf.packet_ns / 1e9).sum::<f64>().max(0.0);
        let all: Vec<f64> = (0..services).map(hand_over).collect();
        let used: f64 = (0..services).flat_map(of).map(|nf| nf.used).sum();
        let saved = all.iter().sum::<f64>() - all.iter().copied().fold(0.0, f64::max);
        (saved >= LEAST && saved >= used * LEAST_OF_USED).then_some(Saving { core, saved, packet_ns })
    };
    nfs.iter().filter_map(|nf| on_core(nf.core)).max_by(|a, b| a.saved.total_cmp(&b.saved))
}

/// The mean time of a packet in these NFs. None without any.
fn mean_ns<'a>(nfs: impl Iterator<Item = &'a Measured>) -> Option<f64> {
    let (pps, ns) = nfs.fold((0.0, 0.0), |(pps, ns), nf| (pps + nf.pps, ns + nf.pps * nf.packet_ns));
    (pps > 0.0).then(|| ns / pps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An NF on core 1 that has two million packets a second.
    fn nf(service: usize, packet_ns: f64, used: f64) -> Measured {
        Measured { service, core: 1, used, pps: 2e6, packet_ns }
    }

    fn percent(services: usize, nfs: &[Measured]) -> Option<(usize, i64, i64)> {
        saving(services, nfs).map(|s| (s.core, (s.saved * 100.0).round() as i64, s.packet_ns.round() as i64))
    }

    #[test]
    fn all_hand_overs_but_the_dearest_are_saved() {
        // Handlers of 0.1, 0.16 and 0.06 cores, which use 0.2, 0.41 and 0.11.
        let three = [nf(0, 50.0, 0.2), nf(1, 80.0, 0.41), nf(2, 30.0, 0.11)];
        assert_eq!(percent(3, &three), Some((1, 15, 160)));
        // One that is measured to use less than its packets take has no hand-over, and no other's
        // is less for it.
        assert_eq!(percent(3, &[three[0], three[1], nf(2, 30.0, 0.05)]), Some((1, 10, 160)));
    }

    #[test]
    fn what_does_much_with_a_packet_is_left_alone() {
        // 0.06 cores are saved of 0.96; 0.04 of 0.16 are less than a twentieth of a core.
        assert_eq!(percent(2, &[nf(0, 200.0, 0.46), nf(1, 200.0, 0.5)]), None);
        assert_eq!(percent(2, &[nf(0, 20.0, 0.08), nf(1, 20.0, 0.08)]), None);
    }

    #[test]
    fn services_on_different_cores_hand_nothing_over_to_each_other() {
        let cheap = |service, core| Measured { core, ..nf(service, 20.0, 0.2) };
        assert_eq!(percent(2, &[cheap(0, 1), cheap(1, 2)]), None);
        // The core counts on which most is saved. There are two of the first service on core 2.
        let dear = Measured { used: 0.25, ..cheap(1, 2) };
        let mixed = [cheap(0, 1), cheap(1, 1), cheap(0, 2), cheap(0, 2), dear, cheap(1, 3)];
        assert_eq!(percent(2, &mixed), Some((2, 21, 40)));
    }

    #[test]
    fn nothing_is_said_of_what_is_not_known() {
        let cheap = [nf(0, 20.0, 0.2), nf(1, 20.0, 0.2)];
        assert!(percent(2, &cheap).is_some());
        assert_eq!(percent(3, &cheap), None, "a service without an NF");
        for unknown in
            [Measured { used: 0.0, ..cheap[1] }, Measured { pps: 0.0, ..cheap[1] }, Measured { packet_ns: 0.0, ..cheap[1] }]
        {
            assert_eq!(percent(2, &[cheap[0], unknown]), None);
        }
        let wild = Measured { packet_ns: f64::INFINITY, ..cheap[1] };
        assert_eq!(percent(2, &[cheap[0], wild]), None);
        assert_eq!(percent(0, &[]), None);
    }
}
