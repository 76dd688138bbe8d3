//! Another configuration in place of the present one: from a text, from keys that are set, or from
//! the past.
//!
//! All go one way: the whole configuration is made and checked, compared with the present one, and
//! then planned or put in force ([`super::apply`]).

use std::path::Path;
use std::sync::mpsc::Receiver;

use super::apply::ApplyResult;
use super::backend::{Remote, outcome};
use super::history::ConfigSource;
use super::{Supervisor, SupervisorError};
use sluice_api::ApiError;
use sluice_api::change::{Change, RunningConfig, SetKeys, Undo};
use sluice_api::config::Config;
use sluice_api::model::Applied;
use sluice_config::host::{self, Host};
use sluice_config::{edit, fuse, load};

/// A configuration that is to be in force.
struct Revision {
    config: Config,
    source: ConfigSource,
    warnings: Vec<String>,
}

enum Begun {
    Planned(Vec<Change>),
    Applying(Receiver<ApplyResult>),
}

/// Makes groups of fused chains, and finds programs on the host.
fn resolve(config: &mut Config) {
    fuse::expand(config);
    let here = Host::here();
    host::resolve(config, &here);
    fuse::resolve(config, &here);
}

impl Remote {
    /// Plans the configuration of a text, or puts it in force. `file` names the text's source.
    pub(super) fn apply_text(&self, text: &str, file: Option<&str>, dry_run: bool) -> Result<Applied, ApiError> {
        let name = file.unwrap_or("the configuration").to_string();
        let loaded = load::read_text(text, &name).map_err(|errors| ApiError::unprocessable(errors.to_string(), ""))?;
        let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
        let mut config = loaded.config;
        let folder = file.and_then(|f| std::fs::canonicalize(f).ok()).and_then(|f| Some(f.parent()?.to_path_buf()));
        load::anchor(&mut config, folder.as_deref().unwrap_or(Path::new("/")));
        resolve(&mut config);
        self.revise(dry_run, move |_| Ok(Revision { config, source: ConfigSource::Apply(name), warnings }))
    }

    /// The configuration in force, as text.
    pub(super) fn running_text(&self) -> Result<RunningConfig, ApiError> {
        let config = edit::short_text(&self.call(|s| s.base())?)?;
        Ok(RunningConfig { config })
    }

    /// Sets keys of the configuration in force, or plans it.
    pub(super) fn set_keys(&self, set: &SetKeys) -> Result<Applied, ApiError> {
        // The supervisor does not wait until the text is read, unless something changes meanwhile.
        let base = self.call(|s| s.base())?;
        let (revision, keys) = (with_keys(&base, set)?, set.clone());
        self.revise(set.dry_run, move |s| {
            let now = s.base();
            if now == base { Ok(revision) } else { with_keys(&now, &keys) }
        })
    }

    /// Goes back to a former configuration, or plans it.
    pub(super) fn go_back(&self, undo: Undo) -> Result<Applied, ApiError> {
        let (number, text) = self.change(move |s| s.former(undo.to))?;
        let source = ConfigSource::Undo(number);
        let loaded = load::read_text(&text, &source.to_string())?;
        let mut config = loaded.config;
        resolve(&mut config);
        // It was in force once: what was probably unintended was reported then.
        self.revise(undo.dry_run, move |_| Ok(Revision { config, source, warnings: Vec::new() }))
    }

    /// Plans a configuration, or puts it in force. `make` makes it, on the supervisor's thread.
    fn revise(
        &self,
        dry_run: bool,
        make: impl FnOnce(&Supervisor) -> Result<Revision, SupervisorError> + Send + 'static,
    ) -> Result<Applied, ApiError> {
        let (begun, warnings) = self.change(move |s| {
            let Revision { config, source, warnings } = make(s)?;
            let begun = match dry_run {
                true => Begun::Planned(s.described(&config)?),
                false => Begun::Applying(s.begin_apply(config, source)?),
            };
            Ok((begun, warnings))
        })?;
        let changes = match begun {
            Begun::Planned(changes) => changes,
            Begun::Applying(told) => outcome(&told, "the configuration takes long until it is applied")?,
        };
        Ok(Applied { dry_run, changes, warnings })
    }
}

impl Supervisor {
    /// What a configuration would change.
    fn described(&self, wanted: &Config) -> Result<Vec<Change>, SupervisorError> {
        let changes = self.plan(wanted)?;
        Ok(changes.iter().map(|change| sluice_config::changes::describe(change, &self.config)).collect())
    }

    /// The configuration in force, without what placements have added.
    fn base(&self) -> Config {
        self.promises.base(&self.config)
    }

    /// The number and the text of a former configuration; by default the last one.
    fn former(&self, number: Option<u64>) -> Result<(u64, String), SupervisorError> {
        self.changes.history.get(number).ok_or_else(|| {
            SupervisorError::NoSuch(match number {
                Some(number) => {
                    format!("there is no former configuration {number}; `sluice undo --list` shows those that are kept")
                }
                None => "there is nothing to undo: no configuration was applied and no key set since the start, as far as is kept"
                    .into(),
            })
        })
    }
}

/// A configuration with some keys set.
fn with_keys(base: &Config, set: &SetKeys) -> Result<Revision, SupervisorError> {
    let loaded = edit::with_keys(base, set).map_err(|errors| SupervisorError::Invalid(errors.to_string()))?;
    let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
    let mut config = loaded.config;
    resolve(&mut config);
    // What the text cannot say: how many instances a service has once it runs by itself again.
    for service in config.services.iter_mut().filter(|service| service.instances == 0) {
        let known = base.services.iter().find(|known| known.name == service.name);
        service.apart = known.map_or(service.apart, |known| known.apart.max(service.apart));
    }
    let name = set.name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
    let keys: Vec<&str> = set.keys.keys().map(String::as_str).collect();
    let source = ConfigSource::Set(format!("{}{name} {}", set.kind, keys.join(" ")));
    Ok(Revision { config, source, warnings })
}
