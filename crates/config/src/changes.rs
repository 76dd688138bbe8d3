//! Steps from one configuration to another, in words.
//!
//! `apply` and its dry run return them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Value, json};
use sluice_api::change::{Action, Change, ChangedKey};
use sluice_api::config;

use super::diff::Change as Step;

/// Describes a step: for each key that changes, its old and its new value.
pub fn describe(step: &Step, before: &config::Config) -> Change {
    let change = |action, kind: &str, name: &str, (detail, keys): (String, Vec<ChangedKey>)| Change {
        action,
        kind: kind.into(),
        name: name.into(),
        detail,
        keys,
    };
    let named_only = |keys: Vec<ChangedKey>| (String::new(), keys);
    let (add, remove) = (Action::Add, Action::Remove);
    let service_before = |name: &str| before.services.iter().find(|known| known.name == name);
    let port_before = |name: &str| before.ports.iter().find(|known| known.name == name);
    let chain_before = |name: &str| before.chains.iter().find(|known| known.name == name);
    let of_service = |kind, service: &config::Service| {
        change(Action::Change, kind, &service.name, both(service_before(&service.name), Some(service)))
    };
    match step {
        Step::NeedsRestart { key } => change(Action::Restart, "key", key, ("changes when sluiced is restarted".into(), Vec::new())),
        Step::ChangeManager { manager } => change(Action::Change, "section", "manager", both(Some(&before.manager), Some(manager))),
        Step::ChangeSched { sched } => change(Action::Change, "section", "sched", both(Some(&before.sched), Some(sched))),
        Step::ChangeFlowLog { flow_log } => {
            change(Action::Change, "section", "flow_log", both(Some(&before.flow_log), Some(flow_log)))
        }
        Step::ChangeRecorder { recorder } => {
            change(Action::Change, "section", "recorder", both(Some(&before.recorder), Some(recorder)))
        }
        Step::AddPort { port } => change(add, "port", &port.name, named_only(changed(None, Some(port)))),
        Step::ReplacePort { port } | Step::ChangeRate { port } => {
            change(Action::Change, "port", &port.name, both(port_before(&port.name), Some(port)))
        }
        Step::AddService { service } => {
            let detail = number_of(service.first_instances(), "instance");
            change(add, "service", &service.name, (detail, changed(None, Some(service))))
        }
        Step::ReplaceService { service } | Step::ChangePriority { service } => of_service("service", service),
        Step::ChangePool { service } => of_service("pool", service),
        Step::ChangeInstances { service, before: had, instances, cores } => {
            let action = match instances.cmp(had) {
                Ordering::Greater => add,
                Ordering::Equal => Action::Change,
                Ordering::Less => remove,
            };
            let old = service_before(service);
            let new = old.map(|old| config::Service { instances: *instances, cores: cores.clone(), ..old.clone() });
            change(action, "instances", service, both(old, new.as_ref()))
        }
        Step::AddChain { chain } => change(add, "chain", &chain.name, named_only(changed(None, Some(chain)))),
        Step::ReplaceChain { chain } => change(Action::Change, "chain", &chain.name, both(chain_before(&chain.name), Some(chain))),
        Step::ReplaceRules { rules } => change(Action::Change, "rules", "all", of_rules(&before.rules, rules)),
        Step::RemoveChain { chain } => change(remove, "chain", chain, named_only(changed(chain_before(chain), None))),
        Step::RemoveService { service } => change(remove, "service", service, named_only(changed(service_before(service), None))),
        Step::RemovePort { port } => change(remove, "port", port, named_only(changed(port_before(port), None))),
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

/// A value of a key, as it is shown, if it has one.
fn shown(value: Option<&Value>) -> Option<String> {
    value.filter(|value| !value.is_null()).map(plain)
}

/// The keys in which two objects differ. Without one of them: the keys of the other that are no
/// defaults, apart from its name.
fn changed<T: Serialize + WithDefaults>(old: Option<&T>, new: Option<&T>) -> Vec<ChangedKey> {
    let defaults = |other: Option<&T>| other.map_or_else(BTreeMap::new, |other| keys(other.with_defaults().as_ref()));
    let mut old_keys = old.map_or_else(|| defaults(new), |old| keys(Some(old)));
    let mut new_keys = new.map_or_else(|| defaults(old), |new| keys(Some(new)));
    let all: BTreeSet<String> = old_keys.keys().chain(new_keys.keys()).cloned().collect();
    let differ = all.into_iter().filter_map(|key| {
        let (before, after) = (old_keys.remove(&key), new_keys.remove(&key));
        if before.clone().unwrap_or_default() == after.clone().unwrap_or_default() {
            return None;
        }
        // What has a default instead is not there.
        let before = shown(before.as_ref()).filter(|_| old.is_some());
        let after = shown(after.as_ref()).filter(|_| new.is_some());
        Some(ChangedKey { key, before, after })
    });
    differ.collect()
}

/// The keys that differ, in words and as a list.
fn both<T: Serialize + WithDefaults>(old: Option<&T>, new: Option<&T>) -> (String, Vec<ChangedKey>) {
    (differences(old, new), changed(old, new))
}

/// An object of the same name without the keys that may be left out.
trait WithDefaults: Sized {
    fn with_defaults(&self) -> Option<Self>;
}

/// The smallest object with these keys.
fn smallest<T: serde::de::DeserializeOwned>(keys: Value) -> Option<T> {
    serde_json::from_value(keys).ok()
}

impl WithDefaults for config::Manager {
    fn with_defaults(&self) -> Option<Self> {
        Some(Self::default())
    }
}

impl WithDefaults for config::Sched {
    fn with_defaults(&self) -> Option<Self> {
        Some(Self::default())
    }
}

impl WithDefaults for config::FlowLogConfig {
    fn with_defaults(&self) -> Option<Self> {
        Some(Self::default())
    }
}

impl WithDefaults for config::Recorder {
    fn with_defaults(&self) -> Option<Self> {
        Some(Self::default())
    }
}

impl WithDefaults for config::Port {
    fn with_defaults(&self) -> Option<Self> {
        smallest(json!({ "name": self.name, "kind": self.kind.word() }))
    }
}

impl WithDefaults for config::Service {
    fn with_defaults(&self) -> Option<Self> {
        smallest(json!({ "name": self.name }))
    }
}

impl WithDefaults for config::Chain {
    fn with_defaults(&self) -> Option<Self> {
        // Its egress is no default, and is shown.
        smallest(json!({ "name": self.name, "egress": "" }))
    }
}

impl WithDefaults for config::Rule {
    fn with_defaults(&self) -> Option<Self> {
        Some(Self { name: self.name.clone(), ..Self::default() })
    }
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
fn of_rules(old: &[config::Rule], new: &[config::Rule]) -> (String, Vec<ChangedKey>) {
    let named = |rules: &[config::Rule]| -> BTreeMap<String, config::Rule> {
        rules.iter().enumerate().map(|(at, rule)| (rule.label(at), rule.clone())).collect()
    };
    let (old, new) = (named(old), named(new));
    let all: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let (mut words, mut keys) = (Vec::new(), Vec::new());
    for name in all {
        let (before, after) = (old.get(name), new.get(name));
        if before == after {
            continue;
        }
        words.push(match (before, after) {
            (None, Some(rule)) => format!("+ {name} to chain {}", rule.chain),
            (Some(_), None) => format!("- {name}"),
            _ => format!("{name}: {}", differences(before, after)),
        });
        keys.extend(changed(before, after).into_iter().map(|key| ChangedKey { key: format!("{name}.{}", key.key), ..key }));
    }
    (if words.is_empty() { "another order".into() } else { words.join("; ") }, keys)
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
        let keys = |step: &Step| -> Vec<String> {
            let show = |key: ChangedKey| format!("{} {:?} {:?}", key.key, key.before, key.after);
            describe(step, &old).keys.into_iter().map(show).collect()
        };
        let steps = diff(&old, &new);
        assert_eq!(keys(&steps[0]), ["rate Some(\"5.0\") Some(\"7.5\")"]);
        let last = steps.last().unwrap();
        let rules = ["a.vlan Some(\"1\") Some(\"2\")", "b.chain Some(\"web\") None", "d.chain None Some(\"web\")"];
        assert_eq!(keys(last), rules);
        let chain = Step::AddChain { chain: new.chains[0].clone() };
        assert_eq!(keys(&chain), ["egress None Some(\"in\")", "services None Some(\"fw, nat\")"]);
        let gone = Step::RemoveService { service: "fw".into() };
        assert_eq!(keys(&gone), ["exec Some(\"fw\") None", "instances Some(\"2\") None"]);
        let swapped = config::Config { rules: old.rules.iter().rev().cloned().collect(), ..old.clone() };
        assert_eq!(lines(&old, &swapped), ["~ rules all: another order"]);
    }
}
