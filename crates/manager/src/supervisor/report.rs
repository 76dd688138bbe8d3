//! Status and statistics, from the counters of packet threads, NFs and kernel.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sluice_shm::histogram::Histogram;

use super::Supervisor;
use super::nfs::{Nf, State};
use super::past::{of_chain, of_queue};
use crate::control::totals::{Counted, QUANTILES};
use sluice_api::config::{self, Drops, Mode, OnFailure, Overload};
use sluice_api::drops::PortDrop;
use sluice_api::model::{self as api, Distribution};
use sluice_dataplane::chain::DropReason;
use sluice_dataplane::decision::Refusal;
use sluice_dataplane::frame::Copied;
use sluice_dataplane::wake::CAUSES;
use sluice_dataplane::worker::Snapshot;

/// Measures how busy the packet threads are, between two reports.
#[derive(Debug, Default)]
pub(super) struct ThreadMeter {
    last: Option<(Instant, Vec<u64>)>,
    percent: Vec<f64>,
}

impl ThreadMeter {
    fn sample(&mut self, now: Instant, busy: Vec<u64>) -> Vec<f64> {
        if let Some((at, before)) = &self.last {
            let passed = (now - *at).as_nanos().max(1) as f64;
            if passed < 50e6 && !self.percent.is_empty() {
                return self.percent.clone();
            }
            self.percent =
                busy.iter().zip(before).map(|(b, a)| (b.saturating_sub(*a) as f64 * 100.0 / passed).min(100.0)).collect();
        } else {
            self.percent = vec![0.0; busy.len()];
        }
        self.last = Some((now, busy));
        self.percent.clone()
    }
}

/// One report for each tenant: several replaced arenas may wait for the last of their packets.
fn by_tenant(memories: impl Iterator<Item = api::Memory>) -> Vec<api::Memory> {
    let mut all: Vec<api::Memory> = Vec::new();
    for memory in memories {
        let Some(known) = all.iter_mut().find(|known| known.tenant == memory.tenant) else {
            all.push(memory);
            continue;
        };
        let api::Memory { tenant: _, frames, free, in_use, gate_packets, gate_bytes, crossing_packets, crossing_bytes, starved } =
            memory;
        known.frames += frames;
        known.free += free;
        known.in_use += in_use;
        known.gate_packets += gate_packets;
        known.gate_bytes += gate_bytes;
        known.crossing_packets += crossing_packets;
        known.crossing_bytes += crossing_bytes;
        known.starved += starved;
    }
    all
}

/// The handlers of a group.
fn parts(service: &config::Service, nf: &Nf) -> Vec<api::NfPart> {
    let Some(counted) = &nf.counted.parts else { return Vec::new() };
    let all = counted.borrow_mut().all(nf.handle.as_deref());
    let part = |(service, [packets, drops, ns, sampled]): (&String, [u64; 4])| api::NfPart {
        service: service.clone(),
        packets,
        drops,
        packet_ns: (sampled > 0).then(|| ns as f64 / sampled as f64),
    };
    service.parts.iter().zip(all).map(part).collect()
}

