//! The agent's observation of a period, and the decision that follows.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lease::Lease;
use crate::slo::{Cap, SloError};

/// An instance, as in a placement.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceId {
    pub slo: String,
    /// Which of the SLO's instances.
    pub number: u32,
}

impl std::fmt::Display for InstanceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.slo, self.number)
    }
}

/// What an SLO on demand promises on this server.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    pub slo: String,
    /// Promised 95th percentile of latency, in ns.
    pub latency_ns: u64,
    /// Where the promise ends; the load is this server's part.
    pub cap: Cap,
    /// Its instances on other servers.
    #[serde(default)]
    pub elsewhere: u32,
    /// Whether no room was found for another instance: treated like the cap.
    #[serde(default)]
    pub refused: bool,
}

/// Measurements of an instance in a period.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceSample {
    pub id: InstanceId,
    /// 95th percentile of latency, in ns. None if no packet came or too few were timed;
    /// `offered_pps` says which.
    pub latency_p95_ns: Option<u64>,
    /// Bytes of the LLC that it holds.
    pub occupancy_bytes: u64,
    pub misses_per_s: f64,
    /// Packets per second that come to it, before any policing.
    pub offered_pps: f64,
}

/// Measurements of a server in a period.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    pub lease: Lease,
    pub slos: Vec<Terms>,
    /// Their instances here.
    pub instances: Vec<InstanceSample>,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ObservationError {
    #[error(
        "the lease has the ways {mask:#x} and {classes} classes: it needs ways in one piece, {min_ways} (1 at least) or more, and a class"
    )]
    Lease { mask: u64, classes: u32, min_ways: u32 },
    #[error("a way of the lease has 0 bytes")]
    WayBytes,
    #[error("the lease has the ways {mask:#x}, and {reserved:#x} are reserved")]
    Reserved { mask: u64, reserved: u64 },
    #[error("\"{0}\" is there twice")]
    Twice(String),
    #[error("SLO \"{0}\" promises a latency of 0 ns")]
    Latency(String),
    #[error(transparent)]
    Cap(#[from] SloError),
    #[error("instance {0} is of an SLO that the observation does not have")]
    Stranger(InstanceId),
    #[error("instance {id} has {misses_per_s} misses/s and {offered_pps} packets/s: both are 0 or more and finite")]
    NoNumber { id: InstanceId, misses_per_s: f64, offered_pps: f64 },
}

impl Lease {
    pub fn ways(&self) -> u32 {
        self.mask.count_ones()
    }

    /// Most classes that it can be divided into.
    pub(super) fn most_classes(&self) -> u32 {
        self.classes.min(self.ways() / self.min_ways)
    }

    /// Checks that it can be shared out.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn check(&self) -> Result<(), ObservationError> {
        let Self { mask, classes, min_ways, .. } = *self;
        let in_one_piece = mask != 0 && mask.count_ones() + mask.leading_zeros() + mask.trailing_zeros() == u64::BITS;
        if !in_one_piece || min_ways == 0 || self.ways() < min_ways || classes == 0 {
            return Err(ObservationError::Lease { mask, classes, min_ways });
        }
        if self.way_bytes == 0 {
            return Err(ObservationError::WayBytes);
        }
        match self.reserved.iter().find(|reserved| **reserved & mask != 0) {
            Some(&reserved) => Err(ObservationError::Reserved { mask, reserved }),
            None => Ok(()),
        }
    }
}

impl Observation {
    /// Checks that it is consistent.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn check(&self) -> Result<(), ObservationError> {
        self.lease.check()?;
        let (mut slos, mut ids) = (BTreeSet::new(), BTreeSet::new());
        for terms in &self.slos {
            if !slos.insert(&terms.slo) {
                return Err(ObservationError::Twice(terms.slo.clone()));
            }
            if terms.latency_ns == 0 {
                return Err(ObservationError::Latency(terms.slo.clone()));
            }
            terms.cap.check(&terms.slo)?;
        }
        let sane = |value: f64| value.is_finite() && value >= 0.0;
        for InstanceSample { id, misses_per_s, offered_pps, .. } in &self.instances {
            if !ids.insert(id) {
                return Err(ObservationError::Twice(id.to_string()));
            }
            if !slos.contains(&id.slo) {
                return Err(ObservationError::Stranger(id.clone()));
            }
            if !sane(*misses_per_s) || !sane(*offered_pps) {
                let (misses_per_s, offered_pps) = (*misses_per_s, *offered_pps);
                return Err(ObservationError::NoNumber { id: id.clone(), misses_per_s, offered_pps });
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CacheClass {
    /// Its ways, in one piece.
    pub mask: u64,
    /// Whether it is the shared class, which also has the reserved instances that need no cache.
    pub shared: bool,
    pub instances: Vec<InstanceId>,
}

impl CacheClass {
    pub fn ways(&self) -> u32 {
        self.mask.count_ones()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub slo: String,
    /// How many instances it should have, on all servers.
    pub instances: u32,
}

/// A limit on the input of an instance.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Policed {
    pub id: InstanceId,
    /// Packets per second at most.
    pub limit_pps: f64,
}

/// What is done about a violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Nothing yet: it may pass, or a change has to settle.
    Wait,
    /// Ways are moved.
    Share,
    /// Another instance is requested.
    Ask,
    /// Input is policed.
    Police,
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BrokenTerms {
    pub id: InstanceId,
    /// Its 95th percentile of latency, in ns.
    pub latency_p95_ns: u64,
    /// How many periods in a row.
    pub periods: u64,
    pub remedy: Remedy,
}

/// What is to be done until the next period.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// All classes of the lease: the shared class first if there is one, others by age. No other
    /// class has ways of the lease.
    pub classes: Vec<CacheClass>,
    /// Whether they differ from those of the period before.
    pub moved: bool,
    /// Requested instances, repeated each period until they exist or are no longer needed.
    pub requests: Vec<Request>,
    /// Limits; other instances have none.
    pub policed: Vec<Policed>,
    pub violations: Vec<BrokenTerms>,
}
