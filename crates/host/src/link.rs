//! Pairs of virtual interfaces (veth), made by rtnetlink, and the switches of an interface.
//!
//! What enters one end of a pair leaves the other, which may lie in another network namespace.
//! [`plain`] switches offloads off: a checksum or segmentation left to hardware would never be
//! done, since there is none. It switches IPv6 off too: the kernel would send by itself (router
//! solicitations, multicast reports), which the program at the other end would take for traffic.
//!
//! Source: the kernel's `rtnetlink(7)`, `veth(4)`, `include/uapi/linux/ethtool.h`.

// Netlink messages and ioctl requests have no safe wrapper.
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

/// Maximum length of an interface's name.
pub const MAX_NAME: usize = 15;

/// The other end, in an attribute that describes a pair.
const VETH_INFO_PEER: u16 = 1;

/// `ETHTOOL_S…` commands, each of which sets a switch.
const SWITCHES: [u32; 6] = [
    0x17, // ETHTOOL_STXCSUM
    0x19, // ETHTOOL_SSG
    0x1f, // ETHTOOL_STSO
    0x24, // ETHTOOL_SGSO
    0x2c, // ETHTOOL_SGRO
    0x15, // ETHTOOL_SRXCSUM
];

/// Asks how many queues there are.
const ETHTOOL_GCHANNELS: u32 = 0x3c;

pub const LOOPBACK: &str = "lo";

/// Whether a text is a valid interface name, other than loopback.
pub fn is_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b':';
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(valid)
        && name != "."
        && name != ".."
        && name != LOOPBACK
        && name != "all"
}

/// Makes a pair: `near` in the calling thread's namespace, `far` in another. Neither is up.
///
/// # Errors
/// The kernel's: a name is taken ([`io::ErrorKind::AlreadyExists`]), no permission, unsupported
/// kind.
pub fn make_pair(near: &str, far: &str, far_ns: BorrowedFd<'_>, mtu: u32) -> io::Result<()> {
    make_pair_with(near, far, far_ns, mtu, None)
}

/// As [`make_pair`], with this MAC address at the far end; the kernel chooses one if None.
pub fn make_pair_with(near: &str, far: &str, far_ns: BorrowedFd<'_>, mtu: u32, address: Option<[u8; 6]>) -> io::Result<()> {
    let mut message = Message::new(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    message.link();
    message.string(libc::IFLA_IFNAME, near);
    message.attribute(libc::IFLA_MTU, &mtu.to_ne_bytes());
    message.nest(libc::IFLA_LINKINFO, |message| {
        message.string(libc::IFLA_INFO_KIND, "veth");
        message.nest(libc::IFLA_INFO_DATA, |message| {
            message.nest(VETH_INFO_PEER, |message| {
                message.link();
                message.string(libc::IFLA_IFNAME, far);
                message.attribute(libc::IFLA_MTU, &mtu.to_ne_bytes());
                message.attribute(libc::IFLA_NET_NS_FD, &far_ns.as_raw_fd().to_ne_bytes());
                address.iter().for_each(|address| message.attribute(libc::IFLA_ADDRESS, address));
            });
        });
    });
    message.send()
}

/// Removes an interface of the calling thread's namespace, and the other end of a pair.
///
/// # Errors
/// The kernel's: there is none ([`io::ErrorKind::NotFound`] or "no such device").
pub fn remove(name: &str) -> io::Result<()> {
    let mut message = Message::new(libc::RTM_DELLINK, 0);
    message.link();
    message.string(libc::IFLA_IFNAME, name);
    message.send()
}

/// Switches off offloads and IPv6 of an interface of the calling thread's namespace.
pub fn plain(name: &str) -> io::Result<()> {
    let socket = control()?;
    for command in SWITCHES {
        let mut value: [u32; 2] = [command, 0];
        let mut request = request_of(name);
        request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
        // SAFETY: the request is live, and points to a live command with its value.
        if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) } < 0 {
            match io::Error::last_os_error() {
                // A feature that an interface lacks is off.
                error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                error => return Err(error),
            }
        }
    }
    // A kernel without IPv6 has no such file.
    let file = Path::new("/proc/sys/net/ipv6/conf").join(name).join("disable_ipv6");
    if file.exists() { std::fs::write(file, "1") } else { Ok(()) }
}