impl Supervisor {
    /// The daemon's state, and what it has.
    pub(super) fn status(&mut self, snapshots: &[Snapshot]) -> api::Status {
        let infos = self.plane.thread_infos();
        let busy = self.seen.meter.sample(Instant::now(), infos.iter().map(|t| t.busy_ns).collect());
        let total = self.plane.memories().iter().map(|memory| u64::from(memory.geometry().frames)).sum();
        let in_use = self.plane.table().in_use() as u64;
        api::Status {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: self.seen.started.elapsed().as_secs_f64(),
            pid: std::process::id(),
            config: self.seen.config_path.as_ref().map(|p| p.display().to_string()),
            cores: sluice_host::affinity::allowed().map_or(0, |c| c.len() as u32),
            threads: infos
                .iter()
                .zip(busy)
                .enumerate()
                .map(|(index, (t, busy_percent))| api::Thread {
                    role: t.roles.names().join("+"),
                    core: t.core as u32,
                    busy_percent,
                    round_ns: snapshots.get(index).map(|known| Distribution::from(&known.rounds)).unwrap_or_default(),
                })
                .collect(),
            frames: api::Frames { total, free: total - in_use, in_use },
            memories: self.memory_reports(snapshots),
            hugepages: self.plane.memories().are_huge(),
            flows: snapshots.iter().map(|s| s.flows.entries).sum(),
            tuning_percent: {
                let spent = self.plane.tuning_ns().load(Ordering::Relaxed) + self.controller.cpu_ns();
                spent as f64 * 100.0 / self.seen.started.elapsed().as_nanos().max(1) as f64
            },
            schedules: self.schedule_reports(),
            openflow: self.published.sdn.status(),
            flow_log: self.flow_log_counts(),
            otlp: self.seen.pushes.as_ref().map(|pushes| pushes.report()),
            pools: self.pool_reports(snapshots),
            buffers: self.host.opener.room.report(&self.config.ports),
            promises: self.promise_states(),
            fusable: self.fusable(),
            health: self.health(),
        }
    }

    fn memory_reports(&self, snapshots: &[Snapshot]) -> Vec<api::Memory> {
        let mut all = by_tenant(self.plane.memories().iter().map(|memory| self.memory_report(memory, snapshots)));
        all.iter_mut().for_each(|memory| self.seen.past.add_memory(memory));
        all
    }

    /// A report of a packet memory and copies into it. Its tenant's totals have a replaced one's.
    fn memory_report(&self, memory: &crate::memory::TenantMemory, snapshots: &[Snapshot]) -> api::Memory {
        let own = || snapshots.iter().filter_map(|snapshot| snapshot.memories.get(usize::from(memory.number)));
        let is_former = memory.holder == sluice_config::tenancy::Holder::Former;
        let sum = |of: fn(&Copied) -> u64| if is_former { 0 } else { own().map(|(_, copied)| of(copied)).sum() };
        let geometry = memory.geometry();
        api::Memory {
            tenant: memory.holder.to_string(),
            frames: geometry.frames.into(),
            free: memory.pool.available() as u64 + own().map(|(free, _)| *free as u64).sum::<u64>(),
            in_use: self.plane.table().in_use_of(geometry.first, geometry.frames) as u64,
            gate_packets: sum(|copied| copied.at_gate.0),
            gate_bytes: sum(|copied| copied.at_gate.1),
            crossing_packets: sum(|copied| copied.at_crossing.0),
            crossing_bytes: sum(|copied| copied.at_crossing.1),
            starved: sum(|copied| copied.starved),
        }
    }

    pub(super) fn own_memory(&mut self, number: u8) -> Option<api::Memory> {
        let snapshots = self.snapshots();
        Some(self.memory_report(self.plane.memories().get(number)?, &snapshots))
    }

    /// The snapshots of all packet threads; if one does not answer, the former ones of all.
    pub(super) fn snapshots(&mut self) -> Arc<[Snapshot]> {
        if let Ok(snapshots) = self.plane.snapshots() {
            self.seen.snapshots = snapshots.into();
        }
        self.seen.snapshots.clone()
    }

