//! TLS: between clients and the front, and between the front and Redis.

#[path = "../../../../tests/shared/certificates.rs"]
mod certificates;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::common::claims::Port;
use crate::common::{DEADLINE, Knobs, Redis, Running, command, eventually, sharded};
use certificates::{Files, files};
use pmnet_front::limits::REPLIES;
use pmnet_front::{Access, Cache, FrontConfig, Secret};
use pmnet_resp::Scanner;
use pmnet_tls::{ClientTls, Clients, ServerTls, Stream};

/// A client with TLS.
struct Secure {
    stream: Stream<TcpStream>,
    inbox: Vec<u8>,
    scanner: Scanner,
}

impl Secure {
    fn connect(address: SocketAddr, tls: &ClientTls) -> Secure {
        let stream = TcpStream::connect(address).expect("connect");
        stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
        Secure {
            stream: tls.connect(stream).expect("a session"),
            inbox: Vec::new(),
            scanner: Scanner::new(REPLIES),
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let count = self.stream.write(bytes)?;
            bytes = &bytes[count..];
        }
        self.stream.flush()
    }

    fn text(&mut self) -> std::io::Result<String> {
        let mut chunk = vec![0; 65536];
        loop {
            if let Some(length) = self.scanner.poll(&self.inbox).expect("RESP") {
                let rest = self.inbox.split_off(length);
                let reply = std::mem::replace(&mut self.inbox, rest);
                return Ok(String::from_utf8_lossy(&reply).into_owned());
            }
            match self.stream.read(&mut chunk)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => self.inbox.extend_from_slice(&chunk[..count]),
            }
        }
    }

    fn ask(&mut self, words: &str) -> std::io::Result<String> {
        self.send(&command(words))?;
        self.text()
    }
}

fn server(files: &Files, name: &str, clients: &Clients) -> ServerTls {
    let (certificate, key) = files.pair(name);
    ServerTls::new(&certificate, &key, clients).expect("good files")
}

fn client(files: &Files, ca: &str, identity: Option<&str>) -> ClientTls {
    let identity = identity.map(|name| files.pair(name));
    let identity = identity.as_ref().map(|(cert, key)| (&**cert, &**key));
    ClientTls::new("localhost", Some(&files.path(ca)), identity).expect("good files")
}

fn front(redis: &Redis, files: &Files, clients: &Clients) -> Running {
    let tls = server(files, "server", clients);
    Running::start_with(redis, |config| config.tls = Some(tls))
}

#[test]
fn a_front_with_tls_is_a_front() {
    let Some(redis) = Redis::start() else { return };
    let files = files();
    let front = front(&redis, &files, &Clients::No);
    let tls = client(&files, "ca.pem", None);
    let mut client = Secure::connect(front.address, &tls);
    for (line, reply) in [
        ("SET k v", "+OK\r\n"),
        ("GET k", "$1\r\nv\r\n"),
        ("INCR n", ":1\r\n"),
        ("BLPOP none 0.01", "*-1\r\n"),
    ] {
        assert_eq!(client.ask(line).unwrap(), reply, "{line}");
    }
    // The value is longer than a TLS record, a buffer and a turn. So it is split at many places, in both directions.
    let value = "x".repeat(3_000_000);
    assert_eq!(
        client.ask(&format!("SET large {value}")).unwrap(),
        "+OK\r\n"
    );
    let reply = client.ask("GET large").unwrap();
    assert!(
        reply == format!("$3000000\r\n{value}\r\n"),
        "{}",
        reply.len()
    );
    let mut pipeline = Vec::new();
    for number in 0..2000 {
        pipeline.extend(command(&format!("SET k{number} {number}")));
        pipeline.extend(command(&format!("ECHO {number}")));
    }
    for part in pipeline.chunks(777) {
        client.send(part).unwrap();
    }
    for number in 0..2000 {
        assert_eq!(client.text().unwrap(), "+OK\r\n");
        let text = number.to_string();
        assert_eq!(
            client.text().unwrap(),
            format!("${}\r\n{text}\r\n", text.len())
        );
    }
    // Messages come to the client without a request.
    assert!(client.ask("SUBSCRIBE c").unwrap().contains("subscribe"));
    assert_eq!(redis.client().ask("PUBLISH c hello"), ":1\r\n");
    assert!(client.text().unwrap().contains("hello"));
    assert!(client.ask("QUIT").unwrap().starts_with("+OK"));
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(front.stop().tls_failed, 0);
}

