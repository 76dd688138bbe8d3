//! Gives the shared library its name for the loader.
//!
//! Without one, a program that is linked with `-lsluice_nf` records the path of the file it was
//! linked with, or its bare name, and no package can hold two interfaces side by side.
//!
//! Cargo passes arguments for a cdylib alone on to the cdylibs that depend on this crate too (the
//! NFs for groups), which would then all have this name. So the argument is for all targets of this
//! package; in programs (tests and examples) a name means nothing.

/// Raise it when programs that are linked with the library of before would no longer work. It is
/// not `SLUICE_ABI`, which also grows with what is added.
const SONAME: &str = "libsluice_nf.so.1";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg=-Wl,-soname,{SONAME}");
    println!("cargo::rustc-env=SLUICE_NF_SONAME={SONAME}");
}
