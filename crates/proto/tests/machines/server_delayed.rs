//! Late packets, and remains of ended sessions, updates and epochs, have no effect (`docs/spec/protocol.md` §2 rule 8,
//! §3 fragments, §5).

use crate::support::server::{Bench, member};
use crate::support::{EPOCH, SESSION, kinds, only, seqs};
use pmnet_proto::server::Work;
use pmnet_wire::record::{Member, RecoverReply};
use pmnet_wire::{Flags, Header, Kind, raw};

fn bypass(bench: &Bench, barrier: u64, seq: u64, request: u64) -> Header {
    Header {
        order: barrier,
        seq,
        request: raw(request),
        ..bench.header(Kind::Bypass)
    }
}

fn read(bench: &Bench, request: u64) -> Header {
    Header {
        flags: Flags::READ_ONLY,
        ..bypass(bench, 1, 0, request)
    }
}

/// The session's caller gave up request 1, and then read with request 2. If a late copy of request 1 were executed now,
/// it would change a state that the session has already read. The server keeps no replies of reads, so no record shows
/// that there was a later read.
#[test]
fn a_request_from_before_a_read_is_never_executed() {
    for failed in [false, true] {
        let mut bench = Bench::new();
        bench.give(&read(&bench, 2), b"GET");
        bench.work();
        if failed {
            // The outcome of a work is unknown: the records are loaded again. These records do not contain the read.
            bench.server.failed();
            bench.work();
        }
        bench.give(&bypass(&bench, 1, 0, 1), b"INCR");
        bench.give(&read(&bench, 1), b"GET");
        assert_eq!(kinds(&bench.work()), [], "failed: {failed}");
        assert_eq!(bench.store.executed, [b"GET"], "failed: {failed}");
        assert_eq!(bench.server.counters().dropped, 2);
        bench.give(&bypass(&bench, 1, 0, 3), b"INCR");
        assert_eq!(kinds(&bench.work()), [Kind::Response]);
    }
}

/// A request is given up before a read, as in the test above, but the read arrives before its session's OPEN is
/// applied.
#[test]
fn a_request_from_before_an_early_read_is_never_executed() {
    let mut bench = Bench::new();
    bench.append(2, Kind::Open, 2, 0, &2u64.to_be_bytes());
    let of_two = |header: Header| Header {
        session: 2,
        order: 2,
        ..header
    };
    bench.give(&of_two(read(&bench, 2)), b"GET");
    bench.work();
    bench.give(&of_two(bypass(&bench, 2, 0, 1)), b"INCR");
    assert_eq!(kinds(&bench.work()), []);
    assert_eq!(bench.store.executed, [b"GET"]);
}

#[test]
fn an_old_copy_does_not_take_the_place_of_what_waits() {
    // The OPEN of the bypass's session is not applied yet.
    let mut bench = Bench::new();
    bench.append(2, Kind::Open, 2, 0, &2u64.to_be_bytes());
    for (request, payload) in [(2, b"NEW"), (1, b"OLD")] {
        let header = Header {
            session: 2,
            ..bypass(&bench, 2, 0, request)
        };
        bench.give(&header, payload);
    }
    let mut sent = bench.work();
    sent.retain(|s| s.header.kind == Kind::Response);
    assert_eq!(only(sent).header.request, raw(2));
    assert_eq!(bench.store.executed, [b"NEW"]);
    // An update that is sent as a fallback, and the confirmed fallback of an earlier update.
    let mut bench = Bench::new();
    let fallback = |bench: &Bench, barrier, seq| Header {
        flags: Flags::FALLBACK,
        ..bypass(bench, barrier, seq, seq)
    };
    bench.give(&fallback(&bench, 1, 1), b"u1");
    bench.work();
    bench.give(&fallback(&bench, 2, 2), b"u2");
    bench.give(&fallback(&bench, 1, 1), b"u1");
    assert_eq!(bench.work(), [], "the barrier of seq 2 is not reached");
    bench.append(2, Kind::Open, 2, 0, &2u64.to_be_bytes());
    let mut sent = bench.work();
    sent.retain(|s| s.header.kind == Kind::Response);
    assert_eq!(seqs(&sent), [2]);
    assert_eq!(bench.store.effects, [b"u1", b"u2"]);
}

