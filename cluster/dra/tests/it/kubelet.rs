//! The kubelet's side: a folder as the kubelet has it, and its calls.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use serde_json::Value;
use sluice_dra::kubelet::dra::dra_plugin_client::DraPluginClient;
use sluice_dra::kubelet::dra::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use sluice_dra::{DriverError, Host, Place, Places, Settings, run};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

use crate::until;

/// A plan: places by the name of the pod.
#[derive(Clone, Default)]
pub struct Plan(Arc<Mutex<BTreeMap<String, Place>>>);

impl Plan {
    pub fn put(&self, pod: &str, nf: &str, instance: &str, cores: u32, ways: u32) {
        let slo = instance.split('/').next().unwrap().into();
        let place = Place { nf: nf.into(), slo, instance: instance.into(), cores, ways };
        self.0.lock().unwrap().insert(pod.into(), place);
    }

    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }
}

impl Places for Plan {
    fn place(&self, pod: &Pod) -> Result<Place, String> {
        let name = pod.metadata.name.as_deref().unwrap();
        self.0.lock().unwrap().get(name).cloned().ok_or_else(|| "no SLO of it is admitted; see `kubectl get slo`".into())
    }
}

/// Pool, device, requests and CDI devices.
type Prepared = (String, String, Vec<String>, Vec<String>);

/// A node: the folders of its kubelet, of CDI files and of sluiced, and a driver.
pub struct Server {
    folder: tempfile::TempDir,
    pub settings: Settings,
    pub plan: Plan,
    pub host: watch::Sender<Option<Host>>,
    client: Client,
    /// sluiced, as far as the driver looks.
    _daemon: [UnixListener; 2],
    driver: Option<JoinHandle<Result<(), DriverError>>>,
}

impl Server {
    /// A node with a driver that runs.
    pub async fn start(client: Client) -> Self {
        let mut node = Self::new(client);
        node.start_driver().await;
        node
    }

    pub fn new(client: Client) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("kubelet/plugins_registry")).unwrap();
        let settings = Settings { node: "n1".into(), kubelet: at("kubelet"), cdi: at("cdi"), attach: at("attach") };
        let socket = |slo: &str| {
            std::fs::create_dir_all(settings.of_slo(slo)).unwrap();
            UnixListener::bind(settings.of_slo(slo).join("nf.sock")).unwrap()
        };
        let daemon = ["acme_web", "acme_big"].map(socket);
        let (host, _) = watch::channel(None);
        Self { folder, settings, plan: Plan::default(), host, client, _daemon: daemon, driver: None }
    }

    /// A driver beside the one of this node.
    pub async fn run_another(&self) -> Result<(), DriverError> {
        run(self.settings.clone(), self.client.clone(), Arc::new(self.plan.clone()), self.host.subscribe()).await
    }

    pub async fn start_driver(&mut self) {
        let run = run(self.settings.clone(), self.client.clone(), Arc::new(self.plan.clone()), self.host.subscribe());
        let driver = tokio::spawn(run);
        let registration = self.settings.registration();
        until("the driver registers, or ends", || driver.is_finished() || registration.exists()).await;
        if driver.is_finished() {
            driver.await.unwrap().unwrap();
            unreachable!("it runs for ever");
        }
        self.driver = Some(driver);
    }

    pub async fn stop_driver(&mut self) {
        let driver = self.driver.take().unwrap();
        driver.abort();
        assert!(driver.await.unwrap_err().is_cancelled());
    }

    /// The sockets in the folder that the kubelet watches.
    pub fn registered(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.settings.kubelet.join("plugins_registry")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// The names of the files in the folder of CDI.
    pub fn cdi_files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.settings.cdi).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    pub fn cdi_file(&self, uid: &str) -> Value {
        let path = self.settings.cdi.join(format!("sluice.dev-nf_{uid}.json"));
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    pub fn checkpoint(&self) -> PathBuf {
        self.folder.path().join("kubelet/plugins/sluice.dev/claims.json")
    }

    /// Asks to prepare a claim of the namespace acme.
    pub async fn prepare(&self, claim: &str) -> Result<Prepared, String> {
        self.prepare_as(claim, &format!("{claim}-uid")).await
    }

    pub async fn prepare_as(&self, claim: &str, uid: &str) -> Result<Prepared, String> {
        let asked = asked(claim, uid);
        let request = NodePrepareResourcesRequest { claims: vec![asked.clone()] };
        let answer = plugin(&self.settings.endpoint()).await.node_prepare_resources(request).await.unwrap();
        let mut claims = answer.into_inner().claims;
        let mut of_it = claims.remove(&asked.uid).unwrap();
        assert!(claims.is_empty(), "{claims:?}");
        match (of_it.devices.pop(), of_it.error) {
            (None, why) if !why.is_empty() => Err(why),
            (Some(device), why) if why.is_empty() && of_it.devices.is_empty() => {
                Ok((device.pool_name, device.device_name, device.request_names, device.cdi_device_ids))
            }
            (device, why) => panic!("{device:?}, {why}"),
        }
    }

    /// Says that a claim is done.
    pub async fn unprepare(&self, claim: &str) -> Result<(), String> {
        let asked = asked(claim, &format!("{claim}-uid"));
        let request = NodeUnprepareResourcesRequest { claims: vec![asked.clone()] };
        let answer = plugin(&self.settings.endpoint()).await.node_unprepare_resources(request).await.unwrap();
        let why = answer.into_inner().claims.remove(&asked.uid).unwrap().error;
        if why.is_empty() { Ok(()) } else { Err(why) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(driver) = &self.driver {
            driver.abort();
        }
    }
}

pub fn asked(name: &str, uid: &str) -> Claim {
    Claim { namespace: "acme".into(), uid: uid.into(), name: name.into() }
}

async fn connect(socket: &Path) -> Channel {
    Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap().connect().await.unwrap()
}

pub async fn plugin(socket: &Path) -> DraPluginClient<Channel> {
    DraPluginClient::new(connect(socket).await)
}
