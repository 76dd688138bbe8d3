//! An NF that breaks the rules, for the tests of trust: it attaches as any NF does and then does what its argument says.
//!
//! | argument | what it does |
//! |---|---|
//! | `random` | returns descriptors of random frames, offsets, lengths and verdicts |
//! | `replay` | returns every descriptor three times |
//! | `cursors` | writes random cursors to both of its rings |
//! | `lengths` | returns its frames with lengths and offsets past their ends |
//! | `deaf` | never reads its rx ring |
//! | `mute` | reads, and never returns a frame |
//! | `scribble` | overwrites its whole region and the core page with noise |
//! | `panic` | panics over its first packet |
//!
//! It uses the shared memory as it lies there, without the NF library. Limits: it leaves the arena alone, which all NFs map by design.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use sluice_shm::BURST;
use sluice_shm::core_page;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::handshake::{self, Hello};
use sluice_shm::memory::Mapping;
use sluice_shm::page::{Attached, Counter};
use sluice_shm::ring;

/// Xorshift: noise that is the same in each run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mode = std::env::args().nth(1).ok_or("name a mode, such as random")?;
    let path = std::env::var(handshake::ENV_SOCKET)?;
    let name = std::env::var(handshake::ENV_NF)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path.as_str())?)?;
    let (welcome, [_arena, region, core]) = handshake::attach(&socket, &Hello { name, is_zygote: false })?;
    let layout = welcome.region;
    let Attached { page, mut rx, mut tx } = Attached::map(region.as_fd(), layout)?;
    let raw = Mapping::new(region.as_fd(), layout.bytes as usize, false)?;
    let core = Mapping::new(core.as_fd(), core_page::bytes(welcome.slots), false)?;
    page.counter(Counter::Ready).store(1, Ordering::Release);
    let mut noise = Noise(0x5eed_5eed_5eed_5eed);
    let mut burst = [Descriptor::default(); BURST];
    loop {
        match mode.as_str() {
            "random" => {
                let mut forged = [Descriptor::default(); BURST];
                forged.fill_with(|| Descriptor::from_words([noise.next(), noise.next()]));
                for descriptor in forged.iter_mut().step_by(2) {
                    descriptor.frame %= welcome.geometry.frames;
                }
                let _ = tx.enqueue(&forged);
            }
            "replay" | "lengths" | "panic" => {
                let mut n = 0;
                for ring in &mut rx {
                    n += ring.dequeue(&mut burst[n..]).unwrap_or(0);
                }
                assert!(mode != "panic" || n == 0, "told to");
                if mode == "lengths" {
                    burst[..n].iter_mut().for_each(|d| (d.offset, d.len) = (noise.next() as u16, u16::MAX));
                }
                for _ in 0..if mode == "replay" { 3 } else { 1 } {
                    let _ = tx.enqueue(&burst[..n]);
                }
            }
            "cursors" => {
                for index in 0..=layout.rx_rings as usize {
                    let start = layout.rings as usize + index * ring::bytes(layout.capacity);
                    for cursor in [start, start + sluice_shm::CACHE_LINE] {
                        raw.atomic_u32(cursor).ok_or("the ring is mapped")?.store(noise.next() as u32, Ordering::Relaxed);
                    }
                }
            }
            "mute" => {
                for ring in &mut rx {
                    let _ = ring.dequeue(&mut burst);
                }
            }
            "scribble" => {
                for mapping in [&raw, &core] {
                    for offset in (0..mapping.len()).step_by(4) {
                        mapping.atomic_u32(offset).ok_or("it is mapped")?.store(noise.next() as u32, Ordering::Relaxed);
                    }
                }
            }
            "deaf" => {}
            other => return Err(format!("there is no mode {other}").into()),
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
