//! Captures: what the supervisor begins and ends of them.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sluice_api::model::{self as api, MAX_CAPTURES};
use sluice_api::{ApiError, ErrorKind};
use sluice_dataplane::capture::{CaptureScope, Point, Tap, pair};
use sluice_dataplane::worker::Worker;

use super::backend::Remote;
use super::{Supervisor, SupervisorError};
use crate::capture::filter::PacketFilter;
use crate::capture::{CaptureLimits, CaptureSource, HopNames, NoNames, Stream};
use crate::control::Pieces;

/// Words of eight bytes that a packet thread may be ahead of a capture: packets of 64 bytes at
/// 1,000,000 a second for a sixth of a second.
const WORDS: usize = 1 << 21;
/// The same for each packet of a kind, where their number is bounded.
const WORDS_OF_EACH: usize = 1 << 15;
/// Longest wait of a capture's end for the packet threads.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most hops that a request names: packets are compared with each.
const MOST_HOPS: usize = 64;

/// A capture in the packet threads.
struct Live {
    remote: Remote,
    request: Arc<CaptureScope>,
}

impl CaptureSource for Live {
    fn names(&self) -> Result<HopNames, NoNames> {
        let names = self.remote.change(|supervisor| Ok(supervisor.names()));
        names.map_err(|error| if error.kind == ErrorKind::Timeout { NoNames::Busy } else { NoNames::Stopping })
    }

    fn end(&mut self) {
        let request = self.request.clone();
        let Ok(taps) = self.remote.call(move |supervisor| supervisor.end_capture(&request)) else { return };
        let until = Instant::now() + PATIENCE;
        // The taps are freed here, not in the packet threads.
        taps.into_iter().for_each(|tap| drop(tap.recv_timeout(until.saturating_duration_since(Instant::now()))));
    }
}

impl Remote {
    /// Begins a capture.
    pub(super) fn begin_capture(&self, request: &api::CaptureRequest) -> Result<Pieces, ApiError> {
        let filter = PacketFilter::asked(&request.filter)?;
        for (what, value) in [("count", request.count), ("duration_ms", request.duration_ms), ("each", request.each.map(u64::from))]
        {
            if value == Some(0) {
                return Err(ApiError::unprocessable(format!("{what} is 0"), "leave it out, or give at least 1"));
            }
        }
        if request.sample == 0 || request.snaplen == 0 {
            return Err(ApiError::unprocessable("sample or snaplen is 0", "leave them out, or give at least 1"));
        }
        // A filter sees packets whole; they are cut behind it.
        let snap = filter.as_ref().map(|_| request.snaplen);
        let limits = CaptureLimits { filter, count: request.count, duration: request.duration_ms.map(Duration::from_millis), snap };
        let asked = request.clone();
        let (request, names, threads) = self.change(move |supervisor| supervisor.plan_capture(&asked))?;
        // From here on it ends when this is dropped.
        let live = Live { remote: self.clone(), request: request.clone() };
        // The supervisor does not wait for the memory.
        let words = request.each.map_or(WORDS, |each| WORDS_OF_EACH.saturating_mul(each as usize).min(WORDS));
        let (taps, readers): (Vec<_>, Vec<_>) = (0..threads).map(|_| pair(&request, words)).unzip();
        let stream = Stream::new(live, request, readers, limits, names);
        self.change(move |supervisor| supervisor.begin_capture(taps))?;
        Ok(Box::new(stream))
    }
}

