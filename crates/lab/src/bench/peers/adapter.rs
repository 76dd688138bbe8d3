//! Adapters of other data planes: how one is started, and what is read of its output.
//!
//! # Form
//! A `.toml` for each. `start` is a command with its arguments, and `files` are texts that lie in
//! the folder of a run when it starts. In both of them, and in `hop`, a run's values stand for
//! `{core}` (its first core), `{cores}` (all of them, with commas), `{core_mask}` (the same as a
//! hexadecimal number), `{seconds}`, `{packet_bytes}` (on the wire), `{frame_bytes}` (the same
//! without FCS), `{flows}`, `{chain_length}`, `{folder}` (that of the run) and `{hops}`: the text
//! `hop` once for each hop, with its number from 1 for `{hop}`.
//!
//! The rate is the first group of the last match of a regular expression in the output (`pattern`),
//! or a value of the output's last line of JSON (`pointer`, RFC 6901); times `unit`, it is packets
//! per second.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

/// Most hops of a chain.
const LONGEST: u32 = 64;
/// Most seconds that a run may take besides its measured time.
const MOST_PATIENCE_S: f64 = 600.0;
/// All that a run's values stand for, but `{hop}` and `{hops}`.
const PLACEHOLDERS: [&str; 9] =
    ["core", "cores", "core_mask", "seconds", "packet_bytes", "frame_bytes", "flows", "chain_length", "folder"];

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// Name of the peer in results.
    pub name: String,
    /// Programs that have to be there: names, which PATH leads to, or paths.
    pub programs: Vec<String>,
    /// The command, with placeholders.
    pub start: Vec<String>,
    /// Files of a run, by name, with placeholders.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Text of a hop.
    #[serde(default)]
    hop: String,
    pub chain_lengths: Vec<u32>,
    cores: PeerCores,
    rate: PeerRate,
    /// Seconds that a run may take besides its measured time, for start and end.
    #[serde(default = "patience_s")]
    pub patience_s: f64,
    /// What the two rates have in common, and what they do not.
    pub what_is_comparable: String,
}

/// Cores of a run: some, and some for each hop.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerCores {
    base: usize,
    #[serde(default)]
    per_hop: usize,
    /// Whether its NFs share a core.
    #[serde(default)]
    shared: bool,
}

/// Where the rate is in the output.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerRate {
    pattern: Option<String>,
    pointer: Option<String>,
    #[serde(default = "one")]
    unit: f64,
}

fn patience_s() -> f64 {
    30.0
}

fn one() -> f64 {
    1.0
}

/// What placeholders stand for in a run.
#[derive(Debug, Clone)]
pub struct RunValues<'a> {
    /// At least one.
    pub cores: &'a [usize],
    pub seconds: f64,
    /// On the wire.
    pub packet_bytes: u32,
    pub flows: u32,
    pub chain_length: u32,
    pub folder: &'a Path,
}

impl RunValues<'_> {
    fn of(&self, name: &str) -> Option<String> {
        Some(match name {
            "core" => self.cores.first()?.to_string(),
            "cores" => self.cores.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
            "core_mask" => {
                format!("{:x}", self.cores.iter().filter(|core| **core < 128).fold(0u128, |mask, core| mask | (1u128 << core)))
            }
            "seconds" => self.seconds.to_string(),
            "packet_bytes" => self.packet_bytes.to_string(),
            "frame_bytes" => self.packet_bytes.saturating_sub(4).to_string(),
            "flows" => self.flows.to_string(),
            "chain_length" => self.chain_length.to_string(),
            "folder" => self.folder.display().to_string(),
            _ => return None,
        })
    }
}

/// A text with what `value` has for its placeholders, which are lower-case words in braces.
///
/// # Errors
/// It has none for one.
fn expand(text: &str, value: impl Fn(&str) -> Option<String>) -> anyhow::Result<String> {
    let placeholder = Regex::new(r"\{([a-z_]+)\}")?;
    let (mut out, mut at) = (String::new(), 0);
    for found in placeholder.captures_iter(text) {
        let (Some(whole), Some(name)) = (found.get(0), found.get(1)) else { continue };
        let known = || [PLACEHOLDERS.as_slice(), &["hops", "hop"]].concat().join(", ");
        let value = value(name.as_str())
            .with_context(|| format!("{} is no placeholder here; there are {} (hop in `hop` alone)", whole.as_str(), known()))?;
        out.push_str(&text[at..whole.start()]);
        out.push_str(&value);
        at = whole.end();
    }
    out.push_str(&text[at..]);
    Ok(out)
}

