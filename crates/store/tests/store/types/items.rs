//! Changes of memcached's items. The test compares the packet store's own command with the script that a Redis runs,
//! with the same arguments.

use pmnet_wire::command::Protocol;
use pmnet_wire::item::{COMMAND, Change, Item, Mode, SCRIPT, Touch};

use super::random::Random;
use super::sides::{Ours, Side, Theirs};

const CHANGES: usize = 5_000;
/// Times of expiry: never, two times after the end of the test, and a time that has passed.
const TIMES: [u64; 4] = [0, 4_000_000_000_000, 5_000_000_000_000, 1];
const NUMBERS: [&[u8]; 18] = [
    b"0",
    b"1",
    b"9",
    b"10",
    b"99 ",
    b"007",
    b" +5",
    b"-0",
    b"-1",
    b"",
    b"x",
    b"1x",
    b"5\x00x",
    b"9999999999",
    b"10000000000",
    b"18446744073709551615",
    b"18446744073709551616",
    b"000000000000000000000000018446744073709551615",
];

fn data(random: &mut Random) -> Vec<u8> {
    if random.below(6) == 0 {
        return vec![b'd'; random.below(100)];
    }
    random.pick(&NUMBERS).to_vec()
}

/// Returns the arguments of a random change. There are only a few unique numbers to choose from, so that conditions
/// sometimes hold.
fn change(random: &mut Random) -> Vec<Vec<u8>> {
    let some = |random: &mut Random, limit| (random.below(3) == 0).then(|| random.below_u64(limit));
    let flag = |random: &mut Random| random.below(2) == 0;
    let touch = |random: &mut Random| match random.below(3) {
        0 => Touch::Until(random.pick(&TIMES)),
        _ => Touch::Keep,
    };
    // The numbers lie around the value where the lowest byte overflows.
    let unique = |random: &mut Random| 253 + random.below_u64(6);
    let compare = |random: &mut Random| some(random, 6).map(|number| 253 + number);
    let delta = |random: &mut Random| match random.below(3) {
        0 => random.pick(&[u64::MAX, 1 << 63, 9_999_999_999, 10_000_000_000, 0]),
        _ => random.below_u64(100),
    };
    let stored = data(random);
    let change = match random.below(4) {
        0 => Change::Store {
            mode: random.pick(&[Mode::Replace, Mode::Append, Mode::Prepend]),
            compare: compare(random),
            stale: flag(random),
            item: Item::new(7, unique(random), &stored),
            until: random.pick(&TIMES),
            data_max: 150,
        },
        1 => Change::Count {
            up: flag(random),
            delta: delta(random),
            compare: compare(random),
            unique: unique(random),
            initial: some(random, 100).map(|value| (value, random.pick(&TIMES))),
            touch: touch(random),
        },
        2 => Change::Drop {
            compare: compare(random),
            stale: flag(random),
            unique: unique(random),
            touch: touch(random),
        },
        _ => Change::Fetch {
            unique: unique(random),
            vivify: some(random, 4).map(|_| random.pick(&TIMES)),
            touch: touch(random),
            recache: random.pick(&[0, 1, 10_000_000_000]),
        },
    };
    change.arguments()
}

fn words(words: &[&[u8]]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.to_vec()).collect()
}

/// Returns a reply without the remaining time of the item, which differs by milliseconds between the two stores.
fn without_time(reply: &[u8]) -> String {
    let text = reply.escape_ascii().to_string();
    let parts = text
        .split("\\r\\n")
        .map(|part| match part.strip_prefix(':') {
            Some(number) if number.len() > 5 => ":far",
            _ => part,
        });
    parts.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_packet_store_changes_items_as_the_script_for_redis_does() {
    let Some(mut theirs) = Theirs::new() else {
        return;
    };
    let mut ours = Ours::new("packet");
    let mut random = Random::new(1);
    for number in 0..CHANGES {
        let key = random.pick(&[&b"a"[..], b"b"]);
        let (mut here, mut there) = match random.below(8) {
            0 => {
                let stored = match random.below(12) {
                    0 => b"no item".to_vec(),
                    1 => vec![0x14; 20],
                    _ => Item::new(9, 255, &data(&mut random)).stored(),
                };
                let set = words(&[b"SET", key, &stored]);
                (set.clone(), set)
            }
            _ => {
                let change = change(&mut random);
                let mut here = words(&[COMMAND.as_bytes(), key]);
                let mut there = words(&[b"EVAL", SCRIPT.as_bytes(), b"1", key]);
                here.extend(change.clone());
                there.extend(change);
                (here, there)
            }
        };
        let looks = [words(&[b"GET", key]), words(&[b"PTTL", key])];
        let shown = here
            .iter()
            .map(|word| word.escape_ascii().to_string())
            .collect::<Vec<_>>()
            .join(" ");
        let run = |side: &mut dyn Side, command: Vec<Vec<u8>>| {
            let all = [&[command][..], &looks].concat();
            let replies = side.run(Protocol::Resp2, 0, &all);
            replies
                .iter()
                .map(|reply| without_time(reply))
                .collect::<Vec<_>>()
        };
        let (here, there) = (
            run(&mut ours, std::mem::take(&mut here)),
            run(&mut theirs, std::mem::take(&mut there)),
        );
        assert_eq!(here, there, "change {number}: {shown}");
    }
}
