//! The cost of waking many sleepers of another core: a system call each, or one io_uring call.
//!
//! `cargo run --release -p sluice-nf --example wake_many [SLEEPERS…]` (kernel 6.7 or newer). Each
//! sleeper waits on a futex of its own, as NFs do, all on core 1 or the last one; the waker is on
//! core 0. Prints medians of a hundred rounds each, interleaved.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue};
use rustix::thread::{CpuSet, futex, sched_setaffinity};

const TURNS: usize = 100;
const ANY: u64 = 0xffff_ffff;
/// The futex has 32 bits: FUTEX2_SIZE_U32.
const SIZE_U32: u32 = 2;

/// A sleeper's words, on a cache line of their own.
#[derive(Default)]
#[repr(align(64))]
struct Sleeper {
    bell: AtomicU32,
    asleep: AtomicU32,
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).expect("this core may be used");
}

fn sleep_on(sleeper: &Sleeper) -> ! {
    loop {
        let seen = sleeper.bell.load(Ordering::Acquire);
        sleeper.asleep.store(1, Ordering::Release);
        let _ = futex::wait(&sleeper.bell, futex::Flags::empty(), seen, None);
        sleeper.asleep.store(0, Ordering::Release);
    }
}

fn one_by_one(sleepers: &[Sleeper]) {
    for sleeper in sleepers {
        sleeper.bell.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&sleeper.bell, futex::Flags::empty(), 1);
    }
}

fn together(sleepers: &[Sleeper], ring: &mut IoUring) -> std::io::Result<()> {
    for sleeper in sleepers {
        sleeper.bell.fetch_add(1, Ordering::Release);
        let entry = opcode::FutexWake::new(sleeper.bell.as_ptr(), 1, ANY, SIZE_U32).build().flags(squeue::Flags::SKIP_SUCCESS);
        // SAFETY: the sleepers are never freed, and the kernel only looks at the word.
        unsafe { ring.submission().push(&entry) }.map_err(std::io::Error::other)?;
    }
    ring.submit()?;
    match ring.completion().find(|done| done.result() < 0) {
        Some(failed) => Err(std::io::Error::from_raw_os_error(-failed.result())),
        None => Ok(()),
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64 / 1e3
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers: Vec<usize> = std::env::args().skip(1).map(|arg| arg.parse()).collect::<Result<_, _>>()?;
    if numbers.is_empty() {
        numbers = vec![1, 4, 16, 64, 256];
    }
    let core = std::thread::available_parallelism()?.get() - 1;
    let most = numbers.iter().copied().max().unwrap_or(1).max(1);
    let mut ring = IoUring::builder().setup_single_issuer().build(most.next_power_of_two() as u32)?;
    let mut probe = io_uring::Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if !probe.is_supported(opcode::FutexWake::CODE) {
        return Err("this kernel wakes no futexes by io_uring; 6.7 and newer do".into());
    }
    let sleepers: &'static [Sleeper] = (0..most).map(|_| Sleeper::default()).collect::<Vec<_>>().leak();
    for sleeper in sleepers {
        std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
            pin(core);
            sleep_on(sleeper)
        })?;
    }
    pin(0);
    println!("sleepers  one by one  µs each  together  µs each");
    for n in numbers {
        let some = &sleepers[..n];
        let (mut apart, mut joint) = (Vec::new(), Vec::new());
        for turn in 0..2 * TURNS {
            while some.iter().any(|sleeper| sleeper.asleep.load(Ordering::Acquire) == 0) {
                std::thread::yield_now();
            }
            // It takes a moment longer from the word to the sleep.
            std::thread::sleep(Duration::from_micros(200));
            let began = Instant::now();
            if turn % 2 == 0 {
                one_by_one(some);
                apart.push(began.elapsed());
            } else {
                together(some, &mut ring)?;
                joint.push(began.elapsed());
            }
        }
        let (apart, joint, each) = (median(apart), median(joint), n as f64);
        println!("{n:8}  {apart:10.1}  {:7.2}  {joint:8.1}  {:7.2}", apart / each, joint / each);
    }
    Ok(())
}
