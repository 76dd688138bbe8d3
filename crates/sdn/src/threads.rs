//! The Rx threads as the agent addresses them: new advice, and packets to send on.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use sluice_dataplane::alarm::Alarm;
use sluice_dataplane::classify::key::{FlowKey, LONG};
use sluice_dataplane::classify::rss::{owner, queue_of};
use sluice_dataplane::plane::Plane;
use sluice_dataplane::worker::{Command, Worker};

use super::advice::{Advice, Answer};
use super::packet_in::{BUFFER_BITS, Line, PacketIns, Question};

/// Runs `act` on a packet thread's use of advice and on its plane.
fn with(worker: &mut Worker, act: impl FnOnce(&mut PacketIns, &mut Plane)) {
    let (plane, rx) = worker.parts();
    if let Some(packet_ins) = rx.chains.as_mut().and_then(|chains| chains.as_any().downcast_mut()) {
        act(packet_ins, plane);
    }
}

/// Which thread last asked about a flow; all packets of a flow belong to one thread.
/// Indexed by part of the [symmetric hash](FlowKey::symmetric_hash), which finds both directions.
#[derive(Debug)]
pub struct Homes {
    known: Box<[Option<(u32, u16)>]>,
}

impl Homes {
    /// For this many flows, at least 1; a collision replaces an entry.
    pub fn new(flows: usize) -> Self {
        Self { known: vec![None; flows.max(1)].into() }
    }

    pub fn note(&mut self, question: &Question) {
        let bytes = &question.bytes[..question.bytes.len().min(question.copied.into())];
        let hash = hash_of(bytes, question.len, question.ingress);
        let at = hash as usize % self.known.len();
        self.known[at] = Some((hash, question.thread));
    }

    /// The thread that asked about the flow with this hash, if known.
    fn find(&self, hash: u32) -> Option<usize> {
        self.known[hash as usize % self.known.len()].filter(|(whose, _)| *whose == hash).map(|(_, thread)| thread.into())
    }
}

/// The symmetric hash of a packet's flow, from its first bytes.
fn hash_of(bytes: &[u8], len: u16, ingress: u16) -> u32 {
    FlowKey::parse(&bytes[..bytes.len().min(LONG)], len, ingress).symmetric_hash()
}

/// The Rx threads, addressed by the agent.
#[derive(Clone)]
pub struct RxThreads {
    line: Arc<Line>,
    /// Number of each Rx thread, its command queue, and the alarm that announces commands.
    threads: Vec<(usize, Sender<Command>, Arc<Alarm>)>,
}

impl RxThreads {
    pub fn new(line: Arc<Line>, threads: Vec<(usize, Sender<Command>, Arc<Alarm>)>) -> Self {
        Self { line, threads }
    }

    pub fn line(&self) -> &Line {
        &self.line
    }

    fn ask(&self, to: &(usize, Sender<Command>, Arc<Alarm>), act: impl FnOnce(&mut Worker) + Send + 'static) {
        let (_, commands, alarm) = to;
        let _ = commands.send(Box::new(act));
        alarm.raise();
    }

    /// Makes all threads follow other advice. The caller keeps, and later frees, the old one.
    pub(crate) fn advise(&self, advice: &Arc<Advice>) {
        for thread in &self.threads {
            let advice = advice.clone();
            self.ask(thread, |worker| {
                worker.decide_anew();
                with(worker, |packet_ins, plane| packet_ins.follow(plane, advice));
            });
        }
    }

    /// Sends a held packet on by an answer; None: by the advice.
    pub fn release(&self, buffer: u32, answer: Option<Answer>) {
        let owner = self.threads.iter().find(|(number, ..)| *number as u32 == buffer >> BUFFER_BITS);
        if let Some(owner) = owner {
            self.ask(owner, move |worker| with(worker, |packet_ins, plane| packet_ins.release(plane, buffer, answer)));
        }
    }

