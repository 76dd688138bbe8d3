//! Encrypts all of a packet behind its Ethernet header and VLAN tags, for `sluice-nf-decrypt`.
//!
//! The packet grows by 34 bytes: leave room for them in the MTU of the link between the two. The
//! module `format` describes the format, `keys` the key file.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use sluice_nf_crypt::format::Nonces;
use sluice_nf_crypt::handlers::Encrypt;
use sluice_nf_crypt::keys::Keys;
use sluice_nf_parts::parse_args;
use sluice_nf_parts::reload::Reload;
use sluice_nf_parts::report::{ReportArgs, Reported};

/// Encrypts everything behind a packet's Ethernet header with AES-GCM
///
/// The first key of the file is used. SIGHUP reads the file again.
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-encrypt", version)]
struct Args {
    /// Key file: a line `ID HEX` for each key, with 32 hexadecimal digits (AES-128) or 64 (AES-256)
    #[arg(long, value_name = "FILE")]
    keys: PathBuf,
    #[command(flatten)]
    report: ReportArgs,
}

fn main() -> ExitCode {
    let args: Args = parse_args();
    sluice_nf::run(|_| {
        let keys = Keys::read(&args.keys)?;
        let nonces = Nonces::new(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64)?;
        let path = args.keys.clone();
        let fresh = Reload::on_hangup(move || Keys::read(&path))?;
        Ok(Reported::new(Encrypt::new(keys, nonces, Some(fresh)), &args.report)?)
    })
}
