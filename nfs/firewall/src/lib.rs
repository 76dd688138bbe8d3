//! A packet filter: rules from a file, first match, optional connection tracking.
//!
//! The module `rules` describes the rule file, `firewall` the path of a packet, `connection` the
//! state of a connection.

mod connection;
mod firewall;
mod rules;

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::Parser;
use sluice_nf::{Context, Handler};
use sluice_nf_parts::lines::{self, FileError};
use sluice_nf_parts::reload::Reload;
use sluice_nf_parts::report::{ReportArgs, Reported};

use firewall::Firewall;
use rules::Rules;

/// Allows and denies packets by a rule file, with connection tracking
///
/// SIGHUP reads the rule file again; connections that the new rules deny end then.
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-firewall", version, after_help = HELP)]
struct Args {
    /// Rule file
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
    /// Most connections to remember
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    connections: u32,
    #[command(flatten)]
    report: ReportArgs,
}

const HELP: &str = "\
Rule file, a line each; the first rule that matches decides:
  stateful                                 # answers pass
  default deny                             # what no rule matches
  non-ip allow                             # ARP and the like
  timeout tcp 3600                         # seconds; also udp, other
  allow tcp from 10.0.0.0/8 to any port 80,443,8000-8080
  allow udp from 10.0.0.0/8 to 192.0.2.53 port 53
  allow icmp
  deny any from 2001:db8::/32";

fn read(path: &Path, context: &Context) -> Result<Rules, FileError> {
    lines::read(path, |text| Rules::parse(text, &|name| context.port(name)))
}

fn make(args: Args, context: &Context) -> Result<impl Handler + use<>, Box<dyn Error>> {
    let rules = read(&args.rules, context)?;
    let (path, context) = (args.rules.clone(), context.clone());
    let fresh = Reload::on_hangup(move || read(&path, &context))?;
    Ok(Reported::new(Firewall::new(rules, args.connections as usize, Some(fresh)), &args.report)?)
}

sluice_nf_parts::nf!(Args, make);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_help_is_a_rule_file() {
        let (_, example) = HELP.split_once('\n').unwrap();
        let rules = Rules::parse(example, &|_| None).unwrap();
        assert_eq!((rules.rules.len(), rules.stateful), (4, true));
    }
}
