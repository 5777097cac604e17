//! Commands that are not idempotent must take effect exactly once, and in real-time order. Meanwhile datagrams are
//! lost, repeated and reordered on every hop, and front, devices and server are killed (`docs/spec/protocol.md` §2
//! rules 6 and 8).

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Cluster, Medium, Role, StoreKind, Topology, Trouble, settle};
use pmnet_lab::resp::Reply;

use crate::common;
use crate::support::{Answer, Caller, kill_for, ok, seed};

const WORKERS: u64 = 6;
const LOAD: Duration = Duration::from_secs(15);
const KILL_INTERVAL: Duration = Duration::from_millis(250);
/// The roles that are killed; the chain has two devices.
const VICTIMS: [Role; 4] = [Role::Device(0), Role::Device(1), Role::Server, Role::Front];
/// Script that releases a lock if the caller still holds it.
const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                       return redis.call('del', KEYS[1]) else return 0 end";

fn troubled(name: &str, seed: u64) -> Option<Cluster> {
    let mut topology = Topology::new(StoreKind::Redis, 2, Medium::Dram);
    topology.trouble = Some(Trouble {
        drop: 0.02,
        repeat: 0.03,
        hold: 0.03,
        hold_max: Duration::from_millis(15),
        seed,
    });
    common::start(name, topology)
}

/// Runs `work` in [`WORKERS`] threads while processes are killed. Then waits until the database has applied all
/// acknowledged updates. Returns the results of the workers.
fn under_fire<T: Send>(
    cluster: &mut Cluster,
    seed: u64,
    work: impl Fn(u64, Caller, &AtomicBool) -> T + Sync,
) -> Vec<T> {
    let endpoint = cluster.endpoint().unwrap();
    let ended = AtomicBool::new(false);
    let (results, kills) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (work, ended) = (&work, &ended);
                scope.spawn(move || work(worker, Caller::new(endpoint), ended))
            })
            .collect();
        let kills = kill_for(cluster, &VICTIMS, LOAD, KILL_INTERVAL, seed, &ended);
        let results: Vec<_> = threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect();
        (results, kills)
    });
    let troubled = cluster.troubled();
    println!("{kills} kills; datagrams dropped, doubled, held back: {troubled:?}");
    assert!(kills >= 20, "only {kills} kills");
    assert!(troubled.iter().all(|count| *count > 50), "{troubled:?}");
    settle(cluster).unwrap();
    results
}

/// An acknowledged operation on shared data: its times, and the position that its reply gave.
struct Taken {
    invoked: Instant,
    returned: Instant,
    position: i64,
}

/// Checks the positions. Positions must be unique. If an operation began after the end of another one, the position of
/// the operation must be later.
fn check_positions(what: &str, mut taken: Vec<Taken>) {
    taken.sort_by_key(|one| one.position);
    let mut latest_invocation = None;
    let mut last = 0;
    for one in &taken {
        assert!(one.position > last, "{what}: {} twice", one.position);
        assert!(
            latest_invocation.is_none_or(|invoked| one.returned >= invoked),
            "{what}: {} was given before an operation that began later",
            one.position
        );
        last = one.position;
        latest_invocation = latest_invocation.max(Some(one.invoked));
    }
}

