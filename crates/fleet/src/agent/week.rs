//! A week of renewals in a real etcd, as fast as possible: etcd's database must stay below a small quota.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmnet_proto::Time;
use pmnet_proto::time::SECOND;
use pmnet_udp::{Clock, LeaseWords, Standing};

use super::{AgentConfig, Facts, Keeper, Not, Run, Shared};
use crate::etcd::{Access, Etcd, EtcdError, Members, Put};
use crate::plan::Order;
use crate::record::Names;
use crate::{History, Storage};

/// The quota of the etcd of these tests, in bytes.
const QUOTA: u64 = 64 << 20;
/// The seconds of a week. A device renews its lease once a second.
const WEEK: u64 = 7 * 24 * 3600;
/// Number of devices in the chain.
const DEVICES: u32 = 2;
/// Maximum number of attempts of one renewal.
const TRIES_MAX: u32 = 50;
/// Seconds between two changes of the chain, in the test of a fleet with many changes.
const CHANGES_EVERY: u64 = 60;

/// A real etcd on a file system in memory. etcd ends when this value is dropped.
struct Server {
    child: Child,
    folder: PathBuf,
    endpoint: String,
}

impl Server {
    /// Starts etcd; `None` if it is not installed.
    fn start(name: &str, quota: u64) -> Option<Server> {
        let port = || {
            TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
        };
        let (client, peer) = (port(), port());
        let memory = Path::new("/dev/shm");
        let below = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        let folder = below.join(format!("pmnet-{name}-{}", std::process::id()));
        let endpoint = format!("http://{client}");
        let started = Command::new("etcd")
            .args(["--log-level", "error", "--name", "m"])
            .args(["--data-dir", folder.to_str().unwrap()])
            .args(["--listen-client-urls", &endpoint])
            .args(["--advertise-client-urls", &endpoint])
            .args(["--listen-peer-urls", &format!("http://{peer}")])
            .args(["--initial-advertise-peer-urls", &format!("http://{peer}")])
            .args(["--initial-cluster", &format!("m=http://{peer}")])
            .args(["--quota-backend-bytes", &quota.to_string()])
            .args(["--snapshot-count", "10000"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = started else {
            println!("SKIPPED: etcd is not installed");
            return None;
        };
        let server = Server {
            child,
            folder,
            endpoint,
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while server.client().storage().is_err() {
            assert!(Instant::now() < deadline, "etcd does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(server)
    }

    fn members(&self) -> Members {
        Members::new(&self.endpoint, Access::default()).unwrap()
    }

    fn client(&self) -> Etcd {
        Etcd::new(self.members(), Duration::from_secs(5))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _gone = self.child.wait();
        let _removed = std::fs::remove_dir_all(&self.folder);
    }
}

/// A device of a fleet, with the code that keeps its lease.
struct Device {
    keeper: Keeper,
    run: Run,
}

impl Device {
    fn new(server: &Server, names: &Names, id: u32) -> Device {
        let at = |port: u32| SocketAddr::from(([10, 0, 0, 1], u16::try_from(port).unwrap()));
        let config = AgentConfig {
            members: server.members(),
            names: names.clone(),
            id,
            address: at(id),
            seconds: 3,
            spare: false,
            by_hand: false,
            clock: Clock::boottime(),
            status: None,
        };
        let keeper = Keeper::new(config, Arc::<Shared>::default()).unwrap();
        let words = Arc::new(LeaseWords::default());
        let facts = Facts {
            log: u128::from(id) << 100 | 7,
            incarnation: 1,
        };
        let order = Order {
            next: at(id + 1),
            next_id: None,
            shrink: None,
        };
        Device {
            keeper,
            run: Run {
                facts,
                words,
                order,
            },
        }
    }

    /// Renews the lease, as a device does after a third of the lease's length.
    fn renew(&mut self, epoch: u32) -> Result<(), String> {
        self.run.words.say(Standing {
            epoch,
            chain: (1..=DEVICES).collect(),
            whole: true,
            ..Standing::default()
        });
        self.keeper.held = None;
        let turned = self.keeper.turn(&self.run, Some(epoch));
        turned.map_err(|(Not::Yet(text) | Not::Ever(text))| text)
    }
}

impl Device {
    /// Renews the lease on a busy machine, where one call of etcd may take too long.
    fn renew_patiently(&mut self, epoch: u32) {
        let mut tries = 0;
        while let Err(text) = self.renew(epoch) {
            tries += 1;
            assert!(tries < TRIES_MAX, "{text}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The devices of a fleet.
struct Fleet {
    names: Names,
    etcd: Etcd,
    devices: Vec<Device>,
}

impl Fleet {
    fn new(server: &Server) -> Fleet {
        let names = Names::new("week", 0).unwrap();
        Fleet {
            etcd: server.client(),
            devices: (1..=DEVICES)
                .map(|id| Device::new(server, &names, id))
                .collect(),
            names,
        }
    }

    /// Changes the chain, and writes the other keys that such a change writes: the words and the wishes about devices.
    fn change(&mut self) {
        for (name, value) in [
            ("words/9", r#"{"left-out":1}"#),
            ("wishes/9", r#"{"leaves":false}"#),
        ] {
            let put = Put {
                key: format!("{}{name}", self.names.prefix()),
                value: value.into(),
                lease: 0,
            };
            assert!(self.etcd.put_if(&[], &[put]).unwrap());
        }
    }

    /// Simulates this many seconds. `changes`: the chain changes from time to time. Returns two sizes of the database:
    /// the maximum, and the size at the end.
    fn live(
        &mut self,
        seconds: u64,
        changes: bool,
        mut history: Option<History>,
    ) -> (u64, Storage) {
        let mut most = 0;
        for second in 0..seconds {
            let change = u32::try_from(second / CHANGES_EVERY).unwrap();
            let epoch = 1 + if changes { change } else { 0 };
            for device in &mut self.devices {
                device.renew_patiently(epoch);
            }
            if changes && second.is_multiple_of(CHANGES_EVERY) {
                self.change();
            }
            if second.is_multiple_of(30) {
                let _revision = self.etcd.range(self.names.prefix());
                if let Some(history) = &mut history {
                    let now = Time(second * SECOND);
                    assert_eq!(history.turn(now, &mut self.etcd), None);
                }
                if let Ok(storage) = self.etcd.storage() {
                    most = most.max(storage.bytes);
                }
            }
            if (second + 1).is_multiple_of(6 * 3600) {
                println!("{} hours: {} KiB at most", (second + 1) / 3600, most >> 10);
            }
        }
        self.etcd.range(self.names.prefix()).unwrap();
        (most, self.etcd.storage().unwrap())
    }
}

fn week(name: &str, seconds: u64, changes: bool) {
    let Some(server) = Server::start(name, QUOTA) else {
        return;
    };
    let begun = Instant::now();
    let (most, storage) = Fleet::new(&server).live(seconds, changes, Some(History::new(true)));
    println!(
        "{name}: {seconds} s of a fleet in {:?}: {} KiB at most, {} KiB of {} KiB in use at the end",
        begun.elapsed(),
        most >> 10,
        storage.used >> 10,
        storage.bytes >> 10
    );
    assert!(!storage.is_full && most < QUOTA, "{storage:?}");
    // A week needs no more space than several hours, because etcd reuses compacted space.
    assert!(most < QUOTA / 8, "{most}");
}

/// Returns the number of seconds that the test simulates; a trial run has fewer.
fn of_a_week() -> u64 {
    let seconds = std::env::var("PMNET_WEEK_SECONDS");
    seconds.map_or(WEEK, |text| text.parse().expect("a number"))
}

#[test]
#[ignore = "takes an hour: make week"]
fn a_week_of_an_idle_fleet_stays_below_a_quota_of_64_mib() {
    week("week-idle", of_a_week(), false);
}

#[test]
#[ignore = "takes an hour: make week"]
fn a_week_of_a_busy_fleet_stays_below_a_quota_of_64_mib() {
    week("week-busy", of_a_week(), true);
}

#[test]
fn some_minutes_of_a_fleet_leave_no_more_than_the_last_five() {
    week("minutes-busy", 1200, true);
}

/// Even without compaction, one renewal must need little space in the database.
#[test]
fn a_renewal_that_says_nothing_new_leaves_little() {
    const SECONDS: u64 = 1000;
    let Some(server) = Server::start("renewals", QUOTA) else {
        return;
    };
    let mut fleet = Fleet::new(&server);
    let (_, before) = fleet.live(60, false, None);
    let first = fleet.etcd.revision();
    let (_, after) = fleet.live(SECONDS, false, None);
    let revisions = fleet.etcd.revision() - first;
    let bytes = (after.bytes - before.bytes) / revisions;
    println!("{revisions} revisions, {bytes} bytes each");
    assert_eq!(revisions, SECONDS * u64::from(DEVICES));
    assert!(bytes < 250, "{bytes}");
}

/// A full etcd is reported, and the operator can follow the advice in the report.
#[test]
fn an_etcd_that_is_full_is_understood_and_what_is_said_helps() {
    let Some(server) = Server::start("full", 1 << 20) else {
        return;
    };
    let names = Names::new("week", 0).unwrap();
    let mut device = Device::new(&server, &names, 1);
    device.renew(1).unwrap();
    let mut etcd = server.client();
    let fills = Put {
        key: "/others/much".into(),
        value: vec![7; 64 << 10],
        lease: 0,
    };
    let full = loop {
        if let Err(error) = etcd.put_if(&[], std::slice::from_ref(&fills)) {
            break error;
        }
    };
    assert!(matches!(full, EtcdError::Full(_)), "{full}");
    let says = device.renew(1).unwrap_err();
    for word in [
        "--quota-backend-bytes",
        "compact",
        "defrag",
        "alarm disarm",
        "what was acknowledged is kept",
    ] {
        assert!(says.contains(word), "{says}");
    }
    let storage = etcd.storage().unwrap();
    assert!(
        storage.is_full && storage.is_large() && storage.quota == Some(1 << 20),
        "{storage:?}"
    );
    let mut history = History::new(false);
    let warns = history.turn(Time(SECOND), &mut etcd).unwrap();
    assert!(warns.contains("quota is 1 MiB"), "{warns}");
    let compact = serde_json::json!({ "revision": etcd.revision().to_string(), "physical": true });
    etcd.call("kv/compaction", &compact).unwrap();
    // After a defragmentation, etcd's answer is empty.
    let _answer = etcd.call("maintenance/defragment", &serde_json::json!({}));
    let alarms = etcd.call("maintenance/alarm", &serde_json::json!({ "action": "GET" }));
    let mut disarm = alarms.unwrap()["alarms"][0].clone();
    disarm["action"] = "DEACTIVATE".into();
    etcd.call("maintenance/alarm", &disarm).unwrap();
    device.renew(1).unwrap();
    assert!(!etcd.storage().unwrap().is_full);
}

/// If no program compacts etcd's history, a controller reports that.
#[test]
fn a_history_that_nobody_compacts_is_noticed() {
    let Some(server) = Server::start("kept", QUOTA) else {
        return;
    };
    let mut fleet = Fleet::new(&server);
    fleet.live(100, false, None);
    let mut history = History::new(false);
    let hours = |count: u64| Time(count * 3600 * SECOND);
    assert_eq!(
        history.turn(hours(1), &mut fleet.etcd),
        None,
        "it has just begun"
    );
    fleet.live(10, false, None);
    let said = history.turn(hours(5), &mut fleet.etcd);
    let says = said.expect("four hours later all of it is there");
    assert!(
        says.contains("--auto-compaction-retention") && says.contains("--compact-etcd"),
        "{says}"
    );
    fleet.live(10, false, None);
    let present = fleet.etcd.revision();
    fleet.etcd.compact(present).unwrap();
    fleet
        .etcd
        .compact(present - 1)
        .expect("somebody else was faster");
    assert_eq!(history.turn(hours(9), &mut fleet.etcd), None);
}
