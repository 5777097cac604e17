//! The measurements of a run: its set-ups, its mixes of reads, and its durations.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::bench::micro::{System, cores};
use crate::harness::{Medium, StoreKind, Topology};
use crate::load::{Mix, MixError, Op};
use crate::setup::{Place, ValueBytes};

/// Number of replicas for which a client waits, in the rows with replicas.
pub const REPLICAS: u8 = 2;
/// Arguments of a front that asks the device even for data that Redis already has.
const CACHE_LOG: &[&str] = &["--cache", "log"];
/// Prefix of every key.
pub const PREFIX: &str = "bench:";

/// A set-up under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// A server that answers at once and stores nothing: the upper bound.
    RespLimit,
    /// Redis with `appendfsync always`.
    Direct,
    /// Redis without a disk. Clients wait for replicas with `WAIT`.
    Wait,
    /// Redis with `appendfsync always`. Clients wait for replicas with `WAIT`.
    AlwaysWait,
    /// pmnet with one device, which is a process.
    #[value(name = "relay-1")]
    #[serde(rename = "relay-1")]
    Relay1,
    /// pmnet with one device, which is a process. The device answers reads even of data that Redis has (`--cache log`).
    #[value(name = "relay-1-log")]
    #[serde(rename = "relay-1-log")]
    Relay1Log,
    /// pmnet with one device, which is a process. The shard has no keys.
    #[value(name = "relay-1-insecure")]
    #[serde(rename = "relay-1-insecure")]
    Relay1Insecure,
    /// pmnet with two devices, which are processes.
    #[value(name = "relay-2")]
    #[serde(rename = "relay-2")]
    Relay2,
    /// pmnet with two devices; all processes have status ports, which no scraper reads.
    #[value(name = "relay-2-status")]
    #[serde(rename = "relay-2-status")]
    Relay2Status,
    /// The processes of relay-2-status, whose status ports are asked for metrics once a second.
    #[value(name = "relay-2-scraped")]
    #[serde(rename = "relay-2-scraped")]
    Relay2Scraped,
    /// pmnet with three devices, which are processes.
    #[value(name = "relay-3")]
    #[serde(rename = "relay-3")]
    Relay3,
    /// The upper bound, with its server at the other end of a link.
    LinkRespLimit,
    /// Redis with `appendfsync always`, at the other end of a link.
    LinkDirect,
    /// pmnet with one device, in the kernel of Redis's machine, at its NIC.
    Nic,
    /// pmnet with one device, in the kernel of Redis's machine, at its NIC. The device answers reads even of data that
    /// Redis has (`--cache log`).
    NicLog,
    /// pmnet with two devices in the kernels of machines between client and server.
    #[value(name = "router-2")]
    #[serde(rename = "router-2")]
    Router2,
    /// pmnet with three devices in the kernels of machines between client and server.
    #[value(name = "router-3")]
    #[serde(rename = "router-3")]
    Router3,
}

