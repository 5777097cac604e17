//! `pmnet status --at`: the state of processes, as their status ports show it.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use pmnet_cli::{ConfigError, notice, tell};
use pmnet_status::Place;
use pmnet_tls::{ClientTls, Distrust, Flags, Stream};
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::status::{Scheme, Spot, spot};

/// Options of the address that a person can mend.
const FLAGS: Flags = Flags {
    ca: "ca=FILE",
    certificate: "cert=FILE&key=FILE",
};
/// One question ends within this time.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Longest answer.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// How often it is asked again until all are ready.
const AGAIN: Duration = Duration::from_millis(200);

/// Asks these processes until all are ready, or the time is over. Returns whether all are.
pub fn main(at: &str, wait: u64, as_json: bool) -> anyhow::Result<bool> {
    let places = places(at)?;
    let until = Instant::now() + Duration::from_secs(wait);
    let all = loop {
        let all: Vec<(Place, anyhow::Result<Value>)> = places
            .iter()
            .map(|spot| (spot.place.clone(), ask(spot)))
            .collect();
        let ready = all.iter().all(|(_, state)| is_ready(state));
        if ready || Instant::now() >= until {
            break all;
        }
        std::thread::sleep(AGAIN);
    };
    if as_json {
        let all: Vec<Value> = all
            .iter()
            .map(|(place, state)| as_object(place, state))
            .collect();
        tell(format_args!("{}", Value::Array(all)));
    } else {
        for (place, state) in &all {
            match state {
                Ok(state) => tell(format_args!("{}", as_text(place, state))),
                Err(error) => notice(&format!("{place}: {error:#}")),
            }
        }
    }
    Ok(all.iter().all(|(_, state)| is_ready(state)))
}

fn places(at: &str) -> Result<Vec<Spot>, ConfigError> {
    let places = at.split(',').filter(|text| !text.is_empty());
    let places: Vec<Spot> = places
        .map(|text| spot("--at", text))
        .collect::<Result<_, _>>()?;
    if places.is_empty() {
        return Err(ConfigError("--at: give HOST:PORT or unix:PATH".into()));
    }
    Ok(places)
}

fn is_ready(state: &anyhow::Result<Value>) -> bool {
    state.as_ref().is_ok_and(|state| state["ready"] == true)
}

/// Returns the state of one process.
fn ask(spot: &Spot) -> anyhow::Result<Value> {
    let (domain, address) = match &spot.place {
        Place::Tcp(address) => (Domain::for_address(*address), SockAddr::from(*address)),
        Place::Unix(path) => (Domain::UNIX, SockAddr::unix(path)?),
    };
    let socket = Socket::new(domain, Type::STREAM, None)?;
    socket.set_read_timeout(Some(ANSWER_MAX))?;
    socket.set_write_timeout(Some(ANSWER_MAX))?;
    socket
        .connect_timeout(&address, ANSWER_MAX)
        .context("it cannot be reached")?;
    let body = match &spot.scheme {
        Scheme::Https { host, query } => exchange(speak_tls(socket, host, query)?)?,
        Scheme::Bare | Scheme::Http => exchange(socket)?,
    };
    serde_json::from_str(&body).context("its answer is no JSON")
}

/// Returns the connection with TLS, after its handshake.
fn speak_tls(socket: Socket, host: &str, query: &str) -> anyhow::Result<Stream<Socket>> {
    let mut stream = ClientTls::of_query(host, query)?.connect(socket)?;
    let until = Instant::now() + ANSWER_MAX;
    while stream.is_handshaking() {
        if Instant::now() >= until {
            bail!("it does not answer");
        }
        stream.shake_hands().map_err(told)?;
    }
    Ok(stream)
}

/// Returns an error with what to do, if it is about certificates.
fn told(error: std::io::Error) -> anyhow::Error {
    match Distrust::of(&error) {
        Some(why) => anyhow!("{}", why.sentence(FLAGS)),
        None => error.into(),
    }
}

fn exchange(mut stream: impl Read + Write) -> anyhow::Result<String> {
    stream
        .write_all(b"GET /api/v1/status HTTP/1.1\r\nHost: pmnet\r\nConnection: close\r\n\r\n")
        .and_then(|()| stream.flush())
        .map_err(told)
        .context("it takes no request")?;
    let mut text = String::new();
    stream
        .take(ANSWER_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(told)
        .context("it does not answer")?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or_else(|| anyhow!("its answer is no HTTP"))?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        bail!("it answers {status}: is this the status port of pmnet?");
    }
    Ok(body.to_owned())
}

