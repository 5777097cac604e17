//! The server takes the log in order and applies it atomically with its own state
//! (`docs/spec/protocol.md` §2 rules 4, 6, 7; §3 fragments).

use crate::support::server::{Bench, config, tail};
use crate::support::{EPOCH, SESSION, SHARD, TOKEN, kinds, only};
use pmnet_proto::server::{ServerConfig, Work};
use pmnet_proto::time::MILLISECOND;
use pmnet_wire::{Header, Kind, raw};

/// Gives fragment `index` of an update whose first seq is `first`.
fn fragment(bench: &mut Bench, order: u64, first: u64, index: u16, count: u16) {
    let header = Header {
        order,
        seq: first + u64::from(index),
        copies: raw(Kind::Update.number()),
        fragment_index: index,
        fragment_count: count,
        ..bench.header(Kind::Append)
    };
    bench.give(&header, format!("f{index}").as_bytes());
}

fn effects(bench: &Bench) -> Vec<String> {
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    bench.store.effects.iter().map(text).collect()
}

#[test]
fn updates_are_applied_in_order_with_the_watermark() {
    let mut bench = Bench::new();
    for order in 2..=5 {
        assert_eq!(bench.update(order, order - 1), []);
    }
    let applied = only(bench.work());
    assert_eq!(
        (applied.to, applied.header.kind, applied.header.order),
        (tail(), Kind::Applied, 5)
    );
    assert_eq!(applied.header.request, raw(4_096), "room in its queue");
    assert_eq!(effects(&bench), ["u1", "u2", "u3", "u4"]);
    assert_eq!((bench.store.watermark(), bench.server.watermark()), (5, 5));
    assert_eq!(
        bench.server.counters().batches,
        2,
        "the OPEN, then one for all four"
    );
}

#[test]
fn a_gap_is_asked_for_and_a_duplicate_is_answered() {
    let mut bench = Bench::new();
    let ask = only(bench.update(4, 3));
    assert_eq!((ask.to, ask.header.kind), (tail(), Kind::Retrans));
    assert_eq!((ask.header.order, ask.header.request.raw()), (2, 3));
    assert_eq!(bench.update(5, 4), [], "asked for already");
    bench.now = bench.now + MILLISECOND;
    assert_eq!(only(bench.update(5, 4)).header.request, raw(4));
    for order in 2..=3 {
        assert_eq!(bench.update(order, order - 1), []);
    }
    bench.work();
    bench.update(2, 1);
    assert_eq!(
        only(bench.work()).header.order,
        3,
        "the cumulative word again"
    );
    assert_eq!(effects(&bench), ["u1", "u2"]);
}

#[test]
fn two_histories_stop_the_shard() {
    let mut bench = Bench::new();
    bench.update(2, 1);
    let other = Header {
        order: 2,
        seq: 9,
        copies: raw(Kind::Update.number()),
        ..bench.header(Kind::Append)
    };
    let stop = bench.try_give(&other, b"x").expect_err("two histories");
    assert!(stop.0.contains("two histories"), "{stop}");
}

#[test]
fn a_seq_that_is_missing_from_the_log_stops_the_shard() {
    let mut bench = Bench::new();
    bench.update(2, 2);
    let stop = bench.try_work().expect_err("seq 1 is missing");
    assert!(stop.0.contains("missing"), "{stop}");
    assert!(bench.store.effects.is_empty());
}

#[test]
fn a_repeated_seq_has_no_effect() {
    let mut bench = Bench::new();
    for (order, seq) in [(2, 1), (3, 1), (4, 2), (5, 1)] {
        bench.update(order, seq);
    }
    bench.work();
    assert_eq!(effects(&bench), ["u1", "u2"]);
    assert_eq!(
        (bench.server.counters().repeated, bench.store.watermark()),
        (2, 5)
    );
}

