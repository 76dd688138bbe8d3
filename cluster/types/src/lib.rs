//! Sluice's custom resources on Kubernetes: what users write, and what the programs exchange.
//!
//! | kind | scope | written by | meaning |
//! |---|---|---|---|
//! | [`NetworkFunction`] | namespace | users | what an NF is: a node's program, or pods |
//! | [`ServiceChain`] | namespace | users | which packets pass which NFs, in order |
//! | [`Slo`] | namespace | users | what is promised to a chain or an NF |
//! | [`NfProfile`] | namespace | users | what an NF or a chain can do on a processor |
//! | [`ServerClass`] | cluster | users | what the nodes with these labels have for NFs |
//! | [`NodePlan`] | cluster | `sluice-operator` | what one node runs; its status is the node's |
//! | [`ProfileRequest`] | namespace | users | what a node is to profile; it writes the status |
//!
//! A namespace is a tenant. An object can name objects of its own namespace only, so no chain has
//! NFs of two tenants.
//!
//! The API server refuses what can be seen in the object itself, by the schema and by rules in CEL,
//! with a message that says what to write. What depends on other objects is a condition in the
//! status.

// Columns that kubectl prints are attributes with the same keys.
#![allow(clippy::duplicated_attributes)]

mod chain;
mod class;
pub mod condition;
mod function;
pub mod labels;
pub mod name;
mod plan;
mod profile;
mod request;
mod slo;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;

pub use chain::{Match, ServiceChain, ServiceChainSpec, ServiceChainStatus};
pub use class::{ServerClass, ServerClassSpec, ServerClassStatus};
pub use function::{NetworkFunction, NetworkFunctionSpec, NetworkFunctionStatus, Resources};
pub use plan::{Has, NodePlan, NodePlanSpec, NodePlanStatus, PlannedChain, PlannedFunction, Use};
pub use profile::{NfProfile, NfProfileSpec, NfProfileStatus};
pub use request::{CacheSource, ProfileRequest, ProfileRequestSpec, ProfileRequestStatus, Progress};
pub use slo::{Footprint, OnDemand, Reserved, Slo, SloSpec, SloStatus};

/// The group of all of them.
pub const GROUP: &str = "sluice.dev";

/// The definitions, by name.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut all = [
        NetworkFunction::crd(),
        NfProfile::crd(),
        NodePlan::crd(),
        ProfileRequest::crd(),
        ServerClass::crd(),
        ServiceChain::crd(),
        Slo::crd(),
    ];
    for version in all.iter_mut().filter(|crd| crd.spec.names.kind == "NodePlan").flat_map(|crd| &mut crd.spec.versions) {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        let spec = schema.and_then(|schema| schema.properties.as_mut()?.get_mut("spec")?.properties.as_mut());
        spec.into_iter().flatten().for_each(|(_, part)| trust(part));
    }
    all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    all.into()
}

/// Removes rules: what is copied into a plan was checked where it came from, and the API server
/// has bounds for what rules may cost.
fn trust(schema: &mut JSONSchemaProps) {
    schema.x_kubernetes_validations = None;
    schema.properties.iter_mut().flatten().for_each(|(_, property)| trust(property));
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => trust(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(trust),
        None => {}
    }
}

/// A definition as a manifest, and the name of its file.
///
/// # Errors
/// It cannot be written as YAML.
pub fn manifest(crd: &CustomResourceDefinition) -> Result<(String, String), serde_saphyr::ser::Error> {
    let file = format!("{}.yaml", crd.spec.names.plural);
    let text = serde_saphyr::to_string(crd)?;
    Ok((file, format!("# Made of cluster/types by `sluice-operator crds`.\n{text}")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_manifests_are_those_of_the_types() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../chart/crds");
        let mut stale = Vec::new();
        for (file, text) in crds().iter().map(|crd| manifest(crd).unwrap()) {
            let path = folder.join(&file);
            if std::env::var_os("SLUICE_WRITE").is_some() {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &text).unwrap();
            }
            if std::fs::read_to_string(&path).ok().as_ref() != Some(&text) {
                stale.push(file);
            }
        }
        assert!(stale.is_empty(), "{stale:?} in cluster/chart/crds are not what the types say: run `make -C cluster reference`");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), crds().len(), "a manifest in cluster/chart/crds has no type");
    }
}
