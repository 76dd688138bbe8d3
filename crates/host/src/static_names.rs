//! Names of users, groups and hosts in a static program.
//!
//! glibc loads a library for each source that `/etc/nsswitch.conf` names. In a static program such
//! a library may end the process: libnss_systemd does, with SIGSEGV.

/// Has a static program look names up only where glibc does so itself: in files, and hosts by DNS.
/// Call it before the first look. Does nothing in other programs.
pub fn use_built_in() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    built_in();
}

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
#[allow(unsafe_code)]
fn built_in() {
    use std::ffi::{CStr, c_char, c_int};

    // SAFETY: declared as in glibc's nss.h.
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
    }
    let sources: [(&CStr, &CStr); 4] =
        [(c"passwd", c"files"), (c"group", c"files"), (c"initgroups", c"files"), (c"hosts", c"files dns")];
    for (database, sources) in sources {
        // SAFETY: both end with zero and live for ever. It fails for a wrong name only.
        unsafe { __nss_configure_lookup(database.as_ptr(), sources.as_ptr()) };
    }
}
