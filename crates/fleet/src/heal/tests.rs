//! Tests of a controller's next step in each situation, without an etcd.

use std::net::SocketAddr;

use super::*;

const SERVER: u16 = 99;

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

/// Returns a device that serves this chain in this epoch. The device's next hop is the next device of the chain.
fn serving(id: u16, epoch: u32, chain: &[u16]) -> Row {
    let place = chain.iter().position(|one| *one == id);
    let next = place.and_then(|place| chain.get(place + 1));
    Row {
        record: Some(MemberRecord {
            address: at(id),
            log: "0".into(),
            incarnation: 1,
            epoch,
            seconds: 3,
            next: Some(at(*next.unwrap_or(&SERVER))),
            chain: chain.iter().map(|id| u32::from(*id)).collect(),
            whole: true,
            spare: false,
            joins: 0,
            status: None,
        }),
        lease: 100 + u64::from(id),
        alive: 200 + u64::from(id),
        ..Row::default()
    }
}

/// Returns a device like that of [`serving`], but without a lease.
fn gone(id: u16, epoch: u32, chain: &[u16]) -> Row {
    Row {
        alive: 0,
        ..serving(id, epoch, chain)
    }
}

fn stopped(id: u16, epoch: u32, chain: &[u16]) -> Row {
    Row {
        word: Word::Stopped,
        words: 300 + u64::from(id),
        ..gone(id, epoch, chain)
    }
}

/// Returns a device that has a lease and does not serve yet, because it asks the server.
fn recovering(id: u16) -> Row {
    serving(id, 0, &[])
}

fn spare(id: u16, joins: u32) -> Row {
    let mut row = recovering(id);
    if let Some(record) = &mut row.record {
        (record.spare, record.whole, record.joins) = (true, false, joins);
    }
    row
}

fn plan(epoch: u32, says: Option<u32>, ids: &[u16]) -> Plan {
    let place = |id: &u16| Place {
        id: (*id).into(),
        at: at(*id),
        whole: true,
    };
    Plan {
        epoch,
        says,
        places: ids.iter().map(place).collect(),
        joins: false,
        server: at(SERVER),
        copies: 2,
    }
}

/// Makes a plan whose last device is to join.
fn joining(epoch: u32, ids: &[u16]) -> Plan {
    let mut plan = plan(epoch, None, ids);
    plan.joins = true;
    plan.places.last_mut().unwrap().whole = false;
    plan
}

fn shard(plan: Option<Plan>, rows: Vec<(u16, Row)>) -> Shard {
    Shard {
        rows: rows.into_iter().map(|(id, row)| (id.into(), row)).collect(),
        plan,
        plans: 7,
        ..Shard::default()
    }
}

/// Adds the server's report that its store has this chain on record.
fn on_record(epoch: u32, chain: &[u16], mut shard: Shard) -> Shard {
    shard.server = Some(crate::ServerRecord {
        address: at(SERVER),
        epoch,
        chain: chain.iter().map(|id| u32::from(*id)).collect(),
        seconds: 3,
        standby: false,
        status: None,
    });
    shard
}

/// Returns the next step, if every lease that has ended did so long enough ago.
fn next(shard: &Shard) -> Advice {
    let over = |id: u32| {
        let row = shard.rows.get(&id)?;
        (row.alive == 0 && row.lease > 0).then_some(row.lease)
    };
    advise(shard, over, None)
}

#[test]
fn a_chain_that_is_seen_becomes_the_record_and_then_nothing_is_to_do() {
    let rows = || vec![(1, serving(1, 2, &[1, 2])), (2, serving(2, 2, &[1, 2]))];
    let found = plan(2, None, &[1, 2]);
    assert_eq!(
        next(&shard(None, rows())),
        Advice::Do(Step::Adopt(found.clone()))
    );
    assert_eq!(next(&shard(Some(found), rows())), Advice::Well);
    assert_eq!(next(&Shard::default()), Advice::Well);
    // After the plan was made, the chain has grown at its head.
    let before = Plan {
        copies: 1,
        ..plan(1, None, &[2])
    };
    assert_eq!(
        next(&shard(Some(before), rows())),
        Advice::Do(Step::Adopt(plan(2, None, &[1, 2])))
    );
}

