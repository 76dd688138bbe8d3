//! A thread that sends packets, and what the host counts of those from a namespace.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use sluice_host::netns::{Netns, path_of};

use super::hops::PORT;
use crate::bench::proc::CoreTimes;
use crate::bench::sched::netns::{INSIDE, OUTSIDE};

/// Flows, a socket each.
pub const FLOWS: u16 = 16;
/// Source port of the first.
const FIRST_PORT: u16 = 20_000;
/// Bytes of a packet's payload: a frame of 60 bytes, 64 on the wire.
const PAYLOAD: usize = 18;
/// Most packets between two looks at the clock.
const BURST: u64 = 32;
/// Sleep of a paced sender that is ahead of its rate.
const AHEAD: Duration = Duration::from_micros(100);

/// A thread that sends packets until it is dropped.
pub struct Sender {
    state: Arc<SenderState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct SenderState {
    stop: AtomicBool,
    /// Packets that the kernel took.
    sent: AtomicU64,
}

impl Sender {
    /// Sends `rate` packets per second from a namespace; with 0, as fast as possible.
    ///
    /// # Errors
    /// The namespace has no such addresses.
    pub fn start(namespace: &str, rate: f64) -> anyhow::Result<Self> {
        let socket = |number: u16| -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((INSIDE, FIRST_PORT + number))?;
            socket.connect((OUTSIDE, PORT))?;
            socket.set_write_timeout(Some(Duration::from_millis(100)))?;
            Ok(socket)
        };
        // A socket stays in the namespace in which it was made.
        let ns = Netns::open(&path_of(namespace))?;
        let sockets: Vec<UdpSocket> =
            ns.visit(|| (0..FLOWS).map(socket).collect::<io::Result<_>>()).context("cannot make the sender's sockets")?;
        let payload = [0u8; PAYLOAD];
        Self::of(rate, move |number| sockets[(number % u64::from(FLOWS)) as usize].send(&payload).is_ok())
    }

    /// Calls `send` for each packet with its number, `rate` times per second; with 0, as fast as
    /// possible. It returns whether the kernel took the packet. The thread has the cores of the
    /// calling one.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn of(rate: f64, send: impl FnMut(u64) -> bool + Send + 'static) -> anyhow::Result<Self> {
        let state = Arc::new(SenderState::default());
        let of_thread = state.clone();
        let thread = std::thread::Builder::new().name("sluice-sender".into()).spawn(move || run(rate, &of_thread, send))?;
        Ok(Self { state, thread: Some(thread) })
    }

    pub fn sent(&self) -> u64 {
        // A count that orders nothing else.
        self.state.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // Nothing is read for it but the flag itself.
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

fn run(rate: f64, state: &SenderState, mut send: impl FnMut(u64) -> bool) {
    let began = Instant::now();
    let mut tried = 0;
    // Relaxed: neither orders anything else.
    while !state.stop.load(Ordering::Relaxed) {
        let due = if rate > 0.0 { (began.elapsed().as_secs_f64() * rate) as u64 } else { tried + BURST };
        if due <= tried {
            std::thread::sleep(AHEAD);
            continue;
        }
        let burst = tried..due.min(tried + BURST);
        tried = burst.end;
        let taken = burst.filter(|number| send(*number)).count();
        state.sent.fetch_add(taken as u64, Ordering::Relaxed);
    }
}

/// Counts of the host at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostCounts {
    pub at: Instant,
    pub sent: u64,
    /// Packets that reached the receiver's interface.
    pub received: u64,
    pub cores: CoreTimes,
}

impl HostCounts {
    /// Reads them now; `cores` are those whose time counts.
    ///
    /// # Errors
    /// The kernel does not count.
    pub fn now(sender: &Sender, receiver: &str, cores: &[usize]) -> anyhow::Result<Self> {
        let devices = Netns::open(&path_of(receiver))?.visit(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?;
        let received = rx_packets(&devices, "eth0").context("a namespace does not count its packets (/proc/net/dev)")?;
        Ok(Self { at: Instant::now(), sent: sender.sent(), received, cores: CoreTimes::read(cores)? })
    }
}

/// Packets that an interface received, from `/proc/net/dev`.
fn rx_packets(devices: &str, interface: &str) -> Option<u64> {
    let counts = devices.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    // The first number is bytes.
    counts.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_an_interface_are_read() {
        let devices = "Inter-|   Receive\n face |bytes    packets\n    lo:       1       2 0\n  eth0: 6000     100    0    0\n";
        assert_eq!((rx_packets(devices, "eth0"), rx_packets(devices, "eth1")), (Some(100), None));
    }
}
