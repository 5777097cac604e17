//! RESP2 for the tools: reply parser, command writer and a small blocking client with deadlines.
//!
//! Purpose: one reader of replies for the load generator, the checkers, the harness and the demo.
//! Invariants: the parser never panics, never allocates by a length that it has not received, and
//! is bounded in depth; every call of [`Client`] ends by its timeout. Replies are those of a RESP2
//! connection (the tools never send HELLO 3).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Deepest nesting of arrays that is read; deeper is a protocol error.
pub const DEPTH_MAX: usize = 8;
/// Longest bulk string that is read, in bytes: Redis's own limit of 512 MiB.
pub const BULK_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Longest line (status, error, integer, length) in bytes.
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// Bytes asked of the socket at once.
const READ_BYTES: usize = 64 * 1024;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+…`
    Status(Vec<u8>),
    /// `-…`
    Error(String),
    /// `:…`
    Integer(i64),
    /// `$…`
    Bulk(Vec<u8>),
    /// `$-1` or `*-1`
    Nil,
    /// `*…`
    Array(Vec<Reply>),
}

impl Reply {
    /// The bytes of a status or bulk reply.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Status(bytes) | Reply::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The text of a status or bulk reply, or the digits of an integer.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match self {
            Reply::Integer(number) => Some(number.to_string()),
            other => other
                .bytes()
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
        }
    }
}

/// Why a call did not bring a reply.
#[derive(Debug, thiserror::Error)]
pub enum RespError {
    /// The bytes are not RESP2.
    #[error("not a RESP reply: {0}")]
    Protocol(&'static str),
    /// The socket said so; after a timeout the connection must not be used again.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The peer closed the connection.
    #[error("connection closed by the server")]
    Closed,
    /// The server answered with an error where the caller wanted data.
    #[error("the server answered: {0}")]
    Server(String),
}

/// Parses one reply from the start of `bytes`: the reply and its length, `None` if it is not
/// there as a whole yet.
///
/// # Errors
/// [`RespError::Protocol`].
pub fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, RespError> {
    parse_nested(bytes, 0)
}

fn parse_nested(bytes: &[u8], depth: usize) -> Result<Option<(Reply, usize)>, RespError> {
    let Some((&marker, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let Some(end) = rest.iter().take(LINE_BYTES_MAX).position(|&b| b == b'\n') else {
        if rest.len() >= LINE_BYTES_MAX {
            return Err(RespError::Protocol("line too long"));
        }
        return Ok(None);
    };
    if end == 0 || rest[end - 1] != b'\r' {
        return Err(RespError::Protocol("line does not end in CR LF"));
    }
    let line = &rest[..end - 1];
    let used = end + 2;
    match marker {
        b'+' => Ok(Some((Reply::Status(line.to_vec()), used))),
        b'-' => Ok(Some((
            Reply::Error(String::from_utf8_lossy(line).into_owned()),
            used,
        ))),
        b':' => Ok(Some((Reply::Integer(number(line)?), used))),
        b'$' => parse_bulk(line, &bytes[used..], used),
        b'*' => parse_array(line, bytes, used, depth),
        _ => Err(RespError::Protocol("unknown type")),
    }
}

fn parse_bulk(line: &[u8], rest: &[u8], used: usize) -> Result<Option<(Reply, usize)>, RespError> {
    let length = number(line)?;
    if length == -1 {
        return Ok(Some((Reply::Nil, used)));
    }
    let length = usize::try_from(length)
        .ok()
        .filter(|length| *length <= BULK_BYTES_MAX)
        .ok_or(RespError::Protocol("bulk length out of range"))?;
    if rest.len() < length + 2 {
        return Ok(None);
    }
    if &rest[length..length + 2] != b"\r\n" {
        return Err(RespError::Protocol("bulk does not end in CR LF"));
    }
    Ok(Some((
        Reply::Bulk(rest[..length].to_vec()),
        used + length + 2,
    )))
}

fn parse_array(
    line: &[u8],
    bytes: &[u8],
    header: usize,
    depth: usize,
) -> Result<Option<(Reply, usize)>, RespError> {
    let count = number(line)?;
    if count == -1 {
        return Ok(Some((Reply::Nil, header)));
    }
    if count < 0 || depth >= DEPTH_MAX {
        return Err(RespError::Protocol("array too deep or of negative length"));
    }
    let mut used = header;
    // Grown as elements arrive: the announced count is the peer's word only.
    let mut items = Vec::new();
    for _ in 0..count {
        let Some((item, length)) = parse_nested(&bytes[used..], depth + 1)? else {
            return Ok(None);
        };
        items.push(item);
        used += length;
    }
    Ok(Some((Reply::Array(items), used)))
}

fn number(line: &[u8]) -> Result<i64, RespError> {
    std::str::from_utf8(line)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(RespError::Protocol("not a number"))
}

/// Appends one command as a RESP array of bulk strings.
pub fn write_command<A: AsRef<[u8]>>(arguments: &[A], out: &mut Vec<u8>) {
    pmnet_wire::command::write_command(arguments, out);
}

/// A blocking connection; every call ends by the timeout given at connect.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    timeout: Duration,
}

impl Client {
    /// Connects; `timeout` bounds the connect and each later call as a whole.
    ///
    /// # Errors
    /// Whatever the socket says.
    pub fn connect(address: SocketAddr, timeout: Duration) -> Result<Client, RespError> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        Ok(Client {
            stream,
            input: Vec::new(),
            timeout,
        })
    }

    /// One command, one reply (which may be an error reply).
    ///
    /// # Errors
    /// [`RespError`]; the connection must not be used again after one.
    pub fn call<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<Reply, RespError> {
        let mut out = Vec::new();
        write_command(arguments, &mut out);
        let mut replies = self.exchange(&out, 1)?;
        replies.pop().ok_or(RespError::Closed)
    }

    /// As [`Client::call`], with an error reply turned into an error.
    ///
    /// # Errors
    /// [`RespError`].
    pub fn ask<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<Reply, RespError> {
        match self.call(arguments)? {
            Reply::Error(text) => Err(RespError::Server(text)),
            reply => Ok(reply),
        }
    }

    /// Several commands (already written as RESP) in one write; their replies in order.
    ///
    /// # Errors
    /// [`RespError`]; the connection must not be used again after one.
    pub fn exchange(&mut self, commands: &[u8], count: usize) -> Result<Vec<Reply>, RespError> {
        let deadline = Instant::now() + self.timeout;
        self.stream.set_write_timeout(Some(self.timeout))?;
        self.stream.write_all(commands)?;
        let mut replies = Vec::new();
        let mut start = 0;
        while replies.len() < count {
            if let Some((reply, length)) = parse(&self.input[start..])? {
                replies.push(reply);
                start += length;
                continue;
            }
            self.input.drain(..start);
            start = 0;
            self.fill(deadline)?;
        }
        self.input.drain(..start);
        Ok(replies)
    }

    fn fill(&mut self, deadline: Instant) -> Result<(), RespError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::Error::from(ErrorKind::TimedOut).into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let old = self.input.len();
        self.input.resize(old + READ_BYTES, 0);
        let got = match self.stream.read(&mut self.input[old..]) {
            Ok(got) => got,
            Err(error) => {
                self.input.truncate(old);
                return match error.kind() {
                    ErrorKind::Interrupted => Ok(()),
                    ErrorKind::WouldBlock => Err(std::io::Error::from(ErrorKind::TimedOut).into()),
                    _ => Err(error.into()),
                };
            }
        };
        self.input.truncate(old + got);
        if got == 0 {
            return Err(RespError::Closed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_every_type_and_waits_for_the_rest() {
        let whole = b"*5\r\n+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n*2\r\n$-1\r\n*-1\r\n";
        let (reply, used) = parse(whole).unwrap().unwrap();
        assert_eq!(used, whole.len());
        assert_eq!(
            reply,
            Reply::Array(vec![
                Reply::Status(b"OK".to_vec()),
                Reply::Error("ERR no".into()),
                Reply::Integer(-7),
                Reply::Bulk(b"a\r\n".to_vec()),
                Reply::Array(vec![Reply::Nil, Reply::Nil]),
            ])
        );
        for cut in 0..whole.len() {
            assert!(parse(&whole[..cut]).unwrap().is_none(), "cut at {cut}");
        }
    }

    #[test]
    fn refuses_what_is_not_resp() {
        for bad in [
            &b"?\r\n"[..],
            b":x\r\n",
            b"$-2\r\n",
            b"$600000000\r\n",
            b"$1\r\nabc",
            b"+a\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        ] {
            assert!(parse(bad).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