impl Row {
    /// The rows that are measured by default: those without replicas, except those for a single question (without keys,
    /// scraped).
    pub const DEFAULT: [Row; 12] = [
        Row::RespLimit,
        Row::Direct,
        Row::Relay1,
        Row::Relay1Log,
        Row::Relay2,
        Row::Relay3,
        Row::LinkRespLimit,
        Row::LinkDirect,
        Row::Nic,
        Row::NicLog,
        Row::Router2,
        Row::Router3,
    ];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Row::RespLimit => "resp-limit",
            Row::Direct => "direct",
            Row::Wait => "wait",
            Row::AlwaysWait => "always-wait",
            Row::Relay1 => "relay-1",
            Row::Relay1Log => "relay-1-log",
            Row::Relay1Insecure => "relay-1-insecure",
            Row::Relay2 => "relay-2",
            Row::Relay2Status => "relay-2-status",
            Row::Relay2Scraped => "relay-2-scraped",
            Row::Relay3 => "relay-3",
            Row::LinkRespLimit => "link-resp-limit",
            Row::LinkDirect => "link-direct",
            Row::Nic => "nic",
            Row::NicLog => "nic-log",
            Row::Router2 => "router-2",
            Row::Router3 => "router-3",
        }
    }

    /// Returns the name for readers. If the row has a log, medium and R follow.
    #[must_use]
    pub fn title(self, medium: Medium) -> String {
        let medium = match medium {
            Medium::Dram => "DRAM",
            Medium::File => "file",
        };
        match self {
            Row::RespLimit => "resp-limit (no data)".to_owned(),
            Row::Direct => "Redis, always".to_owned(),
            Row::Wait => format!("Redis, no disk, WAIT {REPLICAS}"),
            Row::AlwaysWait => format!("Redis, always, WAIT {REPLICAS}"),
            Row::Relay1 => format!("pmnet, R = 1, relay, {medium}"),
            Row::Relay1Log => format!("pmnet, R = 1, relay, {medium}, --cache log"),
            Row::Relay1Insecure => format!("pmnet, R = 1, relay, {medium}, without keys"),
            Row::Relay2 => format!("pmnet, R = 2, relay, {medium}"),
            Row::Relay2Status => format!("pmnet, R = 2, relay, {medium}, status ports"),
            Row::Relay2Scraped => format!("pmnet, R = 2, relay, {medium}, scraped"),
            Row::Relay3 => format!("pmnet, R = 3, relay, {medium}"),
            Row::LinkRespLimit => "link: resp-limit (no data)".to_owned(),
            Row::LinkDirect => "link: Redis, always".to_owned(),
            Row::Nic => "link: pmnet, R = 1, NIC, DRAM".to_owned(),
            Row::NicLog => "link: pmnet, R = 1, NIC, DRAM, --cache log".to_owned(),
            Row::Router2 => "link: pmnet, R = 2, router, DRAM".to_owned(),
            Row::Router3 => "link: pmnet, R = 3, router, DRAM".to_owned(),
        }
    }

    /// Returns a sentence that describes the row.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Row::RespLimit => {
                "a process that answers SET and GET at once and keeps nothing: what is left of a server of Redis's \
                 protocol on this machine, with this client, that does nothing else"
            }
            Row::Direct => "clients connect to Redis with appendfsync always",
            Row::Wait => {
                "clients connect to Redis without an append-only file, and send a WAIT for two replicas behind \
                 each SET: three copies in memory"
            }
            Row::AlwaysWait => {
                "clients connect to Redis with appendfsync always, and send a WAIT for two replicas behind each SET; the replicas \
                 write no disk"
            }
            Row::Relay1Log | Row::NicLog => {
                "the same with one device, and the front asks it for what Redis has, too, as long as its log keeps that"
            }
            Row::Relay1Insecure => "the same with one device, and without keys (--insecure)",
            Row::Relay2Status => {
                "the same with two devices; front, devices and server have status ports, which no scraper reads"
            }
            Row::Relay2Scraped => {
                "the processes of relay-2-status; while this row is measured, each is asked for its metrics once a second, as \
                 Prometheus does"
            }
            Row::Relay1 | Row::Relay2 | Row::Relay3 => {
                "clients connect to a front; R devices in a chain, each a process of this machine, on the loopback; behind \
                 them a server, and Redis with appendfsync always"
            }
            Row::LinkRespLimit => {
                "resp-limit in a network namespace of its own, joined to that of the clients by a veth pair"
            }
            Row::LinkDirect => "Redis with appendfsync always at the other end of such a link",
            Row::Nic => {
                "front and clients at one end of such a link, server and Redis at the other, and the device in the \
                 kernel there (XDP, --mode nic), its log in memory of the kernel"
            }
            Row::Router2 | Row::Router3 => {
                "R machines in a row between the two ends, each with a device in the kernel (XDP, --mode router), logs in \
                 memory of the kernel; they are compared with a Redis at the other end of one link, which is in its favour"
            }
        }
    }

    /// Returns the row's baseline: Redis over the same path.
    #[must_use]
    pub const fn base(self) -> Option<Row> {
        match self {
            Row::RespLimit | Row::Direct | Row::LinkRespLimit | Row::LinkDirect => None,
            Row::Wait
            | Row::AlwaysWait
            | Row::Relay1
            | Row::Relay1Log
            | Row::Relay1Insecure
            | Row::Relay2
            | Row::Relay2Status
            | Row::Relay2Scraped
            | Row::Relay3 => Some(Row::Direct),
            Row::Nic | Row::NicLog | Row::Router2 | Row::Router3 => Some(Row::LinkDirect),
        }
    }

    /// Returns the row of the upper bound over the same path.
    #[must_use]
    pub const fn limit(self) -> Row {
        match self {
            Row::LinkRespLimit
            | Row::LinkDirect
            | Row::Nic
            | Row::NicLog
            | Row::Router2
            | Row::Router3 => Row::LinkRespLimit,
            _ => Row::RespLimit,
        }
    }

    /// Returns whether the set-up uses namespaces.
    #[must_use]
    pub fn is_linked(self) -> bool {
        self.limit() == Row::LinkRespLimit
    }

    /// Returns whether data that was written can be read.
    #[must_use]
    pub fn keeps_data(self) -> bool {
        self != self.limit()
    }

    /// Returns the number of replicas for which a client waits after each write; 0: it does not wait.
    #[must_use]
    pub const fn replicas(self) -> u8 {
        match self {
            Row::Wait | Row::AlwaysWait => REPLICAS,
            _ => 0,
        }
    }

    /// Returns the row with the same processes: two sets of processes can differ by more than the question of the row.
    #[must_use]
    pub const fn twin(self) -> Option<Row> {
        match self {
            Row::Relay2Status => Some(Row::Relay2Scraped),
            Row::Relay2Scraped => Some(Row::Relay2Status),
            _ => None,
        }
    }

    /// Returns the set-up to start.
    #[must_use]
    pub fn place(self, medium: Medium, value: ValueBytes) -> Place {
        let chain = |devices| {
            let mut topology = Topology::new(StoreKind::Redis, devices, medium);
            topology.front_args.push("--log-json".to_owned());
            if self == Row::Relay1Log {
                topology
                    .front_args
                    .extend(CACHE_LOG.iter().map(ToString::to_string));
            }
            topology.keyed = self != Row::Relay1Insecure;
            if matches!(self, Row::Relay2Status | Row::Relay2Scraped) {
                for args in [
                    &mut topology.server_args,
                    &mut topology.device_args,
                    &mut topology.front_args,
                ] {
                    args.extend(["--status", "127.0.0.1:0"].map(String::from));
                }
            }
            Place::Loopback(topology)
        };
        match self {
            Row::RespLimit => Place::Limit(value),
            Row::Direct => Place::Loopback(Topology::direct(StoreKind::Redis)),
            Row::Wait | Row::AlwaysWait => Place::Replicated {
                replicas: REPLICAS,
                synced: self == Row::AlwaysWait,
            },
            Row::Relay1 | Row::Relay1Log | Row::Relay1Insecure => chain(1),
            Row::Relay2 | Row::Relay2Status | Row::Relay2Scraped => chain(2),
            Row::Relay3 => chain(3),
            Row::LinkRespLimit => Place::LinkedLimit(value),
            Row::LinkDirect => Place::Links(System::ClientServerNic, StoreKind::Redis, &[]),
            Row::Nic => Place::Links(System::Nic, StoreKind::Redis, &[]),
            Row::NicLog => Place::Links(System::Nic, StoreKind::Redis, CACHE_LOG),
            Row::Router2 => Place::Links(System::Router2, StoreKind::Redis, &[]),
            Row::Router3 => Place::Links(System::Router3, StoreKind::Redis, &[]),
        }
    }
}

