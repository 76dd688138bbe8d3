//! The manager's side of an NF's rings, with a peer that writes any word at any time.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use arbitrary::{Arbitrary, Unstructured};
use sluice_shm::BURST;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::memory::Snapshot;
use sluice_shm::page::{Region, RegionLayout};

#[derive(Arbitrary, Debug)]
enum Step {
    /// The peer writes a word anywhere.
    Write { at: u16, word: u32 },
    /// The peer moves a cursor by a little: head or tail of the rx or tx ring.
    Move { tx: bool, tail: bool, by: u8 },
    /// The manager posts this many descriptors.
    Post(u8),
    /// The manager takes what is there.
    Take,
}

thread_local! {
    /// One region for all inputs, restored for each: making one takes longer than an input.
    static REGION: RefCell<Option<(Region, Snapshot)>> = const { RefCell::new(None) };
}

/// Runs one input: steps of the peer and of the manager.
pub fn run(bytes: &[u8]) {
    REGION.with_borrow_mut(|kept| {
        let layout = RegionLayout::new(1, 16).expect("a valid layout");
        let (region, as_made) = kept.get_or_insert_with(|| {
            let region = Region::create(layout).expect("memory");
            let as_made = Snapshot::of(region.memory.mapping());
            (region, as_made)
        });
        as_made.restore(region.memory.mapping());
        steps(region, layout, bytes);
    });
}

fn steps(region: &Region, layout: RegionLayout, bytes: &[u8]) {
    let (mut producer, mut consumer) = (region.rx_producer(0).expect("ring 0"), region.tx_consumer());
    let memory = region.memory.mapping();
    let mut input = Unstructured::new(bytes);
    while !input.is_empty() {
        let Ok(step) = Step::arbitrary(&mut input) else { return };
        match step {
            Step::Write { at, word: value } => {
                if let Some(word) = memory.atomic_u32(usize::from(at) * 4 % layout.bytes as usize) {
                    word.store(value, Ordering::Relaxed);
                }
            }
            Step::Move { tx, tail, by } => {
                let ring = layout.rings as usize + usize::from(tx) * sluice_shm::ring::bytes(layout.capacity);
                if let Some(word) = memory.atomic_u32(ring + usize::from(tail) * sluice_shm::CACHE_LINE) {
                    word.fetch_add(u32::from(by), Ordering::Relaxed);
                }
            }
            Step::Post(n) => {
                let before = producer.cursor();
                let burst = [Descriptor::default(); BURST];
                let put = producer.enqueue(&burst[..usize::from(n) % (BURST + 1)]).unwrap_or(0);
                assert!(put <= layout.capacity as usize);
                assert_eq!(producer.cursor(), before.wrapping_add(put as u32));
            }
            Step::Take => {
                let before = consumer.cursor();
                let mut burst = [Descriptor::default(); BURST];
                let got = consumer.dequeue(&mut burst).unwrap_or(0);
                assert!(got <= layout.capacity as usize);
                assert_eq!(consumer.cursor(), before.wrapping_add(got as u32));
            }
        }
    }
}
