//! CDI files: what the container runtime adds to the container of an NF.
//!
//! A file has one device, named as the claim, so a runtime that caches files never takes an old one
//! for a new one. It adds the folder with the socket of the SLO, and the two variables by which an
//! NF finds its daemon and its name. It is the folder and not the socket, because a daemon that is
//! restarted makes another socket there.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;
use sluice_host::container::SOCKET;
use sluice_host::file::replace;
use sluice_shm::handshake::{ENV_NF, ENV_SOCKET};

/// Vendor and class of the devices.
const KIND: &str = "sluice.dev/nf";
/// The first version with names that begin with a digit, as a UID may.
const VERSION: &str = "0.5.0";

/// The identifier of a claim's device, by which the kubelet names it to the runtime.
pub(crate) fn id(uid: &str) -> String {
    format!("{KIND}={uid}")
}

/// The files of this driver.
#[derive(Debug)]
pub(crate) struct Cdi {
    /// Folder that the runtime reads.
    pub(crate) folder: PathBuf,
    /// The daemon's folder `attach`.
    pub(crate) attach: PathBuf,
}

impl Cdi {
    fn path(&self, uid: &str) -> PathBuf {
        self.folder.join(format!("{}_{uid}.json", KIND.replace('/', "-")))
    }

    /// Writes the file of a claim, unless it is there.
    pub(crate) fn write(&self, uid: &str, slo: &str, nf: &str) -> io::Result<()> {
        let options = ["bind", "ro", "nosuid", "nodev", "noexec"];
        let edits = json!({
            "env": [format!("{ENV_SOCKET}={SOCKET}"), format!("{ENV_NF}={nf}")],
            "mounts": [{"hostPath": self.attach.join(slo), "containerPath": Path::new(SOCKET).parent(), "options": options}],
        });
        let text = json!({"cdiVersion": VERSION, "kind": KIND, "devices": [{"name": uid, "containerEdits": edits}]}).to_string();
        let path = self.path(uid);
        if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
            return Ok(());
        }
        std::fs::create_dir_all(&self.folder)?;
        replace(&path, text.as_bytes())
    }

    /// Removes the file of a claim, if it is there.
    pub(crate) fn remove(&self, uid: &str) -> io::Result<()> {
        match std::fs::remove_file(self.path(uid)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
