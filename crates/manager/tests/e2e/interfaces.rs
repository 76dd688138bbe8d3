//! Interfaces of the kernel as ports, as hosts and containers have them.

use crate::foreign::{Site, can};
use crate::support::{Daemon, chain, find_port, service};

#[test]
fn large_segments_of_tcp_pass_whatever_offloads_the_hosts_have() {
    if !can(&["ip"]) {
        return;
    }
    let site = Site::with_offloads();
    site.serve(&[8080]);
    let body = site.ports()
        + &service("bridge", "sluice-nf-bridge", "")
        + &chain("there", "c", &["bridge"], "s", "")
        + &chain("back", "s", &["bridge"], "c", "");
    let mut daemon = Daemon::start("", &body);
    site.download(&daemon, 8080);
    let stats = daemon.stats();
    for port in ["c", "s"] {
        assert_eq!(find_port(&stats, port).details["oversize"], 0.0, "{port}: {:?}", find_port(&stats, port).details);
    }
    // The server sends large segments, which pass the NF as packets and reach the client as large segments again.
    let (cut, merged) = (find_port(&stats, "s").details["cut"], find_port(&stats, "c").details["merged"]);
    assert!(cut > 0.0 && merged > cut, "{cut} were cut, {merged} packets were put together");
    daemon.wait_until_empty();
    daemon.stop();
}
