//! A simulated shard, in which devices obey orders and the server decides by its rules.

use super::*;
use crate::hand::Looked;

fn at(id: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], u16::try_from(id).unwrap()))
}

const SERVER: u32 = 99;

fn said(id: u32, next: u32, epoch: u32, chain: &[u32]) -> DeviceSaid {
    DeviceSaid {
        who: Meant {
            shard: 0,
            id,
            process: format!("p{id}"),
        },
        listen: at(id),
        flag: at(next),
        next: at(next),
        next_id: None,
        shrink: None,
        ends: false,
        epoch,
        chain: chain.to_vec(),
        whole: true,
        joins: 0,
        waits: None,
        in_kernel: false,
    }
}

/// Returns a shard that serves this chain in epoch 4, and has these spares, which are ready to join.
fn world(chain: &[u32], spares: &[u32]) -> Looked {
    let mut looked = Looked {
        server: Some(ServerSaid {
            shard: 0,
            process: "s".into(),
            listen: at(SERVER),
            epoch: 4,
            chain: chain.to_vec(),
        }),
        ..Looked::default()
    };
    for (place, id) in chain.iter().enumerate() {
        let next = chain.get(place + 1).copied().unwrap_or(SERVER);
        let device = said(*id, next, 4, chain);
        looked.take_device(device, 0).unwrap();
    }
    for id in spares {
        let spare = DeviceSaid {
            joins: 4,
            whole: false,
            ..said(*id, SERVER, 0, &[])
        };
        looked.take_device(spare, 0).unwrap();
    }
    looked
}

/// Makes the server's decision, as `decide` does: the devices on the path from the head become the chain, if the rules
/// permit it.
fn serve(looked: &mut Looked) {
    let server = looked.server.clone().unwrap();
    let ids: Vec<u32> = looked.devices.keys().copied().collect();
    for origin in ids {
        let mut path = vec![origin];
        let mut next = looked.devices[&origin].next;
        while let Some(said) = looked.devices.values().find(|said| said.listen == next) {
            path.push(said.who.id);
            next = said.next;
        }
        if next != at(SERVER) {
            continue;
        }
        let shrinks = looked.devices[&origin].shrink == Some(server.epoch);
        let (members, joiners): (Vec<u32>, Vec<u32>) =
            path.iter().partition(|id| server.chain.contains(id));
        let whole = server.chain.ends_with(&members);
        let becomes = if shrinks {
            [members.clone(), joiners.clone()].concat()
        } else if whole && !members.is_empty() {
            [server.chain.clone(), joiners.clone()].concat()
        } else {
            continue;
        };
        if becomes != server.chain && !members.is_empty() {
            let epoch = server.epoch + 1;
            let now = looked.server.as_mut().unwrap();
            (now.epoch, now.chain) = (epoch, becomes.clone());
            for id in becomes {
                let device = looked.devices.get_mut(&id).unwrap();
                (device.epoch, device.chain) = (epoch, looked.server.clone().unwrap().chain);
                (device.whole, device.joins) = (true, 0);
            }
            for device in looked.devices.values_mut().filter(|one| one.joins > 0) {
                device.joins = epoch;
            }
            return;
        }
    }
}

/// Runs the change until it is done. Returns its steps, and the shortest length of the chain during the change.
fn run(looked: &mut Looked, change: &mut Change) -> Result<Vec<String>, String> {
    let mut steps = Vec::new();
    for _ in 0..50 {
        match change.next(looked)? {
            HandStep::Done => return Ok(steps),
            HandStep::Wait(_) => serve(looked),
            HandStep::Leave(doing) => {
                steps.push(format!("leave {}", doing.to.id));
                looked.devices.remove(&doing.to.id);
                change.has_ended(doing.to.id);
            }
            HandStep::Wire(doing, order) => {
                let shrink = order.shrink.map_or("", |_| " shrink");
                steps.push(format!("{}>{}{shrink}", doing.to.id, order.next.port()));
                let device = looked.devices.get_mut(&doing.to.id).unwrap();
                (device.next, device.shrink) = (order.next, order.shrink);
                // The device is restarted: it does not serve until the server has answered.
                (device.epoch, device.chain) = (0, Vec::new());
            }
        }
    }
    Err(format!("it does not end: {steps:?} {looked:?}"))
}

