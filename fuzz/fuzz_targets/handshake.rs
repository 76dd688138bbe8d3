//! Messages of the handshake, from either side: whatever is understood means the same when it is said again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_shm::handshake::{Answer, Hello};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(Hello::decode(&hello.encode()).expect("it was understood before"), hello);
    }
    if let Ok(answer) = Answer::decode(bytes) {
        assert_eq!(Answer::decode(&answer.encode()).expect("it was understood before"), answer);
    }
});
