//! Chain, epoch and recovery at the server, which have precedence over executions (`docs/spec/protocol.md` §5).

use crate::support::server::{Bench, config, member};
use crate::support::{EPOCH, SESSION, SHARD, TOKEN, kinds, only};
use pmnet_proto::server::Work;
use pmnet_wire::packet;
use pmnet_wire::record::{Member, RecoverReply, SESSION_ROWS_PER_PART, write_path};
use pmnet_wire::{Flags, HEADER_LEN, Header, Kind, Payloads, raw};

fn recover(path: &[Member], nonce: u64) -> (Header, Vec<u8>) {
    let header = Header {
        shard: SHARD,
        device: path[0].device,
        incarnation: path[0].incarnation,
        request: raw(nonce),
        ..Header::new(Kind::Recover)
    };
    (header, write_path(path))
}

#[test]
fn the_chain_is_durable_before_anybody_hears_of_it() {
    let mut bench = Bench::blank(config());
    let (header, path) = recover(&[member(1), member(2)], 5);
    assert_eq!(bench.give(&header, &path), []);
    assert!(matches!(bench.pending(), Work::Apply(_)));
    assert!(bench.server.chain().is_none());
    bench.server.failed();
    let reply = only(bench.work());
    assert_eq!(
        (reply.header.kind, reply.header.epoch),
        (Kind::RecoverReply, 1)
    );
    assert_eq!(
        (
            reply.header.device,
            reply.header.request.raw(),
            reply.header.tag
        ),
        (1, 5, 0)
    );
    let table = RecoverReply::read(&reply.payload).expect("a table");
    assert_eq!((table.members.len(), table.sessions.len()), (2, 0));
    assert_ne!(table.shard_token, 0);
    assert!(bench.store.records.contains_key(&b"chain"[..]));
    let chain = bench.server.chain().cloned();
    assert_eq!(
        bench.restarted().server.chain().cloned(),
        chain,
        "token included"
    );
}

/// A head refuses a session whose kind of payloads the server does not take. So the server must state the kinds.
#[test]
fn a_device_hears_which_payloads_the_server_takes() {
    for takes in [Payloads::NOT_SAID, Payloads::COMMANDS, Payloads::PROGRAM] {
        let mut bench = Bench::blank(config());
        bench.server.take(takes);
        let (header, path) = recover(&[member(1)], 5);
        bench.give(&header, &path);
        let reply = only(bench.work()).header;
        assert_eq!(packet::RecoverReply::read(&reply).payloads, takes.on_wire());
    }
}

#[test]
fn a_device_of_the_chain_gets_the_state() {
    let mut bench = Bench::new();
    bench.update(2, 1);
    bench.work();
    let known = bench.server.chain().expect("a chain").members[0];
    let sent = bench.recover(50, &[known]);
    let reply = sent
        .iter()
        .find(|s| s.header.kind == Kind::RecoverReply)
        .expect("a reply");
    assert_eq!((reply.header.epoch, reply.header.order), (EPOCH, 2));
    let table = RecoverReply::read(&reply.payload).expect("a table");
    let row = table.sessions[0];
    assert_eq!((row.session, row.last_seq, row.token), (SESSION, 1, TOKEN));
    // A repeated question gets the same answer as before, even if entries were applied in between.
    bench.update(3, 2);
    bench.work();
    let (header, path) = recover(&[known], 50);
    assert_eq!(only(bench.give(&header, &path)), *reply);
}

#[test]
fn a_new_incarnation_is_registered_before_the_reply() {
    let mut bench = Bench::new();
    let known = Member {
        flags: 0,
        ..bench.server.chain().expect("a chain").members[0]
    };
    let (header, path) = recover(
        &[Member {
            incarnation: 2,
            ..known
        }],
        50,
    );
    assert_eq!(bench.give(&header, &path), []);
    assert!(matches!(bench.pending(), Work::Apply(_)));
    bench.server.failed();
    let sent = bench.work();
    assert!(kinds(&sent).contains(&Kind::RecoverReply));
    let chain = bench.server.chain().expect("a chain");
    assert_eq!((chain.epoch, chain.members[0].incarnation), (EPOCH, 2));
    let refused = only(bench.told(51, &[known]));
    assert!(
        refused.is(Kind::RecoverReply, Flags::REFUSED),
        "{refused:?}"
    );
}

