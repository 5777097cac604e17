//! Clients that contend intentionally: they use few keys, mix operations, and make no pauses.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use pmnet_history::{Op, Outcome, Record};

use crate::clock::now_ns;
use crate::resp::{Client, Reply};

/// The default deadline of one reply.
const CALL_MAX: Duration = Duration::from_millis(2_000);
/// Pause before a connection is tried again.
const AGAIN: Duration = Duration::from_millis(20);
/// Maximum number of attempts of a final read.
const READ_TRIES: u32 = 10;
/// First character of the key of every register.
const REGISTER: char = 'r';
/// Length in bytes of a SET value that needs several packets.
const LONG_BYTES: usize = 4_000;
/// Number of client numbers that each group has.
const GROUP_CLIENTS: u64 = 1_000_000;
/// Number of the first final reader. The numbers of all other clients are smaller.
const READER: u64 = 1 << 40;
/// Script that releases a lock if the caller still holds it.
const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                       return redis.call('del', KEYS[1]) else return 0 end";

/// Pause after each operation in the second half of a client's operations. Without this pause, a client with fast
/// replies would finish before the service works again.
const PACE: Duration = Duration::from_millis(5);

/// How much the clients contend with each other.
#[derive(Clone, Copy, Debug)]
pub struct Contention {
    /// Number of registers, counters and locks that are in use at a time.
    pub slots: [usize; 3],
    /// Number of operations on a key after which the clients use the next key. Operations of unknown outcome on a key
    /// stay open, and make the check of this key long.
    pub key_operations: usize,
    /// Maximum number of operations of one client. A history with more operations could not be checked.
    pub operations_max: usize,
    /// Deadline of one reply. The deadline is longer than the front's own deadline.
    pub call_max: Duration,
}

impl Default for Contention {
    fn default() -> Contention {
        Contention {
            slots: [3, 2, 2],
            key_operations: 240,
            operations_max: 3_000,
            call_max: CALL_MAX,
        }
    }
}

/// State that the clients of one run or one group share. Each group has keys of its own.
#[derive(Debug)]
pub struct Shared {
    /// Addresses of the fronts. Each new client takes the next address in turn.
    endpoints: Vec<SocketAddr>,
    contention: Contention,
    /// Number of the first slot in the names of keys.
    first_slot: usize,
    stop: AtomicBool,
    next_client: AtomicU64,
    /// Number of operations so far, by slot. This number determines the slot's present key.
    used: Vec<AtomicUsize>,
    /// Number of acknowledged operations so far.
    acknowledged: AtomicU64,
    /// Number of acknowledged operations that a device may acknowledge, which are SETs.
    sets: AtomicU64,
    records: Mutex<Vec<Record>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Register,
    Counter,
    Lock,
}

impl Shared {
    /// Returns the state for the clients of one front.
    #[must_use]
    pub fn new(endpoint: SocketAddr) -> Shared {
        Shared::group(&[endpoint], 0, Contention::default())
    }

    /// Returns the state of one of several groups, whose clients are spread over these fronts. Groups are numbered from
    /// 0, and have equal contention.
    ///
    /// # Panics
    /// Panics if `endpoints` is empty.
    #[must_use]
    pub fn group(endpoints: &[SocketAddr], number: u32, contention: Contention) -> Shared {
        assert!(!endpoints.is_empty(), "clients need a front");
        let slots = contention.slots.iter().sum::<usize>();
        let group = usize::try_from(number).unwrap_or(usize::MAX);
        Shared {
            endpoints: endpoints.to_vec(),
            contention,
            first_slot: slots.saturating_mul(group),
            stop: AtomicBool::new(false),
            next_client: AtomicU64::new(u64::from(number) * GROUP_CLIENTS),
            used: (0..slots).map(|_| AtomicUsize::new(0)).collect(),
            acknowledged: AtomicU64::new(0),
            sets: AtomicU64::new(0),
            records: Mutex::new(Vec::new()),
        }
    }

    /// Tells the clients to end after their current operation.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Returns the number of acknowledged operations so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Returns the number of acknowledged SETs. A device acknowledges SETs; the database must execute all other
    /// operations.
    #[must_use]
    pub fn acknowledged_sets(&self) -> u64 {
        self.sets.load(Ordering::Acquire)
    }

