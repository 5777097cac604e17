//! The decision of recovery: a pure function over a summary of the image
//! (`docs/spec/recovery.md` §4). The function reads no bytes and changes nothing.

use crate::entry::InvalidSlot;
use crate::layout::to_u64;

/// Maximum number of damaged orders that [`Decision::Damaged`] lists.
pub const DAMAGED_ORDERS_LISTED_MAX: usize = 32;

/// One slot of the metadata ring, as far as the decision needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// All bytes are zero.
    Empty,
    /// The slot has bytes that are not zero, and no valid entry.
    Invalid(InvalidSlot),
    /// An entry that passed every check. Always `applied ≤ durable < order ≤ applied + slots`.
    Valid {
        /// Order of the entry.
        order: u64,
        /// All orders up to this order were durable when the entry was appended.
        durable: u64,
        /// All orders up to this order were reclaimed when the entry was appended.
        applied: u64,
        /// Epoch of the log when the entry was appended.
        epoch: u32,
        /// Incarnation of the device when the entry was appended.
        incarnation: u32,
    },
}

/// The results of a scan that [`decide`] needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Applied order in the superblock: orders up to it need not be kept.
    pub applied: u64,
    /// Durable order in the superblock: all orders up to it were durable; `applied ≤ durable ≤ applied + slots`.
    pub durable: u64,
    /// Epoch in the superblock.
    pub epoch: u32,
    /// Incarnation in the superblock.
    pub incarnation: u32,
    /// Every slot of the metadata ring; the count is a power of two.
    pub slots: Vec<Slot>,
}

/// The steps that recovery takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Keep the entries in `applied + 1 ..= tail`, which are whole, and erase the rest.
    Keep {
        /// All orders up to this order need not be kept.
        applied: u64,
        /// All orders up to this order are proven to have been durable; `applied ≤ proven ≤ tail`.
        proven: u64,
        /// Last order that is kept.
        tail: u64,
        /// Number of whole entries beyond `tail`. These entries were never acknowledged, and are erased.
        beyond: u64,
    },
    /// Orders that were durable, and may not have been applied, are missing.
    Damaged {
        /// The first [`DAMAGED_ORDERS_LISTED_MAX`] missing orders.
        orders: Vec<u64>,
        /// Number of missing orders.
        total: u64,
    },
    /// An entry has a later epoch or incarnation than both superblocks. So the superblocks are old copies.
    SuperblockBehind {
        /// Order of an entry with a later epoch or incarnation.
        order: u64,
    },
}

/// Decides which entries are kept (`docs/spec/recovery.md` §4).
///
/// # Panics
/// If the summary breaks the bounds that its fields state. A scan never returns such a summary.
#[must_use]
pub fn decide(summary: &Summary) -> Decision {
    let count = to_u64(summary.slots.len());
    assert!(
        count.is_power_of_two(),
        "a metadata ring has a power of two slots"
    );
    let at = |order: u64| -> Option<(u32, u32)> {
        let index = usize::try_from(order & (count - 1)).expect("less than the number of slots");
        match summary.slots[index] {
            Slot::Valid {
                order: found,
                epoch,
                incarnation,
                ..
            } if found == order => Some((epoch, incarnation)),
            _ => None,
        }
    };

    // The superblock and every whole entry, kept or not, prove that orders were durable.
    let (mut applied, mut proven) = (summary.applied, summary.durable);
    for slot in &summary.slots {
        let Slot::Valid {
            order,
            durable,
            applied: reclaimed,
            epoch,
            incarnation,
        } = *slot
        else {
            continue;
        };
        assert!(
            reclaimed <= durable && durable < order && order - reclaimed <= count,
            "the scan checks lags"
        );
        if epoch > summary.epoch || incarnation > summary.incarnation {
            return Decision::SuperblockBehind { order };
        }
        applied = applied.max(reclaimed);
        proven = proven.max(durable);
    }
    proven = proven.max(applied);

    let mut orders = Vec::new();
    let mut total = 0;
    for order in applied + 1..=proven {
        if at(order).is_none() {
            total += 1;
            if orders.len() < DAMAGED_ORDERS_LISTED_MAX {
                orders.push(order);
            }
        }
    }
    if total > 0 {
        return Decision::Damaged { orders, total };
    }

    // Whole entries that follow the proven orders without a gap may have been durable and acknowledged, so they are
    // kept. Epoch and incarnation never decrease along a log. So an entry with a lower epoch or incarnation is a
    // remnant of an earlier time.
    let mut tail = proven;
    let mut newest = if proven > applied {
        at(proven).unwrap_or((0, 0))
    } else {
        (0, 0)
    };
    while tail < applied + count {
        match at(tail + 1) {
            Some((epoch, incarnation)) if epoch >= newest.0 && incarnation >= newest.1 => {
                newest = (epoch, incarnation);
                tail += 1;
            }
            _ => break,
        }
    }
    let beyond = summary
        .slots
        .iter()
        .filter(|slot| matches!(slot, Slot::Valid { order, .. } if *order > tail));
    Decision::Keep {
        applied,
        proven,
        tail,
        beyond: to_u64(beyond.count()),
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
