//! Leases (`docs/spec/protocol.md` §14) in the pipeline. The tests compare a pipeline with the device in user space
//! while leases end and are renewed. They check the end of a lease with the real clock, and a process that dies, is
//! replaced, or uses no leases.

use std::sync::atomic::Ordering::SeqCst;

use fastrand::Rng;
use pmnet_device::{DeviceConfig, FastPath};
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_proto::{Peer, Time};
use pmnet_wire::packet::write_hashes;
use pmnet_wire::{Header, Kind, Packet, raw};

use crate::chain;
use crate::differential::{PACKETS, PACKETS_ALL, Run, compared, number};
use crate::load::of_client;
use crate::races::{Bench, address, applied, client, durable, next, written};
use crate::rig::{Passed, run};
use crate::shared::FOR_EVER;
use crate::world::{Words, World, boottime, settings, skipped};

/// Longest lease in the stories that are compared.
const LEASE_MAX: u64 = 6 * MILLISECOND;
/// A lease that does not end while a test runs.
const LONG: u64 = 3_600 * SECOND;
/// A lease that ends while a test watches.
const SHORT: u64 = 40 * MILLISECOND;
/// The key of all updates, and a second key.
const KEY: u64 = 1 << 40;
const OTHER: u64 = 2 << 40;

/// Two devices that are compared, and their leases.
struct Leased<R> {
    run: R,
    rng: Rng,
}

impl<R> Leased<R> {
    fn new(seed: u64, run: R) -> Leased<R> {
        Leased {
            run,
            rng: Rng::with_seed(!seed),
        }
    }

    /// Takes one step. Before it, the lease is sometimes renewed by an answer that took some time, or the clock moves
    /// to the lease's end or to just before it.
    fn step(&mut self, world: fn(&mut R) -> &mut World, step: fn(&mut R)) {
        let world = world(&mut self.run);
        match self.rng.u8(..100) {
            0..=9 => {
                let sent_at = world.now.0.saturating_sub(self.rng.u64(..MILLISECOND));
                world.renew(Time(sent_at), self.rng.u64(..LEASE_MAX));
            }
            10 => {
                let deadline = world.reference.machine().deadline().unwrap_or_default();
                let to = (deadline.0 + 1).saturating_sub(self.rng.u64(..3));
                world.now = world.now.max(Time(to));
                world.finish();
            }
            _ => {}
        }
        step(&mut self.run);
    }
}

#[test]
fn with_leases_that_end_the_kernel_answers_as_user_space_does() {
    if skipped() {
        return;
    }
    let begin = |seed| {
        let run = Run::new(seed, |address, settings| {
            World::new(address, |device| {
                settings(device);
                device.leased = true;
            })
        });
        Leased::new(seed, run)
    };
    let step = |leased: &mut Leased<Run<World>>| leased.step(|run| &mut run.world, Run::step);
    let packets = number("PMNET_PACKETS", PACKETS_ALL);
    let (hits, misses) = compared(packets, "answered", begin, step, |of| &of.run.world);
    let few = packets < 10 * PACKETS;
    assert!(
        few || (hits * 2_000 > packets && misses * 200 > packets),
        "{hits} HITs, {misses} MISSes: few READs were compared"
    );
}

#[test]
fn with_leases_that_end_a_chain_in_the_kernel_does_what_user_space_does() {
    if skipped() {
        return;
    }
    let begin = |seed| Leased::new(seed, chain::Run::new(seed, true));
    let step = |leased: &mut Leased<chain::Run>| {
        leased.step(|run| &mut run.world, chain::Run::step);
    };
    let packets = number("PMNET_PACKETS", chain::PACKETS_ALL) / 5;
    compared(packets, "answered or sent on", begin, step, |leased| {
        &leased.run.world
    });
}

fn leased() -> DeviceConfig {
    DeviceConfig {
        leased: true,
        ..settings(1, next())
    }
}

/// Returns a head with the real clock that has had no lease yet, and the id of a session at this head.
fn head(copies: usize) -> (Bench, u64) {
    let mut bench = Bench::with(0, copies, boottime(), leased());
    let session = bench.open();
    (bench, session)
}

/// Returns the deadline in the map.
fn word(bench: &Bench) -> u64 {
    let words = Words::of(bench.node.pins());
    words.shard().answers_until.load(SeqCst)
}

fn read(session: u64, key: u64) -> Vec<u8> {
    let header = Header {
        request: raw(77),
        ..of_client(Kind::Read, session)
    };
    written(header, &write_hashes(&[key]))
}

fn update(session: u64, seq: u64) -> Vec<u8> {
    let header = Header {
        seq,
        key_hash: raw(KEY),
        ..of_client(Kind::Update, session)
    };
    written(header, b"value")
}