    /// Returns the clients' operations, ordered by time of return.
    #[must_use]
    pub fn into_records(self) -> Vec<Record> {
        let mut records = self
            .records
            .into_inner()
            .unwrap_or_else(|poison| poison.into_inner());
        records.sort_by_key(|record| record.return_ns);
        records
    }

    fn number(&self) -> u64 {
        self.next_client.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the present key of a slot, and counts one operation on it.
    fn key(&self, slot: usize) -> (Kind, String) {
        let turn =
            self.used[slot].fetch_add(1, Ordering::Relaxed) / self.contention.key_operations.max(1);
        let [registers, counters, _] = self.contention.slots;
        let (kind, letter) = if slot < registers {
            (Kind::Register, REGISTER)
        } else if slot < registers + counters {
            (Kind::Counter, 'c')
        } else {
            (Kind::Lock, 'l')
        };
        (kind, format!("{letter}:{}:{turn}", self.first_slot + slot))
    }
}

/// Runs one client until it must stop.
pub fn work(shared: &Shared, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut client = Caller::new(shared);
    // The lock that this client holds or may hold.
    let mut held: Option<(String, String)> = None;
    for number in 0..shared.contention.operations_max {
        if shared.stop.load(Ordering::Acquire) {
            break;
        }
        if number > shared.contention.operations_max / 2 {
            std::thread::sleep(PACE);
        }
        if let Some((key, token)) = held.take_if(|_| random.u8(0..3) == 0) {
            if client.call(Op::Release, &key, &token).is_none() {
                // The outcome is unknown. The client reads the lock later, and so learns whether it holds the lock.
                held = Some((key, token));
            }
            continue;
        }
        let (kind, key) = shared.key(random.usize(..shared.used.len()));
        let value = format!("{seed:x}-{number}");
        match (kind, random.bool()) {
            (Kind::Register, true) => {
                client.call(Op::Set, &key, &value);
            }
            (Kind::Counter, true) => {
                client.call(Op::Incr, &key, "");
            }
            (Kind::Lock, true) if held.is_none() => {
                let won = client.call(Op::Setnx, &key, &value);
                if won.is_none_or(|reply| reply.is_some()) {
                    held = Some((key, value));
                }
            }
            _ => {
                client.call(Op::Get, &key, "");
            }
        }
    }
}

/// Runs one client that only sets registers, with a pause after each SET, until it must stop. None of its operations
/// waits for the database.
pub fn write(shared: &Shared, seed: u64, pause: Duration) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut client = Caller::new(shared);
    for number in 0..shared.contention.operations_max {
        if shared.stop.load(Ordering::Acquire) {
            break;
        }
        let (_, key) = shared.key(random.usize(..shared.contention.slots[0].max(1)));
        client.call(Op::Set, &key, &format!("{seed:x}-{number}"));
        std::thread::sleep(pause);
    }
}

/// Reads every key of a finished history, through the front or directly from the database.
///
/// # Errors
/// Fails if a read is not answered.
pub fn read_all(records: &mut Vec<Record>, endpoint: SocketAddr) -> anyhow::Result<()> {
    read_all_within(records, endpoint, CALL_MAX)
}

/// Reads every key of a finished history, as [`read_all`] does, with this deadline of one reply.
///
/// # Errors
/// Fails if a read is not answered.
pub fn read_all_within(
    records: &mut Vec<Record>,
    endpoint: SocketAddr,
    call_max: Duration,
) -> anyhow::Result<()> {
    let keys: std::collections::BTreeSet<String> =
        records.iter().map(|record| record.key.clone()).collect();
    let contention = Contention {
        call_max,
        ..Contention::default()
    };
    let shared = Shared::group(&[endpoint], 0, contention);
    shared.next_client.store(READER, Ordering::Relaxed);
    let mut client = Caller::new(&shared);
    // If datagrams are lost, a read may exceed the front's deadline, which is short in these runs.
    let unread = keys
        .iter()
        .find(|key| (0..READ_TRIES).all(|_| client.call(Op::Get, key, "").is_none()));
    records.extend(shared.into_records());
    match unread {
        Some(key) => anyhow::bail!("{key} cannot be read in the end, {READ_TRIES} times"),
        None => Ok(()),
    }
}

