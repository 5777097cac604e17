//! Tests of the port with TLS: which clients get answers, and what other clients can do.

#[path = "../../../tests/shared/certificates.rs"]
mod certificates;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use certificates::{Files, files};
use pmnet_status::{
    About, CONNECTIONS_MAX, Guard, HANDSHAKE_MAX, Place, REQUEST_MAX, Shown, StatusPort,
};
use pmnet_tls::{ClientTls, Distrust};
use socket2::{Domain, Socket, Type};

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
        // In TLS 1.3, a client learns only at this point that its certificate is refused.
        let _refused = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: device.example\r\n\r\n");
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
            // If the refusal arrives while the client is still sending its request, the refusal is lost with the
            // connection.
            Err(error) if Distrust::of(&error).is_some() => {
                assert_eq!(Distrust::of(&error), why, "{ca} {identity:?}");
            }
            Err(_) => {}
            Ok(text) => assert_eq!(text, "", "{ca} {identity:?}"),
        }
    }
    // A client without TLS gets no answer.
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
        // After the first copy, only one of the two files is new, so the port does not use them.
        let _either = stand.get("ca.pem", Some("client"));
    }
    let text = stand.get("ca.pem", Some("client")).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
}

/// A client that sends the beginning of a handshake, or nothing.
fn begun(stand: &Stand, at: usize) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let other = SocketAddr::from(([127, 0, 0, 2], 0));
    socket.bind(&other.into()).unwrap();
    socket.connect(&stand.address.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    if at.is_multiple_of(2) {
        // The connection may already be closed.
        let _ = stream.write_all(b"\x16\x03\x01\x02\x00\x01");
    }
    stream
}

/// If a client does not complete its handshake in time, its connection is closed long before the time limit of a
/// request.
#[test]
fn clients_that_never_end_their_handshake_are_let_go() {
    let stand = stand("server");
    let since = Instant::now();
    let slow: Vec<TcpStream> = (0..16).map(|at| begun(&stand, at)).collect();
    for mut one in slow {
        one.set_read_timeout(Some(2 * REQUEST_MAX)).unwrap();
        let mut rest = Vec::new();
        let _closed = one.read_to_end(&mut rest);
        let took = since.elapsed();
        assert!(took < HANDSHAKE_MAX + Duration::from_secs(2), "{took:?}");
    }
}

/// A host without a certificate takes all places, and each place that becomes free. Even then a client with a
/// certificate gets its answer at once.
#[test]
fn a_host_without_a_certificate_shuts_nobody_out() {
    let stand = stand("server");
    let over = AtomicBool::new(false);
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut slow = std::collections::VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                slow.push_back(begun(&stand, slow.len()));
                if slow.len() > 2 * CONNECTIONS_MAX {
                    slow.pop_front();
                    std::thread::sleep(Duration::from_millis(1));
                }
                taken.fetch_add(1, Ordering::Relaxed);
            }
        });
        while taken.load(Ordering::Relaxed) < 2 * CONNECTIONS_MAX {
            std::thread::yield_now();
        }
        let answers: Vec<_> = (0..5)
            .map(|_| {
                let begun = Instant::now();
                let answer = stand.get("ca.pem", Some("client"));
                (answer, begun.elapsed())
            })
            .collect();
        over.store(true, Ordering::Relaxed);
        // If the client had to wait for the end of a handshake, even its quickest answer would take that long. On a
        // busy machine a single answer may be late.
        let quickest = answers.iter().map(|(_, took)| *took).min().unwrap();
        for (answer, _) in answers {
            let text = answer.unwrap();
            assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
        }
        assert!(quickest < HANDSHAKE_MAX, "{quickest:?}");
    });
}
