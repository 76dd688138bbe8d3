//! Dynamic resource allocation (DRA) of a node's cores and cache ways to pods that are NFs.
//!
//! # Problem
//! A pod that is an NF needs a socket of the node's `sluiced`, and a name that is there for it.
//! The scheduler has to know that a node has cores for NFs and ways of the last-level cache, and
//! what of them is taken. A pod that no plan holds must not attach.
//!
//! # Approach
//! - The node has one device, in a `ResourceSlice`, with the capacities `cores` and `ways`. A claim
//!   takes a part: one core and no ways if it says nothing else ([`Host`] has the numbers).
//! - Before the kubelet starts a pod, it asks to prepare the pod's claims. The driver reads the
//!   claim and its pod, and asks for the pod's [`Place`] in the plan. Without one, the pod does not
//!   start, and its events say why.
//! - What the container gets is a CDI file: the folder with the socket of its SLO, and the two
//!   variables by which an NF attaches as an instance of it.
//! - Claims that are prepared are in a file. So kubelet and driver may be restarted at any time:
//!   what is prepared stays so, and is answered without plan and API server.
//!
//! # The name of the socket
//! The kubelet names the server by the path of the socket for registrations, with `%2F` for each
//! `/`, in the header `:authority`. HTTP allows a `%` there in front of an `@` alone, and the HTTP
//! library refuses it elsewhere. So the name of that socket has an `@`, and no `/` comes behind it.
//!
//! # Limits
//! A pod is one NF, and has a claim of its own. The plan counts, not the claim: a claim may take
//! less than the plan gives the instance. It needs Kubernetes 1.34 with the feature gate
//! DRAConsumableCapacity; without, nothing is published.

mod cdi;
mod checkpoint;
mod claim;
mod host;
pub mod kubelet;
mod place;
mod plugin;
mod publish;
mod registration;
mod request;
mod settings;
mod slice;
mod socket;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kube::Client;
use sluice_host::file::Lock;
use tokio::sync::watch;

pub use checkpoint::CheckpointError;
pub use claim::ClaimError;
pub use host::{Host, HostError};
pub use place::{Place, Places};
pub use plugin::PrepareError;
pub use settings::{DRIVER, Settings};

use kubelet::dra::dra_plugin_server::DraPluginServer;
use kubelet::registration::registration_server::RegistrationServer;

/// Why the driver does not run.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("cannot use {path}: {source}")]
    Path { path: PathBuf, source: io::Error },
    #[error("another driver runs on this node: it has the lock of {0}")]
    Runs(PathBuf),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// Runs the driver until the future is dropped. What is prepared stays.
///
/// `host` is what the node has; nothing is published before that is known.
///
/// # Errors
/// [`DriverError`].
pub async fn run(
    settings: Settings,
    client: Client,
    places: Arc<impl Places>,
    host: watch::Receiver<Option<Host>>,
) -> Result<(), DriverError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| DriverError::Path { path, source }
    };
    let folder = settings.folder();
    fs::DirBuilder::new().recursive(true).mode(0o750).create(&folder).map_err(at(&folder))?;
    let _lock = File::open(&folder).and_then(Lock::take).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => DriverError::Runs(folder.clone()),
        _ => at(&folder)(error),
    })?;
    let plugin = plugin::Plugin {
        node: settings.node.clone(),
        client: client.clone(),
        places,
        cdi: cdi::Cdi { folder: settings.cdi.clone(), attach: settings.attach.clone() },
        checkpoint: Mutex::new(checkpoint::Checkpoint::open(&folder.join("claims.json"))?),
    };
    plugin.restore().map_err(at(&settings.cdi))?;
    let (endpoint, registration) = (settings.endpoint(), settings.registration());
    let registrar = registration::Registrar { endpoint: endpoint.clone() };
    tokio::select! {
        // In this order: the kubelet may come as soon as it finds the second socket.
        biased;
        ended = socket::serve(&endpoint, DraPluginServer::new(plugin)) => ended.map_err(at(&endpoint)),
        ended = socket::serve(&registration, RegistrationServer::new(registrar)) => ended.map_err(at(&registration)),
        never = publish::publish(client, &settings.node, host) => match never {},
    }
}
