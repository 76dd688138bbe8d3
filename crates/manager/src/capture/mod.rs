//! Captures: the stream of what packet threads copied at chosen hops.
//!
//! Problem: a capture is looked at while it goes on, and must not keep the packets or the daemon
//! waiting. Approach: a thread of the control API takes out what the packet threads' [taps] copied,
//! filters it and writes it as pcapng. A hop is an interface of the file; what else is known of a
//! packet is its comment. Names come from the supervisor, once a second and whenever the name of a
//! number is missing.
//!
//! Limits: packets of several packet threads are in order of time as far as they were copied when
//! one was written. A packet that was missed is counted at the interface of the next one that its
//! thread copied.
//!
//! [taps]: sluice_dataplane::capture::Tap

pub mod filter;
pub mod pcapng;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluice_dataplane::capture::{CaptureReader, CaptureScope, CapturedPacket, DropPlace, Point, Sighting};
use sluice_dataplane::trace::PacketTest;
use sluice_shm::clock::monotonic_ns;

use filter::PacketFilter;
use pcapng::{Direction, InterfaceCounts};

/// Bytes after which a piece of the stream is sent.
const PIECE: usize = 1 << 16;
/// Longest time without a piece.
const SILENCE: Duration = Duration::from_millis(100);
/// Packets that are looked at before the end of the capture is thought of.
const AT_ONCE: usize = 4096;
/// Time between two looks for packets, unless more are left than a piece holds.
const NAP: Duration = Duration::from_millis(2);
/// Time between two looks at names, and two statistics.
const LOOK: Duration = Duration::from_secs(1);
/// Most different comments that are kept.
const COMMENTS: usize = 4096;

/// Names of what packets meet, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HopNames {
    pub nfs: HashMap<u16, String>,
    pub chains: HashMap<u16, String>,
    pub ports: HashMap<u16, String>,
}

/// Why there are no names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoNames {
    /// Not now: the supervisor is busy.
    Busy,
    /// The daemon stops.
    Stopping,
}

/// The supervisor, as a capture needs it.
pub trait CaptureSource: Send {
    /// The names that there are now.
    ///
    /// # Errors
    /// [`NoNames`].
    fn names(&self) -> Result<HopNames, NoNames>;

    /// Has the packet threads copy no more, and returns when they do.
    fn end(&mut self);
}

pub(crate) fn name(names: &HashMap<u16, String>, number: u16) -> String {
    names.get(&number).cloned().unwrap_or_else(|| format!("number {number}"))
}

impl HopNames {
    /// A point as a hop of the command line.
    pub fn hop(&self, point: Point) -> String {
        match point {
            Point::ToNf(nf) => format!("{}:in", name(&self.nfs, nf)),
            Point::FromNf(nf) => format!("{}:out", name(&self.nfs, nf)),
            Point::Received(port) | Point::Sent(port) => format!("port:{}", name(&self.ports, port)),
            Point::Dropped => "drop".into(),
        }
    }

    /// What is known of a packet, for people and for display filters.
    fn comment(&self, sighting: &Sighting) -> String {
        let mut words = Vec::new();
        words.extend(sighting.chain.map(|chain| format!("chain={}", name(&self.chains, chain))));
        if !sighting.path.is_empty() {
            let path: Vec<String> = sighting.path.iter().map(|nf| name(&self.nfs, *nf)).collect();
            words.push(format!("path={}", path.join(",")));
        }
        match (sighting.point, sighting.place) {
            (Point::ToNf(nf) | Point::FromNf(nf), _) | (Point::Dropped, Some(DropPlace::Nf(nf))) => {
                words.push(format!("nf={}", name(&self.nfs, nf)));
            }
            (Point::Dropped, Some(DropPlace::Port(port))) => words.push(format!("port={}", name(&self.ports, port))),
            _ => {}
        }
        words.extend(sighting.why.map(|why| format!("drop={}", why.name())));
        words.join(" ")
    }

    /// Whether all numbers of a packet have names.
    fn know(&self, sighting: &Sighting) -> bool {
        let nf = |nf: &u16| self.nfs.contains_key(nf);
        let is_known = match &sighting.point {
            Point::ToNf(number) | Point::FromNf(number) => nf(number),
            Point::Received(port) | Point::Sent(port) => self.ports.contains_key(port),
            Point::Dropped => match &sighting.place {
                Some(DropPlace::Nf(number)) => nf(number),
                Some(DropPlace::Port(port)) => self.ports.contains_key(port),
                None => true,
            },
        };
        is_known && sighting.path.iter().all(nf) && sighting.chain.is_none_or(|chain| self.chains.contains_key(&chain))
    }
}

