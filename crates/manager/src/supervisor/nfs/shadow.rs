//! A shadow as values: what was asked for, what it gets, and how far it is
//! ([`shadow`](super::super::shadow)).

use std::sync::Arc;

use sluice_api::shadow::ShadowRequest;
use sluice_dataplane::capture::{CaptureReader, CaptureScope, Tap};
use sluice_shm::memory::Mapping;

use crate::shadow::{ShadowMemory, Shadowing};

/// A shadow, by what was asked for.
pub(crate) struct ShadowTrial {
    pub(crate) wanted: ShadowRequest,
    pub(crate) plan: ShadowPlan,
    pub(crate) stage: ShadowStage,
    /// The daemon's mappings of its memory, which its thread has.
    pub(crate) mappings: [Arc<Mapping>; 3],
}

/// The copies that a shadow gets.
#[derive(Debug, Clone)]
pub(crate) struct ShadowPlan {
    /// The instance whose packets it gets, and the process that it had.
    pub(crate) of: u16,
    pub(crate) pid: Option<u32>,
    pub(crate) scope: Arc<CaptureScope>,
    pub(crate) threads: usize,
    /// Bytes of a frame, and slots of a ring.
    pub(crate) stride: u32,
    pub(crate) ring: u32,
}

/// Its memory, and the taps of the packet threads with their readers.
pub(crate) type ShadowParts = (ShadowMemory, Vec<Tap>, Vec<CaptureReader>);

pub(crate) enum ShadowStage {
    /// It is not ready. What it gets then.
    Starts(Option<Box<ShadowParts>>),
    /// It gets copies.
    Watched(ShadowWatch),
}

pub(crate) struct ShadowWatch {
    pub(crate) thread: Shadowing,
    /// Its number.
    pub(crate) nf: u16,
    /// When it has got all copies, and when it is looked at next, on the monotonic clock.
    pub(crate) until_ns: u64,
    pub(crate) look_ns: u64,
    /// Whether it gets no more.
    pub(crate) ends: bool,
    /// The SLOs that were violated before.
    pub(crate) violated: Vec<String>,
}

impl ShadowTrial {
    /// Whether a page of its memory was missing.
    pub(crate) fn has_hole(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.holes() > 0)
    }

    /// When it is looked at next, on the monotonic clock, if it gets copies.
    pub(crate) fn look_ns(&self) -> Option<u64> {
        match &self.stage {
            ShadowStage::Starts(_) => None,
            ShadowStage::Watched(watch) => Some(watch.look_ns),
        }
    }
}
