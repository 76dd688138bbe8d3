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

    /// Notes what became of a caller that came by the socket of an SLO.
    pub(super) fn answered(&mut self, slo: Option<&str>, is_admitted: bool, now_ns: u64) {
        let listener = slo.and_then(|slo| self.of_slos.get_mut(slo));
        listener.into_iter().for_each(|listener| listener.answered(is_admitted, now_ns));
    }

    /// Latest time of the next [`Sockets::serve`]; none if only the descriptors matter.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        std::iter::once(&self.main).chain(self.of_slos.values()).filter_map(Listener::next_deadline_ns).min()
    }

    /// Makes those anew that were removed. Returns whether there were any, and the first error: one
    /// that cannot be made keeps back no other.
    pub(super) fn keep(&mut self, runtime_dir: &Path) -> (bool, Option<String>) {
        let (mut is_made, mut trouble) = (false, None);
        let mut note = |kept: Result<bool, String>| match kept {
            Ok(made) => is_made |= made,
            Err(error) => {
                trouble.get_or_insert(error);
            }
        };
        note(self.main.keep().map_err(|error| error.to_string()));
        for (slo, listener) in &mut self.of_slos {
            let kept = make_folders(&folders(runtime_dir, slo)).and_then(|()| listener.keep());
            note(kept.map_err(|error| of_slo(slo, &error)));
        }
        (is_made, trouble)
    }
}

/// An error with the socket of an SLO.
pub(super) fn of_slo(slo: &str, error: &AttachError) -> String {
    format!("the SLO {slo} has no socket: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_file_in_the_place_of_a_socket_keeps_back_no_other_slo() {
        let runtime_dir = tempfile::tempdir().unwrap();
        let dir = runtime_dir.path();
        let mut sockets = Sockets::new(Listener::bind(&dir.join(SOCKET), 0o666).unwrap());
        let path = |slo: &str| folders(dir, slo)[1].join(SOCKET);
        for slo in ["acme", "rogue"] {
            make_folders(&folders(dir, slo)).unwrap();
            sockets.of_slos.insert(slo.into(), Listener::bind_from(&folders(dir, slo)[0], &path(slo), 0o666).unwrap());
        }
        assert_eq!(sockets.keep(dir), (false, None));
        for slo in ["acme", "rogue"] {
            std::fs::remove_file(path(slo)).unwrap();
        }
        std::fs::write(path("acme"), "its own").unwrap();
        let (is_made, trouble) = sockets.keep(dir);
        let trouble = trouble.unwrap();
        assert!(is_made && trouble.contains("the SLO acme") && trouble.contains("is no socket"), "{trouble}");
        assert!(path("rogue").exists());
        std::fs::remove_file(path("acme")).unwrap();
        assert_eq!(sockets.keep(dir), (true, None));
        assert_eq!(sockets.keep(dir), (false, None));
    }
}
