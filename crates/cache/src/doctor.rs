//! Diagnosis of a host's cache control: what is missing, and what to do.
//!
//! # Approach
//! [`examine`] only reads. [`try_out`] makes a class, reads it back, moves the calling thread in
//! and out, and releases the class. So it checks that this kernel and processor do what the
//! documentation says, and leaves everything as it was.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::buffers::{self, Queues};
use crate::control::{BandwidthUnit, CacheControl, ClassSpec, Origin, Shape};
use crate::error::CacheError;
use crate::host::{self, Processor};
use crate::resctrl::{PREFIX, Resctrl, TRIAL};

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Good,
    /// It does not exist, and Sluice does without.
    Missing,
    /// It exists and does not work as it should.
    Wrong,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub subject: String,
    pub level: Level,
    pub what: String,
    /// What to do, if anything.
    pub todo: Option<String>,
}

/// A finding of something that works.
pub fn good(subject: &str, what: impl Into<String>) -> Finding {
    Finding { subject: subject.into(), level: Level::Good, what: what.into(), todo: None }
}

/// A finding of something that does not exist, and what to do about it.
pub fn missing(subject: &str, what: impl Into<String>, todo: impl Into<String>) -> Finding {
    Finding { subject: subject.into(), level: Level::Missing, what: what.into(), todo: Some(todo.into()) }
}

/// A finding of something that does not work as it should, and what to do about it.
pub fn wrong(subject: &str, what: impl Into<String>, todo: impl Into<String>) -> Finding {
    Finding { level: Level::Wrong, ..missing(subject, what, todo) }
}

/// Examines the host with root directory `system`; resctrl is mounted at `mount`, or not.
pub fn examine(system: &Path, mount: &Path) -> Vec<Finding> {
    let processor = Processor::read(system);
    let mut found = vec![l3(system)];
    let guest = processor.has("hypervisor");
    found.push(flags(&processor, guest));
    let known = fs::read_to_string(system.join("proc/filesystems")).unwrap_or_default();
    let has_resctrl = known.lines().any(|line| line.trim().ends_with("resctrl"));
    let shape = match Resctrl::open(mount, system) {
        Ok(cache) => {
            found.extend(shape(cache.shape()));
            found.extend(others(mount));
            found.extend(left(system, mount));
            Some(cache.shape().clone())
        }
        Err(e @ CacheError::NotMounted { .. }) if has_resctrl => {
            found.push(missing("resctrl", "the kernel has it, and it is not mounted", e.to_string()));
            None
        }
        Err(CacheError::NotMounted { .. }) => {
            let todo = if guest {
                "run on the host itself, or on one that hands CAT to its guests; use simulated profiles here"
            } else {
                "use a kernel with CONFIG_X86_CPU_RESCTRL on a processor with CAT; use simulated profiles here"
            };
            found.push(missing("resctrl", "the kernel has none", todo));
            None
        }
        Err(e) => {
            found.push(wrong("resctrl", "it cannot be read", e.to_string()));
            None
        }
    };
    found.push(io_ways(system, shape.as_ref()));
    let origin = if shape.is_some_and(|shape| shape.ways > 0 && shape.classes > 0) { Origin::Resctrl } else { Origin::None };
    found.push(match origin {
        Origin::Resctrl => good("cache classes", "NFs can have cache of their own"),
        _ => missing(
            "cache classes",
            "NFs share the whole cache",
            "leave slack in promises to NFs that need much cache, or give them a host of their own",
        ),
    });
    found
}

fn l3(system: &Path) -> Finding {
    let caches = host::l3_caches(system);
    if caches.is_empty() {
        return missing("L3 cache", "the kernel describes none", "choose its size yourself for simulated profiles");
    }
    let one = |cache: &host::Cache| {
        let way = cache.bytes.checked_div(u64::from(cache.ways)).unwrap_or(0) >> 10;
        format!(
            "id {}: {} MiB in {} ways of {way} KiB, processors {}",
            cache.id,
            cache.bytes >> 20,
            cache.ways,
            crate::schemata::cpu_list(&cache.cpus)
        )
    };
    good("L3 cache", caches.iter().map(one).collect::<Vec<_>>().join("; "))
}

