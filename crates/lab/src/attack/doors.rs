//! An adversary at the TCP doors of devices and server (`docs/spec/keys.md` §9), and at the status ports.
//!
//! The adversary connects to doors from the client's machine. A status port is bound to the loopback interface, so the
//! adversary connects to it from the role's own machine. The adversary has recorded a genuine question, and a genuine
//! instruction that it kept from its door. The adversary knows the fingerprint of the cluster's key, which is no
//! secret, but does not know the key.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, ensure};
use pmnet_wire::{ClusterKey, DoorKeys};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::tap::Shared;
use crate::harness::namespaces::enter;

/// Longest time to connect, and longest time to send or receive one line.
const CALL_MAX: Duration = Duration::from_secs(2);
/// Pause between two rounds of attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of attempts of a genuine caller. On a busy machine a caller may miss the time limit of the door.
const LISTEN_MAX: usize = 20;
/// Longest answer that is read, in bytes.
const ANSWER_MAX: u64 = 64 * 1024;

/// A door, or a status port.
#[derive(Clone, Debug)]
pub struct Door {
    /// Name of the role that has the door.
    pub role: String,
    /// Network namespace from which the adversary connects.
    pub from: String,
    /// Address of the door in that namespace.
    pub at: SocketAddr,
    /// Whether this is a door or a status port.
    pub kind: DoorKind,
}

/// Kind of a TCP port that the adversary tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DoorKind {
    /// The door for `pmnet ctl`.
    Ctl,
    /// The status port, for Prometheus.
    Status,
}

/// The answers of one door to all attempts.
#[derive(Clone, Debug, Serialize)]
pub struct DoorReport {
    /// Name of the role that has the door.
    pub role: String,
    /// Kind of the port.
    pub kind: DoorKind,
    /// Number of attempts by answer: the id of a message, an HTTP status, or `closed`.
    pub answers: BTreeMap<String, u64>,
    /// Answers that a port must give only to a caller with the key.
    pub opened: BTreeSet<String>,
}

impl DoorReport {
    /// Returns whether the port has refused at least one attempt: a door has refused a MAC, or a status port has
    /// answered 4xx.
    #[must_use]
    pub fn was_tried(&self) -> bool {
        let refusal = match self.kind {
            DoorKind::Ctl => "PM5129",
            DoorKind::Status => "4",
        };
        self.answers.keys().any(|said| said.starts_with(refusal))
    }
}

