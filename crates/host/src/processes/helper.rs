//! Helper processes that run this program: the [guard], the [spinners](super::spinner), and the
//! [measuring](super::measure) helper.
//!
//! They are started with a hidden first argument. So they share no memory, lock or descriptor with
//! their maker, and need no installation. A program that uses controllers calls [`take_over`]
//! before anything else.

// Ignoring signals has no safe wrapper.
#![allow(unsafe_code)]

use std::process::ExitCode;

use super::{guard, measure, spinner};

/// First argument of a keeper: the first process of the NFs' process namespace.
pub const KEEPER: &str = "__sluice-keeper";

/// Does nothing until it is killed. It gets the namespace's orphans; the kernel collects them.
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

/// Runs this process as a helper, if it is one, and returns its exit code. Call it first in `main`.
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
