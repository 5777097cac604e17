//! Runs the commands of the other tests on a connection whose network and store are simulated in this file.
//!
//! All answers depend on the question alone, so a transcript is a function of the script and its world.

use std::collections::VecDeque;
use std::fmt::Write as _;

use bytes::Bytes;
use pmnet_front::client::{Connection, Freshness, Output, Shared, StoreRead, Turn};
use pmnet_front::limits::REQUESTS;
use pmnet_front::table::Table;
use pmnet_front::upstream::{
    self, CallId, Calls, Outcome, ReadAnswer, Refused, SessionHandle, Submit, Time,
};
use pmnet_front::{Cache, ReadFrom};
use pmnet_resp::{Parser, Status, write_bulk, write_header};
use pmnet_wire::command::{Commands, Form, NO_ADDRESS};

use super::{Case, hash};
use crate::common::command;

/// Time that a command may take, in nanoseconds.
const TIMEOUT: Time = 1_000_000_000;
/// The name of the store that the simulated server gives.
const NAME: &str = "redis://127.0.0.1:6379/?run_id=a&records=pmnet:{0}&owner=o";
/// The simulated store's replies to commands that the simulation does not implement.
const REPLIES: &[&[u8]] = &[
    b"+OK\r\n",
    b":1\r\n",
    b"$3\r\nabc\r\n",
    b"$-1\r\n",
    b"*2\r\n$1\r\na\r\n:5\r\n",
    b"-ERR no\r\n",
    b"*1\r\n*7\r\n$3\r\nget\r\n:2\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n",
];

/// The environment in which a script runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum World {
    /// The store is a Redis, and all reads are bypasses.
    Redis,
    /// The store is a Redis. The head answers MISS, and reads go to the store directly.
    Reads,
    /// The store is a Redis, and the client speaks RESP3.
    Resp3,
    /// The store is an embedded store.
    Embedded,
    /// The store is a Redis, and its connections break from time to time after a passed command.
    Breaks,
}

/// Whether a client waits for its replies.
#[derive(Clone, Copy, Debug)]
enum Pace {
    OneByOne,
    Pipelined,
}

struct Call {
    call: CallId,
    payload: Bytes,
    update: bool,
}

/// The simulated network and server.
#[derive(Default)]
struct Net {
    sessions: u32,
    calls: u64,
    pending: VecDeque<Call>,
    asked: Option<CallId>,
    seen: String,
}

impl Net {
    fn take(&mut self, payload: Bytes, how: Submit) -> CallId {
        let _ = writeln!(self.seen, "{}", payload.escape_ascii());
        self.calls += 1;
        let call = CallId(self.calls);
        self.pending.push_back(Call {
            call,
            payload,
            update: how == Submit::Update,
        });
        call
    }
}

impl Calls for Net {
    fn open(&mut self, _: Time) -> Result<SessionHandle, Refused> {
        self.sessions += 1;
        let _ = writeln!(self.seen, "open {}", self.sessions);
        Ok(SessionHandle(self.sessions))
    }
    fn submit(
        &mut self,
        _: Time,
        session: SessionHandle,
        call: upstream::Call<'_>,
    ) -> Result<CallId, Refused> {
        let (hash, deadline) = (call.key_hash, call.deadline);
        let _ = match call.how {
            Submit::Update => write!(self.seen, "update {session:?} {hash:x} {deadline} "),
            Submit::Bypass { read_only } => write!(
                self.seen,
                "bypass {session:?} {hash:x} {read_only} {deadline} "
            ),
        };
        Ok(self.take(call.payload.clone(), call.how))
    }
    fn read(
        &mut self,
        _: Time,
        hashes: &[u64],
        replicas: bool,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        let _ = writeln!(self.seen, "read {hashes:x?} {replicas} {deadline}");
        self.calls += 1;
        self.asked = Some(CallId(self.calls));
        Ok(CallId(self.calls))
    }
}

/// The simulated store at the other end of the client's own connection.
#[derive(Default)]
struct Redis {
    /// Number of the client's connection.
    number: u64,
    inbox: Vec<u8>,
    /// Number of commands queued after MULTI; `None` outside of MULTI.
    queued: Option<usize>,
    subscribed: usize,
}

fn text(words: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in words {
        write_bulk(&mut out, word);
    }
    out
}

fn pick(command: &[u8]) -> &'static [u8] {
    let at = usize::try_from(hash(command)).unwrap_or(0) % REPLIES.len();
    REPLIES[at]
}

impl Redis {
    /// Takes bytes. Returns the replies.
    fn receive(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.inbox.extend_from_slice(bytes);
        let mut out = Vec::new();
        let mut parser = Parser::new(REQUESTS);
        while let Ok(Status::Complete) = parser.poll(&self.inbox) {
            let words: Vec<Vec<u8>> = {
                let arguments = parser.arguments(&self.inbox);
                (0..arguments.len())
                    .map(|at| arguments.get(at).to_vec())
                    .collect()
            };
            self.inbox.drain(..parser.consume());
            let words: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
            if !words.is_empty() {
                self.answer(&words, &mut out);
            }
        }
        out
    }

