//! The folder of a report: of each experiment its result, its settings, its plot and its log.
//!
//! `NAME.settings` has three lines: the words of the command, what was built, and the version with
//! the day.

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use sluice_cli::lab::bench::BenchArgs;

use crate::bench::figures::Quick;
use crate::bench::host::{Cores, HostInfo};
use crate::bench::report::{LeftOut, Report};

/// How an experiment is run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSettings {
    pub seconds: f64,
    pub repeats: u32,
    pub seed: u64,
    pub only: Vec<String>,
    pub given: Vec<String>,
    pub again: Vec<String>,
}

impl RunSettings {
    pub fn of(args: &BenchArgs, quick: Option<&Quick>) -> Self {
        let seed = args.seed;
        let whole =
            || Self { seconds: args.seconds, repeats: args.repeats, seed, only: Vec::new(), given: Vec::new(), again: Vec::new() };
        quick.cloned().map_or_else(whole, |Quick { seconds, repeats, only, given, again, .. }| Self {
            seconds,
            repeats,
            seed,
            only,
            given,
            again,
        })
    }

    pub fn words(&self) -> Vec<String> {
        let mut words = vec!["--seconds".into(), self.seconds.to_string(), "--repeats".into(), self.repeats.to_string()];
        words.extend(["--seed".into(), self.seed.to_string()]);
        if !self.only.is_empty() {
            words.extend(["--only".into(), self.only.join(",")]);
        }
        for (option, values) in [("--where", &self.given), ("--again", &self.again)] {
            words.extend(values.iter().flat_map(|value| [option.into(), value.clone()]));
        }
        words
    }
}

/// What a result depends on besides its settings: the host, and the build.
#[derive(Debug, Clone, PartialEq)]
pub struct Measuring {
    pub host: HostInfo,
    /// Of the programs that are measured and that measure.
    pub build: u64,
    /// The version, and the day (UTC).
    pub provenance: String,
}

impl Measuring {
    /// On this host, with `sluiced` and the lab beside each other.
    ///
    /// # Errors
    /// A program cannot be read.
    pub fn here() -> anyhow::Result<Self> {
        let lab = std::env::current_exe().context("cannot find this program's own folder")?;
        // As it is found for each experiment; one that is not there is said by the experiment.
        let sluiced = lab.with_file_name("sluiced");
        let mut build = DefaultHasher::new();
        for program in [&lab, &sluiced] {
            if program.exists() {
                build.write(&std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?);
            }
        }
        let provenance = format!("Sluice {}, {}", env!("CARGO_PKG_VERSION"), day(SystemTime::now()));
        Ok(Self { host: HostInfo::read(&Cores::here()), build: build.finish(), provenance })
    }

    fn is_same_host(&self, had: &HostInfo) -> bool {
        (&had.cpu, had.cores, &had.kernel) == (&self.host.cpu, self.host.cores, &self.host.kernel)
    }
}

/// The day of a time in UTC, as in 2026-11-27.
fn day(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let day = i64::try_from(seconds).ok().and_then(|seconds| time::OffsetDateTime::from_unix_timestamp(seconds).ok());
    day.map_or_else(String::new, |day| format!("{:04}-{:02}-{:02}", day.year(), u8::from(day.month()), day.day()))
}