fn remove(devices: &[u32]) -> HandWant {
    HandWant::Remove {
        devices: devices.to_vec(),
        to_one: true,
    }
}

#[test]
fn every_device_of_every_chain_is_removed_and_replaced_alive_and_dead() {
    for length in 1..=4 {
        let chain: Vec<u32> = (1..=length).collect();
        for id in 1..=length {
            for is_stopped in [false, true] {
                for want in [remove(&[id]), HandWant::Replace(id)] {
                    let mut looked = world(&chain, &[9]);
                    if is_stopped {
                        looked.devices.remove(&id);
                    }
                    let planned = Change::plan(&looked, &want, is_stopped);
                    let only = length == 1;
                    if only && (is_stopped || want == remove(&[id])) {
                        planned.unwrap_err();
                        continue;
                    }
                    let mut change = planned.unwrap();
                    let steps = run(&mut looked, &mut change).unwrap();
                    let mut after: Vec<u32> = chain.clone();
                    after.retain(|one| *one != id);
                    after.extend(change.joins);
                    let server = looked.server.unwrap();
                    assert_eq!(server.chain, after, "{chain:?} {id} {want:?} {steps:?}");
                    assert_eq!(change.copies(), after.len());
                    let left = steps.iter().any(|step| step.starts_with("leave"));
                    assert_eq!(left, !is_stopped, "{steps:?}");
                    // If the device is not stopped, it leaves only after the new device has joined.
                    if !is_stopped && want == HandWant::Replace(id) {
                        assert_eq!(change.copies_meanwhile(), chain.len());
                        assert!(!steps[0].starts_with("leave"), "{steps:?}");
                    }
                    // The head makes its statement exactly once, as the last step.
                    let said = steps.iter().filter(|step| step.ends_with("shrink"));
                    assert_eq!(said.count(), 1, "{steps:?}");
                }
            }
        }
    }
}

#[test]
fn two_that_are_stopped_leave_together_and_a_spare_joins() {
    let mut looked = world(&[1, 2, 3], &[]);
    looked.devices.remove(&1);
    looked.devices.remove(&3);
    let mut change = Change::plan(&looked, &remove(&[3, 1]), true).unwrap();
    assert_eq!(run(&mut looked, &mut change).unwrap(), ["2>99 shrink"]);
    let mut looked = world(&[1, 2], &[7, 8]);
    let mut change = Change::plan(&looked, &HandWant::Add, false).unwrap();
    assert_eq!(change.joins, Some(7));
    assert_eq!(run(&mut looked, &mut change).unwrap(), ["2>7"]);
}