    pub(super) fn stats(&mut self) -> api::Stats {
        let snapshots = self.snapshots();
        // Right after the snapshots, which count the same packets.
        let (ports, chains) = (self.port_reports(&snapshots), self.chain_reports(&snapshots));
        let mut drops: BTreeMap<String, u64> = BTreeMap::new();
        let mut more = |name: &str, n: u64| *drops.entry(name.into()).or_default() += n;
        for chain in self.chains.iter().flatten() {
            for why in DropReason::ALL {
                more(why.name(), chain.counters.iter().map(|c| c.drops[why as usize].get()).sum());
            }
        }
        for why in Refusal::ALL {
            let is_asked_for = self.published.sdn.is_there() || !matches!(why, Refusal::Forbidden | Refusal::Unanswered);
            if is_asked_for {
                more(why.name(), snapshots.iter().map(|s| s.refused(why)).sum());
            }
        }
        let queues = self.ports.iter().flatten().flat_map(|port| &port.counters);
        let unsent = snapshots.iter().map(|s| s.unsent).sum();
        let (untaken, port_drops) = self.seen.past.port_drops();
        more(PortDrop::Untaken.name(), queues.clone().map(|queue| queue.api.tx_drops.get()).sum::<u64>() + unsent + untaken);
        // Packets that found no path are also counted by the threads.
        self.seen.past.drops().iter().filter(|(why, _)| *why != Refusal::NoPath.name()).for_each(|(why, n)| more(why, *n));
        port_drops.iter().for_each(|(why, n)| more(why, *n));
        queues.flat_map(|queue| queue.own_drops()).for_each(|(why, n)| more(why, n));
        let mut stats = api::Stats {
            time_ns: sluice_shm::clock::monotonic_ns(),
            status: self.status(&snapshots),
            services: self.service_reports(),
            nfs: self.nf_reports(),
            chains,
            rules: self.rule_reports(),
            promises: self.promise_reports(),
            ports,
            drops,
            gone: api::Gone::default(),
        };
        let gone = self.seen.past.report(&stats);
        let told = stats.rules.iter().map(|rule| rule.hits).sum::<u64>();
        let decisions = self.decisions().saturating_sub(told);
        stats.gone = api::Gone { unsent_packets: unsent, decisions, ..gone };
        stats
    }

    /// Decisions of all present and former rules.
    fn decisions(&self) -> u64 {
        self.published.former_decisions + self.published.hits.iter().map(|(_, hits)| hits.total()).sum::<u64>()
    }

    fn port_reports(&self, snapshots: &[Snapshot]) -> Vec<api::Port> {
        let report = |(number, port): (usize, &Option<super::PortState>)| {
            let port = port.as_ref()?;
            let mut details = details_of(number, snapshots);
            let mut latency = Histogram::default();
            let mut finished: Option<bool> = None;
            for snapshot in snapshots {
                let mine = |of: &u16| *of as usize == number;
                snapshot.port_latencies.iter().filter(|(of, _)| mine(of)).for_each(|(_, h)| latency.merge(h));
                for (_, done) in snapshot.finished.iter().filter(|(of, _)| mine(of)) {
                    finished = Some(finished.unwrap_or(true) && *done);
                }
            }
            for (name, q) in QUANTILES {
                if let Some(value) = latency.quantile(q) {
                    details.insert(name.into(), value as f64);
                }
            }
            let mut report = api::Port {
                name: port.config.name.clone(),
                kind: port.config.kind.word().into(),
                description: port.description.clone(),
                overload: if port.config.overload == Overload::Wait { "wait" } else { "drop" }.into(),
                queues: port.counters.len() as u32,
                state: port.link.state(),
                // A sink receives nothing, so it cannot finish.
                finished: finished.unwrap_or(false) && port.config.kind.word() != "sink",
                behind_pps: port.behind.pps(),
                details,
                ..api::Port::default()
            };
            port.counters.iter().for_each(|queue| report.add(&of_queue(queue)));
            report.add(&self.seen.past.of_port(&port.config.name));
            Some(report)
        };
        self.ports.iter().enumerate().filter_map(report).collect()
    }

