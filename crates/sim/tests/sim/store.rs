//! The simulated store behaves as described. After a failure the store has both the effect of a command and its record,
//! or none of the two. A command of an old connection has no effect after the next load.

use bytes::Bytes;
use pmnet_proto::Time;
use pmnet_server::{Request, Store};
use pmnet_sim::Place;
use pmnet_sim::store::{Act, Operation, Reply, SimStore, StoreConfig};

const RECORD: &[u8] = b"reply/12345678";
const PREFIX: &[u8] = b"12345678";
/// Number of calls after which every command of an abandoned connection was executed.
const CALLS: usize = 30;

fn store(seed: u64, broken: Option<Place>) -> SimStore {
    let config = StoreConfig {
        trouble: 2,
        steps: true,
        wait: seed.is_multiple_of(2),
        ..StoreConfig::default()
    };
    let store = SimStore::new(seed, config);
    store.set_broken(broken);
    store
}

fn load(store: &mut SimStore) {
    let loaded = (0..1000).any(|_| store.load().is_ok());
    assert!(loaded, "it fails every other time, not always");
}

/// The result of a request: its reply, whether it had an effect, and the contents of its record.
fn request(seed: u64, act: Act, broken: Option<Place>) -> (Option<Reply>, u64, Option<Reply>) {
    let world = store(seed, broken);
    let mut process = world.handle();
    load(&mut process);
    let operation = Operation { act, key: 1, id: 7 };
    let record = (RECORD.to_vec(), Bytes::from_static(PREFIX));
    let request = Request {
        source: pmnet_server::Source::default(),
        payload: operation.payload(0),
        record: Some(record),
    };
    let mut replies = Vec::new();
    let done = process.execute(&[request], &mut replies);
    assert_eq!(done.is_ok(), replies.len() == 1);
    load(&mut process);
    let look = || {
        let story = world.story();
        let delivered = story.delivered.get(&7).copied().unwrap_or(0);
        delivered
            + story
                .lists
                .values()
                .map(|list| list.len() as u64)
                .sum::<u64>()
    };
    let effects = look();
    world.calm();
    for _ in 0..CALLS {
        process.load().expect("no trouble any more");
        if broken.is_none() {
            assert_eq!(look(), effects, "seed {seed}: something came behind a load");
        }
    }
    let records = process.load().expect("no trouble any more");
    let record = records.into_iter().find(|(key, _)| key == RECORD);
    let said = record.map(|(_, value)| Reply::read(&value[PREFIX.len()..]).expect("a reply"));
    let reply = replies.first().and_then(|reply| Reply::read(reply));
    (reply, look(), said)
}

#[test]
fn an_effect_has_its_record_and_a_record_its_reply() {
    let (mut unsure, mut refused, mut nothing, mut lost) = (0, 0, 0, 0);
    for seed in 0..600 {
        for act in [Act::AppendRead, Act::Publish] {
            let (reply, effects, said) = request(seed, act, None);
            assert!(effects <= 1, "seed {seed}");
            match &said {
                None => assert_eq!((reply.clone(), effects), (None, 0), "seed {seed}"),
                Some(Reply::Refused) => assert_eq!(effects, 0, "seed {seed}"),
                Some(_) => assert_eq!(effects, 1, "seed {seed}"),
            }
            if reply.is_some() {
                assert_eq!(
                    reply, said,
                    "seed {seed}: what was said is what is recorded"
                );
            }
            unsure += u32::from(said == Some(Reply::Unsure));
            refused += u32::from(said == Some(Reply::Refused));
            nothing += u32::from(said.is_none());
            lost += u32::from(reply.is_none() && said.is_some());
        }
    }
    assert!(unsure > 50 && refused > 20 && nothing > 50 && lost > 50);
}

/// If the record is written last, and this write fails, there is an effect without a record.
#[test]
fn without_its_record_first_an_effect_leaves_no_trace() {
    let count = |act| {
        let lone = |seed: &u64| {
            let (_, effects, said) = request(*seed, act, Some(Place::RecordFirst));
            effects > 0 && said.is_none()
        };
        (0..600).filter(lone).count()
    };
    // Redis does not refuse a script for lack of memory after the script's first write.
    assert!(count(Act::AppendRead) > 10);
    assert!(count(Act::Publish) > count(Act::AppendRead));
}

/// After a promotion the new master has every write for which the server got a reply. On a connection to the old master
/// the server gets no such reply any more.
#[test]
fn a_promoted_replica_has_what_was_reported() {
    for seed in 0..300 {
        let world = store(2 * seed, None);
        let mut process = world.handle();
        load(&mut process);
        let mut reported = Vec::new();
        for id in 0..20 {
            let operation = Operation {
                act: Act::AppendRead,
                key: 1,
                id,
            };
            let request = Request {
                source: pmnet_server::Source::default(),
                payload: operation.payload(0),
                record: Some((RECORD.to_vec(), Bytes::from_static(PREFIX))),
            };
            let mut replies = Vec::new();
            let done = process.execute(&[request], &mut replies);
            let said = replies.first().and_then(|reply| Reply::read(reply));
            if matches!(said, Some(Reply::List(_))) {
                reported.push(id);
            }
            if done.is_err() {
                load(&mut process);
            }
            if id == 10 {
                world.promote(seed.is_multiple_of(2), false);
            }
        }
        let list = world.story().lists.remove(&1).unwrap_or_default();
        assert!(
            reported.iter().all(|id| list.contains(id)),
            "seed {}",
            2 * seed
        );
        assert!(
            list.is_sorted_by(|a, b| a < b),
            "seed {}: once, in order",
            2 * seed
        );
    }
}

/// Code that never ends blocks all connections until a client kills it.
#[test]
fn code_that_never_ends_keeps_everybody_waiting() {
    let world = SimStore::new(
        1,
        StoreConfig {
            steps: true,
            ..StoreConfig::default()
        },
    );
    let mut process = world.handle();
    process.load().expect("no trouble");
    let hang = Operation {
        act: Act::Hang,
        key: 1,
        id: 1,
    };
    let request = Request {
        source: pmnet_server::Source::default(),
        payload: hang.payload(0),
        record: None,
    };
    assert!(process.execute(&[request], &mut Vec::new()).is_err());
    assert!(process.load().is_err());
    let read = Operation {
        act: Act::Read,
        key: 1,
        id: 2,
    };
    assert_eq!(world.direct(0, read, Time(1)), (None, false));
    world.set_now(Time(1_000_000_000));
    assert!(process.load().is_ok());
}
