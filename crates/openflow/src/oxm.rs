//! Matches of flow entries (section 7.2.2).
//!
//! A [`Match`] is a sorted list of fields, each with a value and a mask, without duplicates, so
//! that equal matches are equal values. Fields with an empty mask are left out. Prerequisites (a
//! TCP port needs `ip_proto` 6) are checked by the constructor, so every match is consistent.

use crate::fault::Fault;
use crate::wire::{Put, Reader};

/// A match field; the discriminant is the number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FieldId {
    InPort = 0,
    EthDst = 3,
    EthSrc = 4,
    EthType = 5,
    VlanVid = 6,
    IpDscp = 8,
    IpProto = 10,
    Ipv4Src = 11,
    Ipv4Dst = 12,
    TcpSrc = 13,
    TcpDst = 14,
    UdpSrc = 15,
    UdpDst = 16,
    SctpSrc = 17,
    SctpDst = 18,
    Icmpv4Type = 19,
    Icmpv4Code = 20,
    ArpOp = 21,
    ArpSpa = 22,
    ArpTpa = 23,
    ArpSha = 24,
    ArpTha = 25,
    Ipv6Src = 26,
    Ipv6Dst = 27,
    Icmpv6Type = 29,
    Icmpv6Code = 30,
}

use FieldId::*;

/// The bit of a VLAN ID for the presence of a tag.
pub const VLAN_PRESENT: u16 = 0x1000;

impl FieldId {
    pub const ALL: [Self; 26] = [
        InPort, EthDst, EthSrc, EthType, VlanVid, IpDscp, IpProto, Ipv4Src, Ipv4Dst, TcpSrc, TcpDst, UdpSrc, UdpDst, SctpSrc,
        SctpDst, Icmpv4Type, Icmpv4Code, ArpOp, ArpSpa, ArpTpa, ArpSha, ArpTha, Ipv6Src, Ipv6Dst, Icmpv6Type, Icmpv6Code,
    ];

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|id| *id as u8 == number)
    }

    pub fn bits(self) -> u32 {
        match self {
            InPort | Ipv4Src | Ipv4Dst | ArpSpa | ArpTpa => 32,
            EthDst | EthSrc | ArpSha | ArpTha => 48,
            EthType | TcpSrc | TcpDst | UdpSrc | UdpDst | SctpSrc | SctpDst | ArpOp => 16,
            VlanVid => 13,
            IpDscp => 6,
            IpProto | Icmpv4Type | Icmpv4Code | Icmpv6Type | Icmpv6Code => 8,
            Ipv6Src | Ipv6Dst => 128,
        }
    }

    /// Bytes in a value on the wire.
    fn bytes(self) -> usize {
        self.bits().div_ceil(8) as usize
    }

    pub fn all(self) -> u128 {
        u128::MAX >> (128 - self.bits())
    }

    /// Whether a mask is allowed.
    pub(crate) fn is_maskable(self) -> bool {
        matches!(self, EthDst | EthSrc | VlanVid | Ipv4Src | Ipv4Dst | ArpSpa | ArpTpa | ArpSha | ArpTha | Ipv6Src | Ipv6Dst)
    }

    /// Prerequisite: another field with one of these values.
    fn needs(self) -> Option<(FieldId, &'static [u128])> {
        match self {
            InPort | EthDst | EthSrc | EthType | VlanVid => None,
            IpDscp | IpProto => Some((EthType, &[0x0800, 0x86dd])),
            Ipv4Src | Ipv4Dst => Some((EthType, &[0x0800])),
            TcpSrc | TcpDst => Some((IpProto, &[6])),
            UdpSrc | UdpDst => Some((IpProto, &[17])),
            SctpSrc | SctpDst => Some((IpProto, &[132])),
            Icmpv4Type | Icmpv4Code => Some((IpProto, &[1])),
            ArpOp | ArpSpa | ArpTpa | ArpSha | ArpTha => Some((EthType, &[0x0806])),
            Ipv6Src | Ipv6Dst => Some((EthType, &[0x86dd])),
            Icmpv6Type | Icmpv6Code => Some((IpProto, &[58])),
        }
    }
}

/// One field of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Field {
    pub id: FieldId,
    /// The value; bits outside the mask are zero.
    pub value: u128,
    /// Bits that are compared.
    pub mask: u128,
}

/// Fields that must all match. Without fields, everything matches.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Match(Vec<Field>);

