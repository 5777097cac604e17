//! The tables of `docs/spec/protocol.md` §5 and the code, line for line: both have the same text, and each line makes
//! the decision that its text states.

use crate::support::server::member;
use pmnet_proto::server::Decision;
use pmnet_proto::server::decide::{JOINING, Line, TABLE, line};
use pmnet_wire::record::Member;
use std::collections::BTreeSet;

const EPOCH: u32 = 4;
const DOCUMENT: &str = include_str!("../../../../docs/spec/protocol.md");

/// The rows of the document's table after this heading.
fn rows(heading: &str) -> Vec<String> {
    let mut lines = DOCUMENT.lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "{heading}");
    lines
        .skip(1)
        .take_while(|line| line.starts_with("| "))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_tables_of_the_document_are_those_of_the_code() {
    let written = |table: &[Line]| -> Vec<String> {
        let row = |line: &Line| format!("| {} | {} | {} |", line.number, line.when, line.decides);
        table.iter().map(row).collect()
    };
    let chain = rows("| | members, path, flags | decision |");
    assert_eq!(chain, written(TABLE));
    assert_eq!(rows("| | members, path | decision |"), written(JOINING));
}

/// The rows that a device may present in a path: its registered row, and rows with one difference.
fn comes(device: u32) -> Vec<Member> {
    let plain = Member {
        word_epoch: EPOCH,
        ..member(device)
    };
    let ready = Member {
        flags: Member::JOIN,
        tail: 0,
        applied: 0,
        incarnation: 3,
        served: 3,
        ..plain
    };
    vec![
        plain,
        Member { tail: 9, ..plain },
        Member {
            tail: 9,
            applied: 8,
            ..plain
        },
        Member {
            log_uuid: 99,
            ..plain
        },
        Member {
            tail: 9,
            served: 0,
            ..plain
        },
        Member {
            incarnation: 9,
            ..plain
        },
        Member {
            flags: Member::SERVING,
            ..plain
        },
        Member {
            flags: Member::SHRINK,
            ..plain
        },
        Member {
            flags: Member::DECLARE_LOSS,
            ..plain
        },
        ready,
        Member {
            applied: 9,
            ..ready
        },
        Member {
            word_epoch: 0,
            ..ready
        },
    ]
}

/// Every path of up to three of the devices 1, 2 and 7.
fn paths() -> Vec<Vec<Member>> {
    let mut paths: Vec<Vec<Member>> = vec![vec![]];
    let mut from = 0;
    while from < paths.len() {
        let longer: Vec<Vec<Member>> = [1, 2, 7]
            .into_iter()
            .filter(|&id| paths[from].iter().all(|came| came.device != id))
            .flat_map(comes)
            .map(|next| [&paths[from][..], &[next]].concat())
            .collect();
        paths.extend(longer);
        from += 1;
    }
    paths.split_off(1)
}

/// Whether this text describes this decision.
fn says(words: &str, decision: &Decision) -> bool {
    match decision {
        Decision::Keep(_) => words.starts_with("keep"),
        Decision::Change { .. } => words.starts_with("new chain"),
        Decision::Wait => words.starts_with("wait"),
        Decision::Hold(_) => words.starts_with("hold") && !words.contains("ERASE"),
        Decision::Erase(_) => words.starts_with("hold, ERASE"),
        Decision::Refuse(_) => words.starts_with("refuse"),
    }
}

#[test]
fn each_line_decides_what_its_words_say_and_none_is_in_vain() {
    let joined = Member {
        flags: Member::JOINED,
        tail: 11,
        ..member(2)
    };
    let mut chains = vec![
        vec![],
        vec![member(1)],
        vec![member(2)],
        vec![member(1), member(2)],
        vec![member(1), joined],
    ];
    let mut paths = paths();
    // A chain of full length, and a path with one more device.
    let full: Vec<Member> = (1..=8).map(member).collect();
    paths.push(vec![full[7], comes(9)[9]]);
    chains.push(full);
    let mut decided = BTreeSet::new();
    for path in &paths {
        for members in &chains {
            for (applied, had_sessions) in [(0, false), (0, true), (7, true)] {
                let (line, decision) = line(members, path, EPOCH, applied, had_sessions);
                assert!(
                    says(line.decides, &decision),
                    "{line:?}: {decision:?} of {members:?}, {path:?}, {applied} {had_sessions}"
                );
                decided.insert(line.number);
            }
        }
    }
    let all = TABLE.iter().chain(JOINING).map(|line| line.number);
    let in_vain: Vec<_> = all
        // Line 9a refers to the other table, so it decides nothing.
        .filter(|number| *number != "9a" && !decided.contains(number))
        .collect();
    assert!(in_vain.is_empty(), "{in_vain:?}");
}
