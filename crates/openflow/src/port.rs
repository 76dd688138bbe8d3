//! Ports as the controller sees them, and reserved port numbers.

use crate::fault::Fault;
use crate::wire::{Put, Reader};

pub const MAX: u32 = 0xffff_ff00;
/// Output to the ingress port.
pub const IN_PORT: u32 = 0xffff_fff8;
/// Output to the flow table; only in packet-outs.
pub const TABLE: u32 = 0xffff_fff9;
/// Output to the rules, as without a controller.
pub const NORMAL: u32 = 0xffff_fffa;
/// Output to the controller.
pub const CONTROLLER: u32 = 0xffff_fffd;
/// Any port; only in requests.
pub const ANY: u32 = 0xffff_ffff;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortDesc {
    pub number: u32,
    pub address: [u8; 6],
    /// Name, of which at most 15 bytes are sent.
    pub name: String,
    /// Bit 0: down; bit 5: no reception.
    pub config: u32,
    /// Bit 0: no link; bit 2: live.
    pub state: u32,
}

impl PortDesc {
    pub(crate) const BYTES: usize = 64;

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Fault> {
        let number = from.u32()?;
        from.skip(4)?;
        let address = from.array()?;
        from.skip(2)?;
        let this = Self { number, address, name: from.text(16)?, config: from.u32()?, state: from.u32()? };
        from.skip(24)?;
        Ok(this)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.number);
        out.zeros(4);
        out.extend_from_slice(&self.address);
        out.zeros(2);
        out.text(&self.name, 16);
        out.u32(self.config);
        out.u32(self.state);
        // Link speeds and media are unknown.
        out.zeros(24);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortChange {
    Add = 0,
    Delete = 1,
    Modify = 2,
}
