//! The mounts of cgroup hierarchies, and the cgroup of a process.
//!
//! The cpu controller belongs to one hierarchy at a time: that of version 1 with its mount option,
//! or else that of version 2, if its top lists it. A mount may show only a part of the hierarchy
//! (containers). The path of a process's cgroup is from the hierarchy's top, so the mount's root is
//! cut off.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use super::kernel::{Kernel, PROCS};
use super::{CgroupError, Version};

/// A cgroup file system in mountinfo.
#[derive(Debug, PartialEq)]
struct Mount {
    version: Version,
    /// The visible part of the hierarchy, from its top.
    root: PathBuf,
    point: PathBuf,
}

/// The version, the cgroup of a process ("self" or a pid), and the topmost mounted folder, if any.
pub(super) fn find(kernel: &dyn Kernel, root: &Path, process: &str) -> Result<Option<(Version, PathBuf, PathBuf)>, CgroupError> {
    let proc = root.join("proc");
    let system = |doing, path: &Path, source| CgroupError::System { doing, path: path.into(), source };
    let read = |path: &Path| kernel.read(path).map_err(|source| system("read", path, source));
    let mountinfo = read(&proc.join("self/mountinfo"))?;
    let place = |mount: &Mount| root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
    let has_cpu = |mount: &Mount| match mount.version {
        Version::V1 => kernel.read(&place(mount).join(PROCS)).is_ok(),
        Version::V2 => {
            let controllers = kernel.read(&place(mount).join("cgroup.controllers"));
            controllers.is_ok_and(|text| text.split_whitespace().any(|word| word == "cpu"))
        }
    };
    // A later mount hides an earlier one.
    let mounts: Vec<Mount> = mountinfo.lines().filter_map(parse_mount).filter(has_cpu).collect();
    let of = |version| mounts.iter().rev().find(|mount| mount.version == version);
    let Some(mount) = of(Version::V1).or_else(|| of(Version::V2)) else { return Ok(None) };

    let file = proc.join(process).join("cgroup");
    let cgroups = read(&file)?;
    let path = cgroups.lines().find_map(|line| parse_member(line, mount.version));
    let path = path.ok_or_else(|| {
        let text = format!("no line for {}", mount.version);
        system("find the cpu controller in", &file, io::Error::new(io::ErrorKind::InvalidData, text))
    })?;
    let top = place(mount);
    // A process outside of the mounted part counts as being at its top.
    let inside = path.strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let is_plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
    let folder = Some(top.join(inside)).filter(|folder| is_plain && kernel.read(&folder.join(PROCS)).is_ok());
    // Joining an empty path would add a trailing slash.
    Ok(Some((mount.version, folder.map_or_else(|| top.clone(), |folder| folder.components().collect()), top)))
}

/// The cgroup of a process ("self" or a pid) in version 2, or in version 1's hierarchy of a
/// controller.
///
/// None if there is no such hierarchy, or it does not show that cgroup.
pub(crate) fn folder_of(root: &Path, version: Version, controller: &str, process: &str) -> io::Result<Option<PathBuf>> {
    let proc = root.join("proc");
    let mountinfo = std::fs::read_to_string(proc.join("self/mountinfo"))?;
    let cgroups = std::fs::read_to_string(proc.join(process).join("cgroup"))?;
    let mount = mountinfo.lines().rev().filter_map(|line| parse_mount_of(line, controller)).find(|mount| mount.version == version);
    let path = cgroups.lines().find_map(|line| parse_member_of(line, version, controller));
    let (Some(mount), Some(path)) = (mount, path) else { return Ok(None) };
    let Ok(inside) = path.strip_prefix(&mount.root) else { return Ok(None) };
    if !inside.components().all(|part| matches!(part, Component::Normal(_))) {
        return Ok(None);
    }
    let point = root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
    Ok(Some(point.join(inside).components().collect()))
}

/// This process's cgroup in the hierarchy of version 2, with any controllers, if there is one.
pub fn unified_home(root: &Path) -> Option<PathBuf> {
    folder_of(root, Version::V2, "", "self").ok().flatten()
}

/// Parses a line of mountinfo (proc_pid_mountinfo(5)); None if it cannot have the cpu controller.
fn parse_mount(line: &str) -> Option<Mount> {
    parse_mount_of(line, "cpu")
}

fn parse_mount_of(line: &str, controller: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, point) = (unescape(before.next()?), unescape(before.next()?));
    let mut after = after.split(' ');
    let version = match after.next()? {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let options = after.nth(1).unwrap_or_default();
    let has_it = version == Version::V2 || options.split(',').any(|option| option == controller);
    has_it.then_some(Mount { version, root, point })
}

/// The cgroup in a line of `/proc/PID/cgroup`, if it is the line of the cpu controller.
fn parse_member(line: &str, version: Version) -> Option<PathBuf> {
    parse_member_of(line, version, "cpu")
}

fn parse_member_of(line: &str, version: Version, controller: &str) -> Option<PathBuf> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let is_it = match version {
        Version::V1 => controllers.split(',').any(|name| name == controller),
        Version::V2 => number == "0" && controllers.is_empty(),
    };
    is_it.then(|| path.into())
}

/// Decodes the kernel's octal escapes, such as `\040` for a space.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    while let Some((first, rest)) = bytes.split_first() {
        let code = rest.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        plain.push(code.unwrap_or(*first));
        bytes = &rest[if code.is_some() { 3 } else { 0 }..];
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_the_kernel_writes_them() {
        let mount = |version, root: &str, point: &str| Some(Mount { version, root: root.into(), point: point.into() });
        let line = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct";
        assert_eq!(parse_mount(line), mount(Version::V1, "/", "/sys/fs/cgroup/cpu,cpuacct"));
        let line = r"41 31 0:38 /docker/ab\040c /a\134b ro,relatime shared:1 master:2 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(parse_mount(line), mount(Version::V2, "/docker/ab c", r"/a\b"));
        assert_eq!(parse_mount("33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct"), None);
        assert_eq!(parse_mount("27 1 254:0 / / rw,relatime - ext4 /dev/vda rw"), None);
        assert_eq!(parse_mount("nonsense"), None);
        assert_eq!(unescape(r"\04"), Path::new(r"\04"));
    }

    #[test]
    fn the_line_of_the_controller_is_the_right_one() {
        assert_eq!(parse_member("1:cpu,cpuacct:/a:b", Version::V1), Some("/a:b".into()));
        assert_eq!(parse_member("3:cpuset:/a", Version::V1), None);
        assert_eq!(parse_member("1:cpu:/a", Version::V2), None);
        assert_eq!(parse_member("0::/a", Version::V2), Some("/a".into()));
        assert_eq!(parse_member("9:name=systemd:/a", Version::V2), None);
        assert_eq!(parse_member("", Version::V1), None);
    }
}
