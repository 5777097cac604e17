//! The parser of requests with complete, cut, quoted and damaged input.

use bytes::{Buf, BytesMut};
use pmnet_resp::limits::{ARGUMENTS_MAX, INLINE_BYTES_MAX, LENGTH_BYTES_MAX};
use pmnet_resp::{Arguments, Parser, ProtocolError, RequestLimits, Status, write_command};
use proptest::prelude::*;

/// Limits for commands that are larger than one read from a socket.
const LIMITS: RequestLimits = RequestLimits {
    bulk_bytes: 512 * 1024,
    command_bytes: 513 * 1024,
};

/// Parts from which damaged input is made.
const PIECES: &[&[u8]] = &[
    b"*",
    b"$",
    b"\r\n",
    b"\n",
    b"3",
    b"1",
    b"0",
    b"-1",
    b"*2\r\n$3\r\nGET\r\n",
    b"$1\r\na\r\n",
    b"\"",
    b"'",
    b"\\x4",
    b" ",
    b"PING",
    b"\0",
    b"\xff",
    b"99999999999999999999",
];

type Command = Vec<Vec<u8>>;

/// Gives `input` to the parser in pieces that end at `cuts`. Returns the commands that it found, and the error.
fn parse(input: &[u8], cuts: &[usize]) -> (Vec<Command>, Option<ProtocolError>) {
    let mut parser = Parser::new(LIMITS);
    let mut buffer = BytesMut::new();
    let mut commands = Vec::new();
    let mut ends: Vec<usize> = cuts
        .iter()
        .map(|cut| cut % (input.len() + 1))
        .chain([input.len()])
        .collect();
    ends.sort_unstable();
    let mut at = 0;
    for end in ends {
        buffer.extend_from_slice(&input[at..end]);
        at = end;
        loop {
            match parser.poll(&buffer) {
                Ok(Status::Incomplete) => {
                    // If `wanted` were not above the present length, a reader that stops at `wanted` would wait without
                    // end.
                    let (wanted, there) = (parser.wanted(), buffer.len());
                    assert!(wanted > there, "wants {wanted} of {there} bytes");
                    assert!(
                        wanted <= LIMITS.command_bytes + 2 * LENGTH_BYTES_MAX,
                        "wants {wanted} bytes, more than a command has"
                    );
                    break;
                }
                Ok(Status::Complete) => {
                    let arguments = parser.arguments(&buffer);
                    if !arguments.is_empty() {
                        let command: Command = arguments.iter().map(<[u8]>::to_vec).collect();
                        let mut canonical = Vec::new();
                        write_command(&mut canonical, &command);
                        assert_eq!(parser.frame(&buffer), canonical);
                        commands.push(command);
                    }
                    buffer.advance(parser.consume());
                }
                Err(error) => return (commands, Some(error)),
            }
        }
    }
    (commands, None)
}

fn error(input: &[u8]) -> Option<ProtocolError> {
    parse(input, &[]).1
}

fn words(line: &str) -> Vec<Command> {
    parse(line.as_bytes(), &[]).0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_split_gives_the_same_commands(
        commands in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 0..6),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
    ) {
        let mut input = Vec::new();
        for command in &commands {
            write_command(&mut input, command);
        }
        prop_assert_eq!(parse(&input, &cuts), (commands, None));
    }

    #[test]
    fn bytes_that_look_like_resp_never_panic_and_split_alike(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..24),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
    ) {
        let input = pieces.concat();
        prop_assert_eq!(parse(&input, &cuts), parse(&input, &[]));
    }

    #[test]
    fn any_bytes_never_panic(input in prop::collection::vec(any::<u8>(), 0..300), cuts in prop::collection::vec(any::<usize>(), 0..6)) {
        prop_assert_eq!(parse(&input, &cuts), parse(&input, &[]));
    }
}

#[test]
fn arguments_are_counted_found_and_compared() {
    let input = b"*3\r\n$3\r\nSeT\r\n$1\r\nk\r\n$0\r\n\r\n";
    let mut parser = Parser::new(LIMITS);
    assert_eq!(parser.poll(input), Ok(Status::Complete));
    let arguments = parser.arguments(input);
    assert_eq!((arguments.len(), arguments.is_empty()), (3, false));
    assert_eq!(
        [0, 1, 2, 3].map(|index| arguments.get(index)),
        [&b"SeT"[..], b"k", b"", b""]
    );
    assert!(arguments.is(0, "set") && arguments.is(1, "K") && arguments.is(2, ""));
    assert!(!arguments.is(0, "get") && !arguments.is(0, "SETEX") && !arguments.is(1, "set"));
    // An argument whose range lies outside of the buffer is empty.
    let outside = [1..3, 0..2];
    let arguments = Arguments::new(b"ab", &outside);
    assert_eq!((arguments.get(0), arguments.get(1)), (&b""[..], &b"ab"[..]));
    assert!(arguments.iter().eq([&b""[..], b"ab"]));
    assert!(Arguments::new(b"ab", &[]).is_empty());
}

