//! Packet bytes: they have one key, which bytes behind the packet's end do not change.

use std::sync::LazyLock;

use sluice_dataplane::classify::key::FlowKey;
use sluice_shm::arena::{Arena, Geometry, HEADROOM, MAX_STRIDE};
use sluice_shm::memory::SharedMemory;

/// A frame for the packet.
static FRAME: LazyLock<(SharedMemory, Arena)> = LazyLock::new(|| {
    let geometry = Geometry { first: 0, frames: 1, stride: MAX_STRIDE as u32 };
    Arena::create(geometry, false).expect("memory for one frame")
});

/// Runs one packet: two bytes of ingress, one that says how much is cut off its end, the packet.
pub fn run(bytes: &[u8]) {
    let [first, second, cut, bytes @ ..] = bytes else { return };
    let ingress = u16::from_le_bytes([*first, *second]);
    let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
    let len = bytes.len() - usize::from(*cut).min(bytes.len());
    let key = FlowKey::parse(&bytes[..len], len as u16, ingress);
    assert_eq!(key.words(), FlowKey::parse(&bytes[..len], len as u16, ingress).words());
    // A frame is longer than its packet; the rest may be another's.
    assert_eq!(key.words(), FlowKey::parse(bytes, len as u16, ingress).words());
    // The fast paths agree, or leave the packet to the other.
    let (arena, at) = (&FRAME.1, HEADROOM as u16);
    if arena.write(0, at, bytes)
        && let Some(head) = arena.head(0, at)
    {
        for fast in [FlowKey::parse_plain(head, len as u16, ingress), FlowKey::parse_other(head, len as u16, ingress)] {
            assert!(fast.is_none_or(|fast| fast.words() == key.words()), "{fast:?}");
        }
    }
    assert_eq!(key.ingress(), ingress);
    let _ = (key.kind(), key.flags(), key.version(), key.vlan(), key.protocol(), key.dscp(), key.ethertype(), key.ports());
    let _ = (key.addresses(), key.symmetric_hash());
}
