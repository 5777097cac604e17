//! Which devices may belong to a chain: the table of `docs/spec/protocol.md` §5, and decisions that no input may cause.

use crate::support::server::member;
use pmnet_proto::server::{Decision, decide};
use pmnet_wire::record::Member;

/// The current epoch. An operator's order is for this epoch unless the test states another epoch.
const EPOCH: u32 = 4;

fn ids(members: &[Member]) -> Vec<u32> {
    members.iter().map(|member| member.device).collect()
}

fn all(list: &[u32]) -> Vec<Member> {
    list.iter().map(|&id| member(id)).collect()
}

/// The name of a decision, and the chain that the decision makes.
fn word(decision: &Decision) -> (&'static str, Vec<u32>) {
    match decision {
        Decision::Keep(members) => ("keep", ids(members)),
        Decision::Change { members, .. } => ("change", ids(members)),
        Decision::Wait => ("wait", vec![]),
        Decision::Hold(_) => ("hold", vec![]),
        Decision::Erase(_) => ("erase", vec![]),
        Decision::Refuse(_) => ("refuse", vec![]),
    }
}

/// Changes the first of these members, and dates its operator's order to the current epoch.
fn first(mut list: Vec<Member>, change: impl FnOnce(&mut Member)) -> Vec<Member> {
    list[0].word_epoch = EPOCH;
    change(&mut list[0]);
    list
}

/// Name; (current chain, A, whether there were sessions); path; decision; chain after the decision.
type Row = (
    &'static str,
    (Vec<u32>, u64, bool),
    Vec<Member>,
    &'static str,
    &'static [u32],
);

