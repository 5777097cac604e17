//! Questions to the status ports of processes, for `pmnet status --at`, `pmnet top` and `pmnet doctor --bundle`.

use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use pmnet_cli::{ConfigError, notice};
use pmnet_fleet::{Etcd, Shard, StatusRecord};
use pmnet_status::Place;
use pmnet_tls::{ClientTls, Distrust, Flags, Stream};
use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::cli::{EtcdArgs, machine, statuses};
use crate::status::{Scheme, Spot, spot};

/// The names of the options of an address, for error messages with advice.
const FLAGS: Flags = Flags {
    ca: "ca=FILE",
    certificate: "cert=FILE&key=FILE",
};
/// Longest time for a connection, for a TLS handshake, and for an answer.
pub const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Longest time of one call to etcd.
const ETCD_MAX: Duration = Duration::from_secs(2);
/// Maximum length of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Maximum number of processes that are asked.
const PLACES_MAX: usize = 256;

/// Processes, by the addresses of their status ports.
#[derive(Clone, Debug, Default, Args)]
pub struct Processes {
    /// Addresses of the status ports (--status) of processes of any role: HOST:PORT, unix:PATH, http://HOST:PORT or
    /// https://HOST:PORT?ca=FILE&cert=FILE&key=FILE, with commas between them.
    #[arg(long, value_name = "HOST:PORT,…")]
    pub at: Option<String>,
    /// Configuration file of the processes. Their status ports are status in section [run], or, without it, status in
    /// each other section.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl Processes {
    /// Returns whether the command line names any processes.
    pub const fn are_named(&self) -> bool {
        self.at.is_some() || self.config.is_some()
    }

    /// Returns the addresses of the processes, at least one.
    ///
    /// # Errors
    /// [`ConfigError`]: an address or the file is wrong, or the number of addresses is zero or too large.
    pub fn places(&self) -> Result<Vec<Spot>, ConfigError> {
        let mut all = match &self.at {
            None => Vec::new(),
            Some(at) => places(at)?,
        };
        if let Some(path) = &self.config {
            let of_file = of_file(path)?;
            if of_file.is_empty() && all.is_empty() {
                return Err(ConfigError(format!(
                    "configuration {}: no section has a status",
                    path.display()
                )));
            }
            all.extend(of_file);
        }
        match all.len() {
            0 => Err(ConfigError(
                "no process is named: give --at HOST:PORT,… or --config FILE (pmnet top and pmnet status take --fleet NAME, too)".into(),
            )),
            1..=PLACES_MAX => Ok(all),
            more => Err(ConfigError(format!(
                "{more} processes are named, and at most {PLACES_MAX} can be asked"
            ))),
        }
    }
}

/// Help of the option for TLS connections to the processes of a fleet.
pub const TLS_HELP: &str = "Certificates for the fleet's status ports with https://: ca=FILE&cert=FILE&key=FILE, as after an address of --at";

/// Returns a client of etcd, and the shard's state in etcd.
///
/// # Errors
/// A flag is wrong, or no member of etcd answers.
pub fn read_shard(fleet: &str, etcd: &EtcdArgs, shard: u32) -> anyhow::Result<(Etcd, Shard)> {
    let (members, names) = etcd.of(fleet, shard)?;
    let mut etcd = Etcd::new(members, ETCD_MAX);
    let read = Shard::read_somewhere(&mut etcd, &names).map_err(|text| anyhow!("etcd: {text}"))?;
    Ok((etcd, read))
}

/// Returns the status ports that the server and the devices of a shard have registered in etcd. Processes without a
/// lease are left out. Processes that this machine cannot ask are named on stderr.
///
/// # Errors
/// etcd does not answer, the command line is wrong, or the number of status ports is zero or too large.
pub fn of_fleet(
    fleet: &str,
    etcd: &EtcdArgs,
    shard: u32,
    tls: Option<&str>,
) -> anyhow::Result<Vec<Spot>> {
    let (_, read) = read_shard(fleet, etcd, shard)?;
    let here = machine();
    let mut found: Vec<Spot> = Vec::new();
    for (who, status) in registered(&read) {
        match spot_of(status, here.as_deref(), tls) {
            Ok(spot) if found.iter().any(|known| known.place == spot.place) => {}
            Ok(spot) => found.push(spot),
            Err(why) => notice(&format!("{who} {why}")),
        }
    }
    match found.len() {
        0 => bail!(
            "fleet {fleet}, shard {shard}: no status port is registered in etcd that can be asked from here"
        ),
        1..=PLACES_MAX => Ok(found),
        more => bail!("{more} status ports are registered, and at most {PLACES_MAX} can be asked"),
    }
}