#[test]
fn who_is_not_to_be_trusted_gets_nowhere() {
    let Some(redis) = Redis::start() else { return };
    let files = files();
    let ca = files.path("ca.pem");
    let expect = |front: &Running, ca: &str, identity: Option<&str>, good: bool| {
        let mut client = Secure::connect(front.address, &client(&files, ca, identity));
        let reply = client.ask("SET k v");
        assert_eq!(reply.is_ok(), good, "{ca} {identity:?}: {reply:?}");
    };
    let open = front(&redis, &files, &Clients::No);
    expect(&open, "other.pem", None, false);
    expect(&open, "ca.pem", None, true);
    assert_eq!(open.stop().tls_failed, 1);
    let required = front(&redis, &files, &Clients::Required(ca.clone()));
    expect(&required, "ca.pem", None, false);
    expect(&required, "ca.pem", Some("stranger"), false);
    expect(&required, "ca.pem", Some("old"), false);
    expect(&required, "ca.pem", Some("client"), true);
    assert_eq!(required.knobs().updates.len(), 1);
    assert_eq!(required.stop().tls_failed, 3);
    let optional = front(&redis, &files, &Clients::Optional(ca));
    expect(&optional, "ca.pem", None, true);
    expect(&optional, "ca.pem", Some("stranger"), false);
    drop(optional);
    let old = server(&files, "old", &Clients::No);
    let old = Running::start_with(&redis, |config| config.tls = Some(old));
    expect(&old, "ca.pem", None, false);
}

#[test]
fn who_speaks_no_tls_or_says_nothing_is_closed_and_counted() {
    let Some(redis) = Redis::start() else { return };
    let files = files();
    let front = front(&redis, &files, &Clients::No);
    let mut plain = TcpStream::connect(front.address).unwrap();
    plain.set_read_timeout(Some(DEADLINE)).unwrap();
    plain.write_all(&command("SET k v")).unwrap();
    let mut said = Vec::new();
    // The connection ends after TLS's closing message, or it is reset.
    let _ = plain.read_to_end(&mut said);
    assert!(!said.starts_with(b"+OK"));
    // Clients that send nothing have a deadline, and their number is bounded.
    let mut silent: Vec<TcpStream> = (0..300)
        .map(|_| TcpStream::connect(front.address).unwrap())
        .collect();
    let closed = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        !matches!(stream.read(&mut [0]), Ok(1..))
    };
    assert!(silent.iter_mut().all(closed));
    let tls = client(&files, "ca.pem", None);
    assert_eq!(
        Secure::connect(front.address, &tls).ask("PING").unwrap(),
        "+PONG\r\n"
    );
    assert!(front.knobs().updates.is_empty());
    // Clients that were refused because their own host has the most handshakes are counted, too.
    assert_eq!(front.stop().tls_failed, 301);
}

/// Opens more connections than the number of handshakes that may be under way. The connections come from another host
/// than other clients, and send nothing.
fn silent_host(to: SocketAddr) -> Vec<TcpStream> {
    let domain = socket2::Domain::for_address(to);
    let host = SocketAddr::from(([127, 0, 0, 9], 0));
    let connect = |_| {
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("a socket");
        socket.bind(&host.into()).expect("a host of loopback");
        socket.connect(&to.into()).expect("connect");
        TcpStream::from(socket)
    };
    (0..300).map(connect).collect()
}

#[test]
fn a_host_with_many_handshakes_keeps_no_other_client_out() {
    let Some(redis) = Redis::start() else { return };
    let files = files();
    let front = front(&redis, &files, &Clients::No);
    let (certificate, key) = files.pair("server");
    let tls = ServerTls::new(&certificate, &key, &Clients::No).expect("good files");
    let slots = ["0-8191", "8192-16383"];
    let shards = sharded::start_with(&slots, &[], |_| {}, |config| config.tls = Some(tls));
    let shards = shards.expect("a redis-server, as before");
    let tls = client(&files, "ca.pem", None);
    for address in [front.address, shards.address] {
        let silent = silent_host(address);
        let mut client = Secure::connect(address, &tls);
        assert_eq!(client.ask("PING").unwrap(), "+PONG\r\n");
        let late = silent_host(address);
        assert_eq!(client.ask("PING").unwrap(), "+PONG\r\n");
        drop((silent, late));
    }
}

