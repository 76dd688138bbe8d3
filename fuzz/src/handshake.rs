//! Messages on the NF socket, from either side: a parsed message survives a round trip.

use sluice_shm::handshake::{Answer, Hello};

pub fn run(bytes: &[u8]) {
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(Hello::decode(&hello.encode()).expect("it was understood before"), hello);
    }
    if let Ok(answer) = Answer::decode(bytes) {
        assert_eq!(Answer::decode(&answer.encode()).expect("it was understood before"), answer);
    }
}
