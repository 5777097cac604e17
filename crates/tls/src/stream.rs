//! A socket with TLS, which can be read and written like a socket without TLS.

use std::io::{self, ErrorKind, Read, Write};

use rustls::Connection;

use crate::distrust::Failure;

/// Maximum number of bytes that `write` has accepted and that are not sent yet.
const UNSENT_BYTES_MAX: usize = 64 * 1024;

/// A socket with TLS. If the inner socket does not block, the socket with TLS does not block either. An operation that
/// cannot be done now fails with `WouldBlock`, and continues at the next call. Reads and writes also make the
/// handshake.
///
/// A byte that `write` has accepted may not be sent yet. While [`Stream::has_unsent`] returns true, call `flush` again
/// whenever the socket is writable.
pub struct Stream<T> {
    socket: T,
    session: Connection,
}

impl<T> std::fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream")
    }
}

impl<T> Stream<T> {
    pub(crate) fn new(socket: T, mut session: Connection) -> Stream<T> {
        session.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        Stream { socket, session }
    }

    /// Returns the inner socket.
    pub fn socket(&self) -> &T {
        &self.socket
    }

    /// Returns whether the handshake is still in progress.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Returns whether accepted bytes are not sent yet.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.session.wants_write()
    }

    /// Appends TLS's closing message. After this call nothing more can be written. The caller must flush.
    pub fn close(&mut self) {
        self.session.send_close_notify();
    }
}

impl<T: Read + Write> Stream<T> {
    /// Makes one step of the handshake, on a socket that blocks. The caller repeats the call while
    /// [`Stream::is_handshaking`] returns true.
    ///
    /// # Errors
    /// The socket fails, or the peer is not trusted.
    pub fn shake_hands(&mut self) -> io::Result<()> {
        self.push()?;
        if self.is_handshaking() {
            if self.session.read_tls(&mut self.socket)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.process()?;
        }
        self.push()
    }

    /// Handles the received bytes.
    fn process(&mut self) -> io::Result<()> {
        if let Err(error) = self.session.process_new_packets() {
            // Sends the reason to the peer, if possible.
            let _ = self.push();
            return Err(io::Error::new(ErrorKind::InvalidData, Failure(error)));
        }
        Ok(())
    }

    /// Sends as many of the waiting bytes as the socket accepts.
    fn push(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            if self.session.write_tls(&mut self.socket)? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Like [`Self::push`], but returns no error if the socket does not accept all bytes now.
    fn try_push(&mut self) -> io::Result<()> {
        match self.push() {
            Err(error) if is_not_yet(error.kind()) => Ok(()),
            result => result,
        }
    }
}

fn is_not_yet(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

impl<T: Read + Write> Read for Stream<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The peer has closed the socket without TLS's closing message. This end is accepted, because the
                // protocols over TLS mark the ends of their messages.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                result => return result,
            }
            self.try_push()?;
            // After the end of the stream, `read_tls` returns 0 again. The session's reader then also returns 0.
            self.session.read_tls(&mut self.socket)?;
            self.process()?;
            self.try_push()?;
        }
    }
}

impl<T: Read + Write> Write for Stream<T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.try_push()?;
        if self.session.wants_write() && !self.session.is_handshaking() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = self.session.writer().write(buffer)?;
        self.try_push()?;
        if taken == 0 && !buffer.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push()
    }
}