/// Returns the pipeline's answer to a packet. `None`: the pipeline sends nothing.
fn sends(bench: &Bench, from: Peer, bytes: &[u8]) -> Option<Header> {
    match run(&bench.node.kernel, from, address(), bytes) {
        Passed::Out(_, bytes) => Some(Packet::parse(&bytes).unwrap().header),
        Passed::Gone => None,
        Passed::Up => panic!("it is the pipeline's"),
    }
}

fn kind(sent: Option<Header>) -> Option<Kind> {
    sent.map(|header| header.kind)
}

fn all_is_applied(bench: &mut Bench) {
    let last = bench.last();
    bench.turn(&[(next(), applied(last))]);
}

#[test]
fn the_kernel_answers_until_the_deadline_by_its_own_clock_and_not_behind_it() {
    if skipped() {
        return;
    }
    let (mut bench, session) = head(1);
    let (mut seq, mut leases) = (0, 0);
    // On a busy machine a whole lease can pass before the first packet is sent.
    for _ in 0..30 {
        bench.node.renewed(boottime(), SHORT);
        let deadline = word(&bench);
        let (mut answers, mut silences) = ([0; 4], [0; 4]);
        while silences.iter().any(|count| *count < 10) {
            seq += 1;
            let asked = [
                (update(session, seq), Kind::Ack),
                (update(session, seq), Kind::Ack),
                (read(session, KEY), Kind::Hit),
                (read(session, OTHER), Kind::Miss),
            ];
            for (at, (bytes, expected)) in asked.iter().enumerate() {
                let before = boottime().0;
                let sent = sends(&bench, client(), bytes);
                let after = boottime().0;
                match kind(sent) {
                    Some(kind) => {
                        assert!(before < deadline, "{kind:?}: {} ns", before - deadline);
                        assert_eq!(kind, *expected);
                        answers[at] += 1;
                    }
                    None => {
                        assert!(after >= deadline, "{expected:?}: {} ns", deadline - after);
                        silences[at] += 1;
                    }
                }
            }
            assert_eq!(bench.last(), seq + 1, "appended all the same");
            all_is_applied(&mut bench);
        }
        leases += u32::from(answers.iter().all(|count| *count > 0));
        if leases == 3 {
            return;
        }
    }
    panic!("{leases} leases with answers");
}

#[test]
fn a_pipeline_without_a_process_falls_silent_and_another_process_changes_that_only_with_a_lease() {
    if skipped() {
        return;
    }
    let (mut bench, session) = head(1);
    bench.node.renewed(boottime(), SHORT);
    let deadline = word(&bench);
    bench.node.kill();
    let mut seq = 0;
    let mut answers = 0;
    while boottime().0 < deadline {
        seq = 1.max(seq);
        answers += usize::from(sends(&bench, client(), &update(session, seq)).is_some());
    }
    assert!(answers > 0);
    for _again in 0..3 {
        assert_eq!(sends(&bench, client(), &update(session, seq)), None);
    }
    seq += 1;
    assert_eq!(sends(&bench, client(), &update(session, seq)), None);
    assert_eq!(bench.last(), seq + 1, "it is logged");
    assert_eq!(word(&bench), deadline);

    bench.now = boottime();
    assert_eq!(bench.node.restart(bench.now), Ok(()));
    assert_eq!(word(&bench), deadline, "taken over");
    bench.serve();
    // From this packet, the process learns the client's address again.
    bench.turn(&[(client(), read(session, KEY))]);
    assert_eq!(word(&bench), deadline, "the server has answered");
    assert_eq!(sends(&bench, client(), &update(session, seq)), None);
    bench.node.renewed(boottime(), LONG);
    let ack = sends(&bench, client(), &update(session, seq)).expect("a lease");
    assert_eq!((ack.kind, ack.seq), (Kind::Ack, seq));
}

#[test]
fn a_process_that_is_taken_over_before_its_lease_ends_leaves_a_pipeline_that_answers_until_then() {
    if skipped() {
        return;
    }
    let (mut bench, session) = head(1);
    bench.node.renewed(boottime(), LONG);
    let deadline = word(&bench);
    assert_eq!(
        kind(sends(&bench, client(), &update(session, 1))),
        Some(Kind::Ack)
    );
    bench.node.kill();
    bench.now = boottime();
    assert_eq!(bench.node.restart(bench.now), Ok(()));
    assert_eq!(word(&bench), deadline);
    assert_eq!(
        kind(sends(&bench, client(), &update(session, 2))),
        Some(Kind::Ack)
    );
    bench.serve();
    assert_eq!(word(&bench), deadline);
    // The new process must not answer before it has a lease of its own.
    let machine = bench.node.device().unwrap().machine();
    assert!(machine.is_leased() && !machine.may_answer(bench.now));
}

