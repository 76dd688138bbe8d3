//! Files and pipes that streams of the daemon are written to, until a signal comes.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Where a stream goes.
pub enum Output<'a> {
    Pipe(&'a mut dyn Write),
    /// It is made when the stream has begun.
    File(PathBuf, Option<File>),
}

impl Output<'_> {
    /// Writes whole parts of the stream.
    ///
    /// # Errors
    /// A closed pipe is the plain error; any other names the file.
    pub fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Pipe(out) => {
                out.write_all(bytes)?;
                // What looks on waits for it.
                out.flush()?;
            }
            Self::File(path, file) => {
                let file = match file {
                    Some(file) => file,
                    // Not easier to read than the traffic.
                    None => {
                        let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(&*path);
                        file.insert(made.with_context(|| format!("cannot write {}", path.display()))?)
                    }
                };
                file.write_all(bytes).map_err(|error| match error.kind() {
                    io::ErrorKind::BrokenPipe => error.into(),
                    _ => anyhow::Error::from(error).context(format!("cannot write {}", path.display())),
                })?;
            }
        }
        Ok(())
    }
}

/// Becomes true at a signal to stop.
///
/// # Errors
/// The system's.
pub fn stops() -> anyhow::Result<Arc<AtomicBool>> {
    let stops = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // A second signal ends it at once, where the output takes no more.
        signal_hook::flag::register_conditional_default(signal, stops.clone()).context("cannot wait for signals")?;
        signal_hook::flag::register(signal, stops.clone()).context("cannot wait for signals")?;
    }
    Ok(stops)
}
