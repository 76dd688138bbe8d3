//! How the operator runs.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// How to run.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Namespace of the lease.
    #[arg(long, env = "SLUICE_NAMESPACE", default_value = "sluice-system")]
    pub namespace: String,
    /// Name of the lease, by which one of several operators acts.
    #[arg(long, default_value = "sluice-operator")]
    pub lease: String,
    /// Time after which another operator takes over from one that is silent, in seconds.
    #[arg(long, default_value_t = 15, value_parser = lease_seconds)]
    pub lease_seconds: u32,
    /// Most requests to the API server at a time.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub requests: u32,
    /// Part of the nodes in use that can be saved at least, and no less than one node, before SLOs
    /// move for it; 0: none moves.
    #[arg(long, default_value_t = 0.1, value_parser = gap)]
    pub optimise_gap: f64,
    /// File that the operator writes every few seconds while it is at work, for `sluice-operator
    /// alive` and `ready`.
    #[arg(long, value_name = "FILE")]
    pub beat: Option<PathBuf>,
}

impl RunArgs {
    pub fn lease_time(&self) -> Duration {
        Duration::from_secs(self.lease_seconds.into())
    }

    /// Time limit of a request: one that was begun while the lease was held has ended before
    /// another operator has it.
    pub fn request_time(&self) -> Duration {
        (self.lease_time() / 3).min(LONGEST)
    }
}

/// Longest time for a request.
const LONGEST: Duration = Duration::from_secs(5);

/// Shorter ones would be lost whenever the API server is busy.
fn lease_seconds(text: &str) -> Result<u32, String> {
    let seconds = text.parse().ok().filter(|seconds| (3..=3600).contains(seconds));
    seconds.ok_or_else(|| {
        "write 3 to 3600 seconds: a request may take a third of it, and to renew the lease a sixth; 15 is right for most".into()
    })
}

fn gap(text: &str) -> Result<f64, String> {
    let gap = text.parse().ok().filter(|gap| (0.0..1.0).contains(gap));
    gap.ok_or_else(|| "write a part of the nodes in use, such as 0.1; 0 if no SLO is to move".into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        run: RunArgs,
    }

    #[test]
    fn a_request_fits_into_the_last_third_of_a_lease() {
        for seconds in ["3", "10", "15", "3600"] {
            let run = Cli::parse_from(["run", "--lease-seconds", seconds]).run;
            assert!(run.request_time() * 3 <= run.lease_time() && run.request_time() <= LONGEST, "{seconds}");
        }
        for seconds in ["0", "2", "3601", "-3", "x"] {
            let error = Cli::try_parse_from(["run".to_owned(), format!("--lease-seconds={seconds}")]).unwrap_err().to_string();
            assert!(error.contains("write 3 to 3600 seconds"), "{error}");
        }
    }

    #[test]
    fn a_gap_is_a_part() {
        let gap =
            |text: &str| Cli::try_parse_from(["run".to_owned(), format!("--optimise-gap={text}")]).map(|cli| cli.run.optimise_gap);
        assert_eq!((gap("0").unwrap(), gap("0.25").unwrap(), Cli::parse_from(["run"]).run.optimise_gap), (0.0, 0.25, 0.1));
        for text in ["1", "-0.1", "NaN", "10%"] {
            assert!(gap(text).unwrap_err().to_string().contains("write a part of the nodes in use"), "{text}");
        }
    }
}
