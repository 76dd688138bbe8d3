//! The daemon: `sluiced CONFIG`. It joins the manager and the kinds of ports.

// These macros panic when the stream is closed; the log does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod log;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sluice_api::config::Config;
use sluice_config::host::Host;
use sluice_config::{ConfigErrors, Problem, load};
use sluice_host::notice::in_one_line;
use sluice_host::process;
use sluice_host::processes::helper;
use sluice_host::record::Record;
use sluice_host::static_names;
use sluice_host::user::look_up_group;
use sluice_manager::control::{Backend, server};
use sluice_manager::otel::{self, MetricsPusher, PushCounts, PushSettings};
use sluice_manager::page::{self, PageListener, PageServer};
use sluice_manager::supervisor::{Supervisor, SupervisorError};
use sluice_manager::{features, levels};
use tracing::{error, info, warn};
use tracing_subscriber::filter::Targets;

/// Runs chains of network functions: packets go from ports through NF processes to ports.
#[derive(Debug, Parser)]
#[command(
    name = "sluiced",
    version,
    after_help = "\
Stays in the foreground and notifies systemd when it is ready (Type=notify). SIGTERM and SIGINT stop it: packets inside are let out
first, and everything that it made on the host is removed. SIGHUP reads CONFIG again and changes what differs while packets flow.

Examples:
  sluice check sluice.toml     say what is wrong with a configuration, without starting anything
  sluiced sluice.toml          run it
  sluice top                   watch it, from another terminal
  sluiced --log json --log-level warn,sluice_sdn=debug sluice.toml"
)]
struct Args {
    /// The configuration file (`sluice check --explain` describes its keys).
    config: PathBuf,
    /// Print as JSON what this build or host cannot do of it, for `sluice check`, and start nothing
    #[arg(long, hide = true)]
    ports: bool,
    /// The format of log lines
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    log: log::Format,
    /// The least level that is logged: error, warn, info, debug, trace or off, or by module:
    /// warn,sluice_sdn=debug
    #[arg(long, value_name = "LEVEL", env = "SLUICE_LOG", default_value = "info", value_parser = log::levels)]
    log_level: Targets,
}

fn main() -> ExitCode {
    if let Some(code) = helper::take_over() {
        return code;
    }
    static_names::use_built_in();
    let args = Args::parse();
    let levels = log::start(args.log, args.log_level.clone());
    match run(&args, levels) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            match error.downcast_ref::<ConfigErrors>() {
                Some(errors) => {
                    errors.problems.iter().for_each(|problem| match problem.is_error() {
                        true => error!(target: log::CONFIG, "{problem}"),
                        false => warn!(target: log::CONFIG, "{problem}"),
                    });
                    error!("{}: nothing was started", errors.count());
                }
                None => error!("{}", in_one_line(error.as_ref())),
            }
            ExitCode::FAILURE
        }
    }
}

fn problems(config: &Config) -> Vec<Problem> {
    let mut found = sluice_ports::problems(config);
    found.extend(features::problems(config));
    found.extend(page::problems(config));
    found
}

fn run(args: &Args, levels: log::Levels) -> anyhow::Result<()> {
    if args.ports {
        let found = problems(&load::read(&args.config)?.config);
        return Ok(serde_json::to_writer(std::io::stdout(), &found)?);
    }
    supported()?;
    let config = configuration(&args.config)?;
    levels.set(config.manager.log_level.as_deref());
    levels::on_change(move |wanted| levels.set(wanted));
    raise_open_files(&config)?;
    let listener = page::bind(&config.page)?;
    let group = config.control.group.as_deref().map(look_up_group).transpose()?;
    let pushing = PushSettings::of(&config);
    let (mut record, cleaned) = Record::open(&config.manager.runtime_dir, process::Proc::default())?;
    if !cleaned.is_nothing() {
        info!("{cleaned}");
    }
    let socket = config.manager.runtime_dir.join("control.sock");
    record.made(sluice_host::record::Thing::Socket, &socket)?;
    // Signals are caught before the first NF starts, so that an early one leaves no NF behind.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let kinds = port_kinds(&config);
    let supervisor = match Supervisor::start(config, Some(args.config.clone()), kinds, record, &stop) {
        Err(interrupted @ SupervisorError::Interrupted) => {
            info!("{interrupted}");
            return Ok(());
        }
        started => started?,
    };
    let remote = supervisor.remote();
    let served = match serve(&socket, group, Arc::new(remote.clone()), listener, pushing.zip(supervisor.pushes())) {
        Ok(served) => served,
        Err(error) => {
            remote_quit(supervisor);
            return Err(error);
        }
    };
    let (handle, path) = (signals.handle(), args.config.clone());
    let watcher = std::thread::Builder::new().name("sluice-signals".into()).spawn(move || {
        for signal in signals.forever() {
            if signal != SIGHUP {
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
                remote.quit();
                return;
            }
            reload(&remote, &path);
        }
    })?;
    announce(&args.config, &socket);
    supervisor.run(|| served.stop());
    handle.close();
    let _ = watcher.join();
    info!("stopped");
    Ok(())
}

