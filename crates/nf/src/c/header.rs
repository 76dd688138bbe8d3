//! Header helpers for C.

use std::ffi::c_int;
use std::net::IpAddr;

use super::{Code, fail, guard};
use crate::header::{self, Fragment, Headers, Ip, L4, MAX_VLANS, NotThere, checksum};

/// `struct sluice_headers`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CHeaders {
    fragment_id: u32,
    l2_len: u16,
    ethertype: u16,
    vlans: [u16; MAX_VLANS],
    ip_offset: u16,
    ip_header_len: u16,
    ip_end: u16,
    fragment_offset: u16,
    l4_offset: u16,
    l4_header_len: u16,
    src_port: u16,
    dst_port: u16,
    payload: u16,
    reserved: u16,
    vlan_count: u8,
    ip_version: u8,
    ip_protocol: u8,
    l4_protocol: u8,
    is_fragment: u8,
    more_fragments: u8,
    is_truncated: u8,
    has_ports: u8,
}

const _: () = assert!(size_of::<CHeaders>() == 44 && align_of::<CHeaders>() == 4);
const _: () = assert!(std::mem::offset_of!(CHeaders, payload) == 32 && std::mem::offset_of!(CHeaders, has_ports) == 43);

impl From<&Headers> for CHeaders {
    fn from(headers: &Headers) -> Self {
        let mut out = Self {
            l2_len: headers.l2_len,
            ethertype: headers.ethertype,
            vlan_count: headers.vlan_ids().len() as u8,
            payload: headers.payload,
            ..Self::default()
        };
        out.vlans[..headers.vlan_ids().len()].copy_from_slice(headers.vlan_ids());
        if let Some(ip) = headers.ip {
            out.ip_offset = ip.offset;
            out.ip_version = ip.version;
            out.ip_header_len = ip.header_len;
            out.ip_protocol = ip.protocol;
            out.ip_end = ip.end;
            out.is_truncated = u8::from(ip.truncated);
            if let Some(fragment) = ip.fragment {
                out.is_fragment = 1;
                out.fragment_id = fragment.id;
                out.fragment_offset = fragment.offset;
                out.more_fragments = u8::from(fragment.more);
            }
        }
        if let Some(l4) = headers.l4 {
            out.l4_offset = l4.offset;
            out.l4_header_len = l4.header_len;
            out.l4_protocol = l4.protocol;
            out.has_ports = u8::from(l4.ports.is_some());
            (out.src_port, out.dst_port) = l4.ports.unwrap_or_default();
        }
        out
    }
}

impl CHeaders {
    /// C may have written anything; every use is checked against the packet.
    fn headers(&self) -> Headers {
        let fragment = Fragment { id: self.fragment_id, offset: self.fragment_offset, more: self.more_fragments != 0 };
        let ip = Ip {
            offset: self.ip_offset,
            version: self.ip_version,
            header_len: self.ip_header_len,
            protocol: self.ip_protocol,
            fragment: (self.is_fragment != 0).then_some(fragment),
            end: self.ip_end,
            truncated: self.is_truncated != 0,
        };
        let l4 = L4 {
            offset: self.l4_offset,
            header_len: self.l4_header_len,
            protocol: self.l4_protocol,
            ports: (self.has_ports != 0).then_some((self.src_port, self.dst_port)),
        };
        Headers::from_parts(
            (self.l2_len, self.ethertype, self.payload),
            &self.vlans[..(self.vlan_count as usize).min(MAX_VLANS)],
            matches!(self.ip_version, 4 | 6).then_some(ip),
            (self.l4_offset != 0).then_some(l4),
        )
    }
}

// SAFETY: the name is unique. sluice_nf.h has the pointers' contract; null is checked first.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_parse(data: *const u8, len: u32, out: *mut CHeaders) -> c_int {
    guard(|| {
        if data.is_null() || out.is_null() {
            return fail(Code::Argument);
        }
        // SAFETY: not null, and the header requires `len` bytes.
        let packet = unsafe { std::slice::from_raw_parts(data, len as usize) };
        let Some(headers) = header::parse(packet) else { return fail(Code::NotThere) };
        // SAFETY: not null, and the header requires a writable struct.
        unsafe { out.write(CHeaders::from(&headers)) };
        0
    })
}

