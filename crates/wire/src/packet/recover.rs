//! RECOVER: a device asks the server for its state. RECOVER-REPLY: the answer.
//!
//! ```text
//!               24    32      40          48      56         64
//! Recover       |     | meant | persisted | nonce |          | part |
//! RecoverReply  |     |       | applied   | nonce | payloads | part |   flags: REFUSED, PROGRESS, CONTINUE, READS
//! ```
//! Both packets have the stamp of the device that recovers, with tag 0. Payloads: `docs/spec/wire.md` §5.2 and §5.3.

use super::view;

view! {
    /// Asks for the epoch, the applied order and the sessions.
    Recover = Recover {
        /// With keys: the device id plus 1 of the hop to which the packet is addressed (1: the server). Without keys:
        /// 0.
        meant: seq,
        /// Last durable order of the device's log.
        persisted: order,
        /// Nonce of this question; the reply repeats it.
        nonce: request,
        /// Which part of the session table the device asks for.
        part: fragment,
    }
}

view! {
    /// The answer, or a part of it. The packet's epoch is the server's epoch.
    RecoverReply = RecoverReply {
        /// A: all orders up to this order are applied.
        applied: order,
        /// Nonce of the question.
        nonce: request,
        /// Kinds of payloads that the server takes ([`Payloads::from_wire`](crate::Payloads::from_wire)); 0: not
        /// stated.
        payloads: key_hash,
        /// Part of the session table that the packet carries.
        part: fragment,
    }
    flags {
        /// The device must not serve; the payload is a text for the operator.
        refused: REFUSED,
        /// With `refused`: the device must wait for the operator, and ask again.
        held: PROGRESS,
        /// With `held`: the device is no member of the chain. Before it joins, it must erase its log.
        erase: CONTINUE,
        /// The head may answer READs.
        reads: READS,
    }
}
