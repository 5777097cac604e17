//! memcached's text and meta protocol, and its frame over UDP: the input of the memcached front.
//!
//! Invariants: nothing panics. Equal bytes give equal commands in any division into pieces, and
//! equal answers if the store answers equally. The connection keeps its bounds. Each call is a
//! payload that stores accept, and each update is a promised one.

use bytes::Bytes;
use pmnet_client::{CallId, Outcome, Refused};
use pmnet_memcached::connection::{Call, Connection, SLOTS_MAX, Shared, Way};
use pmnet_memcached::datagram;
use pmnet_memcached::request::{Parser, Request, Step};
use pmnet_wire::command::Commands;
use pmnet_wire::promise::is_promised;

use crate::input::Input;

/// Maximum item size; it is small, so that inputs reach it.
const ITEM_MAX: u64 = 1024;
/// Maximum number of pieces into which a stream is cut.
const PIECES: usize = 8;
/// Number of turns within which a connection must have ended.
const TURNS_MAX: usize = 100_000;

/// Right and wrong answers of a store.
const REPLIES: &[&[u8]] = &[
    b"+OK\r\n",
    b"$-1\r\n",
    b":0\r\n",
    b":1\r\n",
    b"-ERR no\r\n",
    b"$14\r\n\x10\0\0\0\x07\0\0\0\0\0\0\0\x055\r\n",
    b"$14\r\n\x11\0\0\0\x07\0\0\0\0\0\0\0\x055\r\n",
    b"$1\r\nx\r\n",
    b"*2\r\n$14\r\n\x10\0\0\0\x07\0\0\0\0\0\0\0\x055\r\n:7000\r\n",
    b"*4\r\n$3\r\nHIT\r\n$14\r\n\x13\0\0\0\x07\0\0\0\0\0\0\0\x055\r\n:-1\r\n:1\r\n",
    b"*4\r\n$6\r\nSTORED\r\n$0\r\n\r\n:-1\r\n:0\r\n",
    b"*4\r\n$2\r\nOK\r\n$2\r\n42\r\n:5\r\n:0\r\n",
    b"*1\r\n$-1\r\n",
    b"",
];

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let count = 1 + input.index(PIECES);
    let pieces: Vec<usize> = (0..count)
        .map(|_| 1 + usize::from(input.byte() % 64))
        .collect();
    let salt = usize::from(input.byte());
    let stream = input.rest();
    let whole = requests(stream, &[stream.len().max(1)]);
    assert_eq!(whole, requests(stream, &pieces), "cut into {pieces:?}");
    assert_eq!(whole, requests(stream, &[1]), "byte by byte");
    serve(stream, &pieces, salt);
    if let datagram::Received::Whole(id, text) = datagram::read(stream) {
        assert!(
            datagram::write(id, text)
                .all(|datagram| datagram.len() <= datagram::DATAGRAM_BYTES_MAX)
        );
    }
}

/// Returns all commands of a stream that arrives in pieces of these lengths, used in turn.
fn requests(stream: &[u8], pieces: &[usize]) -> Vec<Request> {
    let mut parser = Parser::new(ITEM_MAX);
    let (mut buffer, mut found) = (Vec::new(), Vec::new());
    let (mut rest, mut pieces) = (stream, pieces.iter().cycle());
    loop {
        match parser.poll(&buffer) {
            Step::Taken(count, request) => {
                assert!(count > 0 && count <= buffer.len(), "a step takes something");
                buffer.drain(..count);
                let ends = matches!(request, Some(Request::End(_)));
                found.extend(request);
                if ends {
                    return found;
                }
            }
            Step::More if rest.is_empty() => return found,
            Step::More => {
                let length = pieces.next().copied().unwrap_or(1).min(rest.len());
                let (piece, after) = rest.split_at(length);
                buffer.extend_from_slice(piece);
                rest = after;
            }
        }
    }
}

/// Runs a connection whose calls get replies that depend only on their number.
fn serve(stream: &[u8], pieces: &[usize], salt: usize) {
    let mut shared = Shared::new(0, ITEM_MAX, 10, 1);
    shared.unix_millis = 1_800_000_000_000;
    let mut connection = Connection::new(&shared);
    let (mut rest, mut pieces) = (stream, pieces.iter().cycle());
    let (mut next, mut pending) = (0u64, Vec::new());
    for _ in 0..TURNS_MAX {
        if connection.wants_input() && !rest.is_empty() {
            let length = pieces.next().copied().unwrap_or(1).min(rest.len());
            let (piece, after) = rest.split_at(length);
            connection.receive(piece);
            rest = after;
        } else if rest.is_empty() {
            connection.receive_eof();
        }
        let mut submit = |call: Call| -> Result<CallId, Refused> {
            next += 1;
            check(&call);
            pending.push((CallId(next), call.way));
            Ok(CallId(next))
        };
        connection.advance(&mut shared, &mut submit);
        assert!(pending.len() <= SLOTS_MAX);
        for (id, way) in std::mem::take(&mut pending) {
            let number = usize::try_from(id.0)
                .unwrap_or(0)
                .wrapping_mul(7)
                .wrapping_add(salt);
            let outcome = match way {
                Way::Update => Outcome::Committed { copies: 1 },
                _ if number.is_multiple_of(19) => Outcome::Unknown,
                _ => Outcome::Reply(Bytes::from_static(REPLIES[number % REPLIES.len()])),
            };
            connection.done(id, outcome, &mut shared);
        }
        let count = connection.unwritten().len();
        connection.wrote(count);
        if connection.is_finished() {
            return;
        }
    }
    panic!("the connection does not end");
}

fn check(call: &Call) {
    let commands = Commands::parse(&call.payload).expect("a payload that stores take");
    if call.way == Way::Update {
        let words: Vec<&[u8]> = commands.iter().flatten().collect();
        assert!(
            is_promised(words.len(), |at| words[at]),
            "an update is promised"
        );
    }
}
