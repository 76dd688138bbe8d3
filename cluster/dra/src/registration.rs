//! How the kubelet learns of the driver: it connects to each socket in a folder, and asks.

use std::path::PathBuf;

use tonic::{Request, Response, Status};
use tracing::{info, warn};

use crate::kubelet::registration::registration_server::Registration;
use crate::kubelet::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use crate::settings::DRIVER;

/// The kind of plugin, as the kubelet names it.
const KIND: &str = "DRAPlugin";
/// The service that the driver has, as the kubelet names it.
const SERVICE: &str = "v1.DRAPlugin";

/// Answers the kubelet's plugin watcher.
#[derive(Debug, Clone)]
pub(crate) struct Registrar {
    /// Socket of the driver.
    pub(crate) endpoint: PathBuf,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: KIND.into(),
            name: DRIVER.into(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec![SERVICE.into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            info!("the kubelet has registered the driver {DRIVER}");
        } else {
            warn!("the kubelet does not register the driver {DRIVER}: {}; it needs Kubernetes 1.34 or newer", status.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
