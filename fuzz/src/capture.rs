//! Capture files: refused with a reason, or their packets lie in the file and fit the room.

use sluice_ports::capture;

/// Largest packet, in bytes.
const ROOM: usize = 2_048;

pub fn run(bytes: &[u8]) {
    match capture::decode(bytes.to_vec(), ROOM) {
        Err(error) => assert!(!error.to_string().trim().is_empty(), "a refusal says why"),
        Ok(capture) => {
            let mut last = 0;
            for record in &capture.records {
                let [header, rest] = capture.parts_of(record);
                assert!(header.is_empty() || header.len() == 14, "a made header is Ethernet's");
                assert_eq!(record.is_made(), !header.is_empty(), "what is written says that it is made");
                let len = header.len() + rest.len();
                assert!(!rest.is_empty() && len <= ROOM, "{len} bytes");
                assert!(record.due_ns >= last, "packets are in order");
                last = record.due_ns;
            }
            // Each packet takes bytes of the file, which bounds their number.
            assert!((capture.records.len() as u64 + capture.empty) * 12 <= bytes.len() as u64);
        }
    }
}