#[test]
fn a_device_whose_lease_is_gone_is_stopped_then_left_out_then_may_join() {
    for (dead, lives) in [(1, 2), (2, 1)] {
        let chain = &[1, 2];
        let known = || Some(plan(5, None, chain));
        let alive = || (lives, serving(lives, 5, chain));
        let look = shard(known(), vec![(dead, gone(dead, 5, chain)), alive()]);
        assert_eq!(
            next(&look),
            Advice::Do(Step::Stop {
                device: dead.into(),
                lease: 100 + u64::from(dead),
                beside: lives.into()
            })
        );
        assert_eq!(advise(&look, |_| None, None), Advice::Well, "the margin");
        let look = shard(known(), vec![(dead, stopped(dead, 5, chain)), alive()]);
        let wired = plan(5, Some(5), &[lives]);
        assert_eq!(next(&look), Advice::Do(Step::Wire(wired.clone())));
        // The device is restarted, and no device serves.
        let starts = (lives, recovering(lives));
        let look = shard(
            Some(wired.clone()),
            vec![(dead, stopped(dead, 5, chain)), starts],
        );
        assert_eq!(next(&look), Advice::Well);
        let serves = || (lives, serving(lives, 6, &[lives]));
        let look = shard(Some(wired), vec![(dead, stopped(dead, 5, chain)), serves()]);
        let after = plan(6, None, &[lives]);
        assert_eq!(next(&look), Advice::Do(Step::Adopt(after.clone())));
        let look = shard(Some(after), vec![(dead, stopped(dead, 5, chain)), serves()]);
        assert_eq!(
            next(&look),
            Advice::Do(Step::LeftOut {
                device: dead.into(),
                epoch: 6
            })
        );
    }
}

#[test]
fn the_last_one_that_holds_everything_is_never_stopped() {
    let chain = &[1, 2];
    let waits = |look: &Shard| matches!(next(look), Advice::Wait(text) if text.contains("--declare-data-loss"));
    let none = shard(
        Some(plan(5, None, chain)),
        vec![(1, gone(1, 5, chain)), (2, gone(2, 5, chain))],
    );
    assert!(waits(&none));
    // The other device does not hold everything.
    let mut lacks = serving(2, 5, chain);
    lacks.record.as_mut().unwrap().whole = false;
    let mut before = plan(5, None, chain);
    before.places[1].whole = false;
    assert!(waits(&shard(
        Some(before.clone()),
        vec![(1, gone(1, 5, chain)), (2, lacks)]
    )));
    // The other device now holds everything. The plan notes this, and from then on the device may continue alone.
    let look = shard(
        Some(before),
        vec![(1, gone(1, 5, chain)), (2, serving(2, 5, chain))],
    );
    assert_eq!(next(&look), Advice::Do(Step::Adopt(plan(5, None, chain))));
    let look = shard(
        Some(plan(5, None, chain)),
        vec![(1, gone(1, 5, chain)), (2, stopped(2, 5, chain))],
    );
    assert!(waits(&look), "the other one was stopped");
}

#[test]
fn a_head_that_was_started_again_while_nobody_is_behind_it_is_enough() {
    let chain = &[1, 2];
    let look = shard(
        Some(plan(5, None, chain)),
        vec![(1, recovering(1)), (2, gone(2, 5, chain))],
    );
    assert!(matches!(
        next(&look),
        Advice::Do(Step::Stop { device: 2, .. })
    ));
    let look = shard(
        Some(plan(5, None, chain)),
        vec![(1, recovering(1)), (2, stopped(2, 5, chain))],
    );
    assert_eq!(next(&look), Advice::Do(Step::Wire(plan(5, Some(5), &[1]))));
}

#[test]
fn two_of_three_one_after_the_other() {
    let chain = &[1, 2, 3];
    let mut first = plan(5, None, chain);
    first.copies = 3;
    let look = shard(
        Some(first),
        vec![
            (1, stopped(1, 5, chain)),
            (2, serving(2, 5, chain)),
            (3, serving(3, 5, chain)),
        ],
    );
    let mut wired = plan(5, Some(5), &[2, 3]);
    wired.copies = 3;
    assert_eq!(next(&look), Advice::Do(Step::Wire(wired.clone())));
    // The new head is lost before it could make its statement.
    let look = shard(
        Some(wired.clone()),
        vec![
            (1, stopped(1, 5, chain)),
            (2, stopped(2, 5, chain)),
            (3, serving(3, 5, chain)),
        ],
    );
    let mut last = plan(5, Some(5), &[3]);
    last.copies = 3;
    assert_eq!(next(&look), Advice::Do(Step::Wire(last)));
    // The process of the store was replaced, which began a new epoch with the same chain. So the statement is made
    // again, for the new epoch.
    let look = shard(
        Some(wired),
        vec![
            (1, stopped(1, 5, chain)),
            (2, serving(2, 6, chain)),
            (3, serving(3, 6, chain)),
        ],
    );
    let Advice::Do(Step::Adopt(again)) = next(&look) else {
        panic!("{:?}", next(&look));
    };
    assert_eq!(
        (again.epoch, again.says, again.ids()),
        (6, None, vec![1, 2, 3])
    );
    let look = shard(
        Some(again),
        look.rows
            .into_iter()
            .map(|(id, row)| (u16::try_from(id).unwrap(), row))
            .collect(),
    );
    assert!(matches!(
        next(&look),
        Advice::Do(Step::Wire(plan)) if plan.says == Some(6) && plan.ids() == [2, 3]
    ));
}

