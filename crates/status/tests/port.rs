//! Tests of a status port with many clients, slow clients and broken clients. The clients must not delay the loop that
//! the port shows.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pmnet_status::{
    About, Board, CONNECTIONS_MAX, HEAD_BYTES_MAX, Look, Place, REQUEST_MAX, Shown, Source,
    StatusPort, numbers,
};
use socket2::{Domain, Socket, Type};

numbers! {
    /// The counters of the loop in these tests.
    struct LoopNumbers {
        Counter "pmnet_test_turns" [""] "Turns." { turns }
        Gauge "pmnet_test_parts" ["part"] "Parts." {
            /// The first one.
            one,
            /// The second one.
            two,
        }
    }
}

#[derive(Debug, Default)]
struct Loop {
    board: Board<{ LoopNumbers::METRICS.len() }>,
    pulse: AtomicU64,
    refuses: AtomicBool,
}

impl Source for Loop {
    fn labels(&self) -> Vec<(&'static str, String)> {
        vec![("shard", "7".to_owned())]
    }

    fn pulse(&self) -> u64 {
        self.pulse.load(Ordering::Relaxed)
    }

    fn look(&self, _: Instant) -> Look {
        let refuses = self.refuses.load(Ordering::Relaxed);
        Look {
            samples: LoopNumbers::of(self.board.read()).samples(),
            reasons: refuses
                .then(|| "it does not want to".to_owned())
                .into_iter()
                .collect(),
            ..Look::default()
        }
    }
}

struct Stand {
    it: Arc<Loop>,
    shown: Shown,
    port: StatusPort,
}

const ABOUT: About = About {
    role: "test",
    version: "1.2.3",
    commit: "abcdef",
};

fn tcp(port: u16) -> Place {
    Place::Tcp(SocketAddr::from(([127, 0, 0, 1], port)))
}

fn stand() -> Stand {
    let (it, shown) = (Arc::new(Loop::default()), Shown::default());
    it.pulse.store(1, Ordering::Relaxed);
    shown.add(it.clone());
    let port = StatusPort::open(tcp(0), None, ABOUT, shown.clone()).unwrap();
    Stand { it, shown, port }
}

impl Stand {
    fn address(&self) -> SocketAddr {
        match self.port.place() {
            Some(Place::Tcp(address)) => *address,
            other => panic!("{other:?}"),
        }
    }

    fn connect(&self) -> TcpStream {
        self.connect_from(Ipv4Addr::LOCALHOST)
    }

    fn connect_from(&self, host: Ipv4Addr) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((host, 0)).into()).unwrap();
        socket.connect(&self.address().into()).unwrap();
        let stream = TcpStream::from(socket);
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream
            .set_write_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream
    }

    fn get(&self, path: &str) -> (String, String) {
        answer(
            self.connect(),
            &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        )
    }
}

/// Sends a request. Returns the status and the body of the answer.
fn answer(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no head: {text}"));
    let length = format!("Content-Length: {}\r\n", body.len());
    assert!(
        head.contains(&length) || request.starts_with("HEAD"),
        "{head}"
    );
    (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
}

#[test]
fn every_path_has_its_answer() {
    let stand = stand();
    let numbers = LoopNumbers {
        turns: 5,
        one: 1,
        two: 2,
    };
    stand.it.board.publish(numbers.words());
    let (status, text) = stand.get("/metrics?from=here");
    assert_eq!(status, "200");
    for line in [
        "pmnet_build_info{role=\"test\",version=\"1.2.3\",commit=\"abcdef\"} 1.0",
        "# TYPE pmnet_test_turns_total counter",
        "pmnet_test_turns_total{shard=\"7\"} 5",
        "pmnet_test_parts{shard=\"7\",part=\"two\"} 2.0",
        "pmnet_alive{shard=\"7\"} 1.0",
        "pmnet_ready{shard=\"7\"} 1.0",
    ] {
        assert!(text.lines().any(|one| one == line), "no {line} in {text}");
    }
    assert_eq!(stand.get("/livez"), ("200".into(), "alive\n".into()));
    assert_eq!(stand.get("/readyz"), ("200".into(), "ready\n".into()));
    let (status, json) = stand.get("/api/v1/status");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (status.as_str(), &json["role"], &json["ready"]),
        ("200", &"test".into(), &true.into())
    );
    assert_eq!(json["loops"][0]["metrics"]["pmnet_test_turns_total"], 5);
    assert_eq!(json["loops"][0]["metrics"]["pmnet_test_parts"]["two"], 2);
    assert_eq!(stand.get("/metric").0, "404");
    let (status, body) = answer(stand.connect(), "HEAD /metrics HTTP/1.0\r\n\r\n");
    assert_eq!((status.as_str(), body.as_str()), ("200", ""));
}

