//! Objects that users write, as `kubectl apply` takes them.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use kube::api::{Api, Patch, PatchParams, Resource};
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sluice_cli::usage::read;
use sluice_cluster_plan::Key;
use sluice_cluster_types::{NetworkFunction, NfProfile, ServiceChain, Slo};

use crate::connect::Cluster;
use crate::trouble::Asked;

/// The owner of the fields that are written here.
const MANAGER: &str = "sluice";

/// A kind of object, in the order in which they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Profile,
    Function,
    Chain,
    Slo,
}

/// An object in a file.
#[derive(Debug)]
pub struct Manifest {
    pub kind: Kind,
    pub key: Key,
    value: Value,
}

/// An object as the API server has it.
#[derive(Debug, Clone)]
pub enum Object {
    Profile(NfProfile),
    Function(NetworkFunction),
    Chain(ServiceChain),
    Slo(Slo),
}

/// The objects of files, in the order in which they are written. Those without a namespace get the
/// one that is given, or else that of the context.
///
/// # Errors
/// What is wrong with which file.
pub fn read_all(files: &[PathBuf], given: Option<&str>, context: &str) -> anyhow::Result<Vec<Manifest>> {
    let mut all = Vec::new();
    for file in files {
        let found = parse(&read(file)?, given, context).with_context(|| file_of(file))?;
        all.extend(found);
    }
    all.sort_by_key(|one| one.kind);
    match all.last() {
        Some(last) if last.kind == Kind::Slo => Ok(all),
        _ => bail!("no SLO is in these files; `kubectl apply` writes other objects"),
    }
}

fn file_of(file: &Path) -> String {
    if file == Path::new("-") { "standard input".into() } else { file.display().to_string() }
}

fn parse(text: &str, given: Option<&str>, context: &str) -> anyhow::Result<Vec<Manifest>> {
    const FORM: &str = "it has no manifests: with --cluster an SLO is an object of kind SLO, as `kubectl explain slo` describes it";
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).context(FORM)?;
    if documents.is_empty() || !documents.iter().all(Value::is_object) {
        bail!(FORM);
    }
    documents.into_iter().map(|value| Manifest::of(value, given, context)).collect()
}

impl Manifest {
    fn of(mut value: Value, given: Option<&str>, context: &str) -> anyhow::Result<Self> {
        let word = |field: &str| value[field].as_str().unwrap_or_default().to_string();
        let (version, kind) = (word("apiVersion"), word("kind"));
        let known =
            [("NFProfile", Kind::Profile), ("NetworkFunction", Kind::Function), ("ServiceChain", Kind::Chain), ("SLO", Kind::Slo)];
        let Some((_, known)) = known.into_iter().find(|(name, _)| *name == kind) else {
            bail!("an object of kind \"{kind}\" is not written here: use `kubectl apply` for it");
        };
        let wanted = Slo::api_version(&());
        if version != wanted {
            bail!("apiVersion of the {kind} is \"{version}\": write {wanted}");
        }
        let name = value["metadata"]["name"].as_str().unwrap_or_default().to_string();
        if name.is_empty() {
            bail!("a {kind} has no metadata.name");
        }
        let own = value["metadata"]["namespace"].as_str().map(str::to_owned);
        if let Some((own, given)) = own.as_deref().zip(given).filter(|(own, given)| own != given) {
            bail!("{kind} {name} is of the namespace {own}, and --namespace is {given}");
        }
        let namespace = own.unwrap_or_else(|| given.unwrap_or(context).to_string());
        value["metadata"]["namespace"] = namespace.clone().into();
        if let Some(object) = value.as_object_mut() {
            object.remove("status");
        }
        Ok(Self { kind: known, key: Key { namespace, name }, value })
    }

    /// Writes it, or has the API server check what that would do.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub async fn apply(&self, cluster: &Cluster, is_dry: bool) -> anyhow::Result<Object> {
        Ok(match self.kind {
            Kind::Profile => Object::Profile(self.apply_as(cluster, is_dry).await?),
            Kind::Function => Object::Function(self.apply_as(cluster, is_dry).await?),
            Kind::Chain => Object::Chain(self.apply_as(cluster, is_dry).await?),
            Kind::Slo => Object::Slo(self.apply_as(cluster, is_dry).await?),
        })
    }

    async fn apply_as<K>(&self, cluster: &Cluster, is_dry: bool) -> anyhow::Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let params = PatchParams::apply(MANAGER).validation_strict();
        let params = if is_dry { params.dry_run() } else { params };
        let kind = K::plural(&());
        let asked = Asked { verb: "patch", kind: &kind, namespace: Some(&self.key.namespace) };
        let api: Api<K> = cluster.api(Some(&self.key.namespace));
        let patch = Patch::Apply(&self.value);
        let request = api.patch(&self.key.name, &params, &patch);
        cluster.within(&asked, request).await.with_context(|| format!("{} {}", K::kind(&()), self.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: &str =
        "apiVersion: sluice.dev/v1alpha1\nkind: SLO\nmetadata: {name: web}\nspec: {chain: web}\nstatus: {state: kept}\n";
    const CHAIN: &str = "apiVersion: sluice.dev/v1alpha1\nkind: ServiceChain\nmetadata: {name: web, namespace: beta}\nspec: {}\n";

    fn files(texts: &[&str]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir().unwrap();
        let paths = texts.iter().enumerate().map(|(i, text)| {
            let path = folder.path().join(format!("{i}.yaml"));
            std::fs::write(&path, text).unwrap();
            path
        });
        let paths = paths.collect();
        (folder, paths)
    }

    #[test]
    fn objects_are_written_in_order_and_have_a_namespace() {
        let (_folder, paths) = files(&[&format!("{SLO}---\n{CHAIN}---\n")]);
        let all = read_all(&paths, None, "acme").unwrap();
        let keys: Vec<_> = all.iter().map(|one| (one.kind, one.key.to_string())).collect();
        assert_eq!(keys, [(Kind::Chain, "beta/web".to_string()), (Kind::Slo, "acme/web".to_string())]);
        assert_eq!((&all[1].value["metadata"]["namespace"], all[1].value.get("status")), (&"acme".into(), None));
        let (_folder, paths) = files(&[SLO]);
        assert_eq!(read_all(&paths, Some("gamma"), "acme").unwrap()[0].key, Key::new("gamma", "web"));
    }

    #[test]
    fn what_is_no_manifest_says_so() {
        for (text, wanted) in [
            ("name = \"acme\"\nworkload = { nf = \"nat\" }\n", "with --cluster an SLO is an object of kind SLO"),
            ("", "it has no manifests"),
            ("a: [", "it has no manifests"),
            ("kind: Pod\n", "kind \"Pod\" is not written here"),
            ("kind: SLO\napiVersion: v1\n", "apiVersion of the SLO is \"v1\": write sluice.dev/v1alpha1"),
            ("kind: SLO\napiVersion: sluice.dev/v1alpha1\n", "a SLO has no metadata.name"),
            (CHAIN, "is of the namespace beta, and --namespace is acme"),
        ] {
            let (_folder, paths) = files(&[text]);
            let error = format!("{:#}", read_all(&paths, Some("acme"), "default").unwrap_err());
            assert!(error.contains(wanted) && error.contains("0.yaml"), "{error}");
        }
        let (_folder, paths) = files(&[CHAIN]);
        assert!(read_all(&paths, None, "default").unwrap_err().to_string().contains("no SLO is in these files"));
    }
}
