//! Reading a file again on SIGHUP.
//!
//! A separate thread reads and parses the file; the NF takes the result at its next tick, so that
//! no packet waits for the file. An invalid file changes nothing, and its error goes to standard
//! error.

use std::fmt::Display;
use std::io;
use std::sync::mpsc::{Receiver, sync_channel};

use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

/// Results that were read and not yet taken.
#[derive(Debug)]
pub struct Reload<T> {
    fresh: Receiver<T>,
}

impl<T: Send + 'static> Reload<T> {
    /// Calls `load` at every SIGHUP from now on.
    pub fn on_hangup<E: Display>(load: impl Fn() -> Result<T, E> + Send + 'static) -> io::Result<Self> {
        let mut signals = Signals::new([SIGHUP])?;
        let (sender, fresh) = sync_channel(1);
        std::thread::Builder::new().name("reload".into()).spawn(move || {
            for _ in signals.forever() {
                match load() {
                    Ok(value) => {
                        if sender.send(value).is_err() {
                            return;
                        }
                        eprintln!("read again on SIGHUP");
                    }
                    Err(e) => eprintln!("kept as it was, because of an error: {e}"),
                }
            }
        })?;
        Ok(Self { fresh })
    }

    /// The next result, if there is one. Never blocks.
    pub fn take(&self) -> Option<T> {
        self.fresh.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_hangup_loads_and_an_error_changes_nothing() {
        let calls = AtomicU32::new(0);
        let reload = Reload::on_hangup(move || match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Err("first time is an error"),
            n => Ok(n),
        })
        .unwrap();
        assert_eq!(reload.take(), None);
        signal_hook::low_level::raise(SIGHUP).unwrap();
        // The second signal may merge with the first one until the thread has run: raise it
        // repeatedly.
        let got = loop {
            signal_hook::low_level::raise(SIGHUP).unwrap();
            match reload.take() {
                Some(n) => break n,
                None => std::thread::yield_now(),
            }
        };
        assert!(got >= 1);
    }
}
