//! RESP in both directions: clients' commands to the front, and stores' replies.
//!
//! Invariants: nothing panics; equal bytes give equal commands, replies and errors in any division
//! into pieces; a command that the front accepts is one that the payload language accepts; the
//! readers of replies agree on where a reply ends.

use pmnet_front::limits::{COMMAND_BYTES_MAX, REPLIES, REQUESTS};
use pmnet_resp::scan::count;
use pmnet_resp::value::ValueError;
use pmnet_resp::{Malformed, Parser, ProtocolError, Reply, Scanner, Status, read};
use pmnet_wire::command::{Commands, Form, Protocol, preamble};

use crate::input::Input;

/// Maximum number of pieces into which a stream is cut.
const PIECES: usize = 8;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let count = 1 + input.index(PIECES);
    let pieces: Vec<usize> = (0..count)
        .map(|_| 1 + usize::from(input.byte() % 64))
        .collect();
    let stream = input.rest();
    let whole = requests(stream, &[stream.len().max(1)]);
    assert_eq!(whole, requests(stream, &pieces), "cut into {pieces:?}");
    assert_eq!(whole, requests(stream, &[1]), "byte by byte");

    let whole = replies(stream, &[stream.len().max(1)]);
    assert_eq!(whole, replies(stream, &pieces), "cut into {pieces:?}");
    assert_eq!(whole, replies(stream, &[1]), "byte by byte");
    readers_agree(stream, &whole);
    let _ = read::text(stream);
    let _ = read::elements(stream);
    let _ = read::integer(stream);
}

type Requests = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// Returns all commands of a stream that arrives in pieces of these lengths, used in turn.
fn requests(stream: &[u8], pieces: &[usize]) -> Requests {
    let mut parser = Parser::new(REQUESTS);
    let mut buffer = Vec::new();
    let mut found = Vec::new();
    let mut rest = stream;
    let mut pieces = pieces.iter().cycle();
    loop {
        match parser.poll(&buffer) {
            Err(error) => return (found, Some(error)),
            Ok(Status::Complete) => {
                found.push(command(&parser, &buffer));
                let taken = parser.consume();
                assert!(taken > 0 && taken <= buffer.len(), "a command has bytes");
                buffer.drain(..taken);
            }
            Ok(Status::Incomplete) => {
                let wanted = parser.wanted();
                assert!(wanted <= COMMAND_BYTES_MAX, "never more than a command");
                if rest.is_empty() {
                    return (found, None);
                }
                let next = pieces.next().copied().unwrap_or(1).min(rest.len());
                buffer.extend_from_slice(&rest[..next]);
                rest = &rest[next..];
            }
        }
    }
}

/// Returns the arguments of a complete command, and compares them with those of the payload
/// language.
fn command(parser: &Parser, buffer: &[u8]) -> Vec<Vec<u8>> {
    let arguments = parser.arguments(buffer);
    let owned: Vec<Vec<u8>> = arguments.iter().map(<[u8]>::to_vec).collect();
    assert_eq!(owned.len(), arguments.len());
    if !owned.is_empty() {
        let mut payload = preamble(Form::Single, Protocol::Resp2, 0).to_vec();
        payload.extend_from_slice(parser.frame(buffer));
        let commands = Commands::parse(&payload).expect("what the front takes can be sent");
        let sent: Vec<&[u8]> = commands.iter().next().expect("one command").collect();
        assert_eq!(sent, owned, "the store reads the same arguments");
    }
    owned
}

type Replies = (Vec<usize>, Option<Malformed>);

/// Returns the lengths of all replies of a stream that arrives in pieces of these lengths.
fn replies(stream: &[u8], pieces: &[usize]) -> Replies {
    let mut scanner = Scanner::new(REPLIES);
    let mut buffer = Vec::new();
    let mut found = Vec::new();
    let mut rest = stream;
    let mut pieces = pieces.iter().cycle();
    loop {
        match scanner.poll(&buffer) {
            Err(error) => return (found, Some(error)),
            Ok(Some(length)) => {
                assert!(length > 0 && length <= buffer.len(), "a reply has bytes");
                found.push(length);
                buffer.drain(..length);
            }
            Ok(None) => {
                if rest.is_empty() {
                    return (found, None);
                }
                let next = pieces.next().copied().unwrap_or(1).min(rest.len());
                buffer.extend_from_slice(&rest[..next]);
                rest = &rest[next..];
            }
        }
    }
}

/// Compares the reader that builds values with the scanner that finds ends. They must agree on the
/// end of each reply, and on the reason why the stream has no further reply. This holds for all data
/// that the tree can represent.
fn readers_agree(stream: &[u8], (lengths, error): &Replies) {
    let mut rest = stream;
    for length in lengths {
        let (reply, after) = rest.split_at(*length);
        assert_eq!(count(reply), Some(1), "one reply");
        if let Some(parsed) = tree(rest) {
            assert_eq!(parsed, Ok(Some(*length)), "two readers of one reply");
        }
        if let Some(elements) = read::elements(reply) {
            let inside: usize = elements.iter().map(|element| element.len()).sum();
            assert!(reply.ends_with(&elements.concat()) && inside < *length);
        }
        rest = after;
    }
    if let Some(parsed) = tree(rest) {
        let end = error.map_or(Ok(None), Err);
        assert_eq!(parsed, end, "two readers of the rest");
    }
}

/// Returns the value reader's result for the reply at the head of `bytes`; `None` if the tree
/// cannot represent it.
fn tree(bytes: &[u8]) -> Option<Result<Option<usize>, Malformed>> {
    match Reply::parse(bytes, &REPLIES) {
        Ok(found) => Some(Ok(found.map(|(_, length)| length))),
        Err(ValueError::Malformed(why)) => Some(Err(why)),
        Err(ValueError::Resp3(_) | ValueError::Depth | ValueError::Integer) => None,
    }
}
