//! What the daemon of a chaotic run has: chains that nothing touches, and names that anything may happen to.
//!
//! # Terms
//! *Protected*: ports, services, chains and rules whose names begin with `calm`; no request and no signal names one of them. Everything
//! else has one of a few fixed names, so that a step can be drawn without a look at what there is: what does not fit is refused, and
//! that is an answer, too.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::draw::Draw;

/// Names of generators that come and go, and of sinks.
pub const GENERATORS: [&str; 4] = ["g0", "g1", "g2", "g3"];
/// Names of sinks that come and go.
pub const SINKS: [&str; 3] = ["x0", "x1", "x2"];
/// Names of services that come and go.
pub const SERVICES: [&str; 5] = ["s0", "s1", "s2", "s3", "s4"];
/// Names of services whose NFs break the rules.
pub const HOSTILE: [&str; 2] = ["h0", "h1"];
/// Name of a service that is the kernel's bridge in a network namespace of its own.
pub const FOREIGN: &str = "f0";
/// Names of chains that come and go.
pub const CHAINS: [&str; 4] = ["k0", "k1", "k2", "k3"];
/// Names of rules that come and go.
pub const RULES: [&str; 4] = ["r0", "r1", "r2", "r3"];
/// What names of protected things begin with.
pub const PROTECTED: &str = "calm";
/// Packets per second of each protected chain.
const RATE: f64 = 5_000.0;
/// Programs of honest NFs, which pass packets on as they are.
pub const PROGRAMS: [&str; 2] = ["sluice-nf-bridge", "sluice-nf-monitor"];
const FRAMES: u64 = 16_384;

/// What a site is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// Core of the manager.
    pub manager_core: usize,
    /// Cores of NFs.
    pub cores: Vec<usize>,
    /// The program whose NFs break the rules, and the arguments before the way in which they do.
    pub hostile: (String, Vec<String>),
    /// Ways to break the rules.
    pub modes: Vec<&'static str>,
    /// Whether NFs may be given another user.
    pub is_root: bool,
    /// Whether a protected chain has the tenant of NFs that break the rules, or all of them have others.
    pub among: bool,
    /// Name of a network namespace for [`FOREIGN`], where one can be made.
    pub netns: Option<String>,
}

impl Host {
    /// All services that anything may happen to.
    fn services(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let foreign = self.netns.as_ref().map(|_| (FOREIGN, 20));
        SERVICES.into_iter().map(|name| (name, 90)).chain(HOSTILE.into_iter().map(|name| (name, 25))).chain(foreign)
    }
}

/// A configuration, as values that both TOML and the requests of the API are made of.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Site {
    /// Ports.
    pub ports: Vec<Value>,
    /// Services.
    pub services: Vec<Value>,
    /// Chains.
    pub chains: Vec<Value>,
    /// Rules.
    pub rules: Vec<Value>,
}

fn table(out: &mut String, head: &str, table: &Map<String, Value>) {
    let _ = writeln!(out, "{head}");
    // What JSON writes of texts, numbers and lists of them is TOML as well.
    for (key, value) in table.iter().filter(|(_, value)| !value.is_null()) {
        let _ = writeln!(out, "{key} = {value}");
    }
    out.push('\n');
}

impl Site {
    /// What is there from the start, and again after each check: all ports, and a chain of each kind.
    pub fn at_rest(host: &Host) -> Self {
        let mut site = Self::protected(host);
        site.ports.extend(SINKS.iter().map(|name| sink(name)));
        site
    }

    /// The protected part: chains of tenants of their own, over shared and, where there are some, separate cores; and one that shares a
    /// core and, if [`Host::among`], its tenant with NFs that break the rules.
    pub fn protected(host: &Host) -> Self {
        let mut site = Self::default();
        let (first, last) = (host.cores[0], host.cores[host.cores.len() - 1]);
        for (name, tenant, cores, instances) in [
            ("calm-alone", Some("calm"), [first, first], 1),
            ("calm-wide", Some("still"), [first, last], 2),
            ("calm-among", if host.among { None } else { Some("calm") }, [first, first], 1),
        ] {
            let services = ["a", "b"].map(|end| format!("{name}-{end}"));
            site.ports.push(json!({"name": format!("{name}-in"), "kind": "gen", "rate": RATE, "flows": 32, "overload": "wait"}));
            site.ports.push(sink(&format!("{name}-out")));
            for (service, core) in services.iter().zip(cores) {
                site.services.push(json!({
                    "name": service, "exec": PROGRAMS[0], "cores": [core], "instances": instances, "tenant": tenant,
                }));
            }
            site.chains.push(json!({"name": name, "services": services, "egress": format!("{name}-out"), "on_failure": "drop"}));
            site.rules.push(json!({"name": name, "port": format!("{name}-in"), "chain": name}));
        }
        site
    }

