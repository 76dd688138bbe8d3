//! The NF of the integration tests. The first byte of a packet selects an action; see [`Probe`].
//!
//! Its first argument is the style: `callback`, `pull`, `broken` (its handler cannot be made),
//! `threads` (it starts a thread with its handler), `storage` (see [`Writer`]) or `storage-pull`.

use std::cell::{Cell, RefCell};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use sluice_nf::storage::{At, File, Storage, StorageOptions};
use sluice_nf::{Burst, Context, Handler, Packet, PortId, ServiceId, pull};

/// Acts on a packet's first byte, and reports its life on stdout.
struct Probe {
    wan: PortId,
    ids: ServiceId,
    ticks: u32,
    seen: u8,
}

impl Probe {
    fn new(context: &Context) -> Result<Self, Box<dyn std::error::Error>> {
        let wan = context.port("wan").ok_or("there is no port wan; add one to the configuration")?;
        let ids = context.service("ids").ok_or("there is no service ids; add one to the configuration")?;
        println!("ready {}", context.name);
        Ok(Self { wan, ids, ticks: 0, seen: 0 })
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
            b'#' => {
                self.seen += 1;
                packet.data_mut()[1] = self.seen;
            }
            b'!' => panic!("as asked"),
            _ => packet.data_mut()[1] = packet.data_mut()[1].wrapping_add(1),
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

    fn forked(&mut self, context: &Context) -> Result<(), Box<dyn std::error::Error>> {
        assert_eq!((context.port("wan"), context.service("ids")), (Some(self.wan), Some(self.ids)));
        println!("forked {}", context.name);
        if std::env::var_os("FORKED_BROKEN").is_some() { Err("the random device is missing".into()) } else { Ok(()) }
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

/// The storage and the file that the environment names: `FILE`, `BATCH` bytes, `FLUSH_MS`.
fn storage(context: &Context) -> Result<(Storage, File), Box<dyn std::error::Error>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let options = StorageOptions {
        batch_bytes: number("BATCH").unwrap_or(4096) as usize,
        batch_operations: 16,
        flush_interval: Duration::from_millis(number("FLUSH_MS").unwrap_or(3_600_000)),
    };
    let path = std::env::var_os("FILE").ok_or("FILE is not set")?;
    let file = std::fs::File::options().read(true).write(true).open(path)?;
    Ok((Storage::new(context, &options)?, File::new(file)))
}

/// Appends packets that start with `w` to a file; reads five bytes for one that starts with `r`.
struct Writer {
    storage: Storage,
    file: File,
    written: Rc<Cell<usize>>,
    failed: Rc<Cell<usize>>,
}

impl Writer {
    fn new(context: &Context) -> Result<Self, Box<dyn std::error::Error>> {
        let (storage, file) = storage(context)?;
        println!("ready {}", context.name);
        Ok(Self { storage, file, written: Rc::default(), failed: Rc::default() })
    }

    fn write(&self, data: &[u8]) {
        let (written, failed) = (self.written.clone(), self.failed.clone());
        let callback = move |outcome: sluice_nf::storage::IoResult<'_>| match outcome {
            Ok(_) => written.set(written.get() + 1),
            Err(_) => failed.set(failed.get() + 1),
        };
        self.storage.write_data(&self.file, At::End, data, callback).expect("a packet fits a buffer");
    }
}

impl Handler for Writer {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        for packet in burst.iter_mut() {
            match packet.data()[0] {
                b'w' => self.write(packet.data()),
                b'r' => {
                    let callback = |outcome: sluice_nf::storage::IoResult<'_>| match outcome {
                        Ok(bytes) => println!("read {}", String::from_utf8_lossy(bytes)),
                        Err(error) => println!("read failed: {error}"),
                    };
                    self.storage.read_data(&self.file, 0, 5, callback).expect("five bytes fit a buffer");
                }
                b'!' => self.storage.read_data(&self.file, 0, 1, |_| panic!("as asked")).expect("a byte fits a buffer"),
                _ => {}
            }
        }
    }

    fn clean(&mut self) {
        println!("clean: {} written, {} failed", self.written.get(), self.failed.get());
        self.write(b"the end");
    }
}

/// Holds each packet until it is on the disk.
fn storage_pull() -> Result<(), Box<dyn std::error::Error>> {
    let mut nf = pull::Nf::attach()?;
    let (storage, file) = storage(nf.context())?;
    println!("ready {}", nf.context().name);
    let done = Rc::new(RefCell::new(Vec::new()));
    let mut burst = Vec::new();
    loop {
        let stop = nf.read_burst(&mut burst, None)?.is_none();
        for mut packet in burst.drain(..) {
            let (data, done) = (packet.packet().data().to_vec(), done.clone());
            storage.write_data(&file, At::End, &data, move |outcome| {
                if outcome.is_err() {
                    packet.packet().drop();
                }
                done.borrow_mut().push(packet);
            })?;
        }
        nf.write_burst(&mut done.borrow_mut())?;
        if stop {
            println!("clean");
            return Ok(());
        }
    }
}

fn code(result: Result<(), Box<dyn std::error::Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    match sluice_nf::args().first().and_then(|style| style.to_str()) {
        Some("pull") => code(pull_style()),
        Some("storage") => sluice_nf::run(Writer::new),
        Some("storage-pull") => code(storage_pull()),
        Some("threads") => sluice_nf::run(|context| {
            std::thread::spawn(std::thread::park);
            Probe::new(context)
        }),
        Some("broken") => sluice_nf::run::<Probe>(|_| Err("the rule file is missing; give one with --rules".into())),
        _ => sluice_nf::run(Probe::new),
    }
}