/// Brings up an interface of the calling thread's namespace.
pub fn up(name: &str) -> io::Result<()> {
    let socket = control()?;
    let mut request = request_of(name);
    // SAFETY: the request is live; the kernel fills in the flags.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the flags are what the call before has written.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    // SAFETY: the request is live; the kernel reads the flags.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The receive queues in use of an interface of the calling thread's namespace.
///
/// # Errors
/// The kernel's; `EOPNOTSUPP` if its driver does not report it.
pub fn rx_queues(name: &str) -> io::Result<u32> {
    let socket = control()?;
    // `struct ethtool_channels`: the command, four maxima (rx, tx, other, combined), and the
    // numbers in use in the same order.
    let mut channels = [0u32; 9];
    channels[0] = ETHTOOL_GCHANNELS;
    let mut request = request_of(name);
    request.ifr_ifru.ifru_data = channels.as_mut_ptr().cast();
    // SAFETY: the request is live, and points to a live structure of the command.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((channels[5] + channels[8]).max(1))
}

/// The index of an interface of the calling thread's namespace.
pub fn index(name: &str) -> io::Result<u32> {
    index_by(&control()?, name)
}

/// The index of an interface of the namespace of `socket`.
pub fn index_by(socket: &OwnedFd, name: &str) -> io::Result<u32> {
    let mut request = request_of(name);
    // SAFETY: the request is live; the kernel fills in the index.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFINDEX as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the index is what the call before has written.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex } as u32)
}

/// Whether an interface of the namespace of `socket` is up and its other end is connected.
pub fn has_link_by(socket: &OwnedFd, name: &str) -> io::Result<bool> {
    let mut request = request_of(name);
    // SAFETY: the request is live; the kernel fills in the flags.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let wanted = libc::IFF_UP | libc::IFF_RUNNING;
    // SAFETY: the flags are what the call before has written.
    Ok(i32::from(unsafe { request.ifr_ifru.ifru_flags }) & wanted == wanted)
}

/// The index of the interface that a packet socket is bound to; None once the interface is gone.
pub fn bound_by(socket: &OwnedFd) -> io::Result<Option<u32>> {
    // SAFETY: all zeros is a value of this plain structure.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is live and of the length that is passed.
    if unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut length) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u32::try_from(address.sll_ifindex).ok().filter(|index| *index > 0))
}

/// A socket that becomes readable when an interface of the calling thread's namespace appears,
/// disappears or changes. Read it with [`hush`].
pub fn changes() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // No protocol: NETLINK_ROUTE.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, libc::RTMGRP_LINK as u32))?;
    Ok(socket)
}

