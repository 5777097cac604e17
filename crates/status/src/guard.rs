//! TLS of the status port. Only clients with a certificate of the right authority get an answer.

use std::io;
use std::path::{Path, PathBuf};

use mio::net::TcpStream;
use pmnet_tls::{Clients, ServerTls, Stamps, Stream, TlsError};

/// Certificate of the port, and the authorities of its clients. If the files are replaced, the next connection uses the
/// new ones.
#[derive(Debug)]
pub struct Guard {
    certificate: PathBuf,
    key: PathBuf,
    authorities: PathBuf,
    stamps: Stamps,
    tls: ServerTls,
}

impl Guard {
    /// Reads the port's certificate and key, and the file of authorities. Clients must show a certificate that one of
    /// these authorities issued.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and its fault.
    pub fn new(certificate: &Path, key: &Path, authorities: &Path) -> Result<Guard, TlsError> {
        Ok(Guard {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            authorities: authorities.to_owned(),
            stamps: Stamps::of([certificate, key, authorities]),
            tls: read(certificate, key, authorities)?,
        })
    }

    /// Wraps an accepted connection. Later reads make the handshake.
    pub(crate) fn accept(&mut self, stream: TcpStream) -> io::Result<Stream<TcpStream>> {
        self.renew();
        self.tls.accept(stream)
    }

    fn renew(&mut self) {
        let files = [&self.certificate, &self.key, &self.authorities];
        let [certificate, key, authorities] = files.map(PathBuf::as_path);
        let stamps = Stamps::of([certificate, key, authorities]);
        if stamps == self.stamps {
            return;
        }
        self.stamps = stamps;
        match read(certificate, key, authorities) {
            Ok(tls) => self.tls = tls,
            Err(error) => {
                tracing::warn!(
                    "PM6022 certificates of the status port have changed, and cannot be used: {error}. Those that were read before are used until the \
                     files change again"
                );
            }
        }
    }
}

fn read(certificate: &Path, key: &Path, authorities: &Path) -> Result<ServerTls, TlsError> {
    ServerTls::new(certificate, key, &Clients::Required(authorities.to_owned()))
}
