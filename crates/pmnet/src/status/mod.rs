//! The status port's view of each role: the metrics of its loop, whether it is ready, and further facts.
//!
//! Not allowed here: serving HTTP (`pmnet_status` does it), and any work in a loop other than copying counters.

mod advice;
mod controller;
mod device;
mod front;
mod kernel;
mod lag;
mod memcached;
mod page;
mod router;
mod server;
mod silence;
mod verbs;
mod waiting;

pub(crate) use controller::{ControllerBoard, ControllerNumbers};
pub(crate) use device::{Beside, DeviceBoard, DeviceWriter};
pub(crate) use front::FrontBoard;
pub(crate) use memcached::MemcachedBoard;
pub use page::page;
pub(crate) use router::RouterBoard;
pub(crate) use server::{ServerBoard, ServerWriter};
pub(crate) use verbs::VerbsBoard;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Context;
use pmnet_cli::{ConfigError, address};
use pmnet_fleet::StatusRecord;
use pmnet_status::{
    About, Guard, Histogram, Look, Metric, Place, Sample, Shown, Source, StatusPort, Value,
};

use crate::cli::{machine, service};

/// The commit from which this program was built, or `unknown`.
pub(crate) const COMMIT: &str = env!("PMNET_COMMIT");

/// Maximum length of the path of a unix socket, in bytes.
const UNIX_PATH_MAX: usize = 107;

/// The address of a status port, with its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) place: Place,
    pub(crate) scheme: Scheme,
}

/// The protocol of a status port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Plain HTTP. The address has no scheme.
    Bare,
    /// Plain HTTP. The address has the scheme `http://`.
    Http,
    /// HTTP with TLS. The address has the scheme `https://`.
    Https {
        /// The host as the operator wrote it.
        host: String,
        /// The options after `?` in the address.
        query: String,
    },
}

/// Parses an address: HOST:PORT, unix:PATH, http://HOST:PORT, or https://HOST:PORT?ca=FILE&cert=FILE&key=FILE.
pub(crate) fn spot(flag: &str, text: &str) -> Result<Spot, ConfigError> {
    if let Some(rest) = text.strip_prefix("http://") {
        let place = address(flag, rest.trim_end_matches('/')).map(Place::Tcp)?;
        let scheme = Scheme::Http;
        return Ok(Spot { place, scheme });
    }
    let Some(rest) = text.strip_prefix("https://") else {
        let place = place(flag, text)?;
        let scheme = Scheme::Bare;
        return Ok(Spot { place, scheme });
    };
    let (at, query) = rest.split_once('?').unwrap_or((rest, ""));
    let at = at.trim_end_matches('/');
    let unknown = query.split('&').find(|option| {
        let known = ["ca=", "cert=", "key=", "name="];
        !option.is_empty() && !known.iter().any(|known| option.starts_with(known))
    });
    if let Some(unknown) = unknown {
        return Err(ConfigError(format!(
            "{flag} {text}: {unknown:?} is no option; there are ca=FILE, cert=FILE, key=FILE and name=NAME"
        )));
    }
    let host = at.rsplit_once(':').map_or(at, |(host, _)| host);
    Ok(Spot {
        place: address(flag, at).map(Place::Tcp)?,
        scheme: Scheme::Https {
            host: host.trim_matches(['[', ']']).to_owned(),
            query: query.to_owned(),
        },
    })
}

/// Parses HOST:PORT or unix:PATH.
fn place(flag: &str, text: &str) -> Result<Place, ConfigError> {
    let Some(path) = text.strip_prefix("unix:") else {
        return address(flag, text).map(Place::Tcp);
    };
    if !path.starts_with('/') || path.len() > UNIX_PATH_MAX {
        return Err(ConfigError(format!(
            "{flag} {text}: after unix: write an absolute path of at most {UNIX_PATH_MAX} bytes"
        )));
    }
    Ok(Place::Unix(path.into()))
}

/// Parses the value of `--status`, and reads the certificates that it names.
pub(crate) fn at(text: Option<&str>) -> Result<Option<(Place, Option<Guard>)>, ConfigError> {
    let Some(text) = text else { return Ok(None) };
    let Spot { place, scheme } = spot("--status", text)?;
    let guard = match (scheme, &place) {
        (Scheme::Https { query, .. }, _) => Some(guard(text, &query)?),
        (Scheme::Bare, Place::Tcp(at)) if !at.ip().to_canonical().is_loopback() => {
            return Err(ConfigError(format!(
                "--status {text}: others than this machine can reach it there. Write https://{text}?cert=FILE&key=FILE&ca=FILE, with the authorities \
                 (ca) of those who may read it; or http://{text}, to state that everybody who reaches it may"
            )));
        }
        _ => None,
    };
    Ok(Some((place, guard)))
}

