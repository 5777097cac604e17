//! A real redis-server on a free port with a directory of its own, and helpers that make payloads. When this value is
//! dropped, the server is killed and its directory is removed.

#[allow(dead_code, reason = "the laboratory uses all of it")]
#[path = "../../../../lab/src/harness/claims.rs"]
pub mod claims;
pub mod proxy;
#[path = "../../../../../tests/shared/redis.rs"]
mod server;
#[path = "../../../../../tests/shared/skip.rs"]
mod skip;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pmnet_resp::write_command;
use pmnet_server::{Batch, Request, Store, StoreError};
use pmnet_wire::command::{Form, Protocol, preamble};

use server::RedisServer;

/// Longest wait until a server answers.
const START: Duration = Duration::from_secs(20);

/// A text that Redis is asked to send after a reply.
const MARK: &str = "--mark--";
/// `appendfsync always` unless the options say otherwise.
const BASE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// A running redis-server.
pub struct Redis {
    pub port: u16,
    server: RedisServer,
}

impl Redis {
    /// Starts a server with `appendfsync always` unless `options` say otherwise. Returns `None` if redis-server is not
    /// installed: the test counts as skipped.
    pub fn start(options: &[&str]) -> Option<Redis> {
        let server = RedisServer::start(&[&BASE, options].concat())?;
        let port = server.port();
        Some(Redis { port, server })
    }

    /// Starts one of the servers that `tests/compat/servers.py` fetches.
    pub fn start_named(name: &str, options: &[&str]) -> Option<Redis> {
        let server = RedisServer::start_named(name, &[&BASE, options].concat())?;
        let port = server.port();
        Some(Redis { port, server })
    }

    /// Starts the process, for the first time or again, without waiting until it answers.
    pub fn run(&mut self) {
        self.server.run();
    }

    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    pub fn restart(&mut self) {
        self.server.kill();
        self.server.run();
        self.server.wait_ready();
    }

    /// Kills the server, and starts it with these options on the same data.
    pub fn restart_as(&mut self, options: &[&str]) {
        self.server.set_options(&[&BASE, options].concat());
        self.restart();
    }

    /// Kills the server, appends these commands to its AOF without the last byte of the last command, and starts the
    /// server again. The AOF then has the state after a Redis has died in the middle of that write.
    pub fn tear_aof(&mut self, commands: &[&[&str]]) {
        self.kill();
        let mut torn = Vec::new();
        for command in commands {
            write_command(&mut torn, command);
        }
        torn.pop();
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(self.last_aof())
            .unwrap();
        file.write_all(&torn).unwrap();
        self.run();
        self.server.wait_ready();
    }

    /// Returns the length of the file to which Redis appends, in bytes.
    pub fn aof_bytes(&self) -> u64 {
        self.last_aof().metadata().unwrap().len()
    }

    /// Kills the server, cuts its AOF to this length, and starts it again. The AOF then has the state after a power
    /// failure before the rest was synced.
    pub fn lose_aof_after(&mut self, bytes: u64) {
        self.kill();
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(self.last_aof());
        file.unwrap().set_len(bytes).unwrap();
        self.run();
        self.server.wait_ready();
    }

    /// Returns the file to which Redis appends: the newest of several files, or the only file (before Redis 7).
    fn last_aof(&self) -> PathBuf {
        let directory = self.server.directory();
        let Ok(files) = std::fs::read_dir(directory.join("appendonlydir")) else {
            return directory.join("appendonly.aof");
        };
        let number = |path: &PathBuf| {
            let name = path.file_name()?.to_str()?;
            let number = name.strip_prefix("appendonly.aof.")?;
            number.strip_suffix(".incr.aof")?.parse::<u32>().ok()
        };
        let files = files.map(|file| file.unwrap().path());
        files.max_by_key(number).expect("an AOF")
    }

