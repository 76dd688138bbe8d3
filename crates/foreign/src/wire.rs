//! The manager's end of the way to a foreign program: an interface pair, or shared memory.
//!
//! # Memory shared by DPDK devices
//! With `memif` and `vhost-user` the manager opens a DPDK device for each side (net_memif as
//! server, net_vhost), which listens on a socket in the runtime folder. The program connects and
//! passes its own memory, with rings and buffers; packets are copied between these and frames.
//! Neither side needs hugepages. The program gets packets once it is connected at all sides.
//!
//! # Limits
//! DPDK's drivers trust the shared rings (net_memif more than net_vhost), so the manager depends on
//! such a program. The fill of its rings is invisible, except that they are full. A program that
//! finds them full drops (dpdk-testpmd does), which counts as not come back.

use std::path::Path;

use sluice_api::config::Via;

/// The devargs of a device that listens on a socket. `of` makes its name unique.
pub fn device(via: Via, socket: &Path, of: (u16, usize)) -> String {
    let (nf, side) = of;
    let path = socket.display();
    match via {
        Via::VhostUser => format!("net_vhost_sluice{nf}_{side},iface={path}"),
        _ => format!("net_memif_sluice{nf}_{side},role=server,id=0,socket={path},socket-abstract=no"),
    }
}
