//! The configuration of a chaotic run: protected chains, and names open to any step.
//!
//! # Terms
//! *Protected*: ports, services, chains and rules whose names begin with `calm`; no request and no
//! signal names one of them. Everything else has one of a few fixed names, so that a step can be
//! drawn without knowing the daemon's state. What does not fit is refused, which is tested, too.
//!
//! One protected chain gets its packets from a port ([`SHARED`]) whose other flows may belong to a
//! chain of the tenant red ([`ODD`]). While that chain exists, packets are copied out of memory
//! that no NF maps; otherwise they are received into their tenant's own. Protected packets have a
//! checksum over all of their bytes.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::draw::Draw;

/// Names of generators that come and go.
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
/// Tenants of things that come and go; `-` has no name.
pub const TENANTS: [&str; 3] = ["red", "blue", "-"];
/// Name of the chain for the other flows of the shared port, of its rule, and of its service of the
/// tenant red.
pub const ODD: &str = "odd";
/// Name of the protected chain whose port red shares.
pub const SHARED: &str = "calm-shared";
/// Prefix of the names of protected things.
pub const PROTECTED: &str = "calm";
/// Packets per second of each protected chain.
const RATE: f64 = 5_000.0;
/// Programs of honest NFs, which pass packets on unchanged.
pub const PROGRAMS: [&str; 2] = ["sluice-nf-bridge", "sluice-nf-monitor"];
const FRAMES: u64 = 16_384;
/// Ring size of the NF behind the shared port, which drops packets when full: room for some
/// seconds.
const LONG_RING: u64 = 8_192;
/// Half of the flows of the shared port.
const FLOWS: u64 = 16;

/// Parameters of a site.
#[derive(Debug, Clone, PartialEq)]
pub struct SiteHost {
    /// Cores of the manager; each of several receives and forwards.
    pub manager_cores: Vec<usize>,
    /// Cores of NFs.
    pub cores: Vec<usize>,
    /// The program of NFs that break the rules, and its arguments before the mode.
    pub hostile: (String, Vec<String>),
    /// Modes of NFs that break the rules.
    pub modes: Vec<&'static str>,
    /// Whether NFs may run as another user.
    pub is_root: bool,
    /// Whether a protected chain shares the tenant of NFs that break the rules.
    pub among: bool,
    /// Name of a network namespace for [`FOREIGN`], where one can be created.
    pub netns: Option<String>,
    /// Whether a tenant gets fresh packet memory after each stop for violations.
    pub replaces_memory: bool,
}

impl SiteHost {
    /// Tenants whose memory may be replaced, which ends all of their NFs: those without protected
    /// ones.
    pub fn renewed(&self) -> &'static [&'static str] {
        if self.among { &TENANTS[..2] } else { &TENANTS }
    }

    /// All services that are not protected, each with its percentage.
    fn services(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let foreign = self.netns.as_ref().map(|_| (FOREIGN, 20));
        SERVICES.into_iter().map(|name| (name, 90)).chain(HOSTILE.into_iter().map(|name| (name, 25))).chain(foreign)
    }
}

/// A configuration, as JSON values from which both TOML and API requests are made.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Site {
    pub ports: Vec<Value>,
    pub services: Vec<Value>,
    pub chains: Vec<Value>,
    pub rules: Vec<Value>,
}

fn table(out: &mut String, head: &str, table: &Map<String, Value>) {
    let _ = writeln!(out, "{head}");
    // JSON strings, numbers and lists of them are valid TOML.
    for (key, value) in table.iter().filter(|(_, value)| !value.is_null()) {
        let _ = writeln!(out, "{key} = {value}");
    }
    out.push('\n');
}

impl Site {
    /// The site at the start and after each check: all ports, and a chain of each kind.
    pub fn at_rest(host: &SiteHost) -> Self {
        let mut site = Self::protected(host);
        site.ports.extend(SINKS.iter().map(|name| sink(name)));
        site
    }

