//! The packet parser: any bytes have a key, which is the same each time, and bytes behind the packet's end are not looked at.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_manager::classify::key::FlowKey;

fuzz_target!(|input: (u16, &[u8])| {
    let (ingress, bytes) = input;
    let len = bytes.len().min(usize::from(u16::MAX));
    let bytes = &bytes[..len];
    let key = FlowKey::parse(bytes, len as u16, ingress);
    assert_eq!(key.words(), FlowKey::parse(bytes, len as u16, ingress).words());
    assert_eq!(key.ingress(), ingress);
    // All that a key can be asked, whatever the packet was.
    let _ = (key.kind(), key.flags(), key.version(), key.vlan(), key.protocol(), key.dscp(), key.ethertype(), key.ports());
    let _ = (key.addresses(), key.symmetric_hash());
});
