//! The placement kept over a restart of the daemon: a JSON file, present while NFs are placed.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use sluice_slo::assignment::Assignment;

use sluice_host::file;

#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    #[error("cannot {what} {path}: {source}; name another file with promises.placement", path = path.display())]
    System { what: &'static str, path: PathBuf, source: io::Error },
    /// The file has other content.
    #[error("{path} holds no placement ({source}); move it away", path = path.display())]
    Broken { path: PathBuf, source: serde_json::Error },
}

/// Reads the placement; None if nothing is placed.
pub fn read(path: &Path) -> Result<Option<Assignment>, KeptError> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|source| KeptError::Broken { path: path.into(), source }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(KeptError::System { what: "read", path: path.into(), source }),
    }
}

/// Writes the placement, or removes the file.
///
/// # Errors
/// [`KeptError::System`]; the file is unchanged.
pub fn write(path: &Path, placed: Option<&Assignment>) -> Result<(), KeptError> {
    let (what, done) = match placed {
        Some(assignment) => {
            let text = serde_json::to_vec_pretty(assignment).map_err(io::Error::from);
            ("write", text.and_then(|text| file::replace(path, &text)))
        }
        None => ("remove", std::fs::remove_file(path).or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })),
    };
    done.map_err(|source| KeptError::System { what, path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::super::overlay::tests::assignment;
    use super::*;

    #[test]
    fn what_is_placed_is_there_until_nothing_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("placement.json");
        assert_eq!(read(&path).unwrap(), None);
        write(&path, None).unwrap();
        let placed = assignment(&[("acme", &["nat"], &[&[0]], 2)]);
        write(&path, Some(&placed)).unwrap();
        assert_eq!(read(&path).unwrap(), Some(placed.clone()));
        write(&path, None).unwrap();
        assert_eq!((read(&path).unwrap(), std::fs::read_dir(folder.path()).unwrap().count()), (None, 0));
        std::fs::write(&path, "{}").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("holds no placement"));
        let nowhere = folder.path().join("none/placement.json");
        assert!(write(&nowhere, Some(&placed)).unwrap_err().to_string().contains("promises.placement"));
    }
}
