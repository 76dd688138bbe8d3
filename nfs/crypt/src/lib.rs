//! AES-GCM over everything behind a packet's Ethernet header: two network functions, one at each end of a link.
//!
//! - [`keys`]: the key file;
//! - [`mod@format`]: what an encrypted packet looks like, sealing and opening in place;
//! - [`handlers`]: the two handlers and their counters.

pub mod format;
pub mod handlers;
pub mod keys;
