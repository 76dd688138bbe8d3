//! The caches of this host's processor.
//!
//! # Approach
//! The kernel describes caches in `/sys/devices/system/cpu/cpu*/cache` and features in
//! `/proc/cpuinfo`. No file has the number of ways that devices write into (DDIO). Intel's server
//! processors have it in a register (MSR 0xC8B, `IIO_LLC_WAYS`), as a mask of ways. It is read and
//! never written: since Ice Lake, a write was seen to have no effect.
//!
//! # Limits
//! A guest sees what its host shows: often the whole cache, and no such register. The register
//! needs root, the `msr` module, and an Intel server; elsewhere the error of `ddio_mask` says what
//! is missing, and the user has to give the number of ways.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::control::Domain;
use crate::schemata::parse_cpu_list;

const IIO_LLC_WAYS: u64 = 0xc8b;

/// A cache, as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// Its id, as in resctrl.
    pub id: u32,
    pub level: u32,
    /// Whether it holds data.
    pub data: bool,
    pub bytes: u64,
    pub ways: u32,
    /// Bytes of a line.
    pub line: u32,
    /// Processors that share it.
    pub cpus: Vec<u32>,
}

impl Cache {
    pub fn domain(self) -> Domain {
        let way_bytes = (self.ways > 0).then(|| self.bytes / u64::from(self.ways));
        Domain { id: self.id, cpus: self.cpus, way_bytes }
    }
}

fn number(path: PathBuf) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let unit = match text.bytes().last()? {
        b'K' => 1 << 10,
        b'M' => 1 << 20,
        b'G' => 1 << 30,
        _ => 1,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// All caches of the host with root directory `system`, by level and id. Empty if the kernel does
/// not describe them.
pub fn caches(system: &Path) -> Vec<Cache> {
    let mut found: BTreeMap<(u32, u32, bool), Cache> = BTreeMap::new();
    let cpus = fs::read_dir(system.join("sys/devices/system/cpu")).into_iter().flatten().flatten();
    let is_cpu = |name: &str| name.strip_prefix("cpu").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    for cpu in cpus.filter(|entry| entry.file_name().to_str().is_some_and(is_cpu)) {
        for index in fs::read_dir(cpu.path().join("cache")).into_iter().flatten().flatten() {
            let path = index.path();
            let field = |name: &str| number(path.join(name)).and_then(|value| u32::try_from(value).ok());
            let (Some(level), Some(bytes)) = (field("level"), number(path.join("size"))) else { continue };
            let shared = fs::read_to_string(path.join("shared_cpu_list")).unwrap_or_default();
            let cpus = parse_cpu_list(&shared).unwrap_or_default();
            // Kernels without ids have one L3 for each set of processors.
            let id = field("id").or_else(|| cpus.first().copied()).unwrap_or(0);
            let data = fs::read_to_string(path.join("type")).is_ok_and(|kind| kind.trim() != "Instruction");
            let (ways, line) = (field("ways_of_associativity").unwrap_or(0), field("coherency_line_size").unwrap_or(64));
            found.entry((level, id, data)).or_insert(Cache { id, level, data, bytes, ways, line, cpus });
        }
    }
    found.into_values().collect()
}

/// The L3 caches, by id.
pub fn l3_caches(system: &Path) -> Vec<Cache> {
    caches(system).into_iter().filter(|cache| cache.level == 3).collect()
}

/// Contents of `/proc/cpuinfo`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Processor {
    /// Its maker, such as `GenuineIntel`.
    pub vendor: String,
    pub model: String,
    pub flags: BTreeSet<String>,
}

impl Processor {
    /// Reads it below `system`; empty if unreadable.
    pub fn read(system: &Path) -> Self {
        let text = fs::read_to_string(system.join("proc/cpuinfo")).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_string()).unwrap_or_default()
        };
        let flags = field("flags").split_whitespace().map(String::from).collect();
        Self { vendor: field("vendor_id"), model: field("model name"), flags }
    }

    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains(flag)
    }
}

