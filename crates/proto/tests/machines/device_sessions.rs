//! How sessions begin and end at the head (`docs/spec/protocol.md` §4).

use crate::support::device::{
    Bench, ROOM, client, config, from_client, from_hop, server, table, update,
};
use crate::support::{EPOCH, SESSION, TOKEN, only};
use pmnet_proto::Time;
use pmnet_proto::device::{DeviceConfig, Verdict};
use pmnet_proto::time::SECOND;
use pmnet_wire::packet::{Identity, NotLogged};
use pmnet_wire::record::SessionRow;
use pmnet_wire::{Flags, Header, Kind, Payloads, raw};

const fn with(token: u64) -> Identity {
    Identity { token, front: None }
}

/// A repeated OPEN gets the same session until that session is used. An OPEN that is sent after the session was used
/// comes from a client that begins again with seq 1. It must not get the used session.
#[test]
fn an_open_that_comes_again_after_its_session_was_used_makes_another_one() {
    let mut bench = Bench::head(1);
    let open = Header {
        session: 0,
        ..from_client(Kind::Open, 0)
    };
    let token = TOKEN.to_be_bytes();
    let again = only(bench.answer(client(), &open, &token));
    assert_eq!(
        (again.header.kind, again.header.session),
        (Kind::OpenReply, SESSION),
        "unused: the same"
    );
    bench.admit(&update(1), b"payload");
    let entry = bench.admit(&open, &token);
    assert_eq!((entry.session, entry.order), (3, 3));
    let first = Header {
        session: 3,
        ..update(1)
    };
    bench.admit(&first, b"payload");
    bench.admit(&update(2), b"the first one goes on");
}

/// A client that searches for the head may reach a new chain of which only one device runs yet. After a first session
/// no further device could join the chain by itself.
#[test]
fn a_chain_without_an_entry_takes_no_open_of_who_looks_for_the_head() {
    let token = TOKEN.to_be_bytes();
    let known = Header {
        session: 0,
        ..from_client(Kind::Open, 0)
    };
    let searches = Header {
        flags: Flags::SEARCHES,
        ..known
    };
    let mut bench = Bench::serving(1, 1);
    assert_eq!(bench.give(client(), &searches, &token), Verdict::Done);
    assert_eq!(bench.take(), []);
    let entry = bench.admit(&known, &token);
    assert_eq!((entry.order, entry.flags), (1, Flags::default()));
    let another = Header {
        tag: TOKEN + 2,
        ..searches
    };
    let entry = bench.admit(&another, &(TOKEN + 2).to_be_bytes());
    assert_eq!((entry.order, entry.flags), (2, Flags::default()));
}

/// The server would skip the updates of such a session after their client was told that they are durable.
#[test]
fn a_session_whose_payloads_the_server_does_not_take_is_not_begun() {
    let token = TOKEN.to_be_bytes();
    let kinds = [Payloads::COMMANDS, Payloads::PROGRAM];
    let all = [kinds[0], kinds[1], Payloads::NOT_SAID];
    for (takes, sends) in all
        .into_iter()
        .flat_map(|takes| all.map(|sends| (takes, sends)))
    {
        let open = Header {
            session: 0,
            order: sends.on_wire(),
            ..from_client(Kind::Open, 0)
        };
        let mut bench = Bench::serving_for(takes, 1, config(1, server()));
        let said = takes != Payloads::NOT_SAID && sends != Payloads::NOT_SAID;
        if !said || takes == sends {
            let entry = bench.admit(&open, &token);
            assert_eq!((entry.order, entry.session, entry.seq), (1, 1, 0));
            continue;
        }
        let sent = only(bench.answer(client(), &open, &token));
        let why = NotLogged::read(&sent.header);
        assert_eq!(
            (
                sent.header.kind,
                sent.header.tag,
                why.session,
                why.why,
                why.room
            ),
            (
                Kind::NotLogged,
                TOKEN,
                0,
                NotLogged::OTHER_PAYLOADS,
                takes.on_wire()
            ),
            "{takes:?} {sends:?}"
        );
        assert_eq!(bench.device.counters().other_payloads, 1);
        // The head knows no session for this update.
        let update = only(bench.answer(client(), &update(1), b"payload"));
        assert!(update.is(Kind::Nack, Flags::UNKNOWN_SESSION));
    }
}

