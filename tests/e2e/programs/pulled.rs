//! Servers whose store is a program (`pmnet_server::program`). The libraries of all languages use this interface.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pmnet_client::{ClientConfig, Closed, Finished, Session, SessionError};
use pmnet_lab::harness::{Medium, Process, Ready, Role, Spec, StoreKind, Topology};
use pmnet_server::ServerConfig;
use pmnet_server::program::{Kind, Program, ProgramError, RowsError};
use pmnet_server::serve::ServeConfig;
use pmnet_wire::{Payloads, program};

use super::{Chain, READY_MAX};
use crate::common;

const DEADLINE: Duration = Duration::from_secs(60);
/// Duration of a run of the program without a fault.
const CALM: Duration = Duration::from_millis(1500);
/// Maximum number of calls that a client makes for one request, if calls fail.
const ASKS: usize = 3;
const WAIT: Duration = Duration::from_millis(20);

/// The data of a program. A change replaces all data in one step.
#[derive(Clone, Default)]
struct Database {
    rows: BTreeMap<Vec<u8>, Bytes>,
    /// The updates in the order in which they took effect: session, number in the session, payload.
    applied: Vec<(u64, u64, Bytes)>,
    /// The requests that changed data, each with the number of updates that were applied before it.
    taken: Vec<(Bytes, usize)>,
}

/// The point at which a program dies, or what else it does with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    AfterNext,
    AfterReplies,
    AfterRows,
    AfterCommit,
    AfterDone,
    GivesBack,
    GivesBackWithRows,
    Confirms,
}

const ENDS: [End; 7] = [
    End::AfterNext,
    End::AfterReplies,
    End::AfterRows,
    End::AfterCommit,
    End::AfterDone,
    End::GivesBack,
    End::GivesBackWithRows,
];

fn config(chain: &Chain) -> ServeConfig {
    let mut server = ServerConfig::new(0);
    // The limit makes batches small, so that there are many of them.
    server.batch_entries_max = 5;
    ServeConfig::new(chain.server, server)
}

fn open(chain: &Chain, database: &Database) -> Program {
    Program::open(config(chain), database.rows.clone()).unwrap()
}

/// Takes one batch, if one arrives, and handles it as `end` says. Returns `false` if no batch arrived.
fn turn(program: &mut Program, database: &mut Database, end: End) -> bool {
    let Some(batch) = program.next(WAIT).unwrap() else {
        return false;
    };
    if end == End::AfterNext {
        return true;
    }
    if end == End::GivesBack {
        program.undone(batch.number).unwrap();
        return true;
    }
    let mut next = database.clone();
    for (at, item) in batch.items.iter().enumerate() {
        let source = item.source;
        match item.kind {
            Kind::Update => {
                let update = (source.session, source.number, item.payload.clone());
                next.applied.push(update);
                continue;
            }
            Kind::Bypass => next.taken.push((item.payload.clone(), next.applied.len())),
            Kind::Read => {}
        }
        let reply = next.applied.len().to_string();
        program.reply(at, reply.as_bytes()).unwrap();
    }
    if end == End::AfterReplies {
        return true;
    }
    for (key, value) in program.rows().unwrap() {
        match value {
            Some(value) => next.rows.insert(key.clone(), value.clone()),
            None => next.rows.remove(key),
        };
    }
    match end {
        End::AfterRows => return true,
        End::GivesBackWithRows => program.undone(batch.number).unwrap(),
        End::AfterCommit => *database = next,
        _ => {
            *database = next;
            program.done(batch.number).unwrap();
        }
    }
    true
}

fn session(chain: &Chain) -> Session {
    Session::start(ClientConfig::new(chain.via), DEADLINE).unwrap()
}

fn payload(text: &str) -> Bytes {
    program::payload(text.as_bytes()).into()
}