    /// The protected part.
    ///
    /// It has chains with their own tenants, on shared and, where there are some, separate cores.
    /// One more chain shares a core with NFs that break the rules and, if [`SiteHost::among`],
    /// their tenant.
    pub fn protected(host: &SiteHost) -> Self {
        let mut site = Self::default();
        let (first, last) = (host.cores[0], host.cores[host.cores.len() - 1]);
        for (name, tenant, cores, instances) in [
            ("calm-alone", Some("calm"), [first, first], 1),
            ("calm-wide", Some("still"), [first, last], 2),
            ("calm-among", if host.among { None } else { Some("calm") }, [first, first], 1),
        ] {
            let services = ["a", "b"].map(|end| format!("{name}-{end}"));
            site.ports.push(source(host, &format!("{name}-in"), RATE, "wait"));
            site.ports.push(patient(&format!("{name}-out")));
            for (service, core) in services.iter().zip(cores) {
                site.services.push(json!({
                    "name": service, "exec": PROGRAMS[0], "cores": [core], "instances": instances, "tenant": tenant,
                }));
            }
            site.chains.push(json!({"name": name, "services": services, "egress": format!("{name}-out"), "on_failure": "drop"}));
            site.rules.push(json!({"name": name, "port": format!("{name}-in"), "chain": name}));
        }
        let name = SHARED;
        site.ports.push(source(host, &format!("{name}-in"), 2.0 * RATE, "drop"));
        site.ports.push(patient(&format!("{name}-out")));
        site.services.push(json!({
            "name": name, "exec": PROGRAMS[0], "cores": [last], "tenant": "still", "ring": LONG_RING,
        }));
        site.chains.push(json!({"name": name, "services": [name], "egress": format!("{name}-out"), "on_failure": "drop"}));
        site.rules
            .push(json!({"name": name, "port": format!("{name}-in"), "src": format!("10.9.0.0/{}", prefix()), "chain": name}));
        site
    }

    /// Packets per second for protected chains.
    pub fn offered(host: &SiteHost) -> f64 {
        let of = |port: &Value| port["rate"].as_f64().unwrap_or(0.0);
        let all: f64 = Self::protected(host).ports.iter().map(of).sum();
        // Half of the shared port's rate is not theirs.
        all - RATE
    }

    /// Gives half of the shared port's flows to an NF of the tenant red that breaks the rules.
    fn add_odd(&mut self, host: &SiteHost, draw: &mut Draw) {
        let (program, mut args) = host.hostile.clone();
        args.push((*draw.pick(&host.modes)).into());
        let core = host.cores[host.cores.len() - 1];
        self.ports.push(sink("odd-out"));
        self.services.push(json!({"name": ODD, "exec": program, "args": args, "cores": [core], "tenant": TENANTS[0]}));
        self.chains.push(json!({"name": ODD, "services": [ODD], "egress": "odd-out", "on_failure": "restart"}));
        let other = format!("10.9.0.{FLOWS}/{}", prefix());
        self.rules.push(json!({"name": ODD, "port": format!("{SHARED}-in"), "src": other, "chain": ODD}));
    }