    pub(super) fn service_reports(&self) -> Vec<api::Service> {
        let name = |n: &u16| self.nfs.get(n).map(|nf| nf.name.clone());
        let live = self.services.iter().flatten().filter(|s| !s.config.name.is_empty());
        live.map(|s| api::Service {
            name: s.config.name.clone(),
            instances: s.instances.iter().filter_map(name).collect(),
            running: s.instances.iter().filter(|n| self.nfs.get(n).is_some_and(|nf| nf.is(State::Running))).count() as u32,
            // For a container, the path inside it.
            exec: s.config.exec.as_ref().filter(|_| s.container.is_some()).or(s.exec.as_ref()).map(|e| e.display().to_string()),
            container: s
                .config
                .container
                .as_ref()
                .and_then(|c| c.bundle.as_ref().or(c.root.as_ref()))
                .map(|c| c.display().to_string()),
            args: s.config.args.clone(),
            attach: s.config.attach,
            moves: s.config.can_be_moved() && !self.is_kept(&s.config.name) && !self.is_sharded(&s.config),
            cores: s.config.cores.clone(),
            mode: mode(&s.config).into(),
            ring: s.config.ring_slots(),
            tenant: s.config.tenant.clone(),
            zygote: s.zygote.as_ref().map(super::zygote::Zygote::report),
        })
        .collect()
    }

    pub(super) fn nf_reports(&self) -> Vec<api::Nf> {
        let held = self.plane.table().held();
        self.nfs.values().map(|nf| self.nf_report(nf, held.get(&nf.number).copied().unwrap_or(0))).collect()
    }

    /// A report of an NF that holds this many frames.
    pub(super) fn nf_report(&self, nf: &Nf, frames_held: u64) -> api::Nf {
        let mut report = self.own_report(nf, frames_held);
        self.seen.past.of_nf(&nf.name).into_iter().for_each(|former| report.add(former));
        report
    }

    /// The same without the counts of former NFs of its name.
    pub(super) fn own_report(&self, nf: &Nf, frames_held: u64) -> api::Nf {
        let service = self.services[nf.service as usize].as_ref();
        let mut totals = nf.counted.before;
        let mut of_now = (0, 0);
        let mut service_times = nf.counted.service_times.borrow_mut();
        if let Some(handle) = &nf.handle {
            let spoken = nf.counted.spoken.get().hear(handle);
            nf.counted.spoken.set(spoken);
            totals.add(handle, spoken);
            of_now = handle.posted_returned();
            service_times.follow(handle.region.page.service_time());
        }
        let [sleeps, hand_overs] = totals.spoken;
        let by_design = service.is_some_and(|service| service.config.drops == Drops::ByDesign);
        let foreign = nf.foreign.as_ref().map(|foreign| foreign.report(by_design));
        if let Some(foreign) = &foreign {
            totals.api.tx_packets = foreign.returned;
        }
        let mut report = api::Nf {
            name: nf.name.clone(),
            // A removed service has no name any more; the NF's name contains it.
            service: nf.name.rsplit_once('.').map_or(String::new(), |(service, _)| service.into()),
            number: u32::from(nf.number),
            pid: nf.process.as_ref().map(|p| p.pid.as_raw_nonzero().get() as u32),
            core: nf.core as u32,
            state: if nf.life().drains() { api::NfState::Stopping } else { state(nf.life().state()) },
            mode: service.map_or(if nf.is_inline() { "inline" } else { "sleep" }, |s| mode(&s.config)).into(),
            restarts: nf.life().restarts(),
            queue: of_now.0.saturating_sub(of_now.1),
            queue_capacity: service.map_or(0, |s| u64::from(s.config.ring_slots())),
            violations: totals.violations,
            cpu_percent: if nf.process.is_some() { nf.counted.cpu.percent() } else { 0.0 },
            service_ns: Distribution::from(service_times.counts()),
            sleeps,
            hand_overs,
            frames_held,
            started_ns: nf.counted.welcomed_ns,
            first_packet_ns: nf.handle.as_ref().and_then(|h| {
                let at = h.first_return_ns.load(Ordering::Relaxed);
                (at > 0).then(|| nf.counted.spawned_ns.map(|from| at.saturating_sub(from)))?
            }),
            reclaim_ns: nf.counted.reclaim_ns,
            stops: nf.life().stops(),
            last_death: nf.counted.last_death.clone(),
            foreign,
            sched: api::NfSched {
                share_writes: totals.share_writes,
                throttles: totals.throttles,
                turns: totals.turns,
                priority_changes: nf.request.changes,
                ..nf.handle.as_ref().map(|h| scheduling(h)).unwrap_or_default()
            },
            woken: service.and_then(|s| s.config.wakeup?.rules()).map(|_| woken(totals.woken)),
            parts: service.map_or_else(Vec::new, |s| parts(&s.config, nf)),
            ..api::Nf::default()
        };
        report.add_counts(&totals.api);
        report.sched.add_counts(&totals.sched);
        report.sched.load = report.load();
        report
    }