#[cfg(test)]
#[path = "../../../tests/shared/certificates.rs"]
pub(crate) mod certificates;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use super::certificates::{Files, files};
    use super::*;
    use crate::{ClientTls, Clients, ServerTls};

    fn pair(server: &ServerTls, client: &ClientTls) -> (Stream<UnixStream>, Stream<UnixStream>) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        (server.accept(far).unwrap(), client.connect(near).unwrap())
    }

    /// Reads and writes by turns until all bytes are transferred in both directions, or until one end fails. Returns
    /// the error of the failed end.
    fn exchange(
        server: &mut Stream<UnixStream>,
        client: &mut Stream<UnixStream>,
        bytes: usize,
    ) -> Result<(), String> {
        let all: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let (mut sent, mut got) = ([0, 0], [Vec::new(), Vec::new()]);
        let mut buffer = vec![0; 5000];
        for _ in 0..100_000 {
            for (at, end) in [&mut *server, &mut *client].into_iter().enumerate() {
                match end.write(&all[sent[at]..]) {
                    Ok(count) => sent[at] += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.to_string()),
                }
                match end.flush() {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => {
                        return Err(error.to_string());
                    }
                    _ => {}
                }
                match end.read(&mut buffer) {
                    Ok(0) => return Err("end".into()),
                    Ok(count) => got[at].extend_from_slice(&buffer[..count]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            if got.iter().all(|got| got.len() >= bytes) && !server.is_handshaking() {
                assert!(got.iter().all(|got| *got == all));
                return Ok(());
            }
        }
        panic!("it never ends");
    }

    fn server(files: &Files, name: &str, clients: &Clients) -> ServerTls {
        let (cert, key) = files.pair(name);
        ServerTls::new(&cert, &key, clients).unwrap()
    }

    fn client(files: &Files, name: &str, ca: &str, identity: Option<&str>) -> ClientTls {
        let identity = identity.map(|name| files.pair(name));
        let identity = identity.as_ref().map(|(cert, key)| (&**cert, &**key));
        ClientTls::new(name, Some(&files.path(ca)), identity).unwrap()
    }

    #[test]
    fn everything_that_is_written_arrives_in_order() {
        let files = files();
        let (mut server, mut client) = pair(
            &server(&files, "server", &Clients::No),
            &client(&files, "localhost", "ca.pem", None),
        );
        assert!(server.is_handshaking() && client.is_handshaking());
        // The sockets and the buffers together cannot hold this many bytes.
        assert_eq!(exchange(&mut server, &mut client, 3_000_000), Ok(()));
        assert!(!server.is_handshaking() && !server.has_unsent());
        client.close();
        client.flush().unwrap();
        let mut byte = [0];
        assert_eq!(server.read(&mut byte).unwrap(), 0);
        drop(server);
        assert_eq!(client.read(&mut byte).unwrap(), 0);
    }

    #[test]
    fn who_is_not_who_it_says_is_refused() {
        let files = files();
        let required = Clients::Required(files.path("ca.pem"));
        let optional = Clients::Optional(files.path("ca.pem"));
        let result =
            |server_name: &str, clients: &Clients, name: &str, ca: &str, identity: Option<&str>| {
                let (mut server, mut client) = pair(
                    &server(&files, server_name, clients),
                    &client(&files, name, ca, identity),
                );
                exchange(&mut server, &mut client, 100)
            };
        for (clients, identity) in [
            (&Clients::No, None),
            (&optional, None),
            (&optional, Some("client")),
            (&required, Some("client")),
        ] {
            assert_eq!(
                result("server", clients, "localhost", "ca.pem", identity),
                Ok(())
            );
        }
        for (server, clients, name, ca, identity) in [
            ("server", &Clients::No, "localhost", "other.pem", None),
            ("server", &Clients::No, "elsewhere", "ca.pem", None),
            ("server", &Clients::No, "127.0.0.1", "ca.pem", None),
            ("old", &Clients::No, "localhost", "ca.pem", None),
            ("server", &required, "localhost", "ca.pem", None),
            ("server", &required, "localhost", "ca.pem", Some("stranger")),
            ("server", &required, "localhost", "ca.pem", Some("old")),
            ("server", &optional, "localhost", "ca.pem", Some("stranger")),
        ] {
            let error = result(server, clients, name, ca, identity).unwrap_err();
            assert!(
                error.starts_with("TLS: "),
                "{server} {name} {ca} {identity:?}: {error}"
            );
        }
    }

    #[test]
    fn who_speaks_no_tls_is_refused() {
        let files = files();
        let (mut near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut server = server(&files, "server", &Clients::No).accept(far).unwrap();
        near.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
        let error = server.read(&mut [0; 100]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        // The stream ends before the handshake is complete.
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut server = super::tests::server(&files, "server", &Clients::No)
            .accept(far)
            .unwrap();
        assert_eq!(
            server.read(&mut [0; 100]).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        drop(near);
        assert_eq!(server.read(&mut [0; 100]).unwrap(), 0);
    }

    /// Both kinds of encrypted keys: PKCS #8, and the older one of OpenSSL.
    #[test]
    fn a_key_that_is_encrypted_is_told() {
        let files = files();
        let (cert, key) = files.pair("client");
        let plain = std::fs::read_to_string(&key).unwrap();
        let pkcs8 = plain.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        let head =
            "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A0B";
        let older = format!("{head}\n\nAAAA\n-----END EC PRIVATE KEY-----\n");
        for (text, said) in [
            (
                &*pkcs8,
                "client.key: the key is encrypted; decrypt it, e.g. openssl pkey",
            ),
            (
                &older,
                "client.key: the key is encrypted; decrypt it, e.g. openssl pkey",
            ),
            ("", "client.key: there is no private key in it"),
        ] {
            std::fs::write(&key, text).unwrap();
            let (ca, identity) = (files.path("ca.pem"), Some((&*cert, &*key)));
            let error = ClientTls::new("localhost", Some(&ca), identity).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
            let error = ServerTls::new(&cert, &key, &Clients::No).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let files = files();
        let (cert, key) = files.pair("server");
        let none = Path::new("/none/such");
        let (_, other_key) = files.pair("client");
        for (cert, key, said) in [
            (none, &*key, "/none/such"),
            (&*cert, none, "/none/such"),
            (&*cert, &*cert, "server.pem"),
            (&*key, &*key, "there is no certificate in it"),
            (&*cert, &*other_key, "client.key"),
        ] {
            let error = ServerTls::new(cert, key, &Clients::No)
                .unwrap_err()
                .to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(matches!(
            ClientTls::new("not a name", Some(&cert), None),
            Err(crate::TlsError::Name(_))
        ));
    }
}
