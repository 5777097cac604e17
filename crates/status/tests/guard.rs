//! The port with TLS: who may read, and what those who may not can do.

#[path = "../../../tests/shared/certificates.rs"]
mod certificates;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use certificates::{Files, files};
use pmnet_status::{About, CONNECTIONS_MAX, Guard, Place, REQUEST_MAX, Shown, StatusPort};
use pmnet_tls::{ClientTls, Distrust};

const ABOUT: About = About {
    role: "test",
    version: "1.2.3",
    commit: "abcdef",
};

struct Stand {
    files: Files,
    _port: StatusPort,
    address: SocketAddr,
}

fn stand(name: &str) -> Stand {
    let files = files();
    let (cert, key) = files.pair(name);
    let guard = Guard::new(&cert, &key, &files.path("ca.pem")).unwrap();
    let place = Place::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let port = StatusPort::open(place, Some(guard), ABOUT, Shown::default()).unwrap();
    let Some(Place::Tcp(address)) = port.place().cloned() else {
        panic!("{port:?}")
    };
    Stand {
        files,
        _port: port,
        address,
    }
}

impl Stand {
    fn get(&self, ca: &str, identity: Option<&str>) -> std::io::Result<String> {
        let pair = identity.map(|name| self.files.pair(name));
        let pair = pair.as_ref().map(|(cert, key)| (&**cert, &**key));
        let tls = ClientTls::new("localhost", Some(&self.files.path(ca)), pair).unwrap();
        let socket = TcpStream::connect(self.address)?;
        socket.set_read_timeout(Some(2 * REQUEST_MAX))?;
        let mut stream = tls.connect(socket)?;
        while stream.is_handshaking() {
            stream.shake_hands()?;
        }
        // In TLS 1.3 a client hears only then that its certificate is refused.
        let _refused = stream.write_all(b"GET /livez HTTP/1.1\r\n\r\n");
        let _refused = stream.flush();
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }
}

#[test]
fn only_clients_with_a_certificate_are_answered() {
    let stand = stand("server");
    let text = stand.get("ca.pem", Some("client")).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    for (ca, identity, why) in [
        ("ca.pem", None, Some(Distrust::Ours)),
        ("ca.pem", Some("stranger"), Some(Distrust::OursUnknown)),
        ("ca.pem", Some("old"), Some(Distrust::OursExpired)),
        ("other.pem", Some("client"), Some(Distrust::TheirsUnknown)),
    ] {
        match stand.get(ca, identity) {
            // A refusal that meets a request is lost with the connection.
            Err(error) if Distrust::of(&error).is_some() => {
                assert_eq!(Distrust::of(&error), why, "{ca} {identity:?}");
            }
            Err(_) => {}
            Ok(text) => assert_eq!(text, "", "{ca} {identity:?}"),
        }
    }
    // Without TLS.
    let mut plain = TcpStream::connect(stand.address).unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut said = Vec::new();
    let _reset = plain.read_to_end(&mut said);
    assert!(!said.starts_with(b"HTTP"), "{said:?}");
}

#[test]
fn a_new_certificate_is_shown_without_a_restart() {
    let stand = stand("old");
    let error = stand.get("ca.pem", Some("client")).unwrap_err();
    assert_eq!(Distrust::of(&error), Some(Distrust::TheirsExpired));
    for ending in ["key", "pem"] {
        let file = |name: &str| stand.files.path(&format!("{name}.{ending}"));
        std::fs::copy(file("server"), file("old")).unwrap();
        // Half of it is not used.
        let _either = stand.get("ca.pem", Some("client"));
    }
    let text = stand.get("ca.pem", Some("client")).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
}

/// As many connections as there may be, none of which ends its handshake, are over after the time of a request.
#[test]
fn clients_that_never_end_their_handshake_are_let_go() {
    let stand = stand("server");
    let begin = |at: usize| {
        let mut stream = TcpStream::connect(stand.address).unwrap();
        // The beginning of a handshake, or nothing at all.
        if at.is_multiple_of(2) {
            stream.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
        }
        stream
    };
    let slow: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(begin).collect();
    let begun = Instant::now();
    let text = stand.get("ca.pem", Some("client")).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    let took = begun.elapsed();
    assert!(took < REQUEST_MAX + Duration::from_secs(3), "{took:?}");
    drop(slow);
}
