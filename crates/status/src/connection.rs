//! One connection to the status port. A connection serves one request.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown};
use std::time::{Duration, Instant};

use mio::net::{TcpStream, UnixStream};

use crate::host;
use crate::page::POLICY;

/// Maximum length of the head of a request, in bytes.
pub const HEAD_BYTES_MAX: usize = 8192;
/// Longest time until the whole request has arrived.
pub const REQUEST_MAX: Duration = Duration::from_secs(5);
/// Longest time of a TLS handshake. The handshake shows whether the client has a certificate.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(1);
/// Longest time for which a connection stays open. After this time, connections of slow or vanished clients are closed.
pub const LIFE_MAX: Duration = Duration::from_secs(15);
/// Time for which a new connection cannot be displaced. This time is enough for a request and its answer.
const UNDISTURBED: Duration = Duration::from_millis(250);
/// Maximum number of headers of a request.
const HEADERS_MAX: usize = 64;
/// Maximum number of bytes of a request's body that are read and discarded. If data stayed unread, the connection would
/// be reset, and the client might not get the answer.
const BODY_BYTES_MAX: usize = 2 << 20;

/// Status of the answer to a request that would change something. The answer also names the allowed methods.
const NOT_ALLOWED: &str = "405 Method Not Allowed";

/// A socket of any kind.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// TCP with TLS.
    Tls(Box<pmnet_tls::Stream<TcpStream>>),
}

impl Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
            Stream::Tls(stream) => stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    /// Sends as many of the waiting bytes as the socket accepts.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Tls(stream) if stream.has_unsent() => stream.flush(),
            _ => Ok(()),
        }
    }

    /// Returns the address of the client's host. All clients of a unix socket count as one host, together with clients
    /// that have already disconnected.
    fn host(&self) -> IpAddr {
        let peer = match self {
            Stream::Tcp(stream) => stream.peer_addr().ok(),
            Stream::Tls(stream) => stream.socket().peer_addr().ok(),
            Stream::Unix(_) => None,
        };
        peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip())
    }

    /// Returns whether a TLS handshake is in progress. Until the handshake has ended, it is unknown whether the client
    /// has a certificate.
    fn is_handshaking(&self) -> bool {
        matches!(self, Stream::Tls(stream) if stream.is_handshaking())
    }

    /// Returns whether the client has shown a certificate.
    fn is_known(&self) -> bool {
        matches!(self, Stream::Tls(stream) if !stream.is_handshaking())
    }

    fn end_writing(&mut self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            Stream::Tls(stream) => {
                stream.close();
                // If the socket does not accept the closing message now, the message is lost. The client does not need
                // the message, because it knows the length of the answer.
                let _unsent = stream.flush();
                stream.socket().shutdown(Shutdown::Write)
            }
        }
    }
}

/// A parsed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client requests only the head of the answer (HEAD).
    pub head_only: bool,
    /// The path, without a query.
    pub path: String,
    /// The value of the request's header `Accept`.
    pub accept: String,
    /// The request names no host other than this machine.
    pub is_local: bool,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: &'static str,
    pub content_type: &'static str,
    pub body: Cow<'static, str>,
}

impl Answer {
    pub fn text(status: &'static str, text: impl Into<Cow<'static, str>>) -> Answer {
        Answer {
            status,
            content_type: "text/plain; charset=utf-8",
            body: text.into(),
        }
    }

    fn bytes(&self, head_only: bool) -> Vec<u8> {
        let allow = if self.status == NOT_ALLOWED {
            "Allow: GET, HEAD\r\n"
        } else {
            ""
        };
        let mut bytes = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
             Content-Security-Policy: {POLICY}\r\nReferrer-Policy: no-referrer\r\n\
             {allow}X-Content-Type-Options: nosniff\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len()
        );
        if !head_only {
            bytes.push_str(&self.body);
        }
        bytes.into_bytes()
    }
}

/// The result of parsing a request.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    /// The request is incomplete.
    Partial,
    Request(Request),
    /// The request is refused. The fields are the status and the reason.
    Refused(&'static str, &'static str),
}

fn parse(bytes: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Parsed::Partial,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Parsed::Refused(
                "431 Request Header Fields Too Large",
                "the request is too long\n",
            );
        }
        Err(_) => return Parsed::Refused("400 Bad Request", "this is no HTTP request\n"),
    }
    let head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => {
            return Parsed::Refused(
                NOT_ALLOWED,
                "only GET and HEAD: nothing can be changed here\n",
            );
        }
    };
    let accept = request
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept = accept.map_or("", |header| {
        std::str::from_utf8(header.value).unwrap_or_default()
    });
    let target = request.path.unwrap_or("/");
    let hosts = request.headers.iter();
    let hosts = hosts.filter(|header| header.name.eq_ignore_ascii_case("host"));
    Parsed::Request(Request {
        head_only,
        path: path(target).to_owned(),
        accept: accept.to_owned(),
        is_local: host::is_local(target, hosts.map(|header| header.value)),
    })
}

/// Returns the path in the target of a request, without the query. If the request came through a proxy, the target may
/// also name the host (RFC 9112, 3.2.2).
fn path(target: &str) -> &str {
    let path = match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => {
            rest.find('/').map_or("/", |at| &rest[at..])
        }
        _ => target,
    };
    path.split(['?', '#']).next().unwrap_or_default()
}