/// Further devices of a new chain may still be starting. The first entry would exclude them, and this client, which
/// demands more copies, would gain nothing.
#[test]
fn a_chain_without_an_entry_takes_no_open_of_who_wants_more_copies() {
    let token = TOKEN.to_be_bytes();
    let open = |copies| Header {
        session: 0,
        copies: raw(copies),
        ..from_client(Kind::Open, 0)
    };
    let mut bench = Bench::serving(1, 1);
    let reply = only(bench.answer(client(), &open(2), &token)).header;
    assert_eq!(
        (reply.kind, reply.session, reply.copies, reply.tag),
        (Kind::OpenReply, 0, raw(1), TOKEN)
    );
    let entry = bench.admit(&open(1), &token);
    assert_eq!(entry.order, 1);
    // Once the log has an entry, another session excludes no further device.
    let another = Header {
        tag: TOKEN + 2,
        ..open(2)
    };
    let entry = bench.admit(&another, &(TOKEN + 2).to_be_bytes());
    assert_eq!(entry.order, 2);
    let mut whole = Bench::serving(2, 1);
    assert_eq!(whole.admit(&open(2), &token).order, 1);
}

/// A head that has decided to end its silent session, and has not appended the END yet.
fn bench_found_silent() -> Bench {
    let config = DeviceConfig {
        session_idle: SECOND,
        ..config(1, server())
    };
    let mut bench = Bench::head_with(1, config);
    bench.now = bench.now + 2 * SECOND;
    bench.tick();
    bench
}

/// The head decides to end the silent session. Before the head ends the session, an update arrives from the fast path,
/// which was held too late to stop the update.
#[test]
fn a_session_that_speaks_at_the_last_moment_is_not_ended() {
    let mut bench = bench_found_silent();
    assert!(bench.device.own_entries() > 0);
    bench.admit(&update(1), b"payload");
    assert_eq!(bench.device.poll_own_entry(bench.now, ROOM), None);
    bench.admit(&update(2), b"the session goes on");
}

/// The head decides to end the silent session. Before the head ends the session, the client's own END arrives.
#[test]
fn a_session_is_ended_once() {
    let mut bench = bench_found_silent();
    bench.admit(&from_client(Kind::End, 1), b"");
    // The head's END waited for space in the log for two seconds, after which the session counts as silent again.
    bench.now = bench.now + 2 * SECOND;
    assert_eq!(bench.device.poll_own_entry(bench.now, ROOM), None);
    assert_eq!(bench.device.counters().expired_sessions, 0);
    assert_eq!(bench.device.cursors().0, 2, "the OPEN and one END");
}

/// A NIC acknowledges messages of a session that sends nothing to the head: the messages wait in slots. Regression: an
/// END of the head took the seq of the first message.
#[test]
fn a_session_with_a_connection_is_not_ended_before_its_slots_are_processed() {
    let config = DeviceConfig {
        session_idle: SECOND,
        ..config(1, server())
    };
    let mut bench = Bench::head_with(1, config);
    assert!(
        !bench.device.bind(SESSION, with(TOKEN + 2)),
        "another token"
    );
    assert!(
        !bench.device.bind(SESSION + 1, with(TOKEN)),
        "no such session"
    );
    assert!(bench.device.bind(SESSION, with(TOKEN)));
    assert!(
        bench.device.bind(SESSION, with(TOKEN)),
        "its next connection"
    );
    for _ in 0..2 {
        bench.now = bench.now + 2 * SECOND;
        assert_eq!(ended(&mut bench), []);
        bench.device.unbind(bench.now, SESSION);
    }
    // The session's silence counts from the end of its last connection.
    bench.now = bench.now + 2 * SECOND;
    assert_eq!(ended(&mut bench), [SESSION]);
    assert!(!bench.device.bind(SESSION, with(TOKEN)), "it is over");
}

/// Messages that a NIC has acknowledged wait in slots while the epoch changes, and the client connects again before
/// they are processed. Regression: the end of the old connection was taken for the end of the new connection, and the
/// session then counted no connection.
#[test]
fn a_new_epoch_keeps_the_connections_of_a_session() {
    let config = DeviceConfig {
        session_idle: SECOND,
        ..config(1, server())
    };
    let mut bench = Bench::head_with(1, config);
    assert!(
        bench.device.bind(SESSION, with(TOKEN)),
        "its old connection"
    );
    let later = Header {
        epoch: EPOCH + 1,
        ..from_hop(Kind::Applied, 0)
    };
    bench.answer(server(), &later, b"");
    let recover = only(bench.tick());
    let reply = Header {
        kind: Kind::RecoverReply,
        epoch: EPOCH + 1,
        order: 1,
        tag: 0,
        ..recover.header
    };
    let row = SessionRow {
        session: SESSION,
        last_seq: 0,
        token: TOKEN,
        front: None,
    };
    let verdict = bench.give(server(), &reply, &table(1, &[row]));
    bench.resume(&verdict);
    assert!(bench.device.is_serving());
    assert!(
        bench.device.bind(SESSION, with(TOKEN)),
        "its new connection"
    );
    // The slots of the old connection are processed.
    bench.device.unbind(bench.now, SESSION);
    bench.now = bench.now + 2 * SECOND;
    assert_eq!(ended(&mut bench), [], "the new one is there");
}

