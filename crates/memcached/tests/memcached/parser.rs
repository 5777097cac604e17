//! Tests of the parser of the commands in a client's bytes.

use pmnet_memcached::request::{
    Form, GET_LINE_BYTES_MAX, LINE_BYTES_MAX, Parser, Request, Step, Store, Verb, item_bytes,
};

const ITEM_MAX: u64 = 1 << 20;

/// Returns all commands of an input that comes in pieces of this size.
fn parse(input: &[u8], piece: usize) -> Vec<Request> {
    let mut parser = Parser::new(ITEM_MAX);
    let (mut buffer, mut found) = (Vec::new(), Vec::new());
    for piece in input.chunks(piece) {
        buffer.extend_from_slice(piece);
        while let Step::Taken(count, request) = parser.poll(&buffer) {
            buffer.drain(..count);
            let ends = matches!(request, Some(Request::End(_)));
            found.extend(request);
            if ends {
                return found;
            }
        }
    }
    found
}

fn one(input: &str) -> Request {
    let mut found = parse(input.as_bytes(), usize::MAX);
    assert_eq!(found.len(), 1, "{input:?}: {found:?}");
    found.remove(0)
}

#[test]
fn what_is_wrong_is_said_as_memcached_says_it() {
    let long = "k".repeat(251);
    for (input, answer) in [
        ("\r\n", "ERROR"),
        ("\n", "ERROR"),
        ("x\r\n", "ERROR"),
        ("get\r\n", "ERROR"),
        ("set k 0 0\r\n", "ERROR"),
        ("set k x 0 1\r\n", "CLIENT_ERROR bad command line format"),
        ("set k 0 0 -1\r\n", "CLIENT_ERROR bad command line format"),
        (
            "set k 0 0 2147483646\r\n",
            "CLIENT_ERROR bad command line format",
        ),
        (
            "incr k x\r\n",
            "CLIENT_ERROR invalid numeric delta argument",
        ),
        ("touch k x\r\n", "CLIENT_ERROR invalid exptime argument"),
        ("gat x k\r\n", "CLIENT_ERROR invalid exptime argument"),
        (
            "delete k 5\r\n",
            "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]",
        ),
        ("verbosity 3\r\n", "OK"),
        ("mg k v v\r\n", "CLIENT_ERROR duplicate flag"),
        ("mg k ?\r\n", "CLIENT_ERROR invalid flag"),
        (
            "mg k h\r\n",
            "CLIENT_ERROR pmnet does not keep when an item was read: flags h and l",
        ),
        ("md k ?\r\n", "CLIENT_ERROR invalid or duplicate flag"),
        ("mg !! b\r\n", "CLIENT_ERROR error decoding key"),
        ("mn\r\n", "MN"),
        ("shutdown\r\n", "ERROR: shutdown not enabled"),
        ("mx k\r\n", "ERROR"),
    ] {
        match one(input) {
            Request::Say(Some(text)) => assert_eq!(text, answer, "{input:?}"),
            Request::Unknown => assert_eq!("ERROR", answer, "{input:?}"),
            other => panic!("{input:?}: {other:?}"),
        }
    }
    for input in [
        format!("get a {long}\r\n"),
        format!("mg {long}\r\n"),
        format!("incr {long} 1\r\n"),
    ] {
        assert_eq!(
            one(&input),
            Request::Say(Some("CLIENT_ERROR bad command line format"))
        );
    }
    assert_eq!(one("incr k x noreply\r\n"), Request::Say(None));
}

#[test]
fn an_input_in_pieces_has_the_same_meaning_as_in_one() {
    let input = b"set k 5 0 3\r\nabc\r\nget k l\r\nset k 0 0 3\r\nabcd\r\nms k 2 T5\r\nxy\r\nset k 0 0 2000000\r\n\
        incr k 1 noreply\r\nmg k v\nquit\r\nget k\r\n";
    let mut long = input.to_vec();
    let at = input
        .windows(9)
        .position(|nine| nine == b"2000000\r\n")
        .unwrap()
        + 9;
    long.splice(at..at, vec![b'x'; 2_000_002]);
    let whole = parse(&long, usize::MAX);
    assert!(
        matches!(whole.last(), Some(Request::End(None))),
        "quit is the last"
    );
    assert_eq!(whole.len(), 9, "{whole:?}");
    for piece in [1, 2, 3, 7, 1000] {
        assert_eq!(parse(&long, piece), whole, "{piece}");
    }
}

