//! `sluice plan show --cluster`.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::Context;
use kube::ResourceExt;
use sluice_cli::bars;
use sluice_cli::lab::plan::ShowArgs;
use sluice_cli::table::colour;
use sluice_cli::usage::json;
use sluice_cluster_types::NodePlan;
use sluice_slo::placement::Placement;

use crate::connect::Cluster;
use crate::rows;

pub async fn show(cluster: &Cluster, args: &ShowArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut plans: Vec<NodePlan> = cluster.all().await?;
    plans.sort_by_key(|plan| plan.name_any());
    if args.json {
        return json(out, &plans);
    }
    let Some(path) = &args.svg else { return print(&plans, out) };
    let placement = placement(&plans);
    let names: BTreeSet<&str> = placement.instances().map(|(_, one)| one.slo.as_str()).collect();
    let picture = bars::svg(&placement, &names.into_iter().collect::<Vec<_>>())?;
    std::fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))
}

fn placement(plans: &[NodePlan]) -> Placement {
    Placement { servers: plans.iter().map(rows::server).collect() }
}

fn print(plans: &[NodePlan], out: &mut dyn Write) -> anyhow::Result<()> {
    if plans.is_empty() {
        writeln!(out, "no node has a plan: label nodes as a ServerClass says, and see that sluice-operator runs")?;
        return Ok(());
    }
    bars::print(&placement(plans), colour(), out)?;
    let lags = plans.iter().filter_map(|plan| Some((&plan.spec.server.name, rows::lag(plan)?)));
    { lags }.try_for_each(|(node, why)| Ok(writeln!(out, "node {node} {why}")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::plan;

    #[test]
    fn nodes_are_bars_with_the_names_that_users_know() {
        let mut empty = plan("n1", "kept");
        empty.spec.server.instances.clear();
        empty.status = None;
        let mut out = Vec::new();
        print(&[plan("n0", "kept"), empty], &mut out).unwrap();
        let want = "\
n0: 2 of 9 cores, 8 of 18 ways, 2 of 15 classes
  cores AA·······
  ways  ··········AAAAAAAADD
  A acme/web (2 instances, 8 ways, 6.00 M/s)
not in use: n1
node n1 has no agent that has answered, so it gets nothing: look for the pod of the chart's DaemonSet there
";
        assert_eq!(String::from_utf8(out).unwrap(), want);
        let mut out = Vec::new();
        print(&[], &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().starts_with("no node has a plan: label nodes"));
    }
}
