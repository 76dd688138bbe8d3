//! `sluice slo list --cluster`.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use kube::ResourceExt;
use kube::api::ListParams;
use sluice_cli::cluster::Across;
use sluice_cli::table::{Table, colour};
use sluice_cli::usage::json;
use sluice_cluster_types::Slo;

use crate::connect::Cluster;
use crate::feed::Feed;
use crate::rows::{self, Live, micros, promised, rate, state, word};

pub async fn run(across: &Across, is_live: bool, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&across.within.reach).await?;
    let namespace = cluster.across(across);
    if is_live {
        return follow(&cluster, namespace, as_json, out).await;
    }
    let mut slos: Vec<Slo> = cluster.list(&cluster.api(namespace), namespace, &ListParams::default()).await?;
    slos.sort_by_key(|slo| (slo.namespace(), slo.name_any()));
    print(&slos, namespace, as_json, out)
}

fn print(slos: &[Slo], namespace: Option<&str>, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    if as_json {
        return json(out, slos);
    }
    if slos.is_empty() {
        return none(namespace, out);
    }
    table(slos, namespace.is_none()).print(out, colour())?;
    slos.iter().filter_map(why).try_for_each(|line| Ok(writeln!(out, "{line}")?))
}

fn none(namespace: Option<&str>, out: &mut dyn Write) -> anyhow::Result<()> {
    match namespace {
        Some(namespace) => writeln!(out, "nothing is promised in {namespace}; -A shows all namespaces")?,
        None => writeln!(out, "nothing is promised")?,
    }
    Ok(())
}

fn table(slos: &[Slo], has_namespaces: bool) -> Table {
    let columns = ["NAMESPACE", "NAME", "CHAIN", "STATE", ">PROMISED", ">95 % WITHIN", ">INSTANCES", "NODES"];
    let mut table = Table::new(&columns[usize::from(!has_namespaces)..]);
    for slo in slos {
        let status = slo.status.clone().unwrap_or_default();
        let promise = slo.spec.promise();
        let mut cells = vec![
            slo.name_any().into(),
            slo.spec.subject().into(),
            word(state(slo)),
            promised(promise.as_ref()).into(),
            micros(promise.map(|promise| promise.latency_us())).into(),
            status.instances.to_string().into(),
            status.nodes.into(),
        ];
        if has_namespaces {
            cells.insert(0, slo.namespace().unwrap_or_default().into());
        }
        table.row(cells);
    }
    table
}

/// Why an SLO is not as it should be.
pub fn why(slo: &Slo) -> Option<String> {
    let (namespace, name) = (slo.namespace().unwrap_or_default(), slo.name_any());
    let Some(status) = &slo.status else {
        return Some(format!("{namespace}/{name}: no operator has answered yet: is sluice-operator running?"));
    };
    (!status.why.is_empty()).then(|| format!("{namespace}/{name} is {}: {}", status.state, status.why))
}

/// Prints how SLOs are kept, and again each that changes.
async fn follow(cluster: &Cluster, namespace: Option<&str>, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let (mut feed, denied) = Feed::start(cluster, namespace).await?;
    if let Some(denied) = denied {
        eprintln!("sluice: rates are left out: {denied}");
    }
    let mut shown = Shown::default();
    let mut is_first = true;
    loop {
        let slos = feed.slos();
        if is_first && slos.is_empty() && !as_json {
            none(namespace, out)?;
        }
        is_first = false;
        let plans = feed.plans();
        let nodes = rows::on_nodes(plans.iter().map(Arc::as_ref), namespace);
        shown.print(rows::live(slos.iter().map(Arc::as_ref), nodes), namespace.is_none(), as_json, out)?;
        out.flush()?;
        if let Some(trouble) = feed.change().await {
            eprintln!("sluice: {trouble}; it is tried again");
        }
    }
}

/// What was printed of each SLO.
#[derive(Default)]
struct Shown {
    rows: BTreeMap<(String, String), Live>,
    widths: Vec<usize>,
}

