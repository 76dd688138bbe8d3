//! The filter of system calls that an NF starts with.
//!
//! It denies, with "operation not permitted", what no packet handler needs and what attacks on a
//! host use: inspecting other processes, mounts, namespaces, loading kernel code, BPF, performance
//! events, keys, clocks and reboot. It also denies what would reach others through a tenant's
//! shared resources: holes in packet memory (`fallocate`, `madvise(MADV_REMOVE)`), changes of cores
//! and classes (`sched_setaffinity` and its kin), children of the manager (`CLONE_PARENT`), and
//! io_uring, which bypasses any filter. It is a list of denials and not a sandbox: an NF is any
//! program, and a list of permissions would break most.
//!
//! Every NF has it, whatever its user, unless `filter = false` is configured. Only a service with
//! `storage = true` has io_uring, for the library's storage. It can then make holes in its own
//! tenant's packet memory, which the manager survives ([`sluice_shm::hole`]). A foreign program has
//! no such memory and chooses its own cores and threads: it has only the first part.
//!
//! # Limits
//! `clone3` cannot be inspected and is answered with "no such call"; C libraries then use `clone`.
//! Opening `/proc/PID/mem` looks like opening any file: only separate users of services keep NFs
//! out of each other's memory there.

// Testing whether a system call exists has no safe wrapper.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_long};
use std::sync::LazyLock;

use libc::sock_filter;