    /// What a chain does with packets at its entry, and whether one of its NFs throttles it.
    pub(super) fn state_of_chain(&self, chain: &sluice_dataplane::chain::Chain) -> (api::ChainState, bool) {
        let runs = |n: &u16| self.nfs.get(n).is_some_and(|nf| nf.life().takes_packets());
        let lacks = |s: &u16| match self.services.get(*s as usize) {
            // Without a member, its packets may wait for one, or go elsewhere.
            Some(Some(service)) if service.config.per.is_held() => {
                !service.instances.iter().any(runs) && service.config.pool().min > 0
            }
            Some(Some(service)) => !service.instances.iter().any(runs),
            _ => true,
        };
        let missing = chain.services.iter().any(lacks);
        let throttled = chain.services.iter().any(|service| {
            let instances = self.services[*service as usize].as_ref().map_or(&[][..], |s| &s.instances);
            let handles = instances.iter().filter_map(|n| self.nfs.get(n)?.handle.as_ref());
            handles.into_iter().any(|h| h.gate.throttled.load(Ordering::Relaxed))
        });
        let returns = |service: &u16| {
            let instances = self.services[*service as usize].as_ref().map_or(&[][..], |s| &s.instances);
            instances.iter().filter_map(|n| self.nfs.get(n)).any(|nf| !nf.is(State::Failed))
        };
        let state = match (missing, chain.on_failure) {
            (false, _) if throttled => api::ChainState::Refused,
            (false, _) => api::ChainState::Open,
            (true, OnFailure::Bypass) => api::ChainState::Bypassing,
            (true, _) if chain.services.iter().all(returns) => api::ChainState::Refused,
            (true, _) => api::ChainState::Down,
        };
        (state, throttled)
    }

    fn chain_reports(&self, snapshots: &[Snapshot]) -> Vec<api::Chain> {
        let report = |chain: &std::sync::Arc<sluice_dataplane::chain::Chain>| {
            let service_name = |n: &u16| self.services[*n as usize].as_ref().map_or(String::new(), |s| s.config.name.clone());
            let (state, throttled) = self.state_of_chain(chain);
            let mut report = api::Chain {
                name: chain.name.clone(),
                services: {
                    let side = |i| if chain.is_reversed(i) { ":reverse" } else { "" };
                    chain.services.iter().enumerate().map(|(i, s)| service_name(s) + side(i)).collect()
                },
                egress: self.ports[chain.egress as usize].as_ref().map_or(String::new(), |p| p.config.name.clone()),
                on_failure: on_failure(chain.on_failure).into(),
                state,
                throttled,
                latency_ns: latency_of(chain.number, snapshots),
                exemplars: self.exemplars(&chain.name),
                ..of_chain(&chain.counters)
            };
            report.add(&self.seen.past.of_chain(&chain.name));
            report
        };
        self.chains.iter().flatten().map(report).collect()
    }

