//! From a plan to a configuration of the daemon, and to the assignment that it is to keep.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sluice_api::config::{Chain, Config, PortRange, Rule, Service};
use sluice_cluster_types::{Match, NetworkFunctionSpec, NodePlanSpec, PlannedChain, PlannedFunction};
use sluice_slo::assignment::Assignment;
use sluice_slo::slo::Promise;

/// Why a plan is none for this server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    #[error(
        "chain \"{chain}\" names the port \"{port}\", and this node has: {has}; name one of these, or add the port to the node's configuration"
    )]
    NoPort { chain: String, port: String, has: String },
    #[error("the node's configuration has a {what} named \"{name}\" of its own, as the plan has: rename it there")]
    Taken { what: &'static str, name: String },
    #[error("NF \"{name}\": {why}")]
    Function { name: String, why: String },
}

/// The part of a plan that the daemon is to keep; none if there is nothing.
pub fn assignment(plan: &NodePlanSpec) -> Option<Assignment> {
    let is_any = !plan.server.instances.is_empty();
    is_any.then(|| Assignment { server: plan.server.clone(), slos: plan.slos.clone() })
}

/// The assignment with what the daemon has added for SLOs on demand, as far as the plan leaves the
/// room.
pub fn with_added(mut wanted: Assignment, now: &Assignment) -> Assignment {
    for added in &now.server.instances {
        let promised = wanted.slos.iter().find(|promised| promised.slo.name == added.slo).map(|promised| promised.slo.promise);
        let Some(Promise::OnDemand { cap, .. }) = promised else { continue };
        let own = wanted.instances(&added.slo);
        let is_full = cap.instances.is_some_and(|most| own.len() >= most as usize);
        if is_full || own.iter().any(|one| one.number == added.number) {
            continue;
        }
        let mut with = wanted.clone();
        with.server.instances.push(added.clone());
        if with.check().is_ok() {
            wanted = with;
        }
    }
    wanted
}

/// The configuration of a server with a plan; with those chains and NFs of an earlier plan, too,
/// whose names this one does not have.
///
/// # Errors
/// [`MergeError`].
pub fn merged(base: &Config, plan: &NodePlanSpec, earlier: Option<&NodePlanSpec>) -> Result<Config, MergeError> {
    let mut config = base.clone();
    let functions = chosen(&plan.functions, earlier.map_or(&[], |earlier| &earlier.functions), |one| &one.name);
    for function in functions {
        if base.services.iter().any(|service| service.name == function.name) {
            return Err(MergeError::Taken { what: "service", name: function.name.clone() });
        }
        config.services.push(service(function)?);
    }
    for chain in chosen(&plan.chains, earlier.map_or(&[], |earlier| &earlier.chains), |one| &one.name) {
        if base.chains.iter().any(|other| other.name == chain.name) {
            return Err(MergeError::Taken { what: "chain", name: chain.name.clone() });
        }
        let ports = chain.chain.ingress.iter().filter_map(|from| from.port.as_ref()).chain([&chain.chain.egress]);
        for port in ports {
            if !base.ports.iter().any(|own| own.name == *port) {
                let has = base.ports.iter().map(|own| own.name.as_str()).collect::<Vec<_>>().join(", ");
                return Err(MergeError::NoPort { chain: chain.name.clone(), port: port.clone(), has });
            }
        }
        let spec = &chain.chain;
        let (name, services, egress) = (chain.name.clone(), spec.services.clone(), spec.egress.clone());
        config.chains.push(Chain { name, services, egress, on_failure: spec.on_failure, run: spec.run, fuse: Vec::new() });
        config.rules.extend(spec.ingress.iter().enumerate().map(|(i, from)| rule(chain, i, from)));
    }
    Ok(config)
}

fn chosen<'a, T>(new: &'a [T], old: &'a [T], name: impl Fn(&T) -> &String) -> Vec<&'a T> {
    let names: BTreeSet<&String> = new.iter().map(&name).collect();
    new.iter().chain(old.iter().filter(|one| !names.contains(name(one)))).collect()
}

/// A service from which the daemon makes those of SLOs. It has no instance of its own. NFs of pods
/// attach, by the sockets of their SLOs.
fn service(function: &PlannedFunction) -> Result<Service, MergeError> {
    let PlannedFunction { name, namespace, spec, .. } = function;
    let mut written = json!({"name": name, "tenant": namespace, "instances": 0});
    match &spec.exec {
        Some(exec) => {
            extend(&mut written, program(exec, spec));
            let limits = spec.resources.clone().unwrap_or_default();
            extend(&mut written, json!({"zygote": spec.zygote, "memory": limits.memory_mib}));
            // The daemon has a limit of its own.
            if let Some(pids) = limits.pids {
                written["pids"] = pids.into();
            }
        }
        None => written["attach"] = true.into(),
    }
    serde_json::from_value(written).map_err(|error| MergeError::Function { name: name.clone(), why: error.to_string() })
}

/// How an NF's program is started, by the keys of the daemon's configuration.
pub fn program(exec: &str, spec: &NetworkFunctionSpec) -> Value {
    json!({"exec": exec, "args": spec.args, "env": spec.env, "storage": spec.storage})
}

/// Adds the keys of one object to another.
pub fn extend(to: &mut Value, from: Value) {
    if let (Some(to), Value::Object(from)) = (to.as_object_mut(), from) {
        to.extend(from);
    }
}

fn rule(chain: &PlannedChain, i: usize, from: &Match) -> Rule {
    let ports = |text: &Option<String>| text.clone().map(PortRange::Text);
    Rule {
        name: Some(format!("{}-{i}", chain.name)),
        port: from.port.clone(),
        vlan: from.vlan,
        protocol: from.protocol.clone(),
        src: from.src.clone(),
        dst: from.dst.clone(),
        src_port: ports(&from.src_port),
        dst_port: ports(&from.dst_port),
        dscp: from.dscp,
        tenant: Some(chain.namespace.clone()),
        chain: chain.name.clone(),
        ..Rule::default()
    }
}