#[derive(Debug)]
enum Stage {
    /// The request is being read.
    Reading(Vec<u8>),
    /// The answer is being written. The number is the position of the next byte.
    Writing(Vec<u8>, usize),
    /// The answer was written, and the rest of the request is being discarded. The number counts the discarded bytes.
    Draining(usize),
}

/// State of a connection after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The connection waits for its client.
    Waits,
    /// The connection must be closed.
    Over,
}

/// A connection of a client, with its stage.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    host: IpAddr,
    began: Instant,
    stage: Stage,
}

impl Connection {
    pub fn new(stream: Stream, now: Instant) -> Connection {
        Connection {
            host: stream.host(),
            stream,
            began: now,
            stage: Stage::Reading(Vec::new()),
        }
    }

    /// Returns the time at which the connection will be closed, unless its stage changes before.
    pub fn due(&self) -> Instant {
        self.began
            + match self.stage {
                Stage::Reading(_) if self.stream.is_handshaking() => HANDSHAKE_MAX,
                Stage::Reading(_) => REQUEST_MAX,
                Stage::Writing(..) | Stage::Draining(_) => LIFE_MAX,
            }
    }

    /// Returns the client's host, if a new connection may displace this connection. `None`: the client has shown a
    /// certificate, or the connection is new.
    pub fn stranger(&self, now: Instant) -> Option<IpAddr> {
        let settled = now.duration_since(self.began) >= UNDISTURBED;
        (settled && !self.stream.is_known()).then_some(self.host)
    }

    /// Continues as far as possible without waiting. `answer` is called once, when the request is complete.
    pub fn turn(&mut self, answer: &mut dyn FnMut(&Request) -> Answer) -> Then {
        loop {
            let advanced = match &mut self.stage {
                Stage::Reading(bytes) => read_request(&mut self.stream, bytes, answer),
                Stage::Writing(bytes, from) => write(&mut self.stream, bytes, from),
                Stage::Draining(count) => drain(&mut self.stream, count),
            };
            match advanced {
                Ok(Some(stage)) => self.stage = stage,
                Ok(None) => return Then::Over,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Then::Waits,
                Err(_) => return Then::Over,
            }
        }
    }
}

/// The result of a step. `Some`: the next stage. `None`: the connection must be closed.
type Step = io::Result<Option<Stage>>;

fn read_request(
    stream: &mut Stream,
    bytes: &mut Vec<u8>,
    answer: &mut dyn FnMut(&Request) -> Answer,
) -> Step {
    let mut chunk = [0; 2048];
    let most = chunk.len().min(HEAD_BYTES_MAX - bytes.len());
    let count = stream.read(&mut chunk[..most])?;
    if count == 0 {
        return Ok(None);
    }
    bytes.extend_from_slice(&chunk[..count]);
    let out = match parse(bytes) {
        Parsed::Partial => return Ok(Some(Stage::Reading(std::mem::take(bytes)))),
        Parsed::Request(request) => answer(&request).bytes(request.head_only),
        Parsed::Refused(status, why) => Answer::text(status, why).bytes(false),
    };
    Ok(Some(Stage::Writing(out, 0)))
}

fn write(stream: &mut Stream, bytes: &mut Vec<u8>, from: &mut usize) -> Step {
    if *from < bytes.len() {
        let count = stream.write(&bytes[*from..])?;
        if count == 0 {
            return Ok(None);
        }
        *from += count;
        return Ok(Some(Stage::Writing(std::mem::take(bytes), *from)));
    }
    stream.flush()?;
    stream.end_writing()?;
    Ok(Some(Stage::Draining(0)))
}

fn drain(stream: &mut Stream, count: &mut usize) -> Step {
    let mut chunk = [0; 16 * 1024];
    let more = stream.read(&mut chunk)?;
    let all = *count + more;
    Ok((more > 0 && all < BODY_BYTES_MAX).then_some(Stage::Draining(all)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_understood_or_refused() {
        let refused = |bytes: &[u8]| match parse(bytes) {
            Parsed::Refused(status, _) => status[..3].to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(
            parse(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\naCCept: text/plain\r\n\r\n"),
            Parsed::Request(Request {
                head_only: false,
                path: "/metrics".into(),
                accept: "text/plain".into(),
                is_local: false,
            })
        );
        for (target, wanted) in [
            ("/metrics#a", "/metrics"),
            ("http://10.0.0.5:9464/metrics?x=1", "/metrics"),
            ("http://10.0.0.5:9464", "/"),
            ("/a?b=http://c/d", "/a"),
            ("*", "*"),
        ] {
            assert_eq!(path(target), wanted, "{target}");
        }
        let not_allowed = Answer::text(NOT_ALLOWED, "no").bytes(false);
        let not_allowed = String::from_utf8(not_allowed).unwrap();
        assert!(
            not_allowed.contains("\r\nAllow: GET, HEAD\r\n"),
            "{not_allowed}"
        );
        assert_eq!(parse(b"GET / HTTP/1.1\r\nHost"), Parsed::Partial);
        assert_eq!(parse(b""), Parsed::Partial);
        assert_eq!(
            refused(b"POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd"),
            "405"
        );
        assert_eq!(refused(b"\x16\x03\x01\x02\x00\x01\x00"), "400");
        assert_eq!(refused(b"*1\r\n$4\r\nPING\r\n"), "400");
        assert_eq!(refused(&[b'A'; HEAD_BYTES_MAX]), "431");
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "a: b\r\n".repeat(HEADERS_MAX + 1)
        );
        assert_eq!(refused(many.as_bytes()), "431");
    }
}