/// Sends a request, and returns the reply. If the server runs only for a tenth of a second at a time, it may miss all
/// packets that a client sends within its deadline. The call then fails and has no effect, so the client may make the
/// call again.
fn ask(session: &mut Session, text: &str, read_only: bool) -> Bytes {
    for _ in 0..ASKS {
        match session.bypass(payload(text), 0, read_only) {
            Err(SessionError::Failed(_)) => {}
            reply => return reply.unwrap(),
        }
    }
    panic!("{text}: no answer to {ASKS} calls")
}

/// Runs a client that sends updates, and a request after every tenth update. Returns the replies.
fn client(chain: &Chain, name: usize, updates: usize) -> Vec<(String, usize)> {
    let mut session = session(chain);
    let mut told = Vec::new();
    for number in 0..updates {
        // The last updates are too long for one packet.
        let text = format!("{name} {number} {}", "x".repeat(number * number % 5000));
        assert_eq!(session.update(payload(&text), 0).unwrap(), 1);
        if number % 10 == 9 {
            let read_only = number % 20 == 9;
            let text = format!("{name} asks at {number}");
            let reply = ask(&mut session, &text, read_only);
            let reply = std::str::from_utf8(program::reply_body(&reply).unwrap()).unwrap();
            if !read_only {
                told.push((text, reply.parse().unwrap()));
            }
        }
    }
    session.end().unwrap();
    told
}

#[test]
fn a_program_that_dies_anywhere_loses_nothing_and_does_nothing_twice() {
    const CLIENTS: usize = 3;
    const UPDATES: usize = 100;
    let chain = Chain::launch("pulled");
    let mut database = Database::default();
    let over = AtomicBool::new(false);
    let told = thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let told: Vec<_> = thread::scope(|scope| {
                let each: Vec<_> = (0..CLIENTS)
                    .map(|name| {
                        scope.spawn({
                            let chain = &chain;
                            move || client(chain, name, UPDATES)
                        })
                    })
                    .collect();
                each.into_iter().map(|one| one.join()).collect()
            });
            over.store(true, Ordering::SeqCst);
            told
        });
        let mut lives = 0;
        let begun = Instant::now();
        while !over.load(Ordering::SeqCst) {
            assert!(begun.elapsed() < DEADLINE * 4, "the clients do not end");
            let mut program = open(&chain, &database);
            // Takes some batches, and then ends the program.
            for round in 0.. {
                let end = ENDS[lives % ENDS.len()];
                let end = if round < lives % 4 {
                    End::Confirms
                } else {
                    end
                };
                let came = turn(&mut program, &mut database, end);
                if came && end != End::Confirms {
                    break;
                }
                if over.load(Ordering::SeqCst) {
                    break;
                }
            }
            lives += 1;
            drop(program);
            // The clients send again at increasing intervals. So a server that runs only for short times would miss
            // their packets, and must sometimes run for longer.
            if lives % (3 * ENDS.len()) == 0 {
                let mut program = open(&chain, &database);
                let born = Instant::now();
                while born.elapsed() < CALM && !over.load(Ordering::SeqCst) {
                    turn(&mut program, &mut database, End::Confirms);
                }
            }
        }
        // Applies all remaining updates of the log.
        let mut program = open(&chain, &database);
        while turn(&mut program, &mut database, End::Confirms) {}
        println!(
            "{lives} lives, {} batches of updates",
            database.applied.len()
        );
        assert!(lives >= 3 * ENDS.len(), "{lives} lives are too few");
        clients.join().unwrap()
    });
    let mut wanted: Vec<String> = Vec::new();
    for name in 0..CLIENTS {
        wanted.extend((0..UPDATES).map(|number| format!("{name} {number} ")));
    }
    let begins = |payload: &Bytes| {
        let text = String::from_utf8_lossy(payload).into_owned();
        text.trim_end_matches('x').to_owned()
    };
    let mut found: Vec<String> = database
        .applied
        .iter()
        .map(|(_, _, one)| begins(one))
        .collect();
    // The updates of each client must be in order.
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for (session, number, _) in &database.applied {
        let before = last.insert(*session, *number);
        assert!(
            before.is_none_or(|before| before < *number),
            "session {session}"
        );
    }
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
    // Each request must have taken effect once, with the reply that its client got.
    let told: Vec<(String, usize)> = told.into_iter().flat_map(|one| one.unwrap()).collect();
    let once: HashSet<&Bytes> = database.taken.iter().map(|(text, _)| text).collect();
    assert_eq!((once.len(), database.taken.len()), (told.len(), told.len()));
    for (text, reply) in told {
        let taken = database
            .taken
            .iter()
            .find(|(taken, _)| *taken == text.as_bytes());
        assert_eq!(taken.unwrap().1, reply, "{text}");
    }
}

