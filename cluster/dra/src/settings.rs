//! Where things are on the node.

use std::path::PathBuf;

/// Name of the driver.
pub const DRIVER: &str = "sluice.dev";

/// Where things are on the node.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the node.
    pub node: String,
    /// The kubelet's folder, usually `/var/lib/kubelet`: the same path as on the host.
    pub kubelet: PathBuf,
    /// Folder of CDI files that the container runtime reads, usually `/var/run/cdi`.
    pub cdi: PathBuf,
    /// The daemon's folder `attach`, with a folder for each SLO whose NFs attach: the same path as
    /// on the host.
    pub attach: PathBuf,
}

impl Settings {
    /// The folder with the socket of an SLO.
    pub fn of_slo(&self, slo: &str) -> PathBuf {
        self.attach.join(slo)
    }

    /// Folder of the driver.
    pub(crate) fn folder(&self) -> PathBuf {
        self.kubelet.join("plugins").join(DRIVER)
    }

    /// Socket of the driver.
    pub fn endpoint(&self) -> PathBuf {
        self.folder().join("dra.sock")
    }

    /// Socket by which the kubelet finds the driver.
    pub fn registration(&self) -> PathBuf {
        self.kubelet.join("plugins_registry").join(format!("{DRIVER}@reg.sock"))
    }
}