/// After an END no client can ask for the session's reply, and ids of sessions are not used again. So the reply must go
/// with the session; otherwise it would be kept for ever.
#[test]
fn an_end_takes_the_kept_reply_with_it() {
    let mut bench = Bench::new();
    bench.give(&bypass(&bench, 1, 0, 1), b"INCR");
    bench.work();
    assert_eq!(bench.store.count("reply/"), 1);
    bench.append(2, Kind::End, SESSION, 1, b"");
    bench.work();
    assert_eq!(
        (bench.store.count("reply/"), bench.store.count("session/")),
        (0, 0)
    );
}

/// A client has sent only the first fragments of an update. These fragments must not become part of its next update.
#[test]
fn what_begins_anew_leaves_nothing_of_the_update_before_it() {
    for (fragments, staged_before) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut bench = Bench::new();
        let part = |bench: &mut Bench, order, index, count, text: &[u8]| {
            let header = Header {
                order,
                seq: order - 1,
                copies: raw(Kind::Update.number()),
                fragment_index: index,
                fragment_count: count,
                ..bench.header(Kind::Append)
            };
            bench.give(&header, text);
        };
        part(&mut bench, 2, 0, 3, b"torso");
        if staged_before {
            bench.work();
            assert_eq!(bench.store.count("stage/"), 1);
        }
        for index in 0..fragments {
            part(&mut bench, 3 + u64::from(index), index, fragments, b"new ");
        }
        bench.work();
        let whole = b"new ".repeat(usize::from(fragments));
        assert_eq!(bench.store.effects, [whole]);
        assert_eq!(bench.store.count("stage/"), 0);
        assert_eq!(bench.server.counters().rejected, 0);
    }
}

/// Two updates have the same order, session and seq, but other bytes. One of them may have been acknowledged.
#[test]
fn two_histories_that_differ_in_a_payload_stop_the_shard() {
    let mut bench = Bench::new();
    bench.update(2, 1);
    assert_eq!(bench.update(2, 1), [], "a mere duplicate");
    let other = Header {
        order: 2,
        seq: 1,
        copies: raw(Kind::Update.number()),
        ..bench.header(Kind::Append)
    };
    let stop = bench.try_give(&other, b"other").expect_err("a stop");
    assert!(stop.0.contains("two histories"), "{stop}");
    assert!(bench.store.effects.is_empty());
}

/// A device comes with another log, and its operator declares the data lost: the next epoch begins.
fn replaced(bench: &mut Bench, nonce: u64) {
    let lost = Member {
        log_uuid: 99,
        flags: Member::DECLARE_LOSS,
        word_epoch: EPOCH,
        ..member(1)
    };
    bench.recover(nonce, &[lost]);
    assert_eq!(bench.server.chain().expect("a chain").epoch, EPOCH + 1);
}

/// The barrier is an order of the old chain. In the new chain another entry may have that order.
#[test]
fn a_bypass_of_an_earlier_epoch_is_not_executed_in_the_next_one() {
    let mut bench = Bench::new();
    bench.give(&bypass(&bench, 2, 0, 1), b"INCR");
    replaced(&mut bench, 70);
    let open = Header {
        order: 2,
        session: 2,
        epoch: EPOCH + 1,
        copies: raw(Kind::Open.number()),
        ..bench.header(Kind::Append)
    };
    bench.give(&open, &2u64.to_be_bytes());
    assert_eq!(kinds(&bench.work()), [Kind::Applied]);
    assert_eq!(bench.server.watermark(), 2);
    assert!(bench.store.executed.is_empty(), "its client asks again");
}

