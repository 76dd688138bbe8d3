//! Cost of a packet through a null device, both ways: driver, shim and Rust interface only.
//!
//! `cargo run --release -p sluice-dpdk --features dpdk --example null_speed`. Prints median,
//! minimum and maximum of eleven runs, in CPU time of the thread, which reduces the effect of a
//! busy host. Needs no root and no hugepages.

use rustix::time::{ClockId, clock_gettime};
use sluice_dpdk::{Device, DeviceOptions, DpdkError, Eal, EalOptions, MbufPool, Packet};
use sluice_shm::arena::{Arena, DEFAULT_STRIDE, Geometry};

const FRAMES: u32 = 16_384;
const BURSTS: u32 = 500_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (_memory, arena) = Arena::create(Geometry { first: 0, frames: FRAMES, stride: DEFAULT_STRIDE as u32 }, false)?;
    let eal = Eal::init(&EalOptions { frames: FRAMES, ..Default::default() })?;
    let pool = MbufPool::over(&eal, &arena)?;
    let _here = pool.enter_thread()?;
    let mut queue = null_device(&pool)?;
    let mut samples: Vec<f64> = (0..11)
        .map(|_| {
            let mut burst = [Packet::default(); 32];
            let (start, mut packets) = (cpu_ns(), 0u64);
            for _ in 0..BURSTS {
                let n = queue.rx_burst(&mut burst);
                packets += queue.tx_burst(&burst[..n]) as u64;
            }
            (cpu_ns() - start) as f64 / packets as f64
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    println!(
        "{}, net_null, bursts of 32, rx and tx: {:.2} ns a packet ({:.2} to {:.2})",
        Eal::version(),
        samples[5],
        samples[0],
        samples[10]
    );
    Ok(())
}

/// CPU time that this thread has used.
fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn null_device(pool: &MbufPool) -> Result<sluice_dpdk::Queue, DpdkError> {
    let (_device, mut queues) = Device::open(pool, "net_null0,size=60", &DeviceOptions::default())?;
    Ok(queues.remove(0))
}
