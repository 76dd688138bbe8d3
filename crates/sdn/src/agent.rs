//! The thread that talks to the controller.
//!
//! One loop: receive, execute, send packet-ins, expire entries, check the connection. It sleeps in
//! poll(2) on the connection, and polls the questions of Rx threads, which make no system calls,
//! each millisecond while there are any.
//!
//! All of these are bounded: messages behind a barrier, unsent bytes, questions, held packets,
//! entries. A controller that does not read is not read from, gets no packet-ins, and is
//! disconnected after a timeout. Once no Rx thread uses replaced entries, their numbers are reused
//! and barriers are answered.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sluice_host::notice::Notices;
use sluice_openflow::NO_BUFFER;
use sluice_openflow::fault::Fault;
use sluice_openflow::instruction::Output;
use sluice_openflow::message::{Message, PacketIn, Why};
use sluice_openflow::multipart::{Desc, NOT_COUNTED, PortStats};
use sluice_openflow::oxm::{FieldId, Match};
use sluice_openflow::port::{self, PortDesc};
use sluice_openflow::session::{Close, Patience, Session};
use sluice_openflow::switch::{Plant, Switch, SwitchPort, Task};
use sluice_openflow::table::{EntryCount, EntryCounts};
use sluice_shm::clock::monotonic_ns;

use super::entry::{self, CHAIN_BASE, number_of, port_of, port_of_chain};
use super::packet_in::{NOT_HELD, Question};
use super::shared::{PortView, Seen, Topology};
use super::threads::{Homes, RxThreads};
use crate::advice::{Advice, Answer, Meanwhile};
use sluice_api::config::{Fail, Miss, Openflow};
use sluice_dataplane::chain::DropReason;

/// Timeout of a connection attempt, during which the loop stands still.
const CONNECT: Duration = Duration::from_secs(1);
/// Interval of timeout checks, in milliseconds.
const EXPIRE_MS: u64 = 100;
/// Unsent bytes above which the controller is neither read from nor sent packet-ins.
const BACKLOG: usize = 1 << 20;
/// Bytes of messages behind a barrier above which the controller is not read from.
const WAITING: usize = 1 << 16;
const CHUNK: usize = 1 << 16;
const QUESTIONS: usize = 256;
/// Flows whose asking thread is known.
const HOMES: usize = 1 << 12;
/// How long a barrier waits for Rx threads to follow other entries, in milliseconds.
const FOLLOWED_MS: u64 = 1_000;
/// Compiling may take one part in this many of the time.
const COMPILE_PART: u64 = 10;
/// How long a held packet is remembered beyond its wait, in milliseconds.
const GRACE_MS: u64 = 1_000;

struct View<'a> {
    threads: &'a RxThreads,
    topology: &'a Topology,
    started_ms: u64,
    now_ms: u64,
}

impl EntryCounts for View<'_> {
    fn count(&self, number: u32) -> EntryCount {
        let (packets, bytes, seen_ms) = self.threads.line().tally.get(number);
        EntryCount { packets, bytes, seen_ms }
    }
}

impl Plant for View<'_> {
    fn port_stats(&self, number: u32) -> Option<PortStats> {
        let duration_s = (self.now_ms.saturating_sub(self.started_ms) / 1000) as u32;
        if let Some(chain) = self.topology.chains.iter().find(|c| port_of_chain(c.number) == number) {
            let drops = |of: fn(&DropReason) -> bool| {
                let all = || DropReason::ALL.iter().filter(|why| of(why));
                chain.counters.iter().map(|c| all().map(|why| c.drops[*why as usize].get()).sum::<u64>()).sum()
            };
            return Some(PortStats {
                number,
                // Packets that leave a chain are received from the far side of its port.
                rx_packets: chain.counters.iter().map(|c| c.api.exit_packets.get()).sum(),
                tx_packets: chain.counters.iter().map(|c| c.api.entry_packets.get()).sum(),
                rx_bytes: NOT_COUNTED,
                tx_bytes: NOT_COUNTED,
                rx_dropped: drops(|why| !matches!(why, DropReason::Entry | DropReason::Policed)),
                tx_dropped: drops(|why| matches!(why, DropReason::Entry | DropReason::Policed)),
                duration_s,
            });
        }
        let port = self.topology.ports.iter().find(|p| port_of(p.number) == number)?;
        let sum = |of: fn(&sluice_dataplane::queue::QueueCounters) -> u64| port.counters.iter().map(|c| of(c)).sum();
        Some(PortStats {
            number,
            rx_packets: sum(|c| c.api.rx_packets.get()),
            tx_packets: sum(|c| c.api.tx_packets.get()),
            rx_bytes: sum(|c| c.api.rx_bytes.get()),
            tx_bytes: sum(|c| c.api.tx_bytes.get()),
            rx_dropped: sum(|c| c.api.entry_drops.get()),
            tx_dropped: sum(|c| c.api.tx_drops.get()),
            duration_s,
        })
    }

    fn table_counts(&self) -> (u64, u64) {
        let received = |p: &PortView| p.counters.iter().map(|c| c.api.rx_packets.get()).sum::<u64>();
        (self.topology.ports.iter().map(received).sum(), self.threads.line().tally.total())
    }
}

