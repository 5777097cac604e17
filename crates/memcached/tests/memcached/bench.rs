//! A connection, with a packet store that executes its calls.

use bytes::Bytes;
use pmnet_client::{CallId, Outcome, Refused};
use pmnet_memcached::connection::{Call, Connection, Dialect, Shared, Store as Known, Way};
use pmnet_server::{Request, Source, Store};

pub struct Bench {
    pub shared: Shared,
    pub connection: Connection,
    store: Box<dyn Store>,
    /// The calls that were submitted, in their order.
    pub calls: Vec<Call>,
    next: u64,
    /// Submitted calls that have no answer.
    pending: Vec<(CallId, Call)>,
    _directory: tempfile::TempDir,
}

impl Bench {
    /// Makes a front whose store has answered the questions about itself.
    pub fn new() -> Bench {
        let mut bench = Bench::fresh();
        bench.say(b"set known 0 0 0\r\n\r\n");
        assert_eq!(bench.shared.store(), &Known::Serves(Dialect::Packet));
        bench.say(b"flush_all\r\nstats reset\r\n");
        bench.calls.clear();
        bench
    }

    /// Makes a front that knows nothing of its store.
    pub fn fresh() -> Bench {
        let directory = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap();
        let path = directory.path().join("store");
        let url = format!("packet:{}?size=64M", path.display());
        let mut store = pmnet_store::open(&url, 0).unwrap();
        store.load().unwrap();
        let mut shared = Shared::new(0, 1 << 20, 10, 1);
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        shared.unix_millis = u64::try_from(since.unwrap().as_millis()).unwrap();
        Bench {
            connection: Connection::new(&shared),
            shared,
            store,
            calls: Vec::new(),
            next: 0,
            pending: Vec::new(),
            _directory: directory,
        }
    }

    /// Makes the next client a UDP request, whose answer may have `room` bytes.
    pub fn ask_once(&mut self, said: &[u8], room: usize) {
        self.connection = Connection::of_one_request(&self.shared, said, room);
    }

    /// Takes the received commands and submits calls.
    pub fn advance(&mut self) {
        let Bench {
            connection,
            shared,
            calls,
            next,
            pending,
            ..
        } = self;
        let mut submit = |call: Call| -> Result<CallId, Refused> {
            *next += 1;
            calls.push(call.clone());
            pending.push((CallId(*next), call));
            Ok(CallId(*next))
        };
        connection.advance(shared, &mut submit);
    }

    /// Executes the submitted calls. Returns whether there were such calls.
    pub fn execute(&mut self) -> bool {
        let pending = std::mem::take(&mut self.pending);
        for (id, call) in &pending {
            let outcome = match call.way {
                Way::Update => {
                    assert_eq!(
                        &self.run(call, true)[..],
                        b"+OK\r\n",
                        "what is promised succeeds"
                    );
                    Outcome::Committed { copies: 1 }
                }
                Way::Read => Outcome::Reply(self.run(call, false)),
                Way::Change => Outcome::Reply(self.run(call, true)),
            };
            self.connection.done(*id, outcome, &mut self.shared);
        }
        !pending.is_empty()
    }

    /// Takes out the first pending call, so that it is not executed.
    pub fn hold(&mut self) -> (CallId, Call) {
        self.pending.remove(0)
    }

    /// Puts back a call that was taken out. This call will be executed next.
    pub fn release(&mut self, held: (CallId, Call)) {
        self.pending.push(held);
    }

    /// Ends the submitted calls with this outcome.
    pub fn end(&mut self, outcome: &Outcome) {
        for (id, _) in std::mem::take(&mut self.pending) {
            self.connection.done(id, outcome.clone(), &mut self.shared);
        }
    }

    fn run(&mut self, call: &Call, changes: bool) -> Bytes {
        let request = Request {
            payload: call.payload.clone(),
            source: Source::default(),
            record: changes.then(|| (b"r".to_vec(), Bytes::new())),
        };
        let mut replies = Vec::new();
        self.store.execute(&[request], &mut replies).unwrap();
        replies.remove(0)
    }

    /// Takes out the answers that were made so far.
    pub fn take(&mut self) -> Vec<u8> {
        let answer = self.connection.unwritten().to_vec();
        self.connection.wrote(answer.len());
        answer
    }

    /// Sends commands. Returns their answers.
    pub fn say(&mut self, commands: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        self.connection.receive(commands);
        loop {
            self.advance();
            answer.extend(self.take());
            if !self.execute() && !self.connection.has_more() {
                self.advance();
                answer.extend(self.take());
                return answer;
            }
        }
    }

    /// Sends commands. Returns their answers as text, with uniques replaced.
    pub fn text(&mut self, commands: &str) -> String {
        let answer = self.say(commands.as_bytes());
        crate::shared::Known::default().normalise(&answer)
    }
}

#[test]
fn the_store_is_found_out() {
    let mut bench = Bench::fresh();
    assert_eq!(bench.shared.store(), &Known::Unknown);
    assert_eq!(bench.say(b"get a\r\n"), b"END\r\n");
    assert_eq!(bench.shared.store(), &Known::Unknown, "a get needs nothing");
    assert_eq!(bench.say(b"incr a 1\r\n"), b"NOT_FOUND\r\n");
    assert_eq!(bench.shared.store(), &Known::Serves(Dialect::Packet));
}
