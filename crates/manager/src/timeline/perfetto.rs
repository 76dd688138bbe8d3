//! The messages of Perfetto's traces that a timeline needs, as bytes.
//!
//! A trace is a sequence of packets: it may be cut between two of them, and traces behind each
//! other are one. Tracks are described before the first of their events. Times are of the monotonic
//! clock, in nanoseconds; the first packet says how that differs from the time of day.
//!
//! Numbers of fields: `protos/perfetto/trace` of <https://github.com/google/perfetto>, the files
//! `trace.proto`, `trace_packet.proto`, `clock_snapshot.proto`, `track_event/track_event.proto`,
//! `track_event/track_descriptor.proto` and `track_event/debug_annotation.proto`. The encoding is
//! that of protocol buffers: <https://protobuf.dev/programming-guides/encoding>.

/// Of `Trace`.
const PACKET: u32 = 1;

/// Of `TracePacket`.
mod packet {
    pub(super) const CLOCK_SNAPSHOT: u32 = 6;
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const TRUSTED_PACKET_SEQUENCE_ID: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const SEQUENCE_FLAGS: u32 = 13;
    pub(super) const TIMESTAMP_CLOCK_ID: u32 = 58;
    pub(super) const TRACK_DESCRIPTOR: u32 = 60;
}

/// Of `ClockSnapshot`, and of `ClockSnapshot.Clock`.
mod clock {
    pub(super) const CLOCKS: u32 = 1;
    pub(super) const PRIMARY_TRACE_CLOCK: u32 = 2;
    pub(super) const CLOCK_ID: u32 = 1;
    pub(super) const TIMESTAMP: u32 = 2;
}

/// Of `TrackDescriptor`.
mod descriptor {
    pub(super) const UUID: u32 = 1;
    pub(super) const NAME: u32 = 2;
    pub(super) const PARENT_UUID: u32 = 5;
    pub(super) const COUNTER: u32 = 8;
}

/// Of `TrackEvent`.
mod event {
    pub(super) const DEBUG_ANNOTATIONS: u32 = 4;
    pub(super) const TYPE: u32 = 9;
    pub(super) const TRACK_UUID: u32 = 11;
    pub(super) const NAME: u32 = 23;
    pub(super) const COUNTER_VALUE: u32 = 30;
}

/// Of `DebugAnnotation`.
mod annotation {
    pub(super) const UINT_VALUE: u32 = 3;
    pub(super) const STRING_VALUE: u32 = 6;
    pub(super) const NAME: u32 = 10;
}

/// Values of `BuiltinClock`.
const REALTIME: u64 = 1;
const MONOTONIC: u64 = 3;
const BOOTTIME: u64 = 6;

/// A value of `TracePacket.SequenceFlags`: nothing before this packet is needed to read it.
const INCREMENTAL_STATE_CLEARED: u64 = 1;

/// The one sequence of packets.
const SEQUENCE: u64 = 1;

/// The clocks of the host at one moment, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockTimes {
    pub monotonic_ns: u64,
    pub boot_ns: u64,
    pub real_ns: u64,
}

/// A track, before its first event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackHead<'a> {
    /// Not 0, and different from that of any other track.
    pub uuid: u64,
    /// The track below which it is shown.
    pub parent: Option<u64>,
    pub name: &'a str,
    /// Whether it has values; otherwise it has slices and instants.
    pub is_counter: bool,
}

/// What is noted at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note<'a> {
    Text(&'a str),
    Number(u64),
}

/// An event of a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackEvent<'a> {
    /// A slice begins.
    Begin(&'a str),
    /// The last slice that has begun ends.
    End,
    /// An instant, and what is noted there, by name.
    Instant(&'a str, &'a [(&'a str, Note<'a>)]),
    /// A value of a counter.
    Value(i64),
}

impl TrackEvent<'_> {
    /// The value of `TrackEvent.Type`.
    fn kind(&self) -> u64 {
        match self {
            Self::Begin(_) => 1,
            Self::End => 2,
            Self::Instant(..) => 3,
            Self::Value(_) => 4,
        }
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, u64::from(field) << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    varint(out, u64::from(field) << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn message(out: &mut Vec<u8>, field: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::with_capacity(64);
    fill(&mut inner);
    bytes(out, field, &inner);
}

fn packet(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    message(out, PACKET, |packet| {
        fill(packet);
        number(packet, packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
    });
}

/// Writes the packet that a trace begins with.
pub fn begin(out: &mut Vec<u8>, times: &ClockTimes) {
    packet(out, |packet| {
        number(packet, packet::SEQUENCE_FLAGS, INCREMENTAL_STATE_CLEARED);
        message(packet, packet::CLOCK_SNAPSHOT, |snapshot| {
            for (id, at_ns) in [(MONOTONIC, times.monotonic_ns), (BOOTTIME, times.boot_ns), (REALTIME, times.real_ns)] {
                message(snapshot, clock::CLOCKS, |clock| {
                    number(clock, clock::CLOCK_ID, id);
                    number(clock, clock::TIMESTAMP, at_ns);
                });
            }
            number(snapshot, clock::PRIMARY_TRACE_CLOCK, MONOTONIC);
        });
    });
}

/// Writes the description of a track.
pub fn track(out: &mut Vec<u8>, head: &TrackHead<'_>) {
    packet(out, |packet| {
        message(packet, packet::TRACK_DESCRIPTOR, |track| {
            number(track, descriptor::UUID, head.uuid);
            if let Some(parent) = head.parent {
                number(track, descriptor::PARENT_UUID, parent);
            }
            bytes(track, descriptor::NAME, head.name.as_bytes());
            if head.is_counter {
                bytes(track, descriptor::COUNTER, &[]);
            }
        });
    });
}

/// Writes an event of a track that is described.
pub fn event(out: &mut Vec<u8>, at_ns: u64, uuid: u64, what: &TrackEvent<'_>) {
    packet(out, |packet| {
        number(packet, packet::TIMESTAMP, at_ns);
        number(packet, packet::TIMESTAMP_CLOCK_ID, MONOTONIC);
        message(packet, packet::TRACK_EVENT, |track| {
            number(track, event::TYPE, what.kind());
            number(track, event::TRACK_UUID, uuid);
            match what {
                TrackEvent::Begin(name) => bytes(track, event::NAME, name.as_bytes()),
                TrackEvent::End => {}
                TrackEvent::Instant(name, notes) => {
                    bytes(track, event::NAME, name.as_bytes());
                    notes.iter().for_each(|(name, note)| annotate(track, name, note));
                }
                // A negative number has ten bytes, as in two's complement.
                TrackEvent::Value(value) => number(track, event::COUNTER_VALUE, *value as u64),
            }
        });
    });
}

fn annotate(track: &mut Vec<u8>, name: &str, note: &Note<'_>) {
    message(track, event::DEBUG_ANNOTATIONS, |annotation| {
        bytes(annotation, annotation::NAME, name.as_bytes());
        match note {
            Note::Text(text) => bytes(annotation, annotation::STRING_VALUE, text.as_bytes()),
            Note::Number(value) => number(annotation, annotation::UINT_VALUE, *value),
        }
    });
}
