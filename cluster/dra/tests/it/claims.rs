//! Claims: prepared, prepared again, given back, refused; over restarts.

use serde_json::json;
use sluice_dra::DriverError;
use sluice_dra::kubelet::dra::{NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};

use crate::kubelet::{Server, asked, plugin};
use crate::objects::Objects;

const CLAIM: &str = "/apis/resource.k8s.io/v1/namespaces/acme/resourceclaims/web";
const POD: &str = "/api/v1/namespaces/acme/pods/web-0";

/// A node whose plan has the pod web-0, which has the claim web.
async fn with_one() -> (Objects, Server) {
    let objects = Objects::default();
    objects.add("web-0", "web", 1, 2);
    let node = Server::start(objects.client()).await;
    node.plan.put("web-0", "acme_nat/0", "acme_web/0", 1, 4);
    (objects, node)
}

#[tokio::test]
async fn a_claim_is_prepared_again_and_given_back() {
    let (objects, node) = with_one().await;
    let first = node.prepare("web").await.unwrap();
    let ids = vec!["sluice.dev/nf=web-uid".to_owned()];
    assert_eq!(first, ("n1".into(), "server".into(), vec!["nf".into()], ids));
    let edits = json!({
        "env": ["SLUICE_SOCKET=/run/sluice/nf.sock", "SLUICE_NF=acme_nat/0"],
        "mounts": [{
            "hostPath": node.settings.of_slo("acme_web"), "containerPath": "/run/sluice",
            "options": ["bind", "ro", "nosuid", "nodev", "noexec"],
        }],
    });
    let wanted = json!({"cdiVersion": "0.5.0", "kind": "sluice.dev/nf", "devices": [{"name": "web-uid", "containerEdits": edits}]});
    assert_eq!(node.cdi_file("web-uid"), wanted);
    // A kubelet that was restarted asks again, whatever has become of plan and API server.
    node.plan.clear();
    objects.be_away(true);
    std::fs::remove_dir_all(&node.settings.cdi).unwrap();
    assert_eq!(node.prepare("web").await.unwrap(), first);
    assert_eq!(node.cdi_file("web-uid"), wanted);
    for _ in 0..2 {
        node.unprepare("web").await.unwrap();
        assert!(node.cdi_files().is_empty());
    }
    assert!(node.prepare("web").await.is_err(), "nothing is kept of it");
}

#[tokio::test]
async fn what_is_prepared_outlives_the_driver() {
    let (objects, mut node) = with_one().await;
    let first = node.prepare("web").await.unwrap();
    node.stop_driver().await;
    // The host was started anew, and the folder is one of memory.
    std::fs::remove_dir_all(&node.settings.cdi).unwrap();
    objects.be_away(true);
    node.start_driver().await;
    assert_eq!(node.cdi_files(), ["sluice.dev-nf_web-uid.json"]);
    assert_eq!(node.prepare("web").await.unwrap(), first);
    node.unprepare("web").await.unwrap();
    node.stop_driver().await;
    node.start_driver().await;
    assert!(node.cdi_files().is_empty());
}

#[tokio::test]
async fn what_the_plan_does_not_hold_is_refused() {
    let (objects, node) = with_one().await;
    node.plan.clear();
    let why = node.prepare("web").await.unwrap_err();
    let wanted = "the plan of this node holds no place for the pod acme/web-0: no SLO of it is admitted; see `kubectl get slo`";
    assert_eq!(why, wanted);
    assert!(node.cdi_files().is_empty() && !node.checkpoint().exists(), "nothing is written");
    // The plan has it by now, and sluiced is away.
    node.plan.put("web-0", "acme_nat/0", "acme_web/0", 1, 4);
    std::fs::remove_file(node.settings.of_slo("acme_web").join("nf.sock")).unwrap();
    let why = node.prepare("web").await.unwrap_err();
    assert!(why.contains("sluiced has no socket for NFs at ") && why.ends_with("has taken over its plan"), "{why}");
    std::fs::write(node.settings.of_slo("acme_web").join("nf.sock"), "").unwrap();
    assert!(node.prepare("web").await.unwrap_err().contains("has no socket"), "a file is none");
    assert!(node.cdi_files().is_empty());
    objects.be_away(true);
    let why = node.prepare("web").await.unwrap_err();
    assert!(why.contains("the API server does not answer about claim acme/web: the server is away"), "{why}");
}

