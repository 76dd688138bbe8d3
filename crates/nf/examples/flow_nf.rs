//! An NF for tests of pools, which assumes one flow at a time and logs what it sees.
//!
//! Its arguments are a file, which instances may share; `--leak`, which disables its state cleaner;
//! `--ask=PRIORITY`, for which it asks with each flow; and `--end`, with which it says at a flow's
//! first packet that the flow is over. The lines:
//!
//! | line | when |
//! |---|---|
//! | `begin NF PROCESS CONNECTION` | a first packet came |
//! | `mixed NF PROCESS CONNECTION OTHER` | a packet of another connection found the former state |
//! | `clean NF PROCESS CONNECTION` | the state cleaner was called |

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use sluice_nf::{Burst, Context, Handler};

struct FlowNf {
    log: File,
    instance: String,
    leaks: bool,
    connection: Option<String>,
    context: Context,
    priority: Option<f64>,
    ends: bool,
}

/// The two ends of an IPv4 packet, in an order that does not depend on its direction.
fn connection(packet: &[u8]) -> Option<String> {
    let ip = packet.get(14..)?;
    let ports = ip.get(usize::from(ip.first()? & 0xf) * 4..)?;
    let end = |at: usize, port: usize| -> Option<(Ipv4Addr, u16)> {
        let address: [u8; 4] = ip.get(at..at + 4)?.try_into().ok()?;
        Some((address.into(), u16::from_be_bytes([*ports.get(port)?, *ports.get(port + 1)?])))
    };
    let (src, dst) = (end(12, 0)?, end(16, 2)?);
    let (low, high) = (src.min(dst), src.max(dst));
    Some(format!("{}:{}-{}:{}", low.0, low.1, high.0, high.1))
}

impl FlowNf {
    /// Asks for what it is to ask for with each flow.
    fn ask(&self) {
        if let Some(priority) = self.priority {
            assert!(self.context.ask_priority(priority), "it has a manager");
        }
        if self.ends {
            assert!(self.context.end_flow(), "it has a manager");
        }
    }

    fn report(&mut self, what: &str) {
        // One write, so that lines of several processes do not mix.
        let line = format!("{what}\n");
        let _ = self.log.write_all(line.as_bytes());
    }
}

impl Handler for FlowNf {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        for packet in burst.iter_mut() {
            let Some(of) = connection(packet.data()) else { continue };
            let instance = &self.instance;
            match &self.connection {
                Some(known) if *known == of => {}
                Some(known) => {
                    let line = format!("mixed {instance} {known} {of}");
                    self.report(&line);
                }
                None => {
                    let line = format!("begin {instance} {of}");
                    self.connection = Some(of);
                    self.report(&line);
                    self.ask();
                }
            }
        }
    }

    fn forked(&mut self, context: &Context) -> Result<(), Box<dyn std::error::Error>> {
        self.instance = instance(context);
        self.context = context.clone();
        Ok(())
    }

    fn clean(&mut self) {
        let line = format!("clean {} {}", self.instance, self.connection.as_deref().unwrap_or("-"));
        self.report(&line);
        if !self.leaks {
            self.connection = None;
        }
    }
}

fn instance(context: &Context) -> String {
    format!("{} {}", context.name, std::process::id())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    sluice_nf::run(|context| {
        let path = args.get(1).ok_or("name a file")?;
        let log = OpenOptions::new().create(true).append(true).open(path)?;
        let has = |word: &str| args.iter().any(|arg| arg == word);
        Ok(FlowNf {
            log,
            instance: instance(context),
            leaks: has("--leak"),
            connection: None,
            context: context.clone(),
            priority: args.iter().find_map(|arg| arg.strip_prefix("--ask=")).map(str::parse::<f64>).transpose()?,
            ends: has("--end"),
        })
    })
}
