//! `sluice bench`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use serde_json::Value;

use crate::usage::seconds;

/// Text of `sluice bench --help` below the options.
pub const HELP: &str = "\
Examples:
  sluice bench                                         what there is
  sluice bench forward --json forward.json --repeats 5
  sluice bench chain --only default,sluice,ideal/other --svg chain.svg
  sluice bench pool-scale --only heavy --where nfs=1,900
  sluice bench chaos --seconds 600 --seed 7 --repeats 1
  sluice bench all --quick --report report
  sluice bench peers --with deploy/peers --json peers.json
  sluice bench compare before.json after.json --threshold 3";

/// Parameters of a variant, by name.
pub type Params = BTreeMap<String, Value>;

#[derive(Debug, Clone, PartialEq, Default, Args)]
pub struct BenchArgs {
    /// The experiment
    pub name: Option<String>,
    /// Two results, for compare
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// File for the result and its raw samples
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
    /// File for the plot; without it, --json puts the plot beside the result
    #[arg(long, value_name = "OUT")]
    pub svg: Option<PathBuf>,
    /// Run only variants whose name contains one of these parts, such as sluice/other,ideal (all:
    /// only these papers, such as nfvnice,resq, or experiments)
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Run only variants with one of these parameter values, such as nfs=45,900; repeatable
    #[arg(long = "where", value_name = "PARAM=VALUE,…")]
    pub given: Vec<Given>,
    /// Run only the first N of these
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub first: Option<u32>,
    /// Seconds that each repetition of a variant runs
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
    /// Repetitions of each variant
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Repeat only variants whose name contains one of these parts, or with one of these parameter
    /// values; repeatable, and a variant must fit all
    #[arg(long, value_name = "PART,…|PARAM=VALUE,…")]
    pub again: Vec<Repeated>,
    /// Seed of random choices: the same seed makes the same choices (chaos)
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Folder for results, plots and a page about the papers' claims (all)
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// File with what was measured of the host; it is measured and written if it is not there
    #[arg(long, value_name = "FILE", hide = true)]
    pub host_costs: Option<PathBuf>,
    /// Fewer variants and short runs (all)
    #[arg(long)]
    pub quick: bool,
    /// Folder with adapters of other data planes, a .toml each (peers)
    #[arg(long, value_name = "DIR")]
    pub with: Option<PathBuf>,
    /// Percent by which a median may differ without being worse or better (compare)
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0, value_parser = percent)]
    pub threshold: f64,
}

/// A parameter of variants, and the accepted values of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    key: String,
    values: Vec<String>,
}

impl FromStr for Given {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = text
            .split_once('=')
            .filter(|(key, values)| !key.is_empty() && !values.is_empty())
            .ok_or_else(|| format!("\"{text}\" is no parameter with values; it is written as nfs=900 or nfs=1,45,900"))?;
        Ok(Self { key: key.into(), values: values.split(',').map(str::to_string).collect() })
    }
}

impl Given {
    pub fn key(&self) -> &str {
        &self.key
    }

    fn admits(&self, params: &Params) -> bool {
        let Some(value) = params.get(&self.key) else { return true };
        self.values.iter().any(|wanted| match (value.as_f64(), wanted.parse::<f64>()) {
            (Some(value), Ok(wanted)) => value == wanted,
            _ => value.as_str().map_or_else(|| value.to_string(), str::to_string) == *wanted,
        })
    }
}

/// Which variants are repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repeated {
    /// By parts of names.
    Named(Vec<String>),
    Given(Given),
}

impl FromStr for Repeated {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('=') {
            return text.parse().map(Self::Given);
        }
        let parts: Vec<String> = text.split(',').map(str::to_string).collect();
        if parts.iter().any(String::is_empty) {
            return Err("a part of a name is empty; it is written as default,sluice or nfs=1,45".into());
        }
        Ok(Self::Named(parts))
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        Ok(_) => Err("must be between 0 and 100 percent".into()),
        Err(_) => Err("must be a number of percent, such as 3".into()),
    }
}

impl BenchArgs {
    /// Whether a variant of this name with these parameters is selected.
    pub fn asks_for(&self, variant: &str, params: &Params) -> bool {
        let is_named = self.only.is_empty() || self.only.iter().any(|part| variant.contains(part.as_str()));
        is_named && self.given.iter().all(|given| given.admits(params))
    }

    /// Whether a variant of this name with these parameters runs in repetitions after the first.
    pub fn runs_again(&self, variant: &str, params: &Params) -> bool {
        self.again.iter().all(|again| match again {
            Repeated::Named(parts) => parts.iter().any(|part| variant.contains(part.as_str())),
            Repeated::Given(given) => params.contains_key(given.key()) && given.admits(params),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_chosen_by_name_and_parameters() {
        let given = |text: &str| text.parse::<Given>().unwrap();
        let args = |given| BenchArgs { only: vec!["light".into()], given, ..BenchArgs::default() };
        let params = Params::from([("nfs".into(), 900.into()), ("load".into(), "half".into())]);
        let chosen = |given| args(given).asks_for("light-paced", &params);
        assert!(chosen(vec![]) && chosen(vec![given("nfs=1,900.0"), given("load=half"), given("offered=7")]));
        assert!(!chosen(vec![given("nfs=1,900"), given("load=full")]) && !chosen(vec![given("nfs=9")]));
        assert!(!args(vec![]).asks_for("heavy", &params));
        let again = |words: &[&str]| {
            let again = words.iter().map(|word| word.parse().unwrap()).collect();
            BenchArgs { again, ..BenchArgs::default() }.runs_again("light-paced", &params)
        };
        assert!(again(&[]) && again(&["heavy,light"]) && again(&["light", "nfs=900", "load=half,full"]));
        assert!(!again(&["heavy"]) && !again(&["light", "nfs=1"]) && !again(&["offered=7"]), "a parameter that it has not");
        assert!("light,".parse::<Repeated>().is_err() && "nfs=".parse::<Repeated>().is_err());
        assert!("nfs".parse::<Given>().is_err() && "=1".parse::<Given>().is_err() && "nfs=".parse::<Given>().is_err());
    }
}