/// The reads among the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Percentage of the operations that are GETs. The other operations are SETs. GETs and SETs come in random order.
    Percent(u8),
    /// `SET` of a key, then `GET` of the same key.
    Alternate,
}

impl Reads {
    /// Returns the load generator's mix.
    ///
    /// # Errors
    /// Fails if the percentage exceeds 100.
    pub fn mix(self) -> Result<Mix, MixError> {
        match self {
            Reads::Percent(0) => Ok(Mix::only(Op::Set)),
            Reads::Percent(100) => Ok(Mix::only(Op::Get)),
            Reads::Percent(gets) => {
                let gets = u32::from(gets);
                Mix::new(vec![
                    (Op::Set, 100_u32.saturating_sub(gets)),
                    (Op::Get, gets),
                ])
            }
            Reads::Alternate => Ok(Mix::alternate()),
        }
    }

    /// Returns the name for readers.
    #[must_use]
    pub fn title(self) -> String {
        match self {
            Reads::Percent(gets) => format!("{}/{gets} SET/GET", 100_u8.saturating_sub(gets)),
            Reads::Alternate => "SET k, GET k".to_owned(),
        }
    }
}

impl FromStr for Reads {
    type Err = String;

    fn from_str(text: &str) -> Result<Reads, String> {
        if text == "alternate" {
            return Ok(Reads::Alternate);
        }
        let percent = text.parse().ok().filter(|percent| *percent <= 100);
        percent
            .map(Reads::Percent)
            .ok_or_else(|| "a number from 0 to 100, or alternate, is needed".to_owned())
    }
}

impl fmt::Display for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reads::Percent(gets) => write!(f, "{gets}"),
            Reads::Alternate => f.write_str("alternate"),
        }
    }
}

