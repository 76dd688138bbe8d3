//! The user that an NF runs as, from the host's user database.

// The reentrant interface of the user database has no safe wrapper.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use rustix::io::Errno;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Allocates a separate user number to each service that names no user.
///
/// The number is derived from the service's name and the daemon's folder, so that it is the same
/// after a restart. If it is not free, the next free one is used. Free means: not another
/// service's, not in the host's databases of users and groups, and not of a running process.
#[derive(Debug)]
pub struct Uids {
    first: u32,
    count: u32,
    given: BTreeMap<String, u32>,
}

impl Uids {
    /// The `count` numbers from `first` on.
    pub fn new(first: u32, count: u32) -> Self {
        Self { first, count: count.max(1), given: BTreeMap::new() }
    }

    /// The user of a service, the same at every call. `is_busy` excludes numbers.
    ///
    /// # Errors
    /// [`UserError::NoneFree`], [`UserError::Database`].
    pub fn give(&mut self, folder: &Path, service: &str, is_busy: impl Fn(u32) -> bool) -> Result<User, UserError> {
        let user = |uid| User { uid, gid: uid, groups: Vec::new() };
        if let Some(uid) = self.given.get(service) {
            return Ok(user(*uid));
        }
        // FNV-1a: any fixed hash will do.
        let bytes = folder.as_os_str().as_encoded_bytes().iter().chain(b"\0").chain(service.as_bytes());
        let hash = bytes.fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
        for n in 0..self.count {
            let offset = (u64::from(hash) + u64::from(n)) % u64::from(self.count);
            let Some(uid) = self.first.checked_add(offset as u32).filter(|uid| *uid != u32::MAX) else { continue };
            let is_taken = self.given.values().any(|other| *other == uid)
                || is_busy(uid)
                || User::from_database(service, Key::Number(uid))?.is_some()
                || has_group(uid);
            if !is_taken {
                self.given.insert(service.into(), uid);
                return Ok(user(uid));
            }
        }
        Err(UserError::NoneFree { service: service.into(), first: self.first, count: self.count })
    }
}

/// Whether the group database has this number.
fn has_group(gid: u32) -> bool {
    // An error of a database is no entry.
    matches!(group_from_database(&gid.to_string(), Key::Number(gid)), Ok(Some(_)))
}

/// The number of a group by its name or number. An unknown number is one without members.
///
/// # Errors
/// [`UserError::UnknownGroup`], [`UserError::Database`].
pub fn look_up_group(name_or_number: &str) -> Result<u32, UserError> {
    let unknown = || UserError::UnknownGroup(name_or_number.into());
    let name = CString::new(name_or_number).map_err(|_| unknown())?;
    if let Some(gid) = group_from_database(name_or_number, Key::Name(&name))? {
        return Ok(gid);
    }
    // As for users.
    name_or_number.parse().ok().filter(|gid| *gid != u32::MAX).ok_or_else(unknown)
}

fn group_from_database(asked: &str, key: Key<'_>) -> Result<Option<u32>, UserError> {
    let mut buffer: Vec<c_char> = vec![0; 1 << 12];
    loop {
        // SAFETY: all-zero bytes are a valid group (null pointers, zero numbers).
        let mut entry: libc::group = unsafe { std::mem::zeroed() };
        let mut found: *mut libc::group = null_mut();
        let (space, len) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: all pointers are live, `space` has `len` bytes, and the name ends with zero.
        let error = unsafe {
            match key {
                Key::Name(name) => libc::getgrnam_r(name.as_ptr(), &raw mut entry, space, len, &raw mut found),
                Key::Number(gid) => libc::getgrgid_r(gid, &raw mut entry, space, len, &raw mut found),
            }
        };
        match error {
            // It has more members than fit.
            libc::ERANGE if len < 1 << 24 => buffer.resize(len * 4, 0),
            // As for users.
            0 | libc::ENOENT | libc::ESRCH if found.is_null() => return Ok(None),
            0 => return Ok(Some(entry.gr_gid)),
            other => return Err(UserError::Database { user: asked.into(), error: Errno::from_raw_os_error(other) }),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// Neither a name in the user database nor a number.
    #[error("there is no user {0}; give the name of one that this host knows, or a number")]
    Unknown(String),
    #[error("there is no group {0}; make it with `groupadd --system {0}`, or give the name of one that this host has, or a number")]
    UnknownGroup(String),
    #[error(
        "service {service} has no `user`, and of the {count} numbers from {first} on none is free; set [manager] uid_first and uid_count to \
         numbers that this host uses for nothing else, or give it a `user`"
    )]
    NoneFree { service: String, first: u32, count: u32 },
    /// It could not reach the NF socket.
    #[error(
        "service {service} runs as a user of its own, which cannot enter {folder}, where the NF socket is (mode {mode:o}); choose a \
         runtime_dir that is open to others, such as /run/sluice, open this one (chmod o+x) if it holds nothing private, or give the service a `user` that can enter it (\"root\" passes any mode)"
    )]
    Closed { service: String, folder: PathBuf, mode: u32 },
    #[error(
        "service {service} runs as user {uid}, a member of the group of the control socket, by which it could do anything that root can; \
         give it another `user`, or take that one out of the group ([control] group)"
    )]
    Controls { service: String, uid: u32 },
    #[error("cannot look up {user} among users or groups: {error}")]
    Database {
        /// The name or number that was looked up.
        user: String,
        error: Errno,
    },
}

