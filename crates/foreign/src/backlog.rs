//! The queue before a program that reads packets from its interfaces itself.
//!
//! # Problem
//! A program that reads a packet socket (a software switch, a sniffer, most appliances) has its own
//! queue: the socket's buffer. When that is full, the kernel silently drops packets. The wire
//! itself takes everything at once, so it shows nothing.
//!
//! # Approach
//! The kernel reports the bytes that wait in each packet socket of a network namespace
//! (`/proc/net/packet`). The file stays open, which ties it to its namespace, and is read before
//! each burst, as long as there is any such socket. A socket that is half full by the host's
//! default size holds the burst back: then the hop's ring fills up, as with any slow NF.
//!
//! # Limits
//! A read costs some microseconds a burst. Sockets with a shared ring (libpcap) show nothing here,
//! which is right: a sniffer must not hold packets up. TCP bounds its own queues. Other queues of a
//! program (UDP, a kernel's qdisc) are not checked.

use std::fs::File;
use std::io;

use rustix::io::pread;

/// Bytes of the file that are read: some fifty sockets.
const SEEN: usize = 4096;
/// Interval of checks for a packet socket while there is none, in nanoseconds.
const IDLE_NS: u64 = 10_000_000;
/// Half of a socket's buffer, if the host's size is unknown.
const USUAL_HALF: u64 = 212_992 / 2;

/// Reads the packet sockets of a namespace.
#[derive(Debug)]
pub struct Backlog {
    file: File,
    /// Indices of the program's interfaces, in the order of its sides.
    interfaces: Vec<u32>,
    /// Bytes from which a socket counts as full.
    high: u64,
    /// Time of the next check while there is no socket.
    look_at_ns: u64,
}

impl Backlog {
    /// For these interfaces of the calling thread's namespace.
    pub fn here(interfaces: Vec<u32>) -> io::Result<Self> {
        let file = File::open("/proc/thread-self/net/packet")?;
        let whole =
            std::fs::read_to_string("/proc/sys/net/core/rmem_default").ok().and_then(|text| text.trim().parse::<u64>().ok());
        Ok(Self { file, interfaces, high: whole.map_or(USUAL_HALF, |bytes| bytes / 2), look_at_ns: 0 })
    }

    /// Whether a socket on a side is too full to send there now.
    pub fn is_full(&mut self, side: usize, now_ns: u64) -> bool {
        if now_ns < self.look_at_ns {
            return false;
        }
        let mut text = [0; SEEN];
        let n = pread(&self.file, &mut text, 0).unwrap_or(0);
        let Some(interface) = self.interfaces.get(side) else { return false };
        let mut sockets = sockets(&text[..n]).peekable();
        if sockets.peek().is_none() {
            self.look_at_ns = now_ns + IDLE_NS;
        }
        sockets.any(|(on, bytes)| (on == 0 || on == *interface) && bytes >= self.high)
    }
}

/// The sockets in the kernel's list: interface (0: any) and waiting bytes.
fn sockets(text: &[u8]) -> impl Iterator<Item = (u32, u64)> + '_ {
    // sk RefCnt Type Proto Iface R Rmem User Inode
    text.split(|byte| *byte == b'\n').skip(1).filter_map(|line| {
        let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let interface = fields.nth(4)?.parse().ok()?;
        Some((interface, fields.nth(1)?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_is_read() {
        let text = b"sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
            0000000000000000 3      3    0003   2     1 109824 0      24119 \n\
            0000000000000000 3      3    0003   0     1 0      0      24120 \n\
            0000000000000000 3      3    00";
        assert_eq!(sockets(text).collect::<Vec<_>>(), [(2, 109_824), (0, 0)]);
        assert_eq!(sockets(b"sk RefCnt Type Proto Iface R Rmem User Inode\n").count(), 0);
        assert_eq!(sockets(b"").count(), 0);
    }

    #[test]
    fn a_namespace_without_sockets_holds_nothing_back() {
        let mut backlog = Backlog::here(vec![1]).unwrap();
        backlog.high = u64::MAX;
        assert!(!backlog.is_full(0, 1) && !backlog.is_full(7, 2));
    }
}
