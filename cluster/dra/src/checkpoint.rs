//! The claims that are prepared, in a file that outlives the driver.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sluice_host::file::replace;

/// The form of the file.
const FORM: u32 = 1;

/// A claim that is prepared.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Prepared {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The request that the device is allocated for.
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    /// What it takes of the device.
    pub(crate) cores: u32,
    pub(crate) ways: u32,
    /// The NF of its pod, its SLO on the node, and the instance that this NF is of.
    pub(crate) nf: String,
    pub(crate) slo: String,
    /// UID of the pod.
    pub(crate) pod: String,
    pub(crate) instance: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct Written {
    form: u32,
    claims: Vec<Prepared>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} has no list of claims ({why}): move it away; pods that run go on")]
    Strange { path: PathBuf, why: String },
}

/// All claims that are prepared, by UID.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    path: PathBuf,
    claims: BTreeMap<String, Prepared>,
}

impl Checkpoint {
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let strange = |why: String| CheckpointError::Strange { path: path.into(), why };
        let written = match std::fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| strange(error.to_string()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Written { form: FORM, claims: Vec::new() },
            Err(source) => return Err(CheckpointError::Read { path: path.into(), source }),
        };
        if written.form != FORM {
            return Err(strange(format!("it is of form {}, and this driver has {FORM}", written.form)));
        }
        let claims = written.claims.into_iter().map(|claim| (claim.uid.clone(), claim)).collect();
        Ok(Self { path: path.into(), claims })
    }

    pub(crate) fn get(&self, uid: &str) -> Option<&Prepared> {
        self.claims.get(uid)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Prepared> {
        self.claims.values()
    }

    pub(crate) fn insert(&mut self, claim: Prepared) -> io::Result<()> {
        let mut claims = self.claims.clone();
        claims.insert(claim.uid.clone(), claim);
        self.write(claims)
    }

    pub(crate) fn remove(&mut self, uid: &str) -> io::Result<()> {
        let mut claims = self.claims.clone();
        if claims.remove(uid).is_none() {
            return Ok(());
        }
        self.write(claims)
    }

    fn write(&mut self, claims: BTreeMap<String, Prepared>) -> io::Result<()> {
        let text = serde_json::to_vec(&Written { form: FORM, claims: claims.values().cloned().collect() })?;
        replace(&self.path, &text)?;
        self.claims = claims;
        Ok(())
    }
}
