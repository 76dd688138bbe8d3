//! Internet checksums: computed whole, or updated for a change.
//!
//! etherparse computes sums; an update is RFC 1624, equation 3: HC' = ~(~HC + ~m + m'). Checksums
//! are numbers in host order, as read with `u16::from_be_bytes`.

use etherparse::checksum::u64_16bit_word;

/// The complemented one's complement sum of `bytes`. An odd last byte is padded with a zero.
#[inline]
pub fn compute(bytes: &[u8]) -> u16 {
    // etherparse's words are in memory order, and so is its result.
    u16::from_be(u64_16bit_word::ones_complement(u64_16bit_word::add_slice(0, bytes)))
}

/// The checksum of a TCP, UDP or ICMPv6 message with its pseudo-header. `addresses` is source and
/// destination as in the IP header (8 bytes or 32).
#[inline]
pub fn compute_with_pseudo_header(addresses: &[u8], protocol: u8, message: &[u8]) -> u16 {
    let mut sum = u64_16bit_word::add_slice(0, addresses);
    sum = u64_16bit_word::add_4bytes(sum, (message.len() as u32).to_be_bytes());
    sum = u64_16bit_word::add_2bytes(sum, [0, protocol]);
    sum = u64_16bit_word::add_slice(sum, message);
    u16::from_be(u64_16bit_word::ones_complement(sum))
}

fn sum(bytes: &[u8], flip: u16) -> u32 {
    bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]) ^ flip)).sum()
}

/// The checksum after a change from `old` to `new` in what it covers.
///
/// # Panics
/// In debug builds if the lengths differ or are odd: a change is whole words at an even offset.
#[inline]
pub fn update(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    debug_assert!(old.len() == new.len() && old.len().is_multiple_of(2));
    let mut folded = u32::from(!checksum) + sum(old, 0xffff) + sum(new, 0);
    folded = (folded & 0xffff) + (folded >> 16);
    folded = (folded & 0xffff) + (folded >> 16);
    !(folded as u16)
}

/// The checksum after a change of one word that it covers.
#[inline]
pub fn update16(checksum: u16, old: u16, new: u16) -> u16 {
    update(checksum, &old.to_be_bytes(), &new.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_the_rfcs() {
        // RFC 1071, section 3: the sum is ddf2.
        assert_eq!(compute(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        // RFC 1624, section 4: dd2f, 5555 becomes 3285, new checksum 0000.
        assert_eq!(update16(0xdd2f, 0x5555, 0x3285), 0x0000);
        assert_eq!(compute(&[0xab]), !0xab00);
    }

    proptest! {
        #[test]
        fn an_update_is_the_whole_sum_again(
            mut bytes in proptest::collection::vec(any::<u8>(), 8..200),
            at in 0usize..100,
            new in any::<[u8; 4]>(),
        ) {
            let at = (at * 2).min(bytes.len() - 4) & !1;
            let before = compute(&bytes);
            let old: [u8; 4] = bytes[at..at + 4].try_into().unwrap();
            bytes[at..at + 4].copy_from_slice(&new);
            // All-zero data has two sums; IP headers and pseudo-headers are not all zero.
            prop_assume!(bytes.iter().any(|b| *b != 0));
            prop_assert_eq!(update(before, &old, &new), compute(&bytes));
        }
    }
}
