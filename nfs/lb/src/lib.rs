//! A layer-4 load balancer: spreads flows to one virtual address and port over backends.
//!
//! The module `maglev` describes the choice of a flow's backend, `balancer` the path of a packet,
//! `backends` the backends file. The NF answers no ARP: the virtual address must be routed to it.

mod backends;
mod balancer;
mod maglev;

use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};
use sluice_nf::header::protocol;
use sluice_nf::{Context, Handler};
use sluice_nf_parts::lines::{self, FileError};
use sluice_nf_parts::reload::Reload;
use sluice_nf_parts::report::{ReportArgs, Reported};

use backends::Needs;
use balancer::{Backends, Balancer, Rewrite, Service};

/// Spreads the flows to a virtual address over backends, with Maglev hashing and a connection table
///
/// SIGHUP reads the backends file again; connections keep their backends.
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-lb", version, after_help = HELP)]
struct Args {
    /// Virtual address and port, such as `192.0.2.1:80` or `[2001:db8::1]:80`
    #[arg(long, value_name = "ADDRESS:PORT")]
    vip: SocketAddr,
    /// Protocol of the service
    #[arg(long, value_enum, default_value_t = Protocol::Tcp)]
    protocol: Protocol,
    /// Backends file
    #[arg(long, value_name = "FILE")]
    backends: PathBuf,
    /// What is rewritten so that packets get to a backend
    #[arg(long, value_enum, default_value_t = Rewrite::Ip)]
    rewrite: Rewrite,
    /// Most connections to remember
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    connections: u32,
    /// Seconds after which an idle connection is forgotten
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    idle: u64,
    #[command(flatten)]
    report: ReportArgs,
}

const HELP: &str = "Backends file, a line each: `NAME ADDRESS[:PORT] [mac MAC] [weight N]`; weight 0 drains\n  \
    web1 10.0.0.11:8080 weight 2\n  web2 10.0.0.12:8080 mac 02:00:00:00:00:12";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
}

impl Args {
    fn service(&self) -> Service {
        let protocol = if self.protocol == Protocol::Tcp { protocol::TCP } else { protocol::UDP };
        Service { address: self.vip.ip(), port: self.vip.port(), protocol, rewrite: self.rewrite, idle_s: self.idle }
    }

    fn needs(&self) -> Needs {
        let by_ip = self.rewrite == Rewrite::Ip;
        Needs { mac: !by_ip, family_of: by_ip.then(|| self.vip.ip()) }
    }
}

fn read(path: &Path, needs: Needs) -> Result<Backends, FileError> {
    lines::read(path, |text| backends::parse(text, needs)).map(Backends::new)
}

fn make(args: Args, _context: &Context) -> Result<impl Handler + use<>, Box<dyn Error>> {
    let needs = args.needs();
    let pool = read(&args.backends, needs)?;
    let path = args.backends.clone();
    let fresh = Reload::on_hangup(move || read(&path, needs))?;
    Ok(Reported::new(Balancer::new(args.service(), pool, args.connections as usize, Some(fresh)), &args.report)?)
}

sluice_nf_parts::nf!(Args, make);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_help_is_a_backends_file() {
        let args = Args::try_parse_from(["lb", "--vip", "192.0.2.1:80", "--backends", "x"]).unwrap();
        let (_, example) = HELP.split_once('\n').unwrap();
        assert_eq!(backends::parse(example, args.needs()).unwrap().len(), 2);
        assert_eq!((args.service().protocol, args.service().port), (6, 80));
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for vip in ["192.0.2.1", "192.0.2.1:x", "::1:80x"] {
            assert!(Args::try_parse_from(["lb", "--vip", vip, "--backends", "x"]).is_err(), "{vip}");
        }
    }
}
