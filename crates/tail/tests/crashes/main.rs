//! A store device crashes in one of its persists, while a client continues. Afterwards every acknowledged effect must
//! exist exactly once, in order. The tests run the loop, nodes and machines of the product, with a network and a medium
//! in memory.

mod medium;
mod network;

use bytes::Bytes;
use medium::{Durable, Forgetful};
use network::{Call, Network};
use pmnet_device::{DeviceConfig, DeviceError, DeviceNode, Served, serve};
use pmnet_packet_store::{Geometry, Identity, Shared, format_shared};
use pmnet_proto::{Random, Time};
use pmnet_server::{Server, ServerConfig, ServerNode};
use pmnet_store::RegionStore;
use pmnet_tail::{SERVER, StoreDevice};
use pmnet_wire::command::{key_hash, single};

const SHARD: u32 = 0;
const DEVICE: u32 = 9;
const LOG_FRAMES: u32 = 48;
/// Number of keys with string values.
const KEYS: usize = 12;

fn image() -> Vec<u8> {
    let geometry = Geometry::shared(320, 2048, 64).unwrap();
    let durable = Durable::new(vec![0; geometry.image_bytes()]);
    let identity = Identity {
        uuid: 0x5eed,
        shard: SHARD,
    };
    let log = pmnet_log::Identity {
        log_uuid: 0xfeed,
        device: DEVICE,
        shard: SHARD,
    };
    let mut medium = durable.open(u64::MAX, 0);
    format_shared(&mut medium, &identity, &log, &geometry).unwrap();
    pmnet_log::Media::bytes(&medium).to_vec()
}

fn start(
    medium: Forgetful,
    in_place: bool,
    now: Time,
    seed: u64,
) -> Result<StoreDevice<Forgetful>, String> {
    let shared = Shared::open(medium, SHARD, DEVICE, LOG_FRAMES).map_err(|e| e.to_string())?;
    let mut store = RegionStore::new(shared, "region".into()).unwrap();
    let log = store.region().hand_over();
    let server = Server::new(ServerConfig::new(SHARD), Random::new(seed));
    let config = DeviceConfig::new(DEVICE, SHARD, SERVER);
    let device = DeviceNode::new(config, log, Random::new(seed ^ 7), now);
    Ok(StoreDevice::new(
        device,
        ServerNode::new(server, store),
        in_place,
    ))
}

fn call(arguments: &[&[u8]], bypass: bool) -> Call {
    Call {
        payload: single(arguments),
        hash: key_hash(arguments[1]),
        bypass,
    }
}

fn key(number: usize) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

/// Returns a value whose length is near the limit above which a value stays in its packet buffer.
fn value(at: usize, random: &mut Random) -> Vec<u8> {
    let len = [3, 300, 440, 460, 700, 1000, 1200][usize::try_from(random.next_u64() % 7).unwrap()];
    let mut value = format!("{at}:").into_bytes();
    value.resize(value.len() + len, b'a' + u8::try_from(at % 26).unwrap());
    value
}

/// Returns the calls of a run, and the values that the keys must have at its end.
fn script(length: usize, seed: u64) -> (Vec<Call>, Vec<Option<Vec<u8>>>, u64) {
    let mut random = Random::new(seed);
    let (mut calls, mut strings, mut count) = (Vec::new(), vec![None; KEYS], 0);
    for at in 0..length {
        let number = usize::try_from(random.next_u64()).unwrap() % KEYS;
        let name = key(number);
        match random.next_u64() % 10 {
            0 => {
                calls.push(call(&[b"DEL", &name], false));
                strings[number] = None;
            }
            1 | 2 => {
                calls.push(call(&[b"INCR", b"count"], false));
                count += 1;
            }
            3 => {
                calls.push(call(&[b"INCR", b"count"], true));
                count += 1;
            }
            4 => {
                let value = value(at, &mut random);
                calls.push(call(&[b"APPEND", &name, &value], false));
                let string: &mut Option<Vec<u8>> = &mut strings[number];
                string.get_or_insert_default().extend_from_slice(&value);
            }
            _ => {
                let value = value(at, &mut random);
                calls.push(call(&[b"SET", &name, &value], false));
                strings[number] = Some(value);
            }
        }
    }
    (calls, strings, count)
}

/// A run lasts until all calls have ended. Each of `fuses` is the number of persists after which the device crashes,
/// counted from the previous crash. Returns the number of persists, and the numbers of records that the last process
/// linked and copied.
struct Run {
    in_place: bool,
    fuses: Vec<u64>,
    seed: u64,
}

