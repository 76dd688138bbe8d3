//! Packet bytes: they have one key, which bytes behind the packet's end do not change.

use sluice_dataplane::classify::key::FlowKey;

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
    assert_eq!(key.ingress(), ingress);
    let _ = (key.kind(), key.flags(), key.version(), key.vlan(), key.protocol(), key.dscp(), key.ethertype(), key.ports());
    let _ = (key.addresses(), key.symmetric_hash());
}