impl Adapter {
    /// Reads an adapter and checks it.
    ///
    /// # Errors
    /// The file cannot be read, or is none.
    fn read(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("{} is no adapter", file.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let adapter: Self = toml::from_str(text)?;
        adapter.check()?;
        Ok(adapter)
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.name.is_empty() && !self.name.starts_with("sluice"), "`name` has to name the peer, and no variant of ours");
        ensure!(self.start.first().is_some_and(|program| !program.is_empty()), "`start` has to begin with a program");
        ensure!(!self.programs.is_empty(), "`programs` has to name what is started");
        let lengths = &self.chain_lengths;
        ensure!(
            !lengths.is_empty() && lengths.iter().all(|hops| (1..=LONGEST).contains(hops)),
            "`chain_lengths` has to have numbers of hops from 1 to {LONGEST}"
        );
        ensure!((1..=LONGEST as usize).contains(&self.cores.base), "`base` of `cores` has to be 1 at least");
        ensure!(self.cores.per_hop <= 1, "`per_hop` of `cores` is 0 or 1");
        ensure!(
            !self.cores.shared || (self.cores.base > 1 && self.cores.per_hop == 0),
            "NFs that share a core (`shared` of `cores`) have a `base` of 2 at least, and no `per_hop`"
        );
        ensure!(
            (0.0..=MOST_PATIENCE_S).contains(&self.patience_s),
            "`patience_s` has to be a number of seconds up to {MOST_PATIENCE_S}"
        );
        let is_plain = |name: &String| !name.is_empty() && !name.contains('/') && !name.starts_with('.');
        ensure!(self.files.keys().all(is_plain), "`files` have names without / that begin with no dot");
        self.rate.check()?;
        let values = RunValues { cores: &[0], seconds: 1.0, packet_bytes: 64, flows: 1, chain_length: 1, folder: Path::new("/") };
        self.command(&values)?;
        self.texts(&values).map(drop)
    }

    /// The first of its programs that is not there.
    pub fn missing(&self) -> Option<&str> {
        self.programs.iter().map(String::as_str).find(|program| !is_there(program))
    }

    /// Number of cores for a chain.
    pub fn cores(&self, chain_length: u32) -> usize {
        self.cores.base + self.cores.per_hop * chain_length as usize
    }

    /// Whether its NFs share a core.
    pub fn shares_core(&self) -> bool {
        self.cores.shared
    }

    /// The command of a run.
    ///
    /// # Errors
    /// There is no such placeholder.
    pub fn command(&self, values: &RunValues) -> anyhow::Result<Vec<String>> {
        self.start.iter().map(|word| self.filled(word, values)).collect()
    }

    /// Names and texts of a run's files.
    ///
    /// # Errors
    /// There is no such placeholder.
    pub fn texts(&self, values: &RunValues) -> anyhow::Result<Vec<(&str, String)>> {
        self.files.iter().map(|(name, text)| Ok((name.as_str(), self.filled(text, values)?))).collect()
    }

    fn filled(&self, text: &str, values: &RunValues) -> anyhow::Result<String> {
        let hop = |number: u32| expand(&self.hop, |name| if name == "hop" { Some(number.to_string()) } else { values.of(name) });
        let hops = (1..=values.chain_length).map(hop).collect::<anyhow::Result<String>>()?;
        expand(text, |name| if name == "hops" { Some(hops.clone()) } else { values.of(name) })
    }

    /// Packets per second, from the output of a run.
    ///
    /// # Errors
    /// They are not in it; the error says what was looked for.
    pub fn delivered_pps(&self, output: &str) -> anyhow::Result<f64> {
        let number = match (&self.rate.pattern, &self.rate.pointer) {
            (Some(pattern), _) => {
                let last = Regex::new(pattern)?.captures_iter(output).last();
                let last = last.with_context(|| format!("it prints no rate: nothing is as {pattern}"))?;
                let text = last.get(1).map_or("", |group| group.as_str());
                text.replace(',', "").parse::<f64>().with_context(|| format!("\"{text}\" is no rate"))?
            }
            (None, Some(pointer)) => {
                let json = output.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
                let json = json.or_else(|| serde_json::from_str(output).ok()).context("it prints no rate: no line is JSON")?;
                let value = json.pointer(pointer).and_then(Value::as_f64);
                value.with_context(|| format!("it prints no rate: there is no number at {pointer}"))?
            }
            (None, None) => bail!("its adapter does not say where the rate is"),
        };
        let pps = number * self.rate.unit;
        ensure!(pps.is_finite() && pps > 0.0, "it delivers nothing: its rate is {pps}");
        Ok(pps)
    }
}

