//! A real redis-server, a plain client, and an endpoint that executes calls directly on that server.

#[allow(dead_code, reason = "the laboratory uses all of it")]
#[path = "../../../../lab/src/harness/claims.rs"]
pub mod claims;
#[path = "../../../../../tests/shared/module.rs"]
pub mod module;
#[path = "../../../../../tests/shared/redis.rs"]
mod server;
pub mod sharded;
#[path = "../../../../../tests/shared/skip.rs"]
pub mod skip;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pmnet_front::client::Counters;
use pmnet_front::limits::REPLIES;
use pmnet_front::upstream::{
    Call, CallId, Calls, Closed, Event, Outcome, ReadAnswer, Refused, SessionHandle, Submit, Time,
    Upstream,
};
use pmnet_front::{Access, Cache, Front, FrontConfig, FrontError, Stopper};
use pmnet_resp::{Scanner, write_command};
use pmnet_wire::StoreName;
use pmnet_wire::command::{Commands, Form, Protocol};
use server::RedisServer;

/// Time after which every wait of the tests ends.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A redis-server of this test. The server ends when the value is dropped.
pub struct Redis {
    pub address: SocketAddr,
    server: RedisServer,
}

impl Redis {
    /// Starts a server. `None` if there is no redis-server: then the test counts as skipped.
    pub fn start() -> Option<Redis> {
        Redis::start_with(&[])
    }

    pub fn start_with(arguments: &[&str]) -> Option<Redis> {
        Some(Redis::of(RedisServer::start(arguments)?))
    }

    /// Starts one of the servers that `tests/compat/servers.py` fetches.
    pub fn start_named(name: &str) -> Option<Redis> {
        Some(Redis::of(RedisServer::start_named(name, &[])?))
    }

