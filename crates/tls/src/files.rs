//! Reads certificates and keys from PEM files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::Stream;

/// Files in which operating systems keep the certificates of trusted authorities.
const SYSTEM: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// The reason why TLS cannot be used. The text names the file and the fault.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or has other contents than required.
    #[error("{}: {why}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Description of the fault.
        why: String,
    },
    /// No file of authorities is given, and the system has none of the usual files.
    #[error("the system has no certificates of authorities: name a file with those to trust")]
    NoAuthorities,
    /// The name of the peer is neither a DNS name nor an address.
    #[error("{0:?} is no name that a certificate can have")]
    Name(String),
    /// The key does not belong to the certificate, or one of the two is unusable.
    #[error("{0}")]
    Unusable(String),
}

/// Whether clients must show a certificate, and which authorities are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Clients {
    /// Clients need not show a certificate, and are not asked for one.
    #[default]
    No,
    /// A client may show a certificate. An authority in this file must have issued the certificate.
    Optional(PathBuf),
    /// A client must show a certificate. An authority in this file must have issued the certificate.
    Required(PathBuf),
}

/// The TLS settings of a server. All clones share one value, so a replacement affects all of them.
#[derive(Clone)]
pub struct ServerTls(Arc<RwLock<Arc<ServerConfig>>>);

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerTls")
    }
}

/// The TLS settings of a client for connections to one server.
#[derive(Clone)]
pub struct ClientTls(Arc<(Arc<ClientConfig>, ServerName<'static>)>);

impl PartialEq for ClientTls {
    fn eq(&self, other: &ClientTls) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ClientTls {}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ClientTls").field(&self.0.1).finish()
    }
}

/// Returns the cryptographic library for all TLS connections of the project.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn file_error(path: &Path, why: impl ToString) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(|found| found.collect::<Result<Vec<_>, _>>())
        .map_err(|error| file_error(path, error))?;
    if found.is_empty() {
        return Err(file_error(path, "there is no certificate in it"));
    }
    Ok(found)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = std::fs::read(path).map_err(|error| file_error(path, error))?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        _ if is_encrypted(&text) => file_error(
            path,
            "the key is encrypted; decrypt it, e.g. openssl pkey -in FILE -out NEWFILE",
        ),
        pem::Error::NoItemsFound => file_error(path, "there is no private key in it"),
        error => file_error(path, error),
    })
}

/// Returns whether a line of this file, which has no usable key, says that a key is encrypted.
fn is_encrypted(text: &[u8]) -> bool {
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.any(|line| {
        line == b"-----BEGIN ENCRYPTED PRIVATE KEY-----" || line == b"Proc-Type: 4,ENCRYPTED"
    })
}

/// Returns `named`, or by default the system's file of trusted authorities.
///
/// # Errors
/// `named` is `None`, and the system has none of the usual files.
pub fn authorities_file(named: Option<&Path>) -> Result<&Path, TlsError> {
    let system = || SYSTEM.iter().map(Path::new).find(|path| path.is_file());
    named.or_else(system).ok_or(TlsError::NoAuthorities)
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let (good, _) = roots.add_parsable_certificates(certificates(path)?);
    if good == 0 {
        return Err(file_error(
            path,
            "there is no certificate of an authority in it",
        ));
    }
    Ok(roots)
}

fn unusable(error: impl ToString) -> TlsError {
    TlsError::Unusable(error.to_string())
}