/// Runs a program as the server until this client has done its work.
fn served<T: Send>(
    program: &mut Program,
    database: &mut Database,
    work: impl FnOnce() -> T + Send,
) -> T {
    thread::scope(|scope| {
        let work = scope.spawn(work);
        while !work.is_finished() {
            turn(program, database, End::Confirms);
        }
        while turn(program, database, End::Confirms) {}
        work.join().unwrap()
    })
}

/// No later call could report the loss, so the end of the session must report it.
#[test]
fn a_loss_is_told_at_the_end_of_a_session() {
    let mut chain = Chain::launch("told");
    let mut database = Database::default();
    let mut program = open(&chain, &database);
    let mut session = served(&mut program, &mut database, || {
        let mut session = session(&chain);
        session.update(payload("applied"), 0).unwrap();
        session
    });
    // The program takes no batches now, so only the device's log has this update.
    assert_eq!(session.update(payload("lost"), 0).unwrap(), 1);
    chain.lose_device();
    let end = served(&mut program, &mut database, move || session.end());
    let is_told = matches!(end, Err(SessionError::Closed(Closed::DataLoss { .. })));
    assert!(is_told, "{end:?}");
    assert_eq!(database.applied.len(), 1);
}

#[test]
fn a_watermark_from_before_what_was_confirmed_is_refused() {
    let mut chain = Chain::launch("older");
    let mut database = Database::default();
    let mut program = open(&chain, &database);
    served(&mut program, &mut database, || client(&chain, 0, 5));
    let earlier = database.clone();
    served(&mut program, &mut database, || client(&chain, 1, 20));
    drop(program);

    // The device has already dropped the confirmed entries.
    let mut program = open(&chain, &earlier);
    let mut went_back = earlier.clone();
    let begun = Instant::now();
    let ended = loop {
        turn(&mut program, &mut went_back, End::Confirms);
        if let Some(status) = chain.device.exited().unwrap() {
            break status;
        }
        assert!(
            begun.elapsed() < DEADLINE,
            "the device goes on: {}",
            chain.device.stderr()
        );
        // This update makes the server notice the wrong data.
        let mut config = ClientConfig::new(chain.via);
        config.queue_max = 1;
        let mut session = Session::start(config, Duration::from_millis(50)).unwrap();
        let _ = session.update(payload("late"), 0);
    };
    assert_eq!(ended.code(), Some(1));
    let text = chain.device.stderr();
    assert!(text.contains("lost data"), "{text}");
    assert_eq!(went_back.applied.len(), earlier.applied.len());
    drop(program);

    // With the right data, the program continues.
    chain.device.relaunch().unwrap();
    let mut program = open(&chain, &database);
    served(&mut program, &mut database, || client(&chain, 2, 5));
    // The device had admitted some updates before it noticed the loss. These updates are applied like all others.
    let late = |payload: &Bytes| payload == "late";
    let found = database.applied.iter().filter(|(_, _, one)| !late(one));
    assert_eq!(found.count(), 30);
}

