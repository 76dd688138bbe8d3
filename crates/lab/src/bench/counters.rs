//! Instructions a cycle of NF processes, by the processor's counters (`perf_event_open(2)`).
//!
//! # Approach
//! Each process has a group of two events, which the processor counts at the same times. Where it
//! has fewer counters than are asked for, it counts during a part of the time, and the counts are
//! scaled up to all of it. What the kernel does for the process counts too, and so do the threads
//! and children that it starts later.
//!
//! # Limits
//! Of the threads that a process has already, only the main thread is counted: an NF has no other.

// The call has no safe wrapper.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use sluice_api::model::Nf;

use crate::bench::measure::Sample;

/// The metric of all NFs together; that of one NF ends in `.SERVICE`.
pub const METRIC: &str = "instructions_per_cycle";

/// The type of an event, and its number, both of `linux/perf_event.h`.
type PerfEvent = (u32, u64);

const CYCLES: PerfEvent = (0, 0);
const INSTRUCTIONS: PerfEvent = (0, 1);

/// A reading has all counts of the group, behind the times that it was enabled and counted.
const READ_FORMAT: u64 = 0b1011;
/// The bit of the flags by which later threads and children count, on a little-endian processor.
const INHERIT: u64 = 0b10;
const ANY_CPU: libc::c_long = -1;
const NO_GROUP: RawFd = -1;
const CLOSE_ON_EXEC: libc::c_long = 0b1000;

/// The kernel's `perf_event_attr` in its first version.
#[derive(Default)]
#[repr(C)]
struct Attributes {
    kind: u32,
    bytes: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// Why nothing is counted; the message says what it needs.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    #[error("it needs the processor's counters of instructions and cycles, and there are none here, as in many virtual machines")]
    NotHere,
    #[error("it needs root or CAP_PERFMON, and no filter that denies perf_event_open, as those of containers do")]
    Denied,
    #[error("it needs a kernel that has perf_event_open")]
    NoCall,
    #[error("the processor's counters cannot be read: {0}")]
    Io(io::Error),
    #[error("nothing was counted: no NF ran, or something else had all of the processor's counters")]
    Nothing,
}

impl From<io::Error> for CountError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => Self::NotHere,
            Some(libc::EACCES | libc::EPERM) => Self::Denied,
            Some(libc::ENOSYS) => Self::NoCall,
            _ => Self::Io(error),
        }
    }
}

/// Counts of two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counts {
    events: [u64; 2],
    /// Time that the process ran, in nanoseconds.
    enabled_ns: u64,
    /// The part of it in which the events were counted.
    running_ns: u64,
}

impl Counts {
    /// Those of a group, by its first event.
    fn read(mut leader: &File) -> io::Result<Self> {
        let mut words = [[0u8; 8]; 5];
        leader.read_exact(words.as_flattened_mut())?;
        let [_, enabled_ns, running_ns, first, second] = words.map(u64::from_ne_bytes);
        Ok(Self { events: [first, second], enabled_ns, running_ns })
    }

    fn since(&self, earlier: &Self) -> Self {
        let [first, second] = self.events;
        Self {
            events: [first.saturating_sub(earlier.events[0]), second.saturating_sub(earlier.events[1])],
            enabled_ns: self.enabled_ns.saturating_sub(earlier.enabled_ns),
            running_ns: self.running_ns.saturating_sub(earlier.running_ns),
        }
    }

    /// The counts of all the time; none if the events were never counted.
    fn scaled(&self) -> Option<[f64; 2]> {
        let scale = self.enabled_ns as f64 / self.running_ns as f64;
        (self.running_ns > 0).then(|| self.events.map(|count| count as f64 * scale))
    }
}

/// Two events of a process that are counted at the same times.
struct EventPair {
    leader: File,
    /// It is counted as long as it is open.
    _second: File,
    /// The first reading.
    first: Counts,
}

impl EventPair {
    /// Counts from now on; process 0 is the calling thread.
    fn open(pid: u32, [first, second]: [PerfEvent; 2]) -> io::Result<Self> {
        let leader = open(first, pid, NO_GROUP)?;
        let second = open(second, pid, leader.as_raw_fd())?;
        let first = Counts::read(&leader)?;
        Ok(Self { leader, _second: second, first })
    }

    /// What has been counted since it was opened.
    fn counted(&self) -> io::Result<Counts> {
        Ok(Counts::read(&self.leader)?.since(&self.first))
    }
}

/// Opens an event of a process, in the group of another one.
fn open((kind, config): PerfEvent, pid: u32, group: RawFd) -> io::Result<File> {
    let bytes = size_of::<Attributes>() as u32;
    let mut attributes = Attributes { kind, bytes, config, read_format: READ_FORMAT, flags: INHERIT, ..Attributes::default() };
    let (pid, group) = (pid as libc::c_long, group as libc::c_long);
    // SAFETY: the attributes live through the call, have the length that they say, and may be
    // written: the kernel writes the length that it knows where it does not know theirs.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw mut attributes, pid, ANY_CPU, group, CLOSE_ON_EXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it, and nothing else has it.
    Ok(unsafe { File::from_raw_fd(fd as RawFd) })
}

/// Instructions and cycles of NFs, by service, from when they were opened.
pub struct NfEvents(Vec<(String, EventPair)>);

impl NfEvents {
    /// Counts those of NFs with a process from now on.
    ///
    /// # Errors
    /// The host has no such counters, or does not let this process read them.
    pub fn open(nfs: &[Nf]) -> Result<Self, CountError> {
        let of = |nf: &Nf| Some(EventPair::open(nf.pid?, [INSTRUCTIONS, CYCLES]).map(|pair| (nf.service.clone(), pair)));
        Ok(Self(nfs.iter().filter_map(of).collect::<io::Result<_>>()?))
    }