#[test]
fn the_table() {
    let shrink = |m: &mut Member| m.flags = Member::SHRINK;
    let lost = |m: &mut Member| m.flags = Member::DECLARE_LOSS;
    let used = |m: &mut Member| (m.tail, m.applied) = (5, 3);
    let chain = |list: &[u32]| (list.to_vec(), 7, true);
    let virgin = |list: &[u32]| (list.to_vec(), 0, false);
    #[rustfmt::skip]
    let table: Vec<Row> = vec![
        ("first device", virgin(&[]), all(&[1]), "change", &[1]),
        ("first devices", virgin(&[]), all(&[1, 2, 3]), "change", &[1, 2, 3]),
        ("used log, empty store", virgin(&[]), first(all(&[1]), used), "refuse", &[]),
        ("used log, empty store, declared", virgin(&[]), first(all(&[1]), |m| { used(m); lost(m); }), "change", &[1]),
        ("head comes back", chain(&[1, 2, 3]), all(&[1, 2, 3]), "keep", &[1, 2, 3]),
        ("middle comes back", chain(&[1, 2, 3]), all(&[2, 3]), "keep", &[1, 2, 3]),
        ("tail comes back", chain(&[1, 2, 3]), all(&[3]), "keep", &[1, 2, 3]),
        ("new head while forming", virgin(&[2, 3]), all(&[1, 2, 3]), "change", &[1, 2, 3]),
        ("used device wants in", virgin(&[2]), first(all(&[1, 2]), |m| m.tail = 1), "refuse", &[]),
        ("new head over used ones", virgin(&[2]), { let mut p = all(&[1, 2]); p[1].tail = 1; p }, "refuse", &[]),
        ("new head, a session waits", (vec![2], 0, true), all(&[1, 2]), "refuse", &[]),
        ("new head, data applied", chain(&[2]), all(&[1, 2]), "refuse", &[]),
        ("new head, old path", virgin(&[2]), { let mut p = all(&[1, 2]); p[1].incarnation = 0; p }, "wait", &[]),
        ("new head, path ahead of record", virgin(&[2]), { let mut p = all(&[1, 2]); p[1].incarnation = 2; p }, "wait", &[]),
        ("new head over another log", virgin(&[2]), { let mut p = all(&[1, 2]); p[1].log_uuid = 9; p }, "hold", &[]),
        ("head comes back over another log", chain(&[1, 2]), { let mut p = all(&[1, 2]); p[1].log_uuid = 9; p }, "hold", &[]),
        ("another log", chain(&[1]), first(all(&[1]), |m| m.log_uuid = 9), "refuse", &[]),
        ("another log, declared", chain(&[1]), first(all(&[1]), |m| { m.log_uuid = 9; lost(m); }), "change", &[1]),
        ("log rolled back", chain(&[1]), first(all(&[1]), |m| m.incarnation = 0), "refuse", &[]),
        ("log rolled back, then started often", chain(&[1]), first(all(&[1]), |m| { m.served = 0; m.incarnation = 9; }), "refuse", &[]),
        ("started often", chain(&[1]), first(all(&[1]), |m| m.incarnation = 9), "keep", &[1]),
        ("served before it could say so", chain(&[1]), first(all(&[1]), |m| { m.incarnation = 9; m.served = 8; }), "keep", &[1]),
        ("log rolled back, declared", chain(&[1]), first(all(&[1]), |m| { m.incarnation = 0; lost(m); }), "change", &[1]),
        ("loss declared, nothing lost", chain(&[1]), first(all(&[1]), lost), "keep", &[1]),
        ("store rolled back, declared", chain(&[1]), first(all(&[1]), |m| { (m.tail, m.applied) = (9, 8); lost(m); }), "change", &[1]),
        ("store rolled back", chain(&[1]), first(all(&[1]), |m| (m.tail, m.applied) = (9, 8)), "refuse", &[]),
        ("log as far as the store", chain(&[1]), first(all(&[1]), |m| (m.tail, m.applied) = (9, 7)), "keep", &[1]),
        ("shorter than the log behind it", chain(&[1, 2]), { let mut p = first(all(&[1, 2]), |m| m.tail = 8); p[1].tail = 9; p }, "refuse", &[]),
        ("shorter than an old copy behind it", chain(&[1, 2]), { let mut p = first(all(&[1, 2]), |m| m.tail = 8); (p[1].tail, p[1].served) = (9, 0); p }, "hold", &[]),
        ("shorter, asking while it serves", chain(&[1, 2]), { let mut p = first(all(&[1, 2]), |m| { m.tail = 8; m.flags = Member::SERVING; }); p[1].tail = 9; p }, "keep", &[1, 2]),
        ("another one is shorter", chain(&[1, 2, 3]), { let mut p = first(all(&[1, 2, 3]), |m| m.tail = 9); p[2].tail = 8; p }, "keep", &[1, 2, 3]),
        ("shorter than what is applied", chain(&[1, 2]), { let mut p = first(all(&[1, 2]), |m| m.tail = 5); p[1].tail = 7; p }, "keep", &[1, 2]),
        ("as long as the log behind it", chain(&[1, 2]), { let mut p = first(all(&[1, 2]), |m| m.tail = 9); p[1].tail = 9; p }, "keep", &[1, 2]),
        ("shorter, loss declared", chain(&[1, 2]), { let mut p = first(all(&[1, 2]), lost); p[1].tail = 9; p }, "keep", &[1, 2]),
        ("head gone, nobody says so", chain(&[1, 2, 3]), { let mut p = all(&[1, 3]); p.truncate(2); p }, "hold", &[]),
        ("middle gone, operator says so", chain(&[1, 2, 3]), first(all(&[1, 3]), shrink), "change", &[1, 3]),
        ("head gone, operator says so", chain(&[1, 2, 3]), first(all(&[2, 3]), shrink), "change", &[2, 3]),
        ("tail alone is left", chain(&[1, 2, 3]), first(all(&[3]), shrink), "change", &[3]),
        ("all there, an old word of the operator", chain(&[1, 2]), first(all(&[1, 2]), shrink), "keep", &[1, 2]),
        ("tail gone", chain(&[1, 2]), first(all(&[1]), shrink), "change", &[1]),
        ("middle gone, old path", chain(&[1, 2, 3]), { let mut p = first(all(&[1, 3]), shrink); p[1].incarnation = 0; p }, "wait", &[]),
        ("no chain record, data applied", chain(&[]), all(&[1]), "refuse", &[]),
        ("no chain record, data applied, declared", chain(&[]), first(all(&[1]), lost), "change", &[1]),
        ("tail gone, nobody says so", chain(&[1, 2]), all(&[1]), "hold", &[]),
        ("turned round", chain(&[1, 2]), all(&[2, 1]), "refuse", &[]),
        ("stranger behind", chain(&[1, 2]), all(&[1, 2, 4]), "refuse", &[]),
        ("stranger alone", chain(&[1, 2]), all(&[4]), "refuse", &[]),
        ("stranger alone, shrinking", chain(&[1, 2]), first(all(&[4]), shrink), "refuse", &[]),
        ("another log, an old declaration", chain(&[1]), first(all(&[1]), |m| { m.log_uuid = 9; lost(m); m.word_epoch -= 1; }), "refuse", &[]),
        ("stranger, an old declaration", chain(&[1, 2]), first(all(&[4]), |m| { lost(m); m.word_epoch += 1; }), "refuse", &[]),
        ("head gone, an old word of the operator", chain(&[1, 2, 3]), first(all(&[2, 3]), |m| { shrink(m); m.word_epoch -= 1; }), "hold", &[]),
        ("stranger, loss declared", chain(&[1, 2]), first(all(&[4]), lost), "change", &[4]),
    ];
    for (name, (members, applied, had_sessions), path, expected, after) in table {
        let decision = decide(&all(&members), &path, EPOCH, applied, had_sessions);
        assert_eq!(
            word(&decision),
            (expected, after.to_vec()),
            "{name}: {decision:?}"
        );
        if let Decision::Refuse(why) | Decision::Hold(why) = &decision {
            let text = why.to_string();
            assert!(text.len() > 80, "{name}: says why and what to do: {text}");
        }
    }
}