/// A restarted head does not know which bypasses it has stamped. If such a bypass were executed now, it would take
/// effect after values that the head has shown since.
#[test]
fn a_bypass_of_an_earlier_life_of_the_head_is_not_executed() {
    let mut bench = Bench::new();
    bench.give(&bypass(&bench, 2, 0, 1), b"INCR");
    let known = bench.server.chain().expect("a chain").members[0];
    let again = Member {
        incarnation: known.incarnation + 1,
        flags: 0,
        ..known
    };
    bench.recover(71, &[again]);
    let chain = bench.server.chain().expect("a chain");
    assert_eq!((chain.epoch, chain.members[0].incarnation), (EPOCH, 2));
    bench.update(2, 1);
    bench.work();
    assert_eq!(bench.server.watermark(), 2);
    let late = bypass(&bench, 2, 1, 2);
    bench.give(&late, b"INCR");
    bench.work();
    assert!(bench.store.executed.is_empty(), "its client asks again");
    let stamped_again = Header {
        incarnation: 2,
        ..bypass(&bench, 2, 1, 2)
    };
    bench.give(&stamped_again, b"INCR");
    bench.work();
    assert_eq!(bench.store.executed.len(), 1);
}

/// A reader of a store compares the epoch in the store's records with the head's epoch. So a store that is no longer in
/// use must not name the epoch in which another store executes requests.
#[test]
fn another_store_begins_another_epoch_before_anything_is_executed_in_it() {
    let mut bench = Bench::new();
    let token = bench.server.chain().expect("a chain").shard_token;
    for (name, epoch) in [
        (None, EPOCH),
        (Some("a"), EPOCH + 1),
        (Some("a"), EPOCH + 1),
        // The store takes no writes, and is only read.
        (None, EPOCH + 1),
        (Some("b"), EPOCH + 2),
    ] {
        bench.store.name = name;
        bench = bench.restarted();
        let chain = bench.server.chain().expect("a chain");
        assert_eq!((chain.epoch, chain.shard_token), (epoch, token), "{name:?}");
        let record = bench.store.records.get(&b"chain"[..]).expect("its record");
        assert_eq!(record[..4], epoch.to_be_bytes());
        let executed = bench.store.executed.len();
        let old = bypass(&bench, 1, 0, u64::from(epoch));
        bench.give(&old, b"INCR");
        bench.work();
        let runs = usize::from(epoch == EPOCH);
        assert_eq!(bench.store.executed.len(), executed + runs, "{name:?}");
    }
    let named = bench.store.records.get(&b"store"[..]).expect("its record");
    assert_eq!(&named[..], b"b");
}

/// A controller asks for a new epoch. In it, no device can join by a report from the old epoch (protocol.md §14).
#[test]
fn an_epoch_that_is_ended_is_followed_by_one_with_the_same_members_and_no_old_joiner_joins() {
    let joins = |bench: &mut Bench| {
        let known = bench.server.chain().expect("a chain").members[0];
        let joiner = Member {
            flags: Member::JOIN,
            word_epoch: EPOCH,
            ..member(9)
        };
        let last = Member { flags: 0, ..known };
        bench.recover(70, &[last, joiner]);
        bench.server.chain().expect("a chain").members.len()
    };
    assert_eq!(joins(&mut Bench::new()), 2, "it could join in this epoch");

    let mut bench = Bench::new();
    let before = bench.server.chain().expect("a chain").clone();
    for other in [EPOCH - 1, EPOCH + 1] {
        bench.server.end_epoch(other);
        bench.work();
        assert_eq!(bench.server.chain(), Some(&before));
    }
    bench.server.end_epoch(EPOCH);
    bench.server.end_epoch(EPOCH);
    // The new epoch is written first.
    assert!(matches!(bench.pending(), Work::Apply(_)));
    assert_eq!(bench.server.chain(), Some(&before));
    bench.server.failed();
    bench.work();
    let after = bench.server.chain().expect("a chain").clone();
    assert_eq!((after.epoch, &after.members), (EPOCH + 1, &before.members));
    let record = bench.store.records.get(&b"chain"[..]).expect("its record");
    assert_eq!(record[..4], (EPOCH + 1).to_be_bytes());
    bench.server.end_epoch(EPOCH);
    assert_eq!(
        joins(&mut bench),
        1,
        "what it reported was of the epoch before"
    );
    assert_eq!(bench.server.chain(), Some(&after));
}