#[test]
fn what_cannot_be_says_why() {
    let refused = |looked: &Looked, want: &HandWant, is_stopped: bool, says: &str| {
        let text = Change::plan(looked, want, is_stopped).unwrap_err();
        assert!(text.contains(says), "{says}: {text}");
    };
    let whole = world(&[1, 2], &[]);
    refused(&whole, &remove(&[7]), false, "is not in the chain");
    refused(&whole, &remove(&[1]), true, "is not stopped");
    refused(&whole, &remove(&[1, 2]), false, "one device at a time");
    refused(&whole, &remove(&[1, 1]), false, "twice");
    refused(&whole, &HandWant::Add, false, "no spare is ready");
    refused(&whole, &HandWant::Add, true, "a device that leaves");
    refused(&whole, &HandWant::Replace(1), false, "no spare is ready");
    let careful = HandWant::Remove {
        devices: vec![2],
        to_one: false,
    };
    refused(&whole, &careful, false, "--to-one");
    refused(&world(&[1], &[9]), &remove(&[1]), false, "is the only one");
    let mut dead = world(&[1], &[9]);
    dead.devices.clear();
    refused(&dead, &remove(&[1]), true, "--declare-data-loss");
    refused(&dead, &HandWant::Replace(1), true, "--declare-data-loss");
    let mut cut = world(&[1, 2, 3], &[]);
    cut.devices.remove(&2);
    refused(&cut, &remove(&[2]), false, "--is-stopped");
    refused(&cut, &remove(&[1]), false, "device 2 of the chain does not");
    // Several devices are lost. If an operator names only one of the lost devices, the error names all lost devices.
    let mut lost = world(&[1, 2, 3, 4], &[9]);
    lost.devices.remove(&2);
    refused(
        &lost,
        &HandWant::Add,
        false,
        "device 2 of the chain does not",
    );
    lost.devices.remove(&4);
    refused(&lost, &HandWant::Add, false, "remove 2 4 --is-stopped");
    refused(&lost, &remove(&[4]), true, "remove 4 2 --is-stopped");
    refused(
        &lost,
        &HandWant::Replace(2),
        true,
        "remove 2 4 --is-stopped",
    );
    Change::plan(&lost, &remove(&[4, 2]), true).unwrap();
    let mut alone = world(&[1, 2], &[9]);
    alone.server = None;
    refused(&alone, &HandWant::Add, false, "no server answers");
    let mut new = world(&[1, 2], &[9]);
    new.server.as_mut().unwrap().epoch = 0;
    refused(&new, &HandWant::Add, false, "no chain on record");
    let mut kernel = world(&[1, 2], &[9]);
    kernel.devices.get_mut(&2).unwrap().in_kernel = true;
    refused(&kernel, &remove(&[2]), false, "--detach");
    let mut lacks = world(&[1, 2], &[9]);
    lacks.devices.get_mut(&2).unwrap().whole = false;
    refused(&lacks, &HandWant::Add, false, "does not hold everything");
    let mut mixed = world(&[1, 2], &[9]);
    let spare = mixed.devices.get_mut(&9).unwrap();
    spare.listen = SocketAddr::from(([127, 0, 0, 1], 9));
    refused(&mixed, &HandWant::Add, false, "on this machine");
    let long = world(&[1, 2, 3, 4, 5, 6, 7, 8], &[9]);
    refused(&long, &HandWant::Add, false, "at most 8");
    let mut other = world(&[1, 2], &[]);
    let mut stranger = said(5, 1, 4, &[5]);
    stranger.who.shard = 3;
    let text = other.take_device(stranger, 0).unwrap_err();
    assert!(text.contains("of shard 3"), "{text}");
    let mut twin = said(2, 1, 4, &[5]);
    twin.who.process = "q".into();
    let text = other.take_device(twin, 0).unwrap_err();
    assert!(text.contains("--id"), "{text}");
    let mut server = other.server.clone().unwrap();
    server.process = "t".into();
    let text = other.take_server(server, 0).unwrap_err();
    assert!(text.contains("two servers"), "{text}");
}

