//! A TCP proxy between the store and Redis. The proxy can hold the bytes of one connection, and make the connection
//! look dead to the store. Later it delivers the bytes on the test's command, as if they had waited in a socket of a
//! busy Redis. The proxy can also change Redis's answers, and run a function just before Redis gets a command.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait of the proxy for any event.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longest text that the proxy recognizes if it comes in pieces.
const TAIL_BYTES: usize = 64;

/// State that connections share with the test.
#[derive(Default)]
struct Shared {
    /// If a connection sends this text next, the connection is held from this text on.
    needle: Option<Vec<u8>>,
    /// Text in answers of Redis, and the text that replaces it.
    replace: Option<(Vec<u8>, Vec<u8>)>,
    held: Option<Held>,
    /// The function runs when Redis has got all of this text except the last byte.
    before: Option<(Vec<u8>, Deed)>,
}

/// A function that a test runs at a certain moment.
type Deed = Box<dyn FnOnce() + Send>;

/// A held connection.
struct Held {
    bytes: Vec<u8>,
    client: TcpStream,
    redis: TcpStream,
    /// Passes Redis's answers on until the connection is held.
    answers: JoinHandle<()>,
}

/// A proxy, which ends with the test.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Mutex<Shared>>,
}

/// The bytes of a held connection.
pub struct Late {
    bytes: Vec<u8>,
    redis: TcpStream,
    answers: JoinHandle<()>,
}

impl Proxy {
    pub fn start(redis: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(redis) = TcpStream::connect(("127.0.0.1", redis)) else {
                    continue;
                };
                serve(client.unwrap(), redis, &theirs);
            }
        });
        Proxy { port, shared }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Replaces text in every answer of Redis.
    pub fn answer(&self, from: &str, to: &str) {
        self.shared.lock().unwrap().replace = Some((from.into(), to.into()));
    }

    /// Runs `deed` when `needle` comes next, before Redis gets the last byte of `needle`.
    pub fn before(&self, needle: &str, deed: impl FnOnce() + Send + 'static) {
        self.shared.lock().unwrap().before = Some((needle.into(), Box::new(deed)));
    }

    /// Returns whether the function of [`Proxy::before`] has run.
    pub fn is_done(&self) -> bool {
        self.shared.lock().unwrap().before.is_none()
    }

    /// Holds the first connection that sends `needle` from now on.
    pub fn hold(&self, needle: &str) {
        let mut shared = self.shared.lock().unwrap();
        assert!(shared.held.is_none());
        shared.needle = Some(needle.into());
    }

    /// Waits until a connection is held and has sent a whole call, whose end is `end`. Then the store sees the
    /// connection closed. The function waits in a thread of its own, because the store waits at the same time.
    pub fn cut_after(&self, end: &str) -> JoinHandle<Late> {
        let shared = Arc::clone(&self.shared);
        let end = end.as_bytes().to_vec();
        std::thread::spawn(move || {
            let until = Instant::now() + PATIENCE;
            loop {
                let mut shared = shared.lock().unwrap();
                if shared
                    .held
                    .as_ref()
                    .is_some_and(|h| h.bytes.ends_with(&end))
                {
                    let Held {
                        bytes,
                        client,
                        redis,
                        answers,
                    } = shared.held.take().unwrap();
                    client.shutdown(Shutdown::Both).ok();
                    return Late {
                        bytes,
                        redis,
                        answers,
                    };
                }
                drop(shared);
                assert!(Instant::now() < until, "nothing was held");
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    }
}

impl Late {
    /// Delivers the held bytes, and returns Redis's answer after Redis has executed all of them.
    pub fn deliver(mut self) -> String {
        // The thread must end first. If the thread continued, it would take the answer, and pass it to a closed
        // connection.
        self.answers.join().unwrap();
        self.redis.write_all(&self.bytes).unwrap();
        self.redis.shutdown(Shutdown::Write).unwrap();
        self.redis.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        self.redis.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn serve(client: TcpStream, redis: TcpStream, shared: &Arc<Mutex<Shared>>) {
    let (mut from_client, mut to_redis) = (client.try_clone().unwrap(), redis.try_clone().unwrap());
    let (mut from_redis, mut to_client) = (redis, client);
    // While the connection is held, answers are not passed on, because the test reads them.
    from_redis
        .set_read_timeout(Some(Duration::from_millis(2)))
        .unwrap();
    let holding = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (up, down) = (Arc::clone(shared), Arc::clone(shared));
    let stop = Arc::clone(&holding);
    let answers = std::thread::spawn(move || {
        let mut piece = vec![0; 1 << 16];
        while !holding.load(std::sync::atomic::Ordering::SeqCst) {
            match from_redis.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => {
                    let mut bytes = piece[..length].to_vec();
                    if let Some((from, to)) = &down.lock().unwrap().replace
                        && let Some(at) = bytes.windows(from.len()).position(|w| w == from)
                    {
                        bytes.splice(at..at + from.len(), to.iter().copied());
                    }
                    if to_client.write_all(&bytes).is_err() {
                        break;
                    }
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) => {}
                Err(_) => break,
            }
        }
        if !holding.load(std::sync::atomic::Ordering::SeqCst) {
            to_client.shutdown(Shutdown::Both).ok();
        }
    });
    std::thread::spawn(move || {
        let mut piece = vec![0; 1 << 16];
        let mut held = false;
        let mut answers = Some(answers);
        // The last bytes that were passed to Redis.
        let mut tail: Vec<u8> = Vec::new();
        while let Ok(length @ 1..) = from_client.read(&mut piece) {
            let bytes = &piece[..length];
            let mut shared = up.lock().unwrap();
            let found = |n: &Vec<u8>| bytes.windows(n.len()).any(|w| w == n.as_slice());
            if held {
                if let Some(held) = &mut shared.held {
                    held.bytes.extend_from_slice(bytes);
                }
            } else if shared.needle.as_ref().is_some_and(found) {
                held = true;
                stop.store(true, std::sync::atomic::Ordering::SeqCst);
                shared.needle = None;
                shared.held = Some(Held {
                    bytes: bytes.to_vec(),
                    client: from_client.try_clone().unwrap(),
                    redis: to_redis.try_clone().unwrap(),
                    answers: answers.take().expect("held once"),
                });
            } else {
                let mut rest = bytes;
                let all = [&tail[..], bytes].concat();
                let end = shared.before.as_ref().and_then(|(needle, _)| {
                    let start = all.windows(needle.len()).position(|w| w == needle)?;
                    (start + needle.len() - 1).checked_sub(tail.len())
                });
                let due = end.and_then(|end| Some((end, shared.before.take()?)));
                drop(shared);
                if let Some((end, (_, deed))) = due {
                    to_redis.write_all(&bytes[..end]).ok();
                    deed();
                    rest = &bytes[end..];
                }
                tail = all[all.len().saturating_sub(TAIL_BYTES)..].to_vec();
                if to_redis.write_all(rest).is_err() {
                    break;
                }
            }
        }
        if !held {
            to_redis.shutdown(Shutdown::Both).ok();
        }
    });
}