/// The head had decided to end the silent session when its client connected.
#[test]
fn a_session_that_connects_at_the_last_moment_is_not_ended() {
    let mut bench = bench_found_silent();
    assert!(bench.device.bind(SESSION, with(TOKEN)));
    assert_eq!(bench.device.poll_own_entry(bench.now, ROOM), None);
    bench.admit(&update(1), b"it waited in a slot");
}

/// Returns the OPEN of a client with this name and this start number.
fn open_of(client: u64, start: u64, token: u64) -> (Header, [u8; 8]) {
    let open = Header {
        session: 0,
        tag: token,
        request: raw(client),
        key_hash: raw(start),
        ..from_client(Kind::Open, 0)
    };
    (open, token.to_be_bytes())
}

/// The sessions that the head ends at the next tick, which is a second later.
fn ended(bench: &mut Bench) -> Vec<u64> {
    bench.tick_after(SECOND);
    let ends = std::iter::from_fn(|| bench.device.poll_own_entry(bench.now, ROOM));
    ends.map(|entry| entry.session).collect()
}

/// A front that crashes leaves its sessions open. (Regression: after some crashes the head had no room for other
/// sessions, for ten minutes.)
#[test]
fn who_was_started_again_ends_the_sessions_of_its_former_start_and_no_others() {
    const FRONT: u64 = 77;
    const OTHER: u64 = 78;
    let mut bench = Bench::serving(1, 1);
    let mut token = 100;
    let mut open = |bench: &mut Bench, client: u64, start: u64| {
        token += 2;
        let (open, payload) = open_of(client, start, token);
        bench.admit(&open, &payload).session
    };
    let former = [open(&mut bench, FRONT, 5), open(&mut bench, FRONT, 5)];
    open(&mut bench, OTHER, 4);
    open(&mut bench, 0, 0);
    assert_eq!(ended(&mut bench), [], "all of them are there");
    let present = open(&mut bench, FRONT, 6);
    assert_eq!(ended(&mut bench), former);
    assert_eq!(bench.device.counters().succeeded_sessions, 2);
    // A late OPEN of the earlier start ends no session. The session that it opens is ended at the next search.
    let late = open(&mut bench, FRONT, 5);
    assert_eq!(ended(&mut bench), []);
    // A copy of the front on another computer, with another address, is no later start.
    let (copy, payload) = open_of(FRONT, 7, 9_000);
    let elsewhere = crate::support::peer(201);
    assert!(matches!(
        bench.give(elsewhere, &copy, &payload),
        Verdict::Append(_)
    ));
    assert_eq!(ended(&mut bench), [late]);
    let ping = Header {
        session: present,
        tag: 110,
        ..from_client(Kind::Ping, 0)
    };
    assert_eq!(
        only(bench.answer(client(), &ping, &[])).header.kind,
        Kind::Pong
    );
}

/// Regression: a client stated a higher start in each packet. For each packet the head searched all sessions, and
/// queued all of them again.
#[test]
fn a_start_that_rises_with_each_packet_is_looked_for_once_in_a_second() {
    const CLIENT: u64 = 77;
    let mut bench = Bench::serving(1, 1);
    let mut sessions = Vec::new();
    for token in (100..140).step_by(2) {
        let (open, payload) = open_of(CLIENT, 1, token);
        sessions.push(bench.admit(&open, &payload).session);
    }
    bench.tick_after(SECOND);
    // The last session states a later start in each PING.
    let ping = |start: u64| Header {
        session: *sessions.last().unwrap(),
        tag: 138,
        request: raw(CLIENT),
        key_hash: raw(start),
        ..from_client(Kind::Ping, 0)
    };
    for start in 2..1000 {
        bench.answer(client(), &ping(start), &[]);
        bench.tick();
    }
    assert_eq!(bench.device.own_entries(), 0, "that was less than a second");
    bench.tick_after(SECOND);
    assert_eq!(bench.device.own_entries(), sessions.len() - 1, "each once");
    sessions.pop();
    assert_eq!(ended(&mut bench), sessions);
}

/// A head that has not seen the OPENs learns the clients of its sessions from PINGs.
#[test]
fn whose_a_session_is_may_be_heard_later() {
    let mut bench = Bench::head(1);
    let ping = Header {
        request: raw(77),
        key_hash: raw(5),
        ..from_client(Kind::Ping, 0)
    };
    assert_eq!(
        only(bench.answer(client(), &ping, &[])).header.kind,
        Kind::Pong
    );
    let (open, payload) = open_of(77, 6, 9_000);
    bench.admit(&open, &payload);
    assert_eq!(ended(&mut bench), [SESSION]);
}

