//! The manager's side of a core page, with one hostile NF that writes any word of the page and of
//! its own region. A round wakes a bounded number of NFs, and an NF with packets is woken, whatever
//! the page says.

use std::cell::RefCell;

use arbitrary::{Arbitrary, Unstructured};
use sluice_dataplane::worker::played::{MOST_WAKES, PlayedCore};

/// NFs: more than a round examines. The first one is hostile.
const NFS: u16 = 20;
/// Slots: more than the bits of a word.
const SLOTS: u32 = 70;
const STEPS: usize = 256;
const MS: u64 = 1_000_000;
/// Most rounds of a step, plus one.
const MOST_ROUNDS: u8 = 32;
const ROUND_NS: u64 = 50_000;
/// Milliseconds within which an NF with packets is woken: the longest wait for its turn, and the
/// longest pause after a wake that it slept through.
const PATIENCE_MS: u64 = 100;
/// Words that are written in each of these milliseconds.
const WRITES: usize = 16;
/// A fuzzer has that wait after one input in this many: it takes longer than most inputs do.
const INPUTS_A_WAIT: u64 = 8;

#[derive(Arbitrary, Debug)]
enum Step {
    /// The hostile NF writes a word of the page.
    Page { at: u16, word: u32 },
    /// It writes a word before the slots, where every bit counts.
    Head { at: u8, word: u32 },
    /// It writes a word of its region.
    Region { at: u16, word: u32 },
    /// Packets come to an NF.
    Post { nf: u8, packets: u8 },
    /// An NF returns its packets.
    Work(u8),
    /// An NF marks itself asleep.
    Sleep(u8),
    /// Some rounds.
    Rounds(u8),
    /// Time without a round.
    Pass(u8),
}

thread_local! {
    static CORE: RefCell<Option<PlayedCore>> = const { RefCell::new(None) };
}

/// Runs one input: steps of all parties, and the wait for all NFs.
pub fn run(bytes: &[u8]) {
    run_with(bytes, true);
}

/// The same for a fuzzer, with the wait after one input in eight.
pub fn run_one_of_many(bytes: &[u8]) {
    run_with(bytes, seed_of(bytes).is_multiple_of(INPUTS_A_WAIT));
}

fn run_with(bytes: &[u8], waits: bool) {
    CORE.with_borrow_mut(|kept| {
        let core = kept.get_or_insert_with(|| PlayedCore::new(NFS, SLOTS).expect("memory"));
        let mut now = 1_000 * MS;
        core.begin_again(now);
        steps(core, &mut now, bytes);
        if waits {
            nobody_waits_for_ever(core, now, seed_of(bytes));
        }
    });
}

/// A number that the input alone decides, so an input that failed fails again.
fn seed_of(bytes: &[u8]) -> u64 {
    let fnv = |state: u64, byte: &u8| (state ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0x9e37_79b9_7f4a_7c15, fnv)
}

fn round(core: &mut PlayedCore, now: u64) {
    let woken = core.round(now);
    assert!(woken <= MOST_WAKES, "{woken} NFs were woken in one round");
}

fn steps(core: &mut PlayedCore, now: &mut u64, bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let number = |nf: u8| usize::from(nf) % usize::from(NFS);
    for _ in 0..STEPS {
        if input.is_empty() {
            return;
        }
        let Ok(step) = Step::arbitrary(&mut input) else { return };
        match step {
            Step::Page { at, word } => core.write_page(at.into(), word),
            Step::Head { at, word } => core.write_page(at.into(), word),
            Step::Region { at, word } => core.write_region(0, at.into(), word),
            Step::Post { nf, packets } => core.post(number(nf), packets.into(), *now),
            Step::Work(nf) => core.work(number(nf)),
            Step::Sleep(nf) => core.sleep(number(nf)),
            Step::Rounds(n) => {
                for _ in 0..n % MOST_ROUNDS {
                    round(core, *now);
                    *now += ROUND_NS;
                }
            }
            Step::Pass(ms) => *now += u64::from(ms) * MS,
        }
    }
}

/// Posts to all honest NFs while the hostile one goes on writing, until the last one is woken.
fn nobody_waits_for_ever(core: &mut PlayedCore, mut now: u64, seed: u64) {
    let mut state = seed | 1;
    let mut noise = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as u32
    };
    let honest = 1..usize::from(NFS);
    for nf in honest.clone() {
        if core.unread(nf) == 0 {
            core.post(nf, 1, now);
        }
    }
    let before: [u64; NFS as usize] = std::array::from_fn(|nf| core.wakes(nf));
    for _ in 0..PATIENCE_MS {
        if honest.clone().all(|nf| core.wakes(nf) > before[nf]) {
            return;
        }
        for _ in 0..WRITES {
            core.write_page(noise() as usize, noise());
            core.write_region(0, noise() as usize, noise());
        }
        round(core, now);
        now += MS;
    }
    for nf in honest {
        assert!(core.wakes(nf) > before[nf], "NF {nf} has {} packets, and was not woken for {PATIENCE_MS} ms", core.unread(nf));
    }
}
