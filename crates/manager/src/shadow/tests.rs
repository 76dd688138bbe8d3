//! The thread's work, step by step: a test plays the shadow and the packet threads.

use sluice_dataplane::capture::{CaptureScope, DropPlace, Sight, following};
use sluice_dataplane::frame::Packet;
use sluice_shm::arena::{Arena, Geometry, HEADROOM};
use sluice_shm::descriptor::{Descriptor, Verdict};
use sluice_shm::page::Attached;

use super::*;

const STRIDE: u32 = 2240;
const RING: u32 = 8;
const NF: u16 = 3;

/// A comparison of two packet threads, and what is played beside it.
struct Bench {
    work: ShadowLoop,
    taps: Vec<Tap>,
    /// The real packets.
    packets: Arena,
    /// The shadow's side.
    nf: Attached,
    arena: Arena,
}

impl Bench {
    fn new(words: usize) -> Self {
        let memory = ShadowMemory::new(STRIDE, RING).unwrap();
        let nf = Attached::map(memory.fds()[1], memory.layout()).unwrap();
        let arena = Arena::map(memory.fds()[0], memory.geometry()).unwrap();
        let (taps, readers) = following(&Arc::new(CaptureScope::of_nf(NF)), words, 2).into_iter().unzip();
        let work = ShadowLoop {
            memory,
            readers,
            begun: Vec::new(),
            from: 0,
            missed: 0,
            next: 0,
            comparer: Comparer::default(),
            record: CapturedPacket::default(),
            progress: Arc::default(),
        };
        let packets = Arena::create(Geometry { first: 0, frames: 64, stride: STRIDE }, false).unwrap().1;
        Self { work, taps, packets, nf, arena }
    }

    fn sight(point: Point) -> Sight<'static> {
        Sight { point, why: None, place: None, ingress: Some(1), chain: Some(2), hops: &[] }
    }

    /// The old version gets a packet, which one thread shows.
    fn enters(&mut self, frame: u32, bytes: &[u8]) -> Descriptor {
        assert!(self.packets.write(frame, HEADROOM as u16, bytes));
        let len = bytes.len() as u16;
        let descriptor =
            Descriptor { frame, offset: HEADROOM as u16, len, chain: 2, ingress: 1, flags: 2, ..Descriptor::default() };
        self.taps[0].show(&self.packets, 1, &Self::sight(Point::ToNf(NF)), &[descriptor]);
        descriptor
    }

    /// The old version returns a packet, which the other thread shows.
    fn returns(&mut self, descriptor: Descriptor) {
        self.taps[1].show(&self.packets, 2, &Self::sight(Point::FromNf(NF)), &[descriptor]);
    }

    /// The old version drops a packet.
    fn drops(&mut self, frame: u32, why: DropReason) {
        let sight = Sight { why: Some(why.into()), place: Some(DropPlace::Nf(NF)), ..Self::sight(Point::Dropped) };
        self.taps[1].show(&self.packets, 2, &sight, &[Packet::fresh(frame, 1)]);
    }

    /// What the shadow has got.
    fn got(&mut self) -> Vec<Descriptor> {
        let mut burst = [Descriptor::default(); RING as usize];
        let n = self.nf.rx[0].dequeue(&mut burst).unwrap();
        burst[..n].to_vec()
    }

    fn bytes(&self, descriptor: &Descriptor) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(descriptor.len)];
        assert!(self.arena.read(descriptor.frame, descriptor.offset, &mut bytes));
        bytes
    }

    fn counts(&self) -> ShadowCounts {
        self.work.comparer.counts()
    }
}

#[test]
fn what_both_do_with_a_packet_is_compared_over_all_threads() {
    let mut bench = Bench::new(1024);
    let entered: Vec<Descriptor> = (0..4).map(|frame| bench.enters(frame, &[frame as u8; 60])).collect();
    bench.returns(Descriptor { flags: 0, ..entered[0] });
    bench.returns(Descriptor { verdict: Verdict::ToPort as u8, arg: 7, ..entered[1] });
    bench.drops(2, DropReason::Verdict);
    assert_eq!(bench.work.turn().unwrap(), 7);
    let got = bench.got();
    let seen: Vec<_> = got.iter().map(|one| (one.chain, one.ingress, one.flags, one.verdict, bench.bytes(one))).collect();
    assert_eq!(seen, (0..4).map(|i| (2, 1, 2, 0, vec![i; 60])).collect::<Vec<_>>());
    // Another byte, the same port, no drop; and one that the old version still has.
    bench.arena.write(got[0].frame, got[0].offset, &[9]);
    let answers = [got[0], Descriptor { verdict: Verdict::ToPort as u8, arg: 7, ..got[1] }, got[2], got[3]];
    bench.nf.tx.enqueue(&answers).unwrap();
    assert_eq!(bench.work.turn().unwrap(), 4);
    let counts = ShadowCounts { compared: 3, equal: 1, verdict: 1, bytes: 1, ..ShadowCounts::default() };
    assert_eq!((bench.counts(), bench.work.memory.is_empty()), (counts, true));
    let seen: Vec<_> = bench.work.comparer.differences().iter().map(|one| (one.old.as_str(), one.new.as_str())).collect();
    assert_eq!(seen, [("next", "next"), ("drop", "next")]);
    bench.returns(entered[3]);
    assert_eq!(bench.work.turn().unwrap(), 1);
    assert_eq!(bench.counts(), ShadowCounts { compared: 4, equal: 2, ..counts });
}

