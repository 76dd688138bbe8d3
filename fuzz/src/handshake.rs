//! Messages on the NF socket, from either side: whatever is understood means the same when it is said again.

use sluice_shm::handshake::{Answer, Hello};

/// Tries one message.
pub fn run(bytes: &[u8]) {
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(Hello::decode(&hello.encode()).expect("it was understood before"), hello);
    }
    if let Ok(answer) = Answer::decode(bytes) {
        assert_eq!(Answer::decode(&answer.encode()).expect("it was understood before"), answer);
    }
}
