//! A foreign program's announcements reach a packet thread's socket at the other end of its wire.

use std::io;
use std::time::{Duration, Instant};

use sluice_host::netns::Netns;
use sluice_host::{announce, link};

use sluice_dataplane::fake::cache;
use sluice_dataplane::frame::Packet;
use sluice_dataplane::queue::PortQueue;
use sluice_ports::af_packet::InterfaceQueue;
use sluice_ports::af_packet::socket::SocketOptions;

use crate::skip::skip;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

#[test]
fn addresses_reach_the_other_end_of_a_wire() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make network namespaces");
    }
    let (near, far) = (Netns::private().unwrap(), Netns::private().unwrap());
    let mut queue = near
        .visit(|| {
            link::make_pair_with("wire", "in", far.fd(), 1500, Some(MAC))?;
            link::plain("wire")?;
            link::up("wire")?;
            let options = SocketOptions { interface: "wire", slots: 64, room: 2112, promiscuous: true, bypass: true, fanout: None };
            InterfaceQueue::open(&options).map_err(|(_, error)| error)
        })
        .unwrap();
    far.visit(|| {
        link::plain("in")?;
        link::up("in")?;
        let add = std::process::Command::new("ip").args(["addr", "add", "10.9.0.1/24", "dev", "in"]).status()?;
        assert!(add.success());
        Ok::<_, io::Error>(())
    })
    .unwrap();
    let mut frames = cache(64);
    let until = Instant::now() + Duration::from_secs(20);
    let mut out = [Packet::default(); 8];
    loop {
        assert!(Instant::now() < until, "nothing was announced");
        far.visit(|| announce::addresses(|name| name == "in")).unwrap();
        if queue.rx_burst(&mut out, &mut frames, 0) > 0 {
            break;
        }
    }
    let mut bytes = vec![0; out[0].len.into()];
    frames.arena().read(out[0].frame, out[0].offset, &mut bytes);
    // An announcement by ARP (RFC 5227, section 3): sender and target are the address itself.
    assert_eq!(bytes[12..22], [8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    assert_eq!((&bytes[22..28], &bytes[28..32], &bytes[38..42]), (&MAC[..], &[10, 9, 0, 1][..], &[10, 9, 0, 1][..]));
    far.visit(|| announce::addresses(|_| false)).unwrap();
}
