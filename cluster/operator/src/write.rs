//! Requests that change something at the API server, each with a time limit.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::api::{Api, DeleteParams, EvictParams, Patch, PatchParams, PostParams, Preconditions, Resource};
use kube::{Client, Error, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use sluice_cluster_plan::Key;
use sluice_cluster_plan::pods::{Decision, NewPod};
use sluice_cluster_types::{NodePlan, NodePlanSpec, labels};
use sluice_slo::placement::PlacedServer;

use crate::pod;

/// The owner of the fields that the operator writes.
pub const MANAGER: &str = "sluice-operator";

/// A request with a time limit.
///
/// # Errors
/// The request's, or that it took too long; it may have been carried out then.
pub async fn within<T>(limit: Duration, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(limit, request).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::Service(format!("no answer within {} s", limit.as_secs_f64()).into())),
    }
}

/// Whether somebody else has changed, made or deleted the object meanwhile.
pub fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::Api(status) if matches!(status.code, 404 | 409))
}

/// Whether the object is not there any more.
pub fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

/// Writes a plan over the one that is known, or as the first of its node. It is replaced as a
/// whole: fields that only the first version had would stay, if it were applied over one that was
/// created.
///
/// # Errors
/// [`is_conflict`], or no answer.
pub async fn plan(client: &Client, limit: Duration, known: Option<&NodePlan>, spec: NodePlanSpec) -> Result<NodePlan, Error> {
    let api: Api<NodePlan> = Api::all(client.clone());
    let name = spec.server.name.clone();
    let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
    let Some(known) = known else {
        return within(limit, api.create(&params, &NodePlan::new(&name, spec))).await;
    };
    let plan = NodePlan { metadata: known.metadata.clone(), spec, status: None };
    within(limit, api.replace(&name, &params, &plan)).await
}

/// Deletes the plan of a node that is gone, if it is still as it is known.
///
/// # Errors
/// [`is_conflict`], or no answer.
pub async fn delete_plan(client: &Client, limit: Duration, known: &NodePlan) -> Result<(), Error> {
    let preconditions = Preconditions { resource_version: known.resource_version(), uid: known.uid() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let api: Api<NodePlan> = Api::all(client.clone());
    within(limit, api.delete(&known.name_any(), &params)).await.map(|_| ())
}

/// Writes the status of an object.
///
/// # Errors
/// The object is gone, or no answer.
pub async fn status<K>(api: Api<K>, limit: Duration, name: &str, status: impl Serialize + Debug) -> Result<K, Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let body = json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "status": status});
    within(limit, api.patch_status(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body))).await
}

/// Reads a plan that may have been written. If it may be written yet, by a request that is on its
/// way, it is written as it is: that request is then refused, as it is over another version.
/// `tried` is the server of such a request, without instances.
///
/// # Errors
/// [`is_conflict`], or no answer.
pub async fn fence(
    client: &Client,
    limit: Duration,
    node: &str,
    tried: Option<PlacedServer>,
    term: i64,
) -> Result<Option<NodePlan>, Error> {
    let api: Api<NodePlan> = Api::all(client.clone());
    let known = within(limit, api.get_opt(node)).await?;
    let Some(server) = tried else { return Ok(known) };
    let spec = match &known {
        Some(known) => NodePlanSpec { term, revision: known.spec.revision + 1, ..known.spec.clone() },
        None => NodePlanSpec { term, revision: 1, server, slos: Vec::new(), chains: Vec::new(), functions: Vec::new() },
    };
    plan(client, limit, known.as_ref(), spec).await.map(Some)
}

/// Carries out what was decided about a pod, all of it within the limit, and while the operator
/// leads. Returns the pod, unless it goes.
///
/// # Errors
/// [`is_conflict`], or no answer.
pub async fn carry_out(
    client: Client,
    limit: Duration,
    decision: &Decision,
    leads: impl Fn() -> bool,
) -> Result<Option<KubePod>, Error> {
    within(limit, decided(client, decision, leads)).await
}

async fn decided(client: Client, decision: &Decision, leads: impl Fn() -> bool) -> Result<Option<KubePod>, Error> {
    let Key { namespace, name } = decision.pod();
    let api: Api<KubePod> = Api::namespaced(client, namespace);
    let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
    match decision {
        Decision::Create(new) => {
            still(&leads)?;
            create(&api, new).await.map(Some)
        }
        Decision::Delete { uid, .. } => {
            still(&leads)?;
            api.delete(name, &only(Some(uid.clone()))).await.map(|_| None)
        }
        Decision::Bind { node, number, .. } => {
            let pod = read(&api, name, &leads).await?;
            // It has its node by now.
            if !pod::is_gated(&pod) {
                return Ok(Some(pod));
            }
            api.patch(name, &params, &Patch::Merge(pod::bound(&pod, node, *number))).await.map(Some)
        }
        Decision::Evict { .. } => {
            let pod = read(&api, name, &leads).await?;
            // It is another one of that name.
            if pod::is_gated(&pod) {
                return Ok(Some(pod));
            }
            let params = EvictParams { delete_options: Some(only(pod.uid())), ..EvictParams::default() };
            api.evict(name, &params).await.map(|_| None)
        }
        Decision::Note { why, .. } => {
            read(&api, name, &leads).await?;
            let noted = json!({"metadata": {"annotations": {labels::REFUSED: why}}});
            api.patch(name, &params, &Patch::Merge(noted)).await.map(Some)
        }
    }
}

/// Reads a pod, while the operator leads.
async fn read(api: &Api<KubePod>, name: &str, leads: &impl Fn() -> bool) -> Result<KubePod, Error> {
    let pod = api.get(name).await?;
    still(leads).map(|()| pod)
}

/// It may have been stopped since, and another one may lead by now.
fn still(leads: &impl Fn() -> bool) -> Result<(), Error> {
    if leads() { Ok(()) } else { Err(Error::Service("the lease is over".into())) }
}

/// Deletes the object of this identity, and no other one of its name.
fn only(uid: Option<String>) -> DeleteParams {
    DeleteParams { preconditions: Some(Preconditions { resource_version: None, uid }), ..DeleteParams::default() }
}

/// Makes a pod at the gate, unless it is there.
async fn create(api: &Api<KubePod>, new: &NewPod) -> Result<KubePod, Error> {
    let body: KubePod = serde_json::from_value(pod::new(new)).map_err(Error::SerdeError)?;
    let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
    match api.create(&params, &body).await {
        // It was made before, by a request without an answer, or by another operator.
        Err(error) if matches!(&error, Error::Api(status) if status.reason == "AlreadyExists") => {
            let there = api.get_opt(&new.pod.name).await?;
            there.filter(|pod| pod::made(pod).is_some_and(|made| made.owner == new.owner)).ok_or(error)
        }
        made => made,
    }
}

/// Reads a pod that a request may bind yet. One that still waits is changed a little: that request
/// is over another version, and is refused when it comes.
///
/// # Errors
/// It is gone, or no answer.
pub async fn fence_pod(client: Client, limit: Duration, key: &Key) -> Result<Option<KubePod>, Error> {
    let api: Api<KubePod> = Api::namespaced(client, &key.namespace);
    let fenced = async {
        let pod = api.get(&key.name).await?;
        if !pod::is_gated(&pod) {
            return Ok(pod);
        }
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        // No two versions have the same.
        let other = json!({"metadata": {"annotations": {labels::FENCE: pod.resource_version()}}});
        api.patch(&key.name, &params, &Patch::Merge(other)).await
    };
    within(limit, fenced).await.map(Some)
}
