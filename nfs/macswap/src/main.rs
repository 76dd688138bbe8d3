//! The NF of this crate as a program of its own.

fn main() -> std::process::ExitCode {
    sluice_nf_macswap::main()
}