/// The registration of a device waits for entries that came before the device's RECOVER, but not for an execution.
#[test]
fn a_device_is_registered_before_anything_is_executed() {
    let mut bench = Bench::new();
    let read = Header {
        shard: SHARD,
        epoch: EPOCH,
        session: SESSION,
        order: 1,
        request: raw(1),
        flags: Flags::READ_ONLY,
        tag: bench.token,
        ..Header::new(Kind::Bypass)
    };
    bench.give(&read, b"slow");
    bench.update(2, 1);
    let known = bench.server.chain().expect("a chain").members[0];
    let again = Member {
        incarnation: 2,
        ..known
    };
    assert_eq!(bench.ask(50, &[again]), []);
    let entries = bench.pending();
    assert!(
        matches!(&entries, Work::Apply(effects) if effects.payloads == [&b"u1"[..]]),
        "{entries:?}"
    );
    bench.done(&entries);
    let record = bench.pending();
    let is_chain = |work: &Work| matches!(work, Work::Apply(e) if e.records.len() == 1 && e.records[0].0 == b"chain");
    assert!(is_chain(&record), "{record:?}");
    let sent = bench.done(&record);
    assert_eq!(only(sent).header.kind, Kind::RecoverReply);
}

#[test]
fn a_refusal_gives_no_secrets_and_is_no_larger_than_its_question() {
    let mut bench = Bench::new();
    let hold = Member {
        log_uuid: u128::from(EPOCH),
        ..member(1)
    };
    for (path, flags) in [
        (vec![member(9)], Flags::REFUSED),
        (
            vec![Member {
                log_uuid: 77,
                ..hold
            }],
            Flags::REFUSED,
        ),
    ] {
        let (_, payload) = recover(&path, 60);
        let refused = only(bench.told(60, &path));
        assert!(refused.is(Kind::RecoverReply, flags));
        assert_eq!(refused.header.tag, 0);
        assert!(!refused.payload.is_empty());
        assert!(HEADER_LEN + refused.payload.len() <= HEADER_LEN + payload.len());
        assert!(
            bench.server.poll_notice().is_some(),
            "the operator hears of it"
        );
    }
}

/// A host that repeats old RECOVERs must not fill the operator's log with messages.
#[test]
fn refusals_are_told_more_and_more_rarely() {
    let mut bench = Bench::new();
    let mut told = |nonce, asking: Member| {
        let refused = only(bench.told(nonce, &[asking]));
        assert!(refused.is(Kind::RecoverReply, Flags::REFUSED));
        std::iter::from_fn(|| bench.server.poll_notice()).collect::<Vec<_>>()
    };
    let times: Vec<u64> = (1..=9)
        .filter(|nonce| !told(60 + nonce, member(9)).is_empty())
        .collect();
    assert_eq!(times, [1, 2, 4, 8]);
    let begins = |told: &[String], with: &str| assert!(told[0].starts_with(with), "{told:?}");
    let first = "(refusal 1 for this reason in this epoch)";
    let other = told(80, member(7));
    begins(&other, &format!("PM2601 refused device 7 {first}: PM1009"));
    // A new reason is told at once, even if the device was often refused for another reason.
    let swapped = Member {
        log_uuid: 77,
        ..member(1)
    };
    let ahead = Member {
        log_uuid: u128::from(EPOCH),
        applied: 1 << 40,
        ..member(1)
    };
    for nonce in 81..=84 {
        told(nonce, swapped);
    }
    assert_eq!(told(85, ahead).len(), 1);
    assert_eq!(told(86, swapped), Vec::<String>::new());
    // The number of rows for single devices is bounded.
    for device in 100..200 {
        told(u64::from(device), member(device));
    }
    assert_eq!(told(300, member(300)), Vec::<String>::new());
    assert_eq!(told(301, member(7)).len(), 1);
}

