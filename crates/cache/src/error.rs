//! Errors of cache control, each with what to do.

use std::io;
use std::path::PathBuf;

/// Why a class could not be made, changed or read. `status` is the kernel's text in
/// `info/last_cmd_status`.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error(
        "resctrl is not mounted at {path}; run `mount -t resctrl resctrl {path}`; if that fails, the kernel or the processor has none: \
         `sluice doctor` says which"
    )]
    NotMounted {
        /// Where it should be mounted.
        path: PathBuf,
    },
    #[error(
        "this host cannot give cache ways to classes ({why}); run NFs without cache classes, or on a host where `sluice doctor` finds CAT"
    )]
    NoWays { why: &'static str },
    #[error(
        "this host does not count the use of its cache; leave the watch out, or choose a host where `sluice doctor` finds monitoring"
    )]
    NoMonitoring,
    #[error("this host cannot limit memory bandwidth (MBA); leave the class's bandwidth out")]
    NoBandwidth,
    #[error("a bandwidth of {asked} cannot be given; choose one from {least} to {most}")]
    Bandwidth { asked: u32, least: u32, most: u32 },
    #[error("\"{name}\" cannot be the name of a class; use up to 64 letters, digits, '.', '-' and '_', beginning with none of '.'")]
    Name { name: String },
    #[error("there is a class \"{name}\" already; choose another name or release it first")]
    Exists { name: String },
    /// There is no such class or watch.
    #[error("there is no cache class \"{name}\"; make it first")]
    Unknown { name: String },
    #[error(
        "the cache class \"{name}\" is not as it was made any more: another program has removed or changed it; try again without that"
    )]
    Taken { name: String },
    #[error("there is no L3 cache {domain}; there are: {known}")]
    Domain {
        domain: u32,
        /// The existing ids.
        known: String,
    },
    #[error("a class of {asked} ways cannot be; choose {least} to {most}")]
    Ways {
        asked: u32,
        least: u32,
        /// Most ways of one class beside the root class.
        most: u32,
    },
    #[error("no {asked} ways are free in L3 cache {domain} ({free} are); release or shrink a class, or ask for fewer")]
    NoRoom {
        domain: u32,
        asked: u32,
        /// Ways that a class could have.
        free: u32,
    },
    #[error(
        "the group {group} of {path}, which somebody else made, has the ways that are needed; narrow its schemata or remove it"
    )]
    Foreign { group: String, path: PathBuf },
    #[error(
        "the processor has no more classes (it has {classes} beside the root's; the kernel says: {status}); let NFs that need little cache \
         share a class, remove groups that nobody uses, or mount without cdp, which halves them"
    )]
    NoClass { classes: u32, status: String },
    #[error(
        "the processor has no more monitoring ids (the kernel says: {status}); remove groups below mon_groups that nobody uses"
    )]
    NoMonitor { status: String },
    #[error(
        "monitoring ids of groups that were removed still tag lines in the cache (the kernel says: {status}); try again in some seconds, or \
         raise info/L3_MON/max_threshold_occupancy"
    )]
    Limbo { status: String },
    #[error("the kernel refuses \"{line}\" for the group {group}: {status}; `sluice doctor` shows what masks it takes")]
    Refused {
        group: String,
        /// What was written.
        line: String,
        /// The kernel's text, or its error if there is none.
        status: String,
    },
    /// The mask read back differs from the written one, and has ways of other classes.
    #[error(
        "L3 cache {domain} has mask {got:x} for the group {group} where {asked:x} was written, and ways of others are in it; leave ways {got:x} \
         to one class, or ask for fewer ways"
    )]
    Widened {
        group: String,
        domain: u32,
        /// The written mask.
        asked: u32,
        /// The mask read back.
        got: u32,
    },
    /// Some threads were moved and others not.
    #[error("thread {task} cannot go to the group {group}: {status}; {} before it are there now", moved.len())]
    Task {
        group: String,
        task: u32,
        status: String,
        /// Threads that were moved.
        moved: Vec<u32>,
    },
    #[error("processors {cpus} cannot be given to the group {group}: {status}; name only those that are online")]
    Cpus { group: String, cpus: String, status: String },
    #[error("another program holds the lock of {path}; try again")]
    Locked { path: PathBuf },
    #[error(
        "another sluiced that runs here has the cache classes of {path}: stop one of both, or write cache = \"none\" in [promises] of one"
    )]
    Claimed { path: PathBuf },
    #[error("not permitted to change {path}; run sluiced as root, and where it sees {path} writable")]
    NotPermitted { path: PathBuf },
    #[error("{path} says \"{text}\", which is not understood; please report it with the kernel's version")]
    Strange { path: PathBuf, text: String },
    /// A trace or a model is invalid.
    #[error("{what}; {cure}")]
    Model { what: String, cure: &'static str },
    #[error("cannot {doing} {path}: {source} (the kernel says: {status}); see that resctrl is still mounted")]
    System { doing: &'static str, path: PathBuf, status: String, source: io::Error },
}
