//! The steps of a chaotic run, drawn from the seed and the step's number alone.
//!
//! A step that does not fit (a chain that exists already, an NF that has ended) is refused by the
//! daemon or finds no process. That is part of the run.

use std::fmt;

use serde_json::{Value, json};

use super::draw::Draw;
use super::site::{self, CHAINS, FOREIGN, GENERATORS, HOSTILE, PROGRAMS, RULES, SERVICES, SINKS, Site, SiteHost};

/// Steps of a round.
pub const ROUND: u64 = 40;
/// Rounds after which the daemon itself is killed.
pub const ROUNDS_OF_A_LIFE: u64 = 5;
/// Range of instance indices; an index wraps around at the number of instances.
const INSTANCES: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Kill,
    Segv,
    Term,
    Abrt,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub method: &'static str,
    /// Address, with the name in it; `SERVICE#i` is resolved at the call.
    pub address: String,
    pub body: Option<Value>,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Calls of the API, concurrent if they are several.
    Calls(Vec<Call>),
    /// Applies a configuration.
    Apply(Box<Site>),
    /// Sends a signal to the process of an NF.
    Signal(String, Signal),
    /// Stops the process of an NF, and continues it this many steps later.
    Stop(String, u64),
    /// Kills the zygote of a service.
    KillZygote(String),
}

impl Step {
    /// Step `number` of the run with this seed.
    pub fn draw(host: &SiteHost, seed: u64, number: u64) -> Self {
        let mut draw = Draw::new(seed, number);
        let draw = &mut draw;
        if number.is_multiple_of(ROUND) {
            return Self::Apply(Box::new(Site::random(host, draw)));
        }
        match draw.below(100) {
            0..=7 => Self::Apply(Box::new(Site::random(host, draw))),
            8..=37 => Self::signal(draw),
            38..=42 => Self::Stop(nf(draw), draw.between(1, 6)),
            43..=45 => Self::KillZygote(draw.name(&SERVICES).into()),
            46..=51 => {
                let calls = draw.between(2, 5);
                Self::Calls((0..calls).map(|_| Call::draw(host, draw)).collect())
            }
            _ => Self::Calls(vec![Call::draw(host, draw)]),
        }
    }

    fn signal(draw: &mut Draw) -> Self {
        let signal = *draw.pick(&[Signal::Kill, Signal::Kill, Signal::Kill, Signal::Segv, Signal::Term, Signal::Abrt]);
        Self::Signal(nf(draw), signal)
    }

    /// Milliseconds from this step to the next.
    pub fn pause_ms(seed: u64, number: u64) -> u64 {
        let mut draw = Draw::new(!seed, number);
        if draw.percent(10) { draw.between(50, 300) } else { draw.below(30) }
    }
}

/// An instance of an unprotected service: `SERVICE#i` is its i-th instance at that moment.
fn nf(draw: &mut Draw) -> String {
    format!("{}#{}", any_service(draw), draw.below(INSTANCES))
}

fn any_service(draw: &mut Draw) -> &'static str {
    if draw.percent(85) { draw.name(&SERVICES) } else { draw.name(&HOSTILE) }
}

impl Call {
    fn new(method: &'static str, address: String, body: Option<Value>) -> Self {
        Self { method, address, body }
    }

