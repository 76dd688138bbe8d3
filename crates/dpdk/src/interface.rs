//! The kernel's flags of a network interface in the calling thread's namespace.
//!
//! Read by an ioctl, since `/sys/class/net` shows the namespace that it was mounted in.

use std::os::fd::AsRawFd;

/// The interface is in promiscuous mode by its own flag.
pub(crate) const PROMISCUOUS: u32 = libc::IFF_PROMISC as u32;

/// Flags of an interface. None if there is no such interface, or on an error.
pub(crate) fn flags(name: &str) -> Option<u32> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return None;
    }
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // SAFETY: a request of zeros is a valid one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the call reads the name, which ends in NUL because it is shorter than its field, and
    // writes the flags; the socket is open.
    let code = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &mut request) };
    // SAFETY: the kernel has written this member of the union.
    (code == 0).then(|| u32::from(unsafe { request.ifr_ifru.ifru_flags } as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_found_by_name() {
        assert!(flags("lo").is_some_and(|flags| flags & libc::IFF_LOOPBACK as u32 != 0));
        assert_eq!(flags("no-such0"), None);
        assert_eq!(flags("a-name-longer-than-any"), None);
        assert_eq!(flags(""), None);
    }
}
