//! Requests that change something at the API server, each with a time limit.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::api::{Api, DeleteParams, EvictParams, Patch, PatchParams, PostParams, Preconditions, Resource};
use kube::core::NamespaceResourceScope;
use kube::{Client, Error, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use sluice_cluster_plan::Key;
use sluice_cluster_plan::pods::Decision;
use sluice_cluster_types::{NodePlan, NodePlanSpec, labels};

use crate::pod;

/// The owner of the fields that the operator writes.
pub const MANAGER: &str = "sluice-operator";
/// Time limit of a request.
pub const LIMIT: Duration = Duration::from_secs(5);

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

/// Writes a plan over the one that is known, or as the first of its node.
///
/// # Errors
/// [`is_conflict`], or no answer.
pub async fn plan(client: &Client, known: Option<&NodePlan>, spec: NodePlanSpec) -> Result<NodePlan, Error> {
    let api: Api<NodePlan> = Api::all(client.clone());
    let name = spec.server.name.clone();
    let Some(known) = known else {
        let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        return within(LIMIT, api.create(&params, &NodePlan::new(&name, spec))).await;
    };
    let body = json!({
        "apiVersion": NodePlan::api_version(&()),
        "kind": NodePlan::kind(&()),
        "metadata": {"name": name, "resourceVersion": known.resource_version()},
        "spec": spec,
    });
    within(LIMIT, api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body))).await
}

/// Deletes the plan of a node that is gone, if it is still as it is known.
///
/// # Errors
/// [`is_conflict`], or no answer.
pub async fn delete_plan(client: &Client, known: &NodePlan) -> Result<(), Error> {
    let preconditions = Preconditions { resource_version: known.resource_version(), uid: known.uid() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let api: Api<NodePlan> = Api::all(client.clone());
    within(LIMIT, api.delete(&known.name_any(), &params)).await.map(|_| ())
}

/// Writes the status of an object.
///
/// # Errors
/// The object is gone, or no answer.
pub async fn status<K>(client: Client, key: &Key, status: impl Serialize + Debug) -> Result<K, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client, &key.namespace);
    let body = json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "status": status});
    within(LIMIT, api.patch_status(&key.name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body))).await
}

/// Carries out what was decided about a pod. Returns the pod, unless it goes.
///
/// # Errors
/// [`is_conflict`], or no answer.
pub async fn carry_out(client: Client, decision: &Decision) -> Result<Option<KubePod>, Error> {
    match decision {
        Decision::Bind { pod: key, node, number } => {
            let api: Api<KubePod> = Api::namespaced(client, &key.namespace);
            let pod = within(LIMIT, api.get(&key.name)).await?;
            if !pod::is_gated(&pod) {
                // It has its node by now.
                return Ok(Some(pod));
            }
            let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
            within(LIMIT, api.patch(&key.name, &params, &Patch::Merge(pod::bound(&pod, node, *number)))).await.map(Some)
        }
        Decision::Evict { pod: key } => {
            let api: Api<KubePod> = Api::namespaced(client, &key.namespace);
            let pod = within(LIMIT, api.get(&key.name)).await?;
            if pod::is_gated(&pod) {
                // It is another one of that name.
                return Ok(Some(pod));
            }
            let preconditions = Some(Preconditions { resource_version: None, uid: pod.uid() });
            let delete_options = Some(DeleteParams { preconditions, ..DeleteParams::default() });
            let params = EvictParams { delete_options, ..EvictParams::default() };
            within(LIMIT, api.evict(&key.name, &params)).await.map(|_| None)
        }
        Decision::Note { pod: key, why } => {
            let api: Api<KubePod> = Api::namespaced(client, &key.namespace);
            let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
            let noted = json!({"metadata": {"annotations": {labels::REFUSED: why}}});
            within(LIMIT, api.patch(&key.name, &params, &Patch::Merge(noted))).await.map(Some)
        }
    }
}
