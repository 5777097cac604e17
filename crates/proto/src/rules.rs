//! The rules of the protocol that can be switched off (`docs/spec/protocol.md` §2 and §8), to check that the tests
//! notice a missing rule.
//!
//! A machine whose rule is switched off does what the rule forbids, in the place where the rule is implemented. The
//! simulator must notice the violation. Only a program that is built with the feature `rules` can switch rules off. In
//! any other program [`Rules`] has no size and every rule holds, so the product contains no switch.

/// A rule that a machine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Rule {
    /// §2 rule 2: the head admits only `last + 1`, and refuses higher seqs.
    SessionOrder,
    /// §2 rule 2: a seq up to `last` was admitted before, and is neither admitted nor applied again.
    Duplicates,
    /// §3: a client that searches for the head does not begin the first session of a chain.
    FirstHead,
    /// §2 rule 3: an entry is forwarded only when it is durable in this device.
    WriteAhead,
    /// §2 rule 4: the server takes only order `A + 1`.
    NoGaps,
    /// §2 rule 5: an order is committed only when this device has made it durable.
    DurableFirst,
    /// §2 rule 5: an order is committed only when every device of the chain holds it.
    AllCopies,
    /// §2 rule 5: a device's report of durable orders counts only for that device.
    WhoseCopy,
    /// §2 rule 7: only orders whose effects the store has durably are reported as applied, and so reclaimed.
    ReclaimApplied,
    /// §12: a device is refused, and the shard stopped, only because of records that were read after the question, not
    /// because of the server's memory.
    FreshRecords,
    /// §2 rule 8: a bypass waits for all orders that were admitted earlier.
    Barrier,
    /// §2 rule 8: a bypass waits for its session's own updates, even if they are not in the log yet.
    LastSeq,
    /// §2 rule 8: a bypass that changes state is executed only once, even if it comes again.
    RequestId,
    /// §2 rule 8: a request that the store could not execute is forgotten. A client that still wants the reply sends
    /// the request again.
    ForgetFailed,
    /// §2 rule 8: after a bypass of unknown outcome, the store records another request before the next bypass is sent.
    AfterUnknown,
    /// §2 rule 8: a bypass is not executed after its caller's deadline.
    Deadline,
    /// §1: an unknown session is refused, and never created.
    KnownSession,
    /// §1: a packet of an earlier epoch has no effect.
    Epoch,
    /// §5: a device is accepted only with the log that it has registered.
    LogIdentity,
    /// §5: a device is accepted only with the newest copy of its log.
    Incarnation,
    /// §5: a device joins with an empty log. Without this rule, the device keeps its entries, and they are trusted.
    EraseOnJoin,
    /// §5: a joined device becomes the head of a chain only when it holds all entries that were acknowledged before.
    Synced,
    /// §5: the order up to which a joining device must catch up is taken from a log that stands still.
    StandsStill,
    /// §5: no device hears of an epoch that is not durable at the server.
    ServerFirst,
    /// §5: a device accepts only the reply to its present question.
    OwnReply,
    /// §5: a chain without a remaining member is replaced only if its loss is declared.
    LastMember,
    /// §5: an operator's statement counts in one epoch only.
    WordEpoch,
    /// §14: a device with a lease answers only until the lease, less a margin, is over by its own clock.
    Lease,
    /// §14: the lease also limits the answers to READs.
    LeaseCoversReads,
    /// §14: a device that was declared stopped gets no lease before it has joined again.
    StoppedForGood,
    /// §5: everything that the store has confirmed about a session still exists when its records are loaded again.
    Confirmed,
    /// §4: a fallback has the update's own (session, seq), and counts as that update.
    FallbackIdentity,
    /// §7: a packet without the right token has no effect.
    Token,
    /// keys.md §1: with keys, a packet without the right seal has no effect.
    Sealed,
    /// keys.md §3: entries that were stored under earlier keys are sealed again when they are sent.
    SealAnew,
    /// §7: a message is cut into fragments that all hops carry.
    FragmentSize,
    /// reads.md §1: at or below the floor the index may lack updates.
    Floor,
    /// reads.md §2: a HIT shows only committed updates.
    HitCommitted,
    /// reads.md §3: after a change to another store, a new epoch begins before the store executes anything.
    StoreEpoch,
    /// reads.md §4: updates that the store had applied when it answered a request are no longer shown.
    ShownAbove,
    /// reads.md §11: a replica must have an entry that was admitted after every answer to a request without an order.
    ReplicaBehind,
    /// reads.md §11: a replica must also have an entry that was admitted after the recover-reply.
    ReplicaRecovered,
    /// reads.md §11: no replica is read while a request without an order is outstanding.
    ReplicaQuiet,
}

/// Whether rules can be switched off in this program: only if it was built for the simulator (feature `rules`).
pub const CAN_BE_SWITCHED_OFF: bool = cfg!(feature = "rules");

/// The rules that hold: all of them. With the feature `rules`, one rule may be switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    #[cfg(feature = "rules")]
    off: u64,
}

impl Rules {
    /// All rules.
    pub const ALL: Rules = Rules {
        #[cfg(feature = "rules")]
        off: 0,
    };

    /// All rules except this rule. For the simulator only: updates that such a machine acknowledges may be lost.
    #[cfg(feature = "rules")]
    #[must_use]
    pub const fn without(rule: Rule) -> Rules {
        Rules {
            off: 1 << rule as u8,
        }
    }

    /// Whether this rule holds.
    #[cfg(feature = "rules")]
    #[must_use]
    pub const fn hold(self, rule: Rule) -> bool {
        self.off & (1 << rule as u8) == 0
    }

    /// Whether this rule holds, which is always so.
    #[cfg(not(feature = "rules"))]
    #[must_use]
    pub const fn hold(self, _: Rule) -> bool {
        true
    }
}

#[cfg(not(feature = "rules"))]
const _: () = assert!(size_of::<Rules>() == 0, "there is nothing to switch");
