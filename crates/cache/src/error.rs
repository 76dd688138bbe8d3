//! Why a cache cannot be shared as wanted, and what to do.

use std::io;
use std::path::PathBuf;

/// Why a class could not be made, changed or read. `status` is what the kernel says of it in `info/last_cmd_status`.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// There is no resctrl at this path.
    #[error(
        "resctrl is not mounted at {path}; run `mount -t resctrl resctrl {path}`; if that fails, the kernel or the processor has none: \
         `sluice doctor` says which"
    )]
    NotMounted {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Cache ways cannot be given.
    #[error(
        "this host cannot give cache ways to classes ({why}); run NFs without cache classes, or on a host where `sluice doctor` finds CAT"
    )]
    NoWays {
        /// What is missing.
        why: &'static str,
    },
    /// There is nothing to count with.
    #[error(
        "this host does not count the use of its cache; leave the watch out, or choose a host where `sluice doctor` finds monitoring"
    )]
    NoMonitoring,
    /// A bandwidth was asked for, and none can be given.
    #[error("this host cannot limit memory bandwidth (MBA); leave the class's bandwidth out")]
    NoBandwidth,
    /// The bandwidth is none that can be given.
    #[error("a bandwidth of {asked} cannot be given; choose one from {least} to {most}")]
    Bandwidth {
        /// What was asked for.
        asked: u32,
        /// Smallest.
        least: u32,
        /// Greatest.
        most: u32,
    },
    /// The name cannot be a class's.
    #[error("\"{name}\" cannot be the name of a class; use up to 64 letters, digits, '.', '-' and '_', beginning with none of '.'")]
    Name {
        /// The name.
        name: String,
    },
    /// The name is taken.
    #[error("there is a class \"{name}\" already; choose another name or release it first")]
    Exists {
        /// The name.
        name: String,
    },
    /// There is no such class or watch.
    #[error("there is no cache class \"{name}\"; make it first")]
    Unknown {
        /// The name.
        name: String,
    },
    /// Somebody else has removed or changed a class.
    #[error(
        "the cache class \"{name}\" is not as it was made any more: another program has removed or changed it; try again without that"
    )]
    Taken {
        /// The name.
        name: String,
    },
    /// There is no such cache.
    #[error("there is no L3 cache {domain}; there are: {known}")]
    Domain {
        /// The id.
        domain: u32,
        /// Ids that there are.
        known: String,
    },
    /// No class can have this number of ways.
    #[error("a class of {asked} ways cannot be; choose {least} to {most}")]
    Ways {
        /// What was asked for.
        asked: u32,
        /// Fewest of a class.
        least: u32,
        /// Most that one class can have beside the root class.
        most: u32,
    },
    /// All ways are given away.
    #[error("no {asked} ways are free in L3 cache {domain} ({free} are); release or shrink a class, or ask for fewer")]
    NoRoom {
        /// The cache.
        domain: u32,
        /// What was asked for.
        asked: u32,
        /// Ways that a class could have.
        free: u32,
    },
    /// A group that is not ours has the ways.
    #[error(
        "the group {group} of {path}, which somebody else made, has the ways that are needed; narrow its schemata or remove it"
    )]
    Foreign {
        /// The group.
        group: String,
        /// Where resctrl is.
        path: PathBuf,
    },
    /// The hardware has no more classes.
    #[error(
        "the processor has no more classes (it has {classes} beside the root's; the kernel says: {status}); let NFs that need little cache \
         share a class, remove groups that nobody uses, or mount without cdp, which halves them"
    )]
    NoClass {
        /// How many there are.
        classes: u32,
        /// The kernel's words.
        status: String,
    },
    /// The hardware has no more monitoring ids.
    #[error(
        "the processor has no more monitoring ids (the kernel says: {status}); remove groups below mon_groups that nobody uses"
    )]
    NoMonitor {
        /// The kernel's words.
        status: String,
    },
    /// Monitoring ids are still in use by lines in the cache.
    #[error(
        "monitoring ids of groups that were removed still tag lines in the cache (the kernel says: {status}); try again in some seconds, or \
         raise info/L3_MON/max_threshold_occupancy"
    )]
    Limbo {
        /// The kernel's words.
        status: String,
    },
    /// The kernel refuses a line of schemata.
    #[error("the kernel refuses \"{line}\" for the group {group}: {status}; `sluice doctor` shows what masks it takes")]
    Refused {
        /// The group.
        group: String,
        /// What was written.
        line: String,
        /// The kernel's words, or its error if it says none.
        status: String,
    },
    /// What was read back is not what was written, and reaches into what others have.
    #[error(
        "L3 cache {domain} has mask {got:x} for the group {group} where {asked:x} was written, and ways of others are in it; leave ways {got:x} \
         to one class, or ask for fewer ways"
    )]
    Widened {
        /// The group.
        group: String,
        /// The cache.
        domain: u32,
        /// What was written.
        asked: u32,
        /// What was read back.
        got: u32,
    },
    /// Some threads were moved and others not.
    #[error("thread {task} cannot go to the group {group}: {status}; {} before it are there now", moved.len())]
    Task {
        /// The group.
        group: String,
        /// The first that was refused.
        task: u32,
        /// The kernel's words.
        status: String,
        /// Those that are there now.
        moved: Vec<u32>,
    },
    /// Processors were refused.
    #[error("processors {cpus} cannot be given to the group {group}: {status}; name only those that are online")]
    Cpus {
        /// The group.
        group: String,
        /// The list.
        cpus: String,
        /// The kernel's words.
        status: String,
    },
    /// Somebody else changes groups.
    #[error("another program holds the lock of {path}; try again")]
    Locked {
        /// Where resctrl is.
        path: PathBuf,
    },
    /// Another manager has the classes.
    #[error(
        "another sluiced that runs here has the cache classes of {path}: stop one of both, or write cache = \"none\" in [promises] of one"
    )]
    Claimed {
        /// Where resctrl is.
        path: PathBuf,
    },
    /// This user may not.
    #[error("not permitted to change {path}; run sluiced as root, and where it sees {path} writable")]
    NotPermitted {
        /// The file.
        path: PathBuf,
    },
    /// A file does not say what it should.
    #[error("{path} says \"{text}\", which is not understood; please report it with the kernel's version")]
    Strange {
        /// The file.
        path: PathBuf,
        /// What it says.
        text: String,
    },
    /// A trace was wanted, or a model, and it does not make sense.
    #[error("{what}; {cure}")]
    Model {
        /// What is wrong.
        what: String,
        /// What to do.
        cure: &'static str,
    },
    /// Another system call failed.
    #[error("cannot {doing} {path}: {source} (the kernel says: {status}); see that resctrl is still mounted")]
    System {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// The kernel's words.
        status: String,
        /// The system's answer.
        source: io::Error,
    },
}
