//! Tests of the decision: a table of cases, and every possible summary of a ring of four slots.

use super::*;

fn valid(order: u64, durable: u64, applied: u64) -> Slot {
    Slot::Valid {
        order,
        durable,
        applied,
        epoch: 1,
        incarnation: 1,
    }
}

fn summary(applied: u64, durable: u64, slots: [Slot; 4]) -> Summary {
    Summary {
        applied,
        durable,
        epoch: 1,
        incarnation: 1,
        slots: slots.to_vec(),
    }
}

const EMPTY: Slot = Slot::Empty;
const TORN: Slot = Slot::Invalid(InvalidSlot::Checksum);

fn keep(applied: u64, proven: u64, tail: u64, beyond: u64) -> Decision {
    Decision::Keep {
        applied,
        proven,
        tail,
        beyond,
    }
}

fn damaged(orders: &[u64]) -> Decision {
    Decision::Damaged {
        orders: orders.to_vec(),
        total: to_u64(orders.len()),
    }
}

/// The rows of `docs/spec/recovery.md` §4. Slots are given in the order 0, 1, 2, 3.
#[test]
fn table() {
    let rows = [
        ("new log", summary(0, 0, [EMPTY; 4]), keep(0, 0, 0, 0)),
        (
            "one burst, no proof yet",
            summary(0, 0, [EMPTY, valid(1, 0, 0), valid(2, 0, 0), EMPTY]),
            keep(0, 0, 2, 0),
        ),
        (
            "torn tail",
            summary(0, 0, [EMPTY, valid(1, 0, 0), TORN, valid(3, 0, 0)]),
            keep(0, 0, 1, 1),
        ),
        (
            "torn first burst",
            summary(0, 0, [EMPTY, EMPTY, valid(2, 0, 0), EMPTY]),
            keep(0, 0, 0, 1),
        ),
        (
            "hole below a proof",
            summary(0, 0, [EMPTY, valid(1, 0, 0), TORN, valid(3, 2, 0)]),
            damaged(&[2]),
        ),
        (
            "zeroed below a proof",
            summary(0, 0, [EMPTY, EMPTY, EMPTY, valid(3, 2, 0)]),
            damaged(&[1, 2]),
        ),
        (
            "lost, superblock proves it",
            summary(0, 2, [EMPTY, valid(1, 0, 0), EMPTY, EMPTY]),
            damaged(&[2]),
        ),
        (
            "hole, but reclaimed",
            summary(0, 0, [EMPTY, TORN, TORN, valid(3, 2, 2)]),
            keep(2, 2, 3, 0),
        ),
        (
            "superblock two laps behind",
            summary(
                0,
                0,
                [valid(12, 11, 10), valid(9, 8, 8), TORN, valid(11, 10, 9)],
            ),
            keep(10, 11, 12, 0),
        ),
        (
            "an older lap where a durable one is proven",
            summary(4, 6, [EMPTY, valid(5, 4, 4), valid(2, 1, 0), EMPTY]),
            damaged(&[6]),
        ),
        (
            "all reclaimed",
            summary(8, 8, [valid(8, 7, 6), valid(5, 4, 4), EMPTY, TORN]),
            keep(8, 8, 8, 0),
        ),
        (
            "reset beyond everything",
            summary(1000, 1000, [EMPTY, TORN, TORN, EMPTY]),
            keep(1000, 1000, 1000, 0),
        ),
        (
            "proof carried by an entry that is itself beyond the tail",
            summary(0, 0, [EMPTY, valid(1, 0, 0), EMPTY, valid(3, 1, 1)]),
            keep(1, 1, 1, 1),
        ),
    ];
    for (name, given, expected) in rows {
        assert_eq!(decide(&given), expected, "{name}");
    }
}

