//! A process is killed every second while 64 clients contend for keys. The clients use a front. The device is in the
//! kernel, or bypasses the kernel's network stack. The history of all clients must be linearizable
//! (`docs/internals/histories.md`).

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use pmnet_history::{Limits, Op, Outcome, Record, Report};
use pmnet_lab::check::check_history;
use pmnet_lab::harness::drained;
use pmnet_lab::harness::histories::{self, Contention, Shared, read_all};
use pmnet_lab::load::HistoryFile;

use super::load::Load;
use super::took_over;
use super::world::{Place, Plan, READY_MAX, World};
use crate::support::{eventually, seed};

/// Number of groups of clients. Each group has keys of its own.
const GROUPS: u32 = 16;
/// Number of clients in a group. This number limits the operations on a key that are outstanding or of unknown outcome
/// at the same time. With more clients, the search for an order would exceed its limit.
const GROUP_CLIENTS: u64 = 4;
/// Pause after each write of a client that only writes. Each group has one such client, because a client that reads
/// must wait while the device is dead.
const WRITE_PAUSE: Duration = Duration::from_millis(5);
const CONTENTION: Contention = Contention {
    slots: [2, 1, 1],
    key_operations: 240,
    operations_max: 50_000,
    call_max: Duration::from_secs(2),
};
/// Maximum number of keys that are checked a second time, with one wrong reply.
const BROKEN_MAX: usize = 300;
/// Clients that run the checked load directly at the device: their number, and their operations per second.
const WRITERS: usize = 8;
const WRITERS_RATE: f64 = 400.0;
/// Number of commands that the database must have executed after a restart. Executed commands prove that the device
/// serves again.
const BACK: u64 = 20;
/// Time until the device serves again above which the processes' logs are reported.
const SLOW: Duration = Duration::from_secs(2);
/// Longest pause between two actions, in milliseconds.
const PAUSE_MS: u64 = 150;
/// Shortest time between a kill of the device and its restart.
const DEAD_MIN: Duration = Duration::from_millis(20);

/// The kills, and the service that clients got meanwhile.
#[derive(Debug, Default)]
struct Kills {
    /// Number of kills, by process.
    count: BTreeMap<&'static str, u32>,
    /// Number of SETs that were acknowledged while no process of the device lived.
    dead_sets: u64,
    /// Number of periods in which no process of the device ran, and number of such periods with an acknowledged SET.
    deaths: u32,
    deaths_served: u32,
    /// Longest time from the device's start until it served again.
    back_max: Duration,
}

fn sets(groups: &[Shared]) -> u64 {
    groups.iter().map(Shared::acknowledged_sets).sum()
}

/// Returns the number of operations that the database answered. The database can answer only while the device's process
/// runs.
fn executed(groups: &[Shared]) -> u64 {
    groups.iter().map(Shared::acknowledged).sum::<u64>() - sets(groups)
}

impl Kills {
    fn kill(&mut self, world: &mut World, name: &'static str) {
        world.kill(name);
        *self.count.entry(name).or_default() += 1;
    }

    /// Kills the device, and at another moment within the same second also another process. The other process changes
    /// from turn to turn.
    fn turn(
        &mut self,
        world: &mut World,
        groups: &[Shared],
        number: u32,
        random: &mut fastrand::Rng,
    ) {
        let mut pause = |most| std::thread::sleep(Duration::from_millis(random.u64(..most)));
        let other = ["", "server", "", "redis", "device", "", "front"];
        let other = other[usize::try_from(number).unwrap() % other.len()];
        let restarted = !matches!(other, "" | "device");
        self.kill(world, "device");
        // An answer after this moment cannot come from the killed process.
        std::thread::sleep(Duration::from_millis(2));
        let before = sets(groups);
        std::thread::sleep(DEAD_MIN);
        pause(PAUSE_MS);
        if restarted {
            self.kill(world, other);
            pause(PAUSE_MS);
        }
        let more = sets(groups) - before;
        self.dead_sets += more;
        self.deaths += 1;
        self.deaths_served += u32::from(more > 0);
        world.process("device").relaunch().unwrap();
        pause(PAUSE_MS);
        if other == "device" {
            // The device is also killed while it takes over the kernel's state, or shortly after.
            self.kill(world, "device");
            world.process("device").relaunch().unwrap();
        }
        if restarted {
            world.restart(other);
        }
        world.wait_ready("device");
        if world.is_in_kernel() {
            took_over(world);
        }
        let (ready, before) = (Instant::now(), executed(groups));
        eventually("the device is back in service", READY_MAX, || {
            executed(groups) >= before + BACK
        });
        let took = ready.elapsed();
        self.back_max = self.back_max.max(took);
        if took >= SLOW {
            println!("turn {number} ({other}): back in service only after {took:?}");
            for name in ["device", "server", "front"] {
                println!("--- {name}:\n{}", world.process(name).stderr());
            }
        }
    }
}