    fn answer(&mut self, words: &[&[u8]], out: &mut Vec<u8>) {
        let name = String::from_utf8_lossy(words[0]).to_ascii_uppercase();
        if let Some(queued) = &mut self.queued
            && !["EXEC", "DISCARD"].contains(&name.as_str())
        {
            *queued += 1;
            return out.extend_from_slice(b"+QUEUED\r\n");
        }
        match name.as_str() {
            "INFO" => write_bulk(out, b"run_id:a\r\nredis_version:7.4.0\r\n"),
            "HGET" => write_bulk(out, b"o"),
            "CLIENT" if words.get(1) == Some(&&b"ID"[..]) => out.extend_from_slice(b":7\r\n"),
            "AUTH" | "SELECT" | "WATCH" | "UNWATCH" | "MONITOR" | "DEL" | "SET" => {
                out.extend_from_slice(b"+OK\r\n");
            }
            "HELLO" => out.extend_from_slice(b"*2\r\n$5\r\nproto\r\n:3\r\n"),
            "MULTI" => {
                self.queued = Some(0);
                out.extend_from_slice(b"+OK\r\n");
            }
            "EXEC" | "DISCARD" => {
                let count = self.queued.take().unwrap_or(0);
                if name == "DISCARD" {
                    return out.extend_from_slice(b"+OK\r\n");
                }
                write_header(out, count);
                out.extend(b":1\r\n".repeat(count));
            }
            "SUBSCRIBE" | "PSUBSCRIBE" | "UNSUBSCRIBE" | "PUNSUBSCRIBE" => {
                for channel in &words[1..] {
                    if name.contains("UNSUB") {
                        self.subscribed = self.subscribed.saturating_sub(1);
                    } else {
                        self.subscribed += 1;
                    }
                    write_header(out, 3);
                    let kind = name.to_ascii_lowercase();
                    out.extend(text(&[kind.as_bytes(), channel]));
                    out.extend(format!(":{}\r\n", self.subscribed).into_bytes());
                }
                if self.subscribed > 0 {
                    write_header(out, 3);
                    out.extend(text(&[b"message", b"c", b"hello"]));
                }
            }
            _ if name.starts_with("PMNET-") => {
                let name = String::from_utf8_lossy(words[0]);
                let error =
                    format!("-ERR unknown command '{name}', with args beginning with: \r\n");
                out.extend(error.into_bytes());
            }
            _ => out.extend_from_slice(pick(&words.concat())),
        }
    }
}

struct Stage {
    world: World,
    shared: Shared,
    connection: Connection,
    net: Net,
    redis: Redis,
    reads: VecDeque<StoreRead>,
    /// Bytes to the client, and to the store.
    sent: [Vec<u8>; 2],
    /// Number of times that bytes were sent to the store.
    parts: usize,
}

impl Stage {
    fn new(world: World) -> Stage {
        let table = Table::new(&[] as &[&str]).expect("the built-in table");
        let cache = match world {
            World::Reads => Cache::Pending,
            _ => Cache::Off,
        };
        let mut shared = Shared::new(table, TIMEOUT, None, cache, ReadFrom::Any, 1 << 20);
        shared.store_reads = [world == World::Reads; 2];
        shared.replicas.asked(Time::MAX);
        shared.replicas.found(Time::MAX);
        let mut stage = Stage {
            world,
            shared,
            connection: Connection::new(1, ([10, 0, 0, 1], 4711).into()),
            net: Net::default(),
            redis: Redis::default(),
            reads: VecDeque::new(),
            sent: [Vec::new(), Vec::new()],
            parts: 0,
        };
        if world == World::Resp3 {
            stage.receive("HELLO 3");
            stage.settle();
        }
        stage
    }

    fn receive(&mut self, line: &str) {
        self.connection.receive(&command(line));
    }