#[test]
fn a_spare_that_is_ready_joins_a_chain_that_is_whole_and_too_short() {
    let known = || Some(plan(6, None, &[1]));
    let one = || (1, serving(1, 6, &[1]));
    let look = shard(known(), vec![one(), (7, spare(7, 6))]);
    let wired = joining(6, &[1, 7]);
    assert_eq!(next(&look), Advice::Do(Step::Wire(wired.clone())));
    for (rows, why) in [
        (
            vec![one(), (7, spare(7, 5))],
            "it is not ready in this epoch",
        ),
        (vec![one(), (7, recovering(7))], "it is no spare"),
        (
            vec![(1, recovering(1)), (7, spare(7, 6))],
            "the chain does not serve",
        ),
        (
            vec![
                one(),
                (
                    7,
                    Row {
                        word: Word::Stopped,
                        ..spare(7, 6)
                    },
                ),
            ],
            "it was declared stopped",
        ),
    ] {
        let look = shard(known(), rows);
        let wires = matches!(next(&look), Advice::Do(Step::Wire(_)));
        assert!(!wires, "{why}");
    }
    assert_eq!(
        advise(&look, |_| None, Some(1)),
        Advice::Well,
        "one is enough"
    );
    // The device joins: the new plan has its report, which says that it does not hold everything.
    let mut lacks = serving(7, 7, &[1, 7]);
    lacks.record.as_mut().unwrap().whole = false;
    let look = shard(Some(wired), vec![(1, serving(1, 7, &[1, 7])), (7, lacks)]);
    let mut after = plan(7, None, &[1, 7]);
    after.places[1].whole = false;
    assert_eq!(next(&look), Advice::Do(Step::Adopt(after)));
}

#[test]
fn a_spare_that_is_lost_while_it_joins_is_left_out_whether_it_had_joined_or_not() {
    let lost = |word| Row {
        alive: 0,
        word,
        words: 9,
        ..spare(7, 6)
    };
    let waits = (1, recovering(1));
    let look = shard(
        Some(joining(6, &[1, 7])),
        vec![waits.clone(), (7, lost(Word::None))],
    );
    assert!(matches!(
        next(&look),
        Advice::Do(Step::Stop {
            device: 7,
            beside: 1,
            ..
        })
    ));
    let look = shard(
        Some(joining(6, &[1, 7])),
        vec![waits, (7, lost(Word::Stopped))],
    );
    let after = plan(6, Some(7), &[1]);
    assert_eq!(next(&look), Advice::Do(Step::Wire(after.clone())));
    // The device had not joined. The controller writes no further word about this device in this epoch, because the
    // head may still make its statement about the next epoch.
    let look = shard(
        Some(after.clone()),
        vec![(1, serving(1, 6, &[1])), (7, lost(Word::Stopped))],
    );
    assert_eq!(next(&look), Advice::Well);
    // The device had joined, and was left out.
    let look = shard(
        Some(after),
        vec![(1, serving(1, 8, &[1])), (7, lost(Word::Stopped))],
    );
    assert!(matches!(next(&look), Advice::Do(Step::Adopt(_))));
}

