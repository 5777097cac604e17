//! The text of a decision, and the numbers that the chain record keeps of it. A refused device must learn what is wrong
//! with *its own* log, and must never ask for ever without an answer (`docs/spec/protocol.md` §5).

use crate::support::server::member;
use pmnet_proto::server::{Decision, decide};
use pmnet_wire::record::Member;

const EPOCH: u32 = 4;

fn chain(ids: &[u32]) -> Vec<Member> {
    ids.iter().map(|&id| member(id)).collect()
}

/// Decides about a path that is the part of this chain from `origin` on. `virgin`: there was no session yet.
fn judge(ids: &[u32], origin: Member, virgin: bool) -> Decision {
    let members = chain(ids);
    let at = members.iter().position(|m| m.device == origin.device);
    let mut path = members[at.expect("a member")..].to_vec();
    path[0] = origin;
    let applied = if virgin { 0 } else { 7 };
    decide(&members, &path, EPOCH, applied, !virgin)
}

/// A log that is not registered, and an old copy of the registered log, are refused with the right reason. This holds
/// at every place in the chain, before and after the first entry, and with every operator's order except the order that
/// declares the data lost.
#[test]
fn the_wrong_log_is_refused_as_what_it_is() {
    type Change = fn(&mut Member);
    let wrong: [(&str, Change); 4] = [
        ("another log", |m| m.log_uuid = 9),
        ("another log", |m| {
            m.log_uuid = 9;
            m.incarnation = 5;
        }),
        ("rolled back", |m| m.incarnation = 0),
        ("rolled back", |m| {
            m.served = 0;
            m.incarnation = 5;
        }),
    ];
    for (says, change) in wrong {
        for (ids, device) in [(&[1][..], 1), (&[1, 2], 1), (&[1, 2], 2), (&[1, 2, 3], 2)] {
            for virgin in [false, true] {
                for flags in [0, Member::SHRINK] {
                    let mut origin = Member {
                        flags,
                        word_epoch: EPOCH,
                        ..member(device)
                    };
                    change(&mut origin);
                    let decision = judge(ids, origin, virgin);
                    let case = format!("{ids:?} {origin:?} virgin {virgin}: {decision:?}");
                    let Decision::Refuse(why) = &decision else {
                        panic!("{case}")
                    };
                    let text = why.to_string();
                    assert!(text.contains(says), "{case}");
                    assert!(text.contains(&format!("device {device} ")), "{case}");
                }
            }
        }
    }
}

/// For a device that comes back, the record keeps two numbers: the device's current incarnation, and the last
/// incarnation in which its log served. Later these numbers reveal an old copy of the device's log.
#[test]
fn the_life_of_a_device_that_comes_back_is_remembered_and_no_other() {
    for device in 1..=3 {
        let origin = Member {
            incarnation: 9,
            served: 8,
            ..member(device)
        };
        let mut expected = chain(&[1, 2, 3]);
        for kept in expected.iter_mut().filter(|m| m.device == device) {
            (kept.incarnation, kept.served) = (9, 8);
        }
        let decision = judge(&[1, 2, 3], origin, false);
        assert_eq!(decision, Decision::Keep(expected.clone()));
        // From then on, a log with the earlier numbers is an old copy.
        let path: Vec<Member> = expected[usize::try_from(device - 1).expect("small")..].to_vec();
        for (incarnation, served, enough) in
            [(9, 8, true), (10, 8, true), (10, 1, false), (8, 8, false)]
        {
            let mut path = path.clone();
            (path[0].incarnation, path[0].served) = (incarnation, served);
            let decision = decide(&expected, &path, EPOCH, 7, true);
            assert_eq!(
                matches!(decision, Decision::Keep(_)),
                enough,
                "{incarnation} {served}: {decision:?}"
            );
        }
    }
}
