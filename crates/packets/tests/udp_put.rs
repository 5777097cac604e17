//! Buffers that become records, over a veth pair. Records stay in the buffers into which they were received, and
//! answered writes survive kills. The tests need root and iproute2. Without root and iproute2 the tests are skipped
//! with a message; in CI the missing parts are a failure.

#[path = "../../dataplane/tests/af_xdp/link.rs"]
mod link;
#[path = "../examples/udp_put/server.rs"]
mod server;
#[path = "../../../tests/shared/skip.rs"]
mod skip;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use link::{FAR, Link, NEAR, skipped};
use pmnet_packets::{
    Error, InPlace, Medium, Meta, Options, Packet, Records, RecordsOptions, Room, Transport,
};

const PORT: u16 = 7_100;
/// Environment variable with the region's path, for the child process.
const PATH: &str = "PMNET_UDP_PUT";
/// This time is far longer than any step of the tests takes.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Time for which a client waits for an answer before it sends its request again.
const AGAIN: Duration = Duration::from_millis(200);
const LOG_BUFFERS: u32 = 256;
const BUFFERS: u64 = 640;

fn options(path: &Path, medium: Medium) -> RecordsOptions {
    let buffer_bytes = match medium {
        Medium::File => 4096,
        Medium::Memory | Medium::MemoryFlushed => 2048,
    };
    RecordsOptions {
        region: Options {
            path: path.to_owned(),
            medium,
            bytes: BUFFERS * buffer_bytes,
            interfaces: vec!["veth0".into()],
            listen: SocketAddr::from((NEAR, PORT)),
            transport: Transport::Udp,
        },
        log_buffers: LOG_BUFFERS,
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(folder: &Path, name: &str) -> Scratch {
        let path = folder.join(format!("pmnet-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Not a test: this is the process that is killed.
#[test]
fn child() {
    if let Some(path) = std::env::var_os(PATH) {
        server::serve(&options(Path::new(&path), Medium::Memory)).unwrap();
    }
}

struct Server {
    child: Child,
    /// This stays open, because the child process may print more.
    said: Lines<BufReader<ChildStdout>>,
}

impl Server {
    /// Starts the server. Returns the server, and its message about the records that it has found.
    fn start(link: &Link, path: &Path) -> (Server, String) {
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
        };
        let mut lines = server.said.by_ref().map(Result::unwrap);
        let found = lines.find(|line| line.contains("records from before"));
        (server, found.expect("it says what it found"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

struct Client {
    socket: UdpSocket,
    number: u64,
}

impl Client {
    fn new(link: &Link) -> Client {
        let socket = link.far(|| {
            let socket = UdpSocket::bind((FAR, 0)).unwrap();
            socket.connect((NEAR, PORT)).unwrap();
            socket
        });
        socket.set_read_timeout(Some(AGAIN)).unwrap();
        Client { socket, number: 0 }
    }

    fn request(&mut self, letter: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
        self.number += 1;
        let length = u8::try_from(key.len()).unwrap();
        [
            &[letter],
            &self.number.to_be_bytes()[..],
            &[length],
            key,
            value,
        ]
        .concat()
    }

    /// Sends a request until it is answered.
    fn ask(&mut self, letter: u8, key: &[u8], value: &[u8]) -> (u8, Vec<u8>) {
        let request = self.request(letter, key, value);
        let begun = Instant::now();
        let mut buffer = [0; 2048];
        loop {
            assert!(begun.elapsed() < WAIT_MAX, "nobody answers");
            // For a moment the port may have no socket. The system reports this as an error of this call.
            let _ = self.socket.send(&request);
            while let Ok(bytes) = self.socket.recv(&mut buffer) {
                if let Some(answer) = buffer[..bytes].strip_prefix(&self.number.to_be_bytes()) {
                    return (answer[0], answer[1..].to_vec());
                }
            }
        }
    }
}

fn value(number: u64) -> Vec<u8> {
    let len = usize::try_from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).unwrap() % 1400;
    number.to_be_bytes().into_iter().cycle().take(len).collect()
}

#[test]
fn what_was_answered_is_there_however_often_the_server_is_killed() {
    if skipped() {
        return;
    }
    let (link, scratch) = (Link::new(), Scratch::new(Path::new("/dev/shm"), "records"));
    let mut client = Client::new(&link);
    let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut number = 0_u64;
    for round in 0..6 {
        let (server, found) = Server::start(&link, &scratch.0);
        assert!(
            found.starts_with(&format!("{} records", expected.len())),
            "round {round}: {found}"
        );
        for (key, value) in &expected {
            assert_eq!(client.ask(b'G', key, b""), (b'V', value.clone()));
        }
        assert_eq!(client.ask(b'G', b"never", b""), (b'N', Vec::new()));
        assert_eq!(client.ask(b'X', b"key", b"").0, b'B');
        // There are several times as many writes as buffers of the log.
        for _ in 0..400 {
            number += 1;
            let key = format!("key {}", number * 7 % 60).into_bytes();
            if number.is_multiple_of(9) {
                assert_eq!(client.ask(b'D', &key, b"").0, b'S');
                expected.remove(&key);
            } else {
                assert_eq!(client.ask(b'P', &key, &value(number)).0, b'S');
                expected.insert(key, value(number));
            }
        }
        drop(server);
    }
    // A large value is in the packet in which it arrived.
    let mut records = link.near(|| Records::open(&options(&scratch.0, Medium::Memory)).unwrap());
    let waiting = records.waiting().count();
    let store = records.store().unwrap();
    let mut in_packets = 0;
    for (key, value) in &expected {
        let Some(record) = store.get(key).unwrap() else {
            assert!(waiting > 0, "{}", key.escape_ascii());
            continue;
        };
        let small = value.len() + key.len() + 9 < 512;
        assert_eq!(record.packet().is_none(), small, "{}", value.len());
        assert!(record.meta().order > 0);
        in_packets += u64::from(!small);
    }
    assert!(in_packets > 10, "{in_packets} of {}", expected.len());
}

/// Returns the next packet.
fn next(records: &mut Records) -> Packet {
    let begun = Instant::now();
    let mut burst = Vec::new();
    while burst.is_empty() {
        assert!(begun.elapsed() < WAIT_MAX, "nothing comes");
        records.receive(Duration::from_secs(1), &mut burst).unwrap();
    }
    assert_eq!(burst.len(), 1, "one at a time");
    burst.pop().unwrap()
}

/// Makes a record of a logged datagram.
fn link_last(records: &mut Records, order: u64, key: std::ops::Range<usize>) -> Result<(), Error> {
    let last = records.waiting().last().unwrap();
    assert_eq!(last.order, order);
    let record = InPlace {
        value: key.end..last.bytes.len() - 1,
        key,
        meta: Meta::default(),
    };
    let mut change = records.change(order)?;
    change.link(order, &[record], Room::Ordinary)?;
    Ok(change.commit()?)
}

fn address(records: &mut Records, key: &[u8]) -> (usize, Vec<u8>) {
    let store = records.store().unwrap();
    let record = store.get(key).unwrap().unwrap();
    let value = record.packet().unwrap().0;
    (value.as_ptr().addr(), value.to_vec())
}

fn a_record_stays_where_the_network_put_it(folder: &Path, medium: Medium) {
    if skipped() {
        return;
    }
    let (link, scratch) = (Link::new(), Scratch::new(folder, "in-place"));
    let options = options(&scratch.0, medium);
    let mut records = link.near(|| Records::open(&options).unwrap());
    let client = Client::new(&link);
    let mut sent = 0;
    let mut send = |records: &mut Records, key: &[u8]| {
        sent += 1;
        let datagram = [b"P", key, &[7; 1000], &u32::to_be_bytes(sent)[..]].concat();
        client.socket.send(&datagram).unwrap();
        let packet = next(records);
        let place = records.bytes(&packet)[1..].as_ptr().addr();
        let order = records.log(packet, 5).unwrap();
        assert_eq!(records.persist().unwrap(), order);
        link_last(records, order, 0..key.len()).unwrap();
        assert_eq!(address(records, key).0, place, "where it was received");
        place
    };
    let place = send(&mut records, b"kept");
    let before = address(&mut records, b"kept");
    // The log wraps around many times, while other records come and go.
    for _ in 0..2_000 {
        let other = send(&mut records, b"other");
        assert_ne!(other, place, "nobody received into a record");
    }
    assert_eq!(address(&mut records, b"kept"), before);
    let other = address(&mut records, b"other").1;
    let used = records.store().unwrap().stat().frames_used;
    assert!(used < 200, "frames come back: {used}");
    drop(records);
    let mut records = link.near(|| Records::open(&options).unwrap());
    assert_eq!(address(&mut records, b"kept").1, before.1);
    assert_eq!(address(&mut records, b"other").1, other);
    records.close().unwrap();
}

#[test]
fn a_record_stays_where_the_network_put_it_in_memory() {
    a_record_stays_where_the_network_put_it(Path::new("/dev/shm"), Medium::Memory);
}

#[test]
fn a_record_stays_where_the_network_put_it_on_a_disk() {
    a_record_stays_where_the_network_put_it(&std::env::temp_dir(), Medium::File);
}

/// New keys are written until neither the store nor the log takes another write. Answered writes are kept, and refused
/// writes have no effect.
#[test]
fn a_full_region_says_so_and_loses_nothing() {
    if skipped() {
        return;
    }
    let (link, scratch) = (
        Link::new(),
        Scratch::new(Path::new("/dev/shm"), "full-records"),
    );
    let (server, _) = Server::start(&link, &scratch.0);
    let mut client = Client::new(&link);
    let mut stored = Vec::new();
    let refused = loop {
        let key = format!("key {}", stored.len()).into_bytes();
        match client.ask(b'P', &key, &[9; 1300]).0 {
            b'S' => stored.push(key),
            other => break other,
        }
        assert!(stored.len() < 2_000, "it is full some time");
    };
    assert_eq!(refused, b'F');
    // This is the number of the store's frames without its reserve, plus those of the log's frames that are not for
    // receiving.
    assert!(stored.len() > 300, "{}", stored.len());
    drop(server);
    let mut records = link.near(|| Records::open(&options(&scratch.0, Medium::Memory)).unwrap());
    let waiting: Vec<Vec<u8>> = records
        .waiting()
        .map(|entry| entry.bytes[10..][..usize::from(entry.bytes[9])].to_vec())
        .collect();
    assert!(waiting.len() > 100, "the log is full: {}", waiting.len());
    let store = records.store().unwrap();
    for key in &stored {
        assert!(store.contains(key) || waiting.contains(key));
    }
    assert_eq!(
        store.len() + u64::try_from(waiting.len()).unwrap(),
        u64::try_from(stored.len()).unwrap()
    );
}