/// Deletes the clients' counters and registers directly in the database.
///
/// # Errors
/// Fails if the database does not answer.
pub fn delete_all(database: SocketAddr) -> anyhow::Result<()> {
    let mut client = Client::connect(database, CALL_MAX)?;
    for pattern in ["c:*", "r:*"] {
        if let Reply::Array(keys) = client.ask(&["KEYS", pattern])? {
            for key in keys.iter().filter_map(Reply::text) {
                client.ask(&["DEL", &key])?;
            }
        }
    }
    Ok(())
}

/// A logical client: a connection that is made again after a break. After an operation of unknown outcome, the client
/// gets a new number.
struct Caller<'a> {
    shared: &'a Shared,
    number: u64,
    connection: Option<Client>,
}

impl Caller<'_> {
    fn new(shared: &Shared) -> Caller<'_> {
        Caller {
            shared,
            number: shared.number(),
            connection: None,
        }
    }

    /// Runs and records one operation. Returns the reply, if the operation was acknowledged.
    fn call(&mut self, op: Op, key: &str, value: &str) -> Option<Option<String>> {
        let connection = self.connection()?;
        let command: Vec<Vec<u8>> = match op {
            Op::Set => vec![b"SET".into(), key.into(), padded(value)],
            Op::Incr => vec![b"INCR".into(), key.into()],
            Op::Setnx => vec![b"SET".into(), key.into(), value.into(), b"NX".into()],
            Op::Release => vec![
                b"EVAL".into(),
                RELEASE.into(),
                b"1".into(),
                key.into(),
                value.into(),
            ],
            _ => vec![b"GET".into(), key.into()],
        };
        let invoke_ns = now_ns();
        let answer = connection.call(&command);
        let return_ns = now_ns();
        let (outcome, reply) = match answer {
            Ok(Reply::Error(text)) if text.contains("may or may not") => {
                (Outcome::Unknown, Some(text))
            }
            Ok(Reply::Error(text)) => (Outcome::Failed, Some(text)),
            Ok(reply) if op == Op::Get && key.starts_with(REGISTER) => {
                (Outcome::Ok, reply.text().map(without_padding))
            }
            Ok(reply) => (Outcome::Ok, reply.text()),
            Err(error) => {
                self.connection = None;
                (Outcome::Unknown, Some(error.to_string()))
            }
        };
        let record = Record {
            client: self.number,
            op,
            key: key.to_owned(),
            value: value.to_owned(),
            reply: reply.clone(),
            invoke_ns,
            return_ns,
            outcome,
        };
        self.shared
            .records
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
            .push(record);
        match outcome {
            Outcome::Ok => {
                self.shared.acknowledged.fetch_add(1, Ordering::AcqRel);
                if op == Op::Set {
                    self.shared.sets.fetch_add(1, Ordering::AcqRel);
                }
                return Some(reply);
            }
            // The connection was refused, perhaps because no process listens. A pause keeps the client from trying
            // again at full speed.
            Outcome::Failed => std::thread::sleep(AGAIN),
            Outcome::Unknown => self.number = self.shared.number(),
        }
        None
    }

    fn connection(&mut self) -> Option<&mut Client> {
        if self.connection.is_none() {
            let turn = usize::try_from(self.number).unwrap_or(0);
            let endpoints = &self.shared.endpoints;
            let endpoint = endpoints[turn % endpoints.len()];
            match Client::connect(endpoint, self.shared.contention.call_max) {
                Ok(client) => self.connection = Some(client),
                Err(_) => {
                    std::thread::sleep(AGAIN);
                    // The new number may select another front.
                    self.number = self.shared.number();
                }
            }
        }
        self.connection.as_mut()
    }
}

/// One value in eight needs several packets.
fn padded(value: &str) -> Vec<u8> {
    let mut bytes = value.as_bytes().to_vec();
    if value.ends_with('8') {
        bytes.resize(LONG_BYTES, b'.');
    }
    bytes
}

/// Returns the value without the padding of [`padded`]. If the padding is wrong, returns a value that no client wrote.
fn without_padding(text: String) -> String {
    let value = text.trim_end_matches('.');
    if padded(value) == text.as_bytes() {
        value.to_owned()
    } else {
        format!("torn, {} bytes: {text}", text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_value_is_nobodys_value() {
        for value in ["1-7", "1-8", "", "OK"] {
            let whole = String::from_utf8(padded(value)).unwrap();
            assert_eq!(without_padding(whole), value);
        }
        for torn in ["1-8", "1-8..", "1-7."] {
            let found = without_padding(torn.into());
            assert!(found.starts_with("torn"), "{torn} became {found}");
        }
    }
}
