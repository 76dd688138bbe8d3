//! `sluice pack`.

use clap::Args;

use crate::usage::seconds;

/// Text of `sluice pack --help` below the options.
pub const HELP: &str = "\
Examples:
  sluice pack                           which NFs could share which cores, by what is measured now
  sluice pack --apply                   move them; packets flow on
  sluice pack --apply --every 10        and repeat every ten seconds, until Ctrl-C
  sluice pack --cores 2-5 --margin 20 --sensitive ids,lookup

An NF is moved as by `sluice nf move`: another instance on the new core takes its place; no packet is lost or
reordered, and its flow state starts anew. Foreign NFs, those that attach, and those with a flow of their own stay in place. Loads are
measured over half a second. LOAD is in cores: the larger of the demand of the NF's packets (including those refused at an entry, times
the cost of one) and the CPU time that it used, with wake-ups and switches. For an NF that polls, which is always busy, it is the demand
of its packets. With --every, NFs are moved only if a core is overloaded, or if one can be freed.";

#[derive(Debug, Args)]
pub struct PackArgs {
    /// Cores for NFs, such as 1,3 or 2-5; by default those of the services, without the manager's
    #[arg(long, value_name = "CORES", value_parser = core_list, value_delimiter = ',')]
    pub cores: Vec<std::ops::RangeInclusive<usize>>,
    /// Percent of each core to keep free
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    pub margin: f64,
    /// Services that are slow with cold caches: kept apart where that costs no core
    #[arg(long, value_name = "SERVICE", value_delimiter = ',')]
    pub sensitive: Vec<String>,
    /// Move NFs
    #[arg(long)]
    pub apply: bool,
    /// Repeat after this many seconds, without end
    #[arg(long, value_name = "SECONDS", requires = "apply", value_parser = seconds)]
    pub every: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn core_list(text: &str) -> Result<std::ops::RangeInclusive<usize>, String> {
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| format!("{text:?} is no core, such as 3 or 2-5"));
    match text.split_once('-') {
        None => number(text).map(|core| core..=core),
        Some((first, last)) => {
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last > 4096 { Err(format!("{text} is no range of cores, such as 2-5")) } else { Ok(first..=last) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_numbers_and_ranges() {
        assert_eq!(core_list("3"), Ok(3..=3));
        assert_eq!(core_list("2-5"), Ok(2..=5));
        for wrong in ["", "x", "5-2", "1-", "0-99999999"] {
            assert!(core_list(wrong).is_err(), "{wrong}");
        }
    }
}
