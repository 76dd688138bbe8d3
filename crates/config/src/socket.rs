//! Sockets at which foreign programs find the sides of their hop.

use std::path::{Path, PathBuf};

/// Longest path of a socket, in bytes.
const MAX_PATH: usize = 100;

/// The socket of one side of an NF.
///
/// # Errors
/// Why no socket can have this name.
pub fn of_side(runtime_dir: &Path, nf: &str, interface: &str) -> Result<PathBuf, String> {
    let path = std::path::absolute(runtime_dir).unwrap_or_else(|_| runtime_dir.into()).join(format!("{nf}.{interface}"));
    let text = path.to_string_lossy();
    // These characters have a meaning in the arguments of a device.
    if let Some(bad) = text.chars().find(|c| ",[]()\"'= ".contains(*c)) {
        return Err(format!("no socket of a device can be called {text}: there is {bad:?} in it"));
    }
    if text.len() > MAX_PATH {
        return Err(format!("no socket can be called {text}: that is longer than {MAX_PATH} bytes"));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_have_names_that_devices_understand() {
        let of = |dir: &str, interface| of_side(Path::new(dir), "ids.0", interface);
        assert_eq!(of("/run/sluice", "in"), Ok("/run/sluice/ids.0.in".into()));
        assert!(of("/run/sluice", "a,b").unwrap_err().contains("','"));
        assert!(of(&"/run".repeat(30), "in").unwrap_err().contains("longer"));
    }
}
