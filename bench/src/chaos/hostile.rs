//! An NF that breaks the rules, for runs that count what it does to others. It attaches as any NF does, and uses shared memory as it
//! lies there, without the NF library.
//!
//! Limits: it leaves packet memory alone, which NFs of one tenant share by design.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use sluice_shm::descriptor::Descriptor;
use sluice_shm::handshake::{self, Hello};
use sluice_shm::memory::Mapping;
use sluice_shm::page::{Attached, Counter};
use sluice_shm::{BURST, core_page, ring};

/// What it can do, and what that is.
pub const MODES: [(&str, &str); 11] = [
    ("random", "returns descriptors of random frames, offsets, lengths and verdicts"),
    ("replay", "returns every descriptor three times"),
    ("cursors", "writes random cursors to its rings"),
    ("lengths", "returns its frames with lengths and offsets past their ends"),
    ("deaf", "never reads its rx rings"),
    ("mute", "reads, and never returns a frame"),
    ("scribble", "overwrites its region and the core page with noise"),
    ("page", "overwrites the core page alone with noise"),
    ("slow", "sleeps for 10 ms before it returns a burst"),
    ("unready", "attaches, and never says that it is ready"),
    ("quit", "ends as soon as it has a packet"),
];

/// Noise that is the same in each run: xorshift.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn scribble(over: &Mapping, noise: &mut Noise) {
    for word in (0..over.len()).step_by(4).filter_map(|offset| over.atomic_u32(offset)) {
        word.store(noise.next() as u32, Ordering::Relaxed);
    }
}

/// Runs it until it is ended.
///
/// # Errors
/// No daemon has started it, or there is no such mode.
pub fn run(mode: &str) -> anyhow::Result<()> {
    if !MODES.iter().any(|(name, _)| *name == mode) {
        bail!("there is no mode {mode}; there are: {}", MODES.map(|(name, _)| name).join(", "));
    }
    let path = std::env::var(handshake::ENV_SOCKET).context("it is started by sluiced alone")?;
    let name = std::env::var(handshake::ENV_NF).context("it is started by sluiced alone")?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(Path::new(&path))?)?;
    let (welcome, [_arena, region, core]) = handshake::attach(&socket, &Hello { name, is_zygote: false })?;
    let layout = welcome.region;
    let Attached { page, mut rx, mut tx } = Attached::map(region.as_fd(), layout)?;
    let raw = Mapping::new(region.as_fd(), layout.bytes as usize, false)?;
    let core = Mapping::new(core.as_fd(), core_page::bytes(welcome.slots), false)?;
    if mode != "unready" {
        page.counter(Counter::Ready).store(1, Ordering::Release);
        handshake::send(socket.as_fd(), &handshake::ready(), &[])?;
    }
    let mut noise = Noise(0x5eed_5eed_5eed_5eed);
    let mut burst = [Descriptor::default(); BURST];
    loop {
        let mut n = 0;
        if matches!(mode, "replay" | "lengths" | "mute" | "slow" | "quit" | "page") {
            for ring in &mut rx {
                n += ring.dequeue(&mut burst[n..]).unwrap_or(0);
            }
        }
        let burst = &mut burst[..n];
        match mode {
            "random" => {
                let mut forged = [Descriptor::default(); BURST];
                forged.fill_with(|| Descriptor::from_words([noise.next(), noise.next()]));
                forged.iter_mut().step_by(2).for_each(|descriptor| descriptor.frame %= welcome.geometry.frames);
                let _ = tx.enqueue(&forged);
            }
            "replay" => {
                for _ in 0..3 {
                    let _ = tx.enqueue(burst);
                }
            }
            "lengths" => {
                burst.iter_mut().for_each(|d| (d.offset, d.len) = (noise.next() as u16, u16::MAX));
                let _ = tx.enqueue(burst);
            }
            "cursors" => {
                for index in 0..=layout.rx_rings as usize {
                    let start = layout.rings as usize + index * ring::bytes(layout.capacity);
                    for word in [start, start + sluice_shm::CACHE_LINE].into_iter().filter_map(|at| raw.atomic_u32(at)) {
                        word.store(noise.next() as u32, Ordering::Relaxed);
                    }
                }
            }
            "scribble" => [&raw, &core].into_iter().for_each(|over| scribble(over, &mut noise)),
            "page" => {
                scribble(&core, &mut noise);
                let _ = tx.enqueue(burst);
            }
            "slow" => {
                std::thread::sleep(Duration::from_millis(10));
                let _ = tx.enqueue(burst);
            }
            "quit" if n > 0 => return Ok(()),
            _ => {}
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_mode_and_a_start_by_hand_are_refused() {
        assert!(run("nice").unwrap_err().to_string().contains("there are: random, replay"));
        assert!(run("random").unwrap_err().to_string().contains("sluiced"));
    }
}
