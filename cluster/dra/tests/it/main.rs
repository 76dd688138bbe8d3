//! The driver, with the kubelet and the API server on the other side.

#[path = "../../../../crates/host/src/skip.rs"]
mod skip;

mod claims;
mod kubelet;
mod objects;
mod plane;
mod registering;
mod slices;

use std::time::{Duration, Instant};

/// Longest wait for something that has to come.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is so.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let (end, what, at) = (Instant::now() + PATIENCE, what.to_owned(), std::panic::Location::caller());
    async move {
        while !is_so() {
            assert!(Instant::now() < end, "{at}: not so in {} s: {what}", PATIENCE.as_secs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
