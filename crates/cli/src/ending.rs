//! How a program ends: its exit code, and one line on standard error.
//!
//! Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 the daemon is degraded. A closed
//! standard output (`sluice stats --watch | head`) ends the program quietly.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use sluice_api::client::ClientError;
use sluice_config::ConfigErrors;
use sluice_host::notice::in_one_line;

use crate::usage::{Degraded, Usage};

/// Runs a command with a buffered standard output, prints its error, and returns the exit code.
pub fn after(command: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>) -> ExitCode {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let ended = command(&mut out).and_then(|()| Ok(out.flush()?));
    let Err(error) = ended else { return ExitCode::SUCCESS };
    if is_broken_pipe(&error) {
        // Nothing can be written any more: discard the buffer.
        let _ = out.into_parts();
        return ExitCode::SUCCESS;
    }
    // Output precedes the error.
    let _ = out.flush();
    if error.is::<Degraded>() {
        return ExitCode::from(3);
    }
    let mut err = std::io::stderr().lock();
    let _ = match error.downcast_ref::<ConfigErrors>() {
        // Each finding begins with its position in the file, where editors expect it.
        Some(errors) => writeln!(err, "{errors}\nsluice: {}", errors.count()),
        None => writeln!(err, "sluice: {}", in_one_line(error.as_ref())),
    };
    if error.is::<Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    !error.is::<ClientError>()
        && error.chain().any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe))
}