    /// Instructions a cycle until now, as metrics: [`METRIC`] of all NFs, and of each.
    ///
    /// # Errors
    /// They cannot be read, or nothing was counted.
    pub fn per_cycle(&self) -> Result<Sample, CountError> {
        let counted = self.0.iter().map(|(nf, pair)| pair.counted().map(|counts| (nf.as_str(), counts)));
        let sample = ratios(&counted.collect::<io::Result<Vec<_>>>()?);
        if sample.is_empty() { Err(CountError::Nothing) } else { Ok(sample) }
    }
}

/// The first count by the second, of each NF and of all. An NF that was not counted has none.
fn ratios(counted: &[(&str, Counts)]) -> Sample {
    let scaled: Vec<(&str, [f64; 2])> = counted.iter().filter_map(|(nf, counts)| Some((*nf, counts.scaled()?))).collect();
    let all: [f64; 2] = [0, 1].map(|event| scaled.iter().map(|(_, counts)| counts[event]).sum());
    let each = scaled.iter().map(|(nf, counts)| (format!("{METRIC}.{nf}"), *counts));
    let with_all = each.chain([(METRIC.to_string(), all)]);
    with_all.filter_map(|(metric, [first, second])| (second > 0.0).then_some((metric, first / second))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;

    /// Events of the kernel, which count without a counter of the processor: nanoseconds on a core,
    /// and page faults.
    const TIME: PerfEvent = (1, 1);
    const FAULTS: PerfEvent = (1, 2);
    /// Bytes that are written for the first time, and those of a large page.
    const BYTES: usize = 64 << 20;
    const PAGE: usize = 2 << 20;

    #[test]
    fn what_a_later_thread_does_is_counted_with_the_first() {
        let pair = match EventPair::open(0, [TIME, FAULTS]).map_err(CountError::from) {
            Ok(pair) => pair,
            Err(why @ (CountError::Denied | CountError::NoCall)) => return skip(why),
            Err(error) => panic!("{error}"),
        };
        let before = pair.counted().unwrap();
        let written = std::thread::spawn(|| std::hint::black_box(vec![1u8; BYTES]).len()).join().unwrap();
        let after = pair.counted().unwrap();
        assert!(after.events[0] > before.events[0], "{before:?}, {after:?}");
        // Each large page at least is a fault of its own, of the other thread.
        assert!(after.events[1] - before.events[1] >= (written / PAGE) as u64, "{before:?}, {after:?}");
        assert!(after.running_ns > before.running_ns && after.running_ns <= after.enabled_ns, "{before:?}, {after:?}");
        assert!(ratios(&[("nf1", after)]).contains_key("instructions_per_cycle.nf1"));
    }

    #[test]
    fn a_process_that_there_is_not_says_so() {
        // No process has this number: it is beyond the kernel's greatest.
        let error = EventPair::open(i32::MAX as u32, [TIME, FAULTS]).map(drop).unwrap_err();
        match CountError::from(error) {
            CountError::Io(error) => assert_eq!(error.raw_os_error(), Some(libc::ESRCH)),
            why => skip(why),
        }
        let none = NfEvents::open(&[Nf::default()]).map(|events| events.per_cycle());
        assert!(matches!(none, Ok(Err(CountError::Nothing))), "without a process nothing is counted");
    }

    fn counts(events: [u64; 2], enabled_ns: u64, running_ns: u64) -> Counts {
        Counts { events, enabled_ns, running_ns }
    }

    #[test]
    fn what_was_counted_part_of_the_time_is_scaled_up() {
        assert_eq!(counts([300, 200], 40, 10).scaled(), Some([1200.0, 800.0]));
        assert_eq!(counts([300, 200], 40, 40).scaled(), Some([300.0, 200.0]));
        assert_eq!(counts([300, 200], 40, 0).scaled(), None);
        assert_eq!(counts([9, 7], 40, 30).since(&counts([4, 1], 10, 10)), counts([5, 6], 30, 20));
    }

    #[test]
    fn ratios_are_of_what_was_counted() {
        // The second was counted for half of the time, and the third never.
        let counted = [("nf1", counts([300, 100], 10, 10)), ("nf2", counts([50, 50], 20, 10)), ("nf3", counts([0, 0], 10, 0))];
        let want = [("instructions_per_cycle", 2.0), ("instructions_per_cycle.nf1", 3.0), ("instructions_per_cycle.nf2", 1.0)];
        assert_eq!(ratios(&counted), Sample::from(want.map(|(metric, ratio)| (metric.to_string(), ratio))));
        assert_eq!(ratios(&counted[2..]), Sample::new());
        assert_eq!(ratios(&[("nf1", counts([5, 0], 10, 10))]), Sample::new(), "no cycles");
        assert_eq!(ratios(&[]), Sample::new());
    }

    #[test]
    fn what_a_host_lacks_is_said() {
        let words = |number: i32| CountError::from(io::Error::from_raw_os_error(number)).to_string();
        for number in [libc::ENOENT, libc::ENODEV, libc::EOPNOTSUPP] {
            assert!(words(number).starts_with("it needs the processor's counters"), "{}", words(number));
        }
        for number in [libc::EACCES, libc::EPERM] {
            assert!(words(number).starts_with("it needs root or CAP_PERFMON"), "{}", words(number));
        }
        assert_eq!(words(libc::ENOSYS), "it needs a kernel that has perf_event_open");
        assert!(words(libc::ESRCH).starts_with("the processor's counters cannot be read: "), "{}", words(libc::ESRCH));
    }
}