/// Reads and discards all pending messages of such a socket.
pub fn hush(socket: &OwnedFd) {
    let mut message = [0u8; 4096];
    loop {
        match rustix::net::recv(socket, &mut message[..], RecvFlags::TRUNC) {
            // NOBUFS: messages were lost, and there may be more.
            Ok(_) | Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// The MTU of an interface of the calling thread's namespace, without the Ethernet header.
pub fn mtu(name: &str) -> io::Result<u32> {
    mtu_by(&control()?, name)
}

/// A MAC address derived from a text: locally administered, unicast.
pub fn address_of(text: &str) -> [u8; 6] {
    // FNV-1a: any fixed hash will do. Its better mixed upper bits are folded in.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
    [(a & 0xfc) | 2, b, c, d, e ^ g, f ^ h]
}

/// The MTU of an interface of the namespace of `socket`, without the Ethernet header.
pub fn mtu_by(socket: &OwnedFd, name: &str) -> io::Result<u32> {
    let mut request = request_of(name);
    // SAFETY: the request is live; the kernel fills in the number.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is what the call before has written.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
}

/// A socket for requests about interfaces of the calling thread's namespace.
pub fn control() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; the descriptor is ours.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

fn request_of(name: &str) -> libc::ifreq {
    // SAFETY: all zeros is a value of this plain structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(MAX_NAME)) {
        *to = from as libc::c_char;
    }
    request
}

/// A netlink message under construction.
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new(kind: u16, flags: libc::c_int) -> Self {
        let flags = (flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        // Sequence number and port: one message, one answer.
        bytes.extend([1u32.to_ne_bytes(), 0u32.to_ne_bytes()].concat());
        Self { bytes }
    }

    /// An empty `ifinfomsg`: the interface is named by an attribute.
    fn link(&mut self) {
        self.bytes.extend([0; size_of::<libc::ifinfomsg>()]);
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |message| message.bytes.extend(value));
    }

    fn string(&mut self, kind: u16, value: &str) {
        self.nest(kind, |message| {
            message.bytes.extend(value.bytes());
            message.bytes.push(0);
        });
    }

    fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend(kind.to_ne_bytes());
        inside(self);
        let len = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn send(mut self) -> io::Result<()> {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        // SAFETY: a plain system call; the descriptor is ours.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        rustix::io::write(&socket, &self.bytes)?;
        let mut answer = [0; 4096];
        let n = rustix::io::read(&socket, &mut answer)?;
        // The type of the answer, and, behind the header, the error: negative, or 0 for success.
        let kind = answer.get(4..6).filter(|_| n >= 20).map(|b| u16::from_ne_bytes([b[0], b[1]]));
        let error = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
        match (kind, error) {
            (Some(kind), 0) if i32::from(kind) == libc::NLMSG_ERROR => Ok(()),
            (Some(kind), error) if i32::from(kind) == libc::NLMSG_ERROR => Err(io::Error::from_raw_os_error(-error)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer was not understood")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use crate::skip::skip;

    #[test]
    fn a_pair_joins_two_namespaces_and_goes_as_one() {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can make network namespaces");
        }
        let (near, far) = (Netns::private().unwrap(), Netns::private().unwrap());
        near.visit(|| {
            make_pair("a", "b", far.fd(), 1400)?;
            assert_eq!(make_pair("a", "c", far.fd(), 1400).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            plain("a")?;
            up("a")
        })
        .unwrap();
        far.visit(|| {
            assert!(index("b").is_ok() && index("a").is_err() && index("c").is_err());
            plain("b")?;
            up("b")?;
            let state = std::fs::read_to_string("/proc/thread-self/net/dev")?;
            assert!(state.contains("b:"), "{state}");
            remove("b")?;
            assert!(remove("b").is_err());
            Ok::<(), io::Error>(())
        })
        .unwrap();
        assert!(near.visit(|| index("a")).is_err(), "the other end went too");
        assert!(near.visit(|| up("a")).is_err());
    }

    #[test]
    fn an_interface_that_goes_is_noticed() {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can make network namespaces");
        }
        let (near, far) = (Netns::private().unwrap(), Netns::private().unwrap());
        let address = address_of("fw.0 in");
        let (socket, control) = near
            .visit(|| {
                make_pair_with("a", "b", far.fd(), 1400, Some(address))?;
                plain("a")?;
                up("a")?;
                Ok::<_, io::Error>((changes()?, control()?))
            })
            .unwrap();
        let rings = |socket: &OwnedFd| {
            let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap() > 0
        };
        // The kernel reports a moment later that the other end is down.
        while has_link_by(&control, "a").unwrap() {
            assert!(rings(&socket));
            hush(&socket);
        }
        assert!(index_by(&control, "a").is_ok());
        assert_eq!(far.visit(|| up("b").and_then(|()| address_at())).unwrap(), address);
        while !has_link_by(&control, "a").unwrap() {
            assert!(rings(&socket));
            hush(&socket);
        }
        far.visit(|| remove("b")).unwrap();
        while index_by(&control, "a").is_ok() {
            assert!(rings(&socket));
            hush(&socket);
        }
        assert!(has_link_by(&control, "a").is_err());
    }

    fn address_at() -> io::Result<[u8; 6]> {
        let mut request = request_of("b");
        // SAFETY: the request is live; the kernel fills in the address.
        if unsafe { libc::ioctl(control()?.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the address is what the call before has written.
        let bytes = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
        Ok(std::array::from_fn(|i| bytes[i] as u8))
    }

    #[test]
    fn addresses_are_of_one_station_and_differ_by_name() {
        let all: std::collections::BTreeSet<[u8; 6]> =
            (0..1000).flat_map(|n| [format!("host fw.{n} in"), format!("host fw.{n} out")]).map(|text| address_of(&text)).collect();
        assert_eq!(all.len(), 2000);
        assert!(all.iter().all(|address| address[0] & 3 == 2), "locally administered, unicast");
        assert_eq!(address_of("host fw.0 in"), address_of("host fw.0 in"));
    }

    #[test]
    fn names_of_interfaces() {
        assert!(is_name("in") && is_name("veth0.12") && is_name("abcdefghijklmno"));
        for wrong in ["", "abcdefghijklmnop", "a b", "a/b", "a:b", "lo", "..", "ä"] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