#[test]
fn on_the_way_it_stops_when_what_it_rests_on_is_not_so() {
    // A device that the operator called stopped answers.
    let mut looked = world(&[1, 2, 3], &[]);
    let back = looked.devices.remove(&2).unwrap();
    let change = Change::plan(&looked, &remove(&[2]), true).unwrap();
    looked.devices.insert(2, back.clone());
    assert!(change.next(&looked).unwrap_err().contains("not stopped"));
    // A device that ended is started again.
    let mut change = Change::plan(&looked, &remove(&[2]), false).unwrap();
    change.has_ended(2);
    let refused = change.next(&looked).unwrap_err();
    assert!(refused.contains("started again"), "{refused}");
    // The head may already have the order that removes the device.
    assert!(refused.contains("may still complete"), "{refused}");
    // A device dies before it is asked to end.
    let change = Change::plan(&looked, &remove(&[2]), false).unwrap();
    looked.devices.remove(&2);
    assert!(change.next(&looked).unwrap_err().contains("--is-stopped"));
    // Another command changes the chain.
    looked.devices.insert(2, back);
    let change = Change::plan(&looked, &remove(&[2]), false).unwrap();
    looked.server.as_mut().unwrap().chain = vec![1, 3];
    looked.server.as_mut().unwrap().chain = vec![3, 2];
    assert!(
        change
            .next(&looked)
            .unwrap_err()
            .contains("another command changes it")
    );
    // The head makes no statement before the other devices have their final next hops.
    let mut looked = world(&[1, 2, 3, 4], &[]);
    looked.devices.remove(&3);
    let change = Change::plan(&looked, &remove(&[3]), true).unwrap();
    let wires = |looked: &Looked| match change.next(looked).unwrap() {
        HandStep::Wire(doing, order) => (doing.to.id, order),
        other => panic!("{other:?}"),
    };
    assert_eq!(wires(&looked).0, 2);
    let second = looked.devices.get_mut(&2).unwrap();
    second.ends = true;
    assert!(
        matches!(change.next(&looked), Ok(HandStep::Wait(text)) if text.contains("begins anew"))
    );
    let second = looked.devices.get_mut(&2).unwrap();
    (second.ends, second.next) = (false, at(4));
    assert_eq!((wires(&looked).0, wires(&looked).1.shrink), (1, Some(4)));
    // The statement had no effect: the head still serves the earlier chain, so it repeats the statement.
    let head = looked.devices.get_mut(&1).unwrap();
    head.shrink = Some(4);
    assert_eq!(wires(&looked).0, 1);
    looked.devices.get_mut(&1).unwrap().epoch = 0;
    assert!(matches!(change.next(&looked), Ok(HandStep::Wait(_))));
}

#[test]
fn a_join_that_came_to_nothing_is_taken_back() {
    let mut looked = world(&[1, 2], &[9]);
    let change = Change::plan(&looked, &HandWant::Add, false).unwrap();
    assert_eq!(change.undo(&looked), None);
    looked.devices.get_mut(&2).unwrap().next = at(9);
    for there in [true, false] {
        if !there {
            looked.devices.remove(&9);
        }
        assert_eq!(change.joiner_is_lost(&looked), !there);
        match change.undo(&looked) {
            Some(HandStep::Wire(doing, order)) => {
                assert_eq!((doing.to.id, order.next), (2, at(SERVER)));
            }
            other => panic!("{other:?}"),
        }
    }
    // A device that has joined is not removed.
    looked.server.as_mut().unwrap().chain = vec![1, 2, 9];
    assert_eq!(change.undo(&looked), None);
}

#[test]
fn a_change_that_was_broken_off_is_taken_back_by_wiring_as_the_record_says() {
    let mut looked = world(&[1, 2, 3], &[]);
    // The last device was told to send to a lost device, and the first device was told to send to the third device.
    for (id, next) in [(3, 9), (1, 3)] {
        let said = looked.devices.get_mut(&id).unwrap();
        (said.next, said.epoch, said.chain) = (at(next), 0, Vec::new());
    }
    let text = Change::plan(&looked, &HandWant::Add, false).unwrap_err();
    assert!(text.contains("pmnet ctl wire"), "{text}");
    let change = Change::plan(&looked, &HandWant::Wire, false).unwrap();
    assert_eq!((change.copies(), change.copies_meanwhile()), (3, 3));
    for (id, next) in [(3, SERVER), (1, 2)] {
        match change.next(&looked).unwrap() {
            HandStep::Wire(doing, order) => {
                assert_eq!((doing.to.id, order.next), (id, at(next)));
                assert_eq!(order.shrink, None);
                let said = looked.devices.get_mut(&id).unwrap();
                said.next = order.next;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(change.next(&looked), Ok(HandStep::Wait(_))));
    for said in looked.devices.values_mut() {
        (said.epoch, said.chain) = (4, vec![1, 2, 3]);
    }
    assert_eq!(change.next(&looked), Ok(HandStep::Done));
    // A running device continues to serve with any next hop, because the server knows the path.
    looked.devices.get_mut(&2).unwrap().next = at(77);
    assert_eq!(change.next(&looked), Ok(HandStep::Done));
    looked.devices.remove(&2);
    Change::plan(&looked, &HandWant::Wire, false).unwrap_err();
}