impl Shown {
    fn print(&mut self, rows: Vec<Live>, has_namespaces: bool, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut now = BTreeMap::new();
        let columns =
            ["NAMESPACE", "NAME", "STATE", ">PROMISED", ">CAME", ">DELIVERED", ">95 % WITHIN", ">OF", ">INSTANCES", "NODES"];
        let mut table = Table::new(&columns[usize::from(!has_namespaces)..]);
        let mut is_new = false;
        let gone = |row: &Live| Live {
            state: "gone".into(),
            nodes: Vec::new(),
            offered_pps: None,
            delivered_pps: None,
            latency_us: None,
            ..row.clone()
        };
        for row in rows {
            now.insert((row.namespace.clone(), row.name.clone()), row);
        }
        let left = self.rows.iter().filter(|(key, _)| !now.contains_key(*key)).map(|(_, row)| gone(row));
        let changed = now.iter().filter(|(key, row)| self.rows.get(*key) != Some(*row)).map(|(_, row)| row.clone());
        for row in left.chain(changed) {
            if as_json {
                writeln!(out, "{}", serde_json::to_string(&row)?)?;
                continue;
            }
            is_new = true;
            let nodes: Vec<&str> = row.nodes.iter().map(|one| one.node.as_str()).collect();
            let mut cells = vec![
                row.name.as_str().into(),
                word(&row.state),
                promised(row.promise.as_ref()).into(),
                rate(row.offered_pps).into(),
                rate(row.delivered_pps).into(),
                micros(row.latency_us).into(),
                micros(row.promise.map(|promise| promise.latency_us())).into(),
                row.nodes.iter().map(|one| one.instances).sum::<usize>().to_string().into(),
                nodes.join(" ").into(),
            ];
            if has_namespaces {
                cells.insert(0, row.namespace.as_str().into());
            }
            table.row(cells);
        }
        if is_new {
            table.follow(&mut self.widths, out, colour())?;
        }
        self.rows = now;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::{plan, slo};

    fn text(of: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>) -> String {
        let mut out = Vec::new();
        of(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn slos_are_listed_with_what_is_wrong() {
        let slos = [slo("acme", "web", "kept", ""), slo("beta", "db", "refused", "no NFProfile in beta is of nat")];
        let listed = text(|out| print(&slos, None, false, out));
        let want = "\
NAMESPACE  NAME  CHAIN  STATE    PROMISED  95 % WITHIN  INSTANCES  NODES
acme       web   web    kept     6.00 M/s       100 µs          2  n0 n1
beta       db    db     refused  6.00 M/s       100 µs          2  n0 n1
beta/db is refused: no NFProfile in beta is of nat
";
        assert_eq!(listed, want);
        let listed = text(|out| print(&slos[..1], Some("acme"), false, out));
        assert!(listed.starts_with("NAME  CHAIN  STATE") && listed.lines().count() == 2, "{listed}");
        assert_eq!(text(|out| print(&[], Some("acme"), false, out)), "nothing is promised in acme; -A shows all namespaces\n");
        let found: serde_json::Value = serde_json::from_str(&text(|out| print(&slos, None, true, out))).unwrap();
        assert_eq!((&found[1]["metadata"]["name"], &found[0]["status"]["state"]), (&"db".into(), &"kept".into()));
        let mut unseen = slo("acme", "web", "", "");
        unseen.status = None;
        assert!(text(|out| print(&[unseen], None, false, out)).contains("is sluice-operator running?"));
    }

    #[test]
    fn what_has_changed_is_printed_again() {
        let mut shown = Shown::default();
        let rows = |state: &str, used: &str| {
            rows::live(&[slo("acme", "db", "kept", ""), slo("acme", "web", state, "")], rows::on_nodes(&[plan("n0", used)], None))
        };
        let mut step = |rows: Vec<Live>| text(|out| shown.print(rows, false, false, out));
        let first = step(rows("ready", "kept"));
        assert_eq!(first.lines().count(), 3, "{first}");
        assert!(first.contains("web   ready  6.00 M/s  5.90 M/s   5.80 M/s      55.0 µs  100 µs          2  n0\n"), "{first}");
        assert_eq!(step(rows("ready", "kept")), "");
        let next = step(rows("violated", "violated"));
        assert!(next.starts_with("web ") && next.contains(" violated ") && next.lines().count() == 1, "{next}");
        let gone = step(Vec::new());
        assert!(gone.lines().count() == 2 && gone.lines().all(|line| line.contains(" gone ")), "{gone}");
    }
}