/// The server began another epoch because its store is another process, and no process could tell the devices.
#[test]
fn an_epoch_that_only_the_server_knows_counts() {
    let rows = || vec![(1, serving(1, 5, &[1, 2])), (2, stopped(2, 5, &[1, 2]))];
    let look = shard(Some(plan(5, Some(5), &[1])), rows());
    assert_eq!(next(&look), Advice::Well, "nobody knows of it");
    let look = on_record(6, &[1, 2], look);
    let mut both = plan(6, None, &[1, 2]);
    // The plan before did not contain the device.
    both.places[1].whole = false;
    assert_eq!(next(&look), Advice::Do(Step::Adopt(both.clone())));
    let look = on_record(6, &[1, 2], shard(Some(both), rows()));
    let left = plan(6, Some(6), &[1]);
    assert_eq!(next(&look), Advice::Do(Step::Wire(left)));
    // A device serves a later epoch, so the plan's statement has expired.
    let rows = vec![(1, serving(1, 7, &[1])), (2, stopped(2, 5, &[1, 2]))];
    let look = on_record(6, &[1, 2], shard(Some(plan(7, None, &[1])), rows));
    assert!(matches!(
        next(&look),
        Advice::Do(Step::LeftOut {
            device: 2,
            epoch: 7
        })
    ));
    // etcd has no plan, so the devices must first report their next hops.
    let look = on_record(
        2,
        &[1, 2],
        shard(None, vec![(1, recovering(1)), (2, recovering(2))]),
    );
    assert_eq!(next(&look), Advice::Well);
}

/// A joining device was lost, and the server has ended the epoch in which the device might have joined.
#[test]
fn a_joiner_that_was_lost_is_left_out_when_the_epoch_has_ended() {
    let rows = || vec![(1, serving(1, 6, &[1])), (7, stopped(7, 0, &[]))];
    let look = on_record(7, &[1], shard(Some(plan(6, Some(7), &[1])), rows()));
    let after = plan(7, None, &[1]);
    assert_eq!(next(&look), Advice::Do(Step::Adopt(after.clone())));
    let look = on_record(7, &[1], shard(Some(after), rows()));
    assert_eq!(
        next(&look),
        Advice::Do(Step::LeftOut {
            device: 7,
            epoch: 7
        })
    );
}

#[test]
fn what_does_not_fit_waits_for_a_person() {
    // A member has never registered.
    let look = shard(None, vec![(1, serving(1, 2, &[8, 1]))]);
    assert!(matches!(next(&look), Advice::Wait(text) if text.contains("device 8")));
    // The last device is missing, and the server's address was never seen.
    let look = shard(None, vec![(1, serving(1, 2, &[1, 2])), (2, recovering(2))]);
    assert!(matches!(next(&look), Advice::Wait(text) if text.contains("server")));
    // The epochs were restarted from the beginning.
    let look = shard(Some(plan(9, None, &[1])), vec![(1, serving(1, 2, &[1]))]);
    assert!(matches!(next(&look), Advice::Wait(text) if text.contains("another name")));
    // A device without the word *stopped* is never left out.
    let look = shard(
        Some(plan(5, None, &[1, 2])),
        vec![
            (1, serving(1, 5, &[1, 3])),
            (2, stopped(2, 5, &[1, 3])),
            (3, serving(3, 5, &[1, 3])),
        ],
    );
    assert!(
        matches!(next(&look), Advice::Wait(text) if text.contains("by hand")),
        "{:?}",
        next(&look)
    );
}

#[test]
fn the_chain_sends_to_another_server_only_if_that_is_one_of_several_and_serves() {
    let rows = || vec![(1, serving(1, 2, &[1, 2])), (2, serving(2, 2, &[1, 2]))];
    let moved = |standby, alive, address| {
        let mut shard = on_record(2, &[1, 2], shard(Some(plan(2, None, &[1, 2])), rows()));
        if let Some(record) = &mut shard.server {
            (record.standby, record.address) = (standby, address);
        }
        shard.server_alive = alive;
        shard
    };
    let there = Plan {
        server: at(98),
        ..plan(2, None, &[1, 2])
    };
    assert_eq!(
        next(&moved(true, 5, at(98))),
        Advice::Do(Step::Wire(there.clone()))
    );
    assert_eq!(next(&moved(true, 5, at(SERVER))), Advice::Well);
    // The plan sends to another address of the server, or the server does not run.
    assert_eq!(next(&moved(false, 5, at(98))), Advice::Well);
    assert_eq!(next(&moved(true, 0, at(98))), Advice::Well);
    // A pending statement and a stopped device stay unchanged.
    let mut shard = moved(true, 5, at(98));
    shard.rows.insert(1, stopped(1, 2, &[1, 2]));
    shard.plan = Some(plan(2, Some(2), &[2]));
    let Advice::Do(Step::Wire(then)) = next(&shard) else {
        panic!("nothing is done");
    };
    assert_eq!(
        (then.says, then.ids(), then.server),
        (Some(2), vec![2], at(98))
    );
}