impl Serialize for Reads {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The combinations and durations of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The set-ups, each once.
    pub rows: Vec<Row>,
    /// The mixes, each once.
    pub reads: Vec<Reads>,
    /// The numbers of connections.
    pub clients: Vec<usize>,
    /// Number of commands that a connection sends together before it waits for the replies.
    pub pipeline: usize,
    /// Number of different keys.
    pub keys: u64,
    /// Exponent of a Zipf distribution of the keys; `None`: all keys are equally likely.
    pub zipf: Option<f64>,
    /// Number of additional programs, each of which keeps one core busy.
    pub beside: usize,
    /// Size of a value, in bytes.
    pub value_bytes: usize,
    /// The medium of logs of devices that are processes.
    pub medium: Medium,
    /// Duration of the measurement in one run.
    pub duration: Duration,
    /// Duration of the warm-up.
    pub warmup: Duration,
    /// Number of runs of each combination.
    pub rounds: usize,
    /// Number of pairs of `SET` and `GET` in the long pipeline; 0: the long pipeline is not measured.
    pub pairs: usize,
}

impl Plan {
    /// Returns the number of runs if all rows can be started.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let groups = self.reads.len() * self.clients.len() + usize::from(self.pairs > 0);
        u64::try_from(groups * self.rows.len() * self.rounds).unwrap_or(u64::MAX)
    }

    /// Returns the title of the result.
    #[must_use]
    pub fn title(&self) -> String {
        let keys = self.zipf.map_or_else(
            || "uniform".to_owned(),
            |exponent| format!("Zipf {exponent}"),
        );
        let beside = match self.beside {
            0 => String::new(),
            1 => ", beside 1 busy program".to_owned(),
            some => format!(", beside {some} busy programs"),
        };
        format!(
            "Redis behind pmnet: closed loop, pipeline {}, values of {} B, {} keys ({keys}), one machine with {} cores{beside}",
            self.pipeline,
            self.value_bytes,
            self.keys,
            cores()
        )
    }

    /// Returns notes that readers of the figures need.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let alike = self.rows.chunk_by(|a, b| a.meaning() == b.meaning());
        let mut notes: Vec<String> = alike
            .map(|rows| {
                let titles: Vec<_> = rows.iter().map(|row| row.title(self.medium)).collect();
                let meaning = rows.first().map_or("", |row| row.meaning());
                format!("{}: {meaning}", titles.join("; "))
            })
            .collect();
        notes.push(format!(
            "figures are medians over {} rounds of {:.2} s, all rows in turn, in both orders; every key is there before the first",
            self.rounds,
            self.duration.as_secs_f64()
        ));
        notes.push(
            "lower: so many times lower than that of Redis over the same path (p50). of limit: so many times that of resp-limit. \
             drain: longest time from the end of the load until all of it was in Redis; its CPU time is counted"
                .into(),
        );
        notes.push(
            "CPU: microseconds of each process for an operation, all rounds; what a device in the kernel needs is part \
             of whoever's packet it was"
                .into(),
        );
        if self.pipeline > 1 {
            notes.push(format!(
                "a connection sends {} commands together and the next when all are answered: latencies are from \
                 the sending to each one's reply",
                self.pipeline
            ));
        }
        if cores() < 6 {
            notes.push(format!(
                "load, front, devices, server and Redis share {} cores: waiting for one is part of the figures",
                cores()
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line_and_of_json() {
        for row in Row::value_variants() {
            let name = row.name();
            assert_eq!(row.to_possible_value().unwrap().get_name(), name);
            assert_eq!(serde_json::to_value(row).unwrap(), name);
        }
        for (text, reads) in [("0", Reads::Percent(0)), ("alternate", Reads::Alternate)] {
            assert_eq!(text.parse(), Ok(reads));
            assert_eq!(serde_json::to_value(reads).unwrap(), text);
        }
        for bad in ["101", "-1", "", "half"] {
            assert!(bad.parse::<Reads>().is_err());
        }
    }

    #[test]
    fn everybody_is_compared_over_the_same_path() {
        for row in Row::value_variants() {
            let others = row.base().into_iter().chain([row.limit()]);
            for other in others {
                assert_eq!(other.is_linked(), row.is_linked());
                assert_eq!(other.base(), None);
            }
            let place = row.place(Medium::Dram, ValueBytes(1));
            assert_eq!(place.is_linked(), row.is_linked());
        }
    }

    #[test]
    fn mixes_have_as_many_reads_as_they_say() {
        let text = |percent| Reads::Percent(percent).mix().unwrap().to_string();
        assert_eq!(text(0), "set:1");
        assert_eq!(text(5), "set:95,get:5");
        assert_eq!(text(100), "get:1");
        assert_eq!(Reads::Percent(5).title(), "95/5 SET/GET");
    }
}