    /// Anything beside the protected part: most have no fault.
    pub fn random(host: &Host, draw: &mut Draw) -> Self {
        let mut site = Self::protected(host);
        // Which sinks stay is drawn, too: a chain may lose its egress while another takes its place.
        let sinks: Vec<&str> = SINKS.into_iter().filter(|_| draw.percent(85)).collect();
        site.ports.extend(sinks.iter().map(|name| sink(name)));
        let generators: Vec<&str> = GENERATORS.into_iter().filter(|_| draw.percent(70)).collect();
        site.ports.extend(generators.iter().map(|name| generator(name, draw)));
        let services: Vec<&str> = host.services().filter(|(_, percent)| draw.percent(*percent)).map(|(name, _)| name).collect();
        site.services.extend(services.iter().map(|name| service(host, name, draw)));
        let chains: Vec<&str> = CHAINS.into_iter().filter(|_| draw.percent(75)).collect();
        if sinks.is_empty() {
            return site;
        }
        site.chains.extend(chains.iter().map(|name| chain(name, &services, &sinks, draw)));
        if chains.is_empty() || generators.is_empty() {
            return site;
        }
        for name in RULES {
            if draw.percent(80) {
                site.rules.push(rule(name, &generators, &chains, draw));
            }
        }
        site
    }

    /// Without any port that generates packets, and without rules.
    pub fn silent(mut self) -> Self {
        self.ports.retain(|port| port["kind"] != "gen");
        self.rules.clear();
        self
    }

    /// As TOML, with sockets in `runtime_dir`.
    pub fn toml(&self, host: &Host, runtime_dir: &Path) -> String {
        let core = host.manager_core;
        let mut out = format!(
            "[manager]\nruntime_dir = {}\nrx = [{core}]\ntx = [{core}]\nwakeup = [{core}]\nmonitor = [{core}]\nidle = \"sleep\"\n\
             stall_ms = 2000\ndrain_ms = 500\nflow_timeout_ms = 1000\n\n[memory]\nframes = {FRAMES}\nhugepages = \"auto\"\n\n",
            json!(runtime_dir.display().to_string())
        );
        for (head, tables) in
            [("[[port]]", &self.ports), ("[[service]]", &self.services), ("[[chain]]", &self.chains), ("[[rule]]", &self.rules)]
        {
            tables.iter().filter_map(Value::as_object).for_each(|values| table(&mut out, head, values));
        }
        out
    }
}

/// A port that counts what was lost, reordered and doubled.
pub fn sink(name: &str) -> Value {
    json!({"name": name, "kind": "sink"})
}

/// A port that generates packets, at any rate that a busy core can still carry.
pub fn generator(name: &str, draw: &mut Draw) -> Value {
    let overload = if draw.percent(50) { "wait" } else { "drop" };
    let rate = *draw.pick(&[500.0, 2_000.0, 5_000.0, 20_000.0]);
    let mut port = json!({
        "name": name, "kind": "gen", "rate": rate, "flows": draw.between(1, 256), "overload": overload, "size": draw.between(70, 1500),
    });
    if draw.percent(30) {
        port["protocol"] = json!("tcp");
        port["flow_packets"] = json!(draw.between(4, 100));
    }
    port
}

/// A service that is a bridge of the kernel's between two interfaces.
fn foreign(name: &str, netns: &str) -> Value {
    let setup = ["ip link add br0 type bridge", "ip link set in master br0", "ip link set out master br0", "ip link set br0 up"];
    json!({"name": name, "kind": "foreign", "netns": netns, "setup": setup, "inside_ms": 2_000})
}

