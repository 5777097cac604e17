//! Commands over rows in memory: their replies, and the rows that they leave.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::*;
use crate::rows::{Fault, Order, Range, Row, Rows};

/// Rows in memory.
#[derive(Default)]
struct Memory(BTreeMap<Vec<u8>, (u8, u64, Vec<u8>)>);

impl Rows for Memory {
    fn get(&self, key: &[u8], look: &mut dyn FnMut(Row<'_>)) -> Result<bool, Fault> {
        let found = self.0.get(key);
        if let Some((kind, expires_at_ms, value)) = found {
            look(Row {
                kind: *kind,
                expires_at_ms: *expires_at_ms,
                value,
            });
        }
        Ok(found.is_some())
    }

    fn put(&mut self, key: &[u8], kind: u8, expires_at_ms: u64, value: &[u8]) -> Result<(), Fault> {
        self.0
            .insert(key.to_vec(), (kind, expires_at_ms, value.to_vec()));
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), Fault> {
        self.0.remove(key);
        Ok(())
    }

    fn count(&self, range: Range<'_>) -> u64 {
        let within =
            |key: &Vec<u8>| std::ops::RangeBounds::<[u8]>::contains(&range, key.as_slice());
        u64::try_from(self.0.keys().filter(|key| within(key)).count()).unwrap()
    }

    fn scan_from(
        &self,
        (from, to): Range<'_>,
        order: Order,
        skip: u64,
        visit: &mut dyn FnMut(&[u8], Row<'_>) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        let within = |key: &[u8]| std::ops::RangeBounds::<[u8]>::contains(&(from, to), key);
        let mut found: Vec<_> = self.0.iter().filter(|(key, _)| within(key)).collect();
        if order == Order::Descending {
            found.reverse();
        }
        for (key, (kind, expires_at_ms, value)) in
            found.into_iter().skip(usize::try_from(skip).unwrap())
        {
            let row = Row {
                kind: *kind,
                expires_at_ms: *expires_at_ms,
                value,
            };
            if visit(key, row).is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// A store with a clock that the test sets.
#[derive(Default)]
struct Server {
    rows: Memory,
    cursors: Cursors,
    now: u64,
}

impl Server {
    fn with_keys<T>(&mut self, work: impl FnOnce(&mut Keyspace<'_>) -> T) -> T {
        let mut keys = Keyspace::new(&mut self.rows, self.now, &mut self.cursors, 7);
        work(&mut keys)
    }

    fn run(&mut self, words: &[&str]) -> String {
        let context = Context {
            database: 0,
            resp3: false,
        };
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let reply = self.with_keys(|keys| run(keys, &context, &words));
        String::from_utf8_lossy(&reply.unwrap()).into_owned()
    }

    fn line(&mut self, command: &str) -> String {
        self.run(&command.split(' ').collect::<Vec<_>>())
    }

    /// Sweeps until nothing changes. Returns the number of sweeps, and the highest number of rows that one sweep
    /// removed.
    fn sweep(&mut self) -> (usize, usize) {
        let (mut times, mut most) = (0, 0);
        loop {
            let before = self.rows.0.len();
            self.with_keys(|keys| keys.sweep(SWEPT_ROWS)).unwrap();
            let removed = before - self.rows.0.len().min(before);
            if removed == 0 && before == self.rows.0.len() {
                return (times, most);
            }
            times += 1;
            most = most.max(removed);
        }
    }

    fn fill(&mut self, command: &str, key: &str, count: usize) {
        for from in (0..count).step_by(500) {
            let mut words = vec![command.to_owned(), key.to_owned()];
            for member in from..(from + 500).min(count) {
                words.push(member.to_string());
                if command != "SADD" {
                    words.push(member.to_string());
                }
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            assert!(self.run(&words).starts_with(':'));
        }
    }
}

/// Number of rows that remain in the table of numbers: the next number, and the key space of a database that was
/// emptied.
const NUMBERS: usize = 2;

#[test]
fn a_large_collection_goes_at_once_and_its_rows_step_by_step() {
    for (command, rows_each) in [("SADD", 1), ("HSET", 1), ("ZADD", 2)] {
        let mut server = Server::default();
        server.fill(command, "k", 3000);
        assert_eq!(server.line("DEL k"), ":1\r\n");
        assert_eq!(server.line("TYPE k"), "+none\r\n");
        assert_eq!(server.line("SADD k new"), ":1\r\n");
        assert_eq!(server.line("SMEMBERS k"), "*1\r\n$3\r\nnew\r\n");
        assert!(server.rows.0.len() > 3000 * rows_each);
        let (times, most) = server.sweep();
        assert!(times >= 3000 * rows_each / SWEPT_ROWS && most <= SWEPT_ROWS + 1);
        // The rows are the next number, one head, and one member.
        assert_eq!(server.rows.0.len(), 3);
        assert_eq!(server.line("SMEMBERS k"), "*1\r\n$3\r\nnew\r\n");
    }
}

#[test]
fn an_emptied_database_is_empty_at_once_and_its_rows_go_step_by_step() {
    let mut server = Server::default();
    server.fill("SADD", "large", 1000);
    for key in 0..1000 {
        server.line(&format!("RPUSH l{key} a b c"));
        server.line(&format!("SET s{key} v"));
    }
    assert_eq!(server.line("DBSIZE"), ":2001\r\n");
    for flush in ["FLUSHDB", "FLUSHALL"] {
        assert_eq!(server.line(flush), "+OK\r\n");
        assert_eq!(server.line("DBSIZE"), ":0\r\n");
        assert_eq!(server.line("SET s1 after"), "+OK\r\n");
        assert_eq!(server.line("KEYS *"), "*1\r\n$2\r\ns1\r\n");
        let (_, most) = server.sweep();
        assert!(most <= 2 * SWEPT_ROWS, "{most} rows in one step");
        assert_eq!(server.rows.0.len(), NUMBERS + 1);
    }
}

#[test]
fn what_is_over_is_gone_with_its_members() {
    let mut server = Server {
        now: 1_000_000,
        ..Server::default()
    };
    server.fill("SADD", "k", 200);
    server.line("SET s v PX 50");
    assert_eq!(server.line("PEXPIRE k 50"), ":1\r\n");
    server.now += 49;
    assert_eq!(server.line("SCARD k"), ":200\r\n");
    assert_eq!(server.line("PTTL k"), ":1\r\n");
    server.now += 1;
    for (command, reply) in [
        ("SCARD k", ":0\r\n"),
        ("TTL k", ":-2\r\n"),
        // Expired keys count until they are removed, as in Redis.
        ("DBSIZE", ":2\r\n"),
        ("KEYS *", "*0\r\n"),
        ("RANDOMKEY", "$-1\r\n"),
        ("SCAN 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("RENAME k other", "-ERR no such key\r\n"),
        ("COPY k other", ":0\r\n"),
        ("PERSIST k", ":0\r\n"),
        ("SET s w XX", "$-1\r\n"),
        ("DEL k", ":0\r\n"),
    ] {
        assert_eq!(server.line(command), reply, "{command}");
    }
    server.fill("SADD", "k", 2);
    assert_eq!(server.line("SMEMBERS k"), "*2\r\n$1\r\n0\r\n$1\r\n1\r\n");
    assert_eq!(server.line("TTL k"), ":-1\r\n");
    server.line("DEL k s");
    server.sweep();
    assert_eq!(server.rows.0.len(), 1, "the next number");
}

#[test]
fn what_is_over_is_removed_although_nobody_touches_it() {
    let mut server = Server {
        now: 1_000_000,
        ..Server::default()
    };
    for key in 0..200 {
        server.line(&format!("SET stays{key} v"));
        server.line(&format!("SET goes{key} v PX 10"));
        server.line(&format!("RPUSH list{key} a b"));
        server.line(&format!("PEXPIRE list{key} 10"));
    }
    server.now += 10;
    for _ in 0..100 {
        server.with_keys(|keys| keys.sweep(SWEPT_ROWS)).unwrap();
    }
    assert_eq!(server.line("DBSIZE"), ":200\r\n");
    assert_eq!(server.rows.0.len(), 200 + 1, "keys and the next number");
}

/// An acknowledged update must not fail, whatever value the key has.
#[test]
fn what_is_promised_is_done_over_every_type() {
    for before in [
        "SET k v",
        "HSET k f v",
        "RPUSH k v",
        "SADD k v",
        "ZADD k 1 v",
    ] {
        for promised in [
            "SET k new",
            "SET k new KEEPTTL",
            "SET k new EX 100000000000",
            "SET k new PX 1",
            "SET k new EXAT 99999999999",
            "SET k new PXAT 1",
            "MSET k old k new",
            "SETEX k 1 new",
            "PSETEX k 100000000000000 new",
        ] {
            let words: Vec<&str> = promised.split(' ').collect();
            assert!(pmnet_wire::promise::is_promised(words.len(), |at| words
                [at]
                .as_bytes()));
            let mut server = Server {
                now: 1_763_000_000_000,
                ..Server::default()
            };
            server.line(before);
            assert_eq!(server.line(promised), "+OK\r\n", "{promised} over {before}");
            if promised != "SET k new PXAT 1" {
                assert_eq!(
                    server.line("GET k"),
                    "$3\r\nnew\r\n",
                    "{promised} over {before}"
                );
            }
            server.line("DEL k");
            server.sweep();
            assert!(server.rows.0.len() <= 1, "{promised} over {before}");
        }
    }
}

#[test]
fn an_iteration_returns_what_stays_whatever_comes_and_goes() {
    let mut server = Server::default();
    for key in 0..300 {
        server.line(&format!("SET stays{key} v"));
        server.line(&format!("SET goes{key} v"));
    }
    let (mut cursor, mut seen, mut page) = ("0".to_owned(), BTreeMap::new(), 0);
    loop {
        let reply = server.line(&format!("SCAN {cursor} COUNT 7"));
        let lines: Vec<&str> = reply.split("\r\n").collect();
        lines[2].clone_into(&mut cursor);
        for line in lines.iter().filter(|line| line.starts_with("stays")) {
            *seen.entry((*line).to_owned()).or_insert(0) += 1;
        }
        server.line(&format!("DEL goes{page}"));
        server.line(&format!("SET comes{page} v"));
        page += 1;
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 300);
    assert!(seen.values().all(|times| *times == 1));
    // A cursor of another process starts from the beginning.
    let first = |reply: String| reply.split("\r\n").nth(5).map(str::to_owned);
    let (strange, start) = (
        server.line("SCAN 12345 COUNT 1"),
        server.line("SCAN 0 COUNT 1"),
    );
    assert_eq!(first(strange), first(start));
}

#[test]
fn what_is_drawn_is_there_and_different() {
    let mut server = Server::default();
    server.fill("SADD", "k", 100);
    let drawn = |reply: &str| -> Vec<u32> {
        reply
            .split("\r\n")
            .filter_map(|line| line.parse().ok())
            .collect()
    };
    let mut left = drawn(&server.line("SRANDMEMBER k 100"));
    assert_eq!(left, drawn(&server.line("SMEMBERS k")));
    for _ in 0..10 {
        let popped = drawn(&server.line("SPOP k 7"));
        assert_eq!(popped.len(), 7);
        for member in popped {
            let at = left.iter().position(|kept| *kept == member);
            left.remove(at.expect("it was there and not drawn before"));
        }
        assert_eq!(left, drawn(&server.line("SMEMBERS k")));
    }
    let many = drawn(&server.line("SRANDMEMBER k -1000"));
    assert!(many.len() == 1000 && many.iter().all(|member| left.contains(member)));
    assert_eq!(
        server.line("SRANDMEMBER k -9223372036854775807"),
        "-ERR pmnet: the reply is larger than 16 MiB\r\n"
    );
}