fn port_kinds(config: &Config) -> Arc<sluice_ports::All> {
    let kinds = Arc::new(sluice_ports::All::default());
    if config.openflow.controller.is_some() {
        // It sends packets, too.
        kinds.mix();
    }
    kinds
}

/// Says that packets can flow: in the log, and to systemd.
fn announce(config: &Path, socket: &Path) {
    let (version, config, socket) = (env!("CARGO_PKG_VERSION"), config.display(), socket.display());
    info!("ready; version {version}, configuration {config}; `sluice --socket {socket} status` shows its state");
    // It is no error not to run under systemd.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
}

/// The configuration in a file; its warnings are logged.
fn configuration(file: &Path) -> anyhow::Result<Config> {
    let loaded = load::read_for(file, &Host::here())?.accept(problems)?;
    for warning in &loaded.warnings {
        warn!(target: log::CONFIG, "{warning}");
    }
    Ok(loaded.config)
}

/// What is served: the control API and the web page; and what is pushed.
struct Served {
    server: server::Server,
    page: PageServer,
    pusher: Option<MetricsPusher>,
}

impl Served {
    fn stop(self) {
        self.pusher.into_iter().for_each(MetricsPusher::stop);
        // Its streams would hold up the end of the other.
        self.page.stop();
        self.server.stop();
    }
}

/// Serves the control API, and the web page beside it and at its listener; and starts to push.
fn serve(
    socket: &Path,
    group: Option<u32>,
    backend: Arc<dyn Backend>,
    listener: Option<PageListener>,
    pushing: Option<(PushSettings, Arc<PushCounts>)>,
) -> anyhow::Result<Served> {
    let page = PageServer::start(backend.clone(), listener)?;
    let pusher = pushing.map(|(settings, counts)| otel::start(settings, counts, backend.clone())).transpose()?;
    let server = server::serve_with(socket, group, backend, server::Limits::default(), page.onto())?;
    if let Some(url) = page.url() {
        info!("the page is at {url}");
    }
    Ok(Served { server, page, pusher })
}

/// Raises the limit of open files as far as this process may, and warns if the NFs need more.
fn raise_open_files(config: &Config) -> anyhow::Result<()> {
    let files_of = |nfs: u64| 1_024 + process::NOFILE_OF_NF * nfs;
    let may = process::raise_nofile(files_of(config.manager.max_nfs.into()))?;
    let nfs: u64 = config.services.iter().map(|service| u64::from(service.most_instances())).sum();
    if may < files_of(nfs) {
        warn!(
            "warning: {nfs} NFs need {} open files, and this process may have {may}; raise the limit (LimitNOFILE= of the \
             unit, ulimit -Hn), or start fewer instances",
            files_of(nfs)
        );
    }
    Ok(())
}

fn remote_quit(mut supervisor: Supervisor) {
    supervisor.quit();
    supervisor.run(|| ());
}

/// Applies the configuration file again. Errors in it are logged and change nothing.
fn reload(remote: &dyn Backend, path: &Path) {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            error!("cannot read {}: {error}", path.display());
            return;
        }
    };
    match remote.apply(&text, path.to_str(), false) {
        // What it changes, the supervisor logs.
        Ok(applied) => applied.warnings.iter().for_each(|warning| warn!(target: log::CONFIG, "{warning}")),
        Err(error) => error!("{error}"),
    }
}

/// Fails if this processor cannot run the packet path.
fn supported() -> anyhow::Result<()> {
    #[cfg(target_arch = "x86_64")]
    if !(std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("bmi2")) {
        anyhow::bail!(
            "this processor lacks AVX2 or BMI2, which this build needs; build with RUSTFLAGS='-C target-cpu=native' on it"
        );
    }
    Ok(())
}