    /// Sends a packet by an answer, as if received by a port with `queues` queues.
    /// Its thread is the one that asked about its flow, else that of the queue [`queue_of`]
    /// selects.
    pub(crate) fn inject(&self, homes: &Homes, ingress: u16, queues: usize, answer: Option<Answer>, bytes: Vec<u8>) {
        let hash = hash_of(&bytes, bytes.len().try_into().unwrap_or(u16::MAX), ingress);
        let asked = homes.find(hash).and_then(|asked| self.threads.iter().find(|(number, ..)| *number == asked));
        let spread = || {
            let queue = queue_of(hash, queues.try_into().unwrap_or(u16::MAX));
            self.threads.get(owner(ingress, queue.into(), queues, self.threads.len()))
        };
        if let Some(thread) = asked.or_else(spread) {
            self.ask(thread, move |worker| with(worker, |packet_ins, plane| packet_ins.inject(plane, ingress, answer, &bytes)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use sluice_api::config::Openflow;

    use super::super::packet_in::NOT_HELD;
    use super::*;

    /// An IPv4 UDP packet.
    fn packet(src: u8, sport: u16, dst: u8, dport: u16) -> Vec<u8> {
        let mut bytes = vec![0u8; 60];
        bytes[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
        bytes[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
        bytes[26..30].copy_from_slice(&[10, 0, 0, src]);
        bytes[30..34].copy_from_slice(&[10, 0, 0, dst]);
        bytes[34..36].copy_from_slice(&sport.to_be_bytes());
        bytes[36..38].copy_from_slice(&dport.to_be_bytes());
        bytes
    }

    fn threads(threads: usize) -> (RxThreads, Vec<Receiver<Command>>) {
        let config = Openflow::default();
        let (threads, commands): (Vec<_>, Vec<_>) = (0..threads)
            .map(|i| {
                let (sender, receiver) = channel();
                ((i + 3, sender, Arc::new(Alarm::new().unwrap())), receiver)
            })
            .unzip();
        (RxThreads::new(Arc::new(Line::new(&config, threads.len())), threads), commands)
    }

    fn taken(commands: &[Receiver<Command>]) -> Vec<usize> {
        commands.iter().map(|receiver| receiver.try_iter().count()).collect()
    }

    #[test]
    fn what_the_controller_sends_goes_to_the_thread_that_its_flow_comes_to() {
        let (threads, commands) = threads(3);
        let mut homes = Homes::new(64);
        let (there, back) = (packet(1, 1000, 2, 80), packet(2, 80, 1, 1000));
        // No thread has asked: both directions reach the same one on ports with alike queues.
        for queues in [3, 6] {
            threads.inject(&homes, 0, queues, None, there.clone());
            threads.inject(&homes, 1, queues, None, back.clone());
            let took = taken(&commands);
            assert_eq!(took.iter().sum::<usize>(), 2);
            assert!(took.contains(&2), "{took:?}");
        }
        // A port of one queue belongs to one thread.
        for port in 0..6 {
            threads.inject(&homes, port, 1, None, there.clone());
        }
        assert_eq!(taken(&commands), [2, 2, 2]);
        // A thread has asked: it gets both directions.
        for thread in 0..3 {
            let bytes: Box<[u8]> = there.clone().into();
            let (len, copied) = (bytes.len() as u16, bytes.len() as u16);
            homes.note(&Question { number: 1, ingress: 0, thread: thread + 3, len, buffer: NOT_HELD, copied, bytes });
            threads.inject(&homes, 0, 3, None, there.clone());
            threads.inject(&homes, 1, 3, None, back.clone());
            assert_eq!(taken(&commands)[usize::from(thread)], 2);
        }
        // Bytes that are no packet reach some thread, too.
        threads.inject(&homes, 0, 3, None, Vec::new());
        assert_eq!(taken(&commands).iter().sum::<usize>(), 1);
    }
}