#[test]
fn shared_counter_and_list() {
    let seed = seed();
    let Some(mut cluster) = troubled("once-shared", seed) else {
        return;
    };
    #[derive(Default)]
    struct Seen {
        counts: Vec<Taken>,
        lengths: Vec<Taken>,
        pushed: Vec<String>,
        maybe_pushed: Vec<String>,
        maybe_counted: i64,
    }
    let results = under_fire(&mut cluster, seed, |worker, mut caller, ended| {
        let mut seen = Seen::default();
        let mut number = 0;
        while !ended.load(Ordering::Acquire) {
            number += 1;
            let invoked = Instant::now();
            match caller.call(&["INCR", "counter"]) {
                Answer::Reply(Reply::Integer(position)) => seen.counts.push(Taken {
                    invoked,
                    returned: Instant::now(),
                    position,
                }),
                Answer::Unknown => seen.maybe_counted += 1,
                Answer::Refused(_) => {}
                other => panic!("INCR: {other:?}"),
            }
            let item = format!("{worker}:{number:08}");
            let invoked = Instant::now();
            match caller.call(&["LPUSH", "list", &item]) {
                Answer::Reply(Reply::Integer(position)) => {
                    seen.lengths.push(Taken {
                        invoked,
                        returned: Instant::now(),
                        position,
                    });
                    seen.pushed.push(item);
                }
                Answer::Unknown => seen.maybe_pushed.push(item),
                Answer::Refused(_) => {}
                other => panic!("LPUSH: {other:?}"),
            }
        }
        seen
    });
    let mut all = Seen::default();
    for seen in results {
        all.counts.extend(seen.counts);
        all.lengths.extend(seen.lengths);
        all.pushed.extend(seen.pushed);
        all.maybe_pushed.extend(seen.maybe_pushed);
        all.maybe_counted += seen.maybe_counted;
    }
    let counted = i64::try_from(all.counts.len()).unwrap();
    let mut direct = Caller::new(cluster.redis().unwrap());
    let value = direct.read(&["GET", "counter"]).text().unwrap();
    let value: i64 = value.parse().unwrap();
    println!(
        "INCR: {counted} acknowledged, {} unknown, counter {value}; LPUSH: {} acknowledged, {} unknown",
        all.maybe_counted,
        all.pushed.len(),
        all.maybe_pushed.len()
    );
    assert!(counted > 10, "hardly any load: {counted}");
    assert!(
        (counted..=counted + all.maybe_counted).contains(&value),
        "counter {value}, {counted} acknowledged, {} unknown",
        all.maybe_counted
    );
    check_positions("INCR", all.counts);
    check_positions("LPUSH", all.lengths);

    let Reply::Array(items) = direct.read(&["LRANGE", "list", "0", "-1"]) else {
        panic!("no list");
    };
    let mut seen = HashSet::new();
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    // The list has the newest item first, so it is read backwards.
    for item in items.iter().rev() {
        let item = item.text().unwrap();
        assert!(seen.insert(item.clone()), "{item} was pushed twice");
        let worker = item[..1].to_owned();
        if let Some(before) = last.insert(worker, item.clone()) {
            assert!(before < item, "{item} after {before}");
        }
    }
    for item in &all.pushed {
        assert!(seen.remove(item), "{item} is lost");
    }
    for item in &all.maybe_pushed {
        seen.remove(item);
    }
    assert!(seen.is_empty(), "nobody pushed {seen:?}");
}

#[test]
fn locks_exclude_and_are_released_by_script() {
    let seed = seed();
    let Some(mut cluster) = troubled("once-locks", seed) else {
        return;
    };
    // The worker that holds the lock; 0: no worker holds it. The workers are threads of this process, so this value is
    // reliable.
    let inside = AtomicU64::new(0);
    // Tokens of attempts and releases whose outcome is unknown. Any worker may release the locks with these tokens.
    let abandoned = Mutex::new(HashSet::new());
    // The generation of the guarded key, and the value that the key must have. A write with unknown outcome may take
    // effect late, so the workers continue with another key.
    let guarded = Mutex::new((0_u64, 0_u64));
    let finished: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
    let rounds = under_fire(&mut cluster, seed, |worker, mut caller, ended| {
        let (mut rounds, mut number) = (0_u64, 0_u64);
        while !ended.load(Ordering::Acquire) {
            number += 1;
            let token = format!("{worker}:{number}");
            match caller.call(&["SET", "lock", &token, "NX"]) {
                Answer::Reply(reply) if reply == ok() => {}
                Answer::Reply(Reply::Nil) => {
                    let holder = caller.read(&["GET", "lock"]).text();
                    if let Some(holder) = holder
                        && abandoned.lock().unwrap().contains(&holder)
                    {
                        caller.call(&["EVAL", RELEASE, "1", "lock", &holder]);
                    }
                    continue;
                }
                Answer::Unknown => {
                    abandoned.lock().unwrap().insert(token);
                    continue;
                }
                Answer::Refused(_) => continue,
                other => panic!("SET NX: {other:?}"),
            }
            let before = inside.swap(worker + 1, Ordering::AcqRel);
            assert_eq!(before, 0, "worker {worker} and {before} - 1 have the lock");
            // A worker must not be able to release a lock that another worker holds.
            let foreign = caller.call(&["EVAL", RELEASE, "1", "lock", "somebody else"]);
            assert!(
                !matches!(foreign, Answer::Reply(Reply::Integer(1))),
                "released with a wrong token"
            );
            let (generation, expected) = *guarded.lock().unwrap();
            let key = format!("guarded:{generation}");
            // This worker must read the value that the previous holder wrote, even if that write was acknowledged
            // early, because the previous unlock and this lock came after the write.
            let found = caller.read(&["GET", &key]).text();
            let found = found.map_or(0, |text| text.parse::<u64>().unwrap());
            assert_eq!(found, expected, "{key} read inside the lock");
            let next = expected + 1;
            *guarded.lock().unwrap() = match caller.call(&["SET", &key, &next.to_string()]) {
                Answer::Reply(reply) if reply == ok() => (generation, next),
                Answer::Unknown => {
                    finished.lock().unwrap().push((generation, expected));
                    (generation + 1, 0)
                }
                Answer::Refused(_) => (generation, expected),
                other => panic!("SET: {other:?}"),
            };
            rounds += 1;
            inside.store(0, Ordering::Release);
            match caller.call(&["EVAL", RELEASE, "1", "lock", &token]) {
                Answer::Reply(Reply::Integer(1)) => {}
                Answer::Unknown | Answer::Refused(_) => {
                    abandoned.lock().unwrap().insert(token);
                }
                other => panic!("the holder's release: {other:?}"),
            }
        }
        rounds
    });
    let rounds: u64 = rounds.iter().sum();
    println!(
        "{rounds} times inside, {} tokens abandoned",
        abandoned.lock().unwrap().len()
    );
    assert!(rounds > 10, "hardly anybody got the lock: {rounds}");
    let mut direct = Caller::new(cluster.redis().unwrap());
    let mut value = |generation: u64| {
        let text = direct
            .read(&["GET", &format!("guarded:{generation}")])
            .text();
        text.map_or(0, |text| text.parse::<u64>().unwrap())
    };
    for (generation, acknowledged) in finished.into_inner().unwrap() {
        let found = value(generation);
        assert!(
            (acknowledged..=acknowledged + 1).contains(&found),
            "guarded:{generation} holds {found}, {acknowledged} acknowledged"
        );
    }
    let (generation, acknowledged) = guarded.into_inner().unwrap();
    assert_eq!(value(generation), acknowledged);
}