#[test]
fn nothing_of_an_ended_session_is_applied() {
    let mut bench = Bench::new();
    bench.update(2, 1);
    bench.append(3, Kind::End, SESSION, 2, b"");
    bench.update(4, 2);
    bench.append(5, Kind::Update, 99, 1, b"of a session that never was");
    bench.work();
    assert_eq!(effects(&bench), ["u1"]);
    assert_eq!(
        (bench.store.count("session/"), bench.store.watermark()),
        (0, 5)
    );
}

#[test]
fn fragments_are_staged_durably_and_applied_as_one() {
    let mut bench = Bench::new();
    fragment(&mut bench, 2, 1, 0, 3);
    fragment(&mut bench, 3, 1, 1, 3);
    assert_eq!(
        only(bench.work()).header.order,
        3,
        "staged counts as applied"
    );
    assert_eq!((bench.store.count("stage/"), effects(&bench)), (2, vec![]));
    // The server's process dies. The log no longer has the first fragments, but the store has them.
    let mut bench = bench.restarted();
    fragment(&mut bench, 4, 1, 2, 3);
    bench.update(5, 4);
    bench.work();
    assert_eq!(effects(&bench), ["f0f1f2", "u4"]);
    assert_eq!(bench.store.count("stage/"), 0);
}

/// Regression: each batch copied all fragments that its sessions had staged. With 112,000 staged fragments a GET took
/// 120 ms.
#[test]
fn a_batch_holds_of_what_is_staged_its_own_part_only() {
    let mut bench = Bench::new();
    for index in 0..100 {
        fragment(&mut bench, 2 + u64::from(index), 1, index, 200);
    }
    bench.work();
    assert_eq!(bench.store.count("stage/"), 100);
    fragment(&mut bench, 102, 1, 100, 200);
    let Work::Apply(effects) = bench.pending() else {
        panic!("a batch")
    };
    let staged = effects
        .records
        .iter()
        .filter(|(key, _)| key.starts_with(b"stage/"));
    assert_eq!(staged.count(), 1);
    // The server holds the parts that were staged earlier; the new part is in the queue and in the batch.
    let parts = format!("{:?}", bench.server).matches("Part {").count();
    assert_eq!(parts, 101);
}

#[test]
fn fragments_in_one_batch_leave_no_trace() {
    let mut bench = Bench::new();
    for index in 0..3 {
        fragment(&mut bench, 2 + u64::from(index), 1, index, 3);
    }
    bench.work();
    assert_eq!(
        (bench.store.count("stage/"), effects(&bench)),
        (0, vec!["f0f1f2".to_owned()])
    );
}

#[test]
fn a_torso_is_dropped() {
    for staged_in_another_batch in [false, true] {
        // The session ends before the update is complete.
        let mut bench = Bench::new();
        fragment(&mut bench, 2, 1, 0, 2);
        if staged_in_another_batch {
            bench.work();
        }
        bench.append(3, Kind::End, SESSION, 2, b"");
        bench.work();
        assert_eq!((bench.store.count("stage/"), effects(&bench)), (0, vec![]));
        // A client numbers its fragments wrongly: they have no effect, and the session continues.
        let mut bench = Bench::new();
        fragment(&mut bench, 2, 1, 0, 3);
        if staged_in_another_batch {
            bench.work();
        }
        let wrong = Header {
            order: 3,
            seq: 2,
            copies: raw(Kind::Update.number()),
            fragment_index: 2,
            fragment_count: 3,
            ..bench.header(Kind::Append)
        };
        bench.give(&wrong, b"f2");
        bench.update(4, 3);
        bench.work();
        assert_eq!(
            (bench.store.count("stage/"), effects(&bench)),
            (0, vec!["u3".to_owned()])
        );
        assert_eq!(bench.server.counters().rejected, 1);
    }
}

