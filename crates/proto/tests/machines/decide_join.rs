//! Joining a chain that holds data: the rows of `docs/spec/protocol.md` §5 about joining, and decisions that no input
//! may cause.

use crate::support::server::member;
use pmnet_proto::server::{Decision, decide};
use pmnet_wire::record::Member;

/// The current epoch.
const EPOCH: u32 = 4;
/// The device that is to join.
const JOINER: u32 = 9;
/// The last order that the store has applied.
const APPLIED: u64 = 7;

fn chain(ids: &[u32]) -> Vec<Member> {
    ids.iter().map(|&id| member(id)).collect()
}

/// A device with an empty log that knows the current epoch.
fn joiner() -> Member {
    Member {
        flags: Member::JOIN,
        word_epoch: EPOCH,
        ..member(JOINER)
    }
}

/// A member whose log ends at this order.
fn until(id: u32, tail: u64) -> Member {
    Member {
        tail,
        applied: APPLIED.min(tail),
        ..member(id)
    }
}

/// A member whose operator states that all members outside the path are stopped.
fn shrinking(member: Member) -> Member {
    Member {
        flags: member.flags | Member::SHRINK,
        word_epoch: EPOCH,
        ..member
    }
}

/// A member that joined, and must hold every order up to `needs`.
fn joined(id: u32, needs: u64) -> Member {
    Member {
        tail: needs,
        flags: Member::JOIN | Member::JOINED,
        ..member(id)
    }
}

fn ask(members: &[Member], path: &[Member]) -> Decision {
    decide(members, path, EPOCH, APPLIED, true)
}

/// The members of the new chain, and the order up to which the last member must hold the log.
#[track_caller]
fn changed(decision: Decision) -> (Vec<u32>, u64) {
    let Decision::Change { members, .. } = decision else {
        panic!("{decision:?}");
    };
    let last = members.last().expect("a chain has a member");
    assert_ne!(
        last.flags & Member::JOINED,
        0,
        "the record says that it joined"
    );
    (members.iter().map(|m| m.device).collect(), last.tail)
}

#[test]
fn the_last_device_takes_the_joiner_in_with_what_it_must_hold() {
    let members = chain(&[1, 2, 3]);
    let three = [until(3, 12), joiner()];
    assert_eq!(changed(ask(&members, &three)), (vec![1, 2, 3, JOINER], 12));
    let all = [until(1, 14), until(2, 13), until(3, 12), joiner()];
    assert_eq!(changed(ask(&members, &all)), (vec![1, 2, 3, JOINER], 12));
    let drained = [until(1, 5), joiner()];
    let alone = ask(&chain(&[1]), &drained);
    assert_eq!(changed(alone), (vec![1, JOINER], APPLIED));
    let second = Member {
        device: 8,
        ..joiner()
    };
    let two = ask(&chain(&[1]), &[until(1, 12), joiner(), second]);
    assert_eq!(changed(two), (vec![1, JOINER, 8], 12), "two at once");
    // The joiner's place is after a device that has itself joined, and still lacks entries. The joiner must hold these
    // entries, too.
    let half = vec![member(1), joined(2, 11)];
    let behind = ask(&half, &[until(2, 9), joiner()]);
    assert_eq!(changed(behind), (vec![1, 2, JOINER], 11));
    let empty = decide(&chain(&[1]), &[until(1, 0), joiner()], EPOCH, 0, false);
    assert_eq!(changed(empty), (vec![1, JOINER], 0));
}

#[test]
fn a_lost_device_is_replaced_in_one_step() {
    let members = chain(&[1, 2, 3]);
    for (left, after) in [
        (&[1, 2][..], vec![1, 2, JOINER]),
        (&[1, 3], vec![1, 3, JOINER]),
        (&[2, 3], vec![2, 3, JOINER]),
    ] {
        let mut path: Vec<Member> = left.iter().map(|&id| until(id, 12)).collect();
        path.push(joiner());
        let unsaid = ask(&members, &path);
        if left != [2, 3] {
            assert!(matches!(unsaid, Decision::Hold(_)), "{left:?}: {unsaid:?}");
        }
        path[0] = shrinking(path[0]);
        assert_eq!(changed(ask(&members, &path)), (after, 12), "{left:?}");
    }
}

/// Name, members, path, and the decision's reason.
type Row = (&'static str, Vec<Member>, Vec<Member>, &'static str);