/// When a capture ends, and what it lets through.
#[derive(Debug, Default)]
pub struct CaptureLimits {
    pub filter: Option<PacketFilter>,
    /// Packets to write.
    pub count: Option<u64>,
    pub duration: Option<Duration>,
    /// Most bytes that are written of a packet; without it, all that were copied.
    pub snap: Option<u16>,
}

struct Interface {
    name: String,
    counts: InterfaceCounts,
    /// Packets missed since the last one that was written.
    pending: u64,
    /// The counts that were written last.
    said: InterfaceCounts,
}

/// How packets at one place of one path are written.
#[derive(Debug, Clone)]
struct Look {
    interface: usize,
    options: Vec<u8>,
}

/// A capture as a stream of pcapng, in pieces of whole blocks. An empty piece comes when there was
/// nothing for a while. Dropping it ends the capture.
pub struct Stream<S: CaptureSource> {
    source: S,
    request: Arc<CaptureScope>,
    readers: Vec<CaptureReader>,
    limits: CaptureLimits,
    names: HopNames,
    /// Names of the chain and the hops that were asked for, when it began.
    asked: Vec<String>,
    interfaces: Vec<Interface>,
    looks: HashMap<Sighting, Look>,
    /// The last packet's.
    last: Option<(Sighting, Look)>,
    record: CapturedPacket,
    /// Wall clock minus monotonic clock, in nanoseconds.
    epoch_ns: u64,
    until: Option<Instant>,
    looked: Instant,
    /// Whether the last look has taken out all packets.
    rests: bool,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Begins,
    Goes,
    /// The packet threads copy no more.
    Ends,
    Over,
}

impl<S: CaptureSource> Stream<S> {
    /// The stream of what `readers` take out. Names are those of the request.
    pub fn new(source: S, request: Arc<CaptureScope>, readers: Vec<CaptureReader>, limits: CaptureLimits, names: HopNames) -> Self {
        let wall_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let until = limits.duration.and_then(|duration| Instant::now().checked_add(duration));
        let mut stream = Self {
            source,
            request,
            readers,
            limits,
            names,
            asked: Vec::new(),
            interfaces: Vec::new(),
            looks: HashMap::new(),
            last: None,
            record: CapturedPacket::default(),
            epoch_ns: wall_ns.wrapping_sub(monotonic_ns()),
            until,
            looked: Instant::now(),
            rests: false,
            state: State::Begins,
        };
        stream.asked = stream.asked_now();
        stream
    }

    fn asked_now(&self) -> Vec<String> {
        let chain = self.request.chain.map(|chain| name(&self.names.chains, chain));
        chain.into_iter().chain(self.request.points.iter().map(|point| self.names.hop(*point))).collect()
    }

    /// Writes the header, and the interfaces that were asked for.
    fn begin(&mut self, out: &mut Vec<u8>) {
        pcapng::section(out, concat!("sluiced ", env!("CARGO_PKG_VERSION")));
        for point in self.request.points.clone() {
            let name = self.names.hop(point);
            self.interface(out, name);
        }
        self.state = State::Goes;
    }

    /// The interface with a name, which is described if it is new.
    fn interface(&mut self, out: &mut Vec<u8>, name: String) -> usize {
        if let Some(at) = self.interfaces.iter().position(|interface| interface.name == name) {
            return at;
        }
        pcapng::interface(out, &name, self.limits.snap.unwrap_or(self.request.snap));
        self.interfaces.push(Interface { name, counts: InterfaceCounts::default(), pending: 0, said: InterfaceCounts::default() });
        self.interfaces.len() - 1
    }

    /// Reads the names anew. False: the daemon stops, or something that was asked for is gone, and
    /// its number may be another's.
    fn learn(&mut self) -> bool {
        let names = match self.source.names() {
            Ok(names) => names,
            Err(why) => return why == NoNames::Busy,
        };
        if names != self.names {
            self.names = names;
            self.looks.clear();
            self.last = None;
        }
        self.asked_now() == self.asked
    }

    /// Puts into `self.last` how the packet in `self.record` is written.
    fn look(&mut self, out: &mut Vec<u8>) {
        let sighting = &self.record.sighting;
        if self.last.as_ref().is_some_and(|(last, _)| last == sighting) {
            return;
        }
        let look = match self.looks.get(sighting) {
            Some(look) => look.clone(),
            None => {
                if !self.names.know(sighting)
                    && let Ok(names) = self.source.names()
                    && names != self.names
                {
                    self.names = names;
                    self.looks.clear();
                }
                let sighting = self.record.sighting.clone();
                let direction = match sighting.point {
                    Point::Received(_) => Some(Direction::Inbound),
                    Point::Sent(_) => Some(Direction::Outbound),
                    _ => None,
                };
                let options = pcapng::packet_options(&self.names.comment(&sighting), direction);
                let interface = self.interface(out, self.names.hop(sighting.point));
                let look = Look { interface, options };
                if self.looks.len() >= COMMENTS {
                    self.looks.clear();
                }
                self.looks.insert(sighting, look.clone());
                look
            }
        };
        self.last = Some((self.record.sighting.clone(), look));
    }

