//! Tests of wishes without an etcd: which ones are refused, what is written, and when they are met.

use std::net::SocketAddr;

use super::*;
use crate::plan::Place;
use crate::record::MemberRecord;

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn row(id: u16, epoch: u32, chain: &[u32]) -> Row {
    let spare = chain.is_empty();
    Row {
        record: Some(MemberRecord {
            address: at(id),
            log: "0".into(),
            incarnation: 1,
            epoch: if spare { 0 } else { epoch },
            seconds: 3,
            next: None,
            chain: chain.to_vec(),
            whole: !spare,
            spare,
            joins: if spare { epoch } else { 0 },
            status: None,
        }),
        lease: 100 + u64::from(id),
        alive: 200 + u64::from(id),
        ..Row::default()
    }
}

/// Returns a shard with a chain of these devices, which all serve in epoch 4, and with these spares.
fn shard(chain: &[u16], spares: &[u16]) -> Shard {
    let ids: Vec<u32> = chain.iter().map(|id| u32::from(*id)).collect();
    let place = |id: &u16| Place {
        id: (*id).into(),
        at: at(*id),
        whole: true,
    };
    let members = chain.iter().map(|id| (u32::from(*id), row(*id, 4, &ids)));
    let others = spares.iter().map(|id| (u32::from(*id), row(*id, 4, &[])));
    Shard {
        rows: members.chain(others).collect(),
        plan: Some(Plan {
            epoch: 4,
            says: None,
            places: chain.iter().map(place).collect(),
            joins: false,
            server: at(99),
            copies: chain.len(),
        }),
        plans: 7,
        ..Shard::default()
    }
}

fn names() -> Names {
    Names::new("f", 0).unwrap()
}

fn refused(shard: &Shard, want: Want) -> String {
    intend(&names(), shard, want).unwrap_err()
}

const REMOVE_2: Want = Want::Remove {
    device: 2,
    to_one: false,
};

#[test]
fn each_wish_writes_what_it_wants_and_asks_that_nobody_else_did_meanwhile() {
    let mut shard = shard(&[1, 2, 3], &[4]);
    shard.copies_at = 5;
    let asked = |want| {
        let intent = intend(&names(), &shard, want).unwrap();
        let one = |(key, revision, put): &(String, u64, Put)| {
            let key = key.trim_start_matches("/pmnet/f/0/");
            format!("{key}@{revision}={}", String::from_utf8_lossy(&put.value))
        };
        let puts: Vec<String> = intent.puts.iter().map(one).collect();
        (
            puts.join(" "),
            intent.joins,
            intent.copies,
            intent.copies_meanwhile(),
        )
    };
    let leaves = r#"wishes/2@0={"leaves":true}"#;
    assert_eq!(
        asked(REMOVE_2),
        (format!("copies@5=2 {leaves}"), None, 2, 2)
    );
    assert_eq!(
        asked(Want::Replace(2)),
        (format!("copies@5=3 {leaves}"), Some(4), 3, 2)
    );
    assert_eq!(asked(Want::Add), ("copies@5=4".into(), Some(4), 4, 3));
}