/// A list of system calls, each with its name.
macro_rules! calls {
    ($($(#[$attribute:meta])* $name:ident;)*) => {
        &[$($(#[$attribute])* (stringify!($name), libc::$name)),*]
    };
}

/// Which system calls are denied to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// Nothing is denied.
    None,
    /// The filter of NFs.
    Nf {
        /// Whether it has io_uring.
        storage: bool,
        /// Whether it may be a zygote: forked instances are children of its parent.
        zygote: bool,
    },
    /// The filter of programs that do not know Sluice.
    Foreign,
}

/// System calls that every filter denies, with their names in libc.
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
    SYS_quotactl_fd;
    // Namespaces; those by clone are in the rules below.
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
    SYS_adjtimex;
    SYS_clock_adjtime;
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

/// Denied calls that are newer than libc's list: `open_tree_attr`, of 6.15, and `futex_requeue`, of
/// 6.7, for the reason of the rules about `futex`.
pub(super) const NEWER: &[(&str, c_long)] = &[("SYS_open_tree_attr", 467), ("SYS_futex_requeue", 456)];

/// Also denied to NFs: changes of core and class, and moves of shared pages.
pub(super) const DENIED_TO_NFS: &[(&str, c_long)] = calls! {
    SYS_sched_setaffinity;
    SYS_sched_setscheduler;
    SYS_sched_setparam;
    SYS_sched_setattr;
    SYS_setpriority;
    SYS_ioprio_set;
    SYS_migrate_pages;
    SYS_move_pages;
    SYS_mbind;
    SYS_set_mempolicy_home_node;
};

/// What is denied to NFs without storage.
pub(super) const IO_URING: &[(&str, c_long)] = calls! {
    SYS_io_uring_setup;
    SYS_io_uring_enter;
    SYS_io_uring_register;
};

/// Denies a system call if one argument, masked, has this value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArgumentRule {
    pub name: &'static str,
    pub number: c_long,
    pub argument: u8,
    pub mask: u32,
    pub value: u32,
}

const fn bit(name: &'static str, number: c_long, argument: u8, bit: c_int) -> ArgumentRule {
    ArgumentRule { name, number, argument, mask: bit as u32, value: bit as u32 }
}

const fn exactly(name: &'static str, number: c_long, argument: u8, value: u32) -> ArgumentRule {
    ArgumentRule { name, number, argument, mask: u32::MAX, value }
}

/// Denied to all: namespaces by clone, terminal input, and reserving a core's sibling threads.
pub(super) const RULES: &[ArgumentRule] = &[
    bit("clone", libc::SYS_clone, 0, libc::CLONE_NEWNS),
    bit("clone", libc::SYS_clone, 0, libc::CLONE_NEWCGROUP),
    bit("clone", libc::SYS_clone, 0, libc::CLONE_NEWUTS),
    bit("clone", libc::SYS_clone, 0, libc::CLONE_NEWIPC),
    bit("clone", libc::SYS_clone, 0, libc::CLONE_NEWUSER),
    bit("clone", libc::SYS_clone, 0, libc::CLONE_NEWPID),
    bit("clone", libc::SYS_clone, 0, libc::CLONE_NEWNET),
    exactly("ioctl", libc::SYS_ioctl, 1, libc::TIOCSTI as u32),
    exactly("ioctl", libc::SYS_ioctl, 1, libc::TIOCLINUX as u32),
    exactly("prctl", libc::SYS_prctl, 0, PR_SCHED_CORE),
];

/// `PR_SCHED_CORE`, of Linux 5.14.
pub const PR_SCHED_CORE: u32 = 62;

/// Denied to all but zygotes: children of the manager that it does not know.
pub(super) const RULES_OF_OTHERS: &[ArgumentRule] = &[bit("clone", libc::SYS_clone, 0, libc::CLONE_PARENT)];

/// An operation on futexes that processes share, with whatever clock. The private kind has another
/// bit.
const fn futex(operation: c_int) -> ArgumentRule {
    let mask = !libc::FUTEX_CLOCK_REALTIME as u32;
    ArgumentRule { name: "futex", number: libc::SYS_futex, argument: 1, mask, value: operation as u32 }
}

/// `FUTEX_LOCK_PI2`, of Linux 5.14.
const FUTEX_LOCK_PI2: c_int = 13;

/// Also denied to NFs: holes in shared memory, taking shared pages away from others, taking others
/// off the doorbell that they sleep on, and what makes it deaf. A wake fails for all that sleep
/// behind one that waits for a lock with priority inheritance, and a thread takes as many wakes as
/// it has entries in `futex_waitv`: at most three, where the library has two.
pub(super) const RULES_OF_NFS: &[ArgumentRule] = &[
    bit("fallocate", libc::SYS_fallocate, 1, libc::FALLOC_FL_PUNCH_HOLE),
    bit("fallocate", libc::SYS_fallocate, 1, libc::FALLOC_FL_COLLAPSE_RANGE),
    bit("fallocate", libc::SYS_fallocate, 1, libc::FALLOC_FL_ZERO_RANGE),
    bit("fallocate", libc::SYS_fallocate, 1, libc::FALLOC_FL_INSERT_RANGE),
    bit("fallocate", libc::SYS_fallocate, 1, libc::FALLOC_FL_UNSHARE_RANGE),
    // FALLOC_FL_WRITE_ZEROES, of 6.17.
    bit("fallocate", libc::SYS_fallocate, 1, 0x80),
    exactly("madvise", libc::SYS_madvise, 2, libc::MADV_REMOVE as u32),
    exactly("madvise", libc::SYS_madvise, 2, libc::MADV_PAGEOUT as u32),
    exactly("madvise", libc::SYS_madvise, 2, libc::MADV_HWPOISON as u32),
    exactly("madvise", libc::SYS_madvise, 2, libc::MADV_SOFT_OFFLINE as u32),
    futex(libc::FUTEX_REQUEUE),
    futex(libc::FUTEX_CMP_REQUEUE),
    futex(libc::FUTEX_LOCK_PI),
    futex(FUTEX_LOCK_PI2),
    futex(libc::FUTEX_WAIT_REQUEUE_PI),
    futex(libc::FUTEX_CMP_REQUEUE_PI),
    bit("futex_waitv", libc::SYS_futex_waitv, 1, 4),
    bit("futex_waitv", libc::SYS_futex_waitv, 1, 8),
    bit("futex_waitv", libc::SYS_futex_waitv, 1, 16),
    bit("futex_waitv", libc::SYS_futex_waitv, 1, 32),
    bit("futex_waitv", libc::SYS_futex_waitv, 1, 64),
    bit("futex_waitv", libc::SYS_futex_waitv, 1, 128),
];

#[cfg(test)]
pub(super) fn denied() -> impl Iterator<Item = c_long> {
    DENIED.iter().chain(NEWER).chain(DENIED_TO_NFS).chain(IO_URING).map(|(_, number)| *number)
}

/// Names of the calls that the filter of NFs always denies, for filters written elsewhere.
pub(crate) fn denied_names() -> impl Iterator<Item = &'static str> {
    DENIED.iter().chain(NEWER).chain(DENIED_TO_NFS).chain(IO_URING).map(|(name, _)| name.trim_start_matches("SYS_"))
}

/// Calls that it denies by an argument: name, argument number, mask and value.
pub(crate) fn denied_arguments() -> impl Iterator<Item = (&'static str, u8, u32, u32)> {
    RULES.iter().chain(RULES_OF_NFS).map(|rule| (rule.name, rule.argument, rule.mask, rule.value))
}

/// Bit in the numbers of x86-64's second set of system calls, for the x32 ABI.
///
/// A filter sees the same architecture for both. `X32_OWN` lists denied calls with a separate x32
/// number, and their native number.
#[cfg(target_arch = "x86_64")]
pub(super) const X32_BIT: c_long = 0x4000_0000;
#[cfg(target_arch = "x86_64")]
pub(super) const X32_OWN: [(c_long, c_long); 6] = [
    (514, libc::SYS_ioctl),
    (521, libc::SYS_ptrace),
    (528, libc::SYS_kexec_load),
    (533, libc::SYS_move_pages),
    (539, libc::SYS_process_vm_readv),
    (540, libc::SYS_process_vm_writev),
];

/// Whether this kernel has the x32 ABI. Most have not: half the filter then.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_x32() -> bool {
    // SAFETY: getpid has no arguments and no effect.
    unsafe { libc::syscall(libc::SYS_getpid | X32_BIT) >= 0 }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn has_x32() -> bool {
    false
}

/// The instructions of a filter, compiled once. None for [`Filter::None`].
pub(super) fn program_of(filter: Filter) -> Option<&'static [sock_filter]> {
    static NFS: [LazyLock<Vec<sock_filter>>; 4] = [
        LazyLock::new(|| of_nf(false, false)),
        LazyLock::new(|| of_nf(false, true)),
        LazyLock::new(|| of_nf(true, false)),
        LazyLock::new(|| of_nf(true, true)),
    ];
    static FOREIGN: LazyLock<Vec<sock_filter>> = LazyLock::new(|| compile(&[DENIED, NEWER], &[RULES, RULES_OF_OTHERS], has_x32()));
    match filter {
        Filter::None => None,
        Filter::Nf { storage, zygote } => Some(&NFS[2 * usize::from(storage) + usize::from(zygote)]),
        Filter::Foreign => Some(&FOREIGN),
    }
}

fn of_nf(storage: bool, zygote: bool) -> Vec<sock_filter> {
    let calls: &[&[(&str, c_long)]] =
        if storage { &[DENIED, NEWER, DENIED_TO_NFS] } else { &[DENIED, NEWER, DENIED_TO_NFS, IO_URING] };
    let rules: &[&[ArgumentRule]] = if zygote { &[RULES, RULES_OF_NFS] } else { &[RULES, RULES_OF_NFS, RULES_OF_OTHERS] };
    compile(calls, rules, has_x32())
}

/// The architecture as a filter sees it, with the bits for 64 bit and little endian.
const ARCHITECTURE: u32 = 0xc000_0000 | if cfg!(target_arch = "x86_64") { libc::EM_X86_64 as u32 } else { libc::EM_AARCH64 as u32 };

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const DENY: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

const fn load(offset: usize) -> sock_filter {
    sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset as u32 }
}

