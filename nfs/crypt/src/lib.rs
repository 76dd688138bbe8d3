//! AES-GCM over packets behind the Ethernet header: an NF for each end of a link.
//!
//! - [`keys`]: the key file;
//! - [`mod@format`]: the format of an encrypted packet, sealing and opening in place;
//! - [`handlers`]: the two handlers and their counters.

pub mod format;
pub mod handlers;
pub mod keys;