#[test]
fn data_is_what_its_length_says() {
    let data = |input: &str| match one(input) {
        Request::Store(Store {
            verb, data, form, ..
        }) => (verb, data, form),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        data("set k 0 0 4\r\na\r\nb\r\n"),
        (Verb::Set, (&b"a\r\nb"[..]).into(), Form::Text)
    );
    assert_eq!(
        data("add k 0 0 0 noreply\r\n\r\n"),
        (Verb::Add, (&b""[..]).into(), Form::Quiet)
    );
}

#[test]
fn what_is_too_large_is_swallowed() {
    let most = usize::try_from(ITEM_MAX - item_bytes(1, 0, 0)).unwrap();
    let set = |length: usize| {
        let mut input = format!("set k 0 0 {length}\r\n").into_bytes();
        input.resize(input.len() + length, b'x');
        input.extend_from_slice(b"\r\nversion\r\n");
        parse(&input, 50_000)
    };
    let [Request::Store(_), Request::Version] = &set(most)[..] else {
        panic!("it fits");
    };
    for length in [most + 1, 5_000_000] {
        let found = set(length);
        let gone = Request::TooLarge {
            key: Some((&b"k"[..]).into()),
            quiet: false,
        };
        assert_eq!(found, [gone, Request::Version], "{length}");
    }
}

#[test]
fn what_is_no_line_ends_the_connection() {
    let mut binary = vec![0x80, 0x0a, 0, 0];
    binary.resize(24, 0);
    let [Request::End(Some(text))] = &parse(&binary, 1)[..] else {
        panic!("the binary protocol is refused");
    };
    assert!(text.contains("does not speak the binary protocol"));
    // After the first command, a line that begins with this byte is a line like any other.
    assert_eq!(parse(b"mn\r\n\x80x\r\n", 3).len(), 2);
    for (begins, length, fits) in [
        ("", LINE_BYTES_MAX, true),
        ("", LINE_BYTES_MAX + 1, false),
        ("get ", GET_LINE_BYTES_MAX, true),
        ("get ", GET_LINE_BYTES_MAX + 1, false),
        ("gats 5 ", GET_LINE_BYTES_MAX, true),
    ] {
        let mut input = begins.as_bytes().to_vec();
        while input.len() < length {
            input.extend_from_slice(b"k ");
        }
        input.truncate(length);
        for ended in [true, false] {
            let input = [&input[..], if ended { b"\n" } else { b"" }].concat();
            let found = parse(&input, 700);
            let refused = matches!(
                found[..],
                [Request::End(Some("CLIENT_ERROR line too long"))]
            );
            assert_eq!(refused, !fits, "{begins} {length} {ended}");
        }
    }
    assert_eq!(
        parse(b"GET / HTTP/1.1\r\nget k\r\n", 9),
        [Request::End(None)]
    );
}

#[test]
fn no_bytes_make_it_panic() {
    let mut random = fastrand::Rng::with_seed(7);
    let words: &[&[u8]] = &[
        b"set", b"ms", b"mg", b"k", b" ", b"5", b"\r\n", b"\n", b"\0", b"\x80", b"noreply", b"b",
        b"C1", b"-1", b"gets",
    ];
    for _ in 0..20_000 {
        let count = random.usize(..12);
        let input: Vec<u8> = (0..count)
            .flat_map(|_| words[random.usize(..words.len())].to_vec())
            .collect();
        let whole = parse(&input, usize::MAX);
        if !input.is_empty() {
            assert_eq!(
                parse(&input, random.usize(1..=input.len())),
                whole,
                "{}",
                input.escape_ascii()
            );
        }
    }
}
