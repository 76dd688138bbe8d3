//! Prepares the claims of pods that the node's plan holds.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use crate::cdi::{self, Cdi};
use crate::checkpoint::{Checkpoint, Prepared};
use crate::claim::{self, ClaimError, Taken};
use crate::kubelet::dra::dra_plugin_server::DraPlugin;
use crate::kubelet::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use crate::place::{Place, Places};
use crate::request::within;

/// Why a claim is not prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("\"{0}\" is no UID")]
    Uid(String),
    #[error("the API server does not answer about {what}: {why}; it is asked again")]
    Server { what: String, why: String },
    #[error("there is no {what}")]
    Missing { what: String },
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("the pod {pod} is another one by now, of the same name")]
    OtherPod { pod: String },
    #[error("the pod {pod} is bound to {}, and this node is {node}", .bound.as_deref().unwrap_or("no node"))]
    OtherNode { pod: String, bound: Option<String>, node: String },
    #[error("the plan of this node holds no place for the pod {pod}: {why}")]
    NotPlanned { pod: String, why: String },
    #[error("the claim takes {taken} {what}, and of the {has} that the plan gives {instance}, {left} are left: ask for less")]
    TooMuch { what: &'static str, taken: u32, has: u32, left: u32, instance: String },
    #[error("the NF {nf} is prepared for the claim {by}: its pod has to go first")]
    InUse { nf: String, by: String },
    #[error("sluiced has no socket for NFs at {path} yet: look whether it runs on this node, and has taken over its plan")]
    NoSocket { path: PathBuf },
    #[error("cannot write the claim's files: {0}")]
    Files(#[from] io::Error),
}

/// The driver, as the kubelet sees it.
pub(crate) struct Plugin<P> {
    pub(crate) node: String,
    pub(crate) client: Client,
    pub(crate) places: Arc<P>,
    pub(crate) cdi: Cdi,
    pub(crate) checkpoint: Mutex<Checkpoint>,
}

impl<P: Places> Plugin<P> {
    /// Writes the CDI files of all claims that are prepared: their folder may be empty since the
    /// host was started.
    pub(crate) fn restore(&self) -> io::Result<()> {
        self.locked().all().try_for_each(|claim| self.cdi.write(&claim.uid, &claim.slo, &claim.nf))
    }

    fn locked(&self) -> MutexGuard<'_, Checkpoint> {
        self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn prepare(&self, asked: &Claim) -> Result<Device, PrepareError> {
        if !is_uid(&asked.uid) {
            return Err(PrepareError::Uid(asked.uid.clone()));
        }
        let known = self.locked().get(&asked.uid).cloned();
        if let Some(known) = known {
            if self.is_of_pod(&known).await {
                self.cdi.write(&known.uid, &known.slo, &known.nf)?;
                return Ok(device(&known));
            }
            self.forget(&known.uid)?;
        }
        let what = format!("claim {}/{}", asked.namespace, asked.name);
        let claim: Option<ResourceClaim> = self.get(&what, &asked.namespace, &asked.name).await?;
        let taken = claim::taken(&claim.ok_or(PrepareError::Missing { what })?, &asked.uid, &self.node)?;
        let place = self.place(&asked.namespace, &taken).await?;
        is_socket(self.cdi.attach.join(&place.slo).join("nf.sock"))?;
        self.forget_gone(&place).await?;
        let prepared = Prepared {
            uid: asked.uid.clone(),
            namespace: asked.namespace.clone(),
            name: asked.name.clone(),
            request: taken.request,
            pool: taken.pool,
            device: taken.device,
            cores: taken.cores,
            ways: taken.ways,
            nf: place.nf.clone(),
            slo: place.slo.clone(),
            pod: taken.pod_uid.clone(),
            instance: place.instance.clone(),
        };
        let mut checkpoint = self.locked();
        check(&checkpoint, &prepared, &place)?;
        // In this order: a file of no known claim would never be removed.
        checkpoint.insert(prepared.clone())?;
        self.cdi.write(&prepared.uid, &prepared.slo, &prepared.nf)?;
        info!("claim {}/{} is prepared: its pod {} is the NF {}", prepared.namespace, prepared.name, taken.pod, prepared.nf);
        Ok(device(&prepared))
    }

    /// Whether a claim is prepared for the pod that has it now, as far as the API server answers.
    async fn is_of_pod(&self, known: &Prepared) -> bool {
        let what = format!("claim {}/{}", known.namespace, known.name);
        let claim: Result<Option<ResourceClaim>, PrepareError> = self.get(&what, &known.namespace, &known.name).await;
        let Ok(Some(claim)) = claim else { return true };
        claim::taken(&claim, &known.uid, &self.node).map_or(true, |taken| taken.pod_uid == known.pod)
    }

    /// The place that the plan has for a claim's pod.
    async fn place(&self, namespace: &str, taken: &Taken) -> Result<Place, PrepareError> {
        let pod = format!("{namespace}/{}", taken.pod);
        let what = format!("pod {pod}");
        let found: Pod = self.get(&what, namespace, &taken.pod).await?.ok_or(PrepareError::Missing { what })?;
        if found.metadata.uid.as_ref() != Some(&taken.pod_uid) {
            return Err(PrepareError::OtherPod { pod });
        }
        let bound = found.spec.as_ref().and_then(|spec| spec.node_name.clone());
        if bound.as_ref() != Some(&self.node) {
            return Err(PrepareError::OtherNode { pod, bound, node: self.node.clone() });
        }
        self.places.place(&found).map_err(|why| PrepareError::NotPlanned { pod, why })
    }

    /// Forgets claims of this instance that are deleted: a kubelet that has lost its own
    /// list never says that they are done.
    async fn forget_gone(&self, place: &Place) -> Result<(), PrepareError> {
        let is_near = |claim: &&Prepared| claim.instance == place.instance;
        let near: Vec<Prepared> = self.locked().all().filter(is_near).cloned().collect();
        for old in near {
            let what = format!("claim {}/{}", old.namespace, old.name);
            let now: Option<ResourceClaim> = self.get(&what, &old.namespace, &old.name).await?;
            if now.is_none_or(|now| now.metadata.uid.as_ref() != Some(&old.uid)) {
                warn!("claim {}/{} was deleted, and the kubelet has not said so; it is forgotten", old.namespace, old.name);
                self.forget(&old.uid)?;
            }
        }
        Ok(())
    }

    fn forget(&self, uid: &str) -> io::Result<()> {
        let mut checkpoint = self.locked();
        self.cdi.remove(uid)?;
        checkpoint.remove(uid)
    }

    async fn get<K>(&self, what: &str, namespace: &str, name: &str) -> Result<Option<K>, PrepareError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        within(api.get_opt(name)).await.map_err(|error| PrepareError::Server { what: what.into(), why: error.to_string() })
    }

    fn unprepare(&self, asked: &Claim) -> Result<(), PrepareError> {
        if !is_uid(&asked.uid) {
            return Err(PrepareError::Uid(asked.uid.clone()));
        }
        Ok(self.forget(&asked.uid)?)
    }
}