#[test]
fn what_cannot_be_had_is_refused_with_a_sentence() {
    let three = || shard(&[1, 2, 3], &[]);
    for (shard, want, says) in [
        (Shard::default(), REMOVE_2, "start one (pmnet controller)"),
        (three(), Want::Replace(9), "not in the chain [1, 2, 3]"),
        (three(), Want::Replace(2), "no spare is ready"),
        (three(), Want::Add, "no spare is ready"),
        (shard(&[2], &[4]), Want::Replace(2), "the only one"),
        (shard(&[1, 2], &[4]), REMOVE_2, "--to-one"),
        (three(), Want::TakeBack(2), "nothing to take back"),
        (
            shard(&[1, 2, 3, 4, 5, 6, 7, 8], &[9]),
            Want::Add,
            "at most 8",
        ),
    ] {
        let text = refused(&shard, want);
        assert!(text.contains(says), "{says}: {text}");
    }
    let mut away = three();
    away.rows.get_mut(&3).unwrap().alive = 0;
    assert!(refused(&away, REMOVE_2).contains("device 3 of the chain [1, 2, 3] has no lease"));
    let mut joining = three();
    joining.plan.as_mut().unwrap().places[2].whole = false;
    assert!(refused(&joining, REMOVE_2).contains("device 3 has joined and does not hold"));
    let mut changing = three();
    changing.plan.as_mut().unwrap().says = Some(4);
    assert!(refused(&changing, REMOVE_2).contains("is not yet"));
    let mut alone = three();
    alone.server = Some(crate::ServerRecord {
        address: at(99),
        epoch: 4,
        chain: vec![1, 2, 3],
        seconds: 3,
        standby: false,
        status: None,
    });
    assert!(refused(&alone, REMOVE_2).contains("the server is gone"));
    // The two other devices are also ordered to leave.
    let mut all = three();
    for id in [1, 3] {
        all.rows.get_mut(&id).unwrap().wish.leaves = true;
    }
    assert!(refused(&all, REMOVE_2).contains("no other member that is to stay"));
    // A spare of another epoch is not used, and a spare that was removed is not used.
    let mut spares = shard(&[1, 2, 3], &[4, 5]);
    spares.rows.get_mut(&4).unwrap().wish.leaves = true;
    if let Some(record) = &mut spares.rows.get_mut(&5).unwrap().record {
        record.joins = 3;
    }
    assert!(refused(&spares, Want::Add).contains("no spare is ready"));
}

#[test]
fn a_removal_is_done_when_the_chain_without_the_device_is_served() {
    let before = shard(&[1, 2, 3], &[]);
    let intent = intend(&names(), &before, REMOVE_2).unwrap();
    let mut now = before;
    let waits = |shard: &Shard, says: &str| {
        let text = intent.is_done(shard).unwrap_err();
        assert!(text.contains(says), "{says}: {text}");
    };
    waits(&now, "has its lease yet");
    let leaver = now.rows.get_mut(&2).unwrap();
    (leaver.alive, leaver.wish.leaves) = (0, true);
    waits(&now, "no controller has said yet");
    assert!(
        intent.taken_back(&names(), &now).is_some(),
        "it can be taken back until then"
    );
    now.rows.get_mut(&2).unwrap().word = Word::Stopped;
    assert!(intent.taken_back(&names(), &now).is_none());
    waits(&now, "wired anew");
    let mut after = shard(&[1, 3], &[]);
    let mut leaver = row(2, 4, &[]);
    (leaver.alive, leaver.word) = (0, Word::LeftOut(5));
    after.rows.insert(2, leaver);
    assert_eq!(intent.is_done(&after), Ok(()));
}

#[test]
fn a_replacement_is_done_when_the_spare_holds_everything() {
    let before = shard(&[1, 2], &[4]);
    let intent = intend(&names(), &before, Want::Replace(2)).unwrap();
    let mut left = row(2, 4, &[]);
    (left.alive, left.word) = (0, Word::LeftOut(5));
    let mut now = shard(&[1], &[4]);
    now.rows.insert(2, left.clone());
    assert!(intent.is_done(&now).unwrap_err().contains("1 of 2 devices"));
    let mut now = shard(&[1, 4], &[]);
    now.rows.insert(2, left);
    now.plan.as_mut().unwrap().places[1].whole = false;
    assert!(
        intent
            .is_done(&now)
            .unwrap_err()
            .contains("does not hold everything")
    );
    now.plan.as_mut().unwrap().places[1].whole = true;
    assert_eq!(intent.is_done(&now), Ok(()));
}

#[test]
fn a_device_that_was_removed_is_a_spare_again_once_it_has_heard_of_it() {
    let mut shard = shard(&[1, 3], &[2]);
    shard.rows.get_mut(&2).unwrap().wish.leaves = true;
    if let Some(record) = &mut shard.rows.get_mut(&2).unwrap().record {
        record.spare = false;
    }
    let intent = intend(&names(), &shard, Want::TakeBack(2)).unwrap();
    assert!(
        intent
            .is_done(&shard)
            .unwrap_err()
            .contains("has not heard")
    );
    if let Some(record) = &mut shard.rows.get_mut(&2).unwrap().record {
        record.spare = true;
    }
    assert_eq!(intent.is_done(&shard), Ok(()));
    shard.rows.get_mut(&2).unwrap().alive = 0;
    assert!(intent.is_done(&shard).unwrap_err().contains("does not run"));
}