    fn draw(host: &SiteHost, draw: &mut Draw) -> Self {
        let post = |address: &str, body| Self::new("POST", address.into(), Some(body));
        let delete = |collection: &str, name: &str| Self::new("DELETE", format!("/v1/{collection}/{name}"), None);
        match draw.below(104) {
            0..=14 => {
                let core = if draw.percent(30) { Some(*draw.pick(&host.cores)) } else { None };
                let mut body = json!({"service": any_service(draw)});
                body.as_object_mut().map(|body| core.map(|core| body.insert("core".into(), core.into())));
                post("/v1/nfs", body)
            }
            // May be the last instance that an open chain passes.
            15..=26 => delete("nfs", &format!("{}?force=true", nf(draw))),
            27..=36 => {
                let nf = nf(draw);
                post(&format!("/v1/nfs/{nf}/move"), json!({"core": draw.pick(&host.cores)}))
            }
            37..=43 => {
                let name = if host.netns.is_some() && draw.percent(5) { FOREIGN } else { any_service(draw) };
                post("/v1/services", site::service(host, name, draw))
            }
            44..=47 => {
                let name = if draw.percent(10) { FOREIGN } else { any_service(draw) };
                delete("services", name)
            }
            48..=56 => {
                // Mostly services that exist; sometimes one that may not.
                let of: Vec<&str> = if draw.percent(80) { SERVICES.into() } else { [&SERVICES[..], &HOSTILE, &[FOREIGN]].concat() };
                let services: Vec<&str> = of.into_iter().filter(|_| draw.percent(60)).collect();
                let name = draw.name(&CHAINS);
                post("/v1/chains", site::chain(name, &services, &SINKS, draw))
            }
            57..=61 => delete("chains", draw.name(&CHAINS)),
            62..=71 => {
                let name = draw.name(&RULES);
                let rule = site::rule(name, &GENERATORS, &CHAINS, draw);
                post("/v1/rules", json!({"rule": rule, "position": draw.below(6)}))
            }
            72..=77 => delete("rules", draw.name(&RULES)),
            78..=85 => {
                let port = if draw.percent(70) {
                    let name = draw.name(&GENERATORS);
                    site::generator(name, draw)
                } else {
                    site::sink(draw.name(&SINKS))
                };
                post("/v1/ports", port)
            }
            86..=90 => {
                let name = if draw.percent(70) { draw.name(&GENERATORS) } else { draw.name(&SINKS) };
                delete("ports", name)
            }
            91..=94 => delete("tenants", &format!("{}/memory", draw.pick(host.renewed()))),
            _ => {
                let service = any_service(draw);
                let body = match draw.below(10) {
                    0 => json!({"exec": "/bin/false"}),
                    1 => json!({"exec": "/nowhere/nf"}),
                    2 | 3 => {
                        let (program, mut args) = host.hostile.clone();
                        args.push((*draw.pick(&host.modes)).into());
                        json!({"exec": program, "args": args})
                    }
                    _ => json!({"exec": draw.pick(&PROGRAMS), "args": []}),
                };
                post(&format!("/v1/services/{service}/upgrade"), body)
            }
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.method, self.address)?;
        self.body.as_ref().map_or(Ok(()), |body| write!(out, " {body}"))
    }
}

/// The names of unprotected things, with the mode of NFs that break the rules.
fn names(of: &[Value]) -> Vec<String> {
    let named = of.iter().filter_map(|value| Some((value["name"].as_str()?, value)));
    let how = |(name, value): (&str, &Value)| match value["args"].as_array().and_then(|args| args.last()?.as_str()) {
        Some(mode) => format!("{name} {mode}"),
        None => name.into(),
    };
    named.filter(|(name, _)| !site::is_protected(name)).map(how).collect()
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calls(calls) => {
                let calls: Vec<String> = calls.iter().map(Call::to_string).collect();
                write!(out, "{}", calls.join(" + "))
            }
            Self::Apply(site) => {
                let Site { ports, services, chains, rules } = &**site;
                write!(out, "apply {:?} {:?} {:?} {:?}", names(ports), names(services), names(chains), names(rules))
            }
            Self::Signal(nf, signal) => write!(out, "{signal:?} {nf}"),
            Self::Stop(nf, steps) => write!(out, "stop {nf} for {steps} steps"),
            Self::KillZygote(service) => write!(out, "kill the zygote of {service}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::chaos::site::tests::host;

    #[test]
    fn a_seed_gives_the_same_steps_each_time() {
        let steps = |seed| (0..500).map(|n| Step::draw(&host(), seed, n).to_string()).collect::<Vec<_>>();
        assert_eq!(steps(1), steps(1));
        assert_ne!(steps(1), steps(2));
        assert!((0..500).all(|n| Step::pause_ms(4, n) <= 300));
    }

    #[test]
    fn no_step_names_what_is_protected() {
        for number in 0..2000 {
            let step = Step::draw(&host(), 5, number);
            assert!(!step.to_string().contains(site::PROTECTED), "{step}");
        }
    }

    #[test]
    fn every_kind_of_step_comes() {
        let all: Vec<String> = (0..2000).map(|n| Step::draw(&host(), 6, n).to_string()).collect();
        for part in [
            "apply",
            "Kill s",
            "#2",
            "Segv",
            "Term",
            "Abrt",
            "stop s",
            "zygote",
            "POST /v1/nfs ",
            "DELETE /v1/nfs",
            "/move",
            "POST /v1/services ",
            "DELETE /v1/services",
            "POST /v1/chains",
            "DELETE /v1/chains",
            "POST /v1/rules",
            "DELETE /v1/rules",
            "POST /v1/ports",
            "DELETE /v1/ports",
            "DELETE /v1/tenants/red/memory",
            "/upgrade",
            "/bin/false",
            " + ",
        ] {
            assert!(all.iter().any(|step| step.contains(part)), "{part}");
        }
    }
}