    fn rule_reports(&self) -> Vec<api::Rule> {
        let report = |(position, rule): (usize, &sluice_api::config::Rule)| api::Rule {
            name: series_of(rule, position),
            position,
            chain: rule.chain.clone(),
            hits: {
                let base = self.published.rule_counts.get(&series_of(rule, position)).map_or(0, |series| series.base);
                self.published.hits.get(position).map_or(0, |(_, hits)| base.wrapping_add(hits.total()))
            },
            matches: rule.clone(),
        };
        self.config.rules.iter().enumerate().map(report).collect()
    }
}

/// The details that only a port's kind has, by name.
pub(super) fn details_of(number: usize, snapshots: &[Snapshot]) -> BTreeMap<String, f64> {
    let mut details: BTreeMap<String, f64> = BTreeMap::new();
    let all = snapshots.iter().flat_map(|snapshot| &snapshot.details).filter(|(of, _)| *of as usize == number);
    for (name, value) in all.flat_map(|(_, details)| details) {
        *details.entry((*name).into()).or_default() += value;
    }
    details
}

pub(super) fn latency_of(number: u16, snapshots: &[Snapshot]) -> Distribution {
    let mut latency = Histogram::default();
    snapshots.iter().filter_map(|s| s.latencies.get(number as usize)?.as_ref()).for_each(|h| latency.merge(h));
    Distribution::from(&latency)
}

/// The key of a rule in reports: its name, or its place.
pub(super) fn series_of(rule: &sluice_api::config::Rule, position: usize) -> String {
    rule.name.clone().unwrap_or_else(|| format!("rule.{position}"))
}

/// The present decisions and measurements about an NF, without counters.
fn scheduling(handle: &sluice_dataplane::handle::NfHandle) -> api::NfSched {
    let (load, gate) = (&handle.load, &handle.gate);
    api::NfSched {
        priority: handle.weight(),
        level: handle.level(),
        arrival_pps: load.arrival_pps.get(),
        service_ns: load.service_ns.get(),
        share: load.share.get(),
        throttled: gate.throttled.load(Ordering::Relaxed),
        held: gate.held.load(Ordering::Relaxed),
        outside_ns: load.outside_ns.get(),
        ..api::NfSched::default()
    }
}

fn woken([early, threshold, timer, urgent]: [u64; CAUSES]) -> api::Woken {
    api::Woken { early, threshold, timer, urgent }
}

fn mode(service: &config::Service) -> &'static str {
    match service.mode {
        _ if service.is_foreign() => "foreign",
        _ if service.is_inline() => "inline",
        Mode::Sleep => "sleep",
        Mode::Poll => "poll",
    }
}

fn on_failure(policy: OnFailure) -> &'static str {
    match policy {
        OnFailure::Drop => "drop",
        OnFailure::Bypass => "bypass",
        OnFailure::Restart => "restart",
    }
}

fn state(state: State) -> api::NfState {
    match state {
        State::Expected => api::NfState::Expected,
        State::Starting => api::NfState::Starting,
        State::Running => api::NfState::Running,
        State::Stopping | State::Gone => api::NfState::Stopping,
        State::Restarting => api::NfState::Restarting,
        State::Failed => api::NfState::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_made_anew_is_one_row_however_much_of_it_there_is() {
        let of = |tenant: &str, n: u64| api::Memory {
            tenant: tenant.into(),
            frames: n,
            free: n + 1,
            in_use: n + 2,
            gate_packets: n + 3,
            gate_bytes: n + 4,
            crossing_packets: n + 5,
            crossing_bytes: n + 6,
            starved: n + 7,
        };
        let both = api::Memory {
            tenant: "former".into(),
            frames: 110,
            free: 112,
            in_use: 114,
            gate_packets: 116,
            gate_bytes: 118,
            crossing_packets: 120,
            crossing_bytes: 122,
            starved: 124,
        };
        let all = [of("red", 1), of("former", 10), of("blue", 2), of("former", 100)];
        assert_eq!(by_tenant(all.into_iter()), [of("red", 1), both, of("blue", 2)]);
    }
}