#[test]
fn the_limits_are_those_of_redis() {
    assert_eq!((ARGUMENTS_MAX, INLINE_BYTES_MAX), (1_048_576, 65_536));
    assert_eq!(error(b"*1048576\r\n"), None);
}

#[test]
fn inline_commands_are_quoted_as_in_redis() {
    let set = |value: &[u8]| vec![vec![b"SET".to_vec(), b"k".to_vec(), value.to_vec()]];
    assert_eq!(words("SET k v\r\n"), set(b"v"));
    assert_eq!(words("  SET\tk   v  \n"), set(b"v"));
    assert_eq!(words("SET\x0bk \x0b v\x0b\n"), set(b"v"));
    assert_eq!(words("SET k \"a b\\n\\x41\\\"\"\r\n"), set(b"a b\nA\""));
    assert_eq!(words("SET k 'a \\n \\' b'\r\n"), set(b"a \\n ' b"));
    assert_eq!(words("SET k \"\"\r\n"), set(b""));
    assert_eq!(
        words("SET k \"\\n\\r\\t\\b\\a\\\\\\y\\xfF\"\r\n"),
        set(b"\n\r\t\x08\x07\\y\xff")
    );
    // Two hexadecimal digits are required; otherwise the escape is taken literally.
    assert_eq!(words("SET k \"\\xzz\\x4z\\xz4\"\r\n"), set(b"xzzx4zxz4"));
    assert_eq!(words("\r\n\r\nPING\r\n"), vec![vec![b"PING".to_vec()]]);
    assert_eq!(error(b"SET k \"open\r\n"), Some(ProtocolError::Quotes));
    assert_eq!(error(b"SET k \"a\"b\r\n"), Some(ProtocolError::Quotes));
    assert_eq!(
        error(&vec![b'a'; INLINE_BYTES_MAX]),
        Some(ProtocolError::InlineTooBig)
    );
    assert_eq!(error(&vec![b'a'; INLINE_BYTES_MAX - 1]), None);
    // The line is refused even if its end has come together with the rest of the line.
    let mut ended = vec![b'a'; INLINE_BYTES_MAX];
    ended.extend_from_slice(b"\r\n");
    assert_eq!(error(&ended), Some(ProtocolError::InlineTooBig));
    // Redis finds no end of a line after a NUL, and closes the connection when the line gets too long.
    for nul in [&b"\0"[..], b"\0abc\r\nPING\r\n", b"PI\0NG\r\n", b"PING \0"] {
        assert_eq!(error(nul), Some(ProtocolError::InlineNul), "{nul:?}");
    }
    assert_eq!(error(b"PING\r\n*1\r\n$1\r\n\0\r\n"), None);
}

#[test]
fn lengths_are_checked_before_anything_is_kept() {
    assert_eq!(error(b"*1048577\r\n"), Some(ProtocolError::MultibulkLength));
    assert_eq!(error(b"*x\r\n"), Some(ProtocolError::MultibulkLength));
    assert_eq!(error(b"*03\r\n"), Some(ProtocolError::MultibulkLength));
    assert_eq!(
        error(&[b"*".as_slice(), &[b'1'; 40]].concat()),
        Some(ProtocolError::MultibulkLength)
    );
    assert_eq!(
        error(b"*1\r\n:1\r\n"),
        Some(ProtocolError::ExpectedBulk(b':'))
    );
    assert_eq!(error(b"*1\r\n$-1\r\n"), Some(ProtocolError::BulkLength));
    assert!(matches!(
        error(b"*1\r\n$536870912\r\n"),
        Some(ProtocolError::TooLarge { .. })
    ));
    assert_eq!(error(b"*1\r\n$1\r\nabc"), Some(ProtocolError::BulkEnd));
    assert_eq!(
        parse(b"*0\r\n*-1\r\n*1\r\n$4\r\nPING\r\n", &[]),
        (vec![vec![b"PING".to_vec()]], None)
    );
    // The whole command would be too large, although each argument is small enough.
    let largest = LIMITS.bulk_bytes;
    let mut two = format!("*3\r\n${largest}\r\n").into_bytes();
    two.resize(two.len() + largest, b'x');
    two.extend_from_slice(format!("\r\n${largest}\r\n").as_bytes());
    let bytes = two.len() + largest + 2;
    let limit = largest;
    assert_eq!(error(&two), Some(ProtocolError::TooLarge { bytes, limit }));
}