#[test]
fn a_shadow_that_takes_nothing_gets_what_fits_and_the_rest_is_missed() {
    let mut bench = Bench::new(4096);
    for frame in 0..20 {
        let entered = bench.enters(frame, &[1; 60]);
        bench.returns(entered);
    }
    assert_eq!(bench.work.turn().unwrap(), 40);
    assert_eq!(bench.counts(), ShadowCounts { missed: 20 - u64::from(RING), ..ShadowCounts::default() });
    assert_eq!(bench.got().len(), RING as usize);
    // It keeps those.
    bench.work.finish();
    let kept = u64::from(RING);
    let counts = ShadowCounts { compared: kept, kept, missed: 20 - kept, ..ShadowCounts::default() };
    assert_eq!(bench.counts(), counts);
}

#[test]
fn copies_that_were_missed_are_counted_once() {
    // Thirteen words for each of 64 bytes, of 64.
    let mut bench = Bench::new(64);
    for frame in 0..6 {
        let entered = bench.enters(frame, &[1; 64]);
        bench.returns(entered);
    }
    assert_eq!(bench.work.turn().unwrap(), 8);
    assert_eq!(bench.got().len(), 4);
    bench.work.finish();
    // Two that came in and two that went out were missed. The shadow keeps the other four.
    assert_eq!(bench.counts(), ShadowCounts { compared: 4, kept: 4, missed: 4, ..ShadowCounts::default() });
}

#[test]
fn what_one_thread_shows_before_all_copy_is_not_compared() {
    let mut bench = Bench::new(1024);
    let (one, begun_one) = channel();
    let (other, begun_other) = channel();
    bench.work.begun = vec![begun_one, begun_other];
    one.send(bench.taps[0].next_order()).unwrap();
    // The other thread returns the first packet without showing that, and shows the second one.
    let entered = [bench.enters(0, &[1; 60]), bench.enters(1, &[2; 60])];
    assert_eq!(bench.work.turn().unwrap(), 2);
    let entered_late = bench.enters(2, &[3; 60]);
    other.send(bench.taps[1].next_order()).unwrap();
    bench.returns(entered[1]);
    bench.returns(entered_late);
    // All of one flow: the frame of the first one again, and another one.
    let entered = [bench.enters(0, &[4; 60]), bench.enters(1, &[5; 60])];
    entered.into_iter().for_each(|one| bench.returns(one));
    assert_eq!(bench.work.turn().unwrap(), 7);
    let got = bench.got();
    assert_eq!(got.iter().map(|one| bench.bytes(one)).collect::<Vec<_>>(), [vec![4; 60], vec![5; 60]]);
    bench.nf.tx.enqueue(&got).unwrap();
    bench.work.turn().unwrap();
    bench.work.finish();
    assert_eq!(bench.counts(), ShadowCounts { compared: 2, equal: 2, ..ShadowCounts::default() });
}

#[test]
fn what_is_known_is_published_when_it_has_changed() {
    let mut bench = Bench::new(1024);
    let published = |bench: &Bench| lock(&bench.work.progress).clone();
    let entered = bench.enters(0, &[1; 60]);
    bench.returns(entered);
    bench.work.turn().unwrap();
    bench.work.publish(false, None);
    let got = bench.got();
    bench.nf.tx.enqueue(&got).unwrap();
    bench.work.turn().unwrap();
    bench.work.publish(false, None);
    let first = published(&bench);
    assert_eq!((first.counts.compared, first.is_done), (1, false));
    bench.work.publish(false, None);
    assert!(Arc::ptr_eq(&first, &published(&bench)));
    bench.work.publish(true, None);
    assert!(published(&bench).is_done);
}

