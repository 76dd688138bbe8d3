//! Checks without starting DPDK whether a device could be opened.
//!
//! Limits: what only the driver knows (its arguments, a NIC's state) shows at opening.

use std::path::Path;

use crate::DpdkError;
#[cfg(feature = "dpdk")]
use crate::error::known_obstacle;
use crate::options::{device_name, is_pci_address};

/// Marks a driver's name in a plugin: `PMD_INFO_STRING= {"name" : "net_null", …`.
const NAME_MARK: &[u8] = b"PMD_INFO_STRING= {\"name\" : \"";

/// Finds obstacles to opening a device: no such driver, interface, file or NIC, or no permission.
///
/// # Errors
/// [`DpdkError::Device`], which says what to do; [`DpdkError::NotBuilt`].
pub fn look_at(devargs: &str) -> Result<(), DpdkError> {
    #[cfg(feature = "dpdk")]
    {
        let root = Path::new("/");
        let obstacle = known_obstacle(root, |name| crate::interface::flags(name).is_some(), devargs);
        match obstacle.or_else(|| missing_driver(&crate::face::plugin_folder(), devargs)) {
            None => Ok(()),
            Some(hint) => Err(DpdkError::Device { device: devargs.into(), doing: "open", hint, log: String::new() }),
        }
    }
    #[cfg(not(feature = "dpdk"))]
    {
        let _ = devargs;
        Err(DpdkError::NotBuilt)
    }
}

/// The hint if no plugin has the driver of a virtual device.
///
/// None as well without plugins: DPDK's libraries may contain the drivers.
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
fn missing_driver(folder: &Path, devargs: &str) -> Option<String> {
    if is_pci_address(devargs) {
        return None;
    }
    let device = device_name(devargs).replacen("eth_", "net_", 1);
    let files: Vec<_> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let plugins: Vec<_> = files.iter().filter(|f| f.extension().is_some_and(|e| e == "so")).collect();
    if plugins.is_empty() {
        return None;
    }
    // DPDK takes the driver whose name is a prefix of the device's. Most plugins are named like
    // their driver; only others are read.
    let called = |file: &&std::path::PathBuf| Some(file.file_stem()?.to_str()?.strip_prefix("librte_")?.to_owned());
    let is_its = |driver: &str| driver.starts_with("net_") && device.starts_with(driver);
    if plugins.iter().filter_map(called).any(|driver| is_its(&driver)) {
        return None;
    }
    let holds = |file: &&&std::path::PathBuf| {
        let bytes = std::fs::read(file).unwrap_or_default();
        names(&bytes).any(is_its)
    };
    match plugins.iter().find(holds) {
        Some(_) => None,
        None => Some(format!("no driver has a name that {device} begins with; DPDK's drivers lie in {}", folder.display())),
    }
}

/// Names of a plugin's drivers.
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
fn names(plugin: &[u8]) -> impl Iterator<Item = &str> {
    let marks = (0..plugin.len()).filter(|at| plugin[*at] == NAME_MARK[0] && plugin[*at..].starts_with(NAME_MARK));
    marks.filter_map(|at| {
        let rest = &plugin[at + NAME_MARK.len()..];
        let end = rest.iter().take(64).position(|byte| *byte == b'"')?;
        std::str::from_utf8(&rest[..end]).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_found_by_file_and_by_what_plugins_say() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(missing_driver(folder.path(), "net_nope0"), None, "there are no plugins to ask");
        let plugin = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        plugin("librte_net_af_packet.so", "");
        plugin("librte_net_vhost.so", "\0PMD_INFO_STRING= {\"name\" : \"net_other\", \"x\" : 1}\0");
        for known in ["net_af_packet0,iface=a", "eth_af_packet1", "net_other7", "0000:3b:00.0"] {
            assert_eq!(missing_driver(folder.path(), known), None, "{known}");
        }
        let said = missing_driver(folder.path(), "net_nope0,size=60").unwrap();
        assert!(said.contains("net_nope0") && said.contains(&folder.path().display().to_string()), "{said}");
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn this_dpdk_is_looked_at() {
        assert_eq!(look_at("net_null0"), Ok(()));
        assert!(look_at("net_nope0").unwrap_err().to_string().contains("no driver"));
        assert!(look_at("net_af_packet0,iface=no-such0").unwrap_err().to_string().contains("no interface no-such0"));
    }
}
