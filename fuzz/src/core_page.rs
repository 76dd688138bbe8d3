//! A core page on which one NF writes any word at any time: the manager and an honest NF get
//! answers within the page's bounds.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use arbitrary::{Arbitrary, Unstructured};
use sluice_shm::core_page::CorePage;
use sluice_shm::memory::{SharedMemory, Snapshot};

/// Slots: more than the bits of a word.
const SLOTS: u32 = 70;
const STEPS: usize = 256;

#[derive(Arbitrary, Debug)]
enum Step {
    /// The peer writes a word anywhere.
    Write { at: u16, word: u32 },
    /// The peer writes a word before the slots, where every bit counts.
    Head { at: u8, word: u32 },
    /// The manager posts packets to a slot.
    Post { slot: u8, publish: bool },
    /// The manager takes what was returned.
    Take { word: u8, mine: u64 },
    /// The manager sets a slot's words.
    Say { slot: u8, level: u32, pressing: u32, ns: u64 },
    /// The manager gives a slot to another NF.
    Reset(u8),
    /// The next NF is chosen.
    Choose { me: Option<u8>, now_ns: u64 },
    /// A slot is read.
    Ask(u8),
    /// An NF has run.
    Pay { slot: u8, ns: u64 },
    /// An NF has read its packets.
    Clear(u8),
    /// The manager clears marks of slots that none has.
    Sweep { given: [u64; 2] },
}

thread_local! {
    static PAGE: RefCell<Option<(SharedMemory, CorePage, Snapshot)>> = const { RefCell::new(None) };
}

/// Runs one input: steps of the peer and of the others.
pub fn run(bytes: &[u8]) {
    PAGE.with_borrow_mut(|kept| {
        let (memory, page, as_made) = kept.get_or_insert_with(|| {
            let (memory, page) = CorePage::create(SLOTS, true).expect("memory");
            let as_made = Snapshot::of(memory.mapping());
            (memory, page, as_made)
        });
        as_made.restore(memory.mapping());
        steps(memory, page, bytes);
    });
}

/// Takes the bits of slots that returned packets: first of all, then of some.
fn take(page: &CorePage, index: usize, mine: u64) {
    let note = |bits: u64| {
        let mut left = bits;
        while left != 0 {
            let slot = index as u32 * 64 + left.trailing_zeros();
            left &= left - 1;
            if slot < SLOTS {
                page.note_returned(slot);
            }
        }
    };
    note(page.take_returned(index, u64::MAX));
    let all = page.take_returned(index, u64::MAX);
    note(all);
    assert_eq!(page.take_returned(index, mine), all & mine, "those of its own that have returned something");
    let others = page.take_returned(index, u64::MAX);
    assert_eq!(others, all & !mine, "those of others are left to them");
    note(others);
}

fn steps(memory: &SharedMemory, page: &CorePage, bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let slot = |n: u8| u32::from(n) % SLOTS;
    let write = |at: usize, value: u32| {
        if let Some(word) = memory.mapping().atomic_u32(at * 4 % sluice_shm::core_page::bytes(SLOTS)) {
            word.store(value, Ordering::Relaxed);
        }
    };
    for _ in 0..STEPS {
        if input.is_empty() {
            return;
        }
        let Ok(step) = Step::arbitrary(&mut input) else { return };
        match step {
            Step::Write { at, word } => write(usize::from(at), word),
            Step::Head { at, word } => write(usize::from(at), word),
            Step::Post { slot: n, publish } => {
                page.posted(slot(n)).fetch_add(1, Ordering::Relaxed);
                if publish {
                    page.mark_pending(slot(n), u64::from(n));
                } else {
                    page.set_pending(slot(n), u64::from(n));
                }
            }
            Step::Take { word, mine } => take(page, usize::from(word) % page.words(), mine),
            Step::Say { slot: n, level, pressing, ns } => {
                page.set_level(slot(n), level);
                page.set_pressing(slot(n), pressing);
                page.endow(slot(n), ns);
            }
            Step::Reset(n) => page.reset(slot(n)),
            Step::Choose { me, now_ns } => {
                let chosen = page.choose(me.map(slot), now_ns);
                assert!(chosen.is_none_or(|slot| slot < SLOTS), "slot {chosen:?} of {SLOTS}");
            }
            Step::Ask(n) => {
                let n = slot(n);
                let _ = (
                    page.waiting(n),
                    page.budget(n),
                    page.is_dormant(n),
                    page.has_other(n),
                    page.is_preceded(n),
                    page.has_favoured(),
                );
            }
            Step::Pay { slot: n, ns } => page.pay(slot(n), ns),
            Step::Clear(n) => page.clear_pending(slot(n)),
            Step::Sweep { given } => {
                let marks = || [0, 1].map(|index| page.pending(index));
                let before = marks();
                let found = page.sweep(&given);
                assert_eq!(marks(), [0, 1].map(|i| before[i] & given[i]), "marks of given slots stay, others go");
                assert_eq!(found, before != marks());
            }
        }
    }
}
