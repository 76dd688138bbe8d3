//! Compiles and links the shim against pkg-config's libdpdk, if the feature `dpdk` is on.

#[cfg(feature = "dpdk")]
fn main() {
    println!("cargo::rerun-if-changed=shim.c");
    println!("cargo::rerun-if-changed=shim.h");
    let dpdk = pkg_config::Config::new().atleast_version("22.11").cargo_metadata(false).probe("libdpdk").unwrap_or_else(|error| {
        panic!("the feature `dpdk` needs DPDK 22.11 or later with its headers (Debian: apt install libdpdk-dev): {error}")
    });
    // DPDK's headers need the flags that `include_paths` lacks: -include rte_config.h, -march.
    let flags = pkg_config_flags();
    cc::Build::new()
        .file("shim.c")
        .flags(&flags)
        .includes(&dpdk.include_paths)
        // Hotplug's DMA mapping is still marked experimental; it has not changed since 2018.
        .define("ALLOW_EXPERIMENTAL_API", None)
        .opt_level(3)
        .flag_if_supported("-std=gnu11")
        .warnings(true)
        .extra_warnings(true)
        // DPDK's own headers have many unused parameters.
        .flag_if_supported("-Wno-unused-parameter")
        .compile("sluice_dpdk_shim");
    for path in &dpdk.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    // Only what the shim calls. EAL loads drivers as plugins; linking all would slow every start.
    for lib in ["rte_ethdev", "rte_mbuf", "rte_mempool", "rte_eal"] {
        println!("cargo::rustc-link-lib={lib}");
    }
}

/// The flags of `pkg-config --cflags`, without include paths.
#[cfg(feature = "dpdk")]
fn pkg_config_flags() -> Vec<String> {
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    let program = std::env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let output = std::process::Command::new(program).args(["--cflags", "libdpdk"]).output().expect("pkg-config ran a moment ago");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().filter(|flag| !flag.starts_with("-I")).map(str::to_owned).collect()
}

#[cfg(not(feature = "dpdk"))]
fn main() {}