fn guard(text: &str, query: &str) -> Result<Guard, ConfigError> {
    let option = |name: &str| {
        let mut options = query.split('&').filter_map(|option| option.split_once('='));
        options.find(|(key, _)| *key == name).map(|(_, file)| file)
    };
    let (Some(cert), Some(key), Some(ca)) = (option("cert"), option("key"), option("ca")) else {
        return Err(ConfigError(format!(
            "--status {text}: https:// needs a certificate, its key, and the authorities of those who may read: ?cert=FILE&key=FILE&ca=FILE"
        )));
    };
    Guard::new(Path::new(cert), Path::new(key), Path::new(ca))
        .map_err(|error| ConfigError(format!("--status: {error}")))
}

/// Locks data that a loop and the status port's thread share. No panic can leave this data in an inconsistent state.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a sample of durations that were recorded in nanoseconds. The bounds of the sample go from 2^10 ns (1 µs) to
/// 2^34 ns (17 s).
fn seconds(metric: Metric, times: &Histogram) -> Sample {
    Sample::new(metric, Value::Histogram(times.read(1e9, 10, 34)))
}

/// A loop to whose state advice is added. `section`: the name of the loop's section, if the process has loops of
/// several roles. In this case the labels of the loop alone may be ambiguous.
#[derive(Debug)]
struct Advised {
    section: Option<String>,
    source: Arc<dyn Source>,
}

impl Source for Advised {
    fn labels(&self) -> Vec<(&'static str, String)> {
        let section = self.section.iter();
        let mut labels: Vec<_> = section.map(|name| ("section", name.clone())).collect();
        labels.extend(self.source.labels());
        labels
    }

    fn pulse(&self) -> u64 {
        self.source.pulse()
    }

    fn tick(&self, now: Instant) {
        self.source.tick(now);
    }

    fn look(&self, now: Instant) -> Look {
        let mut look = self.source.look(now);
        advice::advise(&mut look);
        look
    }
}

/// The status port of this process. The port closes when this value is dropped.
pub(crate) struct Status {
    shown: Shown,
    port: Option<StatusPort>,
    /// The port's address as the operator gave it.
    spot: Option<Spot>,
}

impl Status {
    /// Opens the port, if `text` gives an address.
    pub(crate) fn open(role: &'static str, text: Option<&str>) -> anyhow::Result<Status> {
        let shown = Shown::default();
        let about = About {
            role,
            version: env!("CARGO_PKG_VERSION"),
            commit: COMMIT,
        };
        let port =
            at(text)?.map(|(place, guard)| StatusPort::open(place, guard, about, shown.clone()));
        let port = port
            .transpose()
            .context("cannot start the thread of the status port")?;
        if let Some(place) = port.as_ref().and_then(StatusPort::place) {
            tracing::info!(at = %place, "the status port is open");
        }
        service::watch(&shown)?;
        let spot = text.map(|text| spot("--status", text)).transpose()?;
        Ok(Status { shown, port, spot })
    }

    /// Returns the record with which other processes find the port. `own`: the address at which they reach this
    /// process. `None`: there is no port, or other processes cannot reach it.
    pub(crate) fn record(&self, own: IpAddr) -> Option<StatusRecord> {
        let given = self.spot.as_ref()?;
        let opened = self.port.as_ref().and_then(StatusPort::place);
        record(&given.scheme, opened.unwrap_or(&given.place), own)
    }

    /// Shows a further loop. `section`: the name of the loop's section, if the process has loops of several roles.
    pub(crate) fn show(&self, section: Option<String>, source: Arc<dyn Source>) {
        self.shown.add(Arc::new(Advised { section, source }));
    }

    /// Returns whether the process has a status port.
    pub(crate) const fn is_open(&self) -> bool {
        self.port.is_some()
    }
}

