//! What other programs' groups have of a cache, from resctrl's files.
//!
//! # Approach
//! Every group below the mount point that is none of our classes is another program's, including
//! other Sluice processes. Ways that such a group shares with one of our classes count as ours: the
//! later one has to resolve it, and a new group has all ways for a moment.

use std::fs;
use std::path::Path;

use crate::control::Granted;
use crate::resctrl::PREFIX;
use crate::schemata;

/// What other programs' groups have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Others {
    /// Ways in any L3 cache, as a mask.
    pub ways: u32,
    pub groups: u32,
}

impl Others {
    /// Reads the groups below `path`, where resctrl is mounted; `classes` are ours. Unreadable
    /// groups are not counted: the next change that they affect reports the error.
    pub fn read(path: &Path, classes: &[Granted]) -> Self {
        let is_ours = |name: &str| name.strip_prefix(PREFIX).is_some_and(|name| classes.iter().any(|class| class.name == name));
        let mut others = Self::default();
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            if !entry.path().join("tasks").is_file() || entry.file_name().to_str().is_some_and(is_ours) {
                continue;
            }
            others.groups += 1;
            let text = fs::read_to_string(entry.path().join("schemata")).unwrap_or_default();
            let lines = schemata::parse(&text).unwrap_or_default();
            let of_cache = lines.iter().filter(|(name, _)| name.starts_with("L3"));
            others.ways |= of_cache.flat_map(|(_, line)| line.values()).fold(0, |all, mask| all | mask);
        }
        others.ways &= !classes.iter().flat_map(|class| class.masks.values()).fold(0, |all, mask| all | mask);
        others
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn groups_of_others_are_counted_and_what_they_share_with_us_is_ours() {
        let folder = tempfile::tempdir().unwrap();
        for (name, line) in
            [("sluice-a", "L3:0=f;2=f\nMB:0=100;2=100"), ("other", "L3:0=3c;2=f0"), ("sluice-b", "L3DATA:0=800\nL3CODE:0=400")]
        {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("tasks"), "").unwrap();
            fs::write(folder.path().join(name).join("schemata"), format!("{line}\n")).unwrap();
        }
        fs::create_dir(folder.path().join("mon_groups")).unwrap();
        let masks = BTreeMap::from([(0, 0xf), (2, 0xf)]);
        let ours = [Granted { name: "a".into(), masks, bandwidth: BTreeMap::new(), widened: false }];
        assert_eq!(Others::read(folder.path(), &ours), Others { ways: 0xcf0, groups: 2 });
        assert_eq!(Others::read(folder.path(), &[]), Others { ways: 0xcff, groups: 3 });
        assert_eq!(Others::read(Path::new("/nowhere"), &[]), Others::default());
    }
}
