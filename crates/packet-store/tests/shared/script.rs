//! Operations before and after a crash.

use crate::drive::Op::{
    self, Apply, Begin, Copy, Forge, Grow, Kill, Pack, Persist, Poll, Power, Receive, Remove, Undo,
};
use crate::support::Random;

/// Returns the operations by which an update arrives, is acknowledged, and is applied.
const fn whole(op: Op) -> [Op; 3] {
    [op, Persist, Apply(9)]
}

/// Returns scripts with every change of a frame's owner. Each change is followed by operations that could use a frame
/// too early.
pub fn scripts() -> Vec<(&'static str, Vec<Op>)> {
    let every = |ops: &[Op]| ops.iter().flat_map(|op| whole(*op)).collect::<Vec<_>>();
    let then = |ops: &[Op], more: &[Op]| [every(ops), more.to_vec()].concat();
    vec![
        (
            "grown with what is applied, acknowledged, and neither",
            then(
                &[Receive(1, 900), Receive(2, 40), Receive(1, 700)],
                &[
                    Receive(3, 900),
                    Persist,
                    Remove(2),
                    Grow,
                    Receive(4, 900),
                    Persist,
                    Apply(9),
                    Poll,
                    Forge(1),
                ],
            ),
        ),
        ("link", every(&[Receive(1, 900), Receive(2, 600)])),
        (
            "linked, copied because it is small, copied into the log",
            every(&[Receive(1, 900), Receive(2, 40), Copy(3, 900), Copy(4, 40)]),
        ),
        (
            "released while the record lives",
            then(
                &[
                    Receive(1, 900),
                    Receive(2, 900),
                    Receive(3, 900),
                    Receive(4, 900),
                ],
                &[Poll, Receive(5, 900), Persist, Poll, Forge(1)],
            ),
        ),
        (
            "overwritten before the log releases it",
            then(
                &[
                    Receive(1, 900),
                    Receive(1, 800),
                    Receive(1, 700),
                    Receive(2, 10),
                ],
                &[
                    Poll,
                    Forge(1),
                    Receive(3, 600),
                    Persist,
                    Apply(1),
                    Poll,
                    Forge(1),
                ],
            ),
        ),
        (
            "overwritten after the log released it",
            [
                every(&[Receive(1, 900), Receive(2, 900), Receive(3, 900)]),
                vec![Poll],
                every(&[Receive(1, 800)]),
                vec![Poll, Forge(1), Receive(4, 700), Persist, Poll, Forge(1)],
                every(&[Remove(2)]),
                vec![Poll, Forge(2), Persist, Poll, Forge(2)],
            ]
            .concat(),
        ),
        (
            "removed",
            then(
                &[
                    Receive(1, 900),
                    Remove(1),
                    Receive(2, 900),
                    Remove(2),
                    Remove(3),
                ],
                &[
                    Poll,
                    Forge(1),
                    Receive(1, 700),
                    Persist,
                    Poll,
                    Forge(2),
                    Apply(1),
                ],
            ),
        ),
        (
            "many in one change",
            vec![
                Receive(1, 900),
                Receive(2, 700),
                Receive(1, 800),
                Remove(2),
                Copy(3, 600),
                Persist,
                Apply(5),
                Receive(3, 700),
                Receive(1, 600),
                Persist,
                Apply(2),
                Poll,
                Forge(1),
            ],
        ),
        (
            "given up, then applied",
            vec![
                Receive(1, 900),
                Receive(2, 700),
                Persist,
                Undo(2),
                Undo(1),
                Apply(1),
                Undo(1),
                Receive(3, 600),
                Persist,
                Poll,
                Forge(1),
                Apply(2),
                Poll,
            ],
        ),
        (
            "given up, then crashed",
            vec![
                Receive(1, 900),
                Persist,
                Apply(1),
                Receive(1, 700),
                Persist,
                Undo(1),
                Kill,
                Undo(1),
                Power(5),
                Apply(1),
                Receive(2, 600),
                Persist,
                Power(6),
                Apply(1),
            ],
        ),
        (
            "a persist of the log in flight",
            vec![
                Receive(1, 900),
                Begin,
                Receive(2, 800),
                Persist,
                Apply(1),
                Receive(3, 700),
                Begin,
                Apply(1),
                Receive(4, 600),
                Begin,
                Apply(5),
                Poll,
            ],
        ),
        ("packed", {
            let many: Vec<Op> = (1..15).map(|key| Receive(key, 520)).collect();
            then(
                &many,
                &[
                    Pack(100_000),
                    Poll,
                    Forge(1),
                    Persist,
                    Poll,
                    Receive(1, 900),
                    Persist,
                    Apply(1),
                ],
            )
        }),
        (
            "crashes between",
            vec![
                Receive(1, 900),
                Persist,
                Kill,
                Apply(1),
                Kill,
                Receive(1, 800),
                Receive(2, 800),
                Kill,
                Apply(1),
                Power(1),
                Apply(2),
                Power(2),
                Receive(2, 700),
                Persist,
                Power(3),
                Poll,
                Apply(1),
                Forge(2),
            ],
        ),
    ]
}

/// Returns operations that follow a recovery: all orders of the log are applied, and frames are used again.
pub fn after_recovery() -> Vec<Op> {
    vec![
        Poll,
        Forge(1),
        Apply(2),
        Receive(1, 560),
        Persist,
        Apply(9),
        Poll,
        Forge(1),
    ]
}

/// Returns `count` random operations for a seed.
pub fn random(seed: u64, count: usize) -> Vec<Op> {
    random_with(seed, count, false)
}

/// Returns `count` random operations for a seed; with `grows`, the region sometimes grows.
pub fn random_with(seed: u64, count: usize, grows: bool) -> Vec<Op> {
    let mut random = Random(seed);
    let mut ops = Vec::new();
    while ops.len() < count {
        let key = u8::try_from(1 + random.index(16)).unwrap();
        ops.push(match random.index(20) {
            0..=4 => Receive(key, 500 + random.index(800)),
            5 => Receive(key, random.index(300)),
            6 => Copy(key, random.index(900)),
            7 | 8 => Remove(key),
            9 | 10 => Persist,
            11 => Begin,
            12..=14 => Apply(1 + u64::try_from(random.index(4)).unwrap()),
            15 => Undo(1 + u64::try_from(random.index(2)).unwrap()),
            16 => Pack(random.index(4000)),
            17 => Poll,
            18 => match random.index(if grows { 4 } else { 3 }) {
                0 => Kill,
                1 => Power(random.next()),
                2 if grows => Grow,
                _ => Poll,
            },
            _ => Forge(key),
        });
    }
    ops
}