#[test]
fn the_front_speaks_tls_with_redis() {
    let files = files();
    let claimed = Port::claim().expect("a port");
    let port = claimed.number();
    let (certificate, key) = files.pair("server");
    let [certificate, key, ca] =
        [certificate, key, files.path("ca.pem")].map(|path| path.to_str().unwrap().to_owned());
    let tls_port = port.to_string();
    let options = [
        ["--tls-port", &tls_port],
        ["--tls-cert-file", &certificate],
        ["--tls-key-file", &key],
        ["--tls-ca-cert-file", &ca],
    ]
    .concat();
    let Some(redis) = Redis::start_with(&options) else {
        return;
    };
    let mut direct = redis.client();
    assert_eq!(direct.ask("ACL SETUSER bob on >pw ~a* &* +@all"), "+OK\r\n");
    let (client_cert, client_key) = files.pair("client");
    let url = |ca: &str| {
        format!(
            "rediss://localhost:{port}?ca={}&cert={}&key={}",
            files.path(ca).display(),
            client_cert.display(),
            client_key.display()
        )
    };
    let start = |url: String| {
        Running::start_as(&redis, Knobs::default(), |config: &mut FrontConfig| {
            config.cache = Cache::Off;
            config.access = Access::Redis;
            config.direct = Some(url);
            config.call_timeout = Duration::from_secs(2);
        })
    };
    let front = start(url("ca.pem"));
    let mut client = front.client();
    assert_eq!(client.ask("BLPOP none 0.01"), "*-1\r\n");
    assert_eq!(client.ask("AUTH bob pw"), "+OK\r\n");
    assert_eq!(client.ask("SET a v"), "+OK\r\n");
    assert!(client.ask("SET b v").starts_with("-NOPERM"));
    assert_eq!(client.ask("BLPOP a2 0.01"), "*-1\r\n");
    assert!(client.ask("BLPOP b 0.01").starts_with("-NOPERM"));
    drop(front);
    let front = start(url("other.pem"));
    let error = front.client().ask("AUTH bob pw");
    assert!(error.contains("TLS: invalid peer certificate"), "{error}");
}

#[test]
fn passwords_and_certificates_go_together() {
    let Some(redis) = Redis::start() else { return };
    let files = files();
    let tls = server(&files, "server", &Clients::Required(files.path("ca.pem")));
    let front = Running::start_with(&redis, |config| {
        config.tls = Some(tls);
        config.access = Access::Password(Secret::new(b"s3cret"));
    });
    let tls = client(&files, "ca.pem", Some("client"));
    let mut client = Secure::connect(front.address, &tls);
    assert!(client.ask("SET k v").unwrap().starts_with("-NOAUTH"));
    assert_eq!(client.ask("AUTH s3cret").unwrap(), "+OK\r\n");
    assert_eq!(client.ask("SET k v").unwrap(), "+OK\r\n");
    eventually("it is written", || {
        redis.client().ask("GET k") == "$1\r\nv\r\n"
    });
}

#[test]
fn a_router_with_tls_is_a_router() {
    let files = files();
    let tls = server(&files, "server", &Clients::No);
    let slots = ["0-8191", "8192-16383"];
    let Some(shards) = sharded::start_with(&slots, &[], |_| {}, |config| config.tls = Some(tls))
    else {
        return;
    };
    let tls = client(&files, "ca.pem", None);
    let mut client = Secure::connect(shards.address, &tls);
    assert_eq!(client.ask("PING").unwrap(), "+PONG\r\n");
    let value = "x".repeat(3_000_000);
    for key in ["bar", "foo"] {
        assert_eq!(
            client.ask(&format!("SET {key} {value}")).unwrap(),
            "+OK\r\n"
        );
        let reply = client.ask(&format!("GET {key}")).unwrap();
        assert!(
            reply == format!("$3000000\r\n{value}\r\n"),
            "{}",
            reply.len()
        );
    }
    assert_eq!(client.ask("DBSIZE").unwrap(), ":2\r\n");
    for (store, key) in shards.stores.iter().zip(["bar", "foo"]) {
        assert_eq!(store.client().ask(&format!("EXISTS {key}")), ":1\r\n");
    }
    // A client that does not speak TLS is closed. Other clients continue.
    let mut plain = shards.client();
    plain.send(&command("PING"));
    let mut rest = Vec::new();
    let _ = plain.stream.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"+PONG"));
    assert_eq!(client.ask("PING").unwrap(), "+PONG\r\n");
    assert_eq!(client.ask("QUIT").unwrap(), "+OK\r\n");
    assert!(client.text().is_err());
}
