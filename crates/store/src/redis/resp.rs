//! Finding reply boundaries in RESP2/RESP3 bytes, and writing commands.
//!
//! Purpose: replies travel through pmnet as the raw bytes that Redis sent, so nothing here builds
//! a value tree; it only says where a reply ends and where the elements of an aggregate are.
//! Invariants: never panics on any bytes, never trusts an announced length beyond
//! [`REPLY_BYTES_MAX`], resumes where it stopped (a large reply is scanned once).

/// Largest reply accepted from Redis, in bytes (Redis's own largest string is 512 MiB).
pub const REPLY_BYTES_MAX: usize = 1 << 30;
/// Longest line (`*12\r\n`, `+status\r\n`, …), in bytes: more than the longest reply that can be handed on.
const LINE_BYTES_MAX: usize = 17 << 20;

/// Bytes of a reply that are shown.
const SHOWN_BYTES_MAX: usize = 64;

/// The bytes are not RESP, or exceed a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server's reply is not RESP")]
pub struct Malformed;

/// Finds the end of one reply, resuming when more bytes have come.
#[derive(Clone, Copy, Debug)]
pub struct Scanner {
    at: usize,
    open: usize,
    /// How far the search for the end of the line at `at` has come.
    searched: usize,
}

impl Scanner {
    /// A scanner at the first byte of a reply.
    pub fn new() -> Scanner {
        Scanner {
            at: 0,
            open: 1,
            searched: 0,
        }
    }

    /// `bytes` starts where the reply starts. Returns the reply's length once it is whole.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        while self.open > 0 {
            let Some((end, children)) = element(bytes, self.at, &mut self.searched)? else {
                return Ok(None);
            };
            self.at = end;
            self.searched = end;
            self.open = (self.open - 1).checked_add(children).ok_or(Malformed)?;
            if self.open > REPLY_BYTES_MAX {
                return Err(Malformed);
            }
        }
        Ok(Some(self.at))
    }
}

/// Reads the element header at `at` (with its body, for strings): the position after it and how
/// many further elements belong to it. `None`: not all there yet. Up to `searched` the line does not end.
fn element(
    bytes: &[u8],
    at: usize,
    searched: &mut usize,
) -> Result<Option<(usize, usize)>, Malformed> {
    let Some(rest) = bytes.get(at..) else {
        return Ok(None);
    };
    let Some(&kind) = rest.first() else {
        return Ok(None);
    };
    let from = searched.saturating_sub(at).min(rest.len());
    let window = &rest[from..rest.len().min(LINE_BYTES_MAX).max(from)];
    let Some(line_end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        // The last byte may be the first half of the line's end.
        *searched = bytes.len().saturating_sub(1);
        return if rest.len() > LINE_BYTES_MAX {
            Err(Malformed)
        } else {
            Ok(None)
        };
    };
    let line_end = from + line_end;
    *searched = at + line_end;
    // An empty line has no kind.
    let line = rest.get(1..line_end).ok_or(Malformed)?;
    let after = at + line_end + 2;
    match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Ok(Some((after, 0))),
        b'$' | b'=' | b'!' => {
            if line == b"-1" {
                return Ok(Some((after, 0)));
            }
            let length = length(line)?;
            // "txt:" comes before the text.
            if kind == b'=' && length < 4 {
                return Err(Malformed);
            }
            let end = after + length + 2;
            if bytes.len() < end {
                return Ok(None);
            }
            if &bytes[end - 2..end] == b"\r\n" {
                Ok(Some((end, 0)))
            } else {
                Err(Malformed)
            }
        }
        b'*' | b'~' | b'>' => {
            if line == b"-1" {
                return Ok(Some((after, 0)));
            }
            Ok(Some((after, length(line)?)))
        }
        b'%' => Ok(Some((after, 2 * length(line)?))),
        // An attribute precedes the element that it belongs to.
        b'|' => Ok(Some((after, 2 * length(line)? + 1))),
        _ => Err(Malformed),
    }
}

fn length(line: &[u8]) -> Result<usize, Malformed> {
    let text = std::str::from_utf8(line).map_err(|_| Malformed)?;
    text.parse()
        .ok()
        .filter(|&n| n <= REPLY_BYTES_MAX)
        .ok_or(Malformed)
}

/// The elements of an aggregate reply (array, set, push or map, keys and values in turn), each as
/// its raw bytes. `None` if `reply` is no aggregate (or the null array).
pub fn elements(reply: &[u8]) -> Option<Vec<&[u8]>> {
    if !matches!(reply.first(), Some(b'*' | b'~' | b'>' | b'%')) {
        return None;
    }
    let (mut at, count) = element(reply, 0, &mut 0).ok()??;
    if reply.starts_with(b"*-1") {
        return None;
    }
    let mut found = Vec::with_capacity(count.min(reply.len()));
    for _ in 0..count {
        let mut scanner = Scanner::new();
        let length = scanner.advance(&reply[at..]).ok()??;
        found.push(&reply[at..at + length]);
        at += length;
    }
    Some(found)
}

/// The text of a string reply (`$`, `=`, `+`, `:`), without its framing; `None` for all else.
pub fn text(reply: &[u8]) -> Option<&[u8]> {
    let (start, end) = text_range(reply)?;
    Some(&reply[start..end])
}

