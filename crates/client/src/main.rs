//! `sluice`: the operator's client of sluiced.
//!
//! Each command is one or two requests to the control socket and a way to show the answer. Exit codes: 0 done, 1 failed or refused,
//! 2 wrong usage, and of `sluice status` 3: the daemon is degraded. Output that nobody reads any
//! more (`sluice stats --watch | head`) ends the program quietly.

mod args;
mod commands;
mod doctor;
#[cfg(test)]
mod documents;
mod estimate;
mod number;
mod pack;
mod plan;
mod profile;
mod show;
mod simulate;
mod slo;
mod table;
mod top;
mod usage;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use sluice_config::ConfigErrors;
use sluice_host::notice::in_one_line;
use sluice_host::processes::helper;

fn main() -> ExitCode {
    if let Some(code) = helper::take_over() {
        return code;
    }
    let cli = args::Cli::parse();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let ended = commands::run(cli, &mut out).and_then(|()| Ok(out.flush()?));
    let Err(error) = ended else { return ExitCode::SUCCESS };
    if commands::is_broken_pipe(&error) {
        // What is still in the buffer has nobody to go to.
        let _ = out.into_parts();
        return ExitCode::SUCCESS;
    }
    // What was said before the error comes before it.
    let _ = out.flush();
    if error.is::<usage::Degraded>() {
        return ExitCode::from(3);
    }
    let mut err = std::io::stderr().lock();
    let _ = match error.downcast_ref::<ConfigErrors>() {
        // Each finding begins with its place in the file, where editors look for it.
        Some(errors) => writeln!(err, "{errors}\nsluice: {}", errors.count()),
        None => writeln!(err, "sluice: {}", in_one_line(error.as_ref())),
    };
    if usage::is_usage(&error) { ExitCode::from(2) } else { ExitCode::FAILURE }
}