/// A service of any form; one of [`HOSTILE`] breaks the rules in any way.
pub fn service(host: &Host, name: &str, draw: &mut Draw) -> Value {
    if let Some(netns) = host.netns.as_ref().filter(|_| name == FOREIGN) {
        return foreign(name, netns);
    }
    let cores = if draw.percent(50) { host.cores.clone() } else { vec![*draw.pick(&host.cores)] };
    let tenant = [None, None, Some("red"), Some("blue")][draw.below(4) as usize];
    let mut service = json!({"name": name, "cores": cores, "tenant": tenant});
    if HOSTILE.contains(&name) {
        let (program, mut args) = host.hostile.clone();
        args.push((*draw.pick(&host.modes)).into());
        service["exec"] = json!(program);
        service["args"] = json!(args);
        return service;
    }
    service["exec"] = json!(draw.pick(&PROGRAMS));
    service["instances"] = json!(draw.between(1, 3));
    service["ring"] = json!(draw.pick(&[64, 256, 1024]));
    if draw.percent(25) {
        service["zygote"] = json!(true);
    }
    if host.is_root && draw.percent(25) {
        service["user"] = json!("nobody");
    }
    service
}

/// A chain over some of `services`.
pub fn chain(name: &str, services: &[&str], sinks: &[&str], draw: &mut Draw) -> Value {
    let mut hops: Vec<&str> = Vec::new();
    for _ in 0..draw.below(4) {
        if services.is_empty() {
            break;
        }
        let hop = *draw.pick(services);
        if !hops.contains(&hop) {
            hops.push(hop);
        }
    }
    json!({"name": name, "services": hops, "egress": draw.pick(sinks), "on_failure": draw.pick(&["drop", "bypass", "restart"])})
}

/// A rule for packets of a generator, or for some of them.
pub fn rule(name: &str, generators: &[&str], chains: &[&str], draw: &mut Draw) -> Value {
    let mut rule = json!({"name": name, "port": draw.pick(generators), "chain": draw.pick(chains)});
    if draw.percent(20) {
        rule["protocol"] = json!(draw.pick(&["udp", "tcp"]));
    }
    rule
}

/// Whether no request and no signal may name this.
pub fn is_protected(name: &str) -> bool {
    name.starts_with(PROTECTED)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn host() -> Host {
        let hostile = ("/bin/false".into(), vec!["hostile".into()]);
        Host {
            manager_core: 0,
            cores: vec![1],
            hostile,
            modes: vec!["random"],
            is_root: false,
            among: true,
            netns: Some("chaos-1".into()),
        }
    }

    #[test]
    fn a_random_site_has_the_protected_part_whole() {
        let protected = Site::protected(&host());
        for step in 0..200 {
            let site = Site::random(&host(), &mut Draw::new(3, step));
            for (part, of) in [
                (&protected.ports, &site.ports),
                (&protected.services, &site.services),
                (&protected.chains, &site.chains),
                (&protected.rules, &site.rules),
            ] {
                assert_eq!(part[..], of[..part.len()], "step {step}");
                assert!(of[part.len()..].iter().all(|one| !is_protected(one["name"].as_str().unwrap())));
            }
            assert!(part_is_sound(&site), "step {step}");
        }
    }

    /// Whether nothing refers to what is not there.
    fn part_is_sound(site: &Site) -> bool {
        let names = |of: &[Value]| of.iter().map(|v| v["name"].clone()).collect::<Vec<_>>();
        let (ports, services, chains) = (names(&site.ports), names(&site.services), names(&site.chains));
        let sound = |chain: &Value| {
            ports.contains(&chain["egress"]) && chain["services"].as_array().unwrap().iter().all(|s| services.contains(s))
        };
        site.chains.iter().all(sound) && site.rules.iter().all(|r| ports.contains(&r["port"]) && chains.contains(&r["chain"]))
    }

    #[test]
    fn values_are_written_as_toml() {
        let text = Site::protected(&host()).silent().toml(&host(), Path::new("/tmp/a \"b"));
        assert!(text.contains("runtime_dir = \"/tmp/a \\\"b\""), "{text}");
        assert!(text.contains("services = [\"calm-wide-a\",\"calm-wide-b\"]") && !text.contains("[[rule]]"), "{text}");
        assert!(!text.contains("null") && !text.contains("\"gen\""), "{text}");
    }
}