impl ServerTls {
    /// Reads the certificate (with its chain) and the key. `clients`: whether clients must show a certificate.
    ///
    /// # Errors
    /// [`TlsError`] if a file cannot be used.
    pub fn new(
        certificate: &Path,
        key_file: &Path,
        clients: &Clients,
    ) -> Result<ServerTls, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let verifier = |ca: &Path| {
            let roots = Arc::new(authorities(ca)?);
            Ok(WebPkiClientVerifier::builder_with_provider(
                roots,
                provider(),
            ))
        };
        let builder = match clients {
            Clients::No => builder.with_no_client_auth(),
            Clients::Optional(ca) => {
                let verifier = verifier(ca)?.allow_unauthenticated().build();
                builder.with_client_cert_verifier(verifier.map_err(unusable)?)
            }
            Clients::Required(ca) => {
                builder.with_client_cert_verifier(verifier(ca)?.build().map_err(unusable)?)
            }
        };
        let config = builder
            .with_single_cert(certificates(certificate)?, key(key_file)?)
            .map_err(|error| {
                TlsError::Unusable(format!(
                    "certificate {} with key {}: {error}",
                    certificate.display(),
                    key_file.display()
                ))
            })?;
        Ok(ServerTls(Arc::new(RwLock::new(Arc::new(config)))))
    }

    /// From now on, connections that are accepted get the settings of `by`.
    pub fn replace(&self, by: &ServerTls) {
        let config = by.config();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wraps an accepted connection. The handshake begins when the client sends its first message.
    ///
    /// # Errors
    /// An error of rustls. No case is known in which this happens.
    pub fn accept<T>(&self, socket: T) -> io::Result<Stream<T>> {
        let session = rustls::ServerConnection::new(self.config()).map_err(io::Error::other)?;
        Ok(Stream::new(socket, session.into()))
    }
}

impl ClientTls {
    /// Makes the settings for connections to the server with this name or address. `ca`: file of the authorities whose
    /// certificates are accepted; by default the system's. `identity`: certificate and key for the server.
    ///
    /// # Errors
    /// [`TlsError`] if a file or the name is unusable.
    pub fn new(
        name: &str,
        ca: Option<&Path>,
        identity: Option<(&Path, &Path)>,
    ) -> Result<ClientTls, TlsError> {
        let server =
            ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))?;
        let authorities = Arc::new(authorities(authorities_file(ca)?)?);
        let verifier = WebPkiServerVerifier::builder_with_provider(authorities, provider())
            .build()
            .map_err(unusable)?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_webpki_verifier(verifier);
        let config = match identity {
            Some((certificate, key_file)) => builder
                .with_client_auth_cert(certificates(certificate)?, key(key_file)?)
                .map_err(unusable)?,
            None => builder.with_no_client_auth(),
        };
        Ok(ClientTls(Arc::new((Arc::new(config), server))))
    }

    /// Returns a copy of these settings for a server with another name.
    ///
    /// # Errors
    /// [`TlsError::Name`] if the name is invalid.
    pub fn named(&self, name: &str) -> Result<ClientTls, TlsError> {
        let server =
            ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))?;
        Ok(ClientTls(Arc::new((Arc::clone(&self.0.0), server))))
    }

    /// Makes the settings from the query of a URL: `ca=FILE`, `cert=FILE`, `key=FILE`, and `name=NAME` if the server's
    /// certificate has another name than the URL. Other options are ignored.
    ///
    /// # Errors
    /// [`TlsError`] if a file or a name is unusable.
    pub fn of_query(name: &str, query: &str) -> Result<ClientTls, TlsError> {
        let text = |name: &str| {
            let mut options = query.split('&').filter_map(|option| option.split_once('='));
            let found = options.find(|(key, _)| *key == name);
            found.map(|(_, value)| value)
        };
        let option = |name: &str| text(name).map(Path::new);
        let identity = match (option("cert"), option("key")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => {
                let why = "a certificate needs its key: give both cert=FILE and key=FILE";
                return Err(TlsError::Unusable(why.into()));
            }
        };
        let name = text("name").unwrap_or(name);
        ClientTls::new(name, option("ca"), identity)
    }

    /// Wraps a connection to the server. The connection may still be in progress. The handshake begins with the first
    /// write or flush.
    ///
    /// # Errors
    /// An error of rustls. No case is known in which this happens.
    pub fn connect<T>(&self, socket: T) -> io::Result<Stream<T>> {
        let (config, name) = &*self.0;
        let session = rustls::ClientConnection::new(Arc::clone(config), name.clone())
            .map_err(io::Error::other)?;
        Ok(Stream::new(socket, session.into()))
    }
}
