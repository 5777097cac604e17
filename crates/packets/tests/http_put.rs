//! Tests the example `http_put`, which keeps HTTP PUTs. A client with an ordinary TCP uses it over a veth pair. The
//! example's process is killed, and after a restart it finds all acknowledged bodies again. The test needs root and
//! iproute2. Without root and iproute2 the test is skipped with a message; in CI the missing parts are a failure.

#[path = "../../dataplane/tests/af_xdp/link.rs"]
mod link;
#[path = "../examples/http_put/segments.rs"]
mod segments;
#[path = "../examples/http_put/server.rs"]
mod server;
#[path = "../../../tests/shared/skip.rs"]
mod skip;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use link::{Link, NEAR, skipped};
use pmnet_packets::{Medium, Options, Transport};

const PORT: u16 = 8_000;
/// Environment variable with the region's path, for the child process.
const PATH: &str = "PMNET_HTTP_PUT";
/// This time is far longer than any step of the test takes.
const WAIT_MAX: Duration = Duration::from_secs(20);
const BUFFERS: u64 = 1_024;

fn options(path: PathBuf) -> Options {
    Options {
        path,
        medium: Medium::Memory,
        bytes: BUFFERS * 2_048,
        interfaces: vec!["veth0".into()],
        listen: SocketAddr::from((NEAR, PORT)),
        transport: Transport::Tcp,
    }
}

/// Not a test: this is the process that is killed.
#[test]
fn child() {
    if let Some(path) = std::env::var_os(PATH) {
        server::serve(&options(path.into())).unwrap();
    }
}

/// The server's process. When this value is dropped, the process is killed, and its region is removed. [`Server::kill`]
/// keeps the region.
struct Server {
    child: Child,
    path: Option<PathBuf>,
    /// This stays open, because the child process may print more.
    said: std::io::Lines<BufReader<ChildStdout>>,
}

impl Server {
    /// Starts the server. Returns the server, and its message about the objects that it has found.
    fn start(link: &Link, path: &std::path::Path) -> (Server, String) {
        let mut child = link.near(|| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "child", "--nocapture"])
                .env(PATH, path)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let mut server = Server {
            said: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
            path: Some(path.to_owned()),
        };
        let mut lines = server.said.by_ref().map(Result::unwrap);
        let found = lines.find(|line| line.contains("objects from before"));
        (server, found.expect("it says what it found"))
    }

    fn kill(mut self) {
        self.path = None;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn connect(link: &Link) -> TcpStream {
    let stream = link.far(|| TcpStream::connect_timeout(&(NEAR, PORT).into(), WAIT_MAX).unwrap());
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

/// Returns the server's answer: the status line and the body.
fn answer(mut stream: TcpStream) -> (String, Vec<u8>) {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let end = all.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.expect("a head");
    let text = String::from_utf8(all[..end].to_vec()).unwrap();
    let status = text.lines().next().unwrap().to_owned();
    (status, all.split_off(end + 4))
}

fn put(link: &Link, name: &str, body: &[u8]) -> String {
    let mut stream = connect(link);
    let head = format!(
        "PUT {name} HTTP/1.1\r\nHost: x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    answer(stream).0
}

fn get(link: &Link, name: &str) -> (String, Vec<u8>) {
    let mut stream = connect(link);
    stream
        .write_all(format!("GET {name} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
        .unwrap();
    answer(stream)
}

const CREATED: &str = "HTTP/1.1 201 Created";
const OK: &str = "HTTP/1.1 200 OK";
const MISSING: &str = "HTTP/1.1 404 Not Found";

#[test]
fn a_body_is_there_again_after_the_process_was_killed() {
    if skipped() {
        return;
    }
    let link = Link::new();
    let path = PathBuf::from(format!("/dev/shm/pmnet-http-{}", std::process::id()));
    let (first, found) = Server::start(&link, &path);
    assert!(found.starts_with("0 objects"), "{found}");

    let large: Vec<u8> = (0..300_000_u32)
        .map(|n| (n.wrapping_mul(n) >> 5).to_le_bytes()[0])
        .collect();
    assert_eq!(put(&link, "/small", b"a few bytes"), CREATED);
    assert_eq!(put(&link, "/empty", b""), CREATED);
    assert_eq!(put(&link, "/large", &large), CREATED);
    assert_eq!(put(&link, "/small", b"other bytes"), CREATED);
    // This connection sends the head byte by byte, and never completes the body.
    let mut slow = connect(&link);
    slow.set_nodelay(true).unwrap();
    for byte in b"PUT /slow HTTP/1.1\r\nContent-Length: 4\r\n\r\nslow" {
        slow.write_all(&[*byte]).unwrap();
    }
    assert_eq!(answer(slow).0, CREATED);
    let mut broken = connect(&link);
    broken
        .write_all(b"PUT /broken HTTP/1.1\r\nContent-Length: 4\r\n\r\nbro")
        .unwrap();
    broken.shutdown(Shutdown::Write).unwrap();
    assert!(
        broken.read(&mut [0; 10]).map_or(0, |bytes| bytes) == 0,
        "no answer"
    );
    let endless = format!("PUT /x HTTP/1.1\r\nContent-Length: {}\r\n\r\n", u64::MAX);
    for request in [
        "DELETE /small HTTP/1.1\r\n\r\n",
        "PUT /x HTTP/1.1\r\n\r\n",
        &endless,
    ] {
        let mut bad = connect(&link);
        bad.write_all(request.as_bytes()).unwrap();
        assert_eq!(answer(bad).0, "HTTP/1.1 400 Bad Request", "{request}");
    }
    let check = |link: &Link| {
        let found = |body: &[u8]| (OK.to_owned(), body.to_vec());
        assert_eq!(get(link, "/small"), found(b"other bytes"));
        assert_eq!(get(link, "/empty"), found(b""));
        assert_eq!(get(link, "/slow"), found(b"slow"));
        let (status, body) = get(link, "/large");
        assert!(
            status == OK && body == large,
            "{status}, {} bytes",
            body.len()
        );
        for name in ["/broken", "/never"] {
            assert_eq!(get(link, name), (MISSING.to_owned(), Vec::new()));
        }
    };
    check(&link);
    first.kill();

    let (second, found) = Server::start(&link, &path);
    assert!(found.starts_with("4 objects"), "{found}");
    check(&link);
    // The region has no space for this many bytes.
    let huge = vec![7; 3_000_000];
    let mut stream = connect(&link);
    let head = format!(
        "PUT /huge HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
        huge.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // The answer may come before the whole body is sent.
    let _ = stream.write_all(&huge);
    assert_eq!(answer(stream).0, "HTTP/1.1 507 Insufficient Storage");
    check(&link);
    drop(second);
    assert!(!path.exists());
}