    /// Answers all calls and questions, until nothing changes any more.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.shared.now += 1000;
            while self.connection.advance(&mut self.net, &mut self.shared) == Turn::More {}
            self.take_outputs();
            let moved = [
                self.write(),
                self.answer_call(),
                self.answer_read(),
                self.serve_direct(),
            ];
            if moved == [false; 4] {
                return;
            }
        }
    }

    /// Carries out the requests of the connection to the front.
    fn take_outputs(&mut self) {
        while let Some(output) = self.connection.poll_output() {
            match output {
                Output::OpenMark => self.shared.mark_open = true,
                Output::Read(read) => {
                    self.sent[1].extend_from_slice(format!("{read:?}\n").as_bytes());
                    self.reads.push_back(read);
                }
                _ => {}
            }
        }
    }

    fn write(&mut self) -> bool {
        let mut moved = false;
        while !self.connection.unwritten().is_empty() {
            let count = self.connection.unwritten().len();
            self.sent[0].extend_from_slice(self.connection.unwritten());
            self.connection.wrote(count);
            moved = true;
        }
        moved
    }

    fn answer_call(&mut self) -> bool {
        let Some(call) = self.net.pending.pop_front() else {
            return false;
        };
        let outcome = if call.update {
            Outcome::Committed { copies: 1 }
        } else {
            Outcome::Reply(self.reply(&call.payload))
        };
        self.connection.done(call.call, outcome, &mut self.shared);
        true
    }

    fn reply(&self, payload: &[u8]) -> Bytes {
        let commands = Commands::parse(payload).expect("the front sends what the store takes");
        let mut out = Vec::new();
        match commands.form {
            Form::Barrier | Form::StoreAddress if self.world == World::Embedded => {
                return Bytes::from_static(NO_ADDRESS);
            }
            Form::Barrier | Form::StoreAddress => write_bulk(&mut out, NAME.as_bytes()),
            Form::Transaction => {
                write_header(&mut out, commands.count);
                out.extend(b":1\r\n".repeat(commands.count));
            }
            Form::Pack => {
                write_header(&mut out, commands.units().count());
                for unit in commands.units() {
                    out.extend_from_slice(pick(unit.resp));
                }
            }
            Form::Single | Form::Pipeline => {
                for command in commands.iter() {
                    let words: Vec<&[u8]> = command.collect();
                    out.extend_from_slice(pick(&words.concat()));
                }
            }
        }
        out.into()
    }

    fn answer_read(&mut self) -> bool {
        if let Some(call) = self.net.asked.take() {
            let answer = match call.0 % 3 {
                0 => ReadAnswer::None,
                version => ReadAnswer::Miss {
                    epoch: 1,
                    need: 1,
                    version,
                    replicas: 0,
                },
            };
            self.connection
                .read_answered(call, answer, &mut self.shared);
            return true;
        }
        let Some(read) = self.reads.pop_front() else {
            return false;
        };
        if read.freshness == Freshness::Told {
            self.connection
                .store_recorded(read.batch, 1, 1, &mut self.shared);
        }
        for _ in 0..read.count {
            let reply = Bytes::from_static(b"$1\r\nv\r\n");
            self.connection
                .store_replied(read.batch, reply, &mut self.shared);
        }
        true
    }

    fn serve_direct(&mut self) -> bool {
        let Some((number, address)) = self.connection.direct_target() else {
            return false;
        };
        if self.redis.number != number {
            self.redis = Redis {
                number,
                ..Redis::default()
            };
            self.sent[1].extend_from_slice(format!("{number} {address}\n").as_bytes());
        }
        let bytes = self.connection.direct_unwritten().to_vec();
        if bytes.is_empty() {
            return false;
        }
        self.sent[1].extend_from_slice(&bytes);
        self.connection.direct_wrote(bytes.len());
        let replies = self.redis.receive(&bytes);
        let greets = replies.starts_with(b":7");
        self.parts += 1;
        if self.world == World::Breaks && self.parts.is_multiple_of(3) && !greets {
            self.connection.direct_lost("gone");
        } else {
            self.connection.direct_receive(&replies, &self.shared);
        }
        true
    }

    /// Gives up all commands that wait for something that never comes.
    fn end(mut self) -> [Vec<u8>; 3] {
        self.shared.now += 2 * TIMEOUT;
        self.connection.look(&self.shared, false);
        self.settle();
        self.connection.receive_eof();
        self.settle();
        let ends = format!("{:?}\n", self.connection.finished());
        self.net.seen.push_str(&ends);
        let [client, store] = self.sent;
        [client, self.net.seen.into_bytes(), store]
    }
}

fn run(lines: &[&str], world: World, pace: Pace) -> [Vec<u8>; 3] {
    let mut stage = Stage::new(world);
    for line in lines {
        // These commands end the connection, or wait for other clients, which a single connection does not
        // have.
        if ["QUIT", "CLIENT LIST", "CLIENT KILL", "CLIENT UNBLOCK"]
            .iter()
            .any(|begin| line.to_ascii_uppercase().starts_with(begin))
        {
            continue;
        }
        stage.receive(line);
        if matches!(pace, Pace::OneByOne) {
            stage.settle();
        }
    }
    stage.settle();
    stage.end()
}

pub(super) fn cases() -> Vec<Case> {
    let all = include_str!("scripts.txt");
    let mut cases = Vec::new();
    let scripts = all.strip_prefix("= ").expect("a heading");
    for script in scripts.split("\n= ") {
        let mut lines = script.lines();
        let name = lines.next().expect("a name");
        let lines: Vec<&str> = lines.collect();
        for world in [
            World::Redis,
            World::Reads,
            World::Resp3,
            World::Embedded,
            World::Breaks,
        ] {
            let paces = [Pace::OneByOne, Pace::Pipelined];
            let [one, two] = paces.map(|pace| run(&lines, world, pace));
            let both = [0, 1, 2].map(|at| [&one[at][..], &two[at]].concat());
            cases.push(Case {
                name: format!("{name}/{world:?}"),
                sent: both,
            });
        }
    }
    cases
}
