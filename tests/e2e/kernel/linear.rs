//! Somebody is killed every second while 64 clients get into each other's way: the history of all of
//! them, through a front and a device in the kernel or past its stack, must be linearizable (`docs/internals/histories.md`).

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

/// Groups of clients; nobody outside of a group uses its keys.
const GROUPS: u32 = 16;
/// Clients of a group: so many operations on a key are under way at a time, and those of unknown
/// outcome. With more the search for an order grows beyond its bound.
const GROUP_CLIENTS: u64 = 4;
/// One of them only writes, with a pause after each: who reads, waits as long as the device is dead.
const WRITE_PAUSE: Duration = Duration::from_millis(5);
const CONTENTION: Contention = Contention {
    slots: [2, 1, 1],
    key_operations: 240,
    operations_max: 50_000,
    call_max: Duration::from_secs(2),
};
/// Most keys that are judged once more with one wrong reply.
const BROKEN_MAX: usize = 300;
/// Beside them, straight to the device, for the other checker: so many clients, operations a second.
const WRITERS: usize = 8;
const WRITERS_RATE: f64 = 400.0;
/// The database must have executed so many commands after a restart: the device is back in service.
const BACK: u64 = 20;
/// A return to service that takes longer is told about, with what the processes said.
const SLOW: Duration = Duration::from_secs(2);
/// The longest pause between two things that are done, in milliseconds.
const PAUSE_MS: u64 = 150;
/// The shortest time for which the device is dead.
const DEAD_MIN: Duration = Duration::from_millis(20);

/// What was done, and what the clients got of it.
#[derive(Debug, Default)]
struct Kills {
    /// By process.
    count: BTreeMap<&'static str, u32>,
    /// SETs acknowledged while no process of the device lived.
    dead_sets: u64,
    /// Times that none lived, and those of them with at least one of these.
    deaths: u32,
    deaths_served: u32,
    /// The longest time from the device's start until it was back in service.
    back_max: Duration,
}

fn sets(groups: &[Shared]) -> u64 {
    groups.iter().map(Shared::acknowledged_sets).sum()
}

/// What was answered by the database: with the device's process in between.
fn executed(groups: &[Shared]) -> u64 {
    groups.iter().map(Shared::acknowledged).sum::<u64>() - sets(groups)
}

impl Kills {
    fn kill(&mut self, world: &mut World, name: &'static str) {
        world.kill(name);
        *self.count.entry(name).or_default() += 1;
    }

    /// The device is killed, and by turns somebody else, at another moment of the same second.
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
        // What comes now was not on its way from the process.
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
            // Also while it takes over, or just after.
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

/// All clients work while the device is killed so often for so long; then everything is read.
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
                        // Values begin with it: no two clients write the same.
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
        // Through the front first. What it answers may be in the log only, so that is waited for.
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

/// What refused operations were told, and how often: by the checker they must have had no effect.
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

/// Runs it and judges it.
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
    // Undecided is not a pass.
    assert!(
        report.is_linearizable(),
        "check again: pmnet-lab check --history {}",
        kept.display()
    );
    assert!(report.keys.len() >= 64, "{} keys", report.keys.len());
    // While it holds the pipeline, nothing is acknowledged: on a slow machine it may often be killed then.
    assert!(
        kills.deaths_served > 0 || !world.is_in_kernel(),
        "{kills:?}"
    );
    Some((records, kills))
}

/// Of a key: its last two replies are reads, through the front and from the database. The first is made
/// to say what was true before. Some keys allow for that: where something is of unknown outcome, or nothing was
/// written. `None` then.
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

/// One wrong reply in the history of a key, and that key is not linearizable. The number of keys.
fn every_wrong_reply_is_noticed(records: &[Record]) -> usize {
    let mut keys: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        // Locks are taken and given back: what they say may have been true at any time.
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

/// Past the kernel's stack nobody acknowledges while the process is dead.
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

/// The long ones: `make kernel`.
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