/// Returns the address at which a registered process can be asked from the machine `here`, or the reason why it cannot
/// be asked.
fn spot_of(
    status: Option<&StatusRecord>,
    here: Option<&str>,
    tls: Option<&str>,
) -> Result<Spot, String> {
    let Some(StatusRecord { at, machine }) = status else {
        return Err("has no status port (--status)".into());
    };
    if machine.is_some() && machine.as_deref() != here {
        return Err(format!(
            "has its status port at {at}, which is reached from its own machine only"
        ));
    }
    let tls = tls.filter(|_| at.starts_with("https://"));
    let text = tls.map_or_else(|| at.clone(), |tls| format!("{at}?{tls}"));
    spot("is not asked:", &text).map_err(|error| error.0)
}

/// Returns the names and the status ports of the processes that have a lease now.
fn registered(shard: &Shard) -> Vec<(String, Option<&StatusRecord>)> {
    let server = shard.server.iter().filter(|_| shard.has_server());
    let server = server.map(|record| ("the server".to_owned(), record.status.as_ref()));
    let there = shard.rows.iter().filter(|(_, row)| row.is_there());
    let devices = there.filter_map(|(id, row)| {
        let record = row.record.as_ref()?;
        Some((format!("device {id}"), record.status.as_ref()))
    });
    server.chain(devices).collect()
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

fn of_file(path: &Path) -> Result<Vec<Spot>, ConfigError> {
    statuses(path)?
        .iter()
        .map(|text| spot("status", text))
        .collect()
}

/// Returns the state of a process, from its status port.
///
/// # Errors
/// The process does not answer, or the answer does not come from a process of pmnet.
pub fn state(spot: &Spot) -> anyhow::Result<Value> {
    serde_json::from_str(&get(spot, "/api/v1/status")?).context("its answer is no JSON")
}

/// Returns a value of a state as text. If the value is not a text, returns `?`.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or("?").to_owned()
}

/// Returns the labels of a loop as text for users: `device 51000, shard 0`.
pub fn named(labels: &Value) -> String {
    let labels = labels.as_object().into_iter().flatten();
    let parts: Vec<String> = labels
        .map(|(key, value)| format!("{key} {}", text(value)))
        .collect();
    parts.join(", ")
}

/// Returns the body of the status port's answer for a path.
///
/// # Errors
/// As for [`state`].
pub fn get(spot: &Spot, path: &str) -> anyhow::Result<String> {
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
    // A port at a loopback address answers only requests to an address, or to localhost.
    let named = match &spot.place {
        Place::Tcp(address) => address.to_string(),
        Place::Unix(_) => "localhost".to_owned(),
    };
    match &spot.scheme {
        Scheme::Https { host, query } => exchange(speak_tls(socket, host, query)?, &named, path),
        Scheme::Bare | Scheme::Http => exchange(socket, &named, path),
    }
}

/// Makes a TLS handshake. Returns the TLS connection.
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

/// Returns the error. If the cause of the error is a certificate, adds advice.
fn told(error: std::io::Error) -> anyhow::Error {
    match Distrust::of(&error) {
        Some(why) => anyhow!("{}", why.sentence(FLAGS)),
        None => error.into(),
    }
}

fn exchange(mut stream: impl Read + Write, host: &str, path: &str) -> anyhow::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.flush())
        .map_err(told)
        .context("it takes no request")?;
    let text = answer(stream, Instant::now() + ANSWER_MAX)?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or_else(|| anyhow!("its answer is no HTTP"))?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        bail!("it answers {status}: is this the status port of pmnet?");
    }
    Ok(body.to_owned())
}