/// Fragments of different updates are never combined, even if a client numbers them so that their indexes fit.
#[test]
fn fragments_of_two_updates_have_no_effect() {
    for restarts in [false, true] {
        // Another update lies between the fragments.
        let mut bench = Bench::new();
        fragment(&mut bench, 2, 1, 0, 2);
        bench.update(3, 2);
        bench.work();
        if restarts {
            bench = bench.restarted();
        }
        fragment(&mut bench, 4, 2, 1, 2);
        bench.update(5, 4);
        bench.work();
        assert_eq!(
            (bench.store.count("stage/"), effects(&bench)),
            (0, vec!["u2".to_owned(), "u4".to_owned()])
        );
        assert_eq!(bench.server.counters().rejected, 1);
        // The first fragment belongs to an update of another length than the second.
        let mut bench = Bench::new();
        fragment(&mut bench, 2, 1, 0, 2);
        bench.work();
        if restarts {
            bench = bench.restarted();
        }
        fragment(&mut bench, 3, 1, 1, 3);
        fragment(&mut bench, 4, 1, 2, 3);
        bench.work();
        assert_eq!(
            (bench.store.count("stage/"), effects(&bench)),
            (0, Vec::<String>::new())
        );
        assert_eq!(bench.server.counters().rejected, 2);
    }
}

#[test]
fn batches_and_the_queue_are_bounded() {
    let small = ServerConfig {
        batch_entries_max: 3,
        queue_max: 5,
        ..config()
    };
    let mut bench = Bench::with(small);
    for order in 2..=9 {
        bench.update(order, order - 1);
    }
    assert_eq!(
        (bench.server.queued(), bench.server.counters().dropped),
        (5, 1)
    );
    bench.work();
    assert_eq!(
        (bench.store.watermark(), bench.server.counters().batches),
        (6, 3)
    );
    let heavy = ServerConfig {
        batch_bytes_max: 5,
        ..config()
    };
    let mut bench = Bench::with(heavy);
    for order in 2..=5 {
        bench.update(order, order - 1);
    }
    bench.work();
    assert_eq!(
        bench.server.counters().batches,
        3,
        "two updates of two bytes each"
    );
}

#[test]
fn a_work_that_failed_is_forgotten_and_done_again() {
    for done in [false, true] {
        let mut bench = Bench::new();
        bench.update(2, 1);
        bench.update(3, 2);
        let Work::Apply(effects) = bench.pending() else {
            panic!("a batch")
        };
        if done {
            // The store has applied the batch, but its answer was lost.
            for (key, value) in &effects.records {
                bench
                    .store
                    .records
                    .insert(key.clone(), value.clone().expect("written"));
            }
            bench
                .store
                .effects
                .extend(effects.payloads.iter().map(|p| p.to_vec()));
        }
        bench.server.failed();
        assert_eq!(bench.server.watermark(), 1, "nothing is believed");
        assert_eq!(bench.update(4, 3), [], "deaf until it has loaded");
        bench.work();
        bench.update(4, 3);
        bench.work();
        assert_eq!(bench.store.effects.len(), 3, "each once: done {done}");
        assert_eq!(bench.store.watermark(), 4);
    }
}

#[test]
fn records_that_cannot_be_stop_the_shard() {
    for (what, change) in [
        ("went back", 0),
        ("not one of this version", 1),
        ("went back", 2),
    ] {
        let mut bench = Bench::new();
        bench.server.failed();
        match change {
            0 => drop(bench.store.records.remove(&b"watermark"[..])),
            1 => drop(
                bench
                    .store
                    .records
                    .insert(b"what/".to_vec(), bytes::Bytes::new()),
            ),
            _ => drop(bench.store.records.remove(&b"chain"[..])),
        }
        let stop = bench.try_work().expect_err("a stop");
        assert!(stop.0.contains(what), "{change}: {stop}");
    }
}

