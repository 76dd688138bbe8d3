//! Passes every packet on, unchanged.

fn main() -> std::process::ExitCode {
    sluice_nf::run_each(|_packet| {})
}
