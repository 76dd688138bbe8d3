//! Runs several NFs in one process: see [`sluice_nf::group`].

fn main() -> std::process::ExitCode {
    sluice_nf::group::main()
}