struct Line {
    stream: TcpStream,
    session: Session,
    /// Why it is to be closed after the unsent bytes.
    over: Option<Close>,
}

/// Replaced advice, and the numbers that its successor retired.
struct Former {
    advice: Arc<Advice>,
    numbers: Vec<u32>,
}

struct Logged {
    last: Option<String>,
    /// Notices about lost or failed connections, and about established ones.
    notices: [Notices<()>; 2],
}

pub(super) struct Speaker {
    config: Openflow,
    address: (String, u16),
    threads: RxThreads,
    homes: Homes,
    changes: Receiver<Topology>,
    seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
    topology: Topology,
    /// Whether ports and chains are known; the agent connects after that.
    has_topology: bool,
    switch: Switch,
    line: Option<Line>,
    retry_at_ms: u64,
    retry_ms: u64,
    /// Errors of former connections.
    faults: u64,
    said: Logged,
    advice: Arc<Advice>,
    former: VecDeque<Former>,
    is_stale: bool,
    publish_at_ms: u64,
    /// The pending barrier, and its deadline.
    barrier: Option<(u32, u64)>,
    /// Events to execute in order, after a barrier.
    events: VecDeque<Task>,
    /// Held packets that the controller knows, and their deadlines.
    held: HashMap<u32, u64>,
    expire_at_ms: u64,
    busy_ms: u64,
    started_ms: u64,
}

fn now_ms() -> u64 {
    monotonic_ns() / 1_000_000
}

impl Speaker {
    pub(super) fn new(
        config: Openflow,
        address: (String, u16),
        threads: RxThreads,
        changes: Receiver<Topology>,
        seen: Arc<Seen>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let desc = Desc {
            manufacturer: "Sluice".into(),
            hardware: std::env::consts::ARCH.into(),
            software: env!("CARGO_PKG_VERSION").into(),
            serial: "none".into(),
            datapath: "chains of network functions; each is a logical port".into(),
        };
        let buffers = if config.miss == Miss::Wait { config.held } else { 0 };
        let now = now_ms();
        Self {
            switch: Switch::new(config.datapath_id, desc, config.entries, buffers),
            retry_ms: config.retry_ms,
            config,
            address,
            threads,
            homes: Homes::new(HOMES),
            changes,
            seen,
            stop,
            topology: Topology::default(),
            has_topology: false,
            line: None,
            retry_at_ms: 0,
            faults: 0,
            said: Logged { last: None, notices: [Notices::new(|line| warn!("{line}")), Notices::new(|line| info!("{line}"))] },
            advice: Arc::default(),
            former: VecDeque::new(),
            is_stale: true,
            publish_at_ms: 0,
            barrier: None,
            events: VecDeque::new(),
            held: HashMap::new(),
            expire_at_ms: 0,
            busy_ms: 0,
            started_ms: now,
        }
    }

