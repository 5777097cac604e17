//! Operations before and after a crash.

use crate::drive::Change::{self, InPlace, Put, Remove};
use crate::drive::Op::{self, Abort, Commit, Kill, Pack, Power, Release, Snapshot};
use crate::support::Random;

/// Returns scripts with every kind of operation. Each of these operations is followed by operations that could bring
/// back a value which it removed.
pub fn scripts() -> Vec<(&'static str, Vec<Op>)> {
    let put = |key, len| Commit(vec![Put(key, len)]);
    let remove = |key| Commit(vec![Remove(key)]);
    vec![
        ("put", vec![put(1, 50), put(2, 1000), put(0, 0)]),
        (
            "overwrite",
            vec![put(1, 50), put(1, 60), put(1, 70), put(1, 0), put(2, 3)],
        ),
        (
            "delete",
            vec![
                put(1, 50),
                put(1, 60),
                remove(1),
                put(2, 1),
                remove(2),
                put(1, 5),
                remove(1),
            ],
        ),
        (
            "delete and use again",
            vec![
                put(5, 40),
                remove(5),
                put(5, 40),
                put(6, 40),
                remove(5),
                put(6, 40),
                remove(6),
            ],
        ),
        (
            "many in one",
            vec![
                Commit(vec![Put(4, 30), Put(5, 30), Put(6, 30)]),
                Commit(vec![
                    Remove(4),
                    Put(5, 31),
                    Put(7, 30),
                    Remove(7),
                    Put(6, 1),
                    Put(6, 2),
                ]),
                Commit(vec![Remove(5), Put(5, 9), Remove(6), Put(8, 1)]),
            ],
        ),
        (
            "abort",
            vec![
                put(4, 30),
                Abort(vec![Put(4, 31), Put(5, 30), Remove(4)]),
                Abort(vec![Remove(4)]),
                put(5, 20),
                Abort(vec![Remove(4), Put(4, 7), InPlace(6, 2)]),
                remove(4),
            ],
        ),
        (
            "large",
            vec![
                put(4, 9000),
                put(4, 5000),
                Commit(vec![Remove(4), Put(5, 7000)]),
                put(5, 10),
                put(6, 9000),
            ],
        ),
        (
            "long key",
            vec![put(3, 10), put(3, 3000), remove(3), put(4, 9000), put(3, 1)],
        ),
        (
            "long key that begins as another",
            vec![
                put(30, 5),
                put(31, 5),
                put(3, 10),
                put(3, 20),
                put(6, 1),
                remove(3),
                put(6, 2),
            ],
        ),
        (
            "in place",
            vec![
                Commit(vec![InPlace(4, 1)]),
                Commit(vec![InPlace(5, 3), Put(4, 10)]),
                Commit(vec![Remove(5), Put(6, 10)]),
                Commit(vec![InPlace(4, 4), Remove(5)]),
            ],
        ),
        (
            "pack",
            sparse(&[
                Pack(100_000),
                put(2, 10),
                remove(12),
                Pack(100_000),
                put(9, 30),
            ]),
        ),
        (
            "pack a little",
            sparse(&[Pack(1), Pack(1), put(12, 10), Pack(300)]),
        ),
        (
            "snapshot",
            vec![
                put(4, 30),
                Snapshot,
                put(4, 31),
                put(4, 32),
                remove(4),
                put(5, 1),
                Release,
                put(5, 2),
                put(6, 2),
                put(6, 3),
            ],
        ),
        (
            "two snapshots",
            vec![
                put(4, 30),
                Snapshot,
                put(4, 31),
                Snapshot,
                remove(4),
                Release,
                Release,
                put(5, 1),
                put(5, 2),
            ],
        ),
        (
            "snapshot of what is deleted",
            vec![
                put(4, 30),
                put(4, 31),
                Snapshot,
                remove(4),
                put(6, 1),
                put(4, 32),
                Release,
                remove(4),
                put(6, 2),
            ],
        ),
        (
            "crash between",
            vec![
                put(4, 30),
                put(4, 31),
                Kill,
                remove(4),
                Kill,
                put(5, 10),
                put(5, 11),
                Power(7),
                remove(5),
                Power(8),
                put(4, 1),
            ],
        ),
        (
            "abort, then crash",
            vec![
                put(4, 30),
                Abort(vec![Remove(4), Put(5, 30)]),
                Kill,
                put(5, 9),
                Abort(vec![Put(5, 8), Remove(5)]),
                Power(3),
                remove(5),
            ],
        ),
        (
            "expire",
            vec![
                Commit(vec![Put(4, 9), Put(5, 9), Put(6, 9)]),
                Commit(vec![Remove(4), Remove(6)]),
                put(6, 1),
            ],
        ),
    ]
}

/// Stores packets with one record each, removes most of these records, and then runs the operations `then`.
fn sparse(then: &[Op]) -> Vec<Op> {
    let mut ops: Vec<Op> = (4..20).map(|key| Commit(vec![InPlace(key, 1)])).collect();
    ops.extend_from_slice(then);
    ops
}

/// Returns operations that follow a recovery: they use lines and frames again, and remove records.
pub fn after_recovery() -> Vec<Op> {
    vec![
        Commit(vec![Put(5, 33), Put(21, 12), Remove(4)]),
        Commit(vec![Remove(5), Remove(21), Put(6, 5)]),
    ]
}

/// Returns twenty random operations for a seed.
pub fn random(seed: u64) -> Vec<Op> {
    let mut random = Random(seed);
    let mut ops = Vec::new();
    let mut snapshots = 0;
    while ops.len() < 20 {
        let mut changes: Vec<Change> = Vec::new();
        for _ in 0..=random.index(3) {
            let key = u8::try_from(random.index(8)).unwrap();
            changes.push(match random.index(6) {
                0 | 1 => Remove(key),
                2 => InPlace(key.max(4), 1 + u8::try_from(random.index(2)).unwrap()),
                3 => Put(key, random.index(4000)),
                _ => Put(key, random.index(80)),
            });
        }
        ops.push(match random.index(14) {
            0 | 1 => Abort(changes),
            2 => Pack(random.index(3000)),
            3 => {
                snapshots += 1;
                Snapshot
            }
            4 if snapshots > 0 => {
                snapshots -= 1;
                Release
            }
            5 => {
                snapshots = 0;
                Kill
            }
            6 => {
                snapshots = 0;
                Power(random.next())
            }
            _ => Commit(changes),
        });
    }
    ops
}