#[test]
fn who_may_not_join_yet_or_at_all() {
    let with = |change: fn(&mut Member)| {
        let mut it = joiner();
        change(&mut it);
        it
    };
    let used = with(|m| (m.tail, m.applied) = (9, 5));
    let unheard = with(|m| m.word_epoch = 0);
    let late = with(|m| m.word_epoch = EPOCH - 1);
    let serving = Member {
        flags: Member::SERVING,
        ..until(2, 12)
    };
    let old = Member {
        incarnation: 0,
        ..until(2, 12)
    };
    let two = || chain(&[1, 2]);
    let eight = || chain(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let half = || vec![member(1), joined(2, 11)];
    #[rustfmt::skip]
    let rows: Vec<Row> = vec![
        ("a used log", two(), vec![used], "erase"),
        ("a used log that knows more than the store", two(), vec![with(|m| (m.tail, m.applied) = (9, 8))], "refuse"),
        ("an empty log, nothing heard yet", two(), vec![unheard], "erase"),
        ("an empty log, an earlier epoch", two(), vec![late], "erase"),
        ("an empty log without the mark", two(), vec![with(|m| m.served = 0)], "erase"),
        ("ready", two(), vec![joiner()], "hold"),
        ("behind the last, a used log", two(), vec![until(2, 12), used], "hold"),
        ("behind the last, nothing heard yet", two(), vec![until(2, 12), unheard], "hold"),
        ("behind the last, an earlier epoch", two(), vec![until(2, 12), late], "hold"),
        ("behind a log that goes on", two(), vec![serving, joiner()], "hold"),
        ("the same, somebody else asks", two(), vec![until(1, 12), serving, joiner()], "hold"),
        ("behind a life that is over", two(), vec![until(1, 12), old, joiner()], "wait"),
        ("behind a stranger", two(), vec![member(5), joiner()], "refuse"),
        ("behind a chain that is turned round", two(), vec![until(2, 12), until(1, 12), joiner()], "refuse"),
        ("before the chain", two(), vec![joiner(), until(1, 12), until(2, 12)], "refuse"),
        ("a chain of full length", eight(), vec![until(8, 12), joiner()], "hold"),
        ("the new head lacks something", half(), vec![shrinking(until(2, 10)), joiner()], "hold"),
        ("two, one of them not ready", two(), vec![until(2, 12), joiner(), Member { device: 8, ..used }], "hold"),
        ("two, nobody before them", two(), vec![used, Member { device: 8, ..used }], "erase"),
        ("no chain yet", vec![], vec![joiner()], "hold"),
        ("a member with another log", two(), vec![Member { device: 2, ..joiner() }], "refuse"),
        ("without the operator's word", two(), vec![member(JOINER)], "refuse"),
    ];
    for (name, members, path, says) in rows {
        let decision = ask(&members, &path);
        let (word, text) = match &decision {
            Decision::Keep(_) => ("keep", String::new()),
            Decision::Change { notice, .. } => ("change", notice.to_string()),
            Decision::Wait => ("wait", String::new()),
            Decision::Hold(why) => ("hold", why.to_string()),
            Decision::Erase(why) => ("erase", why.to_string()),
            Decision::Refuse(why) => ("refuse", why.to_string()),
        };
        assert_eq!(word, says, "{name}: {decision:?}");
        assert!(text.len() > 60 || word == "wait", "{name}: {text}");
    }
}

/// A member that joined may become the only device only if each entry that it must hold is in its log, or is applied by
/// the store.
#[test]
fn who_joined_is_left_alone_only_with_everything() {
    let left_alone = |needs: u64, tail: u64| {
        let members = vec![member(1), joined(2, needs)];
        ask(&members, &[shrinking(until(2, tail))])
    };
    for (needs, tail, enough) in [
        (11, 10, false),
        (11, 11, true),
        (11, 12, true),
        (8, 7, false),
        (7, 5, true),
    ] {
        let decision = left_alone(needs, tail);
        let case = format!("{needs} {tail}: {decision:?}");
        match decision {
            Decision::Change { members, .. } => {
                assert!(enough, "{case}");
                assert_eq!(members[0].tail, needs, "it is remembered: {case}");
            }
            Decision::Hold(why) => {
                assert!(
                    !enough && why.to_string().contains("--declare-data-loss"),
                    "{case}"
                )
            }
            _ => panic!("{case}"),
        }
    }
    // A member that joined may stay after a member that did not join, even if its log lacks entries.
    let members = vec![member(1), member(3), joined(2, 11)];
    let kept = ask(&members, &[shrinking(until(1, 12)), until(2, 9)]);
    assert_eq!(changed(kept), (vec![1, 2], 11));
}

/// A member that starts with `--join` stays a member: its log is not erased.
#[test]
fn the_word_to_join_means_nothing_to_a_member() {
    for flags in [0, Member::JOIN] {
        let members = vec![member(1), joined(2, 11)];
        let back = Member {
            flags,
            word_epoch: EPOCH,
            ..until(2, 9)
        };
        let decision = ask(&members, &[back]);
        assert_eq!(
            decision,
            Decision::Keep(members),
            "and what it must hold is remembered"
        );
    }
}

/// Every sequence of up to three different devices out of 1, 2, 3.
fn sequences() -> Vec<Vec<u32>> {
    let mut list: Vec<Vec<u32>> = vec![vec![]];
    let mut from = 0;
    while from < list.len() {
        let longer: Vec<Vec<u32>> = (1..=3)
            .filter(|id| !list[from].contains(id))
            .map(|id| [&list[from][..], &[id]].concat())
            .collect();
        list.extend(longer);
        from += 1;
    }
    list
}

/// Every chain of up to three devices, any of which may have joined × every path of up to three devices × every report
/// of these devices × every A: no combination may break a rule of joining.
#[test]
fn no_input_breaks_the_rules_of_joining() {
    let mut changes = 0u32;
    for ids in sequences().into_iter().filter(|ids| !ids.is_empty()) {
        for needs in [None, Some(3), Some(8), Some(11)] {
            let members: Vec<Member> = ids
                .iter()
                .map(|&id| match needs {
                    Some(needs) if id == ids[ids.len() - 1] => joined(id, needs),
                    _ => member(id),
                })
                .collect();
            for path in sequences().into_iter().filter(|path| !path.is_empty()) {
                changes += paths(&members, &path);
            }
        }
    }
    assert!(changes > 1_000, "{changes}");
}

/// Decides about this path over these members, with every report that its devices may make. Returns the number of
/// changes of the chain.
fn paths(members: &[Member], path: &[u32]) -> u32 {
    let mut changes = 0;
    for flags in [
        0,
        Member::SHRINK,
        Member::JOIN,
        Member::SHRINK | Member::JOIN,
    ] {
        for (last_flags, word_epoch) in [(0, 0), (Member::JOIN, EPOCH), (Member::JOIN, EPOCH - 1)] {
            for (tail, last_tail) in [(0, 0), (5, 0), (10, 0), (10, 10), (12, 9)] {
                for serving in [0, Member::SERVING] {
                    let mut said: Vec<Member> = path
                        .iter()
                        .map(|&id| Member {
                            tail,
                            flags: serving,
                            ..member(id)
                        })
                        .collect();
                    let last = said.len() - 1;
                    (said[last].tail, said[last].flags, said[last].word_epoch) =
                        (last_tail, last_flags, word_epoch);
                    if last > 0 && last_flags != 0 {
                        // The device before the last may want to join as well.
                        said[last - 1].flags |= last_flags;
                        said[last - 1].word_epoch = word_epoch;
                        said[last - 1].tail = tail.min(last_tail);
                    }
                    said[0].flags |= flags;
                    if flags != 0 {
                        said[0].word_epoch = EPOCH;
                    }
                    for applied in [0, 5, 9] {
                        let decision = decide(members, &said, EPOCH, applied, true);
                        changes += u32::from(matches!(decision, Decision::Change { .. }));
                        judge(members, &said, applied, &decision);
                    }
                }
            }
        }
    }
    changes
}

fn judge(members: &[Member], path: &[Member], applied: u64, decision: &Decision) {
    let case = || format!("{members:?}\npath {path:?}\nA {applied} → {decision:?}");
    let known = |id: u32| members.iter().find(|m| m.device == id);
    let said = |id: u32| path.iter().find(|m| m.device == id);
    let whole = |id: u32| {
        let registered = known(id).expect("a member");
        let has = said(id).map_or(0, |m| m.tail).max(applied);
        registered.flags & Member::JOINED == 0 || has >= registered.tail
    };
    match decision {
        Decision::Erase(_) => {
            let alone = path.iter().all(|m| known(m.device).is_none());
            assert!(alone && path[0].flags & Member::JOIN != 0, "{}", case());
            assert!(path[0].applied <= applied, "{}", case());
        }
        Decision::Change { members: after, .. } => {
            let stays = after[0].device == members[0].device;
            assert!(
                stays || whole(after[0].device),
                "a head without everything: {}",
                case()
            );
            let gone = members
                .iter()
                .any(|m| after.iter().all(|kept| kept.device != m.device));
            assert!(!gone || path[0].flags & Member::SHRINK != 0, "{}", case());
            for (at, member) in after.iter().enumerate() {
                let Some(registered) = known(member.device) else {
                    let behind = after[at..].iter().all(|m| known(m.device).is_none());
                    assert!(at > 0 && behind, "joins elsewhere: {}", case());
                    let now = said(member.device).expect("on the path");
                    let old = after.iter().rfind(|m| known(m.device).is_some());
                    let before = *old.expect("somebody was there before");
                    assert_eq!((now.tail, now.applied), (0, 0), "a used log: {}", case());
                    assert_ne!(now.flags & Member::JOIN, 0, "{}", case());
                    assert_eq!(now.word_epoch, EPOCH, "an old word: {}", case());
                    let stands = said(before.device).expect("the one before it asks, too");
                    assert_eq!(stands.flags & Member::SERVING, 0, "{}", case());
                    let owed = if before.flags & Member::JOINED == 0 {
                        0
                    } else {
                        before.tail
                    };
                    assert!(
                        member.tail >= stands.tail.max(applied).max(owed),
                        "{}",
                        case()
                    );
                    assert_ne!(member.flags & Member::JOINED, 0, "{}", case());
                    continue;
                };
                if registered.flags & Member::JOINED != 0 {
                    assert_eq!(member.tail, registered.tail, "forgotten: {}", case());
                    assert_ne!(member.flags & Member::JOINED, 0, "forgotten: {}", case());
                }
            }
        }
        Decision::Keep(kept) => {
            for (kept, before) in kept.iter().zip(members) {
                assert_eq!(
                    (kept.tail, kept.flags),
                    (before.tail, before.flags),
                    "{}",
                    case()
                );
            }
        }
        Decision::Wait | Decision::Hold(_) | Decision::Refuse(_) => {}
    }
}