/// Returns all bytes until the end of the stream, which must come before `until`. So a process that keeps sending small
/// parts cannot delay the caller.
fn answer(mut stream: impl Read, until: Instant) -> anyhow::Result<String> {
    let (mut all, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) => all.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(told(error)).context("it does not answer"),
        }
        if all.len() > ANSWER_BYTES_MAX {
            bail!("its answer is longer than {} MiB", ANSWER_BYTES_MAX >> 20);
        }
        if Instant::now() >= until {
            bail!(
                "it does not answer: the end of it did not come in {} s",
                ANSWER_MAX.as_secs()
            );
        }
    }
    String::from_utf8(all).context("its answer is no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A suspended process accepts no connections. Regression test: if its queue of connections was full, the caller
    /// waited for ever.
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
        std::thread::spawn(move || tell.send(state(&spot).map_err(|error| format!("{error:#}"))));
        let answer = told.recv_timeout(3 * ANSWER_MAX).unwrap();
        assert!(answer.unwrap_err().starts_with("it cannot be reached"));
    }

    /// A stream whose reads return one byte each.
    struct Dripping;

    impl Read for Dripping {
        fn read(&mut self, part: &mut [u8]) -> std::io::Result<usize> {
            part[0] = b'x';
            Ok(1)
        }
    }

    #[test]
    fn who_sends_without_an_end_is_not_waited_for() {
        let error = answer(Dripping, Instant::now()).unwrap_err().to_string();
        assert!(error.contains("the end of it did not come"), "{error}");
        let later = Instant::now() + Duration::from_secs(600);
        let error = answer(std::io::repeat(b'x'), later)
            .unwrap_err()
            .to_string();
        assert!(error.contains("longer than 4 MiB"), "{error}");
    }

    #[test]
    fn places_are_a_list_or_those_of_a_file() {
        assert_eq!(places("127.0.0.1:9,unix:/a").unwrap().len(), 2);
        assert!(places("").is_err() && places("127.0.0.1").is_err());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        let found = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let processes = Processes {
                at: None,
                config: Some(path.clone()),
            };
            let places = processes.places().map_err(|error| error.0)?;
            Ok::<_, String>(
                places
                    .iter()
                    .map(|spot| spot.place.to_string())
                    .collect::<Vec<_>>(),
            )
        };
        let each =
            "[server]\nstatus = \"unix:/s\"\n[[device]]\nstatus = \"127.0.0.1:1\"\n[[device]]\n";
        assert_eq!(found(each).unwrap(), ["unix:/s", "127.0.0.1:1"]);
        let together = format!("[run]\nstatus = \"127.0.0.1:2\"\n{each}");
        assert_eq!(found(&together).unwrap(), ["127.0.0.1:2"]);
        assert!(
            found("[server]\n")
                .unwrap_err()
                .contains("no section has a status")
        );
        assert!(Processes::default().places().is_err());
        let many = Processes {
            at: Some("127.0.0.1:1,".repeat(257)),
            config: None,
        };
        assert!(many.places().unwrap_err().0.contains("at most 256"));
    }

    #[test]
    fn a_registered_port_is_asked_where_it_can_be_and_with_tls() {
        let port = |at: &str, machine: Option<&str>| StatusRecord {
            at: at.into(),
            machine: machine.map(str::to_owned),
        };
        let ask = |port: &StatusRecord| spot_of(Some(port), Some("here"), Some("ca=/a"));
        let local = port("127.0.0.1:1", Some("here"));
        assert_eq!(ask(&local).unwrap().scheme, Scheme::Bare);
        let with_tls = ask(&port("https://10.0.0.2:1", None)).unwrap().scheme;
        assert!(matches!(with_tls, Scheme::Https { query, .. } if query == "ca=/a"));
        let far = ask(&port("127.0.0.1:1", Some("there"))).unwrap_err();
        assert!(far.contains("its own machine"), "{far}");
        let none = spot_of(None, Some("here"), None).unwrap_err();
        assert!(none.contains("no status port"), "{none}");
        let wrong = ask(&port("10.0.0.2", None)).unwrap_err();
        assert!(wrong.contains("is not asked"), "{wrong}");
    }
}