    /// Kills the server, and starts it until it serves. If an AOF file that is not the last file is torn, Redis exits
    /// at the first start.
    pub fn restart_patiently(&mut self) {
        for _ in 0..2 {
            self.kill();
            self.run();
            if self.server.is_ready() {
                return;
            }
        }
        panic!("redis-server ends at every start");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn store(&self) -> Box<dyn Store> {
        pmnet_store::open(&self.url(), 0).unwrap()
    }

    /// Sends one command on a connection of its own, like a client that uses Redis directly.
    pub fn call(&self, arguments: &[&str]) -> String {
        self.exchange(Vec::new(), arguments).unwrap()
    }

    /// Sends one command after a login with this password. The reply to the login, +OK, comes first in the result.
    pub fn call_as(&self, password: &str, arguments: &[&str]) -> String {
        let mut out = Vec::new();
        write_command(&mut out, &["AUTH", password]);
        self.exchange(out, arguments).unwrap()
    }

    fn exchange(&self, mut out: Vec<u8>, arguments: &[&str]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write_command(&mut out, arguments);
        write_command(&mut out, &["ECHO", MARK]);
        stream.write_all(&out)?;
        // The mark ends the reply. The connection may stay open, because a child process of Redis that saves holds it.
        let end = format!("${}\r\n{MARK}\r\n", MARK.len());
        let mut reply = Vec::new();
        while !reply.ends_with(end.as_bytes()) {
            let mut chunk = [0; 4096];
            match stream.read(&mut chunk)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => reply.extend_from_slice(&chunk[..read]),
            }
        }
        reply.truncate(reply.len() - end.len());
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    /// Returns the text of a bulk reply to `GET key`.
    pub fn get(&self, key: &str) -> Option<String> {
        bulk(&self.call(&["GET", key]))
    }
}

/// Returns the text of a bulk reply.
pub fn bulk(reply: &str) -> Option<String> {
    let (head, rest) = reply.split_once("\r\n")?;
    (head.starts_with('$') && head != "$-1").then(|| rest.strip_suffix("\r\n").unwrap().to_owned())
}

/// Makes a payload. Each command is a string of words separated by spaces.
pub fn payload(form: Form, protocol: Protocol, database: u32, commands: &[&str]) -> Bytes {
    let mut out = preamble(form, protocol, database).to_vec();
    for command in commands {
        write_command(&mut out, &command.split(' ').collect::<Vec<_>>());
    }
    out.into()
}

/// Makes a payload of one command, in RESP2 and for database 0.
pub fn single(command: &str) -> Bytes {
    payload(Form::Single, Protocol::Resp2, 0, &[command])
}

/// Makes a payload of one command with any arguments.
pub fn arguments(arguments: &[&[u8]]) -> Bytes {
    let mut out = preamble(Form::Single, Protocol::Resp2, 0).to_vec();
    write_command(&mut out, arguments);
    out.into()
}

/// Makes a payload of one command in either protocol.
pub fn script(protocol: Protocol, arguments: &[&str]) -> Bytes {
    let mut out = preamble(Form::Single, protocol, 0).to_vec();
    write_command(&mut out, arguments);
    out.into()
}

/// Returns the raw reply of a bare Redis to a command.
pub fn bare(redis: &Redis, protocol: Protocol, arguments: &[&str]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
    let mut out = Vec::new();
    if protocol == Protocol::Resp3 {
        write_command(&mut out, &["HELLO", "3"]);
    }
    write_command(&mut out, &["ECHO", "--mark--"]);
    write_command(&mut out, arguments);
    write_command(&mut out, &["QUIT"]);
    stream.write_all(&out).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    let text = String::from_utf8_lossy(&reply).into_owned();
    text.split_once("--mark--\r\n")
        .unwrap()
        .1
        .strip_suffix("+OK\r\n")
        .unwrap()
        .to_owned()
}

/// Makes a batch of effects with a watermark.
pub fn batch(effects: &[Bytes], watermark: u64) -> Batch {
    let value = Bytes::copy_from_slice(&watermark.to_be_bytes());
    Batch {
        effects: effects.to_vec(),
        records: vec![(b"watermark".to_vec(), Some(value))],
        upto: Some(watermark),
        ..Batch::default()
    }
}

/// Returns the watermark of loaded records.
pub fn watermark(records: &[(Vec<u8>, Bytes)]) -> u64 {
    let found = records.iter().find(|(key, _)| key == b"watermark");
    found.map_or(0, |(_, value)| {
        u64::from_be_bytes(value[..].try_into().unwrap())
    })
}

/// Executes one read.
pub fn read(store: &mut dyn Store, payload: Bytes) -> String {
    let mut replies = Vec::new();
    store
        .execute(
            &[Request {
                source: pmnet_server::Source::default(),
                payload,
                record: None,
            }],
            &mut replies,
        )
        .unwrap();
    assert_eq!(replies.len(), 1);
    String::from_utf8_lossy(&replies[0]).into_owned()
}

/// Executes one state-changing request, and checks that its record has exactly this reply.
pub fn change(store: &mut dyn Store, payload: Bytes) -> String {
    let prefix = Bytes::from_static(b"\x00\x07prefix");
    let request = Request {
        source: pmnet_server::Source::default(),
        payload,
        record: Some((b"reply/1".to_vec(), prefix.clone())),
    };
    let mut replies = Vec::new();
    store.execute(&[request], &mut replies).unwrap();
    assert_eq!(replies.len(), 1);
    let records = store.load().unwrap();
    let (_, value) = records
        .iter()
        .find(|(key, _)| key == b"reply/1")
        .expect("a record");
    assert_eq!(&value[..], [&prefix[..], &replies[0]].concat());
    String::from_utf8_lossy(&replies[0]).into_owned()
}

/// Loads until the store is ready.
pub fn load(store: &mut dyn Store) -> Vec<(Vec<u8>, Bytes)> {
    let until = Instant::now() + START;
    loop {
        match store.load() {
            Ok(records) => return records,
            Err(StoreError::Retry(_)) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    }
}