fn flags(processor: &Processor, guest: bool) -> Finding {
    let known = [("cat_l3", "CAT"), ("cdp_l3", "CDP"), ("mba", "MBA"), ("cqm_occup_llc", "CMT"), ("cqm_mbm_total", "MBM")];
    let has: Vec<&str> = known.iter().filter(|(flag, _)| processor.has(flag)).map(|(_, name)| *name).collect();
    let model = if processor.model.is_empty() { "the processor" } else { &processor.model };
    if has.contains(&"CAT") {
        return good("processor", format!("{model} has {}", has.join(", ")));
    }
    let what = if has.is_empty() {
        format!("{model} shows no cache control")
    } else {
        format!("{model} has {}, and no CAT", has.join(", "))
    };
    let todo = if guest {
        "this is a guest: its host may have it"
    } else {
        "see that no rdt= option of the kernel's command line turns it off"
    };
    missing("processor", what, todo)
}

fn shape(shape: &Shape) -> Vec<Finding> {
    let mut found = Vec::new();
    if shape.ways == 0 {
        found.push(missing("CAT", "resctrl gives no L3 ways", "see that no rdt=!l3cat is on the kernel's command line"));
    } else {
        let domains: Vec<String> = shape.domains.iter().map(|domain| domain.id.to_string()).collect();
        let gaps = if shape.sparse { "with gaps" } else { "without gaps" };
        let what = format!(
            "{} ways in masks {gaps}, {} at least, {} classes beside the root's; caches {}; devices share ways {:x}",
            shape.ways,
            shape.min_ways,
            shape.classes,
            domains.join(", "),
            shape.io_mask
        );
        found.push(if shape.classes == 0 {
            wrong("CAT", what, "no class is left to be made: mount without cdp")
        } else {
            good("CAT", what)
        });
    }
    if shape.code_and_data {
        found.push(wrong("CDP", "code and data have masks of their own, which halves the classes", "mount resctrl without -o cdp"));
    }
    found.push(match shape.bandwidth {
        Some(limits) => {
            let unit = match limits.unit {
                BandwidthUnit::Percent => "%",
                BandwidthUnit::MebibytesPerSecond => "MiB/s",
                BandwidthUnit::EighthGigabytesPerSecond => "eighths of a GB/s",
            };
            good("MBA", format!("from {} {unit} in steps of {}", limits.least, limits.step))
        }
        None => missing("MBA", "memory bandwidth cannot be limited", "leave slack where neighbours need much bandwidth"),
    });
    found.push(match (shape.occupancy, shape.traffic) {
        (true, true) => good("monitoring", "occupancy and traffic are counted"),
        (true, false) => good("monitoring", "occupancy is counted, traffic is not"),
        (false, true) => missing("monitoring", "traffic is counted, occupancy is not", "violators are found by traffic alone"),
        (false, false) => missing("monitoring", "nothing is counted", "evictions cannot be attributed to NFs here"),
    });
    found
}

/// Groups whose names have our prefix, or the others.
fn groups(mount: &Path, ours: bool) -> Vec<String> {
    let entries = fs::read_dir(mount).into_iter().flatten().flatten().filter(|entry| entry.path().join("schemata").is_file());
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<String> = names.filter(|name| name.starts_with(PREFIX) == ours).collect();
    found.sort_unstable();
    found
}

/// Groups left by a killed daemon or tool: no process runs that could have made them.
fn left(system: &Path, mount: &Path) -> Option<Finding> {
    let names = groups(mount, true);
    (!names.is_empty() && !is_sluice_running(system)).then(|| {
        let what = format!("a Sluice process that was killed has left: {}; the root class lacks their ways", names.join(", "));
        wrong(
            "classes that are left",
            what,
            "start sluiced, which removes them if it has [promises], or run the tool again that has left its own",
        )
    })
}

/// Whether a daemon, or a tool besides this process, is visible to this process.
fn is_sluice_running(system: &Path) -> bool {
    let own = std::process::id().to_string();
    let processes = fs::read_dir(system.join("proc")).into_iter().flatten().flatten();
    let others = processes.filter(|entry| entry.file_name().to_str().is_some_and(|name| name != own));
    let mut names = others.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    names.any(|name| matches!(name.trim(), "sluiced" | "sluice"))
}

/// Groups of other programs: their ways cannot be given away.
fn others(mount: &Path) -> Option<Finding> {
    let names = groups(mount, false);
    (!names.is_empty()).then(|| {
        let what = format!("other programs have made: {}", names.join(", "));
        wrong("groups", what, "their ways are not given to NFs: remove them if nobody uses them")
    })
}