#[test]
fn a_recover_that_does_not_hold_together_is_dropped() {
    let mut bench = Bench::blank(config());
    let (header, payload) = recover(&[member(1)], 5);
    for (what, header, payload) in [
        (
            "another device",
            Header {
                device: 2,
                ..header
            },
            &payload[..],
        ),
        (
            "another incarnation",
            Header {
                incarnation: 2,
                ..header
            },
            &payload,
        ),
        ("cut", header, &payload[..100]),
        ("empty", header, &[]),
    ] {
        assert_eq!(bench.give(&header, payload), [], "{what}");
        assert_eq!(bench.server.next_work(bench.now), Ok(None), "{what}");
    }
}

#[test]
fn a_change_waits_for_what_is_queued_and_fences_the_rest() {
    let mut bench = Bench::new();
    bench.update(2, 1);
    let bypass = Header {
        order: 9,
        request: raw(1),
        ..bench.header(Kind::Bypass)
    };
    bench.give(&bypass, b"INCR");
    let lost = Member {
        log_uuid: 99,
        flags: Member::DECLARE_LOSS,
        word_epoch: EPOCH,
        ..member(1)
    };
    let (header, path) = recover(&[lost], 70);
    assert_eq!(bench.give(&header, &path), []);
    assert_eq!(
        bench.update(3, 2),
        [],
        "nothing more of the old epoch is taken in"
    );
    let sent = bench.work();
    let reply = sent
        .iter()
        .find(|s| s.header.kind == Kind::RecoverReply)
        .expect("a reply");
    assert_eq!(
        (reply.header.epoch, reply.header.order),
        (EPOCH + 1, 2),
        "what was queued counts"
    );
    let told = only(bench.update(3, 2));
    assert_eq!(
        (told.header.kind, told.header.epoch),
        (Kind::StaleEpoch, EPOCH + 1)
    );
    // The waiting bypass is dropped. Its client sends it again through the new head.
    let new_epoch = |order| Header {
        order,
        seq: order - 1,
        epoch: EPOCH + 1,
        copies: raw(Kind::Update.number()),
        ..bench.header(Kind::Append)
    };
    for header in (3..=9).map(new_epoch).collect::<Vec<_>>() {
        bench.give(&header, b"u");
    }
    bench.work();
    assert_eq!(
        (bench.store.watermark(), bench.store.executed.len()),
        (9, 0)
    );
}

#[test]
fn a_long_session_table_is_given_in_parts() {
    let mut bench = Bench::new();
    let count = u64::try_from(2 * SESSION_ROWS_PER_PART + 1).expect("few");
    for id in 2..=count {
        bench.append(id, Kind::Open, id, 0, &id.to_be_bytes());
    }
    bench.work();
    let known = bench.server.chain().expect("a chain").members[0];
    let (header, path) = recover(&[known], 80);
    bench.told(80, &[known]);
    let mut ids = Vec::new();
    for part in 0..3 {
        let asked = Header {
            fragment_index: part,
            fragment_count: 3,
            ..header
        };
        let reply = only(bench.give(&asked, &path));
        assert_eq!(
            (reply.header.fragment_index, reply.header.fragment_count),
            (part, 3)
        );
        assert!(
            reply.payload.len() <= path.len(),
            "no larger than what asked for it"
        );
        let table = RecoverReply::read(&reply.payload).expect("a table");
        ids.extend(table.sessions.iter().map(|row| row.session));
    }
    assert_eq!(ids, (1..=count).collect::<Vec<_>>());
    let beyond = Header {
        fragment_index: 3,
        fragment_count: 4,
        ..header
    };
    let told = only(bench.give(&beyond, &path)).header;
    assert_eq!(
        (told.fragment_index, told.fragment_count),
        (0, 3),
        "a device that knows a longer table hears of the present one"
    );
}

#[test]
fn nothing_is_decided_before_the_records_are_loaded() {
    let mut bench = Bench::new();
    bench.server.failed();
    let (header, path) = recover(&[member(1)], 90);
    assert_eq!(bench.give(&header, &path), []);
    bench.work();
    assert_eq!(bench.server.chain().expect("a chain").epoch, EPOCH);
}

