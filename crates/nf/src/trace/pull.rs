//! A stand-in for the manager of a traced NF that owns its loop.
//!
//! # Approach
//! The NF has rings as if it had attached, and a [`Feed`] at their other ends, in its own thread.
//! Whenever the NF asks for packets, the feed takes back what was written, and posts the next burst
//! if none waits. Frames that came back last go out first: an NF that writes packets before it
//! reads more uses the frames of one burst, and one whose packets wait as many as wait.
//!
//! It is followed from its first read on, except in the library's code for reads and writes; its
//! storage callbacks are followed. The process ends with the trace, as the loop is not ours to
//! leave and the NF's last output would be taken for records.
//!
//! # Limits
//! Packets that wait when the warm-up ends count; those that wait at the end do not. The clock is
//! the machine's. The kernel's writes (a read of the storage) are not followed. Such an NF cannot
//! hand packets on to another traced NF.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sluice_shm::BURST;
use sluice_shm::arena::{Arena, Geometry, HEADROOM};
use sluice_shm::clock::Clock;
use sluice_shm::core_page::CorePage;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::page::{Region, RegionLayout};
use sluice_shm::ring::{self, Consumer, Producer, WildCursor};

use super::packets::PacketSource;
use super::{TracedTraffic, begin, context, follow, write_out};
use crate::context::Context;
use crate::engine::Engine;
use crate::error::NfError;
use crate::sleeper::Place;

/// Frames, and slots of their return ring: an NF may keep all but a burst of them. No more, as the
/// ring takes up cache where other tools look at an untraced program.
const FRAMES: u32 = 1_024;
/// How long an NF may keep too many frames for another burst.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest packet, as in the harness.
const PACKET_BYTES: usize = 2_112;

/// Whether the NF of this process owns its loop and is traced.
static IS_TRACED: AtomicBool = AtomicBool::new(false);

/// Runs library code on behalf of the NF, without following it.
#[inline(always)]
pub(crate) fn apart<T>(library: impl FnOnce() -> T) -> T {
    change(false, library)
}

/// Runs the library's part of a read; from then on the NF is followed.
#[inline(always)]
pub(crate) fn reading<T>(read: impl FnOnce() -> T) -> T {
    let done = apart(read);
    if IS_TRACED.load(Relaxed) {
        follow(true);
    }
    done
}

/// Runs NF code that the library calls, following it.
#[inline(always)]
pub(crate) fn within<T>(nf: impl FnOnce() -> T) -> T {
    change(true, nf)
}

#[inline(always)]
fn change<T>(is_followed: bool, what: impl FnOnce() -> T) -> T {
    if !IS_TRACED.load(Relaxed) {
        return what();
    }
    let was_followed = follow(is_followed);
    let done = what();
    follow(was_followed);
    done
}

/// The manager's ends of the rings.
pub(crate) struct Feed {
    source: PacketSource,
    rx: Producer,
    tx: Consumer,
    /// Free frames; those that came back last are at the end.
    free: Vec<u32>,
    /// Time at which there last was a burst to give.
    given: Instant,
    /// The other end of the NF's connection.
    _peer: OwnedFd,
}

/// An NF with its feed.
///
/// # Errors
/// The traffic cannot be parsed or is not for such NFs, or there is no memory.
pub(crate) fn attach(traffic: Result<TracedTraffic, String>) -> Result<(Engine, Context, Feed), NfError> {
    let traffic = traffic.map_err(|why| NfError::Handler(why.into()))?;
    if traffic.input || traffic.output {
        let why = "an NF in pull style is traced neither in a chain nor on a capture: profile it alone on generated packets, or with \
                   --cache resctrl or --cache none";
        return Err(NfError::Handler(why.into()));
    }
    begin(&traffic);
    let none = |error: &dyn std::fmt::Display| NfError::Handler(format!("there is no memory for packets: {error}").into());
    let geometry = Geometry { first: 0, frames: FRAMES, stride: Geometry::stride_for(PACKET_BYTES) as u32 };
    let (_memory, arena) = Arena::create(geometry, false).map_err(|e| none(&e))?;
    // Of the region only the page is used: the rings are this process's own.
    let layout = RegionLayout::new(1, BURST as u32).expect("the constants are within the limits");
    let page = Region::create(layout).map_err(|e| none(&e))?.page;
    let (_memory, core) = CorePage::create(1, false).map_err(|e| none(&e))?;
    let (core, page, clock) = (Box::leak(Box::new(core)), Box::leak(Box::new(page)), Cell::new(Clock::new()));
    let place = Place { core, slot: 0, poll: true, page, clock };
    let (socket, peer) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(|e| none(&e))?;
    // A burst is posted only if none waits.
    let ((to_nf, rx), (tx, from_nf)) = (ring::private(BURST as u32), ring::private(FRAMES));
    let engine = Engine::new(arena, vec![rx], tx, place, 0, socket);
    let free = (0..FRAMES).rev().collect();
    let feed = Feed { source: PacketSource::new(traffic), rx: to_nf, tx: from_nf, free, given: Instant::now(), _peer: peer };
    IS_TRACED.store(true, Relaxed);
    Ok((engine, context(), feed))
}