/// Lines that genuine callers sent.
struct Heard {
    fingerprint: u32,
    /// A question that the door answered.
    question: String,
    /// An instruction that the adversary kept from the door.
    order: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reply {
    Nonce([u64; 2]),
    Sealed { mac: u64, text: String },
    Refused(String),
}

/// Tries all doors, one after the other, while the adversary also sends packets.
///
/// # Errors
/// A door does not answer a genuine caller, who has the key.
pub fn attack(
    doors: &[Door],
    key: &ClusterKey,
    shared: &Shared,
) -> anyhow::Result<Vec<DoorReport>> {
    let mut random = fastrand::Rng::new();
    let report = |door: &Door| DoorReport {
        role: door.role.clone(),
        kind: door.kind,
        answers: BTreeMap::new(),
        opened: BTreeSet::new(),
    };
    let mut reports: Vec<DoorReport> = doors.iter().map(report).collect();
    let mut heard = BTreeMap::new();
    let is_over = || shared.over.load(Ordering::Relaxed);
    while !is_over() {
        std::thread::sleep(PAUSE);
        if shared.rate.load(Ordering::Relaxed) == 0 {
            continue;
        }
        for (door, report) in doors.iter().zip(&mut reports) {
            enter(&door.from)?;
            let answer = match door.kind {
                DoorKind::Status => status(door, &mut random),
                DoorKind::Ctl => {
                    if !heard.contains_key(&door.role) {
                        let tries = (0..LISTEN_MAX).map(|_| listen(door, key, &mut random));
                        let lines = first_of(tries);
                        let lines = lines.with_context(|| format!("the door of {}", door.role))?;
                        heard.insert(door.role.clone(), lines);
                    }
                    // The lines that were recorded at this door or at another door.
                    let lines: Vec<&Heard> = heard.values().collect();
                    ctl(door, lines[random.usize(..lines.len())], &mut random)
                }
            };
            let answer = answer.unwrap_or_else(|_| "closed".to_owned());
            if door.kind == DoorKind::Ctl && answer != "closed" && !answer.starts_with("PM51") {
                report.opened.insert(answer.clone());
            }
            *report.answers.entry(answer).or_default() += 1;
        }
    }
    Ok(reports)
}

/// Returns the first success. If all attempts fail, returns the last error.
fn first_of<T>(tries: impl Iterator<Item = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut last = Err(anyhow::anyhow!("nothing was tried"));
    for tried in tries {
        last = tried;
        if last.is_ok() {
            break;
        }
    }
    last
}

/// Makes a genuine call with the key, and waits for the answer. Returns the lines that an adversary on the path
/// records: the question, and an instruction that does not reach the door.
fn listen(door: &Door, key: &ClusterKey, random: &mut fastrand::Rng) -> anyhow::Result<Heard> {
    let mut talk = Talk::begin(door)?;
    let nonce = talk.greeted()?;
    let own = [random.u64(..), random.u64(..)];
    let keys = key.door(own, nonce);
    let question = line(key.fingerprint(), own, &keys, "\"who\"");
    talk.say(question.as_bytes())?;
    let Reply::Sealed { mac, text } = serde_json::from_str(&talk.hear()?)? else {
        anyhow::bail!("a caller with the key is refused");
    };
    let is_genuine = keys.to_caller.text(text.as_bytes()) == mac;
    ensure!(is_genuine, "the answer has a wrong MAC");
    let said: serde_json::Value = serde_json::from_str(&text)?;
    let who = said.get("device").or(said.get("server"));
    let who = who.context("neither a device nor a server answers")?;
    let mut to = json!({});
    for part in ["shard", "id", "process"] {
        to[part] = who.get(part).cloned().unwrap_or(json!(0));
    }
    let leave = json!({ "leave": { "to": to } }).to_string();
    let nonce = Talk::begin(door)?.greeted()?;
    let order = line(key.fingerprint(), own, &key.door(own, nonce), &leave);
    Ok(Heard {
        fingerprint: key.fingerprint(),
        question,
        order,
    })
}

/// Returns the line that a caller with a key sends.
fn line(fingerprint: u32, own: [u64; 2], keys: &DoorKeys, text: &str) -> String {
    let mac = keys.to_door.text(text.as_bytes());
    sealed(fingerprint, own, mac, text)
}

fn sealed(fingerprint: u32, own: [u64; 2], mac: u64, text: &str) -> String {
    json!({ "sealed": { "cluster": fingerprint, "nonce": own, "mac": mac, "text": text } })
        .to_string()
}

/// Returns the text in a line.
fn text_of(line: &str) -> String {
    let line: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    let text = line["sealed"]["text"].as_str();
    text.unwrap_or("\"who\"").to_owned()
}

/// Makes one attempt at a door. Returns the id of the refusal, or the whole answer.
fn ctl(door: &Door, heard: &Heard, random: &mut fastrand::Rng) -> anyhow::Result<String> {
    let mut talk = Talk::begin(door)?;
    let known = if random.bool() {
        &heard.question
    } else {
        &heard.order
    };
    let text = text_of(known);
    let own = [random.u64(..), random.u64(..)];
    match random.u8(..7) {
        // Random bytes instead of a line.
        0 => {
            let length = random.usize(1..2_000);
            let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
                .take(length)
                .collect();
            talk.say(&bytes)?;
        }
        // A question or an instruction without a MAC.
        1 => talk.say(text.as_bytes())?,
        // A random MAC.
        2 => {
            talk.greeted()?;
            let mac = random.u64(..);
            talk.say(sealed(heard.fingerprint, own, mac, &text).as_bytes())?;
        }
        // A MAC of another key, with the fingerprint of the right key.
        3 => {
            let nonce = talk.greeted()?;
            let keys = ClusterKey::new(random.u128(..).to_be_bytes()).door(own, nonce);
            talk.say(line(heard.fingerprint, own, &keys, &text).as_bytes())?;
        }
        // A genuine line: a question that was answered before, or an instruction whose MAC is for the nonce of another
        // connection.
        4 => {
            talk.greeted()?;
            talk.say(known.as_bytes())?;
        }
        // A genuine line, to a door that has not sent its nonce yet.
        5 => talk.say(known.as_bytes())?,
        // The adversary closes the connection in the middle of a genuine line.
        _ => {
            let part = random.usize(1..known.len());
            talk.stream.write_all(&known.as_bytes()[..part])?;
            return Ok("closed".to_owned());
        }
    }
    let answer = talk.hear()?;
    Ok(match serde_json::from_str(&answer) {
        Ok(Reply::Refused(why)) => why.split(' ').next().unwrap_or_default().to_owned(),
        _ => answer,
    })
}

/// A TCP connection to a door.
struct Talk {
    stream: TcpStream,
    reader: BufReader<std::io::Take<TcpStream>>,
}

impl Talk {
    fn begin(door: &Door) -> anyhow::Result<Talk> {
        let stream = TcpStream::connect_timeout(&door.at, CALL_MAX)?;
        stream.set_read_timeout(Some(CALL_MAX))?;
        stream.set_write_timeout(Some(CALL_MAX))?;
        let reader = BufReader::new(stream.try_clone()?.take(ANSWER_MAX));
        Ok(Talk { stream, reader })
    }

    fn say(&mut self, line: &[u8]) -> anyhow::Result<()> {
        self.stream.write_all(&[line, b"\n"].concat())?;
        Ok(())
    }

    /// Returns the next line of the door; an error if the door has closed the connection.
    fn hear(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        let bytes = self.reader.read_line(&mut line)?;
        ensure!(bytes > 0, "closed");
        Ok(line.trim_end().to_owned())
    }

    /// Asks for the door's nonce.
    fn greeted(&mut self) -> anyhow::Result<[u64; 2]> {
        self.say(b"\"key\"")?;
        match serde_json::from_str(&self.hear()?)? {
            Reply::Nonce(nonce) => Ok(nonce),
            _ => anyhow::bail!("the door says no nonce"),
        }
    }
}

/// Makes one attempt at a status port. Returns the HTTP status of the answer.
fn status(door: &Door, random: &mut fastrand::Rng) -> anyhow::Result<String> {
    let mut talk = Talk::begin(door)?;
    let request = match random.u8(..7) {
        0 => format!("GET /metrics{} HTTP/1.1\r\n\r\n", "/x".repeat(9_000)).into_bytes(),
        1 => b"POST /metrics HTTP/1.1\r\nContent-Length: 4000000000\r\n\r\n".to_vec(),
        2 => format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(2_000)).into_bytes(),
        3 => b"DELETE /state HTTP/1.1\r\n\r\n".to_vec(),
        4 => b"GET /../../etc/shadow HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        5 => b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_vec(),
        _ => std::iter::repeat_with(|| random.u8(..)).take(500).collect(),
    };
    talk.stream.write_all(&request)?;
    talk.stream.shutdown(std::net::Shutdown::Write)?;
    let first = talk.hear()?;
    let status = first.split(' ').nth(1);
    Ok(status.context("no HTTP")?.to_owned())
}