struct StopOnDrop<'a>(&'a [Shared]);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(Shared::stop);
    }
}

/// Runs all clients while the device is killed every `every` for `seconds`. Then reads all keys.
fn history(world: &mut World, seconds: u64, every: Duration) -> (Vec<Record>, Kills) {
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let front = world.start_front();
    let groups: Vec<Shared> = (0..GROUPS)
        .map(|number| Shared::group(&[front], number, CONTENTION))
        .collect();
    let mut kills = Kills::default();
    let network = world.network();
    let lived = std::panic::catch_unwind(AssertUnwindSafe(|| {
        std::thread::scope(|scope| {
            let stop = StopOnDrop(&groups);
            for (number, group) in (0..).zip(&groups) {
                for index in 0..GROUP_CLIENTS {
                    let network = &network;
                    scope.spawn(move || {
                        network.enter("client1").unwrap();
                        // Each value begins with the seed, so that no two clients write equal values.
                        let seed = seed
                            .wrapping_mul(1_000)
                            .wrapping_add(number * GROUP_CLIENTS + index);
                        if index == 0 {
                            histories::write(group, seed, WRITE_PAUSE);
                        } else {
                            histories::work(group, seed);
                        }
                    });
                }
            }
            let load = Load {
                seconds,
                clients: WRITERS,
                value_bytes: 0,
                rate: Some(WRITERS_RATE),
                every,
            };
            world.checked(load, |world, number| {
                kills.turn(world, &groups, number, &mut random);
            });
            drop(stop);
        });
    }));
    let mut records: Vec<Record> = groups.into_iter().flat_map(Shared::into_records).collect();
    let read = lived.map(|()| {
        // The first read goes through the front. The value in the front's answer may be only in the log, so the test
        // waits until the database has it.
        world
            .inside("client1", || {
                read_all(&mut records, front).and_then(|()| drained(front))
            })
            .and_then(|()| {
                let redis = world.redis_address();
                world.inside("server", || read_all(&mut records, redis))
            })
    });
    records.sort_by_key(|record| record.return_ns);
    let path = world.scratch().disk().join("history.jsonl");
    write(&records, &path);
    if !matches!(read, Ok(Ok(()))) {
        println!("kept: {}", path.display());
    }
    read.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        .expect("all is read in the end");
    (records, kills)
}

fn write(records: &[Record], path: &std::path::Path) {
    let mut file = HistoryFile::create(path).unwrap();
    for record in records {
        file.write(record).unwrap();
    }
    file.finish().unwrap();
}

fn judged(records: &[Record]) -> Report {
    let operations = pmnet_history::operations(records).unwrap();
    check_history(&operations, &Limits::default())
}

/// Returns the error texts of refused operations, with their numbers. The checker assumes that refused operations had
/// no effect.
fn refusals(records: &[Record]) -> BTreeMap<&str, u32> {
    let mut reasons = BTreeMap::new();
    for record in records {
        if record.outcome == Outcome::Failed {
            let reason = record.reply.as_deref().unwrap_or_default();
            *reasons.entry(reason).or_default() += 1;
        }
    }
    reasons
}

/// Runs the clients, and checks their history.
fn linearizable(plan: Plan, seconds: u64, every: Duration) -> Option<(Vec<Record>, Kills)> {
    let (place, direct) = (plan.place, plan.direct.unwrap_or("in the kernel"));
    let mut world = World::start(plan)?;
    let (records, kills) = history(&mut world, seconds, every);
    let begun = Instant::now();
    let report = judged(&records);
    let count = |outcome| {
        let those = records.iter().filter(|record| record.outcome == outcome);
        those.count()
    };
    println!(
        "{place:?}, {direct}, {} clients, {seconds} s: {report}; {} acknowledged, {} refused, {} unknown; kills {:?}; \
         {} SETs acknowledged while no process of the device lived (in {} of {} times); back in service \
         after {:?} at most; decided in {:?}",
        u64::from(GROUPS) * GROUP_CLIENTS,
        count(Outcome::Ok),
        count(Outcome::Failed),
        count(Outcome::Unknown),
        kills.count,
        kills.dead_sets,
        kills.deaths_served,
        kills.deaths,
        kills.back_max,
        begun.elapsed(),
    );
    for (reason, times) in refusals(&records) {
        println!("refused {times} times: {reason}");
    }
    let kept = world.scratch().disk().join("history.jsonl");
    // An undecided history does not pass.
    assert!(
        report.is_linearizable(),
        "check again: pmnet-lab check --history {}",
        kept.display()
    );
    assert!(report.keys.len() >= 64, "{} keys", report.keys.len());
    // While the process holds the pipeline, no update is acknowledged. On a slow machine the process may often be
    // killed in this state.
    assert!(
        kills.deaths_served > 0 || !world.is_in_kernel(),
        "{kills:?}"
    );
    Some((records, kills))
}

