//! The search for fewer nodes, in a thread of its own: it takes seconds, and rounds do not wait.
//!
//! One runs at a time. What it finds is moves, which the next rounds carry out as far as the world
//! is still as it was; so a search whose answer comes late, or never, does no harm.

use std::time::Duration;

use sluice_cluster_plan::search::due;
use sluice_cluster_plan::{Better, Memo, World};
use tokio::sync::oneshot::{Receiver, channel};
use tracing::{debug, warn};

/// Time that the solver has for the nodes of each shape.
const LIMIT: Duration = Duration::from_secs(20);

pub struct Optimiser {
    /// Part of the nodes in use that may be saved before SLOs move; 0 if none do.
    gap: f64,
    under_way: Option<Receiver<Option<Better>>>,
}

impl Optimiser {
    pub fn new(gap: f64) -> Self {
        Self { gap, under_way: None }
    }

    /// Begins a search, if one is due. Called after a round that changes nothing.
    pub fn start(&mut self, world: &World, memo: &mut Memo, now: Duration) {
        if self.gap <= 0.0 || self.under_way.is_some() {
            return;
        }
        let Some(search) = due(world, memo, now) else { return };
        let (gap, (answer, found)) = (self.gap, channel());
        let run = move || {
            // Nobody waits for it when the operator ends.
            let _ = answer.send(search.run(gap, LIMIT));
        };
        // A thread of tokio's would keep the operator from ending.
        match std::thread::Builder::new().name("optimiser".into()).spawn(run) {
            Ok(_) => self.under_way = Some(found),
            Err(error) => warn!("no search for fewer nodes: the system gives no thread: {error}"),
        }
    }

    /// Waits for what a search has found; for ever, if there is none.
    pub async fn next(&mut self) -> Option<Better> {
        let Some(found) = &mut self.under_way else { return std::future::pending().await };
        let found = found.await.ok().flatten();
        self.under_way = None;
        if found.is_none() {
            debug!("a search has found no moves that free a node");
        }
        found
    }

    /// When a search may follow the one before, if that is in the future.
    pub fn deadline(&self, memo: &Memo, now: Duration) -> Option<Duration> {
        memo.next_search().filter(|end| *end > now && self.under_way.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_found_comes_once_and_a_thread_that_dies_is_no_end() {
        let mut optimiser = Optimiser::new(0.1);
        let waits = |optimiser: &mut Optimiser| futures::FutureExt::now_or_never(optimiser.next()).is_none();
        assert!(waits(&mut optimiser), "there is no search");
        let (answer, found) = channel();
        optimiser.under_way = Some(found);
        assert!(waits(&mut optimiser) && optimiser.under_way.is_some(), "a wait that is given up loses nothing");
        answer.send(Some(Better::default())).unwrap();
        assert!(optimiser.next().await.is_some() && waits(&mut optimiser));
        let (answer, found) = channel();
        optimiser.under_way = Some(found);
        drop(answer);
        assert!(optimiser.next().await.is_none() && waits(&mut optimiser));
    }
}
