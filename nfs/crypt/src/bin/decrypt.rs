//! Decrypts packets of `sluice-nf-encrypt`, with the key that each packet names.
//!
//! Packets that were changed on the way, and those that are not encrypted, are dropped and counted.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use sluice_nf_crypt::handlers::Decrypt;
use sluice_nf_crypt::keys::Keys;
use sluice_nf_parts::parse_args;
use sluice_nf_parts::reload::Reload;
use sluice_nf_parts::report::{ReportArgs, Reported};

/// Decrypts what sluice-nf-encrypt encrypted
///
/// SIGHUP reads the key file again.
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-decrypt", version)]
struct Args {
    /// Key file: a line `ID HEX` for each key, with 32 hexadecimal digits (AES-128) or 64 (AES-256)
    #[arg(long, value_name = "FILE")]
    keys: PathBuf,
    /// Let packets pass that are not encrypted
    #[arg(long)]
    pass_plain: bool,
    #[command(flatten)]
    report: ReportArgs,
}

fn main() -> ExitCode {
    let args: Args = parse_args();
    sluice_nf::run(|_| {
        let keys = Keys::read(&args.keys)?;
        let path = args.keys.clone();
        let fresh = Reload::on_hangup(move || Keys::read(&path))?;
        Ok(Reported::new(Decrypt::new(keys, args.pass_plain, Some(fresh)), &args.report)?)
    })
}
