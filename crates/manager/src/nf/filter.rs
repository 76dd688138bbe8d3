//! The filter of system calls that an NF may start with.
//!
//! [`SpawnSpec::seccomp`](super::spawn::SpawnSpec::seccomp) denies, with "operation not permitted", what no packet handler needs and what attacks on a host are made
//! of: looking into other processes, mounting, namespaces, loading kernel code, BPF, performance events, keys, clocks and reboot.
//! It is a list of denials and not a sandbox: an NF is any program, and a list of permissions would break most. Set it by
//! [`SpawnSpec::seccomp_default`](super::spawn::SpawnSpec::seccomp_default): on for an NF with a user of its own; off for one that runs as the manager's user, which the
//! operator trusts with all of that user's rights, and which may well be a debugger or a tool that loads BPF.

// Asking whether a system call is there has no safe wrapper.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_long;
use std::sync::LazyLock;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// A list of system calls, each with its name.
macro_rules! calls {
    ($($(#[$attribute:meta])* $name:ident;)*) => {
        &[$($(#[$attribute])* (stringify!($name), libc::$name)),*]
    };
}

/// System calls that the filter denies, with their names in libc.
pub(super) const DENIED: &[(&str, c_long)] = calls! {
    // Other processes.
    SYS_ptrace;
    SYS_process_vm_readv;
    SYS_process_vm_writev;
    SYS_process_madvise;
    SYS_pidfd_getfd;
    SYS_kcmp;
    // Mounts and roots.
    SYS_mount;
    SYS_umount2;
    SYS_pivot_root;
    SYS_chroot;
    SYS_open_tree;
    SYS_move_mount;
    SYS_mount_setattr;
    SYS_fsopen;
    SYS_fsconfig;
    SYS_fsmount;
    SYS_fspick;
    SYS_swapon;
    SYS_swapoff;
    SYS_quotactl;
    // Namespaces, except by clone, which threads need. What one could do inside is denied above and below.
    SYS_unshare;
    SYS_setns;
    // Code in the kernel.
    SYS_init_module;
    SYS_finit_module;
    SYS_delete_module;
    SYS_kexec_load;
    SYS_bpf;
    SYS_perf_event_open;
    SYS_userfaultfd;
    // Keys.
    SYS_add_key;
    SYS_request_key;
    SYS_keyctl;
    // The host itself.
    SYS_reboot;
    SYS_acct;
    SYS_syslog;
    SYS_settimeofday;
    SYS_clock_settime;
    SYS_sethostname;
    SYS_setdomainname;
    SYS_open_by_handle_at;
    #[cfg(target_arch = "x86_64")]
    SYS_kexec_file_load;
    #[cfg(target_arch = "x86_64")]
    SYS_iopl;
    #[cfg(target_arch = "x86_64")]
    SYS_ioperm;
};

pub(super) fn denied() -> impl Iterator<Item = c_long> {
    DENIED.iter().map(|(_, number)| *number)
}

/// Names of the system calls that the filter denies, for those who write a filter of their own.
pub fn denied_names() -> impl Iterator<Item = &'static str> {
    DENIED.iter().map(|(name, _)| name.trim_start_matches("SYS_"))
}

/// x86-64 has every system call a second time, with this bit in its number, for the x32 ABI; the architecture that a filter sees is
/// the same. A few have a number of their own there.
#[cfg(target_arch = "x86_64")]
pub(super) const X32_BIT: c_long = 0x4000_0000;
#[cfg(target_arch = "x86_64")]
pub(super) const X32_OWN: [c_long; 4] = [
    521, // ptrace
    528, // kexec_load
    539, // process_vm_readv
    540, // process_vm_writev
];

/// Whether this kernel has the x32 ABI. Most have not, and then a filter of half the length installs in half the time.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_x32() -> bool {
    // SAFETY: getpid has no arguments and no effect.
    unsafe { libc::syscall(libc::SYS_getpid | X32_BIT) >= 0 }
}

/// The filter, compiled once. A call through another architecture's interface (32 bit) kills the process: the filter cannot read
/// it.
pub(super) static FILTER: LazyLock<BpfProgram> = LazyLock::new(|| {
    #[allow(unused_mut)]
    let mut numbers: Vec<c_long> = denied().collect();
    #[cfg(target_arch = "x86_64")]
    if has_x32() {
        numbers.extend(denied().chain(X32_OWN).map(|number| number | X32_BIT));
    }
    // A number without conditions is denied whatever its arguments.
    let rules: BTreeMap<i64, Vec<_>> = numbers.into_iter().map(|number| (number, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().expect("the workspace builds for x86-64 and aarch64 only");
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32), arch)
        .and_then(TryInto::try_into)
        .expect("a list of numbers always compiles")
});
