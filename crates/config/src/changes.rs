//! Steps from one configuration to another, in words.
//!
//! `apply` and its dry run return them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;
use sluice_api::change::{Action, Change};
use sluice_api::config;

use super::diff::Change as Step;

/// Describes a step: for each key that changes, its old and its new value.
pub fn describe(step: &Step, before: &config::Config) -> Change {
    let change = |action, kind: &str, name: &str, detail| Change { action, kind: kind.into(), name: name.into(), detail };
    let service_before = |name: &str| before.services.iter().find(|known| known.name == name);
    match step {
        Step::NeedsRestart { key } => change(Action::Restart, "key", key, "changes when sluiced is restarted".into()),
        Step::AddPort { port } => change(Action::Add, "port", &port.name, String::new()),
        Step::ReplacePort { port } => {
            let old = before.ports.iter().find(|known| known.name == port.name);
            change(Action::Change, "port", &port.name, differences(old, Some(port)))
        }
        Step::AddService { service } => {
            change(Action::Add, "service", &service.name, number_of(service.first_instances(), "instance"))
        }
        Step::ReplaceService { service } => {
            change(Action::Change, "service", &service.name, differences(service_before(&service.name), Some(service)))
        }
        Step::ChangePool { service } => {
            change(Action::Change, "pool", &service.name, differences(service_before(&service.name), Some(service)))
        }
        Step::ChangeInstances { service, before: had, instances, cores } => {
            let action = match instances.cmp(had) {
                Ordering::Greater => Action::Add,
                Ordering::Equal => Action::Change,
                Ordering::Less => Action::Remove,
            };
            let old = service_before(service);
            let new = old.map(|old| config::Service { instances: *instances, cores: cores.clone(), ..old.clone() });
            change(action, "instances", service, differences(old, new.as_ref()))
        }
        Step::AddChain { chain } => change(Action::Add, "chain", &chain.name, String::new()),
        Step::ReplaceChain { chain } => {
            let old = before.chains.iter().find(|known| known.name == chain.name);
            change(Action::Change, "chain", &chain.name, differences(old, Some(chain)))
        }
        Step::ReplaceRules { rules } => change(Action::Change, "rules", "all", differences_of_rules(&before.rules, rules)),
        Step::RemoveChain { chain } => change(Action::Remove, "chain", chain, String::new()),
        Step::RemoveService { service } => change(Action::Remove, "service", service, String::new()),
        Step::RemovePort { port } => change(Action::Remove, "port", port, String::new()),
    }
}

fn number_of(n: u32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A value for people to read: without quotes, and lists without brackets.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "unset".into(),
        Value::String(text) if !text.is_empty() && !text.contains(' ') => text.clone(),
        Value::Array(all) if !all.is_empty() => all.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// Keys and their values. Those of nested tables have a path: `pool.min`.
fn keys(of: Option<&impl Serialize>) -> BTreeMap<String, Value> {
    fn gather(path: &str, value: Value, keys: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(table) => {
                let inner = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
                table.into_iter().for_each(|(key, value)| gather(&inner(&key), value, keys));
            }
            value => _ = keys.insert(path.into(), value),
        }
    }
    let mut keys = BTreeMap::new();
    let value = of.and_then(|of| serde_json::to_value(of).ok()).unwrap_or(Value::Object(serde_json::Map::new()));
    gather("", value, &mut keys);
    keys
}

/// The keys that differ, in words: `args unset → -v; ring 256 → 512`.
fn differences(old: Option<&impl Serialize>, new: Option<&impl Serialize>) -> String {
    let (old, new) = (keys(old), keys(new));
    let value = |of: &BTreeMap<String, Value>, key: &str| of.get(key).cloned().unwrap_or(Value::Null);
    let all: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differ = all.into_iter().map(|key| (key, value(&old, key), value(&new, key))).filter(|(_, old, new)| old != new);
    differ.map(|(key, old, new)| format!("{key} {} → {}", plain(&old), plain(&new))).collect::<Vec<_>>().join("; ")
}

/// Rules that are added, removed or changed, by name; or a note that their order changed.
fn differences_of_rules(old: &[config::Rule], new: &[config::Rule]) -> String {
    let named = |rules: &[config::Rule]| -> BTreeMap<String, config::Rule> {
        let name = |(at, rule): (usize, &config::Rule)| (rule.name.clone().unwrap_or_else(|| format!("rule.{at}")), rule.clone());
        rules.iter().enumerate().map(name).collect()
    };
    let (old, new) = (named(old), named(new));
    let all: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differ = all.into_iter().filter_map(|name| match (old.get(name), new.get(name)) {
        (None, Some(rule)) => Some(format!("+ {name} to chain {}", rule.chain)),
        (Some(_), None) => Some(format!("- {name}")),
        (before, after) if before != after => Some(format!("{name}: {}", differences(before, after))),
        _ => None,
    });
    let differ: Vec<String> = differ.collect();
    if differ.is_empty() { "another order".into() } else { differ.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::diff;

    fn lines(old: &config::Config, new: &config::Config) -> Vec<String> {
        diff(old, new).iter().map(|step| describe(step, old).to_string()).collect()
    }

    #[test]
    fn steps_of_a_diff_are_changes() {
        let old = config::Config::default();
        let mut new = config::Config::default();
        new.memory.frames += 1;
        new.ports = vec![toml::from_str("name = \"in\"\nkind = \"sink\"").unwrap()];
        new.rules = vec![config::Rule { chain: "web".into(), ..Default::default() }];
        let mut lines = lines(&old, &new);
        lines.sort_unstable();
        assert_eq!(
            lines,
            ["! key memory.frames: changes when sluiced is restarted", "+ port in", "~ rules all: + rule.0 to chain web"]
        );
    }

    #[test]
    fn what_changes_is_reported_with_its_old_and_its_new_value() {
        let of = |text: &str| toml::from_str::<config::Config>(text).unwrap();
        let old = of(r#"
            port = [{ name = "in", kind = "gen", rate = 5.0 }]
            service = [{ name = "fw", exec = "fw", instances = 2 }, { name = "ids", exec = "ids", per = "flow", pool = { min = 2, max = 8 } },
                       { name = "nat", exec = "nat" }]
            chain = [{ name = "web", services = ["fw"], egress = "in" }]
            rule = [{ name = "a", chain = "web", vlan = 1 }, { name = "b", chain = "web" }, { name = "c", chain = "web" }]
        "#);
        let new = of(r#"
            port = [{ name = "in", kind = "gen", rate = 7.5 }]
            service = [{ name = "fw", exec = "fw", args = ["-v", "two words"], instances = 1 }, { name = "nat", exec = "nat", instances = 3 },
                       { name = "ids", exec = "ids", per = "flow", pool = { min = 3, max = 8 } }]
            chain = [{ name = "web", services = ["fw", "nat"], egress = "in" }]
            rule = [{ name = "a", chain = "web", vlan = 2 }, { name = "c", chain = "web" }, { name = "d", chain = "web" }]
        "#);
        assert_eq!(
            lines(&old, &new),
            [
                "~ port in: rate 5.0 → 7.5",
                "~ service fw: args [] → -v, \"two words\"; instances 2 → 1",
                "+ instances nat: instances 1 → 3",
                "~ pool ids: pool.min 2 → 3",
                "~ chain web: services fw → fw, nat",
                "~ rules all: a: vlan 1 → 2; - b; + d to chain web",
            ]
        );
        let swapped = config::Config { rules: old.rules.iter().rev().cloned().collect(), ..old.clone() };
        assert_eq!(lines(&old, &swapped), ["~ rules all: another order"]);
    }
}