#[test]
fn what_is_lost_otherwise_is_not_compared() {
    let mut bench = Bench::new(1024);
    for (frame, why) in [(0, DropReason::NfGone), (1, DropReason::NotAllowed)] {
        bench.enters(frame, &[1; 60]);
        bench.drops(frame, why);
    }
    bench.work.turn().unwrap();
    let got = bench.got();
    bench.nf.tx.enqueue(&got).unwrap();
    bench.work.turn().unwrap();
    assert_eq!(bench.counts(), ShadowCounts { missed: 2, ..ShadowCounts::default() });
}

#[test]
fn a_forged_frame_ends_a_shadow_and_a_forged_packet_is_a_difference() {
    let mut bench = Bench::new(1024);
    let entered = bench.enters(0, &[1; 60]);
    bench.returns(entered);
    bench.work.turn().unwrap();
    let got = bench.got();
    bench.nf.tx.enqueue(&[Descriptor { offset: STRIDE as u16 - 1, ..got[0] }]).unwrap();
    bench.work.turn().unwrap();
    assert_eq!((bench.counts().verdict, bench.work.comparer.differences()[0].new.as_str()), (1, "invalid"));
    // It does not have the frame any more.
    bench.nf.tx.enqueue(&got).unwrap();
    assert!(matches!(bench.work.turn(), Err(Broken::Frame)));
    let mut bench = Bench::new(1024);
    bench.nf.tx.enqueue(&[Descriptor { frame: u32::MAX, ..Descriptor::default() }]).unwrap();
    assert!(matches!(bench.work.turn(), Err(Broken::Frame)));
}

#[test]
fn the_thread_publishes_its_result_when_the_taps_are_back() {
    let Bench { work, mut taps, packets, mut nf, .. } = Bench::new(1024);
    let shadowing = {
        let begun = taps.iter().map(|tap| {
            let (to, from) = channel();
            to.send(tap.next_order()).unwrap();
            from
        });
        Shadowing::start(work.memory, work.readers, begun.collect()).unwrap()
    };
    packets.write(0, HEADROOM as u16, &[1; 60]);
    let descriptor = Descriptor { frame: 0, offset: HEADROOM as u16, len: 60, ..Descriptor::default() };
    taps[0].show(&packets, 1, &Bench::sight(Point::ToNf(NF)), &[descriptor]);
    let mut burst = [Descriptor::default(); 4];
    while nf.rx[0].dequeue(&mut burst).unwrap() == 0 {
        std::thread::yield_now();
    }
    taps[1].show(&packets, 2, &Bench::sight(Point::FromNf(NF)), &[descriptor]);
    nf.tx.enqueue(&burst[..1]).unwrap();
    let give = |tap| {
        let (to, from) = channel();
        to.send(Some(tap)).unwrap();
        from
    };
    shadowing.end(taps.drain(..).map(give).collect());
    while !shadowing.progress().is_done {
        std::thread::yield_now();
    }
    assert_eq!(shadowing.progress().counts, ShadowCounts { compared: 1, equal: 1, ..ShadowCounts::default() });
}

#[test]
fn a_version_takes_over_if_enough_were_compared_and_no_more_differ_than_may() {
    let wanted =
        |allow, allow_percent| ShadowRequest { exec: "x".into(), args: None, seconds: 1, allow, allow_percent, core: None };
    let counts =
        |compared, different| ShadowCounts { compared, equal: compared - different, bytes: different, ..ShadowCounts::default() };
    for (allow, percent, compared, different, passes) in [
        (0, 0.0, ENOUGH, 0, true),
        (0, 0.0, ENOUGH - 1, 0, false),
        (0, 0.0, 1_000, 1, false),
        (1, 0.0, 1_000, 1, true),
        (1, 0.5, 1_000, 5, true),
        (1, 0.5, 1_000, 6, false),
        (0, 100.0, 1_000, 1_000, true),
    ] {
        let fault = shadow_fault(&wanted(allow, percent), &counts(compared, different));
        assert_eq!(fault.is_none(), passes, "{allow} {percent} {compared} {different}: {fault:?}");
    }
    assert_eq!(shadow_fault(&wanted(1, 0.5), &counts(1_000, 6)).unwrap(), "6 of 1000 packets differ, and 5 may");
    assert_eq!(wrong_shadow(&wanted(0, 0.0)), None);
    for request in [
        wanted(0, f64::NAN),
        wanted(0, 101.0),
        wanted(0, -1.0),
        ShadowRequest { seconds: 0, ..wanted(0, 0.0) },
        ShadowRequest { seconds: 86_401, ..wanted(0, 0.0) },
    ] {
        assert!(wrong_shadow(&request).is_some(), "{request:?}");
    }
}