#[test]
fn a_stranger_may_send_little_and_whoever_turns_out_to_be_none_goes_on() {
    let of_stranger = |input: &str| {
        let mut parser = Parser::new(LIMITS);
        let strange = parser.poll_of(input.as_bytes(), true);
        (strange, parser.poll(input.as_bytes()))
    };
    let more = Ok(Status::Incomplete);
    for (input, strange, known) in [
        ("*10\r\n", more, more),
        ("*11\r\n", Err(ProtocolError::StrangerMultibulk), more),
        (
            "*2147483647\r\n",
            Err(ProtocolError::StrangerMultibulk),
            Err(ProtocolError::MultibulkLength),
        ),
        (
            "*2147483648\r\n",
            Err(ProtocolError::MultibulkLength),
            Err(ProtocolError::MultibulkLength),
        ),
        ("*1\r\n$16384\r\n", more, more),
        ("*1\r\n$16385\r\n", Err(ProtocolError::StrangerBulk), more),
        (
            "*1\r\n$536870913\r\n",
            Err(ProtocolError::BulkLength),
            Err(ProtocolError::TooLarge {
                bytes: 536_870_931,
                limit: LIMITS.bulk_bytes,
            }),
        ),
    ] {
        assert_eq!(of_stranger(input), (strange, known), "{input:?}");
    }
}

#[test]
fn a_command_of_the_largest_size_is_taken_and_one_byte_more_is_not() {
    let input = b"*2\r\n$4\r\nECHO\r\n$5\r\n01234\r\n";
    let poll = |bulk_bytes, command_bytes| {
        Parser::new(RequestLimits {
            bulk_bytes,
            command_bytes,
        })
        .poll(input)
    };
    let bytes = input.len();
    assert_eq!(poll(5, bytes), Ok(Status::Complete));
    for (limit, most) in [(5, bytes - 1), (4, bytes)] {
        let error = poll(limit, most).unwrap_err();
        assert_eq!(error, ProtocolError::TooLarge { bytes, limit });
    }
    let error = ProtocolError::TooLarge {
        bytes: 5,
        limit: 16 << 20,
    };
    let text = error.to_string();
    assert!(
        text.contains("up to 16 MiB, this one has at least 5 bytes"),
        "{text}"
    );
}

#[test]
fn what_is_wanted_is_the_end_of_an_argument_or_one_byte_more() {
    let input = b"*2\r\n$4\r\nECHO\r\n$5\r\n01234\r\n";
    let mut parser = Parser::new(LIMITS);
    for (there, wanted) in [
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
        (8, 14),
        (13, 14),
        (14, 15),
        (18, 25),
    ] {
        assert_eq!(parser.poll(&input[..there]), Ok(Status::Incomplete));
        assert_eq!(parser.wanted(), wanted, "of {there}");
    }
}

#[test]
fn a_complete_command_stays_so_until_it_is_consumed() {
    for input in [&b"*1\r\n$4\r\nPING\r\nPING\r\n"[..], b"PING\r\nPING\r\n"] {
        let mut parser = Parser::new(LIMITS);
        for _ in 0..2 {
            assert_eq!(parser.poll(input), Ok(Status::Complete));
            let arguments: Vec<&[u8]> = parser.arguments(input).iter().collect();
            assert_eq!(arguments, [b"PING"]);
        }
        assert_eq!(parser.consume(), input.len() - 6);
        // No byte of the next command has come.
        assert_eq!(parser.wanted(), 1);
    }
}

#[test]
fn an_argument_of_the_largest_size_is_one_command() {
    let value = vec![b'v'; LIMITS.bulk_bytes];
    let mut input = Vec::new();
    write_command(&mut input, &[b"SET".as_slice(), b"key", &value]);
    let cuts: Vec<usize> = (0..input.len()).step_by(65_536).collect();
    let (commands, error) = parse(&input, &cuts);
    assert_eq!(error, None);
    assert_eq!(commands.len(), 1);
    assert!(commands[0][2] == value);
}

#[test]
fn an_incomplete_command_wants_more_than_there_is_at_every_byte() {
    let mut input = Vec::new();
    let words = [
        "MSET",
        "a",
        "",
        "key",
        "0123456789abcdef",
        "b",
        "\r\n$1\r\n",
    ];
    write_command(&mut input, &words);
    input.extend_from_slice(b"*0\r\n\r\nSET k 'a b'\r\n");
    // The last command is long, so only a part of its cuts is tried.
    let mut long = vec!["MSET".to_owned()];
    long.extend((0..20_000).map(|i| format!("word{i}")));
    let at = input.len();
    write_command(&mut input, &long);
    let cuts: Vec<usize> = (0..at).chain((at..input.len()).step_by(13)).collect();
    let (commands, error) = parse(&input, &cuts);
    assert_eq!(error, None);
    assert_eq!(commands.len(), 3);
    assert_eq!(commands[2].len(), 20_001);
}
