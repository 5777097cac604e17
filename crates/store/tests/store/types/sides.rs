//! The two stores that are compared: an embedded store, and a real Redis.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::slice;
use std::time::Duration;

use bytes::Bytes;
use pmnet_log::NewEntry;
use pmnet_media::AnyMedia;
use pmnet_resp::write_command;
use pmnet_server::{Batch, Origin, Request, Store};
use pmnet_store::{RegionAddress, RegionStore};
use pmnet_wire::command::{Form, Protocol, preamble};
use pmnet_wire::{FRAGMENT_BYTES, HEADER_LEN};

use super::grammar::Command;
use super::replies;
use crate::support::Redis;

/// One of the two stores, which runs commands.
pub trait Side {
    /// Runs commands in one database, and returns their replies.
    fn run(&mut self, protocol: Protocol, database: u32, commands: &[Command]) -> Vec<Vec<u8>>;

    /// Runs commands as one transaction, and returns the reply to the transaction.
    fn transact(&mut self, protocol: Protocol, database: u32, commands: &[Command]) -> Vec<u8>;
}

/// An embedded store that is open.
enum Open {
    Any(Box<dyn Store>),
    /// The store of a device, beside its log.
    Region(Box<RegionStore<AnyMedia>>),
}

impl Open {
    fn store(&mut self) -> &mut dyn Store {
        match self {
            Open::Any(store) => &mut **store,
            Open::Region(store) => &mut **store,
        }
    }
}

/// An embedded store, and the address with which it is opened again.
pub struct Ours {
    open: Option<Open>,
    url: String,
    /// Number of strings that stayed where the log had them, and number of strings that were copied, until the store
    /// was last opened.
    counts: [u64; 2],
    _directory: tempfile::TempDir,
}

impl Ours {
    /// Opens a store with this scheme, in a new file.
    pub fn new(scheme: &str) -> Ours {
        // The file is in memory if possible, because the test needs no disk.
        let directory = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap();
        // The file is large enough for all that the commands write. The whole file is held in memory.
        let path = directory.path().join("store");
        let mut ours = Ours {
            open: None,
            url: format!("{scheme}:{}?size=256M", path.display()),
            counts: [0; 2],
            _directory: directory,
        };
        ours.reopen();
        ours
    }

    /// Closes the file and opens it again.
    pub fn reopen(&mut self) {
        self.counts = self.counts();
        self.open = None;
        self.open = Some(match self.url.strip_prefix("region:") {
            None => Open::Any(pmnet_store::open(&self.url, 0).unwrap()),
            Some(path) => {
                let url = format!("packet:{path}");
                let address = RegionAddress::parse(&url, 7, 0, 1 << 20).unwrap();
                let (region, _) = address.open().unwrap();
                Open::Region(Box::new(RegionStore::new(region, url).unwrap()))
            }
        });
    }

    /// Returns the number of strings that stayed where the log had them, and the number of strings that were copied.
    pub fn counts(&self) -> [u64; 2] {
        match &self.open {
            Some(Open::Region(store)) => {
                let [linked, copied] = store.counts();
                [self.counts[0] + linked, self.counts[1] + copied]
            }
            _ => self.counts,
        }
    }

    /// Runs one payload. `reads`: whether the payload changes nothing and is sent as a read.
    pub fn execute(&mut self, payload: Vec<u8>, reads: bool) -> Vec<u8> {
        let request = Request {
            source: pmnet_server::Source::default(),
            payload: payload.into(),
            record: (!reads).then(|| (b"r".to_vec(), Bytes::new())),
        };
        let mut replies = Vec::new();
        let store = self.open.as_mut().unwrap().store();
        store.execute(&[request], &mut replies).unwrap();
        replies[0].to_vec()
    }

    /// Runs one command as an update from the log, in the way in which a store device applies it. The client's reply to
    /// such a command does not depend on the data.
    fn apply(&mut self, payload: Vec<u8>) -> Vec<u8> {
        let Some(Open::Region(store)) = &mut self.open else {
            unreachable!("only a region has a log");
        };
        let payload = Bytes::from(payload);
        let payload_crc = pmnet_wire::crc(&payload);
        let entry = NewEntry {
            session: 1,
            seq: 1,
            kind: 1,
            fragment_index: 0,
            fragment_count: 1,
        };
        let region = store.region();
        let order = region.append(&entry, &[0; HEADER_LEN], &payload, payload_crc);
        let order = order.expect("what was applied before is released");
        region.persist_start().unwrap();
        region.persist_poll(true).unwrap();
        while let Some(number) = region.poll_released() {
            region.give_back_buffer(number);
        }
        let batch = Batch {
            effects: vec![payload],
            origins: vec![Some(Origin { order, payload_crc })],
            upto: Some(order),
            ..Batch::default()
        };
        assert_eq!(store.apply(&batch), Ok(0));
        assert_eq!(store.region().contradiction(), None);
        b"+OK\r\n".to_vec()
    }

    /// Runs commands that only read, and returns their replies.
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

/// Returns whether the command is a `SET key value`, which may be sent as an update.
pub fn plain_set(command: &[Vec<u8>]) -> bool {
    command.len() == 3 && command[0].eq_ignore_ascii_case(b"SET")
}

impl Side for Ours {
    fn run(&mut self, protocol: Protocol, database: u32, commands: &[Command]) -> Vec<Vec<u8>> {
        if matches!(self.open, Some(Open::Region(_))) {
            let one = |command: &Command| {
                let payload = payload(Form::Single, protocol, database, slice::from_ref(command));
                match plain_set(command) && payload.len() <= FRAGMENT_BYTES {
                    true => self.apply(payload),
                    false => self.execute(payload, false),
                }
            };
            return commands.iter().map(one).collect();
        }
        let payload = payload(Form::Pipeline, protocol, database, commands);
        replies::split(&self.execute(payload, false))
    }

    fn transact(&mut self, protocol: Protocol, database: u32, commands: &[Command]) -> Vec<u8> {
        let payload = payload(Form::Transaction, protocol, database, commands);
        self.execute(payload, false)
    }
}

/// A Redis, with a connection for each protocol.
pub struct Theirs {
    connections: [TcpStream; 2],
    _redis: Redis,
}

impl Theirs {
    /// Returns `None` if there is no redis-server.
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
