//! Reads traces of Perfetto for tests, by its own reading of protocol buffers.
//!
//! Only what [`super::perfetto`] writes is known. Anything else, and whatever is cut off, panics.

use std::collections::BTreeMap;

/// The value of a field of a message.
#[derive(Debug, Clone, PartialEq)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a number has an end");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number has at most ten bytes");
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Value::Number(varint(&mut bytes)),
            2 => {
                let len = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at(len);
                bytes = rest;
                Value::Bytes(value)
            }
            other => panic!("wire type {other}"),
        };
        all.push((key >> 3, value));
    }
    all
}

fn numbers(fields: &[(u64, Value<'_>)], number: u64) -> Vec<u64> {
    let of = |(field, value): &(u64, Value<'_>)| match value {
        Value::Number(value) if *field == number => Some(*value),
        _ => None,
    };
    fields.iter().filter_map(of).collect()
}

fn messages<'a>(fields: &[(u64, Value<'a>)], number: u64) -> Vec<&'a [u8]> {
    let of = |(field, value): &(u64, Value<'a>)| match value {
        Value::Bytes(value) if *field == number => Some(*value),
        _ => None,
    };
    fields.iter().filter_map(of).collect()
}

fn text(fields: &[(u64, Value<'_>)], number: u64) -> Option<String> {
    messages(fields, number).first().map(|bytes| String::from_utf8(bytes.to_vec()).expect("names are UTF-8"))
}

/// A description of a track.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadTrack {
    pub name: String,
    pub parent: Option<u64>,
    pub is_counter: bool,
}

/// An event of a track.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadWhat {
    Begin(String),
    End,
    /// Its name, and its notes.
    Instant(String, BTreeMap<String, String>),
    Value(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadEvent {
    pub at_ns: u64,
    pub track: u64,
    pub what: ReadWhat,
}

/// A whole trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadTrace {
    /// The clocks at its beginning, by number.
    pub clocks: BTreeMap<u64, u64>,
    pub tracks: BTreeMap<u64, ReadTrack>,
    pub events: Vec<ReadEvent>,
}

impl ReadTrace {
    /// Reads a trace, each event of which is on a track that was described before.
    pub fn of(bytes: &[u8]) -> Self {
        let mut trace = Self::default();
        for (place, (field, value)) in fields(bytes).into_iter().enumerate() {
            let Value::Bytes(packet) = value else { panic!("a packet is a message") };
            assert_eq!(field, 1, "a trace has packets only");
            let packet = fields(packet);
            assert_eq!(numbers(&packet, 10), [1], "one sequence");
            assert_eq!(numbers(&packet, 13), if place == 0 { vec![1] } else { vec![] }, "the first packet needs none before it");
            messages(&packet, 6).into_iter().for_each(|clocks| trace.read_clocks(clocks));
            messages(&packet, 60).into_iter().for_each(|track| trace.read_track(track));
            for event in messages(&packet, 11) {
                assert_eq!(numbers(&packet, 58), [3], "the monotonic clock");
                trace.read_event(numbers(&packet, 8)[0], event);
            }
        }
        trace
    }

    fn read_clocks(&mut self, bytes: &[u8]) {
        let snapshot = fields(bytes);
        assert_eq!(numbers(&snapshot, 2), [3]);
        for clock in messages(&snapshot, 1) {
            let clock = fields(clock);
            self.clocks.insert(numbers(&clock, 1)[0], numbers(&clock, 2)[0]);
        }
    }

    fn read_track(&mut self, bytes: &[u8]) {
        let track = fields(bytes);
        let parent = numbers(&track, 5).first().copied();
        assert!(parent.is_none_or(|parent| self.tracks.contains_key(&parent)), "a parent comes first");
        let read = ReadTrack { name: text(&track, 2).expect("a name"), parent, is_counter: !messages(&track, 8).is_empty() };
        assert_eq!(self.tracks.insert(numbers(&track, 1)[0], read), None, "a track is described once");
    }

    fn read_event(&mut self, at_ns: u64, bytes: &[u8]) {
        let event = fields(bytes);
        let track = numbers(&event, 11)[0];
        let is_counter = self.tracks.get(&track).expect("a track is described before its events").is_counter;
        let name = || text(&event, 23).expect("a name");
        let what = match numbers(&event, 9)[..] {
            [1] => ReadWhat::Begin(name()),
            [2] => ReadWhat::End,
            [3] => ReadWhat::Instant(name(), notes(&messages(&event, 4))),
            [4] => ReadWhat::Value(numbers(&event, 30)[0] as i64),
            ref other => panic!("type {other:?}"),
        };
        assert_eq!(is_counter, matches!(what, ReadWhat::Value(_)), "counters have values, and others none");
        self.events.push(ReadEvent { at_ns, track, what });
    }

    /// The number of a track, by its name and that of its parent.
    pub fn track(&self, parent: Option<&str>, name: &str) -> Option<u64> {
        let is_it =
            |track: &ReadTrack| track.name == name && track.parent.map(|parent| self.tracks[&parent].name.as_str()) == parent;
        self.tracks.iter().find(|(_, track)| is_it(track)).map(|(number, _)| *number)
    }

    /// The events of a track, as they were written.
    pub fn events_of(&self, parent: Option<&str>, name: &str) -> Vec<ReadEvent> {
        let number = self.track(parent, name);
        self.events.iter().filter(|event| Some(event.track) == number).cloned().collect()
    }

    /// The slices of a track, by name, in order: when each begins and ends. Each has an end.
    pub fn slices(&self, parent: Option<&str>, name: &str) -> Vec<(String, u64, u64)> {
        let mut all = Vec::new();
        let mut open: Option<(String, u64)> = None;
        for ReadEvent { at_ns, what, .. } in self.events_of(parent, name) {
            match what {
                ReadWhat::Begin(name) => assert!(open.replace((name, at_ns)).is_none(), "slices do not overlap"),
                ReadWhat::End => {
                    let (name, since_ns) = open.take().expect("what ends has begun");
                    assert!(since_ns <= at_ns, "{name}: it ends before it begins");
                    all.push((name, since_ns, at_ns));
                }
                _ => {}
            }
        }
        assert_eq!(open, None, "each slice ends");
        all
    }

    /// The values of a counter, in order.
    pub fn values(&self, parent: Option<&str>, name: &str) -> Vec<i64> {
        let value = |event: ReadEvent| match event.what {
            ReadWhat::Value(value) => Some(value),
            _ => None,
        };
        self.events_of(parent, name).into_iter().filter_map(value).collect()
    }

    /// The notes of the instants of a name on an object's track.
    pub fn instants(&self, object: &str, name: &str) -> Vec<BTreeMap<String, String>> {
        let notes = |event: ReadEvent| match event.what {
            ReadWhat::Instant(of, notes) if of == name => Some(notes),
            _ => None,
        };
        self.events_of(None, object).into_iter().filter_map(notes).collect()
    }
}

fn notes(annotations: &[&[u8]]) -> BTreeMap<String, String> {
    let note = |bytes: &&[u8]| {
        let annotation = fields(bytes);
        let number = numbers(&annotation, 3).first().map(u64::to_string);
        (text(&annotation, 10).expect("a name"), text(&annotation, 6).or(number).expect("a value"))
    };
    annotations.iter().map(note).collect()
}
