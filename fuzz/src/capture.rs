//! Capture files: any bytes are refused with a reason, or give packets that lie in the file and fit the room that there is.

use sluice_ports::capture;

/// Bytes of a packet that there is room for.
const ROOM: usize = 2_048;

/// Tries one file.
pub fn run(bytes: &[u8]) {
    match capture::decode(bytes.to_vec(), ROOM) {
        Err(error) => assert!(!error.to_string().trim().is_empty(), "a refusal says why"),
        Ok(capture) => {
            let mut last = 0;
            for record in &capture.records {
                let packet = capture.bytes_of(record);
                assert!((1..=ROOM).contains(&packet.len()), "{} bytes", packet.len());
                assert!(record.due_ns >= last, "packets are in order");
                last = record.due_ns;
            }
            // A packet takes bytes of the file, so that there are not more of them than a file can hold.
            assert!((capture.records.len() as u64 + capture.empty) * 12 <= bytes.len() as u64);
        }
    }
}
