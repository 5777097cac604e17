//! Commands that are larger than one read from a client, and consist of many small arguments.

use std::io::Write as _;

use crate::common::{Client, Redis, Running, command};
use pmnet_front::client::INPUT_BYTES_SOFT_MAX;
use pmnet_resp::limits::INLINE_BYTES_MAX;
use pmnet_resp::write_command;

/// Size of the reads from sockets, in bytes.
const READ_BYTES: usize = 64 * 1024;
/// Sizes of the pieces in which a client sends its input, used again and again.
const ODD: &[usize] = &[1, 7, 4093, 65_537, 333, 131_071, 2, 17_389];

/// Returns an MSET of about `bytes` bytes with short keys, and its number of keys.
fn mset(bytes: usize) -> (Vec<u8>, usize) {
    // Each pair is "$7\r\nkNNNNNN\r\n" and "$6\r\nNNNNNN\r\n".
    let keys = bytes / (13 + 12) + 1;
    let mut words = vec!["MSET".to_owned()];
    for i in 0..keys {
        words.push(format!("k{i:06}"));
        words.push(format!("{i:06}"));
    }
    let mut out = Vec::new();
    write_command(&mut out, &words);
    assert!(out.len() >= bytes && out.len() < bytes + 64);
    (out, keys)
}

fn send_pieces(client: &mut Client, bytes: &[u8], pieces: &[usize]) {
    let mut rest = bytes;
    for piece in pieces.iter().cycle() {
        let (head, tail) = rest.split_at((*piece).min(rest.len()));
        client.send(head);
        rest = tail;
        if rest.is_empty() {
            return;
        }
    }
}

fn last_value(client: &mut Client, keys: usize) -> String {
    client.ask(&format!("GET k{:06}", keys - 1))
}

#[test]
fn a_command_of_small_arguments_is_read_to_its_end_wherever_a_read_ends() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    for bytes in [INPUT_BYTES_SOFT_MAX, 300_000, 4 * 1024 * 1024] {
        let (mset, keys) = mset(bytes);
        let last = format!("$6\r\n{:06}\r\n", keys - 1);
        // A prefix of growing length moves the ends of the reads to all positions in an argument.
        let step = if bytes > 1_000_000 { 6 } else { 1 };
        for shift in (0..26).step_by(step) {
            for pieces in [&[READ_BYTES], ODD] {
                let mut client = front.client();
                let greeting = "x".repeat(10 + shift);
                let mut all = Vec::new();
                write_command(&mut all, &["PING", &greeting]);
                all.extend_from_slice(&mset);
                send_pieces(&mut client, &all, pieces);
                assert_eq!(
                    client.text(),
                    format!("${}\r\n{greeting}\r\n", greeting.len())
                );
                assert_eq!(client.text(), "+OK\r\n", "{bytes} bytes after {shift}");
                assert_eq!(last_value(&mut client, keys), last);
            }
        }
        let count = redis.client().ask("DBSIZE");
        assert_eq!(count, format!(":{keys}\r\n"));
        assert_eq!(redis.client().ask("FLUSHALL"), "+OK\r\n");
    }
}

#[test]
fn thousands_of_arguments_in_a_transaction_and_while_watching() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mset, keys) = mset(2 * 1024 * 1024);
    let last = format!("$6\r\n{:06}\r\n", keys - 1);
    for watch in [false, true] {
        let mut client = front.client();
        if watch {
            assert_eq!(client.ask("WATCH x"), "+OK\r\n");
        }
        assert_eq!(client.ask("MULTI"), "+OK\r\n");
        send_pieces(&mut client, &mset, ODD);
        assert_eq!(client.text(), "+QUEUED\r\n");
        assert_eq!(client.ask("EXEC"), "*1\r\n+OK\r\n");
        assert_eq!(last_value(&mut client, keys), last);
        assert_eq!(redis.client().ask("FLUSHALL"), "+OK\r\n");
    }
}

#[test]
fn the_longest_inline_command_behind_a_full_input() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let word = "w".repeat(INLINE_BYTES_MAX - "PING \r\n".len());
    let mut client = front.client();
    let pings = INPUT_BYTES_SOFT_MAX / 14;
    let mut all = command("PING").repeat(pings);
    all.extend_from_slice(format!("PING {word}\r\n").as_bytes());
    let mut writer = client.stream.try_clone().expect("clone");
    let sender = std::thread::spawn(move || {
        for piece in all.chunks(40_961) {
            writer.write_all(piece).expect("send");
        }
    });
    for _ in 0..pings {
        assert_eq!(client.text(), "+PONG\r\n");
    }
    assert_eq!(client.text(), format!("${}\r\n{word}\r\n", word.len()));
    sender.join().expect("sender");
}

#[test]
fn small_arguments_beyond_the_limit_are_refused_not_collected() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    let mut writer = client.stream.try_clone().expect("clone");
    let sender = std::thread::spawn(move || {
        writer
            .write_all(b"*1000001\r\n$4\r\nMSET\r\n")
            .expect("send");
        let argument = b"$24\r\n012345678901234567890123\r\n".repeat(1000);
        for _ in 0..1000 {
            // The front reads and discards the input that follows its error, so this write never fails.
            writer.write_all(&argument).expect("send");
        }
    });
    let error = client.text();
    assert!(
        error.starts_with("-ERR Protocol error: invalid bulk length") && error.contains("16 MiB"),
        "{error}"
    );
    assert_eq!(client.next(), None);
    sender.join().expect("sender");
    assert_eq!(redis.client().ask("DBSIZE"), ":0\r\n");
    assert_eq!(front.client().ask("PING"), "+PONG\r\n");
}