#[test]
fn records_are_as_the_specification_says() {
    let mut bench = Bench::new();
    fragment(&mut bench, 2, 1, 0, 2);
    let bypass = Header {
        order: 2,
        request: raw(7),
        seq: 1,
        ..bench.header(Kind::Bypass)
    };
    bench.give(&bypass, b"INCR");
    bench.work();
    let id = SESSION.to_be_bytes();
    let key = |prefix: &[u8], more: &[u8]| [prefix, &id, more].concat();
    let value = |key: &[u8]| bench.store.records.get(key).map(|value| value.to_vec());
    assert_eq!(value(b"watermark"), Some(2u64.to_be_bytes().to_vec()));
    let session = [TOKEN.to_be_bytes(), 1u64.to_be_bytes()].concat();
    assert_eq!(value(&key(b"session/", b"")), Some(session));
    let reply = [&7u64.to_be_bytes()[..], b":0\r\n"].concat();
    assert_eq!(value(&key(b"reply/", b"")), Some(reply));
    assert_eq!(
        value(&key(b"stage/", &1u64.to_be_bytes())),
        Some([&2u16.to_be_bytes()[..], b"f0"].concat())
    );
    let chain = value(b"chain").expect("the chain");
    assert_eq!(chain[..4], EPOCH.to_be_bytes());
    assert_eq!(chain[4..12], bench.token.to_be_bytes());
    assert_eq!(bench.store.records.len(), 5);
}

#[test]
fn strangers_are_dropped_and_old_epochs_are_told() {
    let mut bench = Bench::new();
    let append = Header {
        order: 2,
        seq: 1,
        copies: raw(3),
        ..bench.header(Kind::Append)
    };
    for (what, header) in [
        (
            "token",
            Header {
                tag: append.tag + 1,
                ..append
            },
        ),
        (
            "shard",
            Header {
                shard: SHARD + 1,
                ..append
            },
        ),
        (
            "kind",
            Header {
                kind: Kind::Update,
                ..append
            },
        ),
        (
            "kind",
            Header {
                kind: Kind::Durable,
                ..append
            },
        ),
    ] {
        assert_eq!(bench.give(&header, b"x"), [], "wrong {what}");
    }
    let told = only(bench.give(
        &Header {
            epoch: EPOCH - 1,
            ..append
        },
        b"x",
    ));
    assert_eq!(
        (told.header.kind, told.header.epoch),
        (Kind::StaleEpoch, EPOCH)
    );
    assert_eq!(bench.server.counters().dropped, 5);
    bench.work();
    assert_eq!(bench.store.watermark(), 1, "without effect");
    let later = Header {
        epoch: EPOCH + 1,
        ..append
    };
    // The server first reads the records, to see whether the store knows this epoch. Only then it stops.
    assert_eq!(bench.give(&later, b"x"), []);
    bench.work();
    let stop = bench.try_give(&later, b"x");
    let stop = stop.expect_err("the store is an old copy");
    assert!(stop.0.contains("old copy"), "{stop}");
}

#[test]
fn a_ping_is_answered_with_applied() {
    let mut bench = Bench::new();
    bench.give(&bench.header(Kind::Ping), b"");
    let sent = bench.work();
    assert_eq!(
        (kinds(&sent), sent[0].header.order),
        (vec![Kind::Applied], 1)
    );
}

/// A second device serves with a copy of the log. An entry with other contents at a known order stops the shard, even
/// if the first entry of this order is already applied. Regression: the second device was told that its entry was
/// applied, and its update was lost.
#[test]
fn another_history_stops_the_shard_also_behind_the_watermark() {
    for applied in [false, true] {
        let mut bench = Bench::new();
        bench.update(2, 1);
        bench.update(3, 2);
        if applied {
            bench.work();
        }
        bench.update(2, 1);
        bench.update(3, 2);
        let other = Header {
            order: 3,
            seq: 2,
            copies: raw(Kind::Update.number()),
            ..bench.header(Kind::Append)
        };
        let stop = bench.try_give(&other, b"other").expect_err("stops");
        assert!(stop.0.contains("two histories met"), "{stop:?}");
    }
}