#[test]
fn if_there_is_no_room_the_longest_silent_session_goes_and_none_that_is_used() {
    let config = DeviceConfig {
        sessions_max: 3,
        session_quiet: 10 * SECOND,
        ..config(1, server())
    };
    let mut bench = Bench::serving_with(1, config);
    let tokens = [102, 104, 106];
    for token in tokens {
        let (open, payload) = open_of(0, 0, token);
        bench.admit(&open, &payload);
    }
    let refused = |bench: &mut Bench| {
        let (open, payload) = open_of(0, 0, 200);
        only(bench.answer(client(), &open, &payload)).header
    };
    // All sessions are in use.
    let said = refused(&mut bench);
    assert_eq!(
        (said.kind, said.session, said.copies),
        (Kind::NotLogged, 0, raw(1))
    );
    assert_eq!(ended(&mut bench), []);
    bench.now = bench.now + 9 * SECOND;
    for (session, token) in [(1, 102), (3, 106)] {
        let ping = Header {
            session,
            tag: token,
            ..from_client(Kind::Ping, 0)
        };
        bench.answer(client(), &ping, &[]);
        bench.now = bench.now + SECOND;
    }
    refused(&mut bench);
    assert_eq!(ended(&mut bench), [2]);
    assert_eq!(bench.device.counters().crowded_out_sessions, 1);
    // The client of the ended session learns the reason, and the last seq: no update is lost.
    bench.device.persisted(4);
    let late = Header {
        session: 2,
        tag: 104,
        ..from_client(Kind::Bypass, 0)
    };
    let over = bench.finish();
    assert!(
        over.iter()
            .any(|sent| sent.header.kind == Kind::Nack && sent.header.session == 2),
        "{over:?}"
    );
    let applied = Header {
        order: 4,
        request: raw(10),
        ..crate::support::device::from_hop(Kind::Applied, 0)
    };
    bench.give(server(), &applied, &[]);
    bench.take();
    let said = only(bench.answer(client(), &late, b"x")).header;
    assert_eq!(
        (said.kind, said.flags),
        (Kind::Nack, Flags::UNKNOWN_SESSION)
    );
    assert_eq!((said.seq, said.copies), (1, raw(2)));
    // The table has a free place now.
    let (open, payload) = open_of(0, 0, 200);
    bench.admit(&open, &payload);
    // About a session that never existed, the head does not give the answer of an ended session.
    let forged = Header { tag: 999, ..late };
    let said = only(bench.answer(client(), &forged, b"x")).header;
    assert_eq!((said.seq, said.copies), (0, raw(0)));
}

/// A command that a front passed to the store, and that waits in the store, may be executed after the front has gone.
/// So the front's mark is ended only after the usual silence.
#[test]
fn a_mark_goes_neither_with_its_clients_former_start_nor_to_make_room() {
    let config = DeviceConfig {
        sessions_max: 1,
        session_quiet: 10 * SECOND,
        ..config(1, server())
    };
    let mut bench = Bench::serving_with(1, config);
    let (mark, payload) = open_of(77, 5, 101);
    let mark = bench.admit(&mark, &payload).session;
    bench.now = bench.now + 20 * SECOND;
    let (open, payload) = open_of(77, 6, 200);
    bench.answer(client(), &open, &payload);
    assert_eq!(ended(&mut bench), []);
    bench.now = bench.now + 600 * SECOND;
    assert_eq!(ended(&mut bench), [mark]);
    assert_eq!(bench.device.counters().expired_sessions, 1);
}

/// An earlier start may have left very many sessions. The head ends a few of them at a time, so that other clients need
/// not wait until all have ended.
#[test]
fn many_sessions_end_a_few_at_a_time() {
    const MANY: u64 = 600;
    let mut bench = Bench::serving(1, 1);
    for number in 1..=MANY {
        let (open, payload) = open_of(77, 5, 2 * number);
        bench.admit(&open, &payload);
    }
    let (open, payload) = open_of(77, 6, 9_000);
    bench.admit(&open, &payload);
    let mut all = Vec::new();
    let mut bursts = 0;
    loop {
        let some = ended(&mut bench);
        assert!(some.len() <= 256, "{}", some.len());
        all.extend(some);
        bursts += 1;
        bench.finish();
        if bench.device.next_timeout() != Some(Time(0)) {
            break;
        }
    }
    assert_eq!((all, bursts), ((1..=MANY).collect(), 3));
}