#[tokio::test]
async fn claims_and_pods_that_are_not_there_say_so() {
    let (objects, node) = with_one().await;
    assert_eq!(node.prepare("other").await.unwrap_err(), "there is no claim acme/other");
    objects.edit(POD, |pod| pod["spec"]["nodeName"] = "n2".into());
    let why = node.prepare("web").await.unwrap_err();
    assert_eq!(why, "the pod acme/web-0 is bound to n2, and this node is n1");
    objects.edit(POD, |pod| pod["metadata"]["uid"] = "another".into());
    assert!(node.prepare("web").await.unwrap_err().contains("web-0 is another one by now"));
    objects.remove(POD);
    assert_eq!(node.prepare("web").await.unwrap_err(), "there is no pod acme/web-0");
    objects.edit(CLAIM, |claim| drop(claim["status"].take()));
    assert_eq!(node.prepare("web").await.unwrap_err(), "no device is allocated to the claim");
    node.unprepare("never-heard-of").await.unwrap();
    // UIDs become names of files.
    let mut kubelet = plugin(&node.settings.endpoint()).await;
    let claims = vec![asked("web", "../web")];
    let answer = kubelet.node_prepare_resources(NodePrepareResourcesRequest { claims: claims.clone() }).await.unwrap();
    assert_eq!(answer.into_inner().claims["../web"].error, "\"../web\" is no UID");
    let answer = kubelet.node_unprepare_resources(NodeUnprepareResourcesRequest { claims }).await.unwrap();
    assert_eq!(answer.into_inner().claims["../web"].error, "\"../web\" is no UID");
}

#[tokio::test]
async fn one_answer_has_all_claims() {
    let (objects, node) = with_one().await;
    objects.add("dns-0", "dns", 1, 0);
    let claims = vec![asked("web", "web-uid"), asked("dns", "dns-uid"), asked("none", "none-uid")];
    let mut kubelet = plugin(&node.settings.endpoint()).await;
    let answer = kubelet.node_prepare_resources(NodePrepareResourcesRequest { claims }).await.unwrap().into_inner().claims;
    let mut errors: Vec<_> = answer.iter().map(|(uid, answer)| (uid.as_str(), answer.error.is_empty())).collect();
    errors.sort_unstable();
    assert_eq!(errors, [("dns-uid", false), ("none-uid", false), ("web-uid", true)]);
}

#[tokio::test]
async fn no_claim_takes_more_than_the_plan_gives() {
    let (objects, node) = with_one().await;
    objects.add("big-0", "big", 1, 5);
    node.plan.put("big-0", "acme_big/0", "acme_big/0", 1, 4);
    let why = node.prepare("big").await.unwrap_err();
    assert_eq!(why, "the claim takes 5 ways, and of the 4 that the plan gives acme_big/0, 4 are left: ask for less");
    // Two NFs of one instance share what it has.
    node.prepare("web").await.unwrap();
    objects.add("fw-0", "fw", 1, 0);
    node.plan.put("fw-0", "acme_fw/0", "acme_web/0", 1, 4);
    let why = node.prepare("fw").await.unwrap_err();
    assert_eq!(why, "the claim takes 1 cores, and of the 1 that the plan gives acme_web/0, 0 are left: ask for less");
    node.plan.put("fw-0", "acme_fw/0", "acme_web/0", 2, 4);
    node.prepare("fw").await.unwrap();
}

#[tokio::test]
async fn two_pods_never_have_one_nf() {
    let (objects, node) = with_one().await;
    node.prepare("web").await.unwrap();
    objects.add("web-1", "again", 1, 0);
    node.plan.put("web-1", "acme_nat/0", "acme_web/0", 2, 4);
    let why = node.prepare("again").await.unwrap_err();
    assert_eq!(why, "the NF acme_nat/0 is prepared for the claim acme/web: its pod has to go first");
    // A kubelet that has lost its own list never says that the first is done.
    objects.remove(CLAIM);
    node.prepare("again").await.unwrap();
    assert_eq!(node.cdi_files(), ["sluice.dev-nf_again-uid.json"]);
}

#[tokio::test]
async fn a_list_of_claims_that_is_none_is_not_overwritten() {
    let (_objects, mut node) = with_one().await;
    node.stop_driver().await;
    for text in ["", "{\"form\": 9, \"claims\": []}"] {
        std::fs::write(node.checkpoint(), text).unwrap();
        let error = node.run_another().await.unwrap_err();
        assert!(matches!(error, DriverError::Checkpoint(_)) && error.to_string().contains("move it away"), "{error}");
        assert_eq!(std::fs::read_to_string(node.checkpoint()).unwrap(), text);
        assert!(node.registered().is_empty(), "the kubelet does not find it");
    }
}
