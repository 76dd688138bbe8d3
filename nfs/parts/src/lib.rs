//! Parts that several of the example NFs share.
//!
//! - [`flow`]: a flow's key, and the key of a fragmented datagram;
//! - [`datagram`]: decisions about first fragments, for the others;
//! - [`table`]: a bounded hash table without allocation after its start, aged by small sweeps;
//! - [`icmp`]: ICMP errors and the packet that they quote;
//! - [`lines`]: rule, route, backend, pattern and key files: words on lines, with line numbers;
//! - [`mac`]: MAC addresses in files;
//! - [`report`]: counters and tables on SIGUSR1, at an interval and at the end, as text or JSON;
//! - [`reload`]: reading a file again on SIGHUP, in a separate thread.

pub mod datagram;
pub mod flow;
pub mod icmp;
pub mod lines;
pub mod mac;
pub mod reload;
pub mod report;
pub mod table;

/// The arguments of an NF, without the library's own. On an error or `--help` it prints and exits
/// the process, as clap does.
pub fn parse_args<A: clap::Parser>() -> A {
    A::parse_from(std::env::args_os().take(1).chain(sluice_nf::args()))
}

/// The arguments of an NF in a group.
///
/// # Errors
/// As clap prints them.
#[doc(hidden)]
pub fn args_of<A: clap::Parser>(context: &sluice_nf::Context) -> Result<A, clap::Error> {
    A::try_parse_from(std::iter::once(context.name.clone().into()).chain(context.args.iter().cloned()))
}

/// As [`sluice_nf::nf!`], for an NF with arguments: their type, and a function of them and the
/// context. Run as a program, it reads its arguments before it attaches.
#[macro_export]
macro_rules! nf {
    ($args:ty, $make:expr) => {
        /// Runs the NF as a program of its own.
        pub fn main() -> ::std::process::ExitCode {
            let args: $args = $crate::parse_args();
            ::sluice_nf::run(move |context| ($make)(args, context))
        }
        ::sluice_nf::part!(|context: &::sluice_nf::Context| ($make)($crate::args_of(context)?, context));
    };
}
