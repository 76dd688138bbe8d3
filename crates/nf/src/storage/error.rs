//! Errors of storage: at its start, of a request, and of the disk.

use rustix::io::Errno;

/// Why there is no storage.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The kernel has no io_uring.
    #[error("this kernel has no io_uring (5.11 or later is needed); update it, or use the NF's blocking mode if it has one")]
    Missing,
    /// io_uring is forbidden.
    #[error(
        "io_uring is forbidden here ({0}): write `storage = true` in the NF's service, whose filter of system calls denies it without that; set kernel.io_uring_disabled to 0 with sysctl (or to 1, with this process's group in kernel.io_uring_group), and allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile of its container or service; or use the NF's blocking mode if it has one"
    )]
    Forbidden(Errno),
    /// The kernel gave no ring.
    #[error("cannot set io_uring up: {0}; check the limits of descriptors and of locked memory (ulimit -n, ulimit -l)")]
    Setup(Errno),
    /// The options are out of range.
    #[error("batch_bytes is 4096 to 64 Mi and batch_operations 1 to 4096; {bytes} bytes and {operations} operations are asked for")]
    Options {
        /// Bytes requested.
        bytes: usize,
        /// Operations requested.
        operations: usize,
    },
    /// The NF has a storage already.
    #[error("this NF has a storage already: clone it")]
    Second,
}

impl StorageError {
    /// The meaning of the kernel's refusal of a ring.
    pub(super) fn refused(error: &std::io::Error) -> Self {
        match Errno::from_io_error(error).unwrap_or(Errno::IO) {
            Errno::NOSYS => Self::Missing,
            errno @ (Errno::PERM | Errno::ACCESS) => Self::Forbidden(errno),
            errno => Self::Setup(errno),
        }
    }
}

/// Why a request was not taken. Its callback is not called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Nothing to read or write, or more than a buffer holds.
    #[error("a request for {len} bytes is not possible: it has 1 to {most}; make batch_bytes larger")]
    Size {
        /// Bytes of the request.
        len: usize,
        /// Bytes of a buffer.
        most: usize,
    },
    /// Both buffers are full, and the request comes from a callback, which cannot wait.
    #[error("both buffers are full, and a callback cannot wait for one: make the request after it has returned")]
    Full,
}

/// The error of a read or a write, which its callback gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{errno} after {done} bytes")]
pub struct IoError {
    /// The kernel's error, such as `NOSPC`; `BADF`: no such access; `IO`: it wrote nothing.
    pub errno: Errno,
    /// Bytes of this request that were written before.
    pub done: usize,
}

/// A callback's argument: the bytes read (fewer at the end of the file) or written, or the error.
pub type IoResult<'a> = Result<&'a [u8], IoError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        let of = |code| StorageError::refused(&std::io::Error::from_raw_os_error(code)).to_string();
        assert!(
            of(libc::EPERM).contains("`storage = true`")
                && of(libc::EPERM).contains("kernel.io_uring_disabled")
                && of(libc::EPERM).contains("seccomp")
        );
        assert!(of(libc::EACCES).contains("seccomp"));
        assert!(of(libc::ENOSYS).contains("has no io_uring"));
        assert!(of(libc::EMFILE).contains("ulimit -n"));
    }
}