/// A page of another host has its name resolved to a loopback address (DNS rebinding). The browser then lets the page
/// read this port, but sends the page's host.
#[test]
fn a_port_at_a_loopback_address_answers_only_to_names_of_this_machine() {
    let stand = stand();
    let ask = |address: SocketAddr, path: &str, host: &str| {
        let stream = TcpStream::connect(address).unwrap();
        answer(
            stream,
            &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        )
    };
    let own = stand.address();
    let paths = ["/", "/metrics", "/livez", "/readyz", "/api/v1/status"];
    for path in paths {
        let (status, why) = ask(own, path, &format!("evil.example:{}", own.port()));
        assert_eq!(status, "403", "{path}");
        assert!(
            why.contains("localhost") && why.contains("--status") && !why.contains("pmnet_"),
            "{why}"
        );
        for host in [&own.to_string(), "localhost", "[::1]:9464"] {
            assert_eq!(ask(own, path, host).0, "200", "{path} {host}");
        }
    }
    let proxied = "GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(answer(stand.connect(), proxied).0, "403");
    // Other ports are for other machines, which know them by any name.
    let place = Place::Tcp(SocketAddr::from(([0, 0, 0, 0], 0)));
    let port = StatusPort::open(place, None, ABOUT, stand.shown.clone()).unwrap();
    let Some(Place::Tcp(open)) = port.place() else {
        panic!("{port:?}")
    };
    let reached = SocketAddr::from(([127, 0, 0, 1], open.port()));
    assert_eq!(ask(reached, "/livez", "device.example").0, "200");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("status.sock");
    let _port = StatusPort::open(Place::Unix(path.clone()), None, ABOUT, stand.shown.clone());
    let request = "GET /livez HTTP/1.1\r\nHost: any.example\r\n\r\n";
    let (status, _) = answer(UnixStream::connect(&path).unwrap(), request);
    assert_eq!(status, "200");
}

/// A browser gets the page and its files from this port. The policy forbids it to ask another host.
#[test]
fn a_browser_gets_a_page_and_a_strict_policy() {
    let stand = stand();
    let mut stream = stand.connect();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    for header in [
        "Content-Type: text/html; charset=utf-8",
        "Content-Security-Policy: default-src 'none'; script-src 'self'; ",
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
    ] {
        assert!(text.contains(&format!("\r\n{header}")), "{header}");
    }
    for unsafe_one in ["unsafe-inline", "unsafe-eval", "data:", "*"] {
        let head = text.split("\r\n\r\n").next().unwrap();
        assert!(!head.contains(unsafe_one), "{head}");
    }
    for (path, part) in [
        ("/page/page.js", "/api/v1/status"),
        ("/page/uplot.js", "uPlot"),
        ("/page/page.css", "prefers-color-scheme: dark"),
        ("/page/uplot-license.txt", "The MIT License"),
    ] {
        let (status, body) = stand.get(path);
        assert!(status == "200" && body.contains(part), "{path}");
    }
    assert_eq!(stand.get("/page/").0, "404");
}

#[test]
fn a_loop_that_is_stuck_or_refuses_is_told() {
    let stand = stand();
    stand.it.refuses.store(true, Ordering::Relaxed);
    assert_eq!(
        stand.get("/readyz"),
        ("503".into(), "shard 7: it does not want to\n".into())
    );
    assert_eq!(stand.get("/livez").0, "200", "it waits");
    // The loop is in a turn that does not end.
    stand.it.pulse.store(2, Ordering::Relaxed);
    assert_eq!(stand.get("/livez").0, "200", "for less than a second");
    std::thread::sleep(Duration::from_millis(1300));
    let (status, why) = stand.get("/livez");
    assert_eq!(status, "503");
    assert!(
        why.starts_with("shard 7: the loop has been in the same turn for 1."),
        "{why}"
    );
    stand.it.pulse.store(4, Ordering::Relaxed);
    assert_eq!(stand.get("/livez").0, "200");
}

