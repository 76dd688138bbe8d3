//! The chain and the rate of each port's packets.
//!
//! For a generator, one packet of each flow is classified by the rules, as in the daemon. Packets
//! of other ports are unknown: they are spread evenly over the chains that the rules can select, up
//! to the first rule that matches everything.

use std::collections::{BTreeMap, HashMap};

use super::error::{SimulateError, names};
use super::options::{MOST_PPS, Options};
use sluice_api::config::{self as model, Config, Gen, Overload, Port, PortKind};
use sluice_dataplane::classify::compile;
use sluice_dataplane::classify::key::FlowKey;
use sluice_dataplane::classify::rule::RuleSet;
use sluice_ports::generator;

/// Most classified flows of a port; of more, a sample.
const SAMPLE: u32 = 1 << 16;
/// Assumed flows of a port where they are unknown.
const MANY: u64 = 1 << 16;

/// Packets of one port for one chain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stream {
    /// Index of the chain.
    pub chain: usize,
    pub flows: u64,
    pub rate_pps: f64,
}

/// The streams of all ports.
///
/// # Errors
/// Ports of unknown rate, rates out of range, rules and settings that the daemon would refuse.
pub fn streams(config: &Config, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Stream>, SimulateError> {
    let rules = compile(config)?;
    let mut streams = Vec::new();
    let mut unknown = Vec::new();
    let mut waiting = Vec::new();
    for (number, port) in config.ports.iter().enumerate() {
        let mut mine = config.rules.iter().filter(|r| r.port.as_ref().is_none_or(|name| *name == port.name)).peekable();
        if port.kind.no_input().is_some() {
            continue;
        }
        if mine.peek().is_none() {
            if matches!(port.kind, PortKind::Gen(_)) {
                notes.push(format!("no rule takes the packets of port {}: all are dropped at the door", port.name));
            }
            continue;
        }
        let Some(rate_pps) = rate(port, options) else {
            unknown.push(port.name.clone());
            continue;
        };
        if !(0.0..=MOST_PPS).contains(&rate_pps) {
            return Err(SimulateError::Rate { port: port.name.clone(), rate: rate_pps });
        }
        if port.overload == Overload::Wait {
            waiting.push(port.name.clone());
        }
        match &port.kind {
            PortKind::Gen(settings) => generated(port, number as u16, settings, rate_pps, &rules, &mut streams, notes)?,
            _ => guessed(config, port, mine, rate_pps, &mut streams, notes),
        }
    }
    if !unknown.is_empty() {
        return Err(SimulateError::NoRate { ports: unknown });
    }
    if !waiting.is_empty() {
        notes.push(format!("packets that port {} would hold back are counted as entry drops", names(&waiting)));
    }
    Ok(streams)
}

fn compile(config: &Config) -> Result<RuleSet, SimulateError> {
    let number = |(number, name): (usize, &String)| (name.clone(), number as u16);
    let ports: HashMap<String, u16> = config.ports.iter().map(|p| &p.name).enumerate().map(number).collect();
    let chains: HashMap<String, u16> = config.chains.iter().map(|c| &c.name).enumerate().map(number).collect();
    let compiled = config.rules.iter().enumerate().map(|(i, r)| compile::compile(r, i, &ports, &chains));
    let compiled = compiled.collect::<Result<_, _>>().map_err(|e| SimulateError::Refused(e.to_string()))?;
    Ok(RuleSet::new(compiled))
}

/// Packets per second of a port: by its own option, its configuration, or the option for all ports.
fn rate(port: &Port, options: &Options) -> Option<f64> {
    options.port_rates.get(&port.name).copied().or(port.kind.rate_pps()).or(options.rate_pps)
}

/// Classifies a packet of each flow.
fn generated(
    port: &Port,
    number: u16,
    settings: &Gen,
    rate_pps: f64,
    rules: &RuleSet,
    streams: &mut Vec<Stream>,
    notes: &mut Vec<String>,
) -> Result<(), SimulateError> {
    let header = generator::headers(settings).map_err(|what| SimulateError::Refused(format!("port {}: {what}", port.name)))?;
    let step = settings.flows.div_ceil(SAMPLE).max(1);
    let mut counts: BTreeMap<Option<u16>, u64> = BTreeMap::new();
    for flow in (0..settings.flows).step_by(step as usize) {
        let size = settings.imix.first().map_or(settings.size, |(size, _)| *size);
        let header = header(flow);
        let key = FlowKey::parse(&header[..header.len().min(size.into())], size, number);
        *counts.entry(rules.first_match(&key)).or_default() += 1;
    }
    let looked: u64 = counts.values().sum();
    for (chain, count) in counts {
        let part = count as f64 / looked as f64;
        match chain {
            Some(chain) => streams.push(Stream {
                chain: chain.into(),
                flows: (count * u64::from(step)).min(settings.flows.into()),
                rate_pps: rate_pps * part,
            }),
            None => notes.push(format!(
                "{:.0} % of the packets of port {} match no rule and are dropped at the door, uncounted",
                part * 100.0,
                port.name
            )),
        }
    }
    if settings.count > 0 {
        notes.push(format!("port {} ends after {} packets; it is simulated as if it went on", port.name, settings.count));
    }
    Ok(())
}

/// Spreads unknown packets over chains.
fn guessed<'a>(
    config: &Config,
    port: &Port,
    rules: impl Iterator<Item = &'a model::Rule>,
    rate_pps: f64,
    streams: &mut Vec<Stream>,
    notes: &mut Vec<String>,
) {
    let mut chains: Vec<usize> = Vec::new();
    let mut takes_all = false;
    for rule in rules {
        chains.extend(config.chains.iter().position(|c| c.name == rule.chain).filter(|c| !chains.contains(c)));
        takes_all = *rule
            == model::Rule { name: rule.name.clone(), port: rule.port.clone(), chain: rule.chain.clone(), ..Default::default() };
        if takes_all {
            break;
        }
    }
    if chains.len() > 1 || !takes_all {
        let led: Vec<String> = chains.iter().map(|c| config.chains[*c].name.clone()).collect();
        notes.push(format!(
            "what comes in at port {} is not known; it is spread evenly over chain{} {}",
            port.name,
            if led.len() > 1 { "s" } else { "" },
            names(&led)
        ));
    }
    let rate_pps = rate_pps / chains.len().max(1) as f64;
    streams.extend(chains.into_iter().map(|chain| Stream { chain, flows: MANY, rate_pps }));
}
