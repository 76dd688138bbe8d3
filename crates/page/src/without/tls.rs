//! TLS in a build without the feature: there is none. A configuration that names a certificate is
//! refused before.

use std::convert::Infallible;
use std::io;
use std::path::Path;

use crate::files::{FileError, FileKind};

/// TLS of a listener, which this build does not have.
#[derive(Debug, Clone)]
pub struct Tls(Infallible);

impl Tls {
    /// Refuses the certificate.
    ///
    /// # Errors
    /// Always.
    pub fn read(certificate: &Path, _: &Path) -> Result<Self, FileError> {
        let why = "cannot be used: this sluiced was built without tls; build it with the feature tls of sluice-daemon";
        Err(FileError::content(FileKind::Certificate, certificate, why))
    }

    /// As in a build with it.
    pub fn warning(&self) -> Option<String> {
        match self.0 {}
    }

    /// As in a build with it.
    pub fn look(&self) {
        match self.0 {}
    }

    /// As in a build with it.
    ///
    /// # Errors
    /// None: it is never called.
    pub async fn accept<S>(&self, _: S) -> io::Result<S> {
        match self.0 {}
    }
}
