//! RESP, both ways: what clients send to the front and what stores answer.
//!
//! Holds: nothing panics; the same bytes give the same commands, replies and error however they are
//! cut into pieces; a command that the front takes is one that the payload language takes; the
//! readers of replies agree with each other on where a reply ends.

use pmnet_front::parser::{COMMAND_BYTES_MAX, Parser, ProtocolError, Status};
use pmnet_front::reply::{self, ReplyError, Scanner};
use pmnet_wire::command::{Commands, Form, Protocol, preamble};

use crate::input::Input;

/// Pieces of which the streams are cut, at most.
const PIECES: usize = 8;

/// The target.
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
    let _ = reply::subscription(stream);
    let _ = reply::bulk_text(stream);
}

type Requests = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// All commands of a stream that arrives in pieces of these lengths, again and again.
fn requests(stream: &[u8], pieces: &[usize]) -> Requests {
    let mut parser = Parser::default();
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

/// The arguments of a complete command, compared with what the payload language says of it.
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

type Replies = (Vec<usize>, Option<ReplyError>);

/// The lengths of all replies of a stream that arrives in pieces of these lengths.
fn replies(stream: &[u8], pieces: &[usize]) -> Replies {
    let mut scanner = Scanner::default();
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

/// The reader of the tools, which builds values, against the scanner, which finds ends. It takes
/// some numbers that Redis would not write (`+1`), so only what the scanner takes is compared.
fn readers_agree(stream: &[u8], (lengths, _): &Replies) {
    let mut at = 0;
    for length in lengths {
        let reply = &stream[at..at + length];
        assert_eq!(reply::count(reply), Some(1));
        if let Ok(Some((_, used))) = pmnet_lab::resp::parse(reply) {
            assert_eq!(used, *length, "two readers of one reply");
        }
        at += length;
    }
    let _ = pmnet_lab::resp::parse(stream);
}