/// A RECOVER was answered in an earlier epoch. If it comes again in this epoch, the server decides again, because the
/// device may no longer be in the chain.
#[test]
fn a_question_from_an_earlier_epoch_is_decided_anew() {
    let mut bench = Bench::new();
    let known = bench.server.chain().expect("a chain").members[0];
    let known = Member { flags: 0, ..known };
    let reply = bench.recover(50, &[known]);
    assert!(reply[0].is(Kind::RecoverReply, Flags::READS), "{reply:?}");
    replaced(&mut bench, 70);
    let refused = only(bench.told(50, &[known]));
    assert!(
        refused.is(Kind::RecoverReply, Flags::REFUSED),
        "{refused:?}"
    );
    assert_eq!(
        RecoverReply::read(&refused.payload),
        None,
        "no table for it"
    );
}

/// The same nonce arrives in two epochs. The second answer has the state of the current epoch, with everything that was
/// applied after the first answer.
#[test]
fn a_nonce_that_was_answered_in_an_earlier_epoch_gets_the_present_state() {
    let mut bench = Bench::blank(crate::support::server::config());
    let members = [1, 2, 3].map(member);
    bench.recover(1, &members);
    bench.token = bench.server.chain().expect("a chain").shard_token;
    bench.recover(50, &members[2..]);
    let open = Header {
        order: 1,
        session: 1,
        epoch: 1,
        copies: raw(Kind::Open.number()),
        ..bench.header(Kind::Append)
    };
    bench.give(&open, &7u64.to_be_bytes());
    bench.work();
    let head = Member {
        flags: Member::SHRINK,
        word_epoch: 1,
        ..members[0]
    };
    bench.recover(60, &[head, members[2]]);
    let reply = bench.recover(50, &members[2..]);
    let reply = reply
        .iter()
        .find(|sent| sent.header.kind == Kind::RecoverReply)
        .expect("a reply");
    assert_eq!((reply.header.epoch, reply.header.order), (2, 1));
    let table = RecoverReply::read(&reply.payload).expect("a table");
    assert_eq!(table.sessions.len(), 1);
}

/// Two devices restart together. The registration of the second device must not be computed from the chain record
/// before the first registration, and overwrite it. Otherwise an old copy of the first device's log would be accepted
/// later.
#[test]
fn one_change_of_the_chain_at_a_time() {
    let restarted = |id| Member {
        incarnation: 2,
        served: 2,
        ..member(id)
    };
    for store_at_work in [false, true] {
        let mut bench = Bench::blank(crate::support::server::config());
        bench.recover(1, &[member(1), member(2)]);
        let path = [restarted(1), restarted(2)];
        assert_eq!(bench.ask(51, &path[1..]), []);
        let work = store_at_work.then(|| bench.pending());
        assert_eq!(bench.ask(52, &path), [], "later");
        let mut sent = work.map_or_else(Vec::new, |work| bench.done(&work));
        sent.extend(bench.work());
        assert_eq!(only(sent).header.request, raw(51));
        let lives = |bench: &Bench| -> Vec<u32> {
            let chain = bench.server.chain().expect("a chain");
            chain.members.iter().map(|m| m.incarnation).collect()
        };
        assert_eq!(lives(&bench), [1, 2], "what device 2 was told is kept");
        assert_eq!(only(bench.recover(52, &path)).header.request, raw(52));
        assert_eq!(lives(&bench), [2, 2]);
        assert_eq!(lives(&bench.restarted()), [2, 2]);
    }
}
