//! The API server: which one it is, and requests to it.

use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use anyhow::{anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::api::{Api, ListParams, Resource};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::NamespaceResourceScope;
use kube::{Client, Config, Error};
use serde::de::DeserializeOwned;
use sluice_cli::cluster::{Across, Reach, Within};

use crate::trouble::{self, Asked, Place};

/// Time limit of a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit of a request.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A cluster that is asked.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
    /// The namespace of the context.
    namespace: String,
    pub place: Place,
}

impl Cluster {
    /// The cluster that the options name.
    ///
    /// # Errors
    /// There is no kubeconfig, or it cannot be used.
    pub async fn connect(reach: &Reach) -> anyhow::Result<Self> {
        let mut config = config(reach.context.as_deref()).await?;
        config.connect_timeout = Some(PATIENCE);
        let server = config.cluster_url.to_string().trim_end_matches('/').to_string();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let place = Place { server, expired: expired(&config.auth_info, now) };
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config).map_err(|error| anyhow!(trouble::unreachable(&error, &place)))?;
        Ok(Self { client, namespace, place })
    }

    /// The namespace that is meant.
    pub fn namespace<'a>(&'a self, within: &'a Within) -> &'a str {
        within.namespace.as_deref().unwrap_or(&self.namespace)
    }

    /// The namespace that is meant; none is all of them.
    pub fn across<'a>(&'a self, across: &'a Across) -> Option<&'a str> {
        (!across.all_namespaces).then(|| self.namespace(&across.within))
    }

    /// Objects of a namespace, or of all.
    pub fn api<K>(&self, namespace: Option<&str>) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// All objects of a kind that has no namespaces, or of all namespaces.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub async fn all<K>(&self) -> anyhow::Result<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        self.list(&Api::all(self.client.clone()), None, &ListParams::default()).await
    }

    /// The objects that an API has, in the namespace that it was made for.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub async fn list<K>(&self, api: &Api<K>, namespace: Option<&str>, params: &ListParams) -> anyhow::Result<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let kind = K::plural(&());
        let asked = Asked { verb: "list", kind: &kind, namespace };
        let mut items = self.within(&asked, api.list(params)).await?.items;
        items.iter_mut().for_each(|object| object.meta_mut().managed_fields = None);
        Ok(items)
    }

    /// An object of a namespace.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub async fn get<K>(&self, namespace: &str, name: &str) -> anyhow::Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let kind = K::plural(&());
        let asked = Asked { verb: "get", kind: &kind, namespace: Some(namespace) };
        let mut object = self.within(&asked, self.api::<K>(Some(namespace)).get(name)).await?;
        object.meta_mut().managed_fields = None;
        Ok(object)
    }

    /// The answer to a request, within a time limit.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub async fn within<T>(&self, asked: &Asked<'_>, request: impl Future<Output = Result<T, Error>>) -> anyhow::Result<T> {
        match tokio::time::timeout(LIMIT, request).await {
            Ok(answer) => answer.map_err(|error| anyhow!(trouble::explain(&error, asked, &self.place))),
            Err(_) => bail!("the API server at {} has not answered within {} s", self.place.server, LIMIT.as_secs()),
        }
    }
}

async fn config(context: Option<&str>) -> anyhow::Result<Config> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let error = match Config::from_kubeconfig(&options).await {
        Ok(config) => return Ok(config),
        Err(error) => error,
    };
    let is_named = std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty());
    if trouble::is_absent(&error) && !is_named && context.is_none() {
        return Config::incluster().map_err(|_| anyhow!(trouble::kubeconfig(&error, is_named, &[])));
    }
    let known: Vec<String> = match &error {
        KubeconfigError::LoadContext(_) | KubeconfigError::CurrentContextNotSet => {
            Kubeconfig::read().map(|config| config.contexts.into_iter().map(|one| one.name).collect()).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    Err(anyhow!(trouble::kubeconfig(&error, is_named, &known)))
}

/// When the client certificate ended, if it has.
fn expired(auth: &AuthInfo, now: Duration) -> Option<String> {
    let pem = match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => STANDARD.decode(data.trim()).ok()?,
        (None, Some(path)) => std::fs::read(path).ok()?,
        (None, None) => return None,
    };
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
    let end = pem.parse_x509().ok()?.validity().not_after;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    (end.timestamp() < now).then(|| end.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `openssl req -x509 -newkey ed25519 -nodes -subj /CN=jane -days 1`.
    const PEM: &str = include_str!("../tests/jane.pem");

    #[test]
    fn a_certificate_that_has_ended_is_seen() {
        let auth =
            |data: Option<&str>| AuthInfo { client_certificate_data: data.map(|pem| STANDARD.encode(pem)), ..AuthInfo::default() };
        let long_after = Duration::from_secs(10_000_000_000);
        let end = expired(&auth(Some(PEM)), long_after).unwrap();
        assert!(end.contains("2026"), "{end}");
        assert_eq!(expired(&auth(Some(PEM)), Duration::ZERO), None);
        assert_eq!(expired(&auth(Some("none")), long_after), None);
        assert_eq!(expired(&auth(None), long_after), None);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jane.pem");
        std::fs::write(&path, PEM).unwrap();
        let by_path = AuthInfo { client_certificate: Some(path.display().to_string()), ..AuthInfo::default() };
        assert_eq!(expired(&by_path, long_after), Some(end));
    }
}
