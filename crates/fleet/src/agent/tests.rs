use super::{Facts, allows, has_lost_its_log, is_unheard, wiring};
use crate::plan::{Order, Place, Plan};
use crate::record::MemberRecord;
use crate::shard::{Row, Shard};
use pmnet_proto::lease::Word;
use pmnet_udp::Standing;
use std::net::SocketAddr;

#[test]
fn a_device_is_wired_by_the_chain_and_a_spare_that_is_not_in_it_asks_the_server() {
    let at = |port| std::net::SocketAddr::from(([10, 0, 0, 1], port));
    let places = [7, 8].map(|id| crate::Place {
        id: id.into(),
        at: at(id),
        whole: true,
    });
    let plan = Plan {
        epoch: 4,
        says: Some(4),
        places: places.to_vec(),
        joins: false,
        server: at(99),
        copies: 2,
    };
    let order = |next: SocketAddr, shrink| {
        Some(Order {
            next,
            next_id: Some(u32::from(next.port()) % 99),
            shrink,
        })
    };
    for spare in [false, true] {
        assert_eq!(wiring(&plan, 7, spare), order(at(8), Some(4)));
        assert_eq!(wiring(&plan, 8, spare), order(at(99), None));
    }
    assert_eq!(wiring(&plan, 9, true), order(at(99), None));
    assert_eq!(wiring(&plan, 9, false), None);
}

#[test]
fn what_was_stated_over_a_path_through_a_stopped_member_is_stated_again() {
    let at = SocketAddr::from(([10, 0, 0, 1], 1));
    let place = |id| Place {
        id,
        at,
        whole: true,
    };
    let plan = Plan {
        epoch: 4,
        says: Some(4),
        places: vec![place(7), place(8)],
        joins: false,
        server: at,
        copies: 3,
    };
    let unheard = |shrink, epoch, chain: &[u32]| {
        let standing = Standing {
            epoch,
            chain: chain.to_vec(),
            ..Standing::default()
        };
        let order = Order {
            next: at,
            next_id: None,
            shrink,
        };
        is_unheard(&plan, order, &standing)
    };
    assert!(unheard(Some(4), 4, &[7, 8, 9]));
    // Four cases without an unheard statement: the statement took effect; the device has not asked the server yet; the
    // device states nothing; no device must be left out.
    assert!(!unheard(Some(4), 5, &[7, 8]));
    assert!(!unheard(Some(4), 0, &[]));
    assert!(!unheard(None, 4, &[7, 8, 9]));
    assert!(!unheard(Some(4), 4, &[7, 8]));
}

#[test]
fn who_was_declared_stopped_may_not_even_be_there_and_who_was_left_out_may_not_serve_its_old_epoch()
{
    for epoch in [None, Some(1), Some(9)] {
        assert_eq!(allows(Word::None, epoch), Ok(()));
        let text = allows(Word::Stopped, epoch).unwrap_err();
        assert!(text.contains("declared stopped"), "{text}");
    }
    let word = Word::LeftOut(4);
    assert!(allows(word, None).is_ok() && allows(word, Some(5)).is_ok());
    for epoch in [3, 4] {
        assert!(allows(word, Some(epoch)).unwrap_err().contains("epoch 4"));
    }
}

#[test]
fn a_member_with_another_log_takes_no_lease_before_it_was_declared_stopped() {
    let at = SocketAddr::from(([10, 0, 0, 1], 1));
    let place = |id| Place {
        id,
        at,
        whole: true,
    };
    let mut shard = Shard {
        plan: Some(Plan {
            epoch: 4,
            says: None,
            places: vec![place(7), place(8)],
            joins: false,
            server: at,
            copies: 2,
        }),
        ..Shard::default()
    };
    let facts = |log| Facts {
        log,
        incarnation: 1,
    };
    let row = |word| Row {
        record: Some(MemberRecord {
            address: at,
            log: format!("{:032x}", 5),
            incarnation: 1,
            epoch: 4,
            seconds: 3,
            next: None,
            chain: vec![7, 8],
            whole: true,
            spare: false,
            joins: 0,
            status: None,
        }),
        word,
        ..Row::default()
    };
    let lost = |shard: &Shard, id, log, word| has_lost_its_log(shard, &row(word), id, facts(log));
    assert!(lost(&shard, 8, 6, Word::None));
    assert!(!lost(&shard, 8, 5, Word::None), "it is its own");
    assert!(
        !lost(&shard, 8, 6, Word::Stopped),
        "it may not claim anyway"
    );
    assert!(!lost(&shard, 9, 6, Word::None), "it is no member");
    shard.plan.as_mut().unwrap().joins = true;
    assert!(!lost(&shard, 8, 6, Word::None), "it is on its way in");
    shard.plan = None;
    assert!(!lost(&shard, 8, 6, Word::None), "no chain is known");
}
