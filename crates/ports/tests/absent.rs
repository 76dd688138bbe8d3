//! What is said of DPDK, by a build with it and by one without. `make test` runs it with both.

use sluice_api::config::Port;
use sluice_dataplane::fake::cache;
use sluice_dataplane::frame::FramePool;
use sluice_dataplane::port::Kinds;
use sluice_ports::All;

fn said(with: &'static str, without: &'static str) -> &'static str {
    if sluice_dpdk::BUILT_IN { with } else { without }
}

#[test]
fn a_port_that_needs_dpdk_says_what_to_do() {
    let port: Port = toml::from_str("kind = \"dpdk\"\nname = \"wan\"\ndevargs = \"net_nope0\"").unwrap();
    let error = All::default().look_at(&port, 2048).unwrap_err().to_string();
    let wanted = said("no driver", "build with `--features dpdk`");
    assert!(error.contains("wan") && error.contains(wanted), "{error}");
    let error = All::default().open(&port, cache(64).arena(), &FramePool::new(64)).err().unwrap().to_string();
    let wanted = said("set `dpdk = true` in [memory]", "build with `--features dpdk`");
    assert!(error.contains("wan") && error.contains(wanted), "{error}");
    let error = sluice_dpdk::look_at("net_nope0").unwrap_err().to_string();
    let wanted = said("no driver", "--features dpdk");
    assert!(error.contains(wanted), "{error}");
}

/// With DPDK, it would be started in this process: crates/dpdk/tests/devices.rs does that.
#[test]
#[cfg(not(feature = "dpdk"))]
fn a_build_without_dpdk_does_not_start_it() {
    let config: sluice_api::config::Config =
        toml::from_str("[[port]]\nname = \"wan\"\nkind = \"dpdk\"\ndevargs = \"net_null0\"").unwrap();
    let error = All::default().devices(&config, 4096, false).err().unwrap().to_string();
    assert!(error.contains("--features dpdk"), "{error}");
}

#[test]
fn a_program_that_shares_memory_by_a_device_needs_dpdk() {
    let text = "[[port]]\nname = \"p\"\nkind = \"sink\"\n[[service]]\nname = \"f\"\nkind = \"foreign\"\nvia = \"memif\"\nexec = \"x\"\n\
                [[chain]]\nname = \"c\"\nservices = [\"f\"]\negress = \"p\"\n";
    let problems = sluice_config::load::parse(text, "a.toml").map_or_else(|refused| refused.problems, |_| Vec::new());
    let is_refused = problems.iter().any(|problem| problem.is_error() && problem.message.contains("built without"));
    assert_eq!(is_refused, !sluice_dpdk::BUILT_IN, "{problems:?}");
}
