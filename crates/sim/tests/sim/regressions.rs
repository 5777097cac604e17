//! Seeds of worlds that once revealed a fault. A seed gives the same world only while the draws in `config` and `world`
//! stay unchanged. After a change of the draws, undo each fix and search for a new seed that reveals the fault.

use pmnet_sim::{Plan, Without, World};

/// Runs a seed that must be clean, with at most `events_max` events.
fn clean(seed: u64, events_max: u64) {
    let report = World::plain(seed, false).run();
    assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
    assert!(
        report.events <= events_max,
        "seed {seed}: {} events",
        report.events
    );
}

/// Runs a seed of the campaign (`pmnet-sim --seed`) that must be clean.
fn wide(seed: u64) {
    let report = World::new(seed, &Plan::default(), false).run();
    assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
}

/// The head ended a silent session, and its END took the seq of the client's next update. The head answered this update
/// as a duplicate, and acknowledged it with the commit of the END, although no device had logged it. Found:
/// acknowledged and lost.
#[test]
fn an_update_is_not_acknowledged_by_the_end_of_its_session() {
    for seed in [16, 20, 30, 43] {
        clean(seed, u64::MAX);
    }
}

/// The path of the next device is a suffix of the chain. After the head was lost and the operator had stated this, the
/// server still took the remaining device for a restarted follower. So the chain had no head. Found: no service after
/// all repairs.
#[test]
fn a_lost_head_is_replaced() {
    for seed in [22, 37, 101] {
        clean(seed, u64::MAX);
    }
}

/// If a PROGRESS was lower than the previous one, the client assumed that the server had restarted. But these packets
/// can overtake each other, and every repeated fragment caused another PROGRESS. Found: four million packets for one
/// long bypass. Today the whole world has about thirty thousand events.
#[test]
fn overtaken_progress_does_not_start_a_transfer_over() {
    clean(119, 100_000);
    clean(635, 100_000);
}

/// A long bypass followed more updates than the window admits. The head refused each of its fragments, and for each
/// refusal the client sent the bypass again. Found: a storm of packets.
#[test]
fn a_bypass_waits_for_the_updates_before_it() {
    clean(1241, 15_000);
    clean(1485, 15_000);
}

/// A head stamped a bypass with its last order, whose update was not durable yet. The head died, and another update got
/// this order. So the barrier was reached, and the bypass was executed before an earlier update of its client. Found:
/// effects of a session out of order.
#[test]
fn a_bypass_never_runs_before_lost_updates_of_its_session() {
    clean(22698, u64::MAX);
    clean(38733, u64::MAX);
}

/// A device that was still recovering passed on the RECOVER of a new head, and stated that its own log was empty. Then
/// the device became the head of the old chain, and gave orders to updates. The new head gave these orders to other
/// updates. The device reported the orders as durable, so the new head never sent its entries. Found: acknowledged and
/// lost.
#[test]
fn an_empty_log_stays_empty_while_a_new_head_joins() {
    for seed in [2841, 2879, 6641, 7489, 9914] {
        let report = World::forming(seed, false).run();
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
    }
}

/// A client gave up a bypass, and then sent an operation to the store on its own connection, after a barrier. A barrier
/// is a read, so the restarted server did not remember it, and executed a late copy of the bypass. Found: effects of a
/// session out of order.
#[test]
fn nothing_goes_direct_while_an_earlier_call_can_arrive() {
    wide(2352);
    let without: Without = "after-unknown".parse().unwrap();
    let plan = Plan {
        without: Some(without),
        ..Plan::default()
    };
    let report = World::new(2352, &plan, false).run();
    let found = report.violations.first().expect("the rule is needed");
    assert!(found.contains("session order broken"), "{found}");
}

/// A head showed an update by a HIT. Then its log was lost, and the operator declared the loss. In the next epoch a
/// late copy of the update arrived. The checker accepted the late update, but not the read that had seen the update
/// before the loss.
#[test]
fn what_a_lost_log_had_shown_may_come_again_later() {
    wide(62478);
}

/// A head asked for the second part of a session table. The server had restarted, and its table now had only one part.
/// The server did not answer a question for a second part, so the head never served again.
#[test]
fn a_part_of_a_table_that_became_shorter_is_not_asked_for_ever() {
    wide(99218);
}

/// A head was left out of its chain, and no device could tell it so. It still answered with PONG, NACK and NOT_LOGGED.
/// A client that did not know the new chain accepted these answers, and asked no other device. Found: no service after
/// all repairs.
#[test]
fn a_head_that_was_left_out_does_not_keep_its_clients() {
    for seed in [33953, 81444, 85287, 87079] {
        clean(seed, 2_000_000);
    }
}

/// The old master had delivered a message. Then a replica that was behind was promoted, and refused this message. The
/// old master's record was lost, so the refusal was right for the present store. Found: reported as failed, and
/// delivered.
#[test]
fn a_message_of_a_lost_master_may_be_refused_by_the_next() {
    clean(79321, 2_000_000);
}

/// A packet store died in the transaction of an acknowledged update, and all devices were lost. When the store was
/// opened, the transaction was undone. The checker counted the update as applied, so the declared loss did not excuse
/// it. Found: acknowledged and lost.
#[test]
fn what_a_store_undoes_at_its_start_a_declared_loss_may_take() {
    let plan = Plan {
        packet_store: true,
        ..Plan::default()
    };
    for seed in [31093, 31566] {
        let report = World::new(seed, &plan, false).run();
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
    }
}

/// A server started while Redis refused all writes, and read the records without owning them. The earlier server still
/// changed the records. Found: the new server told a device an old watermark, and the device stopped ("the store lost
/// data").
#[test]
fn nothing_is_told_from_records_that_another_server_owns() {
    wide(8378);
}

/// A device that was given up asked, through a head with an empty log, to become the new head before it, and was
/// refused later. The old head had passed the question on, so it admitted nothing until it was started again, and no
/// operator did so. Found: no service after all repairs. (Today the waiting device reports the reason.)
#[test]
fn a_head_whose_new_head_was_refused_is_started_again() {
    wide(88451);
}

/// The end of a device's log was damaged while the device was off. The only other device was lost before the first
/// device had its entries again. A chain of two does not survive these two losses. The world had checked the other
/// device only at the moment of the damage. Found: acknowledged and lost.
#[test]
fn whose_log_lost_its_end_does_not_have_everything() {
    wide(11033);
}

/// Packets of two kinds may be longer than their path carries. First, damaged packets: a device forwards them unchanged,
/// as it forwards foreign traffic. Second, fragments of a call whose caller has given up: they keep their size when the
/// path begins to carry less. The world reported both kinds as violations.
#[test]
fn what_may_be_longer_than_its_path() {
    for seed in [31353, 34328, 42527, 195830] {
        wide(seed);
    }
}

/// After its path had begun to carry less, a device still sent RECOVERs of the largest size
/// (`a_question_becomes_shorter_when_the_path_does`).
#[test]
fn a_question_keeps_to_the_path() {
    wide(34961);
}