/// The OXM class of the fields in the specification.
const CLASS_BASIC: u16 = 0x8000;
/// The match type for OXM fields.
const TYPE_OXM: u16 = 1;

impl Match {
    /// A match of these fields, in any order.
    ///
    /// # Errors
    /// The fault of the first invalid field: value or mask out of range, duplicate, or prerequisite
    /// missing.
    pub fn new(fields: impl IntoIterator<Item = Field>) -> Result<Self, Fault> {
        let mut all: Vec<Field> = fields.into_iter().collect();
        all.sort_by_key(|field| field.id);
        for field in &all {
            let whole = field.id.all();
            if field.value & !whole != 0 {
                return Err(Fault::MATCH_VALUE);
            }
            if field.mask & !whole != 0 || (field.mask != whole && !field.id.is_maskable()) {
                return Err(Fault::MATCH_MASK);
            }
            if field.value & !field.mask != 0 {
                return Err(Fault::MATCH_WILDCARDS);
            }
        }
        if all.windows(2).any(|pair| pair[0].id == pair[1].id) {
            return Err(Fault::MATCH_DUPLICATE);
        }
        all.retain(|field| field.mask != 0);
        let this = Self(all);
        for field in &this.0 {
            if let Some((other, values)) = field.id.needs()
                && !this.get(other).is_some_and(|f| f.mask == other.all() && values.contains(&f.value))
            {
                return Err(Fault::MATCH_PREREQUISITE);
            }
        }
        if this.get(VlanVid).is_some_and(|f| f.mask == VlanVid.all() && f.value != 0 && f.value & u128::from(VLAN_PRESENT) == 0) {
            return Err(Fault::MATCH_VALUE);
        }
        Ok(this)
    }

    /// A match of these fields with full masks.
    ///
    /// # Errors
    /// As [`Match::new`].
    pub fn exact(fields: &[(FieldId, u128)]) -> Result<Self, Fault> {
        Self::new(fields.iter().map(|(id, value)| Field { id: *id, value: *value, mask: id.all() }))
    }

    pub fn fields(&self) -> &[Field] {
        &self.0
    }

    pub fn get(&self, id: FieldId) -> Option<Field> {
        self.0.iter().find(|field| field.id == id).copied()
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `other` matches all of its packets: the criterion of non-strict requests.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        other.0.iter().all(|wanted| {
            self.get(wanted.id).is_some_and(|own| own.mask & wanted.mask == wanted.mask && own.value & wanted.mask == wanted.value)
        })
    }