/// Where [`text`] lies inside `reply`.
pub fn text_range(reply: &[u8]) -> Option<(usize, usize)> {
    let line_end = reply.windows(2).position(|pair| pair == b"\r\n")?;
    let range = match reply.first()? {
        b'+' | b':' => (1, line_end),
        b'$' if !reply.starts_with(b"$-1") => (line_end + 2, reply.len() - 2),
        b'=' => (line_end + 6, reply.len() - 2),
        _ => return None,
    };
    (range.0 <= range.1).then_some(range)
}

/// The text of an error reply, without `-` and line end.
pub fn error(reply: &[u8]) -> Option<&str> {
    let rest = reply.strip_prefix(b"-")?;
    Some(std::str::from_utf8(rest.strip_suffix(b"\r\n")?).unwrap_or("ERR (not UTF-8)"))
}

/// The beginning of a reply, for people.
pub fn shown(reply: &[u8]) -> String {
    reply[..reply.len().min(SHOWN_BYTES_MAX)]
        .escape_ascii()
        .to_string()
}

/// Integer value of a `:n` reply.
pub fn integer(reply: &[u8]) -> Option<i64> {
    (reply.first() == Some(&b':')).then(|| std::str::from_utf8(text(reply)?).ok()?.parse().ok())?
}

/// Appends `*count\r\n`.
pub fn write_header(out: &mut Vec<u8>, count: usize) {
    out.push(b'*');
    write_number(out, count);
}

/// Appends one bulk string.
pub fn write_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'$');
    write_number(out, bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends a whole command.
pub fn write_command(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    write_header(out, arguments.len());
    for argument in arguments {
        write_bulk(out, argument);
    }
}

fn write_number(out: &mut Vec<u8>, mut number: usize) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).expect("one digit");
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    const NESTED: &[u8] =
        b"*3\r\n%1\r\n+k\r\n*2\r\n:1\r\n$-1\r\n=7\r\ntxt:abc\r\n|1\r\n+a\r\n:2\r\n,1.5\r\n";

    #[test]
    fn finds_the_end_whatever_the_split() {
        for extra in [&b""[..], b"+OK\r\n"] {
            let whole = [NESTED, extra].concat();
            let mut scanner = Scanner::new();
            for cut in 0..NESTED.len() {
                assert_eq!(scanner.advance(&whole[..cut]), Ok(None), "cut {cut}");
            }
            assert_eq!(scanner.advance(&whole), Ok(Some(NESTED.len())));
        }
        let parts = elements(NESTED).unwrap();
        assert_eq!(parts.len(), 3);
        assert_eq!(text(parts[1]), Some(&b"abc"[..]));
        assert_eq!(elements(b"*-1\r\n"), None);
    }

    #[test]
    fn refuses_what_is_not_resp() {
        for bad in [
            &b"HTTP/1.1 400\r\n"[..],
            b"$x\r\n",
            b"$3\r\nabcde",
            b"*99999999999999999999\r\n",
            b"$-2\r\n",
            b"\r\n",
            b"*1\r\n\r\n",
            b"=0\r\n\r\n",
            b"=3\r\nabc\r\n",
        ] {
            assert_eq!(Scanner::new().advance(bad), Err(Malformed), "{bad:?}");
        }
    }

    /// A line of megabytes is scanned once, however it comes, and has no end where it is cut.
    #[test]
    fn a_long_line_is_a_reply_however_it_is_cut() {
        let mut reply = vec![b'+'];
        reply.extend(std::iter::repeat_n(b'x', 3 << 20));
        reply.extend_from_slice(b"\r\n");
        let mut scanner = Scanner::new();
        let cuts = (0..reply.len()).step_by(65_536);
        for cut in cuts.chain([reply.len() - 1]) {
            assert_eq!(scanner.advance(&reply[..cut]), Ok(None), "{cut}");
        }
        assert_eq!(scanner.advance(&reply), Ok(Some(reply.len())));
        let mut array = b"*2\r\n".to_vec();
        array.extend_from_slice(&reply);
        let mut scanner = Scanner::new();
        assert_eq!(scanner.advance(&array), Ok(None));
        array.extend_from_slice(b":1\r\n");
        assert_eq!(scanner.advance(&array), Ok(Some(array.len())));
    }

    #[test]
    fn no_bytes_make_the_text_of_a_reply_panic() {
        for bytes in [
            &b"\r\n"[..],
            b"=\r\n",
            b"=0\r\n",
            b"=0\r\n\r\n",
            b"$\r\n",
            b"+\r\n",
            b":\r\n",
            b"",
        ] {
            let _nothing_or_something =
                (text(bytes), elements(bytes), error(bytes), integer(bytes));
        }
        assert_eq!(text(b"=0\r\n\r\n"), None);
    }

    #[test]
    fn written_commands_are_canonical() {
        let mut out = Vec::new();
        write_command(&mut out, &[b"HSET", b"", b"0123456789"]);
        assert_eq!(out, b"*3\r\n$4\r\nHSET\r\n$0\r\n\r\n$10\r\n0123456789\r\n");
    }
}