    /// Writes what there is, oldest first, up to a piece. It looks at [`AT_ONCE`] packets at most:
    /// a filter which lets none through delays neither the end nor what passed before.
    fn drain(&mut self, out: &mut Vec<u8>) {
        self.rests = false;
        for _ in 0..AT_ONCE {
            if out.len() >= PIECE || self.limits.count == Some(0) {
                return;
            }
            let times = self.readers.iter_mut().enumerate().filter_map(|(i, reader)| Some((reader.next_ns()?, i)));
            let next = times.min().map(|(_, reader)| reader);
            self.rests = next.is_none();
            if !next.is_some_and(|reader| self.readers[reader].take(&mut self.record)) {
                return;
            }
            if out.is_empty() {
                out.reserve(PIECE + PIECE / 8);
            }
            self.look(out);
            let Some((_, look)) = &self.last else { return };
            let (record, interface) = (&self.record, &mut self.interfaces[look.interface]);
            interface.counts.seen += 1 + u64::from(record.missed);
            interface.counts.missed += u64::from(record.missed);
            interface.pending += u64::from(record.missed);
            let is_wanted = self.limits.filter.as_ref().is_none_or(|filter| filter.accepts(&record.bytes, record.len.into()));
            if !is_wanted {
                continue;
            }
            interface.counts.written += 1;
            let most = self.limits.snap.map_or(usize::MAX, usize::from);
            let missed = std::mem::take(&mut interface.pending);
            let packet = pcapng::PacketBlock {
                interface: look.interface as u32,
                at_ns: self.epoch_ns.wrapping_add(record.at_ns),
                len: record.len.into(),
                bytes: &record.bytes[..record.bytes.len().min(most)],
                options: &look.options,
                missed,
            };
            pcapng::packet(out, &packet);
            self.limits.count = self.limits.count.map(|left| left - 1);
        }
    }

    /// Counts what was missed behind the last packet.
    fn settle(&mut self) {
        let missed: u64 = self.readers.iter().map(CaptureReader::missed).sum();
        let counted: u64 = self.interfaces.iter().map(|interface| interface.counts.missed).sum();
        let last = self.last.as_ref().map_or(0, |(_, look)| look.interface);
        // A buffer that misses a packet has had one before.
        if let Some(interface) = self.interfaces.get_mut(last) {
            interface.counts.missed += missed.saturating_sub(counted);
            interface.counts.seen += missed.saturating_sub(counted);
        }
    }

    /// Writes the counts that have changed; at the end all.
    fn tally(&mut self, out: &mut Vec<u8>) {
        let at_ns = self.epoch_ns.wrapping_add(monotonic_ns());
        for (number, interface) in self.interfaces.iter_mut().enumerate() {
            if interface.said != interface.counts || self.state == State::Over {
                interface.said = interface.counts;
                pcapng::statistics(out, number as u32, at_ns, interface.counts);
            }
        }
    }

    fn is_due(&self) -> bool {
        self.limits.count == Some(0) || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Writes what is left after its end; the last piece has the counts.
    fn end(&mut self, out: &mut Vec<u8>) {
        if self.state != State::Ends {
            self.source.end();
            self.state = State::Ends;
        }
        self.drain(out);
        if self.limits.count == Some(0) || self.readers.iter_mut().all(|reader| reader.next_ns().is_none()) {
            self.state = State::Over;
            self.settle();
            self.tally(out);
        }
    }
}

impl<S: CaptureSource> Iterator for Stream<S> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let until = Instant::now() + SILENCE;
        if self.state == State::Begins {
            self.begin(&mut out);
        }
        while self.state == State::Goes {
            if self.rests {
                std::thread::sleep(NAP);
            }
            self.drain(&mut out);
            if self.looked.elapsed() >= LOOK {
                self.looked = Instant::now();
                if !self.learn() {
                    self.end(&mut out);
                    return Some(out);
                }
                self.tally(&mut out);
            }
            if self.is_due() {
                self.end(&mut out);
                return Some(out);
            }
            if !out.is_empty() || Instant::now() >= until {
                return Some(out);
            }
        }
        if self.state == State::Over {
            return None;
        }
        self.end(&mut out);
        Some(out)
    }
}

impl<S: CaptureSource> Drop for Stream<S> {
    fn drop(&mut self) {
        if matches!(self.state, State::Begins | State::Goes) {
            self.source.end();
        }
    }
}

#[cfg(test)]
mod tests;