#[test]
fn who_needs_a_lease_stops_a_pipeline_that_needed_none_and_who_needs_none_goes_on_once_it_serves() {
    if skipped() {
        return;
    }
    let mut bench = Bench::with(0, 1, boottime(), settings(1, next()));
    let session = bench.open();
    assert_eq!(word(&bench), FOR_EVER);
    assert_eq!(
        kind(sends(&bench, client(), &update(session, 1))),
        Some(Kind::Ack)
    );
    bench.node.kill();
    bench.node.reconfigure(|device| device.leased = true);
    bench.now = boottime();
    assert_eq!(bench.node.restart(bench.now), Ok(()));
    assert_eq!(word(&bench), 0);
    assert_eq!(sends(&bench, client(), &update(session, 1)), None);
    bench.node.kill();
    bench.node.reconfigure(|device| device.leased = false);
    bench.now = boottime();
    assert_eq!(bench.node.restart(bench.now), Ok(()));
    assert_eq!(
        sends(&bench, client(), &update(session, 1)),
        None,
        "it asks the server"
    );
    bench.serve();
    bench.turn(&[(client(), read(session, KEY))]);
    assert_eq!(word(&bench), FOR_EVER);
    assert_eq!(
        kind(sends(&bench, client(), &update(session, 1))),
        Some(Kind::Ack)
    );
}

#[test]
fn an_earlier_deadline_never_takes_the_place_of_a_later_one() {
    if skipped() {
        return;
    }
    let (mut bench, _) = head(1);
    let at = boottime();
    bench.node.renewed(at, LONG);
    let deadline = word(&bench);
    assert!(deadline > at.0);
    // The answer to this renewal took long.
    bench.node.renewed(Time(at.0 - 1), LONG);
    let mut kernel = bench.node.kernel.lock().unwrap();
    kernel.answers_until(Some(Time(deadline - 1)));
    kernel.answers_until(None);
    drop(kernel);
    assert_eq!(word(&bench), deadline);
    let mut kernel = bench.node.kernel.lock().unwrap();
    kernel.answers_until(Some(Time(u64::MAX)));
    drop(kernel);
    assert_eq!(word(&bench), FOR_EVER - 1, "a deadline all the same");
}

#[test]
fn without_a_lease_entries_go_down_a_chain_and_confirmations_come_back_but_no_acknowledgement() {
    if skipped() {
        return;
    }
    let (mut bench, session) = head(2);
    for seq in 1..=3 {
        let sent = sends(&bench, client(), &update(session, seq));
        assert_eq!(kind(sent), Some(Kind::Append), "to the next device");
        assert_eq!(sends(&bench, next(), &durable(1, seq + 1)), None, "no ack");
        assert_eq!(
            sends(&bench, client(), &update(session, seq)),
            None,
            "asked again"
        );
        assert_eq!(sends(&bench, client(), &read(session, KEY)), None);
    }
    bench.turn(&[]);
    let cursors = bench.node.device().unwrap().machine().cursors();
    assert_eq!(cursors, (4, 4, 4, 0), "committed in kernel and process");
    bench.node.renewed(boottime(), LONG);
    let ack = sends(&bench, client(), &update(session, 3)).expect("a lease");
    assert_eq!((ack.kind, ack.seq, ack.order), (Kind::Ack, 3, 4));
    let hit = sends(&bench, client(), &read(session, KEY)).expect("a lease");
    assert_eq!((hit.kind, hit.order), (Kind::Hit, 4));
}

/// The device belongs to a fleet, in which other devices may join after it.
#[test]
fn a_device_that_begins_anew_admits_nothing_until_it_serves_and_has_the_next_incarnation() {
    if skipped() {
        return;
    }
    let (mut bench, session) = head(1);
    bench.node.renewed(boottime(), LONG);
    let deadline = word(&bench);
    for seq in 1..=3 {
        let ack = sends(&bench, client(), &update(session, seq));
        assert_eq!(kind(ack), Some(Kind::Ack));
    }
    let incarnation = |bench: &Bench| {
        let log = bench.node.device().unwrap().log();
        (log.incarnation(), log.served(), log.last())
    };
    assert_eq!(incarnation(&bench), (1, 1, 1), "three are to be followed");
    bench.node.anew = true;
    for life in 2..=4 {
        bench.now = boottime();
        assert_eq!(bench.node.restart(bench.now), Ok(()));
        assert_eq!(incarnation(&bench), (life, 1, 4), "it has not served");
        let passed = run(&bench.node.kernel, client(), address(), &update(session, 4));
        assert!(matches!(passed, Passed::Up), "{passed:?}");
        assert_eq!((bench.last(), word(&bench)), (4, deadline));
    }
    bench.serve();
    assert_eq!(incarnation(&bench), (4, 4, 4));
    bench.turn(&[(client(), read(session, KEY))]);
    let ack = sends(&bench, client(), &update(session, 4)).expect("the lease goes on");
    assert_eq!((ack.kind, ack.seq, ack.incarnation), (Kind::Ack, 4, 4));
}
