//! The readers of replies, with complete, cut, nested and damaged input. Their results are also compared with each
//! other.

use pmnet_resp::scan::count;
use pmnet_resp::value::{DEPTH_MAX, ValueError};
use pmnet_resp::{Malformed, Reply, ReplyLimits, Scanner, read, reply, write_command, write_map};
use proptest::prelude::*;

const LIMITS: ReplyLimits = ReplyLimits {
    line_bytes: 4 << 20,
    bulk_bytes: 8 << 20,
    reply_bytes: 16 << 20,
};

const NESTED: &[u8] =
    b"*3\r\n%1\r\n+k\r\n*2\r\n:1\r\n$-1\r\n=7\r\ntxt:abc\r\n|1\r\n+a\r\n:2\r\n,1.5\r\n";

/// Parts from which damaged input is made.
const PIECES: &[&[u8]] = &[
    b"*2\r\n",
    b"*",
    b"$3\r\nabc\r\n",
    b"$",
    b"+OK\r\n",
    b"-ERR x\r\n",
    b":1\r\n",
    b":x\r\n",
    b"_\r\n",
    b"#t\r\n",
    b"(12\r\n",
    b",1.5\r\n",
    b"%1\r\n",
    b"|1\r\n",
    b"~1\r\n",
    b">1\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"=",
    b"!3\r\nERR\r\n",
    b"-1\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"1",
    b"\r",
    b"\n",
    b"\r\n",
    b"\xff",
];

fn scan(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    Scanner::new(LIMITS).poll(bytes)
}

fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, ValueError> {
    Reply::parse(bytes, &LIMITS)
}