const fn jump(kind: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | kind | libc::BPF_K) as u16, jt, jf, k }
}

const fn answer(k: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k }
}

/// A filter's answer to a system call.
enum Answer {
    Always(u32),
    /// Denied if one of these rules matches.
    ByArgument(Vec<ArgumentRule>),
}

/// Compiles a filter.
///
/// At installation the kernel runs it once for each system call. So numbers are found by binary
/// search: the usual chain of comparisons takes several times as long to install, for each start of
/// an NF. A call through another architecture's interface (32 bit) kills the process, because the
/// filter cannot read it.
fn compile(calls: &[&[(&str, c_long)]], rules: &[&[ArgumentRule]], has_x32: bool) -> Vec<sock_filter> {
    let numbers = calls.iter().flat_map(|calls| calls.iter()).map(|(_, number)| *number);
    let mut all: BTreeMap<c_long, Answer> = numbers.map(|number| (number, Answer::Always(DENY))).collect();
    all.insert(libc::SYS_clone3, Answer::Always(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32));
    for rule in rules.iter().flat_map(|rules| rules.iter()) {
        if let Answer::ByArgument(rules) = all.entry(rule.number).or_insert_with(|| Answer::ByArgument(Vec::new())) {
            rules.push(*rule);
        }
    }
    let mut leaves: Vec<(u32, Vec<sock_filter>)> = Vec::new();
    for (number, answer_) in all {
        let code = match answer_ {
            Answer::Always(code) => vec![answer(code)],
            Answer::ByArgument(rules) => rules.iter().flat_map(|rule| rule.compiled()).chain([answer(ALLOW)]).collect(),
        };
        #[cfg(target_arch = "x86_64")]
        if has_x32 {
            leaves.push(((number | X32_BIT) as u32, code.clone()));
            let own = X32_OWN.iter().filter(|(_, native)| *native == number);
            leaves.extend(own.map(|(own, _)| ((own | X32_BIT) as u32, code.clone())));
        }
        leaves.push((number as u32, code));
    }
    #[cfg(not(target_arch = "x86_64"))]
    debug_assert!(!has_x32);
    leaves.sort_by_key(|(number, _)| *number);
    let mut program = vec![
        load(std::mem::offset_of!(libc::seccomp_data, arch)),
        jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        load(std::mem::offset_of!(libc::seccomp_data, nr)),
    ];
    program.extend(halved(&leaves));
    program
}