/// The last two replies about a key are reads: one through the front, one from the database. Changes the first of these
/// reads to an earlier value. Returns `None` if the earlier value is permitted, because an operation has an unknown
/// outcome, or because there was no write.
fn broken(records: &[&Record]) -> Option<Vec<Record>> {
    let known = records
        .iter()
        .all(|record| record.outcome != Outcome::Unknown);
    let mut records: Vec<Record> = records.iter().map(|record| (*record).clone()).collect();
    let reads: Vec<usize> = (0..records.len())
        .filter(|at| records[*at].op == Op::Get && records[*at].outcome == Outcome::Ok)
        .collect();
    let [.., through_front, from_database] = reads[..] else {
        return None;
    };
    let last = records[from_database].reply.clone()?;
    assert_eq!(records[through_front].reply.as_ref(), Some(&last));
    let before = if records[0].key.starts_with('c') {
        (last.parse::<i64>().unwrap() - 1).to_string()
    } else {
        let mut written = records.iter().filter(|record| record.op == Op::Set);
        written.find(|record| record.value != last)?.value.clone()
    };
    records[through_front].reply = Some(before);
    known.then_some(records)
}

/// For each key, makes one reply in its history wrong, and checks that the history of this key is no longer
/// linearizable. Returns the number of keys.
fn every_wrong_reply_is_noticed(records: &[Record]) -> usize {
    let mut keys: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        // Keys of locks are left out: locks are taken and released, so an earlier reply may have been right at any
        // time.
        if !record.key.starts_with('l') {
            keys.entry(&record.key).or_default().push(record);
        }
    }
    let broken = keys.values().filter_map(|records| broken(records));
    let mut count = 0;
    for records in broken.take(BROKEN_MAX) {
        let report = judged(&records);
        assert_eq!(report.not_linearizable(), 1, "{report}");
        count += 1;
    }
    println!("{count} keys with one wrong reply each: all noticed");
    count
}

#[test]
fn a_few_seconds_of_kills_are_linearizable() {
    for place in [Place::Nic, Place::Switch] {
        let every = Duration::from_millis(700);
        let Some((records, kills)) = linearizable(Plan::new(place), 4, every) else {
            return;
        };
        assert!(kills.count["device"] >= 2, "{kills:?}");
        assert!(every_wrong_reply_is_noticed(&records) >= 10);
    }
}

/// Returns the plan of a device that bypasses the kernel's network stack, and therefore does not acknowledge while its
/// process is dead.
fn past_the_stack(media: &'static str) -> Plan {
    Plan {
        direct: Some(media),
        ..Plan::new(Place::Nic)
    }
}

#[test]
fn a_few_seconds_of_kills_past_the_stack_are_linearizable() {
    for media in ["dram", "file"] {
        let every = Duration::from_millis(700);
        let Some((records, kills)) = linearizable(past_the_stack(media), 4, every) else {
            return;
        };
        assert!(kills.count["device"] >= 2, "{kills:?}");
        assert!(every_wrong_reply_is_noticed(&records) >= 5);
    }
}

/// The long form of this test, which `make kernel` runs.
fn a_minute(plan: Plan) {
    let Some((records, kills)) = linearizable(plan, 60, Duration::from_secs(1)) else {
        return;
    };
    assert!(kills.count["device"] >= 20, "{kills:?}");
    for name in ["server", "redis", "front"] {
        assert!(kills.count[name] >= 2, "{kills:?}");
    }
    assert!(every_wrong_reply_is_noticed(&records) >= 100);
}

#[test]
#[ignore = "a minute: make kernel"]
fn a_minute_of_kills_is_linearizable() {
    a_minute(Plan::new(Place::Nic));
}

#[test]
#[ignore = "a minute: make kernel"]
fn a_minute_of_kills_in_a_switch_is_linearizable() {
    a_minute(Plan::new(Place::Switch));
}

#[test]
#[ignore = "a minute: make kernel"]
fn a_minute_of_kills_with_a_server_that_reads_the_log_is_linearizable() {
    let mut plan = Plan::new(Place::Nic);
    plan.reads_log = true;
    a_minute(plan);
}

#[test]
#[ignore = "a minute: make kernel"]
fn a_minute_of_kills_past_the_stack_is_linearizable() {
    a_minute(past_the_stack("dram"));
}

#[test]
#[ignore = "a minute: make kernel"]
fn a_minute_of_kills_past_the_stack_on_a_file_is_linearizable() {
    a_minute(past_the_stack("file"));
}