/// Every sequence of different devices out of 1, 2, 3, with none to three of them.
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

/// All rows by which one device may report its state.
fn states() -> Vec<Member> {
    let mut list = Vec::new();
    for other_log in [false, true] {
        for incarnation in [4, 5, 6] {
            for (tail, applied) in [(0, 0), (9, 3), (9, 8)] {
                for flags in [0, Member::SHRINK, Member::DECLARE_LOSS] {
                    let log_uuid = if other_log { 99 } else { 0 };
                    let member = member(0);
                    list.push(Member {
                        incarnation,
                        log_uuid,
                        tail,
                        applied,
                        flags,
                        word_epoch: EPOCH,
                        ..member
                    });
                }
            }
        }
    }
    list
}

/// Every chain of up to three devices × every path × every report of the origin × every report of the other devices ×
/// every A: no combination may break a rule of membership.
#[test]
fn no_input_breaks_the_rules_of_membership() {
    let registered = |id: u32| Member {
        incarnation: 5,
        log_uuid: u128::from(id),
        tail: 0,
        ..member(id)
    };
    let mut decisions = 0u32;
    for members in sequences() {
        let members: Vec<Member> = members.into_iter().map(registered).collect();
        for path in sequences().into_iter().filter(|path| !path.is_empty()) {
            for origin in states() {
                for rest in states().iter().filter(|rest| rest.flags == 0) {
                    let say = |(at, &id): (usize, &u32)| {
                        let said = if at == 0 { &origin } else { rest };
                        Member {
                            device: id,
                            log_uuid: said.log_uuid + u128::from(id),
                            ..*said
                        }
                    };
                    let path: Vec<Member> = path.iter().enumerate().map(say).collect();
                    for (applied, had_sessions) in [(0, false), (0, true), (3, true), (8, true)] {
                        let decision = decide(&members, &path, EPOCH, applied, had_sessions);
                        judge(&members, &path, applied, had_sessions, &decision);
                        decisions += 1;
                    }
                    if path.len() == 1 {
                        break; // no other device on the path
                    }
                }
            }
        }
    }
    assert!(decisions > 100_000, "{decisions}");
}

fn judge(
    members: &[Member],
    path: &[Member],
    applied: u64,
    had_sessions: bool,
    decision: &Decision,
) {
    let case = || format!("{members:?}\npath {path:?}\nA {applied} {had_sessions} → {decision:?}");
    let known = |id: u32| members.iter().find(|member| member.device == id);
    let origin = path[0];
    let declared = origin.flags & Member::DECLARE_LOSS != 0;
    let served = matches!(decision, Decision::Keep(_) | Decision::Change { .. });
    if served && !declared {
        if let Some(before) = known(origin.device) {
            assert_eq!(
                before.log_uuid,
                origin.log_uuid,
                "another log serves: {}",
                case()
            );
            assert!(
                before.incarnation <= origin.incarnation,
                "an old log serves: {}",
                case()
            );
            assert!(
                origin.applied <= applied,
                "a store that lost data is served: {}",
                case()
            );
        } else {
            assert!(
                !had_sessions && applied == 0,
                "a stranger joins data: {}",
                case()
            );
            let empty = path.iter().all(|member| member.tail == 0);
            assert!(empty, "a used log joins: {}", case());
        }
    }
    match decision {
        Decision::Keep(kept) => {
            assert_eq!(ids(kept), ids(members), "{}", case());
            for (kept, before) in kept.iter().zip(members) {
                let same = Member {
                    incarnation: before.incarnation,
                    served: before.served,
                    ..*kept
                };
                assert_eq!(same, *before, "only the life changes: {}", case());
                let own = kept.device == origin.device;
                assert!(
                    kept.incarnation >= before.incarnation,
                    "a rolled-back log is kept: {}",
                    case()
                );
                assert!(own || kept.incarnation == before.incarnation, "{}", case());
            }
        }
        Decision::Change {
            members: after,
            notice,
        } => {
            assert_eq!(ids(after), ids(path), "{}", case());
            assert!(!notice.to_string().is_empty());
            for member in after.iter().filter(|_| !declared) {
                let lower =
                    known(member.device).is_some_and(|m| m.incarnation > member.incarnation);
                assert!(!lower, "a registered incarnation is forgotten: {}", case());
            }
            let gone = members
                .iter()
                .any(|member| !ids(after).contains(&member.device));
            if gone && !declared {
                let told = origin.flags & Member::SHRINK != 0;
                assert!(told, "a member is dropped without a word: {}", case());
                let old = after.iter().all(|member| known(member.device).is_some());
                assert!(old, "shrinks and grows at once: {}", case());
            }
        }
        Decision::Erase(_) => panic!("nobody asked to join: {}", case()),
        Decision::Wait | Decision::Hold(_) | Decision::Refuse(_) => {}
    }
}
