//! The two that are compared: an embedded store, and a real Redis.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use pmnet_resp::write_command;
use pmnet_server::{Request, Store};
use pmnet_wire::command::{Form, Protocol, preamble};

use super::grammar::Command;
use super::replies;
use crate::support::Redis;

/// Something that runs commands.
pub trait Side {
    /// Runs commands in one database; their replies.
    fn run(&mut self, protocol: Protocol, database: u32, commands: &[Command]) -> Vec<Vec<u8>>;

    /// Runs commands as one transaction; its reply.
    fn transact(&mut self, protocol: Protocol, database: u32, commands: &[Command]) -> Vec<u8>;
}

/// An embedded store in a file.
pub struct Ours {
    store: Option<Box<dyn Store>>,
    url: String,
    _directory: tempfile::TempDir,
}

impl Ours {
    /// One with this scheme, in a new file.
    pub fn new(scheme: &str) -> Ours {
        // In memory where that is possible: this is not about disks.
        let directory = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap();
        // Enough for what the commands write; the whole of it is held in memory.
        let size = if scheme == "packet" { "?size=256M" } else { "" };
        let mut ours = Ours {
            store: None,
            url: format!(
                "{scheme}:{}{size}",
                directory.path().join("store").display()
            ),
            _directory: directory,
        };
        ours.reopen();
        ours
    }

    /// Closes the file and opens it again.
    pub fn reopen(&mut self) {
        self.store = None;
        self.store = Some(pmnet_store::open(&self.url, 0).unwrap());
    }

    /// Runs one payload; as a read if it changes nothing.
    pub fn execute(&mut self, payload: Vec<u8>, reads: bool) -> Vec<u8> {
        let request = Request {
            payload: payload.into(),
            record: (!reads).then(|| (b"r".to_vec(), Bytes::new())),
        };
        let mut replies = Vec::new();
        let store = self.store.as_mut().unwrap();
        store.execute(&[request], &mut replies).unwrap();
        replies[0].to_vec()
    }

    /// The same, of commands that only read.
    pub fn read(
        &mut self,
        protocol: Protocol,
        database: u32,
        commands: &[Command],
    ) -> Vec<Vec<u8>> {
        let payload = payload(Form::Pipeline, protocol, database, commands);
        replies::split(&self.execute(payload, true))
    }
}

pub fn payload(form: Form, protocol: Protocol, database: u32, commands: &[Command]) -> Vec<u8> {
    let mut out = preamble(form, protocol, database).to_vec();
    for command in commands {
        write_command(&mut out, command);
    }
    out
}

impl Side for Ours {
    fn run(&mut self, protocol: Protocol, database: u32, commands: &[Command]) -> Vec<Vec<u8>> {
        let payload = payload(Form::Pipeline, protocol, database, commands);
        replies::split(&self.execute(payload, false))
    }

    fn transact(&mut self, protocol: Protocol, database: u32, commands: &[Command]) -> Vec<u8> {
        let payload = payload(Form::Transaction, protocol, database, commands);
        self.execute(payload, false)
    }
}

/// Redis, on a connection for each protocol.
pub struct Theirs {
    connections: [TcpStream; 2],
    _redis: Redis,
}

impl Theirs {
    /// `None` if there is no redis-server.
    pub fn new() -> Option<Theirs> {
        let redis = Redis::start(&["--appendonly", "no"])?;
        let connect = || {
            let stream = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
            stream.set_nodelay(true).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(30)))
                .unwrap();
            stream
        };
        let mut theirs = Theirs {
            connections: [connect(), connect()],
            _redis: redis,
        };
        theirs.exchange(1, &[vec![b"HELLO".to_vec(), b"3".to_vec()]]);
        Some(theirs)
    }

    fn exchange(&mut self, connection: usize, commands: &[Command]) -> Vec<u8> {
        let mark = b"$8\r\n--mark--\r\n";
        let mut out = Vec::new();
        for command in commands {
            write_command(&mut out, command);
        }
        write_command(&mut out, &["ECHO", "--mark--"]);
        let stream = &mut self.connections[connection];
        stream.write_all(&out).unwrap();
        let mut reply = Vec::new();
        let mut chunk = vec![0; 1 << 16];
        while !reply.ends_with(mark) {
            let read = stream.read(&mut chunk).unwrap();
            assert_ne!(read, 0, "Redis has closed the connection");
            reply.extend_from_slice(&chunk[..read]);
        }
        reply.truncate(reply.len() - mark.len());
        reply
    }
}

impl Side for Theirs {
    fn run(&mut self, protocol: Protocol, database: u32, commands: &[Command]) -> Vec<Vec<u8>> {
        let connection = usize::from(protocol == Protocol::Resp3);
        let select = vec![b"SELECT".to_vec(), database.to_string().into_bytes()];
        let all = [&[select][..], commands].concat();
        let mut replies = replies::split(&self.exchange(connection, &all));
        replies.remove(0);
        replies
    }

    fn transact(&mut self, protocol: Protocol, database: u32, commands: &[Command]) -> Vec<u8> {
        let one = |word: &str| vec![vec![word.as_bytes().to_vec()]];
        let all = [&one("MULTI")[..], commands, &one("EXEC")].concat();
        self.run(protocol, database, &all).pop().unwrap()
    }
}
