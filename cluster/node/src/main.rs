//! `sluice-node`: has a server's daemon keep the plan of its node, and reports how it is kept.
//!
//! It runs beside `sluiced` and talks to its control socket. Without the API server it goes on with
//! the last plan that the daemon has taken over, which is in a file.

mod agent;
mod api;
mod args;
mod daemon;
mod dra;
mod lease;
mod merge;
mod news;
mod profile;
mod pulse;
mod report;
mod run;
mod size;
mod turn;

use clap::Parser;

fn main() -> anyhow::Result<()> {
    let args = args::Args::parse();
    if let (Some(what), Some(file)) = (args.probe, &args.beat) {
        return pulse::probe(file, what);
    }
    let filter = tracing_subscriber::EnvFilter::try_from_env("SLUICE_LOG").unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run::run(args))
}
