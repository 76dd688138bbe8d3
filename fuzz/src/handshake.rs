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

#[cfg(test)]
mod tests {
    use sluice_shm::arena::Geometry;
    use sluice_shm::handshake::Welcome;
    use sluice_shm::page::RegionLayout;

    use super::*;

    #[test]
    fn true_messages_survive_and_so_does_the_program_with_each_part_of_them() {
        let welcome = Welcome {
            geometry: Geometry { first: 7, frames: 1_000, stride: 2_240 },
            region: RegionLayout::new(2, 128).unwrap(),
            slots: 64,
            slot: 3,
            hands_over: true,
            name: "nf.0".into(),
            core: 1,
            poll: false,
            linger_ns: 3_000,
            clock_scale: 1 << 40,
            ports: vec!["in".into(), "out".into()],
            services: vec!["nf".into()],
            chains: Vec::new(),
        };
        let hellos = [false, true].map(|is_zygote| Hello { name: "nf.0".into(), is_zygote }.encode());
        let answers = [Answer::Refusal("no room".into()), Answer::Welcome(Box::new(welcome))].map(|answer| answer.encode());
        assert!(hellos.iter().all(|bytes| Hello::decode(bytes).is_ok()));
        assert!(answers.iter().all(|bytes| Answer::decode(bytes).is_ok()));
        for bytes in hellos.iter().chain(&answers) {
            (0..=bytes.len()).for_each(|end| run(&bytes[..end]));
            for at in 0..8 * bytes.len() {
                let mut flipped = bytes.clone();
                flipped[at / 8] ^= 1 << (at % 8);
                run(&flipped);
            }
        }
    }
}