impl Feed {
    /// Takes packets back and posts others. The end of the trace ends the process.
    ///
    /// # Errors
    /// [`NfError::Broken`], and what to do about an NF that keeps too many packets.
    pub(crate) fn turn(&mut self, arena: &Arena) -> Result<(), NfError> {
        let broken = |_: WildCursor| NfError::Broken("a ring cursor is where it cannot be");
        let mut back = [Descriptor::default(); BURST];
        loop {
            let n = self.tx.dequeue(&mut back).map_err(broken)?;
            if n == 0 {
                break;
            }
            self.free.extend(back[..n].iter().rev().map(|descriptor| descriptor.frame));
        }
        if self.rx.room().map_err(broken)? < self.rx.capacity() {
            return Ok(());
        }
        if self.free.len() < BURST {
            if self.given.elapsed() < PATIENCE {
                return Ok(());
            }
            let kept = FRAMES as usize - self.free.len();
            let why =
                format!("it keeps {kept} packets and writes none: traced, let it keep fewer than {}", FRAMES as usize - BURST);
            return Err(NfError::Handler(why.into()));
        }
        self.given = Instant::now();
        let Some(packets) = self.source.burst() else {
            write_out();
            std::process::exit(0);
        };
        let mut descriptors = Vec::with_capacity(BURST);
        for packet in packets {
            let frame = self.free.pop().expect("there are as many as a burst has");
            assert!(arena.write(frame, HEADROOM as u16, packet), "every packet that can be asked for fits a frame");
            descriptors.push(Descriptor { frame, offset: HEADROOM as u16, len: packet.len() as u16, ..Default::default() });
        }
        self.rx.enqueue(&descriptors).map_err(broken)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::{Nf, OwnedPacket};

    /// Frames and flows of packets.
    fn seen(packets: &mut [OwnedPacket]) -> (Vec<usize>, Vec<u32>) {
        let of = |packet: &mut OwnedPacket| {
            let packet = packet.packet();
            let data = packet.data();
            (data.as_ptr() as usize, u32::from_be_bytes(data[26..30].try_into().unwrap()) & 0xff_ffff)
        };
        packets.iter_mut().map(of).unzip()
    }

    #[test]
    fn an_nf_reads_burst_after_burst_in_the_frames_that_it_gave_back() {
        let mut nf = Nf::traced(TracedTraffic::parse("flows=300,packets=1000000")).unwrap();
        assert!(nf.context().port("in").is_some());
        let (mut burst, mut kept) = (Vec::new(), Vec::new());
        assert_eq!(nf.read_burst(&mut burst, None).unwrap(), Some(BURST));
        let (frames, flows) = seen(&mut burst);
        assert_eq!(flows, (0..32).collect::<Vec<_>>(), "one of each flow, in turn");
        nf.write_burst(&mut burst).unwrap();
        assert_eq!(nf.read_burst(&mut burst, None).unwrap(), Some(BURST));
        let (again, flows) = seen(&mut burst);
        assert_eq!((again, flows[0]), (frames.clone(), 32));
        // While these wait, others get other frames; dropped ones come back too.
        kept.append(&mut burst);
        assert_eq!(nf.read_burst(&mut burst, None).unwrap(), Some(BURST));
        let (others, flows) = seen(&mut burst);
        assert!(others.iter().all(|frame| !frames.contains(frame)) && flows[0] == 64);
        burst.clear();
        // One at a time, of the burst that was posted.
        let mut one = [nf.read().unwrap().unwrap()];
        assert_eq!(seen(&mut one), (vec![others[0]], vec![96]));
        assert_eq!(nf.read_burst(&mut burst, None).unwrap(), Some(BURST - 1), "no other burst before this one is read");
    }

    #[test]
    fn what_it_cannot_do_is_reported() {
        for (traffic, words) in [("output=1", "neither in a chain"), ("input=1", "neither in a chain"), ("flows=0", "SLUICE_TRACE")]
        {
            let error = Nf::traced(TracedTraffic::parse(traffic)).err().unwrap().to_string();
            assert!(error.contains(words), "{traffic}: {error}");
        }
    }
}