    fn of(server: RedisServer) -> Redis {
        Redis {
            address: SocketAddr::from(([127, 0, 0, 1], server.port())),
            server,
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Sends a signal to the process, for example to stop or continue it.
    pub fn signal(&self, signal: &str) {
        let done = std::process::Command::new("kill")
            .args([signal, &self.server.pid().to_string()])
            .status();
        assert!(done.expect("kill").success());
    }
}

/// A blocking client that returns raw replies.
pub struct Client {
    pub stream: TcpStream,
    inbox: Vec<u8>,
    scanner: Scanner,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
        stream.set_write_timeout(Some(DEADLINE)).expect("timeout");
        Client {
            stream,
            inbox: Vec::new(),
            scanner: Scanner::new(REPLIES),
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("send");
    }

    /// Returns the next reply; `None` at the end of the stream.
    pub fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if !self.inbox.is_empty()
                && let Some(len) = self.scanner.poll(&self.inbox).expect("RESP")
            {
                let rest = self.inbox.split_off(len);
                return Some(std::mem::replace(&mut self.inbox, rest));
            }
            let mut chunk = vec![0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(n) => self.inbox.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    /// Returns the next reply as text.
    pub fn text(&mut self) -> String {
        String::from_utf8_lossy(&self.next().expect("a reply, not the end")).into_owned()
    }

    /// Sends one command given as words and returns the reply as text.
    pub fn ask(&mut self, words: &str) -> String {
        self.send(&command(words));
        self.text()
    }
}

/// Returns a command from its words.
pub fn command(words: &str) -> Vec<u8> {
    let words: Vec<&str> = words.split(' ').collect();
    let mut out = Vec::new();
    write_command(&mut out, &words);
    out
}

/// Writes the record that a pmnet server would keep: its epoch, and the order up to which it has applied the log.
pub fn record(redis: &Redis, epoch: u32, watermark: u64) {
    let mut all = Vec::new();
    let chain = [&epoch.to_be_bytes()[..], b"members"].concat();
    let run_id = run_id(&mut redis.client());
    let fields: [&[u8]; 8] = [
        b"HSET",
        b"pmnet:{0}",
        b"watermark",
        &watermark.to_be_bytes(),
        b"chain",
        &chain,
        b"store",
        run_id.as_bytes(),
    ];
    write_command(&mut all, &fields);
    let mut client = redis.client();
    client.send(&all);
    assert_eq!(client.text(), ":3\r\n");
}

/// Returns the run id of the server to which this client is connected.
pub fn run_id(client: &mut Client) -> String {
    let info = client.ask("INFO server");
    let line = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    line.expect("a run id").trim().to_owned()
}

/// The first number of the sessions of marks.
pub const MARKS_FROM: u32 = 1_000_000;

/// Settings of the tests' endpoint, and what it has observed.
#[derive(Default)]
pub struct Knobs {
    /// Whether nothing is executed and calls end at their deadlines.
    pub hold: bool,
    /// Whether only updates are executed, and all other calls end at their deadlines. An update is committed at once if
    /// no earlier call is outstanding.
    pub hold_bypasses: bool,
    /// Duration of the execution of each bypass.
    pub delay: Duration,
    /// Maximum number of calls outstanding; 0: no limit.
    pub queue_max: usize,
    /// If set, calls end with this outcome and are not executed.
    pub outcome: Option<Outcome>,
    /// The reply that names the store; `None`: the reply with the true name.
    pub address: Option<Bytes>,
    /// The store on which the endpoint works from now on, as after a failover.
    pub moved: Option<SocketAddr>,
    /// The owner of the records; empty: the records have no owner.
    pub owner: String,
    /// Number of marks opened and ended. The sessions of marks are numbered from [`MARKS_FROM`].
    pub marks: (u32, u32),
    /// Whether no mark is confirmed.
    pub hold_marks: bool,
    /// Whether the front may read from the store directly.
    pub reads_allowed: bool,
    /// All payloads of updates, as text.
    pub updates: Vec<String>,
    /// All bypasses: whether the bypass is read-only, its form, and its number of commands.
    pub bypasses: Vec<(bool, Form, usize)>,
    /// Number of questions for the store's facts, which a HELLO causes.
    pub greetings: u32,
    /// Number of sessions opened and ended.
    pub sessions: (u32, u32),
    /// Maximum number of parts of a pack that are executed; 0: no limit.
    pub parts_max: usize,
    /// Longest reply to a bypass, in bytes; 0: no limit.
    pub reply_max: usize,
    /// A command that another client executes on the store before each call.
    pub between: Option<&'static str>,
    /// A session to close, and whether acknowledged updates are lost with it.
    pub close: Option<(SessionHandle, bool)>,
    /// The head's answer to a READ of these hashes; `None`: the head accepts no READ.
    pub answer: Option<fn(&Knobs, &[u64]) -> ReadAnswer>,
    /// Whether the head does not answer yet.
    pub is_slow: bool,
    /// Number of READs that asked which order a replica must have applied.
    pub asked_replicas: u64,
    /// The hashes of all READs.
    pub reads: Vec<Vec<u64>>,
    /// Number of times that a call was refused.
    pub refused: usize,
    /// User and password with which the server logs in to the store.
    pub login: Option<&'static str>,
}

impl Knobs {
    /// Makes the settings for a server that logs in to the store.
    pub fn logged_in(login: &'static str) -> Knobs {
        Knobs {
            login: Some(login),
            ..Knobs::default()
        }
    }
}

struct Pending {
    session: SessionHandle,
    call: CallId,
    payload: Bytes,
    update: bool,
    read_only: bool,
    deadline: Time,
}

/// An endpoint that executes the calls on a real server in the order of their submission, when the front flushes.
pub struct Executor {
    knobs: Arc<Mutex<Knobs>>,
    store: SocketAddr,
    run_id: String,
    clients: [Client; 2],
    calls: u64,
    pending: VecDeque<Pending>,
    events: VecDeque<Event>,
    opening: Option<SessionHandle>,
    /// READs that have no answer yet.
    slow: Vec<(CallId, Vec<u64>)>,
    now: Time,
}

impl Executor {
    pub fn new(store: SocketAddr, knobs: Arc<Mutex<Knobs>>) -> Executor {
        let mut clients = [Client::connect(store), Client::connect(store)];
        let login = knobs.lock().expect("knobs").login;
        for client in &mut clients {
            if let Some(login) = login {
                assert_eq!(client.ask(&format!("AUTH {login}")), "+OK\r\n");
            }
        }
        clients[1].ask("HELLO 3");
        let run_id = run_id(&mut clients[0]);
        Executor {
            knobs,
            store,
            run_id,
            clients,
            calls: 0,
            pending: VecDeque::new(),
            events: VecDeque::new(),
            opening: None,
            slow: Vec::new(),
            now: 0,
        }
    }

    fn take(&mut self, session: SessionHandle, call: &Call<'_>) -> Result<CallId, Refused> {
        let (payload, deadline) = (call.payload.clone(), call.deadline);
        let update = call.how == Submit::Update;
        let read_only = call.how == Submit::Bypass { read_only: true };
        let mut knobs = self.knobs.lock().expect("knobs");
        if knobs.queue_max > 0 && self.pending.len() >= knobs.queue_max {
            knobs.refused += 1;
            return Err(Refused::Busy);
        }
        self.calls += 1;
        let call = CallId(self.calls);
        self.pending.push_back(Pending {
            session,
            call,
            payload,
            update,
            read_only,
            deadline,
        });
        Ok(call)
    }

    /// Ends calls whose deadlines have passed. In each session only the first outstanding call counts as sent.
    fn expire(&mut self) {
        let mut sent = std::collections::HashSet::new();
        let (now, events) = (self.now, &mut self.events);
        self.pending.retain(|pending| {
            let first = sent.insert(pending.session);
            if now < pending.deadline {
                return true;
            }
            let outcome = match (first, pending.read_only) {
                (true, true) => Outcome::Failed("deadline passed before the server answered"),
                (true, false) => Outcome::Unknown,
                (false, _) => Outcome::Failed("deadline passed before the call could be sent"),
            };
            events.push_back(Event::Done {
                session: pending.session,
                call: pending.call,
                outcome,
            });
            false
        });
    }

    fn execute(&mut self, payload: &[u8]) -> Bytes {
        let commands = Commands::parse(payload).expect("the front sends valid payloads");
        let client = &mut self.clients[usize::from(commands.protocol == Protocol::Resp3)];
        match commands.form {
            Form::Barrier | Form::StoreAddress => {
                let knobs = self.knobs.lock().expect("knobs");
                let name = StoreName {
                    address: self.store,
                    run_id: self.run_id.clone(),
                    records: "pmnet:{0}".into(),
                    owner: knobs.owner.clone(),
                    reads: knobs.reads_allowed,
                };
                let truth = || pmnet_resp::reply::bulk(name.to_string().as_bytes());
                return knobs.address.clone().unwrap_or_else(truth);
            }
            Form::Single | Form::Pipeline | Form::Transaction | Form::Pack => {}
        }
        let selected = client.ask(&format!("SELECT {}", commands.database));
        if selected.starts_with('-') {
            return Bytes::from(selected);
        }
        if commands.form == Form::Pack {
            let knobs = self.knobs.lock().expect("knobs");
            let (most, reply_max) = (knobs.parts_max, knobs.reply_max);
            drop(knobs);
            return run_pack(client, &commands, most, reply_max);
        }
        run(client, &commands).into()
    }
}

/// Runs a payload that is not a pack.
fn run(client: &mut Client, commands: &Commands<'_>) -> Vec<u8> {
    if commands.form == Form::Transaction {
        client.ask("MULTI");
        client.send(commands.resp);
        for _ in 0..commands.count {
            client.next();
        }
        client.send(&command("EXEC"));
        return client.next().expect("reply");
    }
    client.send(commands.resp);
    (0..commands.count)
        .flat_map(|_| client.next().expect("reply"))
        .collect()
}

/// Runs at most `most` parts of a pack (0: all). Like a store, ends the pack before a read whose reply is longer than
/// `reply_max`.
fn run_pack(client: &mut Client, commands: &Commands<'_>, most: usize, reply_max: usize) -> Bytes {
    let (mut count, mut replies) = (0, Vec::new());
    for unit in commands.units() {
        let reply = run(client, &unit.commands);
        let name = unit
            .commands
            .iter()
            .next()
            .and_then(|mut words| words.next());
        let too_long = reply_max > 0 && 16 + replies.len() + reply.len() > reply_max;
        if name == Some(b"GET") && (too_long || reply.len() > 16 * 1024) {
            break;
        }
        replies.extend_from_slice(&reply);
        count += 1;
        if count == most {
            break;
        }
    }
    let mut out = format!("*{count}\r\n").into_bytes();
    out.append(&mut replies);
    out.into()
}

impl Calls for Executor {
    fn open(&mut self, _now: Time) -> Result<SessionHandle, Refused> {
        let mut knobs = self.knobs.lock().expect("knobs");
        knobs.sessions.0 += 1;
        Ok(SessionHandle(knobs.sessions.0))
    }

    fn submit(&mut self, _: Time, s: SessionHandle, call: Call<'_>) -> Result<CallId, Refused> {
        let (p, how) = (call.payload, call.how);
        let call = self.take(s, &call)?;
        let Submit::Bypass { read_only: read } = how else {
            let update = String::from_utf8_lossy(&p[8..]).into_owned();
            self.knobs.lock().expect("knobs").updates.push(update);
            return Ok(call);
        };
        let commands = Commands::parse(p).expect("valid payload");
        // The front's question for the store's commands may come at any time.
        let asks = commands.count == 2 && p.ends_with(b"*1\r\n$7\r\nCOMMAND\r\n");
        // This is the question for the store's facts, which the first HELLO causes.
        let greets = commands.count == 2 && p.ends_with(b"$6\r\nMODULE\r\n$4\r\nLIST\r\n");
        let mut knobs = self.knobs.lock().expect("knobs");
        knobs.greetings += u32::from(greets);
        if !asks && !greets {
            knobs.bypasses.push((read, commands.form, commands.count));
        }
        Ok(call)
    }

    fn read(
        &mut self,
        _: Time,
        hashes: &[u64],
        replicas: bool,
        _: Time,
    ) -> Result<CallId, Refused> {
        let mut knobs = self.knobs.lock().expect("knobs");
        let Some(answer) = knobs.answer else {
            return Err(Refused::Busy);
        };
        knobs.reads.push(hashes.to_vec());
        knobs.asked_replicas += u64::from(replicas);
        self.calls += 1;
        let call = CallId(self.calls);
        if knobs.is_slow {
            self.slow.push((call, hashes.to_vec()));
        } else {
            let answer = answer(&knobs, hashes);
            self.events.push_back(Event::Read { call, answer });
        }
        Ok(call)
    }
}

impl Upstream for Executor {
    fn open_mark(&mut self, _: Time) -> Result<SessionHandle, Refused> {
        let mut knobs = self.knobs.lock().expect("knobs");
        knobs.marks.0 += 1;
        let session = SessionHandle(MARKS_FROM + knobs.marks.0);
        self.opening = Some(session);
        Ok(session)
    }

    fn end(&mut self, _now: Time, session: SessionHandle) {
        if session.0 > MARKS_FROM {
            self.knobs.lock().expect("knobs").marks.1 += 1;
            return;
        }
        self.knobs.lock().expect("knobs").sessions.1 += 1;
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn register(&mut self, _: &mio::Registry, _: mio::Token) -> std::io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, _now: Time) -> bool {
        false
    }

    fn flush(&mut self, now: Time) {
        self.now = now;
        {
            let knobs = self.knobs.lock().expect("knobs");
            if let Some(answer) = knobs.answer.filter(|_| !knobs.is_slow) {
                for (call, hashes) in self.slow.drain(..) {
                    let answer = answer(&knobs, &hashes);
                    self.events.push_back(Event::Read { call, answer });
                }
            }
        }
        let moved = self.knobs.lock().expect("knobs").moved.take();
        if let Some(store) = moved {
            let mut there = Executor::new(store, self.knobs.clone());
            std::mem::swap(&mut self.clients, &mut there.clients);
            (self.store, self.run_id) = (store, there.run_id);
        }
        let (hold, hold_bypasses, delay, instead) = {
            let knobs = self.knobs.lock().expect("knobs");
            (
                knobs.hold,
                knobs.hold_bypasses,
                knobs.delay,
                knobs.outcome.clone(),
            )
        };
        if !self.knobs.lock().expect("knobs").hold_marks
            && let Some(session) = self.opening.take()
        {
            self.events.push_back(Event::Marked { session });
        }
        let close = self.knobs.lock().expect("knobs").close.take();
        if let Some((session, data_loss)) = close {
            self.pending.retain(|pending| pending.session != session);
            self.events.push_back(Event::SessionClosed {
                session,
                reason: if data_loss {
                    Closed::DataLoss { from: 1, to: 2 }
                } else {
                    Closed::Refused
                },
            });
        }
        let may_run = |pending: &mut Pending| !hold && (pending.update || !hold_bypasses);
        while let Some(Pending {
            session,
            call,
            payload,
            update,
            ..
        }) = self.pending.pop_front_if(may_run)
        {
            if !update {
                std::thread::sleep(delay);
            }
            let outcome = match instead.clone() {
                Some(outcome) => outcome,
                None => {
                    let between = self.knobs.lock().expect("knobs").between;
                    if let Some(line) = between {
                        self.clients[0].ask("SELECT 0");
                        self.clients[0].ask(line);
                    }
                    let mut reply = self.execute(&payload);
                    let limit = self.knobs.lock().expect("knobs").reply_max;
                    if limit > 0 && reply.len() > limit {
                        reply = Bytes::from_static(b"-ERR pmnet: the reply is larger\r\n");
                    }
                    if update {
                        assert_eq!(
                            reply, "+OK\r\n",
                            "acknowledged early, but the store refuses {payload:?}"
                        );
                        Outcome::Committed { copies: 1 }
                    } else {
                        Outcome::Reply(reply)
                    }
                }
            };
            self.events.push_back(Event::Done {
                session,
                call,
                outcome,
            });
        }
        self.expire();
    }

    fn next_timeout(&self) -> Option<Time> {
        let waits = !self.pending.is_empty() || self.opening.is_some() || !self.slow.is_empty();
        waits.then_some(self.now + 1_000_000)
    }

    fn peer(&self) -> String {
        self.store.to_string()
    }
}

/// A front on an [`Executor`], in a thread.
pub struct Running {
    pub address: SocketAddr,
    pub knobs: Arc<Mutex<Knobs>>,
    stopper: Stopper,
    thread: Option<JoinHandle<Counters>>,
}

impl Running {
    pub fn start(redis: &Redis) -> Running {
        Running::start_with(redis, |_| {})
    }

    pub fn start_with(redis: &Redis, change: impl FnOnce(&mut FrontConfig)) -> Running {
        Running::start_as(redis, Knobs::default(), |config| {
            // Most tests are about bypasses, so they use no cache.
            config.cache = Cache::Off;
            change(config);
        })
    }

    /// Starts like [`Running::start_with`]. Also returns the number of clients that were closed because they did not
    /// read. An observer counts it while the front runs.
    pub fn start_watched(
        redis: &Redis,
        change: impl FnOnce(&mut FrontConfig),
    ) -> (Running, Arc<AtomicU64>) {
        let closed = Arc::<AtomicU64>::default();
        let seen = Arc::clone(&closed);
        let change = |config: &mut FrontConfig| {
            config.cache = Cache::Off;
            change(config);
        };
        let running = Running::serve(redis, Knobs::default(), change, move |front| {
            front.run_observed(|turn| seen.store(turn.counters.closed_unread, Ordering::Relaxed))
        });
        (running, closed)
    }

    pub fn start_as(redis: &Redis, knobs: Knobs, change: impl FnOnce(&mut FrontConfig)) -> Running {
        Running::serve(redis, knobs, change, Front::run)
    }

    fn serve(
        redis: &Redis,
        knobs: Knobs,
        change: impl FnOnce(&mut FrontConfig),
        run: impl FnOnce(Front<Executor>) -> Result<Counters, FrontError> + Send + 'static,
    ) -> Running {
        let mut config = FrontConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        // The tests about users set `access` to another value.
        config.access = Access::Anyone;
        change(&mut config);
        let knobs = Arc::new(Mutex::new(knobs));
        let front =
            Front::bind(&config, Executor::new(redis.address, knobs.clone())).expect("bind");
        let address = front.local_addr().expect("address");
        let stopper = front.stopper();
        let thread = std::thread::Builder::new()
            .name(format!("front-{}", address.port()))
            .spawn(move || run(front).expect("front"))
            .expect("thread");
        let running = Running {
            address,
            knobs,
            stopper,
            thread: Some(thread),
        };
        // When it starts, the front asks once for itself, before any client sends a request.
        eventually("the front has asked", || running.knobs().sessions == (1, 1));
        let mut knobs = running.knobs();
        knobs.bypasses.clear();
        knobs.sessions = (0, 0);
        drop(knobs);
        running
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Returns the name of the thread in which the front serves.
    pub fn thread_name(&self) -> String {
        format!("front-{}", self.address.port())
    }

    pub fn knobs(&self) -> std::sync::MutexGuard<'_, Knobs> {
        self.knobs.lock().expect("knobs")
    }
}

impl Running {
    /// Ends the front. Returns the numbers of reads by the source of their answers.
    pub fn stop(mut self) -> Counters {
        self.stopper.stop();
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("the front panicked")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the front panicked");
        }
    }
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}
