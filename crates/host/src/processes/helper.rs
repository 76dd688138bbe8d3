//! Processes that this program makes of itself: the [guard], the [spinners](super::spinner) that are stopped and run
//! where switches are measured, and what [measures](super::measure) for the benchmark.
//!
//! They are the same program, started again with a hidden first argument. So they share no memory, lock or descriptor with their
//! maker, and nothing has to be installed for them. A program that uses controllers calls [`take_over`] before anything else.

// Ignoring signals has no safe wrapper.
#![allow(unsafe_code)]

use std::process::ExitCode;

use super::{guard, measure, spinner};

/// First argument of a keeper: the first process of the namespace that those of NFs are in.
pub const KEEPER: &str = "__sluice-keeper";

/// Does nothing, until it is killed. What loses its parent in the namespace is given to it, and is collected by the kernel.
fn keep() -> ! {
    for signal in [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGTSTP] {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"sluice-keeper");
    loop {
        std::thread::sleep(std::time::Duration::from_secs(3600));
    }
}

/// If this process was started to be a helper, is that until it ends, and says with which exit code. To be called first in `main`.
pub fn take_over() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next()?;
    if first == guard::ARGUMENT {
        return Some(guard::keep());
    }
    if first == KEEPER {
        keep();
    }
    if first == measure::ARGUMENT {
        return Some(measure::answer(arguments));
    }
    (first == spinner::ARGUMENT).then(|| spinner::spin(arguments))
}
