//! An HTTP server over the segments of a region. The log consists of the requests: every segment of a PUT is kept, with
//! the number of the request. A request exists when all its segments are kept, and it is answered when they are
//! durable.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pmnet_packets::{Options, Packet, Region};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as Moment;
use smoltcp::wire::{HardwareAddress, IpCidr};

use super::segments::Segments;

/// Maximum number of connections at a time. Further connections wait until one ends.
const CONNECTIONS: usize = 16;
/// Size of a connection's window in each direction, in bytes.
const WINDOW: usize = 64 << 10;
/// Longest head of a request, in bytes.
const HEAD_MAX: usize = 8 << 10;
/// Longest body, in bytes.
const BODY_MAX: usize = 1 << 30;
/// Time without any input after which a connection is closed.
const SILENCE_MAX: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(30);

/// The body under a name: ranges of kept packets, one after the other.
type Object = Vec<(u64, std::ops::Range<usize>)>;

/// The head of a request.
#[derive(Clone, Debug)]
struct Head {
    put: bool,
    name: String,
    /// Number of bytes of the head.
    bytes: usize,
    /// Number of bytes of the body, which follows the head.
    body: usize,
}

/// Reads the head of a request; `None` if it is not complete yet.
fn head(bytes: &[u8]) -> anyhow::Result<Option<Head>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        ensure!(bytes.len() <= HEAD_MAX, "the head is too long");
        return Ok(None);
    };
    let mut lines = std::str::from_utf8(&bytes[..end])?.split("\r\n");
    let mut words = lines.next().context("no request")?.split(' ');
    let put = match words.next() {
        Some("PUT") => true,
        Some("GET") => false,
        _ => bail!("only PUT and GET"),
    };
    let name = words.next().context("no name")?.to_owned();
    let mut body = if put { None } else { Some(0) };
    for (key, value) in lines.filter_map(|line| line.split_once(':')) {
        if key.eq_ignore_ascii_case("content-length") {
            body = Some(value.trim().parse()?);
        }
    }
    let body = body.context("a PUT needs a Content-Length")?;
    ensure!(body <= BODY_MAX, "the body is too long");
    Ok(Some(Head {
        put,
        name,
        bytes: end + 4,
        body,
    }))
}

/// The state of a connection, from a request to its answer.
struct Connection {
    socket: SocketHandle,
    from: Option<SocketAddr>,
    /// Number of the connection's request, if the request is stored.
    number: u64,
    head: Option<Head>,
    /// The bytes of the head that have arrived so far.
    begun: Vec<u8>,
    /// The segments in which these bytes arrived.
    waiting: Vec<(Packet, std::ops::Range<usize>)>,
    /// Number of bytes of the request that have arrived so far.
    bytes: usize,
    /// The ranges of kept packets that hold these bytes.
    kept: Object,
    /// Whether the request is stored. It is answered when it is durable.
    stored: bool,
    /// The answer: a text, followed by these ranges of kept packets.
    sending: Option<(Vec<u8>, Object)>,
}

/// Returns all objects that a restart finds.
fn recover(region: &Region) -> (HashMap<String, Object>, u64) {
    let mut requests: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for one in region.kept() {
        requests.entry(one.tag).or_default().push(one.order);
    }
    let last = requests.keys().next_back().copied().unwrap_or(0);
    let mut objects = HashMap::new();
    for orders in requests.values() {
        let parts = || orders.iter().filter_map(|order| region.find(*order));
        let kept: Object = parts().map(|one| (one.order, 0..one.bytes.len())).collect();
        let mut begun = Vec::new();
        let whole = parts().find_map(|one| {
            begun.extend_from_slice(one.bytes);
            head(&begun).ok().flatten()
        });
        let bytes: usize = kept.iter().map(|(_, part)| part.len()).sum();
        // A PUT that was not acknowledged may have been stored in part.
        if let Some(head) = whole.filter(|head| head.bytes + head.body == bytes) {
            objects.insert(head.name.clone(), body(kept, head.bytes));
        }
    }
    (objects, last)
}

/// Returns the part of a request after its head.
fn body(mut request: Object, mut head_bytes: usize) -> Object {
    for (_, part) in &mut request {
        let skipped = head_bytes.min(part.len());
        part.start += skipped;
        head_bytes -= skipped;
    }
    request
}

impl Connection {
    fn new(socket: SocketHandle) -> Connection {
        Connection {
            socket,
            from: None,
            number: 0,
            head: None,
            begun: Vec::new(),
            waiting: Vec::new(),
            bytes: 0,
            kept: Object::new(),
            stored: false,
            sending: None,
        }
    }

    fn answer(&mut self, status: &str) {
        let text = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        self.sending = Some((text.into_bytes(), Object::new()));
    }

