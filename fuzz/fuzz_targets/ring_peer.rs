//! The manager's side of an NF's rings, with a peer that writes any word of the region at any time.
#![no_main]

use std::sync::atomic::Ordering;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sluice_shm::BURST;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::page::{Region, RegionLayout};

#[derive(Arbitrary, Debug)]
enum Step {
    /// The peer writes a word somewhere.
    Write { at: u16, word: u32 },
    /// The peer moves a cursor by a little: of the rx or tx ring, head or tail.
    Move { tx: bool, tail: bool, by: u8 },
    /// The manager posts so many descriptors.
    Post(u8),
    /// The manager takes what is there.
    Take,
}

fuzz_target!(|steps: Vec<Step>| {
    let layout = RegionLayout::new(1, 16).expect("a valid layout");
    let region = Region::create(layout).expect("memory");
    let (mut producer, mut consumer) = (region.rx_producer(0).expect("ring 0"), region.tx_consumer());
    let memory = region.memory.mapping();
    let word = |offset: usize| memory.atomic_u32(offset);
    for step in steps {
        match step {
            Step::Write { at, word: value } => {
                if let Some(word) = word(usize::from(at) * 4 % layout.bytes as usize) {
                    word.store(value, Ordering::Relaxed);
                }
            }
            Step::Move { tx, tail, by } => {
                let ring = layout.rings as usize + usize::from(tx) * sluice_shm::ring::bytes(layout.capacity);
                if let Some(word) = word(ring + usize::from(tail) * sluice_shm::CACHE_LINE) {
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
});
