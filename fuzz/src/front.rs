//! One connection of the Redis front: any bytes from a client, any outcomes from the network side,
//! any answers to READs, any bytes from the store's own connection (`docs/use/`).
//!
//! Invariants: nothing panics. The store gets only payloads that it accepts. The client gets
//! complete replies, at most one per command unless the command asks for more, and exactly one each
//! once everything was answered. Bounds on input and output hold.
//!
//! The front's tests run this target, too, and compare its output with an earlier one
//! (`crates/front/tests/front/pinned`).

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::SocketAddr;

use bytes::Bytes;
use pmnet_front::client::{
    Connection, Freshness, INPUT_BYTES_SOFT_MAX, Output, Shared, StoreRead, Turn, Unread,
    WAITING_INPUT_BYTES_SOFT_MAX,
};
use pmnet_front::limits::REQUESTS;
use pmnet_front::table::Table;
use pmnet_front::upstream::{
    Call, CallId, Calls, Closed, Outcome, ReadAnswer, Refused, SessionHandle, Submit, Time,
};
use pmnet_front::{Cache, ReadFrom};
use pmnet_resp::scan::count;
use pmnet_resp::{Parser, Status, write_bulk, write_command, write_header};
use pmnet_wire::StoreName;
use pmnet_wire::command::{Commands, Form, single};
use pmnet_wire::packet::READ_KEYS_MAX;

use super::input::Input;

/// Number of reply bytes that the client may leave unread; it is small, so that inputs reach it.
const UNREAD_MAX: usize = 1 << 16;
/// Maximum number of operations of one input.
const OPERATIONS: usize = 300;

/// Commands that clients send, from every row of the table and in every state.
const LINES: &[&str] = &[
    "SET k v",
    "SET k v NX",
    "GET k",
    "INCR n",
    "MSET a 1 b 2",
    "DEL k",
    "PING",
    "ECHO hello",
    "MULTI",
    "EXEC",
    "DISCARD",
    "WATCH k",
    "UNWATCH",
    "SELECT 1",
    "SELECT 0",
    "HELLO 3",
    "HELLO 2",
    "RESET",
    "CLIENT ID",
    "CLIENT SETNAME x",
    "BLPOP k 0",
    "XREAD BLOCK 0 STREAMS s $",
    "EVAL return 0",
    "NOSUCH a b",
    "GET",
    "QUIT",
    "COMMAND",
    "INFO",
    "KEYS *",
    "WAIT 1 0",
    "FLUSHALL",
    "AUTH x",
    "CONFIG GET x",
];

/// Commands after which a command may have more or fewer replies than one.
const STREAMING: &[&str] = &["SUBSCRIBE c", "UNSUBSCRIBE", "PSUBSCRIBE p", "MONITOR"];

/// Answers of the store.
const REPLIES: &[&[u8]] = &[
    b"+OK\r\n",
    b"$-1\r\n",
    b":1\r\n",
    b"-ERR no\r\n",
    b"$3\r\nabc\r\n",
    b"*2\r\n:1\r\n$1\r\nx\r\n",
    b"*1\r\n*7\r\n$3\r\nget\r\n:2\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n",
    b"*1\r\n*-1\r\n",
    b"*0\r\n",
    // A part of the store's INFO.
    b"$8\r\nrun_id:a\r\n",
    b"=12\r\ntxt:run_id:a\r\n",
    b"$1\r\no\r\n",
];

/// The server's answers about the store.
const NAMES: &[&[u8]] = &[
    b"redis://127.0.0.1:6379/?run_id=a&records=pmnet:{0}&owner=o",
    b"redis://127.0.0.1:6379/?run_id=a&records=pmnet:{0}&owner=",
    b"redis://127.0.0.1:6380/?run_id=b&records=pmnet:{0}&owner=o",
];

struct Pending {
    session: SessionHandle,
    call: CallId,
    update: bool,
    count: usize,
    form: Form,
}

/// The network side, which the input plays.
#[derive(Default)]
struct Fake {
    sessions: u32,
    calls: u64,
    pending: VecDeque<Pending>,
    /// Maximum number of outstanding calls; more would make it busy.
    most: usize,
    /// The READ without an answer so far.
    asked: Option<CallId>,
    /// Every call, one per line.
    seen: String,
}

impl Fake {
    fn take(
        &mut self,
        session: SessionHandle,
        payload: &[u8],
        update: bool,
        more: std::fmt::Arguments<'_>,
    ) -> Result<CallId, Refused> {
        let _ = writeln!(
            self.seen,
            "submit {session:?} {more} {}",
            payload.escape_ascii()
        );
        let commands = Commands::parse(payload).expect("the front sends what the store takes");
        assert!(session.0 <= self.sessions, "a session that was opened");
        if self.pending.len() >= self.most {
            return Err(Refused::Busy);
        }
        self.calls += 1;
        self.pending.push_back(Pending {
            session,
            call: CallId(self.calls),
            update,
            count: match commands.form {
                Form::Pack => commands.units().count(),
                _ => commands.count,
            },
            form: commands.form,
        });
        Ok(CallId(self.calls))
    }
}

