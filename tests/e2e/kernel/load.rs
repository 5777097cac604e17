//! Runs load in a world, and checks that the database has the acknowledged updates.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pmnet_client::{ClientConfig, Session, SessionError};
use pmnet_lab::check::{Ledger, Verdict, verify};
use pmnet_lab::harness::ACKNOWLEDGED_MIN;
use pmnet_lab::load::{CheckedOptions, Endpoint, Hooks, Options, Summary, Workload};
use pmnet_lab::resp::{Reply, write_command};
use pmnet_lab::testbed::Network;
use pmnet_wire::command::{Form, Protocol, key_hash, preamble};

use super::world::World;
use crate::support::eventually;

/// Time after the load within which the database must have applied all acknowledged updates.
const SETTLE_MAX: Duration = Duration::from_secs(30);

/// A checked load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub seconds: u64,
    pub clients: usize,
    pub value_bytes: usize,
    /// Operations per second of all clients together; `None`: no limit.
    pub rate: Option<f64>,
    /// Interval at which `turn` is called.
    pub every: Duration,
}

impl World {
    /// Waits until the database has applied all acknowledged updates. For this purpose the function
    /// sends a read, which is answered only after all these updates.
    pub fn settle(&self) {
        for shard in 0..self.shards() {
            let mut writer = self.session_of(shard, Duration::from_secs(5));
            eventually("a read is answered", SETTLE_MAX, || writer.read().is_ok());
            writer.end();
        }
    }

    /// Checks that the database has all updates that were acknowledged to a writer.
    pub fn check(&self, writer: &Writer) {
        self.settle();
        self.check_without_device(writer);
    }

    /// Makes the checks of [`check`](Self::check), except the read through the device. The caller
    /// must wait before until all updates are applied.
    pub fn check_without_device(&self, writer: &Writer) {
        let mut redis = self.redis();
        for (key, value) in &writer.acknowledged {
            let found = redis.call(&["GET", key]).unwrap();
            assert_eq!(found, Reply::Bulk(value.clone().into_bytes()), "{key}");
        }
    }

    /// Runs checked load from the client's machine, calls `turn` at intervals, and then checks the
    /// data. If there are several shards, each has this load, and the verdict is that of the last
    /// shard.
    pub fn checked(
        &mut self,
        load: Load,
        mut turn: impl FnMut(&mut World, u32),
    ) -> (Verdict, Summary) {
        let options: Vec<Options> = (0..self.shards())
            .map(|shard| self.options(load, shard))
            .collect();
        let ended = AtomicU32::new(0);
        let network = self.network();
        let load_one = &|options: &Options| {
            let loaded = loaded(&network, options);
            ended.fetch_add(1, Ordering::AcqRel);
            loaded
        };
        let all: Vec<(Summary, Ledger)> = std::thread::scope(|scope| {
            let loading: Vec<_> = options
                .iter()
                .map(|options| scope.spawn(move || load_one(options)))
                .collect();
            let duration = Duration::from_secs(load.seconds);
            let last = Instant::now() + duration.saturating_sub(load.every / 2);
            let mut next = Instant::now() + load.every;
            let mut number = 0;
            while ended.load(Ordering::Acquire) < self.shards() {
                std::thread::sleep(Duration::from_millis(10));
                if Instant::now() >= next && Instant::now() < last {
                    turn(self, number);
                    number += 1;
                    next += load.every;
                }
            }
            let loaded = |one: std::thread::ScopedJoinHandle<'_, _>| one.join().unwrap();
            let all: anyhow::Result<_> = loading.into_iter().map(loaded).collect();
            all.expect("the load goes on")
        });
        self.settle();
        let mut judged = None;
        for (summary, ledger) in all {
            let verdict = verify(&ledger, &mut self.redis()).unwrap();
            println!("{verdict}; {:.0} operations/s", summary.throughput);
            assert!(verdict.is_clean(), "{verdict}");
            assert!(
                verdict.acknowledged >= ACKNOWLEDGED_MIN,
                "hardly any load: {verdict}"
            );
            judged = Some((verdict, summary));
        }
        judged.expect("there is a shard")
    }

    fn options(&self, load: Load, shard: u32) -> Options {
        let prefix = format!("chk{:x}:", fastrand::u64(..));
        let mut options = Options::new(self.head_of(shard));
        options.shard = shard;
        options.endpoint = Endpoint::Native;
        options.clients = load.clients;
        options.rate = load.rate;
        options.pipeline = 4;
        options.duration = Duration::from_secs(load.seconds);
        options.acknowledged_min = ACKNOWLEDGED_MIN;
        options.deadline = Duration::from_secs(10);
        options.workload = Workload::Checked(CheckedOptions {
            prefix,
            ring: 100_000,
            lists: true,
            value_bytes: load.value_bytes,
        });
        options
    }
}

fn loaded(network: &Network, options: &Options) -> anyhow::Result<(Summary, Ledger)> {
    network.enter("client1")?;
    let mut ledger = Ledger::new();
    let mut record = |record: &pmnet_lab::load::Record| Ok(ledger.add(record)?);
    let hooks = Hooks {
        record: Some(&mut record),
        progress: None,
    };
    let summary = pmnet_lab::load::run(options, hooks, &AtomicBool::new(false))?;
    Ok((summary, ledger))
}

/// A session that sets keys of its own, and remembers the acknowledged ones.
pub struct Writer {
    /// The session; `None` after its end.
    session: Option<Session>,
    /// Acknowledged keys and values.
    pub acknowledged: Vec<(String, String)>,
    number: u64,
    key: u64,
}

impl Writer {
    /// Opens a session. The calling thread must be on the client's machine.
    pub fn open(head: SocketAddr, deadline: Duration) -> Writer {
        Writer::open_of(0, head, deadline)
    }

    /// Opens a session of a shard. The calling thread must be on the client's machine.
    pub fn open_of(shard: u32, head: SocketAddr, deadline: Duration) -> Writer {
        let config = ClientConfig {
            shard,
            ..ClientConfig::new(head)
        };
        Writer {
            session: Some(Session::start(config, deadline).unwrap()),
            acknowledged: Vec::new(),
            number: 0,
            key: fastrand::u64(..),
        }
    }

    fn session(&mut self) -> &mut Session {
        self.session.as_mut().expect("it was not ended")
    }

    /// Ends the session.
    pub fn end(&mut self) {
        if let Some(session) = self.session.take() {
            session.end().unwrap();
        }
    }

    /// Sets the next key. Returns the number of devices that hold the write.
    pub fn set(&mut self) -> Result<u8, SessionError> {
        self.number += 1;
        let (key, value) = (
            format!("w{:x}:{}", self.key, self.number),
            self.number.to_string(),
        );
        let command = command(&["SET", &key, &value]);
        let copies = self.session().update(command, key_hash(key.as_bytes()))?;
        self.acknowledged.push((key, value));
        Ok(copies)
    }

    /// Sets `count` keys. Each write must be acknowledged with this number of copies.
    pub fn sets(&mut self, count: u64, copies: u8) {
        for _ in 0..count {
            assert_eq!(self.set().unwrap(), copies);
        }
    }

    /// Makes a read, which the server executes after all acknowledged updates.
    pub fn read(&mut self) -> Result<Bytes, SessionError> {
        let key = "settle";
        let hash = key_hash(key.as_bytes());
        self.session().bypass(command(&["GET", key]), hash, true)
    }
}

fn command(words: &[&str]) -> Bytes {
    let mut bytes = preamble(Form::Single, Protocol::Resp2, 0).to_vec();
    write_command(&mut bytes, words);
    bytes.into()
}
