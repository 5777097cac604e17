//! The slots of an ordered queue, into which a NIC puts messages that it acknowledges by itself (`docs/spec/verbs.md`).
//!
//! ```text
//! 0      64       72        2048   2112     2120        4096                   + slots · slot bytes
//! +------+--------+---------+------+--------+-----------+----------------------+
//! | head | cursor | zero    | head | cursor | zero      | slots                |
//! +------+--------+---------+------+--------+-----------+----------------------+
//! ```
//! The slots are a ring, and are posted in the order of the ring: message number `n`, from 0, is received into slot `n
//! mod slots`. A slot has no header. The cursor is the number of the oldest message that is not *entered*: messages
//! below it are durable in the ordered log, or have no effect. A slot is posted again when the durable cursor is past
//! it.
//!
//! Purpose: this module delivers messages in the order of their slots, and finds acknowledged messages again after a
//! crash. Invariants: `kept ≤ processed ≤ posted ≤ kept + slots`; a message is delivered only after all earlier slots
//! are complete; the scan stores nothing. This module has no IO, no clock and no packets. The caller decides whether a
//! slot holds a message.

mod image;
mod queue;
mod scan;

pub use image::{
    NUMBER_MAX, SLOT_BYTES_MAX, SLOT_BYTES_MIN, SLOTS_MAX, SLOTS_MIN, SlotParameters, SlotsError,
    format,
};
pub use queue::{Odd, Oldest, Outcome, Posting, SlotQueue};
pub use scan::SlotScan;