fn record(scheme: &Scheme, place: &Place, own: IpAddr) -> Option<StatusRecord> {
    let Place::Tcp(at) = place else {
        let (at, machine) = (place.to_string(), machine());
        return Some(StatusRecord { at, machine });
    };
    let everywhere = at.ip().is_unspecified();
    let reached = SocketAddr::new(if everywhere { own } else { at.ip() }, at.port());
    if reached.ip().is_unspecified() || reached.port() == 0 {
        return None;
    }
    let at = match scheme {
        Scheme::Bare => reached.to_string(),
        Scheme::Http => format!("http://{reached}"),
        Scheme::Https { .. } if everywhere => format!("https://{reached}"),
        // The record has the host name, because the port's certificate is for this name.
        Scheme::Https { host, .. } if host.parse::<Ipv6Addr>().is_ok() => {
            format!("https://[{host}]:{}", reached.port())
        }
        Scheme::Https { host, .. } => format!("https://{host}:{}", reached.port()),
    };
    let is_local = reached.ip().to_canonical().is_loopback();
    Some(StatusRecord {
        at,
        machine: machine().filter(|_| is_local),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_on_record_as_others_reach_it() {
        let own: IpAddr = "10.0.0.2".parse().unwrap();
        for (given, opened, expected) in [
            (
                "127.0.0.1:0",
                Some("127.0.0.1:9464"),
                Some(("127.0.0.1:9464", true)),
            ),
            ("127.0.0.1:0", None, None),
            ("unix:/run/a.sock", None, Some(("unix:/run/a.sock", true))),
            (
                "http://0.0.0.0:9464",
                None,
                Some(("http://10.0.0.2:9464", false)),
            ),
            (
                "https://0.0.0.0:9464?ca=/a",
                None,
                Some(("https://10.0.0.2:9464", false)),
            ),
            (
                "https://localhost:9464",
                None,
                Some(("https://localhost:9464", true)),
            ),
            (
                "https://[fd00::1]:1",
                None,
                Some(("https://[fd00::1]:1", false)),
            ),
        ] {
            let spot = spot("--status", given).unwrap();
            let opened = opened.map(|text| Place::Tcp(text.parse().unwrap()));
            let found = record(&spot.scheme, &opened.unwrap_or(spot.place), own);
            let found = found.map(|found| (found.at, found.machine.is_some()));
            let expected = expected.map(|(at, is_local)| (at.to_owned(), is_local));
            assert_eq!(found, expected, "{given}");
        }
        let nowhere = "0.0.0.0".parse().unwrap();
        let spot = spot("--status", "http://0.0.0.0:9464").unwrap();
        assert_eq!(record(&spot.scheme, &spot.place, nowhere), None);
    }

    #[test]
    fn places_are_addresses_or_paths() {
        assert_eq!(
            place("--at", "127.0.0.1:9464").ok(),
            Some(Place::Tcp("127.0.0.1:9464".parse().unwrap()))
        );
        assert_eq!(
            place("--at", "unix:/run/a.sock").ok(),
            Some(Place::Unix("/run/a.sock".into()))
        );
        for wrong in [
            "9464",
            "unix:a.sock",
            "unix:",
            &format!("unix:/{}", "a".repeat(107)),
        ] {
            let error = place("--status", wrong).err().map(|error| error.0).unwrap();
            assert!(error.contains("--status"), "{error}");
        }
    }

    #[test]
    fn a_port_that_others_can_reach_has_tls_or_is_said_to_be_open() {
        for open in [
            "127.0.0.1:1",
            "[::1]:1",
            "unix:/a",
            "http://10.0.0.1:1",
            "http://127.0.0.1:1/",
        ] {
            assert!(at(Some(open)).is_ok(), "{open}");
        }
        assert!(matches!(at(None), Ok(None)));
        for (wrong, says) in [
            ("10.0.0.1:1", "https://10.0.0.1:1?cert=FILE"),
            ("0.0.0.0:1", "http://0.0.0.0:1"),
            ("https://127.0.0.1:1", "needs a certificate"),
            ("https://127.0.0.1:1?cert=a&key=b", "needs a certificate"),
            ("https://127.0.0.1:1?cert=/none&key=/none&ca=/none", "/none"),
            ("https://127.0.0.1:1?x=1", "is no option"),
        ] {
            let error = at(Some(wrong)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let spot = spot("--at", "https://[::1]:9?ca=/a").unwrap();
        let Scheme::Https { host, query } = spot.scheme else {
            panic!("TLS");
        };
        assert_eq!((host.as_str(), query.as_str()), ("::1", "ca=/a"));
    }
}