impl Calls for Fake {
    fn open(&mut self, _: Time) -> Result<SessionHandle, Refused> {
        self.sessions += 1;
        let _ = writeln!(self.seen, "open {}", self.sessions);
        Ok(SessionHandle(self.sessions))
    }
    fn submit(&mut self, _: Time, s: SessionHandle, call: Call<'_>) -> Result<CallId, Refused> {
        let (payload, hash, deadline) = (call.payload, call.key_hash, call.deadline);
        match call.how {
            Submit::Update => {
                self.take(s, payload, true, format_args!("update {hash:x} {deadline}"))
            }
            Submit::Bypass { read_only } => {
                let more = format_args!("bypass {hash:x} {read_only} {deadline}");
                self.take(s, payload, false, more)
            }
        }
    }
    fn read(
        &mut self,
        _: Time,
        hashes: &[u64],
        replicas: bool,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        let _ = writeln!(self.seen, "read {hashes:x?} {replicas} {deadline}");
        assert!(hashes.len() <= READ_KEYS_MAX && !hashes.contains(&0));
        assert!(self.asked.is_none(), "one READ at a time");
        // A barrier of a passed command that was given up has no effect.
        let barrier = |call: &Pending| matches!(call.form, Form::Barrier | Form::StoreAddress);
        assert!(
            self.pending.iter().all(barrier),
            "a READ before something was answered"
        );
        if self.most < 10 {
            return Err(Refused::Busy);
        }
        self.calls += 1;
        self.asked = Some(CallId(self.calls));
        Ok(CallId(self.calls))
    }
}

struct World {
    connection: Connection,
    shared: Shared,
    up: Fake,
    /// Whether the front's mark is to be open.
    mark_wanted: bool,
    /// The read from the store under way, and the number of replies so far. Questions to the store,
    /// each with its number of replies.
    store_reads: VecDeque<(StoreRead, usize)>,
    /// All bytes that the client sent, and all that it got.
    asked: Vec<u8>,
    answered: Vec<u8>,
    /// All bytes that the store got, on the client's own connection and on the connections for
    /// reads.
    stored: Vec<u8>,
    /// Whether each command has exactly one reply, as far as known.
    one_to_one: bool,
}

/// The bytes that the front sent for a connection.
pub struct Transcript {
    /// To the client.
    pub client: Vec<u8>,
    /// To the network: every call, one per line.
    pub upstream: Vec<u8>,
    /// To the store, with a line for each new connection and for each question on other
    /// connections.
    pub store: Vec<u8>,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    transcript(data);
}