    /// Whether a packet could match both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().all(|own| other.get(own.id).is_none_or(|f| (own.value ^ f.value) & own.mask & f.mask == 0))
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Fault> {
        let kind = from.u16()?;
        let length = usize::from(from.u16()?);
        if kind != TYPE_OXM {
            return Err(Fault::MATCH_TYPE);
        }
        let mut fields = Vec::new();
        let mut part = from.part(length.checked_sub(4).ok_or(Fault::MATCH_LEN)?).map_err(|_| Fault::MATCH_LEN)?;
        from.skip(length.next_multiple_of(8) - length).map_err(|_| Fault::MATCH_LEN)?;
        while !part.is_empty() {
            let short = |_| Fault::MATCH_LEN;
            let class = part.u16().map_err(short)?;
            let word = part.u8().map_err(short)?;
            let bytes = usize::from(part.u8().map_err(short)?);
            let mut body = part.part(bytes).map_err(short)?;
            let id = FieldId::of(word >> 1).filter(|_| class == CLASS_BASIC).ok_or(Fault::MATCH_FIELD)?;
            let masked = word & 1 == 1;
            if bytes != id.bytes() * (1 + usize::from(masked)) {
                return Err(Fault::MATCH_LEN);
            }
            let value = body.wide(id.bytes()).map_err(short)?;
            let mask = if masked { body.wide(id.bytes()).map_err(short)? } else { id.all() };
            // A mask may have bits beyond the field: some write all ones for the full mask.
            let beyond = u128::MAX >> (128 - 8 * id.bytes()) & !id.all();
            fields.push(Field { id, value, mask: if mask & beyond == beyond { mask & id.all() } else { mask } });
        }
        Self::new(fields)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.u16(TYPE_OXM);
        out.u16(0);
        for Field { id, value, mask } in &self.0 {
            let masked = *mask != id.all();
            out.u16(CLASS_BASIC);
            out.u8((*id as u8) << 1 | u8::from(masked));
            out.u8((id.bytes() * (1 + usize::from(masked))) as u8);
            out.wide(*value, id.bytes());
            if masked {
                out.wide(*mask, id.bytes());
            }
        }
        out.length_at(start + 2, start);
        out.zeros((out.len() - start).next_multiple_of(8) - (out.len() - start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(fields: Result<Match, Fault>) -> Match {
        let before = fields.unwrap();
        let mut bytes = Vec::new();
        before.encode(&mut bytes);
        assert_eq!(bytes.len() % 8, 0);
        let mut reader = Reader(&bytes);
        assert_eq!(Match::decode(&mut reader).unwrap(), before);
        assert!(reader.is_empty());
        before
    }

    #[test]
    fn what_a_field_needs_must_be_there() {
        assert_eq!(Match::exact(&[(TcpDst, 80)]), Err(Fault::MATCH_PREREQUISITE));
        assert_eq!(Match::exact(&[(IpProto, 6), (TcpDst, 80)]), Err(Fault::MATCH_PREREQUISITE));
        assert_eq!(Match::exact(&[(EthType, 0x800), (IpProto, 17), (TcpDst, 80)]), Err(Fault::MATCH_PREREQUISITE));
        assert_eq!(Match::exact(&[(EthType, 0x86dd), (Ipv4Src, 1)]), Err(Fault::MATCH_PREREQUISITE));
        round(Match::exact(&[(TcpDst, 80), (IpProto, 6), (EthType, 0x86dd)]));
    }

    #[test]
    fn values_and_masks_have_bounds() {
        assert_eq!(Match::exact(&[(IpDscp, 64), (EthType, 0x800)]), Err(Fault::MATCH_VALUE));
        assert_eq!(Match::exact(&[(VlanVid, 5)]), Err(Fault::MATCH_VALUE), "a tag's id without the bit that says tag");
        assert_eq!(Match::exact(&[(InPort, 1), (InPort, 1)]), Err(Fault::MATCH_DUPLICATE));
        let masked = |id, value, mask| Match::new([Field { id, value, mask }]);
        assert_eq!(masked(InPort, 1, 3), Err(Fault::MATCH_MASK));
        assert_eq!(masked(EthDst, 3, 1), Err(Fault::MATCH_WILDCARDS));
        assert_eq!(masked(EthDst, 0, 0), Ok(Match::default()), "a mask without bits says nothing");
        round(masked(VlanVid, 0x1000, 0x1000));
        round(Match::exact(&[(VlanVid, 0)]));
    }

    #[test]
    fn narrower_wider_and_overlapping() {
        let net = |value: u128, bits: u32| {
            let mask = Ipv4Dst.all() << (32 - bits) & Ipv4Dst.all();
            let eth = Field { id: EthType, value: 0x800, mask: 0xffff };
            Match::new([eth, Field { id: Ipv4Dst, value: value & mask, mask }]).unwrap()
        };
        let (ten, inside, other) = (net(0x0a00_0000, 8), net(0x0a01_0000, 16), net(0x0b00_0000, 8));
        assert!(inside.is_within(&ten) && !ten.is_within(&inside) && ten.is_within(&ten));
        assert!(ten.is_within(&Match::default()) && !Match::default().is_within(&ten));
        assert!(ten.overlaps(&inside) && inside.overlaps(&ten) && !ten.overlaps(&other));
        let port = Match::exact(&[(InPort, 1)]).unwrap();
        assert!(port.overlaps(&ten) && !port.is_within(&ten));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let fault = |bytes: &[u8]| Match::decode(&mut Reader(bytes)).unwrap_err();
        assert_eq!(fault(&[0, 0, 0, 4, 0, 0, 0, 0]), Fault::MATCH_TYPE);
        assert_eq!(fault(&[0, 1, 0, 3, 0, 0, 0, 0]), Fault::MATCH_LEN);
        assert_eq!(fault(&[0, 1, 0, 40, 0, 0, 0, 0]), Fault::MATCH_LEN);
        // Metadata; an experimenter class; a port number of three bytes.
        assert_eq!(fault(&[0, 1, 0, 16, 0x80, 0, 2 << 1, 8, 0, 0, 0, 0, 0, 0, 0, 1]), Fault::MATCH_FIELD);
        assert_eq!(fault(&[0, 1, 0, 8, 0xff, 0xff, 0, 0]), Fault::MATCH_FIELD);
        assert_eq!(fault(&[0, 1, 0, 11, 0x80, 0, 0, 3, 0, 0, 1, 0, 0, 0, 0, 0]), Fault::MATCH_LEN);
    }
}