/// The store has written a change of the chain, but reported a failure, so the new epoch begins when the records are
/// loaded. Regression: a bypass of the old epoch still waited. After a declared loss this bypass was executed for the
/// session that got the same id.
#[test]
fn an_epoch_that_begins_with_a_load_has_nobody_waiting() {
    let mut bench = Bench::new();
    let waits = Header {
        order: 2,
        seq: 1,
        request: raw(1),
        ..bench.header(Kind::Bypass)
    };
    bench.give(&waits, b"INCR");
    let lost = Member {
        log_uuid: 99,
        flags: Member::DECLARE_LOSS,
        word_epoch: EPOCH,
        ..member(1)
    };
    let (header, path) = recover(&[lost], 70);
    bench.give(&header, &path);
    let Work::Apply(change) = bench.pending() else {
        panic!("the change is written");
    };
    bench.store.apply(&change);
    bench.server.failed();
    bench.work();
    let entry = Header {
        epoch: EPOCH + 1,
        order: 2,
        seq: 1,
        copies: raw(Kind::Update.number()),
        ..bench.header(Kind::Append)
    };
    bench.give(&entry, b"u1");
    bench.work();
    assert_eq!(bench.server.watermark(), 2);
    assert_eq!(bench.store.executed, Vec::<Vec<u8>>::new());
}

/// While this server was suspended, another server applied more entries. Regression: this server refused the device
/// with "the store lost data. Restore it".
#[test]
fn nobody_is_refused_because_of_what_a_server_remembers() {
    let mut bench = Bench::new();
    bench.update(2, 1);
    bench.work();
    let mut known = bench.server.chain().expect("a chain").members[0];
    known.applied = 3;
    known.tail = 3;
    // The other server has written this watermark.
    let watermark = bench
        .store
        .records
        .get_mut(&b"watermark"[..])
        .expect("is there");
    *watermark = bytes::Bytes::copy_from_slice(&3u64.to_be_bytes());
    assert_eq!(bench.ask(50, &[known]), [], "it looks first");
    bench.work();
    let told = only(bench.ask(50, &[known])).header;
    assert_eq!(
        (told.kind, told.flags.has(Flags::REFUSED), told.order),
        (Kind::RecoverReply, false, 3)
    );
    // A device that knows a higher order than the store has is still refused, after the server has read its records.
    known.applied = 4;
    assert_eq!(bench.ask(51, &[known]), []);
    bench.work();
    let refused = only(bench.ask(51, &[known]));
    assert!(refused.header.flags.has(Flags::REFUSED));
    let text = String::from_utf8_lossy(&refused.payload).into_owned();
    assert!(text.contains("Before you restore anything"), "{text}");
    // For each such answer the server reads the records again.
    assert_eq!(bench.ask(51, &[known]), []);
}

/// A device serves a later epoch than this server remembers. The server stops only if the store's records do not name
/// that epoch.
#[test]
fn a_later_epoch_stops_a_server_only_if_its_store_does_not_know_it() {
    let mut bench = Bench::new();
    let later = Header {
        epoch: EPOCH + 1,
        ..bench.header(Kind::Ping)
    };
    assert_eq!(bench.give(&later, &[]), []);
    let Work::Load = bench.pending() else {
        panic!("it looks first")
    };
    let mut chain = bench.store.records[&b"chain"[..]].to_vec();
    chain[..4].copy_from_slice(&(EPOCH + 1).to_be_bytes());
    let before = bench
        .store
        .records
        .insert(b"chain".to_vec(), chain.into())
        .expect("is there");
    bench.done(&Work::Load);
    assert_eq!(
        bench.server.chain().map(|chain| chain.epoch),
        Some(EPOCH + 1)
    );
    bench.give(&later, &[]);
    // The store is an old copy. The server stops after it has read the records.
    let mut bench = Bench::new();
    assert_eq!(bench.store.records[&b"chain"[..]].len(), before.len());
    bench.give(&later, &[]);
    bench.work();
    let stop = bench.try_give(&later, &[]).expect_err("two histories");
    assert!(stop.0.contains("Before you restore anything"), "{}", stop.0);
}