/// UIDs name files.
fn is_uid(text: &str) -> bool {
    !text.is_empty() && text.len() <= 128 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn is_socket(path: PathBuf) -> Result<(), PrepareError> {
    match std::fs::metadata(&path) {
        Ok(file) if file.file_type().is_socket() => Ok(()),
        _ => Err(PrepareError::NoSocket { path }),
    }
}

/// Checks that no other claim has the NF, and that the instance's claims take no more than it has.
fn check(checkpoint: &Checkpoint, new: &Prepared, place: &Place) -> Result<(), PrepareError> {
    let others = || checkpoint.all().filter(|other| other.uid != new.uid);
    if let Some(other) = others().find(|other| other.nf == new.nf && other.slo == new.slo) {
        return Err(PrepareError::InUse { nf: new.nf.clone(), by: format!("{}/{}", other.namespace, other.name) });
    }
    let of_instance = || others().filter(|other| other.instance == new.instance);
    let cores = of_instance().map(|other| other.cores).fold(0, u32::saturating_add);
    let ways = of_instance().map(|other| other.ways).fold(0, u32::saturating_add);
    for (what, taken, used, has) in [("cores", new.cores, cores, place.cores), ("ways", new.ways, ways, place.ways)] {
        let left = has.saturating_sub(used);
        if taken > left {
            return Err(PrepareError::TooMuch { what, taken, has, left, instance: new.instance.clone() });
        }
    }
    Ok(())
}

fn device(claim: &Prepared) -> Device {
    Device {
        request_names: vec![claim.request.clone()],
        pool_name: claim.pool.clone(),
        device_name: claim.device.clone(),
        cdi_device_ids: vec![cdi::id(&claim.uid)],
    }
}

#[tonic::async_trait]
impl<P: Places> DraPlugin for Plugin<P> {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let answer = match self.prepare(&claim).await {
                Ok(device) => NodePrepareResourceResponse { devices: vec![device], error: String::new() },
                Err(error) => {
                    warn!("claim {}/{} is not prepared: {error}", claim.namespace, claim.name);
                    NodePrepareResourceResponse { devices: Vec::new(), error: error.to_string() }
                }
            };
            claims.insert(claim.uid, answer);
        }
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let error = match self.unprepare(&claim) {
                Ok(()) => String::new(),
                Err(error) => {
                    warn!("claim {}/{} cannot be given back: {error}", claim.namespace, claim.name);
                    error.to_string()
                }
            };
            claims.insert(claim.uid, NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}
