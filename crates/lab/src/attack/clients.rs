//! Two kinds of clients that run beside the checked load: silent clients, whose sessions the adversary can try to use,
//! and clients that read their own last writes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use serde::Serialize;

use super::{CALL_MAX, PREFIX};
use crate::harness::namespaces::enter;
use crate::resp::{Client, Reply};

/// Number of keys that a reading client writes and reads in random order.
const KEYS: usize = 16;
/// Time between two writes.
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum number of wrong values that the report describes.
const WRONG_MAX: usize = 8;

/// Connected clients with sessions that have finished their writes, and stay silent.
pub struct Silent(Vec<Client>);

impl Silent {
    /// Connects this number of clients. Each client makes two writes: one is acknowledged early, the other is not. The
    /// calling thread must be in the network namespace of the clients' machine.
    ///
    /// # Errors
    /// The front does not answer a write.
    pub fn connect(endpoint: SocketAddr, count: usize) -> anyhow::Result<Silent> {
        let mut clients = Vec::new();
        for number in 0..count {
            let mut client = Client::connect(endpoint, CALL_MAX)?;
            let key = format!("{PREFIX}silent:{number}");
            client.ask(&["SET", &key, "1"])?;
            let reply = client.ask(&["INCR", &key])?;
            ensure!(
                reply == Reply::Integer(2),
                "INCR is answered with {reply:?}"
            );
            clients.push(client);
        }
        Ok(Silent(clients))
    }

    /// Returns the number of silent clients.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// The results of a client that reads its own writes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Reads {
    /// Number of answered reads.
    pub answered: u64,
    /// Number of reads, of all clients together, that the head answered. The value is the front's counter at the end.
    pub hits: u64,
    /// Descriptions of wrong values, at most `WRONG_MAX`.
    pub wrong: Vec<String>,
}

impl Reads {
    /// Adds the results of another reading client.
    pub fn add(&mut self, other: Reads) {
        self.answered += other.answered;
        self.wrong.extend(other.wrong);
    }
}

/// A key of the reading client. No other client writes this key.
struct Key {
    name: String,
    /// The value that was acknowledged last; 0: no write was acknowledged yet.
    value: u64,
}

/// Writes a key, then reads this key and another key, and repeats this until it is stopped. Writes and reads use two
/// connections. Both reads must return the values that were acknowledged last.
///
/// # Errors
/// The thread cannot enter the network namespace of the client's machine.
pub fn read(
    client: &str,
    endpoint: SocketAddr,
    part: &str,
    stop: &AtomicBool,
) -> anyhow::Result<Reads> {
    enter(client)?;
    let mut reads = Reads::default();
    let mut random = fastrand::Rng::new();
    let mut named = 0_u64..;
    let mut fresh = || Key {
        name: format!("{PREFIX}read:{part}:{}", named.next().unwrap_or(u64::MAX)),
        value: 0,
    };
    let mut keys: Vec<Key> = std::iter::repeat_with(&mut fresh).take(KEYS).collect();
    let (mut writer, mut reader) = (None, None);
    for number in 1_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(PAUSE);
        let (at, other) = (random.usize(..KEYS), random.usize(..KEYS));
        let value = number.to_string();
        let set = call(&mut writer, endpoint, &["SET", &keys[at].name, &value]);
        if set.is_none_or(|reply| reply.bytes() != Some(&b"OK"[..])) {
            // The outcome of the write is unknown. So the value of the key is unknown, and a fresh key replaces it.
            keys[at] = fresh();
            continue;
        }
        keys[at].value = number;
        for key in [&keys[at], &keys[other]] {
            let Some(reply) = call(&mut reader, endpoint, &["GET", &key.name]) else {
                break;
            };
            let is_right = match &reply {
                Reply::Error(_) => continue,
                Reply::Nil => key.value == 0,
                value => value.text() == Some(key.value.to_string()),
            };
            reads.answered += 1;
            if !is_right && reads.wrong.len() < WRONG_MAX {
                let (name, value) = (&key.name, key.value);
                reads.wrong.push(format!(
                    "{name} was read as {reply:?}, and {value} was acknowledged"
                ));
            }
        }
    }
    Ok(reads)
}

/// Calls on the kept connection, or on a new connection if none was kept. `None`: no answer came, and the connection is
/// dropped.
fn call(kept: &mut Option<Client>, endpoint: SocketAddr, command: &[&str]) -> Option<Reply> {
    let mut client = match kept.take() {
        Some(client) => client,
        None => Client::connect(endpoint, CALL_MAX).ok()?,
    };
    let reply = client.call(command).ok()?;
    *kept = Some(client);
    Some(reply)
}
