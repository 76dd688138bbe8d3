//! Flow entries as [`Advice`](crate::advice::Advice): the meaning of OpenFlow's terms here.
//!
//! Ports of the configuration are numbered from 1, in the order of their creation. Each chain is a
//! *logical port* with its name, numbered from [`CHAIN_BASE`]. With a controller, no number is
//! reused while the daemon runs. An output to a chain's port sends packets into that chain; an
//! output to a port of the configuration is impossible, since chains alone end there.

use sluice_openflow::fault::Fault;
use sluice_openflow::instruction::Output;
use sluice_openflow::oxm::{FieldId, Match, VLAN_PRESENT};
use sluice_openflow::{port, table};

use crate::advice::{self, Answer, WIDE};
use sluice_dataplane::classify::key::WORDS;

/// Number of the first chain's logical port: chain number N is [`CHAIN_BASE`] + N.
pub const CHAIN_BASE: u32 = 0x1_0000;

/// The OpenFlow number of a port of the configuration.
pub fn port_of(number: u16) -> u32 {
    u32::from(number) + 1
}

pub(crate) fn port_of_chain(number: u16) -> u32 {
    CHAIN_BASE + u32::from(number)
}

/// The port of the configuration with an OpenFlow number.
pub fn number_of(port: u32) -> Option<u16> {
    port.checked_sub(1).and_then(|n| u16::try_from(n).ok())
}

/// The meaning of an output.
pub fn answer(output: Option<Output>) -> Answer {
    match output.map(|o| (o.port, o.max_len)) {
        None => Answer::Drop,
        Some((port::NORMAL, _)) => Answer::Rules,
        Some((port::CONTROLLER, max_len)) => Answer::Ask(max_len),
        Some((port, _)) => match port.checked_sub(CHAIN_BASE).and_then(|n| u16::try_from(n).ok()) {
            Some(chain) => Answer::Chain(chain),
            None => Answer::Drop,
        },
    }
}

#[derive(Default)]
struct Words {
    mask: [u64; WIDE],
    value: [u64; WIDE],
}

impl Words {
    fn put(&mut self, word: usize, shift: u32, mask: u64, value: u64) {
        self.mask[word] |= mask << shift;
        self.value[word] |= (value & mask) << shift;
    }

    /// Two words, of which the first has the upper half.
    fn put_wide(&mut self, word: usize, mask: u128, value: u128) {
        self.put(word, 0, (mask >> 64) as u64, (value >> 64) as u64);
        self.put(word + 1, 0, mask as u64, value as u64);
    }
}

/// Mask and value of a match.
///
/// # Errors
/// [`Fault::MATCH_VALUE`] for a port that the configuration cannot have.
pub fn words(fields: &Match) -> Result<([u64; WIDE], [u64; WIDE]), Fault> {
    use FieldId::*;
    // Words of the key: addresses; ports, ingress, VLAN; protocol, DSCP, kind, version, EtherType.
    const EDGE: usize = WORDS - 2;
    const TAIL: usize = WORDS - 1;
    const FAR: usize = WORDS;
    let mut words = Words::default();
    for field in fields.fields() {
        let (mask, value) = (field.mask as u64, field.value as u64);
        match field.id {
            InPort => {
                let number = number_of(value as u32).ok_or(Fault::MATCH_VALUE)?;
                words.put(EDGE, 32, 0xffff, number.into());
            }
            EthDst => words.put(FAR, 0, mask, value),
            EthSrc => words.put(FAR + 1, 0, mask, value),
            // IP by version; the key then has no EtherType. A malformed packet has no version.
            EthType if value == 0x0800 => words.put(TAIL, 24, 0xff, 4),
            EthType if value == 0x86dd => words.put(TAIL, 24, 0xff, 6),
            EthType => {
                words.put(TAIL, 24, 0xff, 0);
                words.put(TAIL, 32, 0xffff, value);
            }
            VlanVid => {
                let present = u64::from(VLAN_PRESENT);
                let id = mask & 0xfff;
                words.put(EDGE, 48, if mask & present != 0 && value & present == 0 { 0xfff } else { id }, value & 0xfff);
                // An ID other than 0 implies a tag; without a tag the ID is 0.
                if mask & value & present != 0 && value & 0xfff == 0 {
                    words.put(FAR, 48, 1, 1);
                }
            }
            IpDscp => words.put(TAIL, 8, 0xff, value),
            IpProto => words.put(TAIL, 0, 0xff, value),
            Ipv4Src => words.put(1, 0, mask, value),
            Ipv4Dst => words.put(3, 0, mask, value),
            Ipv6Src => words.put_wide(0, field.mask, field.value),
            Ipv6Dst => words.put_wide(2, field.mask, field.value),
            TcpSrc | UdpSrc | SctpSrc | TcpDst | UdpDst | SctpDst => {
                // Fragments have no ports; the kind of a whole packet is 0.
                words.put(TAIL, 16, 0xff, 0);
                let shift = if matches!(field.id, TcpSrc | UdpSrc | SctpSrc) { 0 } else { 16 };
                words.put(EDGE, shift, 0xffff, (value as u16).swap_bytes().into());
            }
            Icmpv4Type | Icmpv6Type => {
                words.put(TAIL, 16, 0xff, 0);
                words.put(FAR + 1, 56, 0xff, value);
            }
            Icmpv4Code | Icmpv6Code => {
                words.put(TAIL, 16, 0xff, 0);
                words.put(FAR + 1, 48, 0xff, value);
            }
            ArpOp => words.put(FAR + 1, 48, 0xffff, value),
            ArpSpa => words.put(FAR + 2, 32, mask, value),
            ArpTpa => words.put(FAR + 2, 0, mask, value),
            ArpSha => words.put(FAR + 3, 0, mask, value),
            ArpTha => words.put(FAR + 4, 0, mask, value),
        }
    }
    Ok((words.mask, words.value))
}