#[test]
fn a_process_without_a_loop_is_alive_and_not_ready() {
    let port = StatusPort::open(tcp(0), None, ABOUT, Shown::default()).unwrap();
    let Some(Place::Tcp(address)) = port.place().cloned() else {
        panic!("{port:?}")
    };
    let get = |path| {
        answer(
            TcpStream::connect(address).unwrap(),
            &format!("GET {path} HTTP/1.1\r\n\r\n"),
        )
    };
    assert_eq!(get("/livez").0, "200");
    assert_eq!(
        get("/readyz"),
        ("503".into(), "it has not begun to serve yet\n".into())
    );
    assert_eq!(get("/metrics").0, "200");
}

#[test]
fn a_loop_that_begins_anew_takes_the_place_of_the_old_one() {
    let stand = stand();
    let again = Arc::new(Loop::default());
    again.pulse.store(1, Ordering::Relaxed);
    again.board.publish([9; LoopNumbers::METRICS.len()]);
    stand.shown.add(again);
    let (_, text) = stand.get("/metrics");
    assert_eq!(text.matches("pmnet_test_turns_total{").count(), 1, "{text}");
    assert!(text.contains("pmnet_test_turns_total{shard=\"7\"} 9"));
}

/// More connections arrive at once than are allowed. Each connection must get its answer, and the loop must continue
/// all the time.
#[test]
fn a_crowd_of_scrapers_is_served() {
    let stand = stand();
    let over = AtomicBool::new(false);
    let longest = std::thread::scope(|scope| {
        let looping = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            let mut turn = 0;
            while !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                turn += 1;
                stand.it.board.publish([turn; LoopNumbers::METRICS.len()]);
                stand.it.pulse.store(2 * turn, Ordering::Relaxed);
                longest = longest.max(begun.elapsed());
                std::thread::sleep(Duration::from_micros(100));
            }
            (turn, longest)
        });
        let ask = |_| {
            let mut stream = stand.connect();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream
        };
        let crowd: Vec<TcpStream> = (0..2 * CONNECTIONS_MAX).map(ask).collect();
        let answers = crowd
            .into_iter()
            .map(|stream| scope.spawn(|| answer(stream, "")));
        let answers: Vec<_> = answers.collect();
        for one in answers {
            let (status, text) = one.join().unwrap();
            assert_eq!(status, "200");
            assert!(text.contains("pmnet_test_turns_total{shard=\"7\"} "));
        }
        over.store(true, Ordering::Relaxed);
        looping.join().unwrap()
    });
    let (turns, longest) = longest;
    assert!(turns > 10, "{turns}");
    // The loop shares two processors with hundreds of threads of this test. So the test only checks that the loop never
    // waited for one of them.
    assert!(longest < Duration::from_secs(2), "{longest:?}");
}

/// One host takes all places, and each place that becomes free. The connections of this host send nothing, or do not
/// read the answer. A probe from another host must get its answer at once.
#[test]
fn a_host_with_many_connections_shuts_nobody_out() {
    let stand = stand();
    let request = "GET /metrics HTTP/1.1\r\n\r\n";
    let mut held = Vec::new();
    for sent in ["", request, "GET /livez"] {
        held.extend((0..4 * CONNECTIONS_MAX).map(|_| {
            let mut stream = stand.connect_from(Ipv4Addr::new(127, 0, 0, 9));
            // The connection may already be closed.
            let _ = stream.write_all(sent.as_bytes());
            stream
        }));
        let begun = Instant::now();
        assert_eq!(stand.get("/livez").0, "200", "{sent:?}");
        let took = begun.elapsed();
        assert!(took < REQUEST_MAX - Duration::from_secs(1), "{took:?}");
    }
}

/// Connections that send no request are closed in time.
#[test]
fn silent_connections_are_closed() {
    let stand = stand();
    let silent: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| stand.connect()).collect();
    for mut one in silent {
        let mut rest = Vec::new();
        assert_eq!(one.read_to_end(&mut rest).unwrap_or(0), 0, "it was closed");
    }
}

