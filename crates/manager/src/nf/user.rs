//! The user that an NF runs as, found in the host's user database.

// The user database's reentrant interface has no safe wrapper.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;

use rustix::io::Errno;

/// A user that an NF runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}
/// Why a user could not be found.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// Neither a name in the user database nor a number.
    #[error("there is no user {0}; give the name of one that this host knows, or a number")]
    Unknown(String),
    /// The database could not be read.
    #[error("cannot look up user {user}: {error}")]
    Database {
        /// Who was looked for.
        user: String,
        /// The system's answer.
        error: Errno,
    },
}

impl User {
    /// Finds a user by name or number, with its groups. A number that the database does not know is a user with the group of the
    /// same number and no other groups. May ask the network (LDAP): call it before packets flow.
    ///
    /// # Errors
    /// [`UserError`].
    pub fn look_up(name_or_number: &str) -> Result<Self, UserError> {
        let unknown = || UserError::Unknown(name_or_number.into());
        let name = CString::new(name_or_number).map_err(|_| unknown())?;
        let number = name_or_number.parse::<u32>().ok();
        // The database may hold a user whose name is a number; the name goes first, as in chown(1).
        if let Some(user) = Self::from_database(name_or_number, Key::Name(&name))? {
            return Ok(user);
        }
        // (uid_t) -1 means "do not change" to the kernel.
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
            // SAFETY: all pointers are live, `space` has `len` bytes, and the name ends with a zero byte.
            let error = unsafe {
                match key {
                    Key::Name(name) => libc::getpwnam_r(name.as_ptr(), &raw mut entry, space, len, &raw mut found),
                    Key::Number(uid) => libc::getpwuid_r(uid, &raw mut entry, space, len, &raw mut found),
                }
            };
            match error {
                libc::ERANGE if len < 1 << 20 => buffer.resize(len * 4, 0),
                // What databases say, besides 0, when there is no such entry; see getpwnam(3).
                0 | libc::ENOENT | libc::ESRCH if found.is_null() => return Ok(None),
                0 => {
                    // SAFETY: a filled entry's name points into `buffer`, which lives on, and ends with a zero byte.
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

/// All groups of a user, its first one included.
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
        // 65,536 is the most that the kernel takes.
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
