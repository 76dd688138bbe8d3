//! Ports, as a controller sees them, and numbers that mean something other than a port.

use crate::fault::Fault;
use crate::wire::{Put, Reader};

/// Largest number of a port.
pub const MAX: u32 = 0xffff_ff00;
/// Back where it came in.
pub const IN_PORT: u32 = 0xffff_fff8;
/// To the flow table; of a packet-out alone.
pub const TABLE: u32 = 0xffff_fff9;
/// As if there were no controller.
pub const NORMAL: u32 = 0xffff_fffa;
/// To the controller.
pub const CONTROLLER: u32 = 0xffff_fffd;
/// Any port: only in requests.
pub const ANY: u32 = 0xffff_ffff;

/// A port as the controller sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortDesc {
    /// Its number.
    pub number: u32,
    /// Its address.
    pub address: [u8; 6],
    /// Its name; 15 bytes at most are sent.
    pub name: String,
    /// Bit 0: it is down; bit 5: nothing is to be received.
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
        // Link speeds and media: not ours to say.
        out.zeros(24);
    }
}

/// What happened to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortChange {
    /// It is new.
    Add = 0,
    /// It is gone.
    Delete = 1,
    /// It is different.
    Modify = 2,
}