    pub(super) fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let now = now_ms();
            if let Some(topology) = self.changes.try_iter().last() {
                self.take_topology(topology);
            }
            if self.line.is_none() && self.has_topology && now >= self.retry_at_ms {
                self.connect();
            }
            let now = now_ms();
            if now >= self.expire_at_ms {
                self.expire_at_ms = now + EXPIRE_MS;
                self.expire(now);
                self.said.notices.iter_mut().for_each(|notices| notices.print_rest(Instant::now()));
            }
            self.listen(now);
            self.carry_out(now);
            if self.is_stale && now >= self.publish_at_ms {
                self.publish();
            }
            self.let_go();
            self.answer_barrier(now);
            self.show_packets(now);
            self.speak(now);
            self.note();
            self.wait(now);
        }
    }

    fn take_topology(&mut self, topology: Topology) {
        let mut ports = Vec::new();
        let mut add = |number: u32, name: &str, takes_packets: bool| {
            // A locally administered address with the number of the port.
            let address = (0x0200_0000_0000u64 | u64::from(number)).to_be_bytes();
            let [_, _, address @ ..] = address;
            let desc = PortDesc { number, address, name: name.into(), config: 0, state: 1 << 2 };
            ports.push(SwitchPort { desc, takes_packets });
        };
        topology.ports.iter().for_each(|p| add(port_of(p.number), &p.name, false));
        topology.chains.iter().for_each(|c| add(port_of_chain(c.number), &c.name, true));
        self.topology = topology;
        self.has_topology = true;
        let sent = self.switch.set_ports(ports);
        if let Some(line) = self.line.as_mut().filter(|line| line.session.is_up()) {
            sent.iter().for_each(|message| line.session.send(0, message));
        }
    }

    fn connect(&mut self) {
        let (host, port) = (self.address.0.as_str(), self.address.1);
        let connected = (host, port).to_socket_addrs().and_then(|mut all| {
            let address = all.next().ok_or_else(|| std::io::Error::from(ErrorKind::AddrNotAvailable))?;
            let stream = TcpStream::connect_timeout(&address, CONNECT)?;
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        match connected {
            Ok(stream) => {
                let patience = Patience { echo_ms: self.config.echo_ms, dead_ms: self.config.dead_ms };
                self.line = Some(Line { stream, session: Session::new(patience, now_ms()), over: None });
            }
            Err(error) => self.wait_to_retry(&format!("cannot connect: {error}")),
        }
    }

    fn wait_to_retry(&mut self, why: &str) {
        self.retry_at_ms = now_ms() + self.retry_ms;
        self.retry_ms = (self.retry_ms * 2).min(self.config.retry_max_ms);
        self.say(why);
    }

    /// Logs and publishes a change of the connection, once.
    fn say(&mut self, what: &str) {
        if self.said.last.as_deref() != Some(what) {
            let line = || format!("controller tcp:{}:{}: {what}", self.address.0, self.address.1);
            self.said.notices[usize::from(what == CONNECTED)].print((), line);
            self.said.last = Some(what.into());
        }
        let problem = (what != CONNECTED).then(|| what.to_string());
        *self.seen.problem.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = problem;
    }

    fn is_up(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.session.is_up() && line.over.is_none())
    }

    fn lose(&mut self, why: &str) {
        let Some(line) = self.line.take() else { return };
        self.faults += line.session.faults();
        let was_up = self.seen.connected.swap(false, Ordering::Relaxed);
        if was_up {
            self.seen.since_ns.store(monotonic_ns(), Ordering::Relaxed);
            self.is_stale = true;
            self.publish_at_ms = 0;
        }
        self.barrier = None;
        self.events.clear();
        self.held.clear();
        self.wait_to_retry(why);
    }

    fn listen(&mut self, now: u64) {
        let Some(line) = &mut self.line else { return };
        // Earlier requests come first, and a controller that does not read is not read from.
        if line.over.is_some() || is_deaf(&self.events, &line.session) {
            return;
        }
        let mut bytes = [0; CHUNK];
        match line.stream.read(&mut bytes) {
            Ok(0) => return self.lose("it has closed the connection"),
            Ok(n) => {
                self.busy_ms = now;
                line.over = line.session.receive(&bytes[..n], now).err();
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return self.lose(&error.to_string()),
        }
        if line.session.is_up() && !self.seen.connected.swap(true, Ordering::Relaxed) {
            self.seen.since_ns.store(monotonic_ns(), Ordering::Relaxed);
            self.seen.connections.fetch_add(1, Ordering::Relaxed);
            self.retry_ms = self.config.retry_ms;
            self.switch.greet();
            self.is_stale = true;
            self.publish_at_ms = 0;
            self.say(CONNECTED);
        }
    }

    /// Executes requests, up to a barrier.
    fn carry_out(&mut self, now: u64) {
        loop {
            while self.barrier.is_none() {
                let Some(event) = self.events.pop_front() else { break };
                self.carry_out_one(event, now);
            }
            if self.barrier.is_some() {
                return;
            }
            let Some(line) = &mut self.line else { return };
            if line.session.backlog() > BACKLOG {
                return;
            }
            let Some((xid, message)) = line.session.next() else { return };
            let view = View { threads: &self.threads, topology: &self.topology, started_ms: self.started_ms, now_ms: now };
            let shown = matches!(message, Message::FlowMod(_));
            let mut events = Vec::new();
            self.switch.handle(xid, message, &view, now, &mut events);
            if shown {
                self.seen.flow_mods.fetch_add(1, Ordering::Relaxed);
            }
            self.events.extend(events);
        }
    }

    fn carry_out_one(&mut self, event: Task, now: u64) {
        let Some(line) = &mut self.line else { return };
        match event {
            Task::Send(xid, message) => line.session.send(xid, &message),
            Task::Refuse(xid, fault) => line.session.refuse_taken(xid, fault),
            Task::TableChanged => self.is_stale = true,
            Task::Barrier(xid) => {
                self.publish_if_stale();
                self.barrier = Some((xid, now + FOLLOWED_MS));
            }
            Task::Packet { in_port, output, data, .. } => {
                let Some(output) = output else { return };
                let answer = self.answer_for(output);
                let ingress = number_of(in_port).unwrap_or(0);
                let queues = self.topology.ports.iter().find(|port| port.number == ingress).map_or(1, |port| port.counters.len());
                self.threads.inject(&self.homes, ingress, queues, answer, data);
            }
            Task::Held { xid, buffer_id, output } => {
                if self.held.remove(&buffer_id).is_none_or(|until| now > until) {
                    line.session.refuse_taken(xid, Fault::BUFFER_UNKNOWN);
                    return;
                }
                let answer = match output {
                    Some(output) => self.answer_for(output),
                    None => Some(Answer::Drop),
                };
                self.threads.release(buffer_id, answer);
            }
        }
    }

    /// The answer for a packet-out's output; None: the table, whose entries are published first.
    fn answer_for(&mut self, output: Output) -> Option<Answer> {
        if output.port == port::TABLE {
            self.publish_if_stale();
            return None;
        }
        Some(entry::answer(Some(output)))
    }

    fn expire(&mut self, now: u64) {
        let view = View { threads: &self.threads, topology: &self.topology, started_ms: self.started_ms, now_ms: now };
        let mut events = Vec::new();
        self.switch.expire(&view, now, &mut events);
        self.held.retain(|_, until| now <= *until);
        for event in events {
            match event {
                Task::TableChanged => self.is_stale = true,
                Task::Send(xid, message) => {
                    if let Some(line) = self.line.as_mut().filter(|l| l.session.is_up() && l.session.backlog() <= BACKLOG) {
                        line.session.send(xid, &message);
                    }
                }
                _ => {}
            }
        }
    }

    fn publish_if_stale(&mut self) {
        if self.is_stale {
            self.publish();
        }
    }

    fn publish(&mut self) {
        let began = monotonic_ns();
        let away = match self.config.fail {
            Fail::Standalone => Answer::Rules,
            Fail::Secure => Answer::Drop,
        };
        let is_up = self.is_up();
        let (otherwise, meanwhile) = match self.config.miss {
            _ if !is_up => (away, Meanwhile::Rules),
            Miss::Rules => (Answer::Rules, Meanwhile::Rules),
            Miss::Wait => (Answer::Rules, Meanwhile::Wait),
            Miss::Drop => (Answer::Drop, Meanwhile::Drop),
        };
        let compiled = self.switch.table().entries().filter_map(entry::compile).map(|mut entry| {
            if let (false, Answer::Ask(_)) = (is_up, entry.answer) {
                entry.answer = away;
            }
            entry
        });
        let advice = Arc::new(Advice::new(compiled, otherwise, meanwhile, away));
        self.threads.advise(&advice);
        let numbers = self.switch.table_mut().take_retired();
        let former = std::mem::replace(&mut self.advice, advice);
        self.former.push_back(Former { advice: former, numbers });
        self.is_stale = false;
        let took_ms = monotonic_ns().saturating_sub(began).div_ceil(1_000_000);
        self.publish_at_ms = now_ms() + took_ms * COMPILE_PART;
    }

    fn let_go(&mut self) {
        while self.former.front().is_some_and(|former| Arc::strong_count(&former.advice) == 1) {
            if let Some(former) = self.former.pop_front() {
                self.switch.table_mut().reuse(former.numbers);
            }
        }
    }

    fn answer_barrier(&mut self, now: u64) {
        if let (Some((xid, until)), Some(line)) = (self.barrier, &mut self.line)
            && (self.former.is_empty() || now >= until)
        {
            self.barrier = None;
            line.session.send(xid, &Message::BarrierReply);
        }
    }

    fn show_packets(&mut self, now: u64) {
        for _ in 0..QUESTIONS {
            let Some(question) = self.threads.line().next() else { return };
            self.busy_ms = now;
            self.homes.note(&question);
            self.show(&question, now);
            self.threads.line().give_back(question);
        }
    }

    fn show(&mut self, question: &Question, now: u64) {
        let Some(line) = self.line.as_mut().filter(|line| line.session.is_up()) else { return };
        // The entry may be gone; then its question is obsolete.
        let Some(entry) = self.switch.table().entry(question.number) else { return };
        if line.session.backlog() > BACKLOG {
            self.seen.unread.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let in_port = u128::from(port_of(question.ingress));
        let packet = PacketIn {
            buffer_id: if question.buffer == NOT_HELD { NO_BUFFER } else { question.buffer },
            total_len: question.len,
            why: if entry.is_miss() { Why::NoMatch } else { Why::Action },
            table_id: 0,
            cookie: entry.cookie,
            fields: Match::exact(&[(FieldId::InPort, in_port)]).unwrap_or_default(),
            data: question.bytes[..question.bytes.len().min(question.copied.into())].to_vec(),
        };
        let Some(message) = self.switch.show(packet) else { return };
        if question.buffer != NOT_HELD {
            self.held.insert(question.buffer, now + self.config.wait_ms + GRACE_MS);
        }
        line.session.send(0, &message);
        self.seen.packet_ins.fetch_add(1, Ordering::Relaxed);
    }

    /// Sends unsent bytes and checks the connection for timeouts.
    fn speak(&mut self, now: u64) {
        let Some(line) = &mut self.line else { return };
        if line.over.is_none() {
            line.over = line.session.tick(now).err();
        }
        while !line.session.out().is_empty() {
            let out = line.session.out();
            match line.stream.write(out) {
                Ok(n) => drop(out.drain(..n)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return self.lose(&error.to_string()),
            }
        }
        if let Some(over) = line.over {
            self.lose(&over.to_string());
        }
    }

    fn note(&self) {
        let faults = self.faults + self.line.as_ref().map_or(0, |line| line.session.faults());
        self.seen.errors.store(faults, Ordering::Relaxed);
        self.seen.entries.store(self.switch.table().len() as u64, Ordering::Relaxed);
    }

    /// Sleeps until the controller sends, or the next round is due.
    fn wait(&mut self, now: u64) {
        let is_busy = now.saturating_sub(self.busy_ms) < 1_000 || self.barrier.is_some() || self.is_stale;
        let ms: i64 = if is_busy || !self.former.is_empty() { 1 } else { 5 };
        let timeout = Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 };
        match &mut self.line {
            Some(line) => {
                let mut flags = if is_deaf(&self.events, &line.session) { PollFlags::empty() } else { PollFlags::IN };
                if !line.session.out().is_empty() {
                    flags |= PollFlags::OUT;
                }
                let _ = poll(&mut [PollFd::new(&line.stream, flags)], Some(&timeout));
            }
            None => std::thread::sleep(Duration::from_millis(ms.unsigned_abs())),
        }
    }
}

/// Whether the controller is not read from: requests are pending, or it does not read.
fn is_deaf(events: &VecDeque<Task>, session: &Session) -> bool {
    !events.is_empty() || session.waiting() > WAITING || session.backlog() > BACKLOG
}

const CONNECTED: &str = "connected";
const _: () = assert!(CHAIN_BASE > u16::MAX as u32);