/// Runs one input. Returns the bytes that the front sent.
pub fn transcript(data: &[u8]) -> Transcript {
    let mut input = Input::new(data);
    let table = Table::new(&[] as &[&str]).expect("the built-in table");
    let mut world = World {
        shared: Shared::new(
            table,
            1_000_000_000,
            None,
            Cache::Pending,
            ReadFrom::Any,
            UNREAD_MAX,
        ),
        connection: Connection::new(1, ([10, 0, 0, 1], 4711).into()),
        store_reads: VecDeque::new(),
        mark_wanted: false,
        up: Fake {
            most: input.pick(&[1000, 2]),
            ..Fake::default()
        },
        asked: Vec::new(),
        answered: Vec::new(),
        stored: Vec::new(),
        one_to_one: true,
    };
    world.shared.store_reads = input.pick(&[[true; 2], [false; 2]]);
    // The store is never asked for its replicas' identity.
    world.shared.replicas.fit = input.pick(&[[true; 2], [false; 2]]);
    world.shared.replicas.asked(Time::MAX);
    world.shared.replicas.found(Time::MAX);
    for _ in 0..OPERATIONS {
        if !input.more() {
            break;
        }
        world.step(&mut input);
    }
    world.wind_up();
    Transcript {
        client: world.answered,
        upstream: world.up.seen.into_bytes(),
        store: world.stored,
    }
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..=4 => {
                let mut bytes = Vec::new();
                let words: Vec<&str> = input.pick(LINES).split(' ').collect();
                write_command(&mut bytes, &words);
                self.receive(&bytes);
            }
            5 if input.rarely(4) => {
                let line = format!("{}\r\n", input.pick(STREAMING));
                self.one_to_one = false;
                self.receive(line.as_bytes());
            }
            6 => {
                let bytes = input.bytes(200);
                // The bytes can contain any commands.
                self.one_to_one = false;
                self.receive(bytes);
            }
            7..=10 => self.outcome(input),
            11 if input.rarely(2) => self.read(input),
            11 => self.direct(input),
            12 => self.write(input.index(200)),
            13 if input.rarely(8) => self.close_session(input),
            14 if input.rarely(16) => {
                // Requests that wait for an answer that may never come are then given up.
                self.one_to_one = false;
                self.connection.receive_eof();
            }
            _ => self.time(input),
        }
        self.advance();
    }

    fn receive(&mut self, bytes: &[u8]) {
        if self.connection.wants_input() {
            self.asked.extend_from_slice(bytes);
            self.connection.receive(bytes);
        }
    }

    fn advance(&mut self) {
        for _ in 0..1000 {
            if self.connection.advance(&mut self.up, &mut self.shared) != Turn::More {
                break;
            }
        }
        self.take_outputs();
        // Commands after a SELECT or WATCH without an answer get no answer.
        self.one_to_one &= !self.connection.is_cut_off();
        let most = WAITING_INPUT_BYTES_SOFT_MAX + 3 * INPUT_BYTES_SOFT_MAX;
        assert!(!self.connection.wants_input() || self.asked.len() <= most);
    }

    /// Handles the connection's requests to the front.
    fn take_outputs(&mut self) {
        while let Some(output) = self.connection.poll_output() {
            match output {
                Output::OpenMark => self.mark_wanted = true,
                Output::Read(read) => {
                    self.stored
                        .extend_from_slice(format!("{read:?}\n").as_bytes());
                    self.store_reads.push_back((read, 0));
                    assert!(self.store_reads.len() <= 2, "one, and one asked before");
                }
                _ => {}
            }
        }
    }

    fn write(&mut self, most: usize) {
        let unwritten = self.connection.unwritten();
        let count = unwritten.len().min(most);
        self.answered.extend_from_slice(&unwritten[..count]);
        self.connection.wrote(count);
    }

    /// Ends one of the outstanding calls; those of one session end in order.
    fn outcome(&mut self, input: &mut Input<'_>) {
        let Some(pending) = self.up.pending.pop_front() else {
            return;
        };
        let outcome = match input.byte() % 8 {
            0 => Outcome::Unknown,
            1 => Outcome::Failed("the log is full"),
            _ if pending.update => Outcome::Committed { copies: 1 },
            2 => Outcome::Reply(Bytes::copy_from_slice(input.pick(REPLIES))),
            _ => Outcome::Reply(self.right_reply(&pending, input)),
        };
        self.connection
            .done(pending.call, outcome, &mut self.shared);
        let _ = pending.session;
    }

    /// Lets the head answer a READ, or the store answer a read.
    fn read(&mut self, input: &mut Input<'_>) {
        if let Some(call) = self.up.asked.take() {
            let (epoch, order) = (1, 1);
            let answer = match input.byte() % 8 {
                0 => ReadAnswer::None,
                kind @ 1..=3 => ReadAnswer::Miss {
                    epoch,
                    need: order,
                    version: u64::from(kind / 3),
                    replicas: u64::from(kind / 2),
                },
                4 => ReadAnswer::Hit {
                    epoch,
                    order,
                    payload: Bytes::copy_from_slice(input.bytes(40)),
                },
                _ => ReadAnswer::Hit {
                    epoch,
                    order,
                    payload: Bytes::from(single(&["SET", "k", "v"])),
                },
            };
            self.connection
                .read_answered(call, answer, &mut self.shared);
        }
        let Some((read, replies)) = self.store_reads.front_mut() else {
            return;
        };
        if input.rarely(6) || *replies == read.count {
            let why = input.pick(&[Unread::Unfit, Unread::Large]);
            self.connection
                .store_unread(read.batch, why, &mut self.shared);
            self.store_reads.pop_front();
            return;
        }
        if read.freshness == Freshness::Told && *replies == 0 {
            let (epoch, watermark) = (1, u64::from(!input.rarely(8)));
            self.connection
                .store_recorded(read.batch, epoch, watermark, &mut self.shared);
        }
        let reply = Bytes::copy_from_slice(input.pick(REPLIES));
        *replies += 1;
        self.connection
            .store_replied(read.batch, reply, &mut self.shared);
        if *replies == read.count {
            self.store_reads.pop_front();
        }
    }

    /// Returns as many replies as the call asked for.
    fn right_reply(&self, pending: &Pending, input: &mut Input<'_>) -> Bytes {
        let mut out = Vec::new();
        match pending.form {
            Form::Barrier | Form::StoreAddress => {
                // The value seldom differs from the previous one.
                let index = if input.rarely(8) {
                    input.index(NAMES.len())
                } else {
                    0
                };
                write_bulk(&mut out, NAMES[index]);
            }
            Form::Transaction => {
                write_header(&mut out, pending.count);
                out.extend(b":1\r\n".repeat(pending.count));
            }
            Form::Pack => {
                // As far as the store goes.
                let count = if input.rarely(4) {
                    1 + input.index(pending.count)
                } else {
                    pending.count
                };
                write_header(&mut out, count);
                for _ in 0..count {
                    out.extend_from_slice(input.pick(REPLIES));
                }
            }
            Form::Single | Form::Pipeline => {
                for _ in 0..pending.count {
                    out.extend_from_slice(input.pick(REPLIES));
                }
            }
        }
        out.into()
    }

    /// Lets the connection to the store take bytes, give some, or break.
    fn direct(&mut self, input: &mut Input<'_>) {
        let Some(target) = self.connection.direct_target() else {
            return;
        };
        let length = self.connection.direct_unwritten().len();
        match input.byte() % 8 {
            0 => self.connection.direct_lost("gone"),
            1 => {
                self.one_to_one = false;
                let bytes = input.bytes(100);
                self.connection.direct_receive(bytes, &self.shared);
            }
            2 => self.write_direct(target, input.index(length + 1)),
            _ => {
                self.write_direct(target, length);
                let reply = input.pick(REPLIES);
                self.one_to_one = false;
                self.connection.direct_receive(reply, &self.shared);
            }
        }
    }

    fn write_direct(&mut self, target: (u64, SocketAddr), count: usize) {
        self.stored
            .extend_from_slice(format!("{target:?}\n").as_bytes());
        let bytes = &self.connection.direct_unwritten()[..count];
        self.stored.extend_from_slice(bytes);
        self.connection.direct_wrote(count);
    }

    /// Lets time pass, and checks timers and the store.
    fn time(&mut self, input: &mut Input<'_>) {
        self.shared.now += 1_000_000;
        if input.rarely(16) {
            // Passed commands have deadlines.
            self.one_to_one &= !self.connection.is_timed();
            self.shared.now += 400_000_000;
        }
        if input.rarely(4) {
            self.shared.alive = Some(("a".into(), self.shared.now));
        }
        if input.rarely(8) {
            let name = StoreName::parse(input.pick(NAMES)).expect("a name");
            self.one_to_one &= !self.connection.waits_on_store();
            self.shared.store_named(&name);
            self.connection.store_named(&name);
        }
        self.connection.look(&self.shared, false);
        if self.shared.mark_open && input.rarely(8) {
            self.one_to_one &= !self.connection.needs_mark();
            self.shared.mark_open = false;
            self.connection.mark_lost();
        } else {
            self.shared.mark_open |= self.mark_wanted;
        }
    }

    fn close_session(&mut self, input: &mut Input<'_>) {
        let Some(session) = self.connection.session() else {
            return;
        };
        self.up.pending.retain(|pending| pending.session != session);
        let loss = input.rarely(2);
        // The client gets an error at its next command, and the connection ends.
        self.one_to_one &= !loss;
        let reason = if loss {
            Closed::DataLoss { from: 1, to: 2 }
        } else {
            Closed::Refused
        };
        self.connection.session_closed(reason, &mut self.shared);
    }

    /// Answers and writes everything outstanding.
    fn wind_up(&mut self) {
        self.shared.mark_open = true;
        for _ in 0..2000 {
            self.advance();
            self.write(usize::MAX);
            if self.up.asked.is_some() || !self.store_reads.is_empty() {
                self.read(&mut Input::new(&[]));
            } else if let Some(pending) = self.up.pending.pop_front() {
                let outcome = if pending.update {
                    Outcome::Committed { copies: 1 }
                } else {
                    Outcome::Reply(self.right_reply(&pending, &mut Input::new(&[])))
                };
                self.connection
                    .done(pending.call, outcome, &mut self.shared);
            } else if self.connection.direct_target().is_some() {
                self.connection.direct_lost("gone");
            } else if self.connection.unwritten().is_empty() {
                break;
            }
        }
        self.connection.receive_eof();
        self.advance();
        self.write(usize::MAX);
        assert!(self.up.pending.is_empty());
        assert!(
            self.connection.finished(),
            "an end of the stream ends the connection"
        );
        if self.one_to_one {
            let replies = count(&self.answered).expect("whole replies");
            let commands = commands(&self.asked);
            assert_eq!(replies, commands, "as many replies as commands");
        }
    }
}

/// Returns the number of commands that a client has sent and that must be answered: those up to
/// QUIT.
fn commands(mut stream: &[u8]) -> u32 {
    let mut count = 0;
    let mut parser = Parser::new(REQUESTS);
    while let Ok(Status::Complete) = parser.poll(stream) {
        let arguments = parser.arguments(stream);
        count += 1;
        if arguments.is(0, "QUIT") {
            break;
        }
        stream = &stream[parser.consume()..];
    }
    count
}