/// Compiles an entry; None if no packet can match it.
pub fn compile(entry: &table::Entry) -> Option<advice::Entry> {
    let (mask, value) = words(&entry.fields).ok()?;
    Some(advice::Entry { number: entry.number, priority: entry.priority, mask, value, answer: answer(entry.output) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::{Advice, Meanwhile, beyond};
    use sluice_dataplane::classify::key::FlowKey;
    use sluice_openflow::oxm::Field;

    fn tcp(vlan: Option<u16>) -> Vec<u8> {
        let mut bytes = Vec::new();
        match vlan {
            None => etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
                .ipv4([10, 0, 0, 2], [10, 0, 1, 2], 9)
                .tcp(40_000, 80, 0, 0)
                .write(&mut bytes, b"x"),
            Some(id) => etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
                .single_vlan(id.try_into().unwrap())
                .ipv4([10, 0, 0, 2], [10, 0, 1, 2], 9)
                .tcp(40_000, 80, 0, 0)
                .write(&mut bytes, b"x"),
        }
        .unwrap();
        bytes
    }

    fn meets(packet: &[u8], fields: &[(FieldId, u128)]) -> bool {
        meets_match(packet, &Match::exact(fields).unwrap())
    }

    /// Whether a packet received by port number 2 matches.
    fn meets_match(packet: &[u8], fields: &Match) -> bool {
        let (mask, value) = words(fields).unwrap();
        let entry = advice::Entry { number: 1, priority: 1, mask, value, answer: Answer::Drop };
        let advice = Advice::new([entry], Answer::Rules, Meanwhile::Rules, Answer::Rules);
        let key = FlowKey::parse(packet, packet.len() as u16, 2);
        advice.find(&key, || beyond(packet)).entry.is_some()
    }

    #[test]
    fn each_field_is_looked_at_where_it_is() {
        use FieldId::*;
        let packet = tcp(None);
        let exact = [
            (InPort, 3),
            (EthDst, 0x0200_0000_0002),
            (EthSrc, 0x0200_0000_0001),
            (EthType, 0x800),
            (VlanVid, 0),
            (IpDscp, 0),
            (IpProto, 6),
            (Ipv4Src, 0x0a00_0002),
            (Ipv4Dst, 0x0a00_0102),
            (TcpSrc, 40_000),
            (TcpDst, 80),
        ];
        assert!(meets(&packet, &exact));
        for (at, (id, value)) in exact.iter().enumerate().filter(|(_, (id, _))| !matches!(id, EthType | IpProto)) {
            let other = if *id == VlanVid { 0x1007 } else { value ^ 1 };
            let mut wrong = exact;
            wrong[at].1 = other;
            assert!(!meets(&packet, &wrong), "{id:?}");
        }
        assert!(!meets(&packet, &[(EthType, 0x86dd)]) && !meets(&packet, &[(EthType, 0x806)]));
        assert!(!meets(&packet, &[(EthType, 0x800), (IpProto, 17), (UdpDst, 80)]));
        assert!(meets(&packet, &[]));
        let net = |bits: u32, address: u128| {
            let mask = Ipv4Src.all() << (32 - bits) & Ipv4Src.all();
            Match::new([Field { id: EthType, value: 0x800, mask: 0xffff }, Field { id: Ipv4Src, value: address & mask, mask }])
                .unwrap()
        };
        assert!(meets_match(&packet, &net(8, 0x0aff_ffff)) && !meets_match(&packet, &net(16, 0x0aff_ffff)));
    }

    #[test]
    fn tags_and_their_absence() {
        use FieldId::VlanVid;
        let any_tag = Match::new([Field { id: VlanVid, value: 0x1000, mask: 0x1000 }]).unwrap();
        for (packet, tagged) in [(tcp(None), false), (tcp(Some(7)), true), (tcp(Some(0)), true)] {
            assert_eq!(meets_match(&packet, &any_tag), tagged);
        }
        assert!(meets(&tcp(Some(7)), &[(VlanVid, 0x1007)]) && !meets(&tcp(Some(7)), &[(VlanVid, 0x1008)]));
        assert!(!meets(&tcp(None), &[(VlanVid, 0x1007)]) && !meets(&tcp(Some(7)), &[(VlanVid, 0)]));
    }

    #[test]
    fn fragments_have_no_ports() {
        use FieldId::*;
        let mut packet = tcp(None);
        packet[20] = 0x20;
        assert!(meets(&packet, &[(EthType, 0x800), (IpProto, 6)]));
        assert!(!meets(&packet, &[(EthType, 0x800), (IpProto, 6), (TcpDst, 80)]));
        assert!(!meets(&packet, &[(EthType, 0x800), (IpProto, 6), (TcpDst, 0)]));
    }

    #[test]
    fn outputs_and_numbers() {
        let to = |port| answer(Some(Output { port, max_len: 9 }));
        assert_eq!(answer(None), Answer::Drop);
        assert_eq!((to(port::NORMAL), to(port::CONTROLLER)), (Answer::Rules, Answer::Ask(9)));
        assert_eq!((to(port_of_chain(0)), to(port_of_chain(65_534))), (Answer::Chain(0), Answer::Chain(65_534)));
        assert_eq!((number_of(port_of(7)), number_of(0), number_of(port::CONTROLLER)), (Some(7), None, None));
        assert_eq!(words(&Match::exact(&[(FieldId::InPort, 0)]).unwrap()), Err(Fault::MATCH_VALUE));
    }
}