impl PeerRate {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.unit.is_finite() && self.unit > 0.0, "`unit` of `rate` has to be greater than 0");
        match (&self.pattern, &self.pointer) {
            (Some(pattern), None) => {
                let groups = Regex::new(pattern).context("`pattern` of `rate` is no regular expression")?.captures_len();
                ensure!(groups > 1, "`pattern` of `rate` needs a group, in parentheses, for the number");
            }
            (None, Some(pointer)) => {
                ensure!(pointer.is_empty() || pointer.starts_with('/'), "`pointer` of `rate` has to begin with /");
            }
            _ => bail!("`rate` has either a `pattern` or a `pointer`"),
        }
        Ok(())
    }
}

/// Whether a program can be started.
fn is_there(program: &str) -> bool {
    let can_run = |path: &Path| std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    if program.contains('/') {
        return can_run(Path::new(program));
    }
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|folder| can_run(&folder.join(program))))
}

/// The adapters of a folder, by the names of their files.
///
/// # Errors
/// There are none, one of them is wrong, or two have one name.
pub fn read_all(folder: &Path) -> anyhow::Result<Vec<Adapter>> {
    let why = || format!("cannot read {}; --with takes a folder with an adapter (.toml) for each peer", folder.display());
    let entries = std::fs::read_dir(folder).with_context(why)?.collect::<Result<Vec<_>, _>>().with_context(why)?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    ensure!(!files.is_empty(), "there is no adapter (.toml) in {}; the sources have some in deploy/peers", folder.display());
    let adapters = files.iter().map(|file| Adapter::read(file)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut names = BTreeSet::new();
    if let Some(twice) = adapters.iter().find(|adapter| !names.insert(&adapter.name)) {
        bail!("two adapters in {} are named {}; give one of them another name", folder.display(), twice.name);
    }
    Ok(adapters)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An adapter of a shell script.
    pub fn shell(name: &str, script: &str) -> Adapter {
        let text = format!(
            "name = \"{name}\"\nprograms = [\"sh\"]\nstart = [\"sh\", \"-c\", {}]\nchain_lengths = [1, 3]\n\
             what_is_comparable = \"nothing\"\n[cores]\nbase = 1\n[rate]\npattern = 'rate ([0-9.e+]+)'\nunit = 1000.0\n",
            Value::from(script)
        );
        Adapter::parse(&text).unwrap()
    }

    fn values(cores: &[usize], chain_length: u32) -> RunValues<'_> {
        RunValues { cores, seconds: 2.5, packet_bytes: 64, flows: 16, chain_length, folder: Path::new("/run/x") }
    }

    #[test]
    fn placeholders_stand_for_a_runs_values() {
        let mut adapter = shell("x", "{core} {cores} {core_mask} {seconds} {packet_bytes} {frame_bytes} {flows} {chain_length}");
        adapter.hop = "-> h{hop} ".into();
        adapter.files.insert("conf".into(), "unix { nodaemon } in {folder}: {hops}; {}".into());
        assert_eq!(adapter.command(&values(&[0, 5], 2)).unwrap()[2], "0 0,5 21 2.5 64 60 16 2");
        let want = vec![("conf", "unix { nodaemon } in /run/x: -> h1 -> h2 ; {}".to_string())];
        assert_eq!(adapter.texts(&values(&[0], 2)).unwrap(), want);
        adapter.start[0] = "{hop}".into();
        assert!(adapter.command(&values(&[0], 1)).unwrap_err().to_string().starts_with("{hop} is no placeholder here"));
    }

    #[test]
    fn the_last_rate_counts() {
        let adapter = shell("x", "");
        assert_eq!(adapter.delivered_pps("rate 1\nrate 2.5\n").unwrap(), 2500.0);
        assert_eq!(adapter.delivered_pps("rate 1.2e+03").unwrap(), 1.2e6);
        let said = |output: &str| adapter.delivered_pps(output).unwrap_err().to_string();
        assert!(said("nothing").starts_with("it prints no rate: nothing is as rate ("));
        assert!(said("rate 0").starts_with("it delivers nothing") && said("rate e").starts_with("\"e\" is no rate"));
        let mut json = adapter.clone();
        json.rate = PeerRate { pattern: None, pointer: Some("/a/0".into()), unit: 1.0 };
        assert_eq!(json.delivered_pps("hello\n{\"a\": [7]}\n{\"a\": [8.5]}\nbye\n").unwrap(), 8.5);
        assert_eq!(json.delivered_pps("{\n\"a\": [9]\n}\n").unwrap(), 9.0, "all of it is JSON");
        assert!(json.delivered_pps("{\"b\": 1}").unwrap_err().to_string().contains("no number at /a/0"));
        assert!(json.delivered_pps("x").unwrap_err().to_string().contains("no line is JSON"));
    }

    #[test]
    fn what_is_wrong_is_said_before_anything_runs() {
        let good = "name = \"x\"\nprograms = [\"sh\"]\nstart = [\"sh\"]\nchain_lengths = [1]\nwhat_is_comparable = \"all\"\n\
                    [cores]\nbase = 1\n[rate]\npattern = 'a (\\d+)'\n";
        assert_eq!(Adapter::parse(good).unwrap().cores(3), 1);
        for (from, to, want) in [
            ("name = \"x\"", "name = \"sluice\"", "`name`"),
            ("start = [\"sh\"]", "start = []", "`start`"),
            ("start = [\"sh\"]", "start = [\"sh\", \"{nothing}\"]", "{nothing} is no placeholder"),
            ("[\"sh\"]\nstart", "[]\nstart", "`programs`"),
            ("chain_lengths = [1]", "chain_lengths = [0]", "`chain_lengths`"),
            ("base = 1", "base = 0", "`base`"),
            ("base = 1", "base = 1\nper_hop = 2", "`per_hop`"),
            ("base = 1", "base = 1\nshared = true", "`shared`"),
            ("base = 1", "base = 2\nper_hop = 1\nshared = true", "`shared`"),
            ("chain_lengths = [1]", "chain_lengths = [1]\npatience_s = -1.0", "`patience_s`"),
            ("chain_lengths = [1]", "chain_lengths = [1]\nfiles = { \"../x\" = \"\" }", "`files`"),
            ("(\\d+)", "\\d+", "needs a group"),
            ("(\\d+)", "(", "no regular expression"),
            ("pattern = ", "pointer = ", "has to begin with /"),
            ("pattern = 'a (\\d+)'", "unit = 1.0", "either a `pattern` or a `pointer`"),
            ("pattern = 'a (\\d+)'", "pattern = '(a)'\nunit = 0.0", "`unit`"),
            ("[rate]", "[rate]\nother = 1", "unknown field"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = format!("{:#}", Adapter::parse(&good.replace(from, to)).unwrap_err());
            assert!(error.contains(want), "{to}: {error}");
        }
    }

    #[test]
    fn a_folder_is_read_and_its_faults_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let said = || format!("{:#}", read_all(folder.path()).unwrap_err());
        assert!(said().starts_with("there is no adapter (.toml) in"), "{}", said());
        std::fs::write(folder.path().join("a.toml"), "name = 3").unwrap();
        assert!(said().contains("a.toml is no adapter"), "{}", said());
        assert!(format!("{:#}", read_all(Path::new("/nowhere")).unwrap_err()).contains("--with takes a folder"));
    }

    #[test]
    fn the_shipped_adapters_are_adapters() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let adapters = read_all(&root.join("deploy/peers")).unwrap();
        let names: Vec<&str> = adapters.iter().map(|adapter| adapter.name.as_str()).collect();
        assert_eq!(names, ["bess", "fastclick", "nfvnice", "opennetvm", "vpp"]);
        let sharing: Vec<bool> = adapters.iter().map(Adapter::shares_core).collect();
        assert_eq!(sharing, [false, false, true, false, false]);
        let folder = tempfile::tempdir().unwrap();
        for (adapter, hops) in adapters.iter().flat_map(|adapter| adapter.chain_lengths.iter().map(move |hops| (adapter, *hops))) {
            let command = adapter.command(&values(&[0, 1], hops)).unwrap();
            for (name, text) in adapter.texts(&values(&[0, 1], hops)).unwrap() {
                let file = folder.path().join(name);
                std::fs::write(&file, text).unwrap();
                // Its shell understands the script; nothing is run.
                if name == "run" {
                    let checked = std::process::Command::new(&command[0]).arg("-n").arg(&file).output().unwrap();
                    let said = String::from_utf8_lossy(&checked.stderr);
                    assert!(checked.status.success() && said.is_empty(), "{}: {said}", adapter.name);
                }
            }
        }
    }

    #[test]
    fn programs_are_looked_for() {
        assert_eq!(shell("x", "").missing(), None);
        let mut adapter = shell("x", "");
        adapter.programs = vec!["sh".into(), "sluice-no-such-program".into(), "/nowhere/x".into()];
        assert_eq!(adapter.missing(), Some("sluice-no-such-program"));
    }
}
