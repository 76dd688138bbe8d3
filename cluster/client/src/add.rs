//! `sluice slo add --cluster` and `remove`.
//!
//! What is added is checked by the API server and planned as the operator would, before anything is
//! written: all of it, or nothing. The operator decides by itself once it is written; if others
//! have taken the room meanwhile, the SLO's status says so.

use std::io::Write;

use anyhow::{Context, bail};
use kube::api::DeleteParams;
use serde::Serialize;
use sluice_cli::bars;
use sluice_cli::cluster::Within;
use sluice_cli::lab::slo::AddArgs;
use sluice_cli::table::colour;
use sluice_cli::usage::json;
use sluice_cluster_plan::Key;
use sluice_cluster_types::Slo;
use sluice_slo::placement::Instance;

use crate::connect::Cluster;
use crate::manifest::{self, Kind, Manifest, Object};
use crate::trouble::Asked;
use crate::world::{self, Forecast, Outcome};

/// The result, as JSON output.
#[derive(Serialize)]
struct AddedOutput<'a> {
    dry_run: bool,
    added: Vec<SloOutput<'a>>,
    refused: Vec<RefusedOutput<'a>>,
}

#[derive(Serialize)]
struct SloOutput<'a> {
    namespace: &'a str,
    name: &'a str,
    instances: Vec<InstanceOutput<'a>>,
}

#[derive(Serialize)]
struct InstanceOutput<'a> {
    node: &'a str,
    #[serde(flatten)]
    instance: &'a Instance,
    /// Bits of its class, from the lowest way, in hexadecimal digits.
    mask: String,
}

#[derive(Serialize)]
struct RefusedOutput<'a> {
    namespace: &'a str,
    name: &'a str,
    reason: &'a str,
}

/// An SLO, and what would become of it.
type Foreseen = (Slo, Key, Outcome);

pub async fn run(args: &AddArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&args.within.reach).await?;
    let manifests = manifest::read_all(&args.files, args.within.namespace.as_deref(), cluster.namespace(&args.within))?;
    let mut objects = Vec::new();
    for one in &manifests {
        objects.push(one.apply(&cluster, true).await?);
    }
    let world = world::read(&cluster).await.context(
        "cannot foresee where it would be placed (`kubectl apply` writes it without that, and its status says what became of it)",
    )?;
    let outcomes = foresee(Forecast::of(world), objects, &manifests);
    let is_refused = outcomes.iter().any(|(.., outcome)| outcome.why.is_some());
    if !is_refused && !args.dry_run {
        write(&cluster, &manifests).await?;
    }
    print(&outcomes, args.dry_run, args.json, out)
}

fn foresee(mut forecast: Forecast, objects: Vec<Object>, manifests: &[Manifest]) -> Vec<Foreseen> {
    forecast.put(objects.clone());
    let slos = objects.into_iter().filter_map(|object| if let Object::Slo(slo) = object { Some(slo) } else { None });
    let keys = manifests.iter().filter(|one| one.kind == Kind::Slo).map(|one| one.key.clone());
    slos.zip(keys).map(|(slo, key)| (slo, key.clone(), forecast.outcome(&key))).collect()
}

async fn write(cluster: &Cluster, manifests: &[Manifest]) -> anyhow::Result<()> {
    for (n, one) in manifests.iter().enumerate() {
        let done = one.apply(cluster, false).await;
        done.with_context(|| match n {
            0 => "nothing was written".to_string(),
            _ => {
                let before = manifests[..n].iter().map(|one| one.key.to_string()).collect::<Vec<_>>().join(", ");
                format!("{before} were written, and the rest was not")
            }
        })?;
    }
    Ok(())
}

