//! Type and code of the error message that refuses a request (section 7.5.4).

use crate::wire::Short;

/// Type and code of an error message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("OpenFlow error of type {kind}, code {code}")]
pub struct Fault {
    pub kind: u16,
    pub code: u16,
}

const fn fault(kind: u16, code: u16) -> Fault {
    Fault { kind, code }
}

impl Fault {
    pub const HELLO_INCOMPATIBLE: Fault = fault(0, 0);
    pub const BAD_VERSION: Fault = fault(1, 0);
    pub const BAD_TYPE: Fault = fault(1, 1);
    pub const BAD_MULTIPART: Fault = fault(1, 2);
    pub const BAD_EXPERIMENTER: Fault = fault(1, 3);
    pub const BAD_LEN: Fault = fault(1, 6);
    pub const BUFFER_UNKNOWN: Fault = fault(1, 8);
    pub const BAD_TABLE_ID: Fault = fault(1, 9);
    pub const IS_SLAVE: Fault = fault(1, 10);
    pub const BAD_PORT: Fault = fault(1, 11);
    pub const BAD_PACKET: Fault = fault(1, 12);
    pub const MULTIPART_OVERFLOW: Fault = fault(1, 13);
    pub const ACTION_TYPE: Fault = fault(2, 0);
    pub const ACTION_LEN: Fault = fault(2, 1);
    pub const ACTION_EXPERIMENTER: Fault = fault(2, 2);
    pub const OUT_PORT: Fault = fault(2, 4);
    pub const TOO_MANY_ACTIONS: Fault = fault(2, 7);
    pub const UNKNOWN_INSTRUCTION: Fault = fault(3, 0);
    pub const UNSUPPORTED_INSTRUCTION: Fault = fault(3, 1);
    pub const INSTRUCTION_TABLE: Fault = fault(3, 2);
    pub const INSTRUCTION_EXPERIMENTER: Fault = fault(3, 5);
    pub const INSTRUCTION_LEN: Fault = fault(3, 7);
    pub const DUPLICATE_INSTRUCTION: Fault = fault(3, 9);
    pub const MATCH_TYPE: Fault = fault(4, 0);
    pub const MATCH_LEN: Fault = fault(4, 1);
    pub const MATCH_WILDCARDS: Fault = fault(4, 5);
    pub const MATCH_FIELD: Fault = fault(4, 6);
    pub const MATCH_VALUE: Fault = fault(4, 7);
    pub const MATCH_MASK: Fault = fault(4, 8);
    pub const MATCH_PREREQUISITE: Fault = fault(4, 9);
    pub const MATCH_DUPLICATE: Fault = fault(4, 10);
    pub const TABLE_FULL: Fault = fault(5, 1);
    pub const FLOW_TABLE_ID: Fault = fault(5, 2);
    pub const OVERLAP: Fault = fault(5, 3);
    pub const FLOW_COMMAND: Fault = fault(5, 6);
    pub const FLOW_FLAGS: Fault = fault(5, 7);
    pub const PORT_MOD_REFUSED: Fault = fault(7, 4);
    pub const TABLE_MOD_CONFIG: Fault = fault(8, 1);
    pub const CONFIG_FLAGS: Fault = fault(10, 0);
    pub const ROLE_STALE: Fault = fault(11, 0);
    pub const ROLE_BAD: Fault = fault(11, 2);
}

impl From<Short> for Fault {
    fn from(_: Short) -> Self {
        Self::BAD_LEN
    }
}