#[derive(Debug, Default)]
struct Seen {
    crashes: usize,
    persists: u64,
    linked: u64,
    copied: u64,
}

impl Run {
    fn run(&self, image: &[u8], length: usize) -> Seen {
        let (calls, strings, count) = script(length, self.seed);
        let updates = calls.iter().filter(|call| !call.bypass).count();
        let mut network = Network::new(calls, self.in_place, self.seed);
        let durable = Durable::new(image.to_vec());
        let mut seen = Seen::default();
        let mut fuses = self.fuses.iter();
        let mut asked = false;
        loop {
            let fuse = fuses.next().copied().unwrap_or(u64::MAX);
            let medium = durable.open(fuse, self.seed.wrapping_add(fuse));
            let now = pmnet_device::Port::now(&network);
            let node = match start(medium, self.in_place, now, self.seed ^ fuse) {
                Ok(node) => node,
                Err(why) if fuse != u64::MAX => {
                    assert!(why.contains("fail"), "{why}");
                    seen.crashes += 1;
                    continue;
                }
                Err(why) => panic!("{why}"),
            };
            let served = serve(node, &mut network, |node: &StoreDevice<Forgetful>, _| {
                [seen.linked, seen.copied] = node.server().store().counts();
                seen.persists = node.device().log().medium().medium().persists;
            });
            match served {
                Err(DeviceError::Log(_) | DeviceError::Stopped(_)) if fuse != u64::MAX => {
                    seen.crashes += 1;
                    network.crash();
                }
                Err(error) => panic!("{error}"),
                Ok(()) if asked => break,
                Ok(()) => {
                    // After a restart without a crash, the client asks for all values.
                    asked = true;
                    network.crash();
                    assert_eq!(network.committed, updates);
                    network.replies.clear();
                    let mut questions: Vec<_> =
                        (0..KEYS).map(|k| call(&[b"GET", &key(k)], true)).collect();
                    questions.push(call(&[b"GET", b"count"], true));
                    network.script(questions);
                }
            }
        }
        network.replies.sort();
        let replies: Vec<&Bytes> = network.replies.iter().map(|(_, reply)| reply).collect();
        for (number, string) in strings.iter().enumerate() {
            let wanted = string
                .as_ref()
                .map_or(b"$-1\r\n".to_vec(), |string| bulk(string));
            assert!(
                replies[number][..] == wanted,
                "key {number}, fuses {:?}: {} instead of {}",
                self.fuses,
                replies[number].escape_ascii(),
                wanted.escape_ascii()
            );
        }
        let wanted = match count {
            0 => b"$-1\r\n".to_vec(),
            _ => bulk(count.to_string().as_bytes()),
        };
        assert_eq!(replies[KEYS][..], wanted, "fuses {:?}", self.fuses);
        seen
    }
}

fn bulk(string: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", string.len()).as_bytes(), string, b"\r\n"].concat()
}

#[test]
fn without_a_crash_long_strings_stay_where_they_came() {
    let image = image();
    for in_place in [false, true] {
        let (calls, ..) = script(400, 1);
        let long = |call: &&Call| {
            let is = |name: &[u8]| call.payload[12..].starts_with(name);
            !call.bypass && is(b"$3\r\nSET") && call.payload.len() >= 512
        };
        let long = calls.iter().filter(long).count();
        assert!(long > 60, "{long}");
        // The counts must be those of the process that ran all calls.
        let mut network = Network::new(calls, in_place, 1);
        let node = start(
            Durable::new(image.clone()).open(u64::MAX, 1),
            in_place,
            Time(1),
            1,
        );
        let mut linked = 0;
        serve(
            node.unwrap(),
            &mut network,
            |node: &StoreDevice<Forgetful>, _| {
                [linked, _] = node.server().store().counts();
            },
        )
        .unwrap();
        assert!(network.is_done());
        // The next process applies the updates that were not applied when the last call was acknowledged.
        let linked = usize::try_from(linked).unwrap();
        assert!(linked <= long && linked + 40 > long, "{linked} of {long}");
    }
}

/// For each persist of a run: the device crashes in this persist, and soon afterwards once more.
#[test]
fn nothing_acknowledged_is_lost_or_done_twice_whichever_persist_is_the_last() {
    let image = image();
    for in_place in [false, true] {
        let mut crashes = 0;
        for fuse in 0..160 {
            let run = Run {
                in_place,
                fuses: vec![fuse, fuse * 7 % 23],
                seed: fuse,
            };
            crashes += run.run(&image, 90).crashes;
        }
        println!("in place {in_place}: {crashes} crashes");
        assert!(crashes > 200, "{crashes}");
    }
}