fn io_ways(system: &Path, shape: Option<&Shape>) -> Finding {
    let io_mask = shape.map_or(0, |shape| shape.io_mask);
    match buffers::io_cache(system, None, io_mask) {
        Ok((cache, source)) => {
            let queues = Queues { queues: 1, packet_bytes: 1_518, extra_lines: buffers::EXTRA_LINES, stride: 0 };
            let frames = buffers::bound(cache, queues).map_or(0, |bound| bound.frames);
            let source = if source == buffers::Source::Register { "the processor says" } else { "resctrl says" };
            let what = format!(
                "{} of {} KiB ({source}): {frames} frames of 1,518 bytes for all receive queues",
                cache.ways,
                cache.way_bytes >> 10
            );
            good("I/O ways", what)
        }
        Err(e) => missing("I/O ways", "how much cache devices write into is not known", e.to_string()),
    }
}

/// Makes a class of the fewest ways, uses it, and releases it.
pub fn try_out(cache: &mut dyn CacheControl) -> Vec<Finding> {
    const SUBJECT: &str = "trial";
    let todo = "the rest was not tried";
    let mut found = Vec::new();
    let ways = cache.shape().min_ways.max(1);
    match cache.make(&ClassSpec::new(TRIAL, ways)) {
        Err(e) => return vec![wrong(SUBJECT, format!("a class of {ways} ways cannot be made"), e.to_string())],
        Ok(class) if class.widened => {
            let what = format!("a class of {ways} ways was made, and the hardware made it wider: {:x?}", class.masks);
            found.push(wrong(SUBJECT, what, "ask for as many ways as it gives"));
        }
        Ok(class) => found.push(good(SUBJECT, format!("a class of {ways} ways was made and read back: {:x?}", class.masks))),
    }
    let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0);
    match cache.assign_tasks(TRIAL, &[own]).and_then(|_| cache.assign_tasks("", &[own])) {
        Ok(_) => found.push(good(SUBJECT, "a thread went there and back")),
        Err(e) => found.push(wrong(SUBJECT, "a thread cannot be moved", format!("{e}; {todo}"))),
    }
    match cache.usage(TRIAL, None) {
        Ok(usage) => found.push(good(SUBJECT, format!("counters of {} caches were read", usage.len()))),
        Err(CacheError::NoMonitoring) => {}
        Err(e) => found.push(wrong(SUBJECT, "counters cannot be read", e.to_string())),
    }
    match cache.release(TRIAL) {
        Ok(()) => found.push(good(SUBJECT, "the class was released")),
        Err(e) => found.push(wrong(SUBJECT, "the class cannot be released", e.to_string())),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Geometry, Hierarchy};
    use crate::none::NoControl;
    use crate::simulated::Simulated;

    fn of<'f>(found: &'f [Finding], subject: &str) -> &'f Finding {
        found.iter().find(|finding| finding.subject == subject).unwrap()
    }

    #[test]
    fn without_resctrl_a_host_is_reported_with_what_to_do() {
        let root = host::tests::two_sockets();
        let found = examine(root.path(), &root.path().join("sys/fs/resctrl"));
        assert_eq!(of(&found, "processor").level, Level::Good);
        assert!(of(&found, "L3 cache").what.contains("id 2: 45 MiB in 20 ways of 2304 KiB, processors 2-3"));
        assert!(of(&found, "resctrl").todo.as_ref().unwrap().contains("CONFIG_X86_CPU_RESCTRL"));
        fs::write(root.path().join("proc/filesystems"), "nodev\tresctrl\n").unwrap();
        let found = examine(root.path(), &root.path().join("sys/fs/resctrl"));
        assert!(of(&found, "resctrl").todo.as_ref().unwrap().contains("mount -t resctrl"));
        assert!(of(&found, "I/O ways").todo.as_ref().unwrap().contains("modprobe msr"));
        assert_eq!(of(&found, "cache classes").level, Level::Missing);
        let nothing = examine(Path::new("/nowhere"), Path::new("/nowhere"));
        assert!(nothing.iter().all(|finding| finding.level == Level::Missing && finding.todo.is_some()), "{nothing:?}");
    }

    #[test]
    fn a_trial_leaves_nothing() {
        let hierarchy = Hierarchy { line: 64, l1: None, l2: None, llc: Geometry { sets: 16, ways: 8 } };
        let mut cache = Simulated::new(hierarchy, 0, 4).unwrap();
        let found = try_out(&mut cache);
        assert!(found.len() == 4 && found.iter().all(|finding| finding.level == Level::Good), "{found:?}");
        assert!(cache.classes().is_empty());
        assert_eq!(try_out(&mut NoControl::new(Path::new("/nowhere")))[0].level, Level::Wrong);
    }
}
