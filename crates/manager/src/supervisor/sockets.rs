//! The sockets by which NFs attach: that of the daemon, and one for each SLO whose NFs attach.
//!
//! Anybody may reach the daemon's socket, so there the user decides. A container has whatever user
//! it is given, so the socket of an SLO is in a folder that only root enters, and the right to
//! attach is a mount of that folder: `attach/SLO` in the runtime directory.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sluice_host::attach::{AttachError, AttachEvent, Listener};

/// Name of each socket.
pub(super) const SOCKET: &str = "nf.sock";
/// The folder of the SLOs' folders, in the runtime directory.
const ATTACH: &str = "attach";

pub(super) struct Sockets {
    pub(super) main: Listener,
    /// By the name of the SLO.
    pub(super) of_slos: BTreeMap<String, Listener>,
    /// Whether a socket of an SLO has something to do.
    pub(super) are_called: bool,
}

/// The folder of all SLOs, and that of one.
pub(super) fn folders(runtime_dir: &Path, slo: &str) -> [PathBuf; 2] {
    let all = runtime_dir.join(ATTACH);
    let own = all.join(slo);
    [all, own]
}

/// Makes the folder of an SLO's socket, or takes the one that is there: a container engine may have
/// made it for a mount.
pub(super) fn make_folders([all, own]: &[PathBuf; 2]) -> Result<(), AttachError> {
    // Others enter the second one through a mount alone.
    for (path, mode) in [(all, 0o700), (own, 0o755)] {
        let failed = |source| AttachError::System { path: path.clone(), source };
        match std::fs::DirBuilder::new().mode(mode).create(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?,
        }
    }
    Ok(())
}

impl Sockets {
    pub(super) fn new(main: Listener) -> Self {
        Self { main, of_slos: BTreeMap::new(), are_called: false }
    }

    /// Accepts connections and reads hellos, each with the SLO by whose socket it came. Never
    /// blocks.
    pub(super) fn serve(&mut self, now_ns: u64) -> Vec<(Option<String>, AttachEvent)> {
        let mut all = Vec::new();
        let mut take = |slo: Option<&String>, listener: &mut Listener| match listener.serve(now_ns) {
            Ok(events) => all.extend(events.into_iter().map(|event| (slo.cloned(), event))),
            Err(error) => error!("the NF socket {} is broken: {error}", listener.path().display()),
        };
        take(None, &mut self.main);
        let is_due = self.of_slos.values().filter_map(Listener::next_deadline_ns).any(|deadline| now_ns >= deadline);
        if std::mem::take(&mut self.are_called) || is_due {
            self.of_slos.iter_mut().for_each(|(slo, listener)| take(Some(slo), listener));
        }
        all
    }

    /// Latest time of the next [`Sockets::serve`]; none if only the descriptors matter.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        std::iter::once(&self.main).chain(self.of_slos.values()).filter_map(Listener::next_deadline_ns).min()
    }

    /// Makes those anew that were removed, and returns whether there were any.
    pub(super) fn keep(&mut self, runtime_dir: &Path) -> Result<bool, AttachError> {
        let mut is_made = self.main.keep()?;
        for (slo, listener) in &mut self.of_slos {
            make_folders(&folders(runtime_dir, slo))?;
            is_made |= listener.keep()?;
        }
        Ok(is_made)
    }
}