/// A client that does not read must not delay others, and its connection is closed.
#[test]
fn slow_readers_delay_nobody() {
    let stand = stand();
    let mut slow: Vec<TcpStream> = (0..20).map(|_| stand.connect()).collect();
    for one in &mut slow {
        one.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    }
    for _ in 0..20 {
        let begun = Instant::now();
        assert_eq!(stand.get("/readyz").0, "200");
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
}

#[test]
fn what_is_no_request_is_refused() {
    let stand = stand();
    for (bytes, status) in [
        ("\x16\x03\x01\x02\u{0}\x01\u{0}\u{0}", "400"),
        ("*1\r\n$4\r\nPING\r\n", "400"),
        ("GET\r\n\r\n", "400"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "405"),
        ("DELETE / HTTP/1.1\r\n\r\n", "405"),
    ] {
        assert_eq!(answer(stand.connect(), bytes).0, status, "{bytes:?}");
    }
    // A request may arrive byte by byte.
    let mut stream = stand.connect();
    for byte in b"GET /livez HTTP/1.1\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert_eq!(stand.get("/livez").0, "200");
}

/// The client must get its answer, although not all of its input was read.
#[test]
fn a_request_of_a_megabyte_is_refused_with_an_answer() {
    let stand = stand();
    let endless = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(1 << 20));
    assert_eq!(answer(stand.connect(), &endless).0, "431");
    let body = format!(
        "POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}",
        1 << 20,
        "b".repeat(1 << 20)
    );
    assert_eq!(answer(stand.connect(), &body).0, "405");
    let exactly = format!(
        "GET /livez HTTP/1.1\r\nX: {}\r\n\r\n",
        "a".repeat(HEAD_BYTES_MAX - 50)
    );
    assert_eq!(answer(stand.connect(), &exactly).0, "200");
    assert_eq!(stand.get("/livez").0, "200");
}

/// The process continues without the port. The process opens the port when the address becomes free.
#[test]
fn a_port_that_is_taken_is_tried_again() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let port = StatusPort::open(Place::Tcp(address), None, ABOUT, Shown::default()).unwrap();
    assert_eq!(port.place(), None);
    drop(other);
    let begun = Instant::now();
    loop {
        if let Ok(stream) = TcpStream::connect(address) {
            assert_eq!(answer(stream, "GET /livez HTTP/1.1\r\n\r\n").0, "200");
            break;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "it was not tried again"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_unix_socket_serves_and_goes_with_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("status.sock");
    let place = Place::Unix(path.clone());
    // A killed process has left this socket behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let port = StatusPort::open(place.clone(), None, ABOUT, Shown::default()).unwrap();
    assert_eq!(port.place(), Some(&place));
    let request = "GET /livez HTTP/1.1\r\n\r\n";
    assert_eq!(
        answer(UnixStream::connect(&path).unwrap(), request).0,
        "200"
    );
    // A second process must not take the socket away from the first process.
    let second = StatusPort::open(place.clone(), None, ABOUT, Shown::default()).unwrap();
    assert_eq!(second.place(), None);
    drop(second);
    assert_eq!(
        answer(UnixStream::connect(&path).unwrap(), request).0,
        "200"
    );
    drop(port);
    assert!(!path.exists());
    // Files that are not sockets are not replaced.
    std::fs::write(&path, "a note").unwrap();
    assert_eq!(
        StatusPort::open(place, None, ABOUT, Shown::default())
            .unwrap()
            .place(),
        None
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a note");
}

/// A suspended process does not accept connections. The next process must not wait for the suspended process.
#[test]
fn a_unix_socket_whose_owner_accepts_nobody_keeps_no_process_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("status.sock");
    let owner = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let held: Vec<mio::net::UnixStream> =
        std::iter::from_fn(|| mio::net::UnixStream::connect(&path).ok())
            .take(10_000)
            .collect();
    assert!(
        mio::net::UnixStream::connect(&path).is_err(),
        "there is room for more than {}",
        held.len()
    );
    let (tell, told) = std::sync::mpsc::channel();
    let place = Place::Unix(path.clone());
    std::thread::spawn(move || {
        let port = StatusPort::open(place, None, ABOUT, Shown::default()).unwrap();
        tell.send(port.place().cloned())
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(10)).unwrap(), None);
    assert!(path.exists());
    drop((owner, held));
}