fn print(outcomes: &[Foreseen], is_dry: bool, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let refused: Vec<_> = outcomes.iter().filter_map(|(_, key, outcome)| Some((key, outcome.why.as_deref()?))).collect();
    let added: Vec<&Foreseen> = if refused.is_empty() { outcomes.iter().collect() } else { Vec::new() };
    if as_json {
        let instance = |(node, instance, mask): (_, _, u64)| InstanceOutput { node, instance, mask: format!("{mask:x}") };
        let added = added.iter().map(|(_, key, outcome)| SloOutput {
            namespace: &key.namespace,
            name: &key.name,
            instances: outcome.instances(key).map(instance).collect(),
        });
        let no = refused.iter().map(|(key, reason)| RefusedOutput { namespace: &key.namespace, name: &key.name, reason });
        json(out, &AddedOutput { dry_run: is_dry, added: added.collect(), refused: no.collect() })?;
    }
    if !refused.is_empty() {
        let text = refused.iter().map(|(key, why)| format!("\"{key}\" is refused: {why}")).collect::<Vec<_>>().join("\n");
        bail!("{text}\nnothing was changed");
    }
    if as_json {
        return Ok(());
    }
    for (slo, key, outcome) in added {
        let word = if is_dry { "would be added" } else { "added" };
        let promise = slo.spec.promise().map(|promise| promise.to_string()).unwrap_or_default();
        writeln!(out, "{word}: {key}, {promise}")?;
        bars::instances(outcome.instances(key)).print(out, colour())?;
    }
    Ok(())
}

/// `sluice slo remove --cluster`.
pub async fn remove(names: &[String], within: &Within, out: &mut dyn Write) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&within.reach).await?;
    let namespace = cluster.namespace(within);
    let mut slos = Vec::new();
    for name in names {
        slos.push(cluster.get::<Slo>(namespace, name).await?);
    }
    let asked = Asked { verb: "delete", kind: "slos", namespace: Some(namespace) };
    for (name, slo) in names.iter().zip(slos) {
        let api = cluster.api::<Slo>(Some(namespace));
        cluster.within(&asked, api.delete(name, &DeleteParams::default())).await?;
        let instances = match slo.status.map_or(0, |status| status.instances) {
            0 => "it had no instances".to_string(),
            1 => "its instance goes".into(),
            n => format!("its {n} instances go"),
        };
        writeln!(out, "removed {namespace}/{name}: {instances}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::tests::{asked, world};

    fn outcomes(pps: f64) -> Vec<Foreseen> {
        let mut forecast = Forecast::of(world());
        let objects = asked("web", pps);
        forecast.put(objects.clone());
        let key = Key::new("acme", "web");
        let Object::Slo(slo) = objects[1].clone() else { panic!("{objects:?}") };
        vec![(slo, key.clone(), forecast.outcome(&key))]
    }

    fn text(outcomes: &[Foreseen], as_json: bool) -> (String, Option<String>) {
        let mut out = Vec::new();
        let error = print(outcomes, true, as_json, &mut out).err().map(|error| error.to_string());
        (String::from_utf8(out).unwrap(), error)
    }

    #[test]
    fn what_would_be_added_is_shown_with_its_places() {
        let (said, error) = text(&outcomes(3e6), false);
        assert!(said.starts_with("would be added: acme/web, 3000000 packets/s, 95 % within 1000.0 µs\nINSTANCE"), "{said}");
        assert!(said.contains("acme/web.0  n0 ") && error.is_none(), "{said}");
        let (said, _) = text(&outcomes(3e6), true);
        let found: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&found["added"][0]["instances"][0]["node"], &found["dry_run"]), (&"n0".into(), &true.into()), "{found}");
    }

    #[test]
    fn what_is_refused_says_why_and_changes_nothing() {
        let (said, error) = text(&outcomes(900e6), false);
        let error = error.unwrap();
        assert!(
            said.is_empty() && error.starts_with("\"acme/web\" is refused: ") && error.ends_with("\nnothing was changed"),
            "{error}"
        );
        let (said, error) = text(&outcomes(900e6), true);
        let found: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert!(error.is_some() && found["added"].as_array().unwrap().is_empty(), "{found}");
        assert!(found["refused"][0]["reason"].as_str().unwrap().contains("this would fit"), "{found}");
    }
}
