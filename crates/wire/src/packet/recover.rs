//! RECOVER: a device asks the server for its state; the reply.
//!
//! ```text
//!               24    32    40          48      56    64
//! Recover       |     | meant | persisted | nonce |     | part |
//! RecoverReply  |     |     | applied   | nonce |     | part |   flags: REFUSED, PROGRESS, CONTINUE, READS
//! ```
//! Stamp of both: the device that recovers. Tag 0. Payloads: `docs/spec/wire.md` §5.2 and §5.3.

use super::view;

view! {
    /// What epoch is it, what is applied, which sessions are there?
    Recover = Recover {
        /// With keys: for which hop it is meant, as its device id + 1 (the server: 1); otherwise 0.
        meant: seq,
        /// Durable prefix of the device.
        persisted: order,
        /// Drawn for this question; the reply repeats it.
        nonce: request,
        /// The part of the session table that it asks for, of so many.
        part: fragment,
    }
}

view! {
    /// The answer, or a part of it. Its epoch is the server's.
    RecoverReply = RecoverReply {
        /// A: everything up to here is applied.
        applied: order,
        /// Of the question.
        nonce: request,
        /// Which part of the session table it carries.
        part: fragment,
    }
    flags {
        /// The device must not serve; the payload is a text for the operator.
        refused: REFUSED,
        /// With `refused`: it waits for the operator, and goes on asking.
        held: PROGRESS,
        /// With `held`: it is no member of the chain; before it joins, it is to erase its log.
        erase: CONTINUE,
        /// The head may answer READs.
        reads: READS,
    }
}