/// Runs `change` on a packet and its headers, and writes the headers back.
///
/// # Safety
/// `data` is null or `len` bytes that no other code uses; `headers` is null or a writable struct.
unsafe fn edit(
    data: *mut u8,
    len: u32,
    headers: *mut CHeaders,
    change: impl FnOnce(&mut Headers, &mut [u8]) -> Result<(), NotThere>,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promised.
        let (false, Some(outside)) = (data.is_null(), unsafe { headers.as_mut() }) else { return fail(Code::Argument) };
        // SAFETY: as the caller promised.
        let packet = unsafe { std::slice::from_raw_parts_mut(data, len as usize) };
        let mut inside = outside.headers();
        match change(&mut inside, packet) {
            Ok(()) => {
                *outside = CHeaders::from(&inside);
                0
            }
            Err(NotThere) => fail(Code::NotThere),
        }
    })
}

/// The address in 4 or 16 bytes at `address`.
///
/// # Safety
/// Null, or `len` bytes.
unsafe fn address(address: *const u8, len: u32) -> Result<IpAddr, NotThere> {
    if address.is_null() || !matches!(len, 4 | 16) {
        return Err(NotThere);
    }
    // SAFETY: not null, and the caller promised `len` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(address, len as usize) };
    let v4 = bytes.first_chunk::<4>().copied().map(IpAddr::from);
    if len == 4 { v4 } else { bytes.first_chunk::<16>().copied().map(IpAddr::from) }.ok_or(NotThere)
}

// SAFETY: the name is unique. sluice_nf.h has the pointers' contract; null is checked first.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_set_src(data: *mut u8, len: u32, headers: *mut CHeaders, new: *const u8, new_len: u32) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { edit(data, len, headers, |h, packet| h.set_src(packet, address(new, new_len)?)) }
}

// SAFETY: the name is unique. sluice_nf.h has the pointers' contract; null is checked first.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_set_dst(data: *mut u8, len: u32, headers: *mut CHeaders, new: *const u8, new_len: u32) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { edit(data, len, headers, |h, packet| h.set_dst(packet, address(new, new_len)?)) }
}

// SAFETY: the name is unique. sluice_nf.h has the pointers' contract; null is checked first.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_set_src_port(data: *mut u8, len: u32, headers: *mut CHeaders, port: u16) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { edit(data, len, headers, |h, packet| h.set_src_port(packet, port)) }
}

// SAFETY: the name is unique. sluice_nf.h has the pointers' contract; null is checked first.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_set_dst_port(data: *mut u8, len: u32, headers: *mut CHeaders, port: u16) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { edit(data, len, headers, |h, packet| h.set_dst_port(packet, port)) }
}

// SAFETY: the name is unique. sluice_nf.h has the pointers' contract; null is checked first.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_set_ttl(data: *mut u8, len: u32, headers: *mut CHeaders, ttl: u8) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { edit(data, len, headers, |h, packet| h.set_ttl(packet, ttl)) }
}

// SAFETY: the name is unique. sluice_nf.h has the pointers' contract; null is checked first.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_set_dscp(data: *mut u8, len: u32, headers: *mut CHeaders, dscp: u8) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { edit(data, len, headers, |h, packet| h.set_dscp(packet, dscp)) }
}

// SAFETY: the name is unique. sluice_nf.h has the pointers' contract; null is checked first.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_set_ecn(data: *mut u8, len: u32, headers: *mut CHeaders, ecn: u8) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { edit(data, len, headers, |h, packet| h.set_ecn(packet, ecn)) }
}

// SAFETY: the name is unique. sluice_nf.h has the pointers' contract; null is checked first.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_set_ip_len(data: *mut u8, len: u32, headers: *mut CHeaders, end: u32) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { edit(data, len, headers, |h, packet| h.set_ip_len(packet, end as usize)) }
}