impl User {
    /// Finds a user by name or number, with its groups.
    ///
    /// An unknown number is a user with the group of that number and no other groups. May query the
    /// network (LDAP): call it before packets flow.
    pub fn look_up(name_or_number: &str) -> Result<Self, UserError> {
        let unknown = || UserError::Unknown(name_or_number.into());
        let name = CString::new(name_or_number).map_err(|_| unknown())?;
        let number = name_or_number.parse::<u32>().ok();
        // A user's name may be a number; the name has precedence, as in chown(1).
        if let Some(user) = Self::from_database(name_or_number, Key::Name(&name))? {
            return Ok(user);
        }
        // To the kernel (uid_t) -1 means "do not change".
        let number = number.filter(|n| *n != u32::MAX).ok_or_else(unknown)?;
        let found = Self::from_database(name_or_number, Key::Number(number))?;
        Ok(found.unwrap_or(Self { uid: number, gid: number, groups: Vec::new() }))
    }

    fn from_database(asked: &str, key: Key<'_>) -> Result<Option<Self>, UserError> {
        let mut buffer: Vec<c_char> = vec![0; 1024];
        loop {
            // SAFETY: all-zero bytes are a valid passwd (null pointers, zero numbers).
            let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
            let mut found: *mut libc::passwd = null_mut();
            let (space, len) = (buffer.as_mut_ptr(), buffer.len());
            // SAFETY: all pointers are live, `space` has `len` bytes, and the name ends with zero.
            let error = unsafe {
                match key {
                    Key::Name(name) => libc::getpwnam_r(name.as_ptr(), &raw mut entry, space, len, &raw mut found),
                    Key::Number(uid) => libc::getpwuid_r(uid, &raw mut entry, space, len, &raw mut found),
                }
            };
            match error {
                libc::ERANGE if len < 1 << 20 => buffer.resize(len * 4, 0),
                // Results of databases, besides 0, for a missing entry; see getpwnam(3).
                0 | libc::ENOENT | libc::ESRCH if found.is_null() => return Ok(None),
                0 => {
                    // SAFETY: a filled entry's name points into the live `buffer` and ends with a
                    // zero byte.
                    let name = unsafe { CStr::from_ptr(entry.pw_name) };
                    return Ok(Some(Self { uid: entry.pw_uid, gid: entry.pw_gid, groups: groups_of(name, entry.pw_gid) }));
                }
                other => {
                    return Err(UserError::Database { user: asked.into(), error: Errno::from_raw_os_error(other) });
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Key<'a> {
    Name(&'a CStr),
    Number(u32),
}

/// All groups of a user, including the primary one.
fn groups_of(name: &CStr, gid: u32) -> Vec<u32> {
    let mut groups = vec![0; 64];
    loop {
        let mut count = groups.len() as c_int;
        // SAFETY: the name ends with a zero byte, and `groups` has room for `count` numbers.
        let rc = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        if rc >= 0 {
            groups.truncate(count as usize);
            return groups;
        }
        // The kernel's maximum is 65,536.
        if groups.len() >= 65_536 {
            return vec![gid];
        }
        groups.resize(groups.len() * 4, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_names_and_numbers() {
        assert_eq!(look_up_group("root").unwrap(), 0);
        // No group has it: an unknown number stands for itself.
        assert_eq!(look_up_group("1879199999").unwrap(), 1_879_199_999);
        for none in ["no-such-group", "-1", "4294967295", "a\0b"] {
            assert!(matches!(look_up_group(none), Err(UserError::UnknownGroup(_))), "{none}");
        }
        assert!(has_group(0) && !has_group(1_879_199_999));
    }

    #[test]
    fn services_have_users_of_their_own_that_stay() {
        let (folder, other) = (Path::new("/run/sluice"), Path::new("/run/other"));
        let mut uids = Uids::new(1_879_100_000, 65_536);
        let ids = uids.give(folder, "ids", |_| false).unwrap();
        let nat = uids.give(folder, "nat", |_| false).unwrap();
        assert_ne!(ids, nat);
        assert_eq!((ids.gid, ids.groups.len()), (ids.uid, 0));
        assert!((1_879_100_000..1_879_165_536).contains(&ids.uid));
        assert_eq!(uids.give(folder, "ids", |_| true).unwrap(), ids, "the same as long as the daemon runs");
        let again = |folder| Uids::new(1_879_100_000, 65_536).give(folder, "ids", |_| false).unwrap();
        assert_eq!(again(folder), ids, "and after a restart");
        assert_ne!(again(other), ids, "another daemon's is another");
        let busy = Uids::new(1_879_100_000, 65_536).give(folder, "ids", |uid| uid == ids.uid).unwrap();
        assert_ne!(busy, ids);
        // All of a few numbers are allocated, none twice; then there is an error.
        let mut few = Uids::new(1_879_100_000, 3);
        let given: std::collections::BTreeSet<u32> =
            ["a", "b", "c"].iter().map(|name| few.give(folder, name, |_| false).unwrap().uid).collect();
        assert_eq!(given.len(), 3);
        let said = few.give(folder, "d", |_| false).unwrap_err().to_string();
        assert!(said.contains("none is free; set [manager] uid_first"), "{said}");
        // Numbers of the host's database are never allocated: 0 is root.
        assert!(Uids::new(0, 1).give(folder, "a", |_| false).is_err());
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        let root = User::look_up("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(User::look_up("0").unwrap(), root);
        assert_eq!(User::look_up("3999999999").unwrap(), User { uid: 3_999_999_999, gid: 3_999_999_999, groups: vec![] });
        for nobody in ["no-such-user", "-1", "4294967295", "", "a\0b"] {
            let error = User::look_up(nobody).unwrap_err().to_string();
            assert_eq!(error, format!("there is no user {nobody}; give the name of one that this host knows, or a number"));
        }
    }
}