#[test]
fn a_later_life_in_the_ring_than_in_the_superblock() {
    for (epoch, incarnation) in [(2, 1), (1, 2)] {
        let slot = Slot::Valid {
            order: 1,
            durable: 0,
            applied: 0,
            epoch,
            incarnation,
        };
        assert_eq!(
            decide(&summary(0, 0, [EMPTY, slot, EMPTY, EMPTY])),
            Decision::SuperblockBehind { order: 1 }
        );
    }
}

#[test]
fn an_earlier_life_ends_the_tail() {
    let now = Slot::Valid {
        order: 1,
        durable: 0,
        applied: 0,
        epoch: 1,
        incarnation: 1,
    };
    for (epoch, incarnation) in [(0, 1), (1, 0)] {
        let left_over = Slot::Valid {
            order: 2,
            durable: 0,
            applied: 0,
            epoch,
            incarnation,
        };
        assert_eq!(
            decide(&summary(0, 0, [EMPTY, now, left_over, EMPTY])),
            keep(0, 0, 1, 1)
        );
    }
}

/// Every summary of a ring of four slots: entries of three laps with every pair of durable and applied orders, torn and
/// empty slots, every superblock up to order 9. The test states the required properties without the algorithm.
#[test]
fn every_small_summary() {
    let mut choices: [Vec<Slot>; 4] = std::array::from_fn(|_| vec![EMPTY, TORN]);
    for order in 1..=9u64 {
        let slot = usize::try_from(order % 4).unwrap();
        for applied in order.saturating_sub(4)..order {
            for durable in applied..order {
                choices[slot].push(valid(order, durable, applied));
            }
        }
    }
    let superblocks = [(0, 0), (0, 2), (1, 1), (3, 5), (4, 4), (4, 8), (9, 9)];
    let (mut kept, mut refused) = (0u64, 0u64);
    for a in &choices[0] {
        for b in &choices[1] {
            for c in &choices[2] {
                for d in &choices[3] {
                    for (applied, durable) in superblocks {
                        let given = summary(applied, durable, [*a, *b, *c, *d]);
                        if properties(&given) {
                            kept += 1;
                        } else {
                            refused += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(
        kept > 10_000 && refused > 10_000,
        "both outcomes are exercised: {kept}, {refused}"
    );
}

fn properties(given: &Summary) -> bool {
    let there = |order: u64| {
        given
            .slots
            .iter()
            .any(|slot| matches!(slot, Slot::Valid { order: o, .. } if *o == order))
    };
    let claims = given.slots.iter().filter_map(|slot| match slot {
        Slot::Valid {
            durable, applied, ..
        } => Some((*durable, *applied)),
        _ => None,
    });
    let (most_durable, most_applied) = claims
        .fold((given.durable, given.applied), |most, claim| {
            (most.0.max(claim.0), most.1.max(claim.1))
        });
    let missing: Vec<u64> = (most_applied + 1..=most_durable)
        .filter(|order| !there(*order))
        .collect();
    match decide(given) {
        Decision::Keep {
            applied,
            proven,
            tail,
            beyond,
        } => {
            assert!(missing.is_empty(), "{given:?}");
            assert_eq!(
                (applied, proven),
                (most_applied, most_durable.max(most_applied)),
                "{given:?}"
            );
            assert!(
                tail >= proven && (applied + 1..=tail).all(there),
                "{given:?}"
            );
            assert!(!there(tail + 1) || tail == applied + 4, "{given:?}");
            let after = given
                .slots
                .iter()
                .filter(|slot| matches!(slot, Slot::Valid { order, .. } if *order > tail));
            assert_eq!(beyond, to_u64(after.count()), "{given:?}");
            true
        }
        Decision::Damaged { orders, total } => {
            assert_eq!(
                (&orders, total),
                (&missing, to_u64(missing.len())),
                "{given:?}"
            );
            assert!(total > 0, "{given:?}");
            false
        }
        Decision::SuperblockBehind { .. } => panic!("no such epoch in {given:?}"),
    }
}
