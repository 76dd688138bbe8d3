//! The certificate and the handshake, as a client that trusts one authority sees them.

use std::os::unix::fs::PermissionsExt;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, ProtocolVersion};

use super::*;

/// A folder with a certificate and its key.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn certificate(&self) -> PathBuf {
        self.0.path().join("certificate.pem")
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("key.pem")
    }

    /// Writes a certificate of its own authority for `localhost`, and its key.
    fn write(&self, change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["localhost".to_string()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        self.put(&self.certificate(), &certificate.pem());
        self.put(&self.key(), &key.serialize_pem());
        certificate.der().clone()
    }

    fn put(&self, path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn read(&self) -> Result<Tls, FileError> {
        Tls::read(&self.certificate(), &self.key())
    }

    #[track_caller]
    fn refusal(&self) -> String {
        self.read().unwrap_err().to_string()
    }
}

/// A client that trusts this certificate alone.
fn client(trusted: &CertificateDer<'static>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions();
    let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config).into()
}

/// What comes of a handshake, at both ends.
async fn shake_hands(
    tls: &Tls,
    trusted: &CertificateDer<'static>,
) -> (io::Result<TlsStream<DuplexStream>>, io::Result<tokio_rustls::client::TlsStream<DuplexStream>>) {
    let (here, there) = duplex(1 << 16);
    let client = client(trusted);
    tokio::join!(tls.accept(here), client.connect(ServerName::try_from("localhost").unwrap(), there))
}

#[tokio::test]
async fn bytes_of_a_client_that_trusts_the_certificate_come_through() {
    let folder = Folder::new();
    let trusted = folder.write(|_| ());
    let tls = folder.read().unwrap();
    assert_eq!(tls.warning(), None);
    assert_eq!(format!("{tls:?}"), format!("certificate {}", folder.certificate().display()));
    let (here, there) = shake_hands(&tls, &trusted).await;
    let (mut here, mut there) = (here.unwrap(), there.unwrap());
    assert_eq!(there.get_ref().1.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(there.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    there.write_all(b"GET").await.unwrap();
    there.flush().await.unwrap();
    let mut got = [0; 3];
    here.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"GET");
}

#[tokio::test]
async fn a_client_that_trusts_another_gets_nothing() {
    let (folder, other) = (Folder::new(), Folder::new());
    folder.write(|_| ());
    let (here, there) = shake_hands(&folder.read().unwrap(), &other.write(|_| ())).await;
    assert!(here.is_err() && there.is_err());
}

#[tokio::test]
async fn a_renewed_certificate_is_used_and_a_bad_one_is_not() {
    let folder = Folder::new();
    let first = folder.write(|_| ());
    let tls = folder.read().unwrap();
    tls.look();
    folder.put(&folder.certificate(), "what is half written");
    (0..3).for_each(|_| tls.look());
    assert!(shake_hands(&tls, &first).await.1.is_ok(), "the former stays");
    let second = folder
        .write(|params| params.subject_alt_names.extend(CertificateParams::new(["other".to_string()]).unwrap().subject_alt_names));
    (0..2).for_each(|_| tls.look());
    assert!(shake_hands(&tls, &second).await.1.is_ok());
    assert!(shake_hands(&tls, &first).await.1.is_err());
    std::fs::remove_file(folder.key()).unwrap();
    (0..2).for_each(|_| tls.look());
    assert!(shake_hands(&tls, &second).await.1.is_ok(), "it stays without its file");
}

#[test]
fn bad_files_are_refused_with_what_is_wrong() {
    let folder = Folder::new();
    let missing = folder.refusal();
    assert!(missing.starts_with(&format!("cannot read the certificate of the page from {}: ", folder.certificate().display())));
    folder.write(|_| ());
    let [certificate, key] = [folder.certificate(), folder.key()].map(|path| std::fs::read_to_string(path).unwrap());
    let another = KeyPair::generate().unwrap().serialize_pem();
    for (text, words) in [
        ("", "has no private key; it needs one in PEM without a passphrase"),
        (&*certificate, "has no private key"),
        ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n", "without a passphrase"),
        (&key[..key.len() / 2], "is cut short"),
        ("-----BEGIN PRIVATE KEY-----\n!!!!\n-----END PRIVATE KEY-----\n", "is not written as PEM"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "is none of RSA, ECDSA (P-256, P-384) or Ed25519"),
        (&*another, "is not that of the first certificate in "),
    ] {
        folder.put(&folder.key(), text);
        let said = folder.refusal();
        assert!(said.starts_with(&format!("{}, the key of the page, ", folder.key().display())) && said.contains(words), "{said}");
        assert!(!said.contains("AAAA") && !said.contains("!!!!"), "{said}");
    }
    folder.put(&folder.key(), &key);
    std::fs::set_permissions(folder.key(), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(folder.refusal().contains(", the key of the page; write `chmod 600 "));
    folder.put(&folder.key(), &key);
    for (text, words) in [
        ("", "has no certificate; "),
        (&*key, "has no certificate; "),
        (&certificate[..certificate.len() / 2], "is cut short; "),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "has a certificate that cannot be read; "),
    ] {
        folder.put(&folder.certificate(), text);
        let said = folder.refusal();
        assert!(said.starts_with(&format!("{}, the certificate of the page, {words}", folder.certificate().display())), "{said}");
    }
    folder.put(&folder.certificate(), &certificate);
    folder.read().unwrap();
}

#[test]
fn a_certificate_of_another_time_is_warned_about() {
    let folder = Folder::new();
    folder.write(|params| params.not_after = date_time_ymd(2001, 1, 1));
    let said = folder.read().unwrap().warning().unwrap();
    assert!(said.contains("certificate.pem, the certificate of the page, has expired; "), "{said}");
    folder.write(|params| params.not_before = date_time_ymd(4000, 1, 1));
    assert!(folder.read().unwrap().warning().unwrap().contains("is not valid yet; "));
    // One of an authority.
    folder.write(|params| {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.not_after = date_time_ymd(2001, 1, 1);
    });
    assert!(folder.read().unwrap().warning().unwrap().contains("has expired; "));
}