/// Binary search for the number: runs its code, or allows any other number.
fn halved(leaves: &[(u32, Vec<sock_filter>)]) -> Vec<sock_filter> {
    match leaves {
        [] => vec![answer(ALLOW)],
        [(number, code)] => {
            let mut found = vec![jump(libc::BPF_JEQ, *number, 1, 0), answer(ALLOW)];
            found.extend(code);
            found
        }
        _ => {
            let (low, high) = leaves.split_at(leaves.len() / 2);
            let below = halved(low);
            // A conditional jump reaches 255 instructions, an unconditional one any number.
            let over = sock_filter { code: (libc::BPF_JMP | libc::BPF_JA) as u16, jt: 0, jf: 0, k: below.len() as u32 };
            let mut found = vec![jump(libc::BPF_JGE, high[0].0, 0, 1), over];
            found.extend(below);
            found.extend(halved(high));
            found
        }
    }
}

impl ArgumentRule {
    /// Denies, or continues. The kernel reads only the lower 32 bits of each of these arguments.
    fn compiled(&self) -> [sock_filter; 4] {
        let argument = std::mem::offset_of!(libc::seccomp_data, args) + 8 * usize::from(self.argument);
        let and = sock_filter { code: (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16, jt: 0, jf: 0, k: self.mask };
        [load(argument), and, jump(libc::BPF_JEQ, self.value, 0, 1), answer(DENY)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filter's answer to a system call, by interpretation.
    fn run(program: &[sock_filter], nr: u32, args: [u32; 6]) -> u32 {
        let (mut at, mut value) = (0usize, 0u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match code {
                0x20 => {
                    value = match k {
                        0 => nr,
                        4 => ARCHITECTURE,
                        _ => args[(k as usize - 16) / 8],
                    }
                }
                0x54 => value &= k,
                0x05 => at += k as usize,
                0x15 => at += usize::from(if value == k { jt } else { jf }),
                0x35 => at += usize::from(if value >= k { jt } else { jf }),
                0x06 => return k,
                other => panic!("no instruction of ours: {other:#x}"),
            }
        }
    }

    #[test]
    fn every_number_has_the_answer_that_the_lists_say() {
        let rules: [&[ArgumentRule]; 3] = [RULES, RULES_OF_NFS, RULES_OF_OTHERS];
        let program = compile(&[DENIED, NEWER, DENIED_TO_NFS, IO_URING], &rules, false);
        assert!(program.len() < 4096, "more than the kernel takes: {}", program.len());
        for nr in 0..1024u32 {
            let is_denied = denied().any(|number| number as u32 == nr);
            let expected = match i64::from(nr) {
                libc::SYS_clone3 => libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
                _ if is_denied => DENY,
                _ => ALLOW,
            };
            assert_eq!(run(&program, nr, [0; 6]), expected, "{nr}");
        }
        for rule in rules.iter().flat_map(|rules| rules.iter()) {
            let mut args = [0; 6];
            args[usize::from(rule.argument)] = rule.value;
            assert_eq!(run(&program, rule.number as u32, args), DENY, "{rule:?}");
            args[usize::from(rule.argument)] = 0;
            assert_eq!(run(&program, rule.number as u32, args), ALLOW, "{rule:?}");
        }
        // Few steps for any number.
        let without = compile(&[], &[], false);
        assert_eq!(run(&without, libc::SYS_ptrace as u32, [0; 6]), ALLOW);
    }

    #[test]
    fn what_only_its_arguments_tell_is_denied_where_it_is_to_be() {
        let says = |filter: Filter, call: c_long, args: [u32; 6]| run(program_of(filter).unwrap(), call as u32, args);
        let parent = [(libc::CLONE_PARENT | libc::SIGCHLD) as u32, 0, 0, 0, 0, 0];
        for storage in [false, true] {
            assert_eq!(says(Filter::Nf { storage, zygote: false }, libc::SYS_clone, parent), DENY);
            assert_eq!(says(Filter::Nf { storage, zygote: true }, libc::SYS_clone, parent), ALLOW, "a zygote's instances");
        }
        assert_eq!(says(Filter::Foreign, libc::SYS_clone, parent), DENY);
        for filter in [Filter::Nf { storage: false, zygote: true }, Filter::Foreign] {
            assert_eq!(says(filter, libc::SYS_prctl, [PR_SCHED_CORE, 1, 0, 0, 0, 0]), DENY);
            assert_eq!(says(filter, libc::SYS_prctl, [libc::PR_SET_NAME as u32, 0, 0, 0, 0, 0]), ALLOW);
        }
    }

    #[test]
    fn a_doorbell_cannot_be_made_deaf() {
        let nf = program_of(Filter::Nf { storage: false, zygote: false }).unwrap();
        let says = |call: c_long, argument: c_int| run(nf, call as u32, [0, argument as u32, 0, 0, 0, 0]);
        for operation in [libc::FUTEX_LOCK_PI, FUTEX_LOCK_PI2, libc::FUTEX_WAIT_REQUEUE_PI, libc::FUTEX_CMP_REQUEUE] {
            assert_eq!(says(libc::SYS_futex, operation), DENY, "{operation}");
            assert_eq!(says(libc::SYS_futex, operation | libc::FUTEX_CLOCK_REALTIME), DENY, "{operation}");
            assert_eq!(says(libc::SYS_futex, operation | libc::FUTEX_PRIVATE_FLAG), ALLOW, "{operation}");
        }
        for operation in [libc::FUTEX_WAIT, libc::FUTEX_WAKE, libc::FUTEX_WAIT_BITSET | libc::FUTEX_CLOCK_REALTIME] {
            assert_eq!(says(libc::SYS_futex, operation), ALLOW, "{operation}");
        }
        // The kernel takes 128 at most.
        for entries in 1..=128 {
            let expected = if entries <= 3 { ALLOW } else { DENY };
            assert_eq!(says(libc::SYS_futex_waitv, entries), expected, "{entries}");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn what_has_another_number_for_x32_is_denied_by_that_too() {
        let program = compile(&[DENIED, NEWER, DENIED_TO_NFS], &[RULES, RULES_OF_NFS], true);
        let x32 = |number: c_long| (number | X32_BIT) as u32;
        // ptrace, kexec_load, move_pages, process_vm_readv, process_vm_writev; then a usual number.
        for number in [521, 528, 533, 539, 540, libc::SYS_mount] {
            assert_eq!(run(&program, x32(number), [0; 6]), DENY, "{number}");
        }
        // ioctl, by its request.
        assert_eq!(run(&program, x32(514), [0, libc::TIOCSTI as u32, 0, 0, 0, 0]), DENY);
        assert_eq!(run(&program, x32(514), [0, libc::FIONREAD as u32, 0, 0, 0, 0]), ALLOW);
        let foreign = compile(&[DENIED], &[RULES], true);
        assert_eq!(run(&foreign, x32(533), [0; 6]), ALLOW, "as move_pages itself");
    }
}