#[test]
fn transactions_move_money_whole() {
    const ACCOUNTS: u64 = 8;
    const START: i64 = 1_000;
    let seed = seed();
    let Some(mut cluster) = troubled("once-money", seed) else {
        return;
    };
    let names: Vec<String> = (0..ACCOUNTS).map(|n| format!("account:{n}")).collect();
    let mut caller = Caller::new(cluster.endpoint().unwrap());
    for name in &names {
        assert_eq!(caller.call(&["SET", name, "1000"]), Answer::Reply(ok()));
    }
    let total = START * i64::try_from(ACCOUNTS).unwrap();
    let balances = |caller: &mut Caller| -> Vec<i64> {
        let mut ask = vec!["MGET".to_owned()];
        ask.extend(names.iter().cloned());
        let Reply::Array(values) = caller.read(&ask) else {
            panic!("MGET");
        };
        values
            .iter()
            .map(|value| value.text().unwrap().parse().unwrap())
            .collect()
    };
    let results = under_fire(&mut cluster, seed, |worker, mut caller, ended| {
        let mut random = fastrand::Rng::with_seed(seed + worker);
        let (mut done, mut open) = (Vec::new(), Vec::new());
        let mut number = 0;
        while !ended.load(Ordering::Acquire) {
            if worker == 0 {
                // A reader must never see one half of a transfer.
                assert_eq!(balances(&mut caller).iter().sum::<i64>(), total);
                continue;
            }
            number += 1;
            let (from, to) = (random.u64(..ACCOUNTS), random.u64(..ACCOUNTS));
            let amount = random.u64(1..10).to_string();
            let entry = format!("{worker}:{number}:{from}:{to}:{amount}");
            let answers = caller.exchange(&[
                &["MULTI"][..],
                &["DECRBY", &names[usize::try_from(from).unwrap()], &amount],
                &["INCRBY", &names[usize::try_from(to).unwrap()], &amount],
                &["RPUSH", "ledger", &entry],
                &["EXEC"],
            ]);
            match answers.last() {
                Some(Answer::Reply(Reply::Array(replies))) => {
                    assert_eq!(replies.len(), 3, "{replies:?}");
                    done.push(entry);
                }
                Some(Answer::Unknown) => open.push(entry),
                Some(Answer::Refused(_)) => {}
                other => panic!("EXEC: {other:?}"),
            }
        }
        (done, open)
    });
    let mut direct = Caller::new(cluster.redis().unwrap());
    let found = balances(&mut direct);
    let Reply::Array(ledger) = direct.read(&["LRANGE", "ledger", "0", "-1"]) else {
        panic!("no ledger");
    };
    let mut expected = vec![START; found.len()];
    let mut seen = HashSet::new();
    for entry in &ledger {
        let entry = entry.text().unwrap();
        let fields: Vec<usize> = entry.split(':').map(|f| f.parse().unwrap()).collect();
        let amount = i64::try_from(fields[4]).unwrap();
        expected[fields[2]] -= amount;
        expected[fields[3]] += amount;
        assert!(seen.insert(entry.clone()), "{entry} twice");
    }
    assert_eq!(found, expected, "balances and ledger");
    let (mut done, mut open) = (0, 0);
    for (transfers, unknown) in results {
        done += transfers.len();
        open += unknown.len();
        for entry in transfers {
            assert!(seen.remove(&entry), "{entry} is lost");
        }
        for entry in unknown {
            seen.remove(&entry);
        }
    }
    println!("EXEC: {done} acknowledged, {open} unknown");
    assert!(done > 20, "hardly any transfers: {done}");
    assert!(seen.is_empty(), "nobody asked for {seen:?}");
}
