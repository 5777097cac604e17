//! The state that one client sees never goes back in time, whichever way its reads are packed and sent again.

use crate::common::{Client, Knobs, Redis, Running, command, run_id};
use pmnet_front::upstream::ReadAnswer;

/// Longest reply in these tests, in bytes. A pack with more than one [`LARGE`] value has a longer reply.
const REPLY_MAX: usize = 2_000;
/// Size of a value, in bytes. One such value fits into a reply, two do not.
const LARGE: usize = 1_200;

/// Makes two fronts on a store where `n` grows before each call is executed. The first front uses only bypasses. The
/// second front also reads from the store directly if it may.
fn counting(redis: &Redis) -> [Running; 2] {
    let knobs = Knobs {
        reads_allowed: true,
        // The store is fresh enough for some reads, and too old for others.
        answer: Some(|knobs, _| ReadAnswer::Miss {
            epoch: 1,
            need: u64::from(knobs.reads.len() % 3 == 0),
            version: 1,
            replicas: 0,
        }),
        ..Knobs::default()
    };
    let run_id = run_id(&mut redis.client());
    let fields = [
        "HSET",
        "pmnet:{0}",
        "watermark",
        "\0\0\0\0\0\0\0\0",
        "chain",
        "\0\0\0\x01",
        "store",
        &run_id,
    ];
    let mut record = Vec::new();
    pmnet_resp::write_command(&mut record, &fields);
    let mut client = redis.client();
    client.send(&record);
    assert_eq!(client.text(), ":3\r\n");
    [
        Running::start(redis),
        Running::start_as(redis, knobs, |_| {}),
    ]
    .map(|front| {
        prepare(redis, &front);
        front
    })
}

fn prepare(redis: &Redis, front: &Running) {
    let mut client = redis.client();
    assert_eq!(
        client.ask(&format!("SET large {}", "x".repeat(LARGE))),
        "+OK\r\n"
    );
    let mut knobs = front.knobs();
    knobs.reply_max = REPLY_MAX;
    knobs.between = Some("INCR n");
}

/// Returns the number in a reply to `GET n` or `INCR n`.
fn number(reply: &str) -> Option<u64> {
    let text = reply.strip_prefix(':').or_else(|| {
        let (length, text) = reply.strip_prefix('$')?.split_once("\r\n")?;
        (length != "-1").then_some(text)
    })?;
    text.trim_end().parse().ok()
}

/// Sends all lines in one pipeline. The counts in the replies must not fall, and large values must be
/// complete.
fn never_falls(client: &mut Client, lines: &[&str]) {
    let all: Vec<u8> = lines.iter().flat_map(|line| command(line)).collect();
    client.send(&all);
    let mut last = 0;
    for (at, line) in lines.iter().enumerate() {
        let reply = client.text();
        assert!(!reply.starts_with('-'), "{at}: {line}: {reply}");
        if *line == "GET large" && reply != "+QUEUED\r\n" {
            assert!(reply.len() > LARGE, "{at}: {line}: {reply}");
        } else if line.ends_with(" n")
            && let Some(now) = number(&reply)
        {
            assert!(now >= last, "{at}: {line}: {now} after {last}");
            last = now;
        }
    }
}

#[test]
fn reads_behind_a_pack_that_is_taken_apart_come_after_it() {
    let Some(redis) = Redis::start() else { return };
    for front in counting(&redis) {
        for hello in ["HELLO 2", "HELLO 3"] {
            let mut client = front.client();
            client.ask(hello);
            let mut lines = vec!["GET n"];
            lines.extend(["GET large"; 20]);
            lines.extend(["GET n"; 120]);
            never_falls(&mut client, &lines);
            // The lines are repeated, so that packs with short replies alternate with packs whose replies are too long.
            lines.extend(lines.clone());
            never_falls(&mut client, &lines.repeat(3));
        }
        let taken_apart = front.knobs().bypasses.iter().filter(|b| b.2 == 1).count();
        assert!(
            taken_apart > 64,
            "{taken_apart}: no pack was taken apart, so nothing was tested"
        );
    }
}

#[test]
fn writes_behind_a_pack_that_is_taken_apart_come_after_it_and_are_seen_by_what_follows() {
    let Some(redis) = Redis::start() else { return };
    for front in counting(&redis) {
        writes_behind_packs(&front);
    }
}

fn writes_behind_packs(front: &Running) {
    let mut client = front.client();
    let reads = ["GET n", "GET large", "GET large", "GET n"];
    for behind in [
        &["SET mine 1", "GET n"][..],
        &["INCR n", "INCR n", "GET n"],
        &["SELECT 0", "GET n"],
        &["SELECT 3", "SELECT 0", "GET n"],
        &["MULTI", "GET large", "EXEC", "GET n"],
        &["PING", "GET n"],
        &["ECHO x", "GET large", "GET n", "GET large", "INCR n"],
        &["WATCH x", "GET n", "UNWATCH", "GET n"],
    ] {
        let lines = [&reads[..], behind, &reads[..], behind].concat();
        never_falls(&mut client, &lines);
    }
    // A read before a write of the same client does not see the write. A read after the write sees it.
    let lines = [
        "SET own 1",
        "GET own",
        "GET large",
        "GET large",
        "SET own 2",
        "GET own",
        "GET large",
        "GET large",
        "GETDEL own",
        "EXISTS own",
    ];
    let all: Vec<u8> = lines.iter().flat_map(|line| command(line)).collect();
    client.send(&all);
    let replies: Vec<String> = lines.iter().map(|_| client.text()).collect();
    for (at, expected) in [
        (1, "$1\r\n1\r\n"),
        (5, "$1\r\n2\r\n"),
        (8, "$1\r\n2\r\n"),
        (9, ":0\r\n"),
    ] {
        assert_eq!(replies[at], expected, "{}: {replies:?}", lines[at]);
    }
}

#[test]
fn a_pack_taken_apart_stays_in_order_when_the_endpoint_is_busy() {
    let Some(redis) = Redis::start() else { return };
    for front in counting(&redis) {
        packs_while_busy(&front);
    }
}

fn packs_while_busy(front: &Running) {
    front.knobs().queue_max = 1;
    let others: Vec<_> = (0..4)
        .map(|_| {
            let mut other = front.client();
            std::thread::spawn(move || {
                for _ in 0..200 {
                    assert!(other.ask("INCR other").starts_with(':'));
                }
            })
        })
        .collect();
    let mut client = front.client();
    let mut lines = vec!["GET n"; 3];
    lines.extend(["GET large"; 5]);
    lines.extend(["GET n"; 100]);
    lines.push("INCR n");
    never_falls(&mut client, &lines.repeat(5));
    for other in others {
        other.join().expect("another client");
    }
    assert!(front.knobs().refused > 0, "the queue was never full");
}
