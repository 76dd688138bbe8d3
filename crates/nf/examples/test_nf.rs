//! The NF that the integration tests run against a fake manager. The first byte of a packet says what to do with it; see [`Probe`].
//!
//! Its first argument is the style: `callback`, `pull`, or `broken` (its handler cannot be made).

use std::process::ExitCode;
use std::time::Duration;

use sluice_nf::{Burst, Context, Handler, Packet, PortId, ServiceId, pull};

/// Does what a packet's first byte says, and tells its life on stdout.
struct Probe {
    wan: PortId,
    ids: ServiceId,
    ticks: u32,
}

impl Probe {
    fn new(context: &Context) -> Result<Self, Box<dyn std::error::Error>> {
        let wan = context.port("wan").ok_or("there is no port wan; add one to the configuration")?;
        let ids = context.service("ids").ok_or("there is no service ids; add one to the configuration")?;
        println!("ready {}", context.name);
        Ok(Self { wan, ids, ticks: 0 })
    }

    fn handle(&mut self, packet: &mut Packet<'_>) {
        match packet.data()[0] {
            b'd' => packet.drop(),
            b'p' => packet.to_port(self.wan),
            b's' => packet.to_service(self.ids),
            b'+' => packet.push(4).expect("a fresh frame has headroom").copy_from_slice(b"more"),
            b'-' => packet.pull(1).expect("the tests send more than one byte"),
            b'i' => {
                let (ingress, chain) = (packet.ingress(), packet.chain());
                packet.to_port(self.wan);
                assert_eq!(packet.ingress(), ingress, "a verdict does not change where it came from");
                packet.next();
                packet.data_mut()[1..5].copy_from_slice(&[ingress.to_be_bytes(), chain.to_be_bytes()].concat());
            }
            b'!' => panic!("told to"),
            _ => packet.data_mut()[1] += 1,
        }
    }
}

impl Handler for Probe {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        assert!(burst.now_ns() > 0 && !burst.is_empty());
        for mut packet in burst.iter_mut() {
            self.handle(&mut packet);
        }
    }

    fn tick(&mut self, _now_ns: u64) {
        self.ticks += 1;
        println!("tick {}", self.ticks);
    }

    fn tick_every(&self) -> Option<Duration> {
        std::env::var_os("TICK").map(|_| Duration::from_millis(2))
    }

    fn clean(&mut self) {
        println!("clean");
    }
}

fn pull_style() -> Result<(), Box<dyn std::error::Error>> {
    let mut nf = pull::Nf::attach()?;
    let mut probe = Probe::new(nf.context())?;
    let mut burst = Vec::new();
    while let Some(mut first) = nf.read()? {
        probe.handle(&mut first.packet());
        let forget = first.packet().data()[0] == b'f';
        if forget {
            drop(first); // goes back as dropped
        } else {
            nf.write(first)?;
        }
        if nf.read_burst(&mut burst, Some(Duration::ZERO))?.is_none() {
            break;
        }
        for packet in &mut burst {
            probe.handle(&mut packet.packet());
        }
        burst.retain_mut(|packet| packet.packet().data()[0] != b'f');
        nf.write_burst(&mut burst)?;
    }
    probe.clean();
    Ok(())
}

fn main() -> ExitCode {
    match sluice_nf::args().first().and_then(|style| style.to_str()) {
        Some("pull") => match pull_style() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        Some("broken") => sluice_nf::run::<Probe>(|_| Err("the rule file is missing; give one with --rules".into())),
        _ => sluice_nf::run(Probe::new),
    }
}