impl Supervisor {
    /// What a request for a capture names, by number; the capture has its place from now on.
    fn plan_capture(&mut self, request: &api::CaptureRequest) -> Result<(Arc<CaptureScope>, HopNames, usize), SupervisorError> {
        // Also those whose request was given up before they began.
        self.seen.captures.retain(|other| other.strong_count() > 0);
        if self.seen.captures.len() >= MAX_CAPTURES {
            return Err(SupervisorError::Conflict(format!(
                "{MAX_CAPTURES} captures go on, the most at a time; end one, or give one several hops"
            )));
        }
        if request.hops.len() > MOST_HOPS {
            let what = format!("{} hops are too many; name up to {MOST_HOPS}, or none for all", request.hops.len());
            return Err(SupervisorError::Invalid(what));
        }
        let chain = match &request.chain {
            Some(name) => Some(self.chain_number(name).ok_or_else(|| self.no_such("chain", name))?),
            None => None,
        };
        let points = request.hops.iter().map(|hop| self.points(hop)).collect::<Result<Vec<_>, _>>()?;
        let points = points.into_iter().flatten().collect();
        let snap = if request.filter.is_empty() { request.snaplen } else { u16::MAX };
        let planned = Arc::new(CaptureScope { chain, points, every: request.sample, each: request.each, snap, follows: None });
        self.seen.captures.push(Arc::downgrade(&planned));
        Ok((planned, self.names(), self.plane.threads()))
    }

    /// The points of a hop as the command line names it.
    fn points(&self, hop: &str) -> Result<Vec<Point>, SupervisorError> {
        if hop == "drop" {
            return Ok(vec![Point::Dropped]);
        }
        if let Some(port) = hop.strip_prefix("port:") {
            let number = self.port_number(port).ok_or_else(|| self.no_such("port", port))?;
            return Ok(vec![Point::Received(number), Point::Sent(number)]);
        }
        let point: fn(u16) -> Point = match hop.rsplit_once(':') {
            Some((_, "in")) => Point::ToNf,
            Some((_, "out")) => Point::FromNf,
            _ => {
                let what = format!("`{hop}` is no hop; write NF:in, NF:out, port:NAME or drop, such as `nat.0:in`");
                return Err(SupervisorError::Invalid(what));
            }
        };
        let nf = hop.rsplit_once(':').map_or(hop, |(nf, _)| nf);
        Ok(vec![point(self.nf_number(nf).ok_or_else(|| self.no_such("NF", nf))?)])
    }

    /// Gives each packet thread its tap.
    pub(super) fn begin_capture(&mut self, taps: Vec<Tap>) -> Result<(), SupervisorError> {
        for (thread, tap) in taps.into_iter().enumerate() {
            self.plane.send(thread, move |worker| worker.capture(tap));
        }
        Ok(())
    }

    /// As [`Self::begin_capture`], of a capture that follows an NF. Each thread answers with the
    /// order of the first copy that can be its own.
    pub(super) fn begin_following(&self, taps: Vec<Tap>) -> Vec<Receiver<u32>> {
        let begin = |(thread, tap): (usize, Tap)| {
            let (to, from) = channel();
            let act = move |worker: &mut Worker| {
                // Before the thread has its tap, so that none of its copies is older.
                let order = tap.next_order();
                worker.capture(tap);
                let _ = to.send(order);
            };
            self.plane.send(thread, act);
            from
        };
        taps.into_iter().enumerate().map(begin).collect()
    }

    /// Has the packet threads give their taps back.
    pub(super) fn end_capture(&mut self, request: &Arc<CaptureScope>) -> Vec<Receiver<Option<Tap>>> {
        self.seen.captures.retain(|other| !Weak::ptr_eq(other, &Arc::downgrade(request)));
        let end = |thread| {
            let (to, tap) = channel();
            let request = request.clone();
            self.plane.send(thread, move |worker| drop(to.send(worker.end_capture(&request))));
            tap
        };
        (0..self.plane.threads()).map(end).collect()
    }

    pub(super) fn names(&self) -> HopNames {
        let ports = self.ports.iter().enumerate().filter_map(|(i, port)| Some((i as u16, port.as_ref()?.config.name.clone())));
        HopNames {
            nfs: self.nfs.values().map(|nf| (nf.number, nf.name.clone())).collect(),
            chains: self.chains.iter().flatten().map(|chain| (chain.number, chain.name.clone())).collect(),
            ports: ports.collect(),
        }
    }
}