/// Returns the lengths of the replies in a stream that arrives in pieces up to each of `cuts`, and the error
/// that ends it.
fn lengths(stream: &[u8], cuts: &[usize]) -> (Vec<usize>, Option<Malformed>) {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
    ends.push(stream.len());
    ends.sort_unstable();
    let (mut scanner, mut found, mut start) = (Scanner::new(LIMITS), Vec::new(), 0);
    for end in ends {
        loop {
            match scanner.poll(&stream[start..end]) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    found.push(length);
                    start += length;
                }
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

#[test]
fn finds_the_end_whatever_the_split() {
    for extra in [&b""[..], b"+OK\r\n"] {
        let whole = [NESTED, extra].concat();
        let mut scanner = Scanner::new(LIMITS);
        for cut in 0..NESTED.len() {
            assert_eq!(scanner.poll(&whole[..cut]), Ok(None), "cut {cut}");
        }
        assert_eq!(scanner.poll(&whole), Ok(Some(NESTED.len())));
        // The scanner is now ready for the next reply.
        assert_eq!(scanner.poll(b":1\r\n"), Ok(Some(4)));
    }
    assert_eq!(count(&[NESTED, b"+OK\r\n", NESTED].concat()), Some(3));
    assert_eq!(count(b""), Some(0));
    assert_eq!(count(b"+OK\r\n$3\r\nab"), None);
    assert_eq!(count(b"+OK\r\nx"), None);
}

#[test]
fn refuses_what_is_not_resp() {
    let long = [b"+", &vec![b'x'; LIMITS.line_bytes][..]].concat();
    for (bad, why) in [
        (&b"HTTP/1.1 400\r\n"[..], Malformed::Type(b'H')),
        (b"\r\n", Malformed::Type(b'\r')),
        (b"*1\r\n\r\n", Malformed::Type(b'\r')),
        (b"$x\r\n", Malformed::Length),
        (b"$+3\r\nabc\r\n", Malformed::Length),
        (b"$03\r\nabc\r\n", Malformed::Length),
        (b"$-2\r\n", Malformed::Length),
        (b"*99999999999999999999\r\n", Malformed::Length),
        (b"$8388609\r\n", Malformed::Length),
        (b"=3\r\nabc\r\n", Malformed::Length),
        (b"=0\r\n\r\n", Malformed::Length),
        (b"$3\r\nabcde", Malformed::BulkEnd),
        // So many elements have more bytes than a reply may have.
        (b"*5600000\r\n", Malformed::TooLarge),
        (b"%9223372036854775807\r\n", Malformed::TooLarge),
        (&long, Malformed::Line),
    ] {
        assert_eq!(scan(bad), Err(why), "{}", bad.escape_ascii());
        assert!(parse(bad).is_err(), "{}", bad.escape_ascii());
    }
    assert_eq!(scan(b"*5500000\r\n"), Ok(None));
    // Each element is small enough, but all elements together are too large.
    let two = [b"*3\r\n".as_slice(), &reply::bulk(&vec![b'x'; 8 << 20])].concat();
    assert_eq!(scan(&two), Ok(None));
    assert_eq!(
        scan(&[&two[..], b"$8388608\r\n"].concat()),
        Err(Malformed::TooLarge)
    );
}

#[test]
fn what_is_as_large_as_a_limit_is_taken() {
    const NONE: ReplyLimits = ReplyLimits {
        line_bytes: usize::MAX,
        bulk_bytes: usize::MAX,
        reply_bytes: usize::MAX,
    };
    let poll = |bytes: &[u8], limits| Scanner::new(limits).poll(bytes);
    // The replies are a line, a string, and elements of the shortest kind, which are refused because of their number.
    for whole in [&b"+abc\r\n"[..], b"$3\r\nabc\r\n", b"*2\r\n_\r\n_\r\n"] {
        let reply = |reply_bytes| ReplyLimits {
            reply_bytes,
            ..NONE
        };
        let length = whole.len();
        assert_eq!(poll(whole, reply(length)), Ok(Some(length)));
        assert_eq!(poll(whole, reply(length - 1)), Err(Malformed::TooLarge));
    }
    assert_eq!(
        poll(
            b"*2\r\n",
            ReplyLimits {
                reply_bytes: 9,
                ..NONE
            }
        ),
        Err(Malformed::TooLarge),
        "before they have come"
    );
    let bulk = |bulk_bytes| ReplyLimits { bulk_bytes, ..NONE };
    assert_eq!(poll(b"$3\r\nabc\r\n", bulk(3)), Ok(Some(9)));
    assert_eq!(poll(b"$3\r\nabc\r\n", bulk(2)), Err(Malformed::Length));
    let line = |line_bytes| ReplyLimits { line_bytes, ..NONE };
    for before in [&b""[..], b"*1\r\n"] {
        let whole = [before, b"+abc\r\n"].concat();
        assert_eq!(poll(&whole, line(6)), Ok(Some(whole.len())));
        assert_eq!(poll(&whole, line(5)), Err(Malformed::Line));
        let cut = whole.len() - 1;
        assert_eq!(poll(&whole[..cut], line(6)), Ok(None));
        assert_eq!(poll(&whole[..cut], line(5)), Err(Malformed::Line));
    }
}

#[test]
fn a_line_ends_at_its_first_cr_lf() {
    assert_eq!(scan(b"+a\nb\rc\r\n:1\r\n"), Ok(Some(8)));
    assert_eq!(read::text(b"+a\nb\rc\r\n"), Some(&b"a\nb\rc"[..]));
    assert_eq!(scan(b"+\n\r\n"), Ok(Some(4)));
    assert_eq!(scan(b"+OK\n"), Ok(None));
    assert_eq!(scan(b"+\r\r\n"), Ok(Some(4)));
}

/// The end of a long line is searched once in each byte, whatever the pieces are in which the line comes. A cut is not
/// mistaken for the end of the line.
#[test]
fn a_long_line_is_a_reply_however_it_is_cut() {
    let mut line = vec![b'+'];
    line.extend(std::iter::repeat_n(b'x', 3 << 20));
    line.extend_from_slice(b"\r\n");
    let array = [b"*2\r\n".as_slice(), &line, b":1\r\n"].concat();
    let mut scanner = Scanner::new(LIMITS);
    let cuts = (0..array.len()).step_by(65_536);
    for cut in cuts.chain([array.len() - 5, array.len() - 1]) {
        assert_eq!(scanner.poll(&array[..cut]), Ok(None), "{cut}");
    }
    assert_eq!(scanner.poll(&array), Ok(Some(array.len())));
}

#[test]
fn texts_numbers_and_elements_are_found() {
    let parts = read::elements(NESTED).unwrap();
    assert_eq!(parts.len(), 3);
    assert_eq!(read::text(parts[1]), Some(&b"abc"[..]));
    assert_eq!(read::bulk(parts[1]), Some(&b"abc"[..]));
    assert_eq!(parts[2], b"|1\r\n+a\r\n:2\r\n,1.5\r\n");
    assert_eq!(read::elements(b"*-1\r\n"), None);
    assert_eq!(read::elements(b"*2\r\n:1\r\n"), None);
    assert_eq!(read::elements(b"~0\r\n"), Some(vec![]));
    assert_eq!(read::elements(b"$1\r\na\r\n"), None);
    assert_eq!(read::elements(b"|1\r\n+a\r\n:1\r\n:2\r\n"), None);
    assert_eq!(read::integer(b":-7\r\n"), Some(-7));
    assert_eq!(read::integer(b"+7\r\n"), None);
    assert_eq!(read::error(b"-ERR no\r\n"), Some("ERR no"));
    assert_eq!(read::text_range(b"$2\r\nab\r\n"), Some(4..6));
    assert_eq!(read::text(b":12\r\n"), Some(&b"12"[..]));
    assert_eq!(read::bulk(b":12\r\n"), None);
    assert_eq!(read::text(b"=4\r\ntxt:\r\n"), Some(&b""[..]));
    for none in [
        &b"$-1\r\n"[..],
        b"_\r\n",
        b"*0\r\n",
        b"-ERR\r\n",
        b"=0\r\n\r\n",
        b"=\r\n",
        b"$\r\n",
        b"$9\r\nab",
        b"",
    ] {
        assert_eq!(read::text(none), None, "{}", none.escape_ascii());
    }
}

#[test]
fn values_are_read_and_the_rest_is_waited_for() {
    let whole = b"*5\r\n+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n*2\r\n$-1\r\n*-1\r\n";
    let tree = Reply::Array(vec![
        Reply::Status(b"OK".to_vec()),
        Reply::Error("ERR no".into()),
        Reply::Integer(-7),
        Reply::Bulk(b"a\r\n".to_vec()),
        Reply::Array(vec![Reply::Nil, Reply::Nil]),
    ]);
    assert_eq!(parse(whole), Ok(Some((tree, whole.len()))));
    for cut in 0..whole.len() {
        assert_eq!(parse(&whole[..cut]), Ok(None), "cut at {cut}");
    }
}

#[test]
fn a_value_has_bytes_or_a_text() {
    let status = Reply::Status(b"OK".to_vec());
    let bulk = Reply::Bulk(b"a\xff".to_vec());
    assert_eq!(
        (status.bytes(), bulk.bytes()),
        (Some(&b"OK"[..]), Some(&b"a\xff"[..]))
    );
    assert_eq!(status.text().as_deref(), Some("OK"));
    assert_eq!(bulk.text().as_deref(), Some("a\u{fffd}"));
    assert_eq!(Reply::Integer(-7).text().as_deref(), Some("-7"));
    assert_eq!(Reply::Integer(-7).bytes(), None);
    for none in [
        Reply::Nil,
        Reply::Error("ERR".into()),
        Reply::Array(Vec::new()),
    ] {
        assert_eq!((none.bytes(), none.text()), (None, None));
    }
}

#[test]
fn what_a_tree_does_not_hold_is_named() {
    let deep = |depth: usize| [b"*1\r\n".repeat(depth), b":1\r\n".to_vec()].concat();
    assert!(parse(&deep(DEPTH_MAX)).unwrap().is_some());
    assert_eq!(parse(&deep(DEPTH_MAX + 1)), Err(ValueError::Depth));
    assert_eq!(parse(b":x\r\n"), Err(ValueError::Integer));
    assert_eq!(parse(b"%0\r\n"), Err(ValueError::Resp3(b'%')));
    assert_eq!(parse(b"_\r\n"), Err(ValueError::Resp3(b'_')));
    assert_eq!(parse(b"!-1\r\n"), Err(ValueError::Resp3(b'!')));
}

#[test]
fn what_is_written_is_read_again() {
    let mut out = Vec::new();
    write_command(&mut out, &["HSET", "", "0123456789"]);
    assert_eq!(out, b"*3\r\n$4\r\nHSET\r\n$0\r\n\r\n$10\r\n0123456789\r\n");
    for number in [0, -1, i64::MAX, i64::MIN] {
        assert_eq!(read::integer(&reply::integer(number)), Some(number));
    }
    assert_eq!(read::error(&reply::error("ERR a\r\nb")), Some("ERR a  b"));
    assert_eq!(read::bulk(&reply::bulk(b"\r\n")), Some(&b"\r\n"[..]));
    for (resp3, head) in [(false, b"*6\r\n"), (true, b"%3\r\n")] {
        let mut map = Vec::new();
        write_map(&mut map, 3, resp3);
        assert_eq!(map, head);
        map.extend_from_slice(&b":1\r\n".repeat(6));
        assert_eq!(read::elements(&map).map(|found| found.len()), Some(6));
    }
    assert_eq!(reply::null(true), b"_\r\n"[..]);
    assert_eq!(reply::null(false), b"$-1\r\n"[..]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn any_split_gives_the_same_replies(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..24),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
    ) {
        let stream = pieces.concat();
        prop_assert_eq!(lengths(&stream, &cuts), lengths(&stream, &[]));
    }

    /// The reader that builds values and the scanner that finds ends agree on all replies that a tree can hold.
    #[test]
    fn both_readers_find_the_same_end(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..24),
    ) {
        let stream = pieces.concat();
        match parse(&stream) {
            Ok(found) => prop_assert_eq!(Ok(found.map(|(_, length)| length)), scan(&stream)),
            Err(ValueError::Malformed(why)) => prop_assert_eq!(Err(why), scan(&stream)),
            Err(ValueError::Resp3(_) | ValueError::Depth | ValueError::Integer) => {}
        }
        if let Ok(Some(length)) = scan(&stream) {
            prop_assert_eq!(count(&stream[..length]), Some(1));
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _anything = (scan(&bytes), parse(&bytes), count(&bytes));
        let _anything = (read::text(&bytes), read::bulk(&bytes), read::error(&bytes));
        let _anything = (read::integer(&bytes), read::elements(&bytes));
    }
}