// SAFETY: the name is unique. sluice_nf.h has the pointers' contract; null is checked first.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_fix_checksums(data: *mut u8, len: u32, headers: *mut CHeaders) -> c_int {
    // SAFETY: the header requires the same of the caller.
    unsafe { edit(data, len, headers, |h, packet| h.fix_checksums(packet)) }
}

// SAFETY: the name is unique. sluice_nf.h has the pointers' contract; null is checked first.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_are_checksums_right(data: *const u8, len: u32, headers: *const CHeaders) -> c_int {
    guard(|| {
        // SAFETY: null or valid, as the header requires.
        let (false, Some(headers)) = (data.is_null(), unsafe { headers.as_ref() }) else { return fail(Code::Argument) };
        // SAFETY: not null, and the header requires `len` bytes.
        let packet = unsafe { std::slice::from_raw_parts(data, len as usize) };
        c_int::from(headers.headers().are_checksums_right(packet))
    })
}

// SAFETY: the name is unique. sluice_nf.h has the pointers' contract; null is checked first.
#[unsafe(no_mangle)]
unsafe extern "C" fn sluice_checksum(data: *const u8, len: u32) -> u16 {
    if data.is_null() {
        return 0xffff; // of nothing
    }
    // SAFETY: not null, and the header requires `len` bytes.
    checksum::compute(unsafe { std::slice::from_raw_parts(data, len as usize) })
}

#[unsafe(no_mangle)]
extern "C" fn sluice_checksum_update(checksum: u16, old_word: u16, new_word: u16) -> u16 {
    checksum::update16(checksum, old_word, new_word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_survive_the_border() {
        let mut packet = Vec::new();
        let builder =
            etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).single_vlan(7.try_into().unwrap()).ipv6([1; 16], [2; 16], 64);
        builder.tcp(5000, 80, 7, 1024).write(&mut packet, b"payload").unwrap();
        let headers = header::parse(&packet).unwrap();
        let outside = CHeaders::from(&headers);
        assert_eq!((outside.vlan_count, outside.vlans[0], outside.ip_version, outside.dst_port), (1, 7, 6, 80));
        assert_eq!(outside.headers(), headers);
    }

    proptest! {
        /// C may put anything into the struct.
        #[test]
        fn no_struct_makes_it_panic(words in any::<[u16; 16]>(), bytes in any::<[u8; 8]>(), mut packet in proptest::collection::vec(any::<u8>(), 1..150)) {
            let mut outside = CHeaders {
                l2_len: words[0], ethertype: words[1], vlans: [words[2]; 4], ip_offset: words[3] % 160, ip_header_len: words[4] % 160,
                ip_end: words[5] % 160, fragment_offset: words[6], l4_offset: words[7] % 160, l4_header_len: words[8], src_port: words[9],
                dst_port: words[10], payload: words[11] % 160, reserved: 0, fragment_id: 0, vlan_count: bytes[0], ip_version: bytes[1] % 8,
                ip_protocol: bytes[2], l4_protocol: [6, 17, 1, 58, 136, bytes[3]][bytes[4] as usize % 6], is_fragment: bytes[5] % 2,
                more_fragments: bytes[6], is_truncated: bytes[7] % 2, has_ports: bytes[3] % 2,
            };
            let (data, len) = (packet.as_mut_ptr(), packet.len() as u32);
            let h = &raw mut outside;
            // SAFETY: data is len bytes, and h a struct of ours.
            let codes = unsafe {[
                sluice_set_src(data, len, h, [1; 16].as_ptr(), 4), sluice_set_dst(data, len, h, [1; 16].as_ptr(), 16),
                sluice_set_src_port(data, len, h, 1), sluice_set_dst_port(data, len, h, 1), sluice_set_ttl(data, len, h, 1),
                sluice_set_dscp(data, len, h, 1), sluice_set_ecn(data, len, h, 1), sluice_set_ip_len(data, len, h, len),
                sluice_fix_checksums(data, len, h), sluice_are_checksums_right(data, len, h),
            ]};
            prop_assert!(codes.iter().all(|code| [0, 1, Code::NotThere as c_int].contains(code)), "{codes:?}");
        }
    }
}