#[test]
fn requests_that_are_for_a_redis_are_refused_and_do_no_harm() {
    let chain = Chain::launch("foreign");
    let mut database = Database::default();
    let mut program = open(&chain, &database);
    served(&mut program, &mut database, || {
        let mut session = session(&chain);
        let command = Bytes::from(pmnet_wire::command::single(&["SET", "k", "v"]));
        assert_eq!(session.update(command.clone(), 0).unwrap(), 1);
        for read_only in [false, true] {
            let reply = session.bypass(command.clone(), 0, read_only).unwrap();
            assert!(reply.starts_with(b"-ERR pmnet: a program"), "{reply:?}");
        }
        let barrier = Bytes::from(pmnet_wire::command::barrier());
        let reply = session.bypass(barrier, 0, false).unwrap();
        assert!(reply.starts_with(b"-ERR pmnet: a program"), "{reply:?}");
        session.end().unwrap();
        client(&chain, 0, 10);
    });
    assert_eq!(database.applied.len(), 10);
}

/// Starts the session of a client that states the kind of its payloads.
fn session_of(via: SocketAddr, payloads: Payloads) -> Session {
    let config = ClientConfig {
        payloads,
        ..ClientConfig::new(via)
    };
    Session::start(config, DEADLINE).unwrap()
}

/// Checks that neither an update nor a request has an effect, and that the session ends afterwards. `taken`: the kind
/// of payloads that the server accepts.
fn is_refused(mut session: Session, payload: &Bytes, taken: Payloads) {
    session.update_start(payload.clone(), 0, 1).unwrap();
    session.bypass_start(payload.clone(), 0, false, 2).unwrap();
    let mut ended = Vec::new();
    let why = loop {
        match session.next(DEADLINE) {
            Ok(Some(finished)) => ended.push(finished),
            Ok(None) => panic!("nobody answers"),
            Err(error) => break error,
        }
    };
    let none = |one: &Finished| matches!(one.result, Err(SessionError::Failed(_)));
    assert!(ended.len() == 2 && ended.iter().all(none), "{ended:?}");
    let closed =
        |reason| matches!(reason, SessionError::Closed(Closed::OtherPayloads(by)) if by == taken);
    assert!(closed(why));
    assert!(closed(session.update(payload.clone(), 0).unwrap_err()));
}

/// Starts a front for Redis commands with the devices of this chain.
fn front(role: &str, chain: &Chain) -> (Process, TcpStream) {
    let via = chain.via.to_string();
    let words = [role, "--listen", "127.0.0.1:0", "--via", &via, "--json"];
    let spec = Spec {
        name: role.to_owned(),
        binaries: common::binaries().clone(),
        program: None,
        args: words.iter().map(Into::into).collect(),
        ready: Ready::Line,
    };
    let front = Process::start(spec, chain.scratch.disk(), READY_MAX).unwrap();
    let ready: serde_json::Value =
        serde_json::from_str(front.stdout().lines().next().unwrap()).unwrap();
    let client = TcpStream::connect(ready["listen"].as_str().unwrap()).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    (front, client)
}

/// Sends a command to a front. Returns the first line of the answer.
fn line(client: &mut TcpStream, sent: &str) -> String {
    client.write_all(sent.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line).unwrap();
    line
}

/// An acknowledged update must take effect. So a shard whose store is a program acknowledges nothing to a front for
/// Redis commands.
#[test]
fn clients_of_commands_get_no_session_from_the_shard_of_a_program() {
    let chain = Chain::launch("foreign-commands");
    let mut database = Database::default();
    let mut program = open(&chain, &database);
    served(&mut program, &mut database, || {
        let command = Bytes::from(pmnet_wire::command::single(&["SET", "k", "v"]));
        let session = session_of(chain.via, Payloads::COMMANDS);
        is_refused(session, &command, Payloads::PROGRAM);
        let (_redis, mut client_of_redis) = front("redis", &chain);
        // Before the front sends anything, it asks the store for its users. The program must refuse this question.
        let said = line(&mut client_of_redis, "SET k v\r\n");
        assert!(said.starts_with("-ERR pmnet: "), "{said}");
        let (_memcached, mut client_of_memcached) = front("memcached", &chain);
        let said = line(&mut client_of_memcached, "set k 0 0 1\r\nv\r\n");
        assert!(
            said.contains("the server of this shard is a program of its own"),
            "{said}"
        );
        // A client with the right kind of payloads can continue, and so can a client that states no kind.
        let mut right = session_of(chain.via, Payloads::PROGRAM);
        assert_eq!(right.update(payload("right"), 0).unwrap(), 1);
        right.end().unwrap();
        client(&chain, 0, 10);
    });
    assert_eq!(database.applied.len(), 11);
    let said = chain.device.stderr();
    assert!(said.contains("PM1119"), "{said}");
}