    /// A random site around the protected part, mostly valid.
    pub fn random(host: &SiteHost, draw: &mut Draw) -> Self {
        let mut site = Self::protected(host);
        if draw.percent(70) {
            site.add_odd(host, draw);
        }
        // The set of sinks is random, too: a chain may lose its egress while another takes its
        // place.
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

    /// The site without generators and without rules.
    pub fn silent(mut self) -> Self {
        self.ports.retain(|port| port["kind"] != "gen");
        self.rules.clear();
        self
    }

    pub fn toml(&self, host: &SiteHost, runtime_dir: &Path) -> String {
        let (cores, core) = (json!(host.manager_cores), host.manager_cores[0]);
        let after = if host.replaces_memory { "replace" } else { "keep" };
        let mut out = format!(
            "[manager]\nruntime_dir = {}\nrx = {cores}\ntx = {cores}\nwakeup = [{core}]\nmonitor = [{core}]\nidle = \"sleep\"\n\
             stall_ms = 2000\ndrain_ms = 500\nflow_timeout_ms = 1000\n\n\
             [memory]\nframes = {FRAMES}\nhugepages = \"auto\"\nafter_violation = \"{after}\"\n\n",
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

/// A port that counts lost, reordered and duplicated packets.
pub fn sink(name: &str) -> Value {
    json!({"name": name, "kind": "sink"})
}

/// A sink for which packets wait: its queue's thread may be off its core for a while.
fn patient(name: &str) -> Value {
    json!({"name": name, "kind": "sink", "overload": "wait"})
}

/// Length of the prefix that [`FLOWS`] addresses share.
fn prefix() -> u32 {
    32 - FLOWS.ilog2()
}

/// A port that generates packets for a protected chain.
fn source(host: &SiteHost, name: &str, rate: f64, overload: &str) -> Value {
    json!({
        "name": name, "kind": "gen", "rate": rate, "flows": 2 * FLOWS, "overload": overload, "size": 128, "src": "10.9.0.0",
        "checksum": true, "queues": host.manager_cores.len(),
    })
}

/// A port that generates packets, at a rate that a busy core still carries.
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

/// A service that is a kernel bridge between two interfaces.
fn foreign(name: &str, netns: &str) -> Value {
    let setup = ["ip link add br0 type bridge", "ip link set in master br0", "ip link set out master br0", "ip link set br0 up"];
    json!({"name": name, "kind": "foreign", "netns": netns, "setup": setup, "inside_ms": 2_000})
}

/// A random service; one of [`HOSTILE`] breaks the rules in a random mode.
pub fn service(host: &SiteHost, name: &str, draw: &mut Draw) -> Value {
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

/// A random chain over some of `services`.
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

/// A rule for all packets of a generator, or for some of them.
pub fn rule(name: &str, generators: &[&str], chains: &[&str], draw: &mut Draw) -> Value {
    let mut rule = json!({"name": name, "port": draw.pick(generators), "chain": draw.pick(chains)});
    if draw.percent(20) {
        rule["protocol"] = json!(draw.pick(&["udp", "tcp"]));
    }
    rule
}

/// Whether requests and signals must not name this.
pub fn is_protected(name: &str) -> bool {
    name.starts_with(PROTECTED)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn host() -> SiteHost {
        let hostile = ("/bin/false".into(), vec!["hostile".into()]);
        SiteHost {
            manager_cores: vec![0],
            cores: vec![1],
            hostile,
            modes: vec!["random"],
            is_root: false,
            among: true,
            netns: Some("chaos-1".into()),
            replaces_memory: true,
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

    #[test]
    fn half_of_the_shared_port_is_of_red_for_a_part_of_the_time() {
        let sites: Vec<Site> = (0..200).map(|step| Site::random(&host(), &mut Draw::new(3, step))).collect();
        let odd = |site: &&Site| site.rules.iter().any(|rule| rule["name"] == ODD);
        let with = sites.iter().filter(odd).count();
        assert!((100..180).contains(&with), "{with}");
        let site = sites.iter().find(odd).unwrap();
        let rules: Vec<_> =
            site.rules.iter().filter(|rule| rule["port"] == "calm-shared-in").map(|rule| rule["src"].clone()).collect();
        assert_eq!(rules, ["10.9.0.0/28", "10.9.0.16/28"]);
        assert_eq!(Site::offered(&host()), 4.0 * RATE);
        assert_eq!(
            (SiteHost { among: true, ..host() }.renewed(), SiteHost { among: false, ..host() }.renewed().len()),
            (&["red", "blue"][..], 3)
        );
    }

    /// Whether all references resolve.
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
