//! The folder of a report: of each experiment its result, its settings, its plot and its log.

use std::path::{Path, PathBuf};

use anyhow::Context;
use sluice_cli::lab::bench::BenchArgs;

use super::figures::Quick;
use crate::bench::host::HostInfo;
use crate::bench::report::Report;

/// How an experiment is run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSettings {
    pub seconds: f64,
    pub repeats: u32,
    pub seed: u64,
    pub only: Vec<String>,
    pub given: Vec<String>,
}

impl RunSettings {
    pub fn of(args: &BenchArgs, quick: Option<&Quick>) -> Self {
        let (seed, whole) = (args.seed, (args.seconds, args.repeats, Vec::new(), Vec::new()));
        let of_quick = |quick: &Quick| (quick.seconds, quick.repeats, quick.only.clone(), quick.given.clone());
        let (seconds, repeats, only, given) = quick.map_or(whole, of_quick);
        Self { seconds, repeats, seed, only, given }
    }

    pub fn words(&self) -> Vec<String> {
        let mut words = vec!["--seconds".into(), self.seconds.to_string(), "--repeats".into(), self.repeats.to_string()];
        words.extend(["--seed".into(), self.seed.to_string()]);
        if !self.only.is_empty() {
            words.extend(["--only".into(), self.only.join(",")]);
        }
        words.extend(self.given.iter().flat_map(|given| ["--where".into(), given.clone()]));
        words
    }
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

    /// Whether an experiment need not run: it ran with these settings on this host, and nothing
    /// failed.
    pub fn is_done(&self, experiment: &str, settings: &RunSettings, host: &HostInfo) -> bool {
        let words = std::fs::read_to_string(self.file(experiment, "settings")).unwrap_or_default();
        let same_host = |had: &HostInfo| (&had.cpu, had.cores, &had.kernel) == (&host.cpu, host.cores, &host.kernel);
        words == settings.words().join(" ")
            && self.result(experiment).is_some_and(|report| {
                same_host(&report.host) && !report.left_out.iter().any(|left| left.why.starts_with("failed: "))
            })
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
    use crate::bench::all::figures::tests::report;
    use crate::bench::report::LeftOut;

    #[test]
    fn a_result_counts_with_its_settings_on_its_host() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Folder(folder.path().into());
        let mut report = report("chain", &[("sluice/other", &[1.0])]);
        let (settings, host) =
            (RunSettings::of(&BenchArgs { seconds: 5.0, repeats: 3, ..BenchArgs::default() }, None), report.host.clone());
        let keep = |report: &Report| {
            report.write(&folder.file("chain", "json")).unwrap();
            write(&folder.file("chain", "settings"), &settings.words().join(" ")).unwrap();
        };
        assert!(!folder.is_done("chain", &settings, &host));
        keep(&report);
        assert!(folder.is_done("chain", &settings, &host));
        assert!(!folder.is_done("chain", &RunSettings { seconds: 1.0, ..settings.clone() }, &host));
        assert!(!folder.is_done("chain", &settings, &HostInfo { kernel: "7".into(), ..host.clone() }));
        let (name, params, why) = ("default/other".into(), Default::default(), "failed: broken".into());
        report.left_out.push(LeftOut { name, params, why });
        keep(&report);
        assert!(!folder.is_done("chain", &settings, &host), "what failed is tried again");
    }
}