/// A shard whose store is Redis acknowledges nothing to the client of a program.
#[test]
fn clients_of_a_program_get_no_session_from_the_shard_of_a_redis() {
    get_no_session("foreign-program", StoreKind::Redis);
}

/// A device that is also the server also states which payloads it accepts.
#[test]
fn clients_of_a_program_get_no_session_from_a_device_with_a_store() {
    get_no_session("foreign-region", StoreKind::Region);
}

/// The refusal must also hold after a restart of the head.
fn get_no_session(name: &str, store: StoreKind) {
    let mut topology = Topology::new(store, 2, Medium::Dram).unkeyed();
    topology.front = false;
    let Some(mut cluster) = common::start(name, topology) else {
        return;
    };
    let via = cluster.head().unwrap();
    for round in 0..2 {
        is_refused(
            session_of(via, Payloads::PROGRAM),
            &payload("+1"),
            Payloads::COMMANDS,
        );
        let mut right = session_of(via, Payloads::COMMANDS);
        let command = Bytes::from(pmnet_wire::command::single(&["INCR", "rounds"]));
        assert_eq!(right.update(command, 0).unwrap(), 2);
        let get = Bytes::from(pmnet_wire::command::single(&["GET", "rounds"]));
        let reply = right.bypass(get, 0, true).unwrap();
        assert_eq!(reply, format!("$1\r\n{}\r\n", round + 1));
        right.end().unwrap();
        cluster.kill(Role::Device(0)).unwrap();
        cluster.restart(Role::Device(0)).unwrap();
    }
}

#[test]
fn a_call_that_was_given_up_takes_effect_once_at_most() {
    let chain = Chain::launch("given-up");
    let mut database = Database::default();
    let mut program = open(&chain, &database);
    served(&mut program, &mut database, || client(&chain, 0, 1));
    // The program does nothing for longer than the caller waits. So the outcome is unknown, and the session sends a
    // fence.
    let mut session =
        Session::start(ClientConfig::new(chain.via), Duration::from_millis(300)).unwrap();
    let unknown = session.bypass(payload("given up"), 0, false).unwrap_err();
    assert!(
        matches!(unknown, SessionError::Unknown | SessionError::Failed(_)),
        "{unknown}"
    );
    let reply = served(&mut program, &mut database, || {
        let begun = Instant::now();
        loop {
            match session.bypass(payload("asked again"), 0, false) {
                Ok(reply) => return reply,
                Err(error) => assert!(begun.elapsed() < DEADLINE, "{error}"),
            }
        }
    });
    assert_eq!(program::reply_body(&reply), Some(&b"1"[..]));
    let given_up = database.taken.iter().filter(|(text, _)| text == "given up");
    assert!(given_up.count() <= 1);
}

#[test]
fn two_programs_at_one_place_or_wrong_rows_are_errors() {
    let chain = Chain::launch("refused");
    let mut database = Database::default();
    let mut program = open(&chain, &database);
    served(&mut program, &mut database, || client(&chain, 0, 3));
    drop(program);
    let mut other = config(&chain);
    other.server.shard = 5;
    let error = Program::open(other, database.rows.clone()).unwrap_err();
    let shard = RowsError::OtherShard {
        found: 0,
        wanted: 5,
    };
    assert!(matches!(error, ProgramError::Rows(why) if why == shard));
    for key in database.rows.keys() {
        let mut fewer = database.rows.clone();
        fewer.remove(key);
        let error = Program::open(config(&chain), fewer).unwrap_err();
        assert!(
            matches!(error, ProgramError::Rows(RowsError::Mixed)),
            "{error}"
        );
    }
}
