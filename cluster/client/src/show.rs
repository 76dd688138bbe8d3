//! `sluice slo show --cluster`.

use std::io::Write;
use std::sync::Arc;

use anyhow::bail;
use kube::ResourceExt;
use serde::Serialize;
use sluice_cli::bars;
use sluice_cli::cluster::Within;
use sluice_cli::table::{Table, colour};
use sluice_cli::usage::json;
use sluice_cluster_types::{NodePlan, Slo};
use sluice_slo::placement::{Instance, PlacedServer};

use crate::connect::Cluster;
use crate::feed::Feed;
use crate::rows::{self, OnNode, micros, rate, state, word};

/// An SLO with its nodes, as JSON output.
#[derive(Serialize)]
struct Shown<'a> {
    slo: &'a Slo,
    nodes: &'a [OnNode],
    instances: Vec<Placed<'a>>,
}

#[derive(Serialize)]
struct Placed<'a> {
    node: &'a str,
    #[serde(flatten)]
    instance: &'a Instance,
}

pub async fn run(name: &str, within: &Within, is_live: bool, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&within.reach).await?;
    let namespace = cluster.namespace(within);
    if is_live {
        return follow(&cluster, namespace, name, as_json, out).await;
    }
    let slo: Slo = cluster.get(namespace, name).await?;
    let plans = match cluster.all::<NodePlan>().await {
        Ok(plans) => plans,
        Err(error) => {
            eprintln!("sluice: nodes and instances are left out: {error}");
            Vec::new()
        }
    };
    print(&slo, &plans.iter().collect::<Vec<_>>(), as_json, out)
}

/// Prints it again at each change.
async fn follow(cluster: &Cluster, namespace: &str, name: &str, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    // It is there, or the error says so.
    cluster.get::<Slo>(namespace, name).await?;
    let (mut feed, denied) = Feed::start(cluster, Some(namespace)).await?;
    if let Some(denied) = denied {
        eprintln!("sluice: nodes and instances are left out: {denied}");
    }
    let mut before = Vec::new();
    loop {
        let Some(slo) = feed.slos().into_iter().find(|slo| slo.name_any() == name) else {
            bail!("{namespace}/{name} was deleted");
        };
        let plans = feed.plans();
        let mut text = Vec::new();
        print(&slo, &plans.iter().map(Arc::as_ref).collect::<Vec<_>>(), as_json, &mut text)?;
        if text != before {
            if !before.is_empty() && !as_json {
                writeln!(out)?;
            }
            out.write_all(&text)?;
            out.flush()?;
            before = text;
        }
        if let Some(trouble) = feed.change().await {
            eprintln!("sluice: {trouble}; it is tried again");
        }
    }
}

fn print(slo: &Slo, plans: &[&NodePlan], as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let (namespace, own) = (slo.namespace().unwrap_or_default(), slo.name_any());
    let mut nodes = rows::on_nodes(plans.iter().copied(), Some(&namespace));
    nodes.retain(|one| one.slo == own);
    let servers: Vec<PlacedServer> = plans.iter().map(|plan| rows::server(plan)).collect();
    let slo_name = format!("{namespace}/{own}");
    let mut instances: Vec<(&PlacedServer, &Instance)> = Vec::new();
    for server in &servers {
        instances.extend(server.instances.iter().filter(|one| one.slo == slo_name).map(|one| (server, one)));
    }
    instances.sort_by_key(|(_, one)| one.number);
    if as_json {
        let instances = instances.iter().map(|(server, instance)| Placed { node: &server.name, instance }).collect();
        return json(out, &Shown { slo, nodes: &nodes, instances });
    }
    let promise = slo.spec.promise().map(|promise| promise.to_string()).unwrap_or_default();
    writeln!(out, "{namespace}/{own}: {promise}\nit is {}", state(slo))?;
    let traffic = slo.spec.traffic.as_ref().map(|traffic| format!(", traffic: {traffic}")).unwrap_or_default();
    let kind = if slo.spec.function.is_some() { "NF" } else { "chain" };
    writeln!(out, "{kind} {}{traffic}", slo.spec.subject())?;
    conditions(slo).print(out, colour())?;
    if !instances.is_empty() {
        writeln!(out)?;
        let mask = |server: &PlacedServer, one: &Instance| server.masks().get(&(one.slo.clone(), one.number)).copied().unwrap_or(0);
        let rows = instances.iter().map(|(server, one)| (server.name.as_str(), *one, mask(server, one)));
        bars::instances(rows).print(out, colour())?;
    }
    if !nodes.is_empty() {
        writeln!(out)?;
        kept(&nodes).print(out, colour())?;
    }
    let lags = plans.iter().filter(|plan| nodes.iter().any(|one| one.node == plan.spec.server.name));
    let lags = lags.filter_map(|plan| Some(format!("node {} {}", plan.spec.server.name, rows::lag(plan)?)));
    { lags }.try_for_each(|line| Ok(writeln!(out, "{line}")?))
}

fn conditions(slo: &Slo) -> Table {
    let mut table = Table::new(&["CONDITION", "HOLDS", "REASON", "WHY"]);
    for one in slo.status.iter().flat_map(|status| &status.conditions) {
        let holds = match one.status.as_str() {
            "True" => "yes",
            "False" => "no",
            _ => "?",
        };
        table.row(vec![one.type_.as_str().into(), holds.into(), one.reason.as_str().into(), one.message.as_str().into()]);
    }
    table
}

fn kept(nodes: &[OnNode]) -> Table {
    let mut table = Table::new(&["NODE", "STATE", ">INSTANCES", ">IS GIVEN", ">CAME", ">DELIVERED", ">95 % WITHIN", ">ASKS FOR"]);
    for one in nodes {
        table.row(vec![
            one.node.as_str().into(),
            word(&one.state),
            one.instances.to_string().into(),
            rate(Some(one.given_pps)).into(),
            rate(one.offered_pps).into(),
            rate(one.delivered_pps).into(),
            micros(one.latency_us).into(),
            one.asks_for.map_or_else(|| "-".into(), |n| n.to_string()).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::{plan, slo};

    #[test]
    fn an_slo_is_shown_with_its_nodes() {
        let mut late = plan("n1", "kept");
        late.spec.revision = 9;
        let plans = [plan("n0", "kept"), late];
        let of = |as_json: bool| {
            let mut out = Vec::new();
            print(&slo("acme", "web", "kept", ""), &plans.iter().collect::<Vec<_>>(), as_json, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let shown = of(false);
        for line in [
            "acme/web: 6000000 packets/s, 95 % within 100.0 µs\nit is kept\nchain web, traffic: 64 B\n",
            "Admitted   yes    Placed  all that is promised has a place\n",
            "acme/web.1  n0      1      4 (3c00)   4.00 M/s  3.00 M/s\n",
            "n0    kept           2  6.00 M/s  5.90 M/s   5.80 M/s      55.0 µs         -\n",
            "node n1 has not taken over revision 9 of its plan, and runs 3",
        ] {
            assert!(shown.contains(line), "{line} is not in\n{shown}");
        }
        let found: serde_json::Value = serde_json::from_str(&of(true)).unwrap();
        assert_eq!((&found["nodes"][1]["node"], &found["instances"][0]["node"]), (&"n1".into(), &"n0".into()), "{found}");
        assert_eq!(found["nodes"].as_array().map(Vec::len), Some(2));
    }
}