fn as_object(place: &Place, state: &anyhow::Result<Value>) -> Value {
    match state {
        Ok(state) => json!({ "at": place.to_string(), "state": state }),
        Err(error) => json!({ "at": place.to_string(), "error": format!("{error:#}") }),
    }
}

/// Numbers that a person wants first, by role, with their names.
const FIRST: [(&str, &str); 12] = [
    ("pmnet_device_copies", "copies"),
    ("pmnet_device_epoch", "epoch"),
    ("pmnet_device_sessions", "sessions"),
    ("pmnet_device_unapplied_orders", "not applied yet"),
    (
        "pmnet_device_oldest_unapplied_seconds",
        "oldest of them, seconds",
    ),
    ("pmnet_device_log_entries_used", "log entries in use"),
    ("pmnet_device_log_entries_capacity", "log entries, at most"),
    ("pmnet_server_applied_total", "updates applied"),
    ("pmnet_server_unapplied_orders", "received, not applied yet"),
    ("pmnet_front_clients", "clients"),
    ("pmnet_front_copies", "copies"),
    ("pmnet_memcached_clients", "clients"),
];

fn as_text(place: &Place, state: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let mut out = format!(
        "{place}: {} {} ({}), up {} s: {}",
        text(&state["role"]),
        text(&state["version"]),
        text(&state["commit"]),
        state["uptime_seconds"],
        if state["ready"] == true {
            "ready"
        } else {
            "not ready"
        }
    );
    for one in state["loops"].as_array().into_iter().flatten() {
        let labels = one["labels"].as_object().into_iter().flatten();
        let labels: Vec<String> = labels
            .map(|(key, value)| format!("{key} {}", text(value)))
            .collect();
        out += &format!("\n  {}", labels.join(", "));
        if one["alive"] != true {
            out += "\n    the loop is stuck";
        }
        for reason in one["reasons"].as_array().into_iter().flatten() {
            out += &format!("\n    not ready: {}", text(reason));
        }
        for (name, title) in FIRST {
            if let Some(number) = one["metrics"].get(name) {
                out += &format!("\n    {title:<26} {number:>14}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_shown_with_its_reasons() {
        let state = json!({
            "role": "device", "version": "1", "commit": "c", "uptime_seconds": 5, "ready": false,
            "loops": [{
                "labels": { "shard": "0", "device": "7" }, "alive": true, "reasons": ["too few"],
                "metrics": { "pmnet_device_copies": 1 },
            }],
        });
        let text = as_text(&spot("--at", "127.0.0.1:9").unwrap().place, &state);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[0], "127.0.0.1:9: device 1 (c), up 5 s: not ready");
        assert_eq!(lines[1], "device 7, shard 0");
        assert_eq!(lines[2], "not ready: too few");
        assert!(lines[3].starts_with("copies ") && lines[3].ends_with(" 1"));
    }

    /// A process that is stopped accepts no connection. One more, when there was no room for it, was waited for without end.
    #[test]
    fn a_unix_socket_that_has_no_room_for_a_connection_is_told_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status.sock");
        let _owner = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let connect = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let connected = socket.connect(&SockAddr::unix(&path).unwrap());
            connected.map(|()| socket)
        };
        let held: Vec<Socket> = std::iter::from_fn(|| connect().ok()).take(10_000).collect();
        assert!(connect().is_err(), "there is room for {}", held.len());
        let (tell, told) = std::sync::mpsc::channel();
        let spot = spot("--at", &format!("unix:{}", path.display())).unwrap();
        std::thread::spawn(move || tell.send(ask(&spot).map_err(|error| format!("{error:#}"))));
        let answer = told.recv_timeout(3 * ANSWER_MAX).unwrap();
        assert!(answer.unwrap_err().starts_with("it cannot be reached"));
    }

    #[test]
    fn places_are_a_list() {
        assert_eq!(places("127.0.0.1:9,unix:/a").unwrap().len(), 2);
        assert!(places("").is_err() && places("127.0.0.1").is_err());
    }
}
