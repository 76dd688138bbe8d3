//! `sluice slo` and `sluice plan` from the command line: no daemon, no root.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use sluice_planner::contention::Behaviour;
use sluice_planner::samples::{KINDS, OnServer, SampleKind, server};
use sluice_slo::placement::ServerShape;
use sluice_slo::profile::Profile;

/// A plan with servers of the samples' shape, and profiles of all their kinds.
struct Plan(tempfile::TempDir);

impl Plan {
    fn with(servers: usize) -> Self {
        let plan = Self(tempfile::tempdir().unwrap());
        plan.servers(servers);
        std::fs::create_dir(plan.path("profiles")).unwrap();
        for kind in KINDS.iter() {
            on(kind).profile(&server()).unwrap().save(&plan.profile(&kind.name)).unwrap();
        }
        plan
    }

    fn servers(&self, servers: usize) {
        let ServerShape { cpu, cores, llc_ways, way_bytes, ddio_ways, min_ways, classes, memory_mib, .. } = server();
        let one = |i| {
            format!(
                "[[server]]\nname = \"s{i}\"\ncpu = \"{cpu}\"\ncores = {cores}\nllc_ways = {llc_ways}\nway_bytes = {way_bytes}\n\
                 ddio_ways = {ddio_ways}\nmin_ways = {min_ways}\nclasses = {classes}\nmemory_mib = {memory_mib}\n"
            )
        };
        std::fs::write(self.path("servers.toml"), (0..servers).map(one).collect::<String>()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn profile(&self, name: &str) -> PathBuf {
        self.path("profiles").join(format!("{name}.json"))
    }

    /// A file outside of the plan with an SLO, of a multiple of an instance's rate with its fair
    /// share of the cache.
    fn slo(&self, name: &str, kind: &str, times: f64) -> String {
        let kind = KINDS.iter().find(|known| known.name == kind).unwrap();
        let fair = f64::from(server().ways()) / f64::from(server().cores);
        let (pps, us) = (on(kind).throughput_pps(fair) * times, on(kind).latency_us(fair, 0.9));
        let text = format!(
            "name = \"{name}\"\nworkload = {{ nf = \"{}\" }}\ntraffic = \"sample\"\n[promise.reserved]\nthroughput_pps = {pps:.0}.0\n\
             latency_us = {us}\n",
            kind.name
        );
        self.file(&format!("{name}.slo"), &text)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let folder = self.path("asked");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-lab"));
        command.args(args).env("SLUICE_PLAN", self.0.path()).env("SLUICE_CONTROL", self.path("nobody.sock"));
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Output of a command that fails and changes no byte and no file of the plan.
    fn fails(&self, code: i32, args: &[&str]) -> String {
        let before = self.bytes();
        let output = self.output(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert_eq!(self.bytes(), before, "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(&[args, &["--json"]].concat())).unwrap()
    }

    fn bytes(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        fn add(folder: &Path, to: &mut BTreeMap<PathBuf, Vec<u8>>) {
            for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
                match entry.file_type().unwrap().is_dir() {
                    true => add(&entry.path(), to),
                    false => drop(to.insert(entry.path(), std::fs::read(entry.path()).unwrap())),
                }
            }
        }
        let mut bytes = BTreeMap::new();
        add(self.0.path(), &mut bytes);
        bytes
    }
}

fn on(kind: &SampleKind) -> OnServer<'_> {
    OnServer { kind, way_bytes: server().way_bytes }
}

#[test]
fn slos_are_added_refused_shown_and_removed() {
    let plan = Plan::with(2);
    assert_eq!(plan.ok(&["slo", "list"]), "nothing is promised\n");
    let (nat, web, ids) = (plan.slo("nat", "nat-zipf", 2.0), plan.slo("web", "firewall", 1.0), plan.slo("ids", "ids", 1.5));

    let told = plan.ok(&["slo", "add", "--dry-run", &nat]);
    assert!(told.starts_with("would be added: nat, ") && !plan.path("placement.json").exists(), "{told}");
    let told = plan.ok(&["slo", "add", &nat]);
    assert!(told.starts_with("added: nat, ") && told.contains("(by a simulated profile)") && told.contains("\nnat.0 "), "{told}");
    let added = plan.json(&["slo", "add", &web, &ids]);
    assert_eq!(added["added"].as_array().unwrap().len(), 2, "{added}");
    assert_eq!(added["added"][0]["slo"]["name"], "web");
    assert_eq!(added["added"][1]["instances"][0]["cores"].as_array().unwrap().len(), 1, "{added}");

    // More than two servers have.
    let huge = plan.slo("huge", "redundancy", 30.0);
    let refused = plan.fails(1, &["slo", "add", &huge]);
    assert!(refused.contains("\"huge\" is refused: no room: ") && refused.contains("; this would fit: "), "{refused}");
    assert!(refused.ends_with("nothing was changed\n"), "{refused}");
    let output = plan.output(&["slo", "add", "--json", &huge]);
    let refused: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &refused["refused"][0]["name"]), (Some(1), &"huge".into()));
    // The offered SLO fits.
    let nearest = &refused["refused"][0]["nearest"]["reserved"];
    let text = format!(
        "{{\"name\": \"huge\", \"workload\": {{\"nf\": \"redundancy\"}}, \"traffic\": \"sample\", \"promise\": {{\"reserved\": {nearest}}}}}"
    );
    plan.ok(&["slo", "add", "--dry-run", &plan.file("nearest.json", &text)]);
    // One that does not fit rejects the other, too.
    plan.fails(1, &["slo", "add", &plan.slo("small", "firewall", 0.3), &huge]);
    assert!(plan.fails(1, &["slo", "add", &nat]).contains("an SLO named \"nat\" is there already"));

    let names = |plan: &Plan| -> Vec<String> {
        let list = plan.json(&["slo", "list"]);
        list.as_array().unwrap().iter().map(|slo| slo["slo"]["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&plan), ["nat", "web", "ids"]);
    let listed = plan.ok(&["slo", "list"]);
    assert!(listed.starts_with("NAME  WORKLOAD") && listed.lines().count() == 4, "{listed}");
    let shown = plan.ok(&["slo", "show", "ids"]);
    assert!(shown.contains("runs ids with configuration") && shown.contains("admitted by the profile on \"sample\""), "{shown}");

    let bars = plan.ok(&["plan", "show"]);
    assert!(bars.starts_with("s0: ") && bars.contains("\n  cores A") && bars.contains("DD\n"), "{bars}");
    assert!(!bars.contains('\x1b'), "no colour into a pipe");
    let svg = plan.path("asked/plan.svg");
    assert_eq!(plan.ok(&["plan", "show", "--svg", svg.to_str().unwrap()]), "");
    let picture = std::fs::read_to_string(svg).unwrap();
    assert!(picture.starts_with("<svg ") && picture.contains("DDIO") && picture.contains("nat ("), "{picture}");
    assert_eq!(plan.json(&["plan", "show"])["servers"].as_array().unwrap().len(), 2);

    assert!(plan.fails(1, &["slo", "remove", "web", "nobody"]).contains("no SLO is named \"nobody\""));
    assert!(plan.ok(&["slo", "remove", "nat"]).starts_with("removed nat: "));
    assert_eq!(names(&plan), ["web", "ids"]);
    assert!(!plan.ok(&["plan", "show"]).contains("nat"));
    plan.ok(&["slo", "add", &nat]);
}

#[test]
fn bad_input_is_reported_and_changes_nothing() {
    let plan = Plan::with(2);
    let nat = plan.slo("nat", "nat-zipf", 1.0);
    plan.ok(&["slo", "add", &plan.slo("web", "firewall", 1.0)]);
    let text = std::fs::read_to_string(&nat).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from));
        plan.file("changed.slo", &text.replace(from, to))
    };
    let said = |args: &[&str]| plan.fails(1, &[&["slo", "add"], args].concat());

    let quick: String =
        text.lines().map(|line| if line.starts_with("latency") { "latency_us = 0.1\n" } else { line }.to_owned() + "\n").collect();
    let impossible = said(&[&plan.file("quick.slo", &quick)]);
    assert!(impossible.contains("no load is low enough for 0.1 µs") && impossible.contains("this would fit: "), "{impossible}");
    assert!(said(&[&changed("throughput_pps = ", "throughput_pps = -")]).contains("above 0 and finite"));
    assert!(said(&[&changed("latency_us", "latency_ms")]).contains("is no SLO; `sluice slo --help` shows one: "));
    assert!(said(&[&changed("nat-zipf", "dpi")]).contains("no profile of \"dpi\""));
    assert!(said(&[&changed("\"sample\"", "\"1518 B\"")]).contains("the profile is of traffic \"sample\""));
    assert!(said(&["/nonexistent.slo"]).contains("cannot read /nonexistent.slo"));
    assert!(said(&["--binary", &format!("nat-zipf={nat}"), &nat]).contains("another binary of \"nat-zipf\""));
    plan.fails(2, &["slo", "add", "--binary", "nat", &nat]);
    plan.fails(2, &["slo", "add"]);

    let good = Profile::load(&plan.profile("nat-zipf")).unwrap();
    let with = |change: &dyn Fn(&mut Profile)| {
        let mut profile = good.clone();
        change(&mut profile);
        profile.save(&plan.profile("nat-zipf")).unwrap();
    };
    with(&|profile| profile.key.cpu = "another".into());
    assert!(said(&[&nat]).contains("made on \"another\" and the server has \"sample\": profile there"));
    with(&|profile| profile.throughput.points[1].y = 0.0);
    assert!(said(&[&nat]).contains("the throughput curve is not monotone"));
    std::fs::write(plan.profile("nat-zipf"), "{}").unwrap();
    assert!(said(&[&nat]).contains("nat-zipf.json: missing field"));
    with(&|_| {});

    let kept = std::fs::read(plan.path("placement.json")).unwrap();
    std::fs::write(plan.path("placement.json"), "{\"estimates\": 1}").unwrap();
    for args in [&["slo", "add", &nat][..], &["slo", "list"], &["plan", "show"], &["slo", "remove", "web"]] {
        let said = plan.fails(1, args);
        assert!(said.contains("is no placement of this program") && said.contains("move it away"), "{said}");
    }
    std::fs::write(plan.path("placement.json"), kept).unwrap();
    plan.servers(0);
    assert!(said(&[&nat]).contains("servers.toml describes no servers"));
    plan.servers(2);
    assert!(plan.fails(1, &["slo", "list", "--plan", "/nonexistent"]).contains("there is no plan in /nonexistent"));
    plan.ok(&["slo", "add", "--plan", plan.0.path().to_str().unwrap(), &nat]);
}

#[test]
fn commands_at_the_same_time_lose_nothing() {
    let plan = Plan::with(4);
    let names: Vec<String> = (0..8).map(|i| format!("slo{i}")).collect();
    let files: Vec<String> = names.iter().map(|name| plan.slo(name, "firewall", 0.5)).collect();
    let start = |file: &String| plan.command(&["slo", "add", file]).stdout(Stdio::null()).spawn().unwrap();
    let running: Vec<_> = files.iter().map(start).collect();
    for mut one in running {
        assert!(one.wait().unwrap().success());
    }
    let list = plan.json(&["slo", "list"]);
    let mut listed: Vec<&str> = list.as_array().unwrap().iter().map(|slo| slo["slo"]["name"].as_str().unwrap()).collect();
    listed.sort_unstable();
    assert_eq!(listed, names);
}

#[test]
fn the_optimiser_answers_or_says_that_it_is_not_there() {
    let plan = Plan::with(3);
    plan.ok(&["slo", "add", &plan.slo("nat", "nat-zipf", 2.0), &plan.slo("web", "firewall", 1.0)]);
    if sluice_planner::optimiser::IS_BUILT {
        let answer = plan.json(&["plan", "optimise", "--threshold", "0"]);
        assert_eq!(
            (&answer["servers_now"], &answer["gap"], &answer["applied"]),
            (&1.into(), &0.0.into(), &false.into()),
            "{answer}"
        );
        assert!(plan.ok(&["plan", "optimise", "--apply"]).contains("the placement stays as it is"));
    } else {
        let said = plan.fails(1, &["plan", "optimise", "--apply"]);
        assert!(said.contains("this build has no solver") && said.contains("--features optimiser"), "{said}");
    }
}