/// Many rounds over a few keys: the log and the store wrap around, and the store is compacted.
#[test]
fn long_histories_with_crashes_here_and_there() {
    let image = image();
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let fuses = (0..8).map(|_| random.next_u64() % 300).collect();
        let run = Run {
            in_place: seed % 2 == 1,
            fuses,
            seed,
        };
        let seen = run.run(&image, 1500);
        assert!(seen.crashes >= 4, "{seen:?}");
    }
}

/// The client writes more distinct keys than fit, deletes keys, and writes again. A crash comes in between. Every write
/// that was answered with OK must exist, no refused write may exist, and every call must end.
fn filled(image: &[u8], in_place: bool, fuse: u64) -> [usize; 3] {
    const WRITES: usize = 700;
    const DELETES: usize = 60;
    let value = [b'v'; 1000];
    let names: Vec<String> = (0..WRITES).map(|n| format!("key:{n}")).collect();
    let set = |name: &String| call(&[b"SET", name.as_bytes(), &value], false);
    let mut calls: Vec<Call> = names.iter().map(set).collect();
    calls.extend(
        names[..DELETES]
            .iter()
            .map(|name| call(&[b"DEL", name.as_bytes()], true)),
    );
    let again: Vec<String> = (0..20).map(|n| format!("again:{n}")).collect();
    calls.extend(again.iter().map(set));
    let mut network = Network::new(calls, in_place, fuse);
    let durable = Durable::new(image.to_vec());
    let mut asked = false;
    for fuse in [fuse, u64::MAX, u64::MAX] {
        let now = pmnet_device::Port::now(&network);
        let medium = durable.open(fuse, fuse);
        let Ok(node) = start(medium, in_place, now, fuse ^ 0x5eed) else {
            continue;
        };
        match serve(node, &mut network, |_: &StoreDevice<Forgetful>, _| {}) {
            Err(DeviceError::Log(_) | DeviceError::Stopped(_)) if fuse != u64::MAX => {
                network.crash()
            }
            Err(error) => panic!("{error}"),
            Ok(()) if asked => break,
            Ok(()) => {
                asked = true;
                network.crash();
                let all = names.iter().chain(&again);
                network.script(
                    all.map(|name| call(&[b"EXISTS", name.as_bytes()], true))
                        .collect(),
                );
            }
        }
    }
    assert!(asked && network.is_done());
    let outcome = |at: usize| &network.outcomes[&network.submitted[at]];
    let questions = WRITES + DELETES + again.len();
    let mut counts = [0; 3];
    for at in (0..WRITES).chain(WRITES + DELETES..questions) {
        let done = match outcome(at) {
            None => {
                counts[0] += 1;
                true
            }
            Some(reply) if reply == "+OK\r\n" => {
                counts[1] += 1;
                true
            }
            Some(reply) => {
                assert!(reply.starts_with(b"-OOM"), "{}", reply.escape_ascii());
                counts[2] += 1;
                false
            }
        };
        let question = match at {
            _ if at < WRITES => questions + at,
            _ => questions + at - DELETES,
        };
        let there = done && at >= DELETES;
        let wanted = format!(":{}\r\n", u8::from(there));
        assert_eq!(
            outcome(question).as_deref(),
            Some(wanted.as_bytes()),
            "{at}, fuse {fuse}"
        );
    }
    for at in WRITES..WRITES + DELETES {
        let deleted = outcome(at).as_deref().expect("it was no update");
        let was_there = outcome(at - WRITES)
            .as_deref()
            .is_none_or(|reply| reply == b"+OK\r\n");
        assert_eq!(deleted, format!(":{}\r\n", u8::from(was_there)).as_bytes());
    }
    counts
}

#[test]
fn filled_to_its_end_nothing_that_was_acknowledged_waits() {
    let image = image();
    for in_place in [false, true] {
        for fuse in (0..8).map(|n| n * 40).chain([u64::MAX]) {
            let [acknowledged, answered, refused] = filled(&image, in_place, fuse);
            let told =
                format!("in place {in_place}, fuse {fuse}: {acknowledged}, {answered}, {refused}");
            assert!(
                acknowledged > 60 && answered > 20 && refused > 100,
                "{told}"
            );
        }
    }
}
