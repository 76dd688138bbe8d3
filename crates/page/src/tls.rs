//! TLS of the listener: a certificate and its key, and the handshake with a client.
//!
//! TLS 1.3 alone, by rustls. The certificate is read again when its files have changed; one that is
//! no good leaves the former in use. Limits: one certificate, whatever name a client asks for; no
//! certificates of clients, which have tokens instead.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{CertificateError, Error, RootCertStore, ServerConfig, version};
use tokio_rustls::server::TlsStream;

use crate::files::{FileError, FileKind, FileWatch, read};

/// TLS of a listener.
#[derive(Clone)]
pub struct Tls {
    kept: Arc<Kept>,
    acceptor: TlsAcceptor,
}

/// The files, and the certificate that is in use.
struct Kept {
    certificate: PathBuf,
    key: PathBuf,
    watch: Mutex<FileWatch>,
    current: RwLock<Arc<CertifiedKey>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kept)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "certificate {}", self.certificate.display())
    }
}

impl ResolvesServerCert for Kept {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl Kept {
    fn current(&self) -> Arc<CertifiedKey> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Tls {
    /// Reads a certificate, with those that lead to its authority, and its key: both in PEM.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, FileError> {
        let provider = Arc::new(ring::default_provider());
        let watch = Mutex::new(FileWatch::new(vec![certificate.to_owned(), key.to_owned()]));
        let current = RwLock::new(Arc::new(certified(certificate, key, &provider)?));
        let kept = Arc::new(Kept { certificate: certificate.to_owned(), key: key.to_owned(), watch, current });
        let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&version::TLS13]);
        let builder = builder.expect("the provider has suites of TLS 1.3");
        let mut config = builder.with_no_client_auth().with_cert_resolver(kept.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { kept, acceptor: Arc::new(config).into() })
    }

    /// What clients will not like about the certificate: that it has expired, or is not valid yet.
    pub fn warning(&self) -> Option<String> {
        let about = match fault_of_time(&self.kept.current().cert)? {
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "is not valid yet",
            _ => "has expired",
        };
        Some(format!(
            "{}, {}, {about}; browsers refuse it until it is renewed",
            self.kept.certificate.display(),
            FileKind::Certificate
        ))
    }

    /// Reads the files again if they have changed. Where they are no good, the former certificate
    /// stays in use.
    pub fn look(&self) {
        if !self.kept.watch.lock().unwrap_or_else(PoisonError::into_inner).has_changed() {
            return;
        }
        match certified(&self.kept.certificate, &self.kept.key, &ring::default_provider()) {
            Ok(another) => {
                *self.kept.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(another);
                info!("the certificate of the page was read again from {}", self.kept.certificate.display());
                if let Some(warning) = self.warning() {
                    warn!("{warning}");
                }
            }
            Err(error) => warn!("{error}; until then the former certificate stays in use"),
        }
    }

    /// Shakes hands with a client. The caller bounds how long that takes.
    ///
    /// # Errors
    /// The client left, speaks no TLS 1.3, or does not trust the certificate.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        self.acceptor.accept(stream).await
    }
}

/// Reads a certificate and its key, and checks that they belong together.
fn certified(certificate: &Path, key: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, FileError> {
    let wrong = |why: &str| FileError::content(FileKind::Certificate, certificate, why);
    let text = read(certificate, FileKind::Certificate)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| wrong(fault_of(&error)))?;
    if chain.is_empty() {
        return Err(wrong("has no certificate; it needs -----BEGIN CERTIFICATE-----, which PEM files have"));
    }
    let text = read(key, FileKind::Key)?;
    let wrong_key = |why: &str| FileError::content(FileKind::Key, key, why);
    let secret = PrivateKeyDer::from_pem_slice(&text).map_err(|error| wrong_key(fault_of(&error)))?;
    CertifiedKey::from_der(chain, secret, provider).map_err(|error| match error {
        Error::InconsistentKeys(_) => wrong_key(&format!(
            "is not that of the first certificate in {}; name the two that belong together",
            certificate.display()
        )),
        Error::InvalidCertificate(_) => wrong("has a certificate that cannot be read; name one in PEM, of version 3"),
        _ => wrong_key("is none of RSA, ECDSA (P-256, P-384) or Ed25519; make one of these"),
    })
}

/// What is wrong with a PEM file. Nothing of its text is in it.
fn fault_of(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::NoItemsFound => "has no private key; it needs one in PEM without a passphrase",
        pem::Error::MissingSectionEnd { .. } => "is cut short; copy it again",
        _ => "is not written as PEM; copy it again",
    }
}

/// Whether the first certificate is of another time. Nothing else is asked about it: which
/// authorities clients trust is theirs to know.
fn fault_of_time(chain: &[CertificateDer<'static>]) -> Option<CertificateError> {
    let first = chain.first()?;
    let mut roots = RootCertStore::empty();
    roots.add(first.clone()).ok()?;
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()?;
    let anyone = ServerName::from(std::net::Ipv4Addr::LOCALHOST);
    // Times are the first thing that is looked at.
    let verdict = verifier.verify_server_cert(first, &[], &anyone, &[], UnixTime::now());
    let Err(Error::InvalidCertificate(fault)) = verdict else { return None };
    let is_of_time = matches!(
        fault,
        CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
    );
    is_of_time.then_some(fault)
}

#[cfg(test)]
#[path = "tls_test.rs"]
mod tls_test;
