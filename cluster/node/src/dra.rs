//! Dynamic resource allocation: what [the driver](sluice_dra) goes by. A pod has its place by the
//! plan that the daemon has taken over; what the node has for NFs, the daemon says.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use sluice_api::client::Client as Daemon;
use sluice_api::config::Config;
use sluice_cluster_types::{NodePlanSpec, labels, name};
use sluice_dra::{Host, Place, Places, Settings};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::warn;

use crate::args::Args;
use crate::turn::Turn;

/// Time between two looks at what the node has: once that is known, and before.
const LOOK: Duration = Duration::from_secs(30);
const FIRST: Duration = Duration::from_secs(2);
/// Pause after the driver has ended.
const PAUSE: Duration = Duration::from_secs(10);

/// The places of the plan that the daemon has taken over.
struct Planned(watch::Receiver<Option<(NodePlanSpec, Turn)>>);

impl Places for Planned {
    fn place(&self, pod: &Pod) -> Result<Place, String> {
        match &*self.0.borrow() {
            Some((plan, turn)) if turn.status.applied_revision == plan.revision => place(plan, pod),
            _ => Err("sluiced has not taken over the plan of this node yet; see `kubectl get nodeplans`".into()),
        }
    }
}

/// The place that a plan has for a pod.
fn place(plan: &NodePlanSpec, pod: &Pod) -> Result<Place, String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let label = |name: &str| {
        let found = pod.metadata.labels.as_ref().and_then(|labels| labels.get(name));
        found.map(String::as_str).ok_or_else(|| format!("it has no label {name}"))
    };
    let (slo, function, number) = (label(labels::SLO)?, label(labels::FUNCTION)?, label(labels::INSTANCE)?);
    let (slo, service) = (name::on_node(namespace, slo), name::on_node(namespace, function));
    let chain = plan.chains.iter().find(|chain| chain.name == slo);
    let is_planned = chain.is_some_and(|chain| chain.chain.services.contains(&service));
    let instance = plan.server.instances.iter().find(|one| one.slo == slo && one.number.to_string() == number);
    let instance = instance.filter(|_| is_planned).ok_or_else(|| {
        format!("no instance {number} of the SLO {slo} with the NF {service} is there; see `kubectl get slo -n {namespace}`")
    })?;
    let cores = u32::try_from(instance.cores.len()).unwrap_or(u32::MAX);
    Ok(Place { nf: format!("{service}/{number}"), instance: format!("{slo}/{number}"), slo, cores, ways: instance.ways })
}

/// What the node has for NFs, by the daemon's configuration and report.
fn host(socket: &Path, base: &Path) -> anyhow::Result<Host> {
    let config: Config = toml::from_str(&std::fs::read_to_string(base)?)?;
    Ok(Host::of(&config, &Daemon::new(socket)?.promises()?, Path::new("/"))?)
}

/// Asks what the node has, now and then, and passes on what is new.
async fn look(socket: PathBuf, base: PathBuf, known: watch::Sender<Option<Host>>) {
    let mut complaint = String::new();
    loop {
        let (socket, base) = (socket.clone(), base.clone());
        let found = tokio::task::spawn_blocking(move || host(&socket, &base)).await;
        match found.map_err(anyhow::Error::from).and_then(|found| found) {
            Ok(host) => {
                complaint.clear();
                let is_new = |known: &mut Option<Host>| known.replace(host.clone()).as_ref() != Some(&host);
                known.send_if_modified(is_new);
            }
            // The daemon may just be starting. What was published stays.
            Err(error) if error.to_string() != complaint => {
                complaint = error.to_string();
                warn!("it is not known what this node has for claims: {complaint}; it is looked again");
            }
            Err(_) => {}
        }
        let is_known = known.borrow().is_some();
        sleep(if is_known { LOOK } else { FIRST }).await;
    }
}

/// Runs the driver, again and again.
pub async fn run(client: Client, args: Args, turns: watch::Receiver<Option<(NodePlanSpec, Turn)>>) {
    let settings =
        Settings { node: args.node.clone(), kubelet: args.kubelet, cdi: args.cdi, attach: args.socket.with_file_name("attach") };
    let (known, host) = watch::channel(None);
    tokio::spawn(look(args.socket, args.base, known));
    let places = Arc::new(Planned(turns));
    loop {
        if let Err(error) = sluice_dra::run(settings.clone(), client.clone(), places.clone(), host.clone()).await {
            warn!("the driver of resource claims has ended: {error}; it is started again");
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluice_cluster_types::{PlannedChain, ServiceChainSpec};
    use sluice_slo::examples::shape;
    use sluice_slo::placement::{Instance, PlacedServer};

    use super::*;

    fn pod(namespace: &str, function: &str, number: &str) -> Pod {
        let labels = json!({labels::SLO: "web", labels::FUNCTION: function, labels::INSTANCE: number});
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": namespace, "labels": labels}})).unwrap()
    }

    #[test]
    fn a_pod_has_the_place_that_its_labels_name() {
        let instance = Instance {
            slo: "acme_web".into(),
            number: 3,
            cores: vec![1, 2],
            ways: 4,
            memory_mib: 64,
            capacity_pps: 1e6,
            load_pps: 1e5,
        };
        let chain = ServiceChainSpec { services: vec!["acme_nat".into()], ..ServiceChainSpec::default() };
        let plan = NodePlanSpec {
            term: 1,
            revision: 1,
            server: PlacedServer { instances: vec![instance], ..PlacedServer::empty("n", &shape()) },
            slos: Vec::new(),
            chains: vec![PlannedChain { name: "acme_web".into(), namespace: "acme".into(), slo: "web".into(), chain }],
            functions: Vec::new(),
        };
        let found = place(&plan, &pod("acme", "nat", "3")).unwrap();
        assert_eq!((found.nf.as_str(), found.instance.as_str(), found.slo.as_str()), ("acme_nat/3", "acme_web/3", "acme_web"));
        assert_eq!((found.cores, found.ways), (2, 4));
        for (namespace, function, number) in
            [("other", "nat", "3"), ("acme", "fw", "3"), ("acme", "nat", "0"), ("acme", "nat", "x")]
        {
            let why = place(&plan, &pod(namespace, function, number)).unwrap_err();
            assert!(why.contains("see `kubectl get slo"), "{why}");
        }
        let bare: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "acme"}})).unwrap();
        assert_eq!(place(&plan, &bare).unwrap_err(), "it has no label sluice.dev/slo");
    }
}