    /// Handles the next bytes of the request. `number`: the number that the next stored request gets.
    fn take(
        &mut self,
        segments: &mut Segments,
        objects: &HashMap<String, Object>,
        number: &mut u64,
    ) {
        while let Some((packet, part)) = self.from.and_then(|from| segments.next(from)) {
            if self.sending.is_some() || self.stored {
                segments.region.release(packet);
                continue;
            }
            self.bytes += part.len();
            if self.head.is_none() {
                let bytes = &segments.region.bytes(&packet)[part.clone()];
                self.begun.extend_from_slice(bytes);
                match head(&self.begun) {
                    Ok(found) => self.head = found,
                    Err(_) => self.answer("400 Bad Request"),
                }
                if self.head.as_ref().is_some_and(|head| head.put) {
                    *number += 1;
                    self.number = *number;
                }
            }
            self.waiting.push((packet, part));
            let Some(head) = self.head.clone() else {
                continue;
            };
            for (packet, part) in std::mem::take(&mut self.waiting) {
                let len = part.len();
                if !head.put || self.sending.is_some() {
                    segments.region.release(packet);
                    continue;
                }
                match segments.region.keep_part(packet, part, self.number) {
                    Ok(order) => self.kept.push((order, 0..len)),
                    Err((_full, packet)) => {
                        segments.region.release(packet);
                        self.answer("507 Insufficient Storage");
                    }
                }
            }
            let all = head.bytes + head.body;
            if self.bytes > all {
                self.answer("400 Bad Request");
            } else if self.bytes == all && self.sending.is_none() {
                match objects.get(&head.name) {
                    _ if head.put => self.stored = true,
                    None => self.answer("404 Not Found"),
                    Some(object) => {
                        let bytes: usize = object.iter().map(|(_, part)| part.len()).sum();
                        let text = format!(
                            "HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n"
                        );
                        self.sending = Some((text.into_bytes(), object.clone()));
                    }
                }
            }
        }
    }

    /// Sends as much of the answer as the connection takes. When all is sent, closes the connection.
    fn send(&mut self, region: &Region, socket: &mut Socket<'_>) -> anyhow::Result<()> {
        let Some((text, object)) = &mut self.sending else {
            return Ok(());
        };
        while socket.can_send() && !text.is_empty() {
            let sent = socket.send_slice(text)?;
            text.drain(..sent);
        }
        while socket.can_send() && text.is_empty() && !object.is_empty() {
            let (order, part) = &mut object[0];
            let one = region.find(*order).context("it is never forgotten")?;
            part.start += socket.send_slice(&one.bytes[part.clone()])?;
            if part.start == part.end {
                object.remove(0);
            }
        }
        if text.is_empty() && object.is_empty() {
            socket.close();
        }
        Ok(())
    }

    /// Ends the connection, so that the next connection can begin.
    fn end(&mut self, segments: &mut Segments) {
        for (packet, _) in self.waiting.drain(..) {
            segments.region.release(packet);
        }
        if let Some(from) = self.from {
            segments.end(from);
        }
        *self = Connection::new(self.socket);
    }
}

/// Serves until it is killed.
pub fn serve(options: &Options) -> anyhow::Result<()> {
    let region = Region::open(options)?;
    let (mut objects, mut number) = recover(&region);
    println!("{} objects from before", objects.len());
    println!("what is answered survives {}", region.survives());
    let mut segments = Segments::new(region);

    let IpAddr::V4(own) = options.listen.ip() else {
        bail!("this example speaks IPv4");
    };
    let begun = Instant::now();
    let now =
        || Moment::from_micros(i64::try_from(begun.elapsed().as_micros()).unwrap_or(i64::MAX));
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = getrandom::u64()?;
    let mut interface = Interface::new(config, &mut segments, now());
    // Every peer counts as a neighbour, because answers use the path by which the requests came.
    interface.update_ip_addrs(|all| {
        let _ = all.push(IpCidr::new(own.into(), 0));
    });
    let mut sockets = SocketSet::new(Vec::new());
    let buffer = || SocketBuffer::new(vec![0; WINDOW]);
    let mut connections: Vec<Connection> = (0..CONNECTIONS)
        .map(|_| Connection::new(sockets.add(Socket::new(buffer(), buffer()))))
        .collect();
    loop {
        for one in &mut connections {
            let socket: &mut Socket<'_> = sockets.get_mut(one.socket);
            if socket.state() == State::Closed {
                one.end(&mut segments);
                socket.set_timeout(Some(SILENCE_MAX));
                socket.listen(options.listen.port())?;
            }
        }
        let delay = interface.poll_delay(now(), &sockets);
        let delay = delay.map_or(Duration::from_secs(1), |delay| {
            Duration::from_micros(delay.total_micros())
        });
        segments.wait(delay)?;
        interface.poll(now(), &mut segments, &mut sockets);
        for one in &mut connections {
            let socket: &mut Socket<'_> = sockets.get_mut(one.socket);
            // The TCP has a copy of its own of the stream, which is not used.
            while socket.can_recv() {
                socket.recv(|bytes| (bytes.len(), ()))?;
            }
            one.from = one.from.or_else(|| {
                let other = socket.remote_endpoint()?;
                Some(SocketAddr::new(other.addr.into(), other.port))
            });
            one.take(&mut segments, &objects, &mut number);
            // A client that has closed its side before the whole request arrived gets no answer.
            if socket.state() == State::CloseWait && one.sending.is_none() && !one.stored {
                socket.abort();
            }
        }
        segments.end_others(|from| connections.iter().any(|one| one.from == Some(*from)));
        // One fence makes all requests durable. The answers are sent after the fence.
        if connections.iter().any(|one| one.stored) {
            segments.region.persist()?;
        }
        for one in &mut connections {
            if let (true, Some(head)) = (std::mem::take(&mut one.stored), &one.head) {
                let object = body(std::mem::take(&mut one.kept), head.bytes);
                objects.insert(head.name.clone(), object);
                one.answer("201 Created");
            }
            one.send(&segments.region, sockets.get_mut(one.socket))?;
        }
        interface.poll(now(), &mut segments, &mut sockets);
        segments.flush()?;
    }
}
