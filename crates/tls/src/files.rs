//! Reads certificates and keys from PEM files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::Stream;

/// Files in which operating systems keep trusted authorities.
const SYSTEM: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Why TLS is not possible. The text names the file and the fault.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds something else.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// No file of authorities is named, and none of the system's usual files exists.
    #[error("the system has no certificates of authorities: name a file with those to trust")]
    NoAuthorities,
    /// The name of the other end is neither a DNS name nor an address.
    #[error("{0:?} is no name that a certificate can have")]
    Name(String),
    /// Certificate and key do not belong together, or are unusable.
    #[error("{0}")]
    Unusable(String),
}

/// Whether clients must show a certificate, and the authorities that are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Clients {
    /// Clients are not asked for a certificate.
    #[default]
    No,
    /// A client may show a certificate. It must be of an authority in this file.
    Optional(PathBuf),
    /// A client must show a certificate of an authority in this file.
    Required(PathBuf),
}

/// The TLS settings of a server. Clones share them: a replacement affects all clones.
#[derive(Clone)]
pub struct ServerTls(Arc<RwLock<Arc<ServerConfig>>>);

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerTls")
    }
}

/// The TLS settings of a client for one server.
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

/// Returns the cryptography that all TLS of the project uses.
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
    PrivateKeyDer::from_pem_file(path).map_err(|error| file_error(path, error))
}

/// Returns the file of trusted authorities: `named`, or otherwise the system's.
///
/// # Errors
/// No file is named, and none of the system's usual files exists.
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
    /// Reads certificate (with its chain) and key. `clients`: which clients may connect.
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

    /// Replaces these settings by those of `by`, for connections that are accepted from now on.
    pub fn replace(&self, by: &ServerTls) {
        let config = by.config();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wraps an accepted connection. The client begins the handshake.
    ///
    /// # Errors
    /// An error of rustls. No cause of such an error is known.
    pub fn accept<T>(&self, socket: T) -> io::Result<Stream<T>> {
        let session = rustls::ServerConnection::new(self.config()).map_err(io::Error::other)?;
        Ok(Stream::new(socket, session.into()))
    }
}

impl ClientTls {
    /// Makes the settings for the server of this name (or address). `ca`: the authorities whose certificates
    /// are accepted; without a name, the system's. `identity`: certificate and key to show to the server.
    ///
    /// # Errors
    /// [`TlsError`] if a file or the name cannot be used.
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

    /// Returns these settings for a server of another name.
    ///
    /// # Errors
    /// [`TlsError::Name`] if the name is invalid.
    pub fn named(&self, name: &str) -> Result<ClientTls, TlsError> {
        let server =
            ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))?;
        Ok(ClientTls(Arc::new((Arc::clone(&self.0.0), server))))
    }

    /// Makes the settings from the query of a URL: `ca=FILE`, `cert=FILE` and `key=FILE`, and `name=NAME` if
    /// the certificate has another name. Other options are ignored.
    ///
    /// # Errors
    /// [`TlsError`] if a file or a name cannot be used.
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

    /// Wraps a connection to the server, which may still be under way. The handshake begins with the first
    /// byte that is written, or with a flush.
    ///
    /// # Errors
    /// An error of rustls. No cause of such an error is known.
    pub fn connect<T>(&self, socket: T) -> io::Result<Stream<T>> {
        let (config, name) = &*self.0;
        let session = rustls::ClientConnection::new(Arc::clone(config), name.clone())
            .map_err(io::Error::other)?;
        Ok(Stream::new(socket, session.into()))
    }
}