/// Why the DDIO mask is unknown.
#[derive(Debug, thiserror::Error)]
pub enum DdioError {
    /// Only Intel's processors have it.
    #[error("{0} processors do not say which ways devices write into; give their number yourself (io_ways)")]
    Vendor(String),
    #[error("{path} is not there; run `modprobe msr`, or give the number of I/O ways yourself (io_ways)")]
    NoModule { path: PathBuf },
    #[error("not permitted to read {path}; run as root, or give the number of I/O ways yourself (io_ways)")]
    NotPermitted { path: PathBuf },
    #[error(
        "the processor does not report the ways that devices write into ({0}; a guest never learns them); give their number yourself (io_ways)"
    )]
    NoRegister(io::Error),
    #[error(
        "the processor says {0:#x} for the ways that devices write into, which is no mask; give their number yourself (io_ways)"
    )]
    Strange(u64),
}

/// The mask of the ways that devices write into, on the socket of processor `cpu`. Reads a register
/// and changes nothing.
///
/// # Errors
/// It cannot be read; each error says what to do.
pub(crate) fn ddio_mask(system: &Path, cpu: u32) -> Result<u32, DdioError> {
    let processor = Processor::read(system);
    if processor.vendor != "GenuineIntel" {
        let vendor = if processor.vendor.is_empty() { "these".into() } else { processor.vendor };
        return Err(DdioError::Vendor(vendor));
    }
    let path = system.join(format!("dev/cpu/{cpu}/msr"));
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(DdioError::NotPermitted { path }),
        Err(_) => return Err(DdioError::NoModule { path }),
    };
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, IIO_LLC_WAYS).map_err(DdioError::NoRegister)?;
    let value = u64::from_le_bytes(bytes);
    match u32::try_from(value) {
        Ok(mask) if mask != 0 && mask.count_ones() <= 20 => Ok(mask),
        _ => Err(DdioError::Strange(value)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A root directory with two sockets whose caches have ids 0 and 2.
    pub(crate) fn two_sockets() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for cpu in 0..4u32 {
            for (index, level, kind, size, ways) in
                [(0, 1, "Data", "32K", 8), (1, 2, "Unified", "256K", 8), (3, 3, "Unified", "46080K", 20)]
            {
                let folder = root.path().join(format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}"));
                fs::create_dir_all(&folder).unwrap();
                let socket = cpu / 2;
                let (id, list) =
                    if level == 3 { (socket * 2, format!("{}-{}", socket * 2, socket * 2 + 1)) } else { (cpu, cpu.to_string()) };
                let fields = [
                    ("level", level.to_string()),
                    ("id", id.to_string()),
                    ("type", kind.into()),
                    ("size", size.into()),
                    ("ways_of_associativity", ways.to_string()),
                    ("coherency_line_size", "64".into()),
                    ("shared_cpu_list", list),
                ];
                for (name, text) in fields {
                    fs::write(folder.join(name), format!("{text}\n")).unwrap();
                }
            }
        }
        fs::create_dir_all(root.path().join("proc")).unwrap();
        let cpuinfo = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Example\nflags\t\t: fpu cat_l3 cqm_occup_llc\n";
        fs::write(root.path().join("proc/cpuinfo"), cpuinfo).unwrap();
        root
    }

    #[test]
    fn caches_are_found_once_each() {
        let root = two_sockets();
        let l3 = l3_caches(root.path());
        assert_eq!(l3.iter().map(|cache| (cache.id, cache.cpus.clone())).collect::<Vec<_>>(), [(0, vec![0, 1]), (2, vec![2, 3])]);
        assert_eq!((l3[0].bytes, l3[0].ways), (45 << 20, 20));
        assert_eq!(l3[0].clone().domain().way_bytes, Some((45 << 20) / 20));
        assert_eq!(caches(root.path()).len(), 10);
        assert!(caches(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn the_register_is_read_and_its_absence_reported() {
        let root = two_sockets();
        assert!(Processor::read(root.path()).has("cat_l3"));
        assert!(ddio_mask(root.path(), 0).unwrap_err().to_string().contains("modprobe msr"));
        let file = root.path().join("dev/cpu/0/msr");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut registers = vec![0; 0xc8b];
        fs::write(&file, &registers).unwrap();
        assert!(matches!(ddio_mask(root.path(), 0), Err(DdioError::NoRegister(_))));
        registers.extend(0xc_0000u64.to_le_bytes());
        fs::write(&file, &registers).unwrap();
        assert_eq!(ddio_mask(root.path(), 0).unwrap(), 0xc_0000);
        fs::write(root.path().join("proc/cpuinfo"), "vendor_id : AuthenticAMD\n").unwrap();
        assert!(ddio_mask(root.path(), 0).unwrap_err().to_string().starts_with("AuthenticAMD"));
    }
}