/// The folder of a report.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn file(&self, experiment: &str, extension: &str) -> PathBuf {
        self.0.join(experiment).with_extension(extension)
    }

    /// The result of an experiment, if it is there.
    pub fn result(&self, experiment: &str) -> Option<Report> {
        let text = std::fs::read_to_string(self.file(experiment, "json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// A line of what is written of how an experiment ran.
    fn line(&self, experiment: &str, number: usize) -> Option<String> {
        let text = std::fs::read_to_string(self.file(experiment, "settings")).ok()?;
        text.lines().nth(number).map(String::from)
    }

    /// The words of the command that an experiment was run with, if they are there.
    pub fn words(&self, experiment: &str) -> Option<String> {
        self.line(experiment, 0)
    }

    /// The version that was measured, and the day; empty if that is not there.
    pub fn provenance(&self, experiment: &str) -> String {
        self.line(experiment, 2).unwrap_or_default()
    }

    /// Writes how an experiment ran.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep_settings(&self, experiment: &str, settings: &RunSettings, measuring: &Measuring) -> anyhow::Result<()> {
        let Measuring { build, provenance, .. } = measuring;
        let words = settings.words().join(" ");
        write(&self.file(experiment, "settings"), &format!("{words}\nbuild {build:016x}\n{provenance}\n"))
    }

    /// Whether an experiment need not run: it ran with these settings on this host, with these
    /// programs, and nothing failed.
    pub fn is_done(&self, experiment: &str, settings: &RunSettings, measuring: &Measuring) -> bool {
        self.words(experiment).is_some_and(|words| words == settings.words().join(" "))
            && self.line(experiment, 1).is_some_and(|build| build == format!("build {:016x}", measuring.build))
            && self
                .result(experiment)
                .is_some_and(|report| measuring.is_same_host(&report.host) && !report.left_out.iter().any(LeftOut::has_failed))
    }
}

/// Writes a file.
///
/// # Errors
/// It cannot be written.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::tests::report;

    #[test]
    fn a_result_counts_with_its_settings_on_its_host() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Folder(folder.path().into());
        let mut report = report("chain", &[("sluice/other", &[1.0])]);
        let settings = RunSettings::of(&BenchArgs { seconds: 5.0, repeats: 3, seed: 1, ..BenchArgs::default() }, None);
        let here = Measuring { host: report.host.clone(), build: 7, provenance: "Sluice 1, 2026-11-27".into() };
        let keep = |report: &Report| {
            report.write(&folder.file("chain", "json")).unwrap();
            folder.keep_settings("chain", &settings, &here).unwrap();
        };
        assert!(!folder.is_done("chain", &settings, &here));
        assert_eq!((folder.words("chain"), folder.provenance("chain")), (None, String::new()));
        keep(&report);
        assert!(folder.is_done("chain", &settings, &here));
        assert_eq!(folder.words("chain").unwrap(), "--seconds 5 --repeats 3 --seed 1");
        assert_eq!(folder.provenance("chain"), "Sluice 1, 2026-11-27");
        assert!(!folder.is_done("chain", &RunSettings { seconds: 1.0, ..settings.clone() }, &here));
        let again = RunSettings { again: vec!["sluice".into(), "nfs=1,3".into()], ..settings.clone() };
        assert_eq!(again.words()[6..].join(" "), "--again sluice --again nfs=1,3");
        let host = HostInfo { kernel: "7".into(), ..here.host.clone() };
        assert!(!folder.is_done("chain", &settings, &Measuring { host, ..here.clone() }));
        assert!(!folder.is_done("chain", &settings, &Measuring { build: 8, ..here.clone() }), "other programs");
        let later = Measuring { provenance: "Sluice 1, 2026-11-28".into(), ..here.clone() };
        assert!(folder.is_done("chain", &settings, &later), "the day does not matter");
        let (name, params, why) = ("default/other".into(), Default::default(), "failed: broken".into());
        report.left_out.push(LeftOut { name, params, why });
        keep(&report);
        assert!(!folder.is_done("chain", &settings, &here), "what failed is tried again");
    }

    #[test]
    fn a_day_is_that_of_utc() {
        let at = |seconds| day(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        assert_eq!([at(0), at(1_709_164_799), at(1_709_164_800)], ["1970-01-01", "2024-02-28", "2024-02-29"]);
    }

    #[test]
    fn what_measures_has_an_identity() {
        let here = Measuring::here().unwrap();
        assert_ne!(here.build, DefaultHasher::new().finish(), "that of no program");
        assert!(here.provenance.starts_with(concat!("Sluice ", env!("CARGO_PKG_VERSION"), ", 20")), "{}", here.provenance);
    }
}
