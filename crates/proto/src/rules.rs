//! The rules of the protocol that can be switched off, to test the tests
//! (`docs/spec/protocol.md` §2 and §8).
//!
//! A machine whose rule is off does what the rule forbids, in the place where the rule is implemented.
//! The simulator must notice. Only a program built with the feature `rules` can switch rules off. In
//! any other program [`Rules`] has no size and every rule holds: the product contains no switch.

/// A rule that a machine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Rule {
    /// §2 rule 2: the head admits only `last + 1`; higher seqs are refused.
    SessionOrder,
    /// §2 rule 2: a lower seq was admitted before; it is neither admitted nor applied again.
    Duplicates,
    /// §3: a client that looks for the head does not begin the first session of a chain.
    FirstHead,
    /// §2 rule 3: an entry is forwarded once it is durable here.
    WriteAhead,
    /// §2 rule 4: the server takes order `A + 1` only.
    NoGaps,
    /// §2 rule 5: an order is committed once this device has made it durable.
    DurableFirst,
    /// §2 rule 5: an order is committed once every device of the chain holds it.
    AllCopies,
    /// §2 rule 5: what a device reports durable counts for that device only.
    WhoseCopy,
    /// §2 rule 7: only what the store has durably is reported as applied, and so reclaimed.
    ReclaimApplied,
    /// §12: a device is refused, and the shard stopped, because of records that were read since, not of what a server remembers.
    FreshRecords,
    /// §2 rule 8: a bypass waits for the orders that were admitted before it.
    Barrier,
    /// §2 rule 8: a bypass waits for its session's own updates, wherever they are.
    LastSeq,
    /// §2 rule 8: a bypass that changes state is executed once, whoever asks again.
    RequestId,
    /// §2 rule 8: what the store could not execute is forgotten; whoever still wants it asks again.
    ForgetFailed,
    /// §2 rule 8: after a bypass of unknown outcome, the store records something before the next one is sent.
    AfterUnknown,
    /// §2 rule 8: a bypass is not executed once its caller's deadline has passed.
    Deadline,
    /// §1: an unknown session is refused, never created.
    KnownSession,
    /// §1: an earlier epoch has no effect.
    Epoch,
    /// §5: a device comes with the log that it registered, or not at all.
    LogIdentity,
    /// §5: a device comes with the newest copy of its log, or not at all.
    Incarnation,
    /// §5: a device joins with an empty log. Without: it keeps what it has, and is believed.
    EraseOnJoin,
    /// §5: a device that joined is the head of a chain only when it holds what was acknowledged before.
    Synced,
    /// §5: what who joins must hold is taken from a log that stands still.
    StandsStill,
    /// §5: no device hears of an epoch that is not durable at the server.
    ServerFirst,
    /// §5: a reply is taken by the question that it answers only.
    OwnReply,
    /// §5: a chain of which no member is left is replaced only if its loss is declared.
    LastMember,
    /// §5: an operator's word is about one epoch.
    WordEpoch,
    /// §14: a device with a lease answers until that is over by its own clock, less a margin.
    Lease,
    /// §14: that is so for what READs are told, too.
    LeaseCoversReads,
    /// §14: who was declared stopped gets no lease again, unless it has joined anew.
    StoppedForGood,
    /// §5: what the store has confirmed of a session is still there when its records are loaded again.
    Confirmed,
    /// §4: a fallback carries the update's own (session, seq), and counts as that update.
    FallbackIdentity,
    /// §7: a packet without the right token has no effect.
    Token,
    /// keys.md §1: with keys, a packet without the right seal has no effect.
    Sealed,
    /// keys.md §3: what was stored before the present keys is sealed anew when it is sent.
    SealAnew,
    /// §7: a message is cut into fragments that all hops carry.
    FragmentSize,
    /// reads.md §1: at or below the floor the index may not know everything.
    Floor,
    /// reads.md §2: only what is committed is shown.
    HitCommitted,
    /// reads.md §3: another store means another epoch, before anything is executed in it.
    StoreEpoch,
    /// reads.md §4: what the store had applied when it answered is not shown any more.
    ShownAbove,
    /// reads.md §11: a replica must have an entry that was admitted behind every answer to what has no order.
    ReplicaBehind,
    /// reads.md §11: so after a recover-reply.
    ReplicaRecovered,
    /// reads.md §11: no replica is read from while something that has no order is outstanding.
    ReplicaQuiet,
}

/// Whether rules can be switched off in this program: only if it was built for the simulator (feature `rules`).
pub const CAN_BE_SWITCHED_OFF: bool = cfg!(feature = "rules");

/// Which rules hold: all of them. With the feature `rules`: all, or all but one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    #[cfg(feature = "rules")]
    off: u64,
}

impl Rules {
    /// All of them.
    pub const ALL: Rules = Rules {
        #[cfg(feature = "rules")]
        off: 0,
    };

    /// All but this one. For the simulator: what such a machine acknowledges may be lost.
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

    /// Whether this rule holds: it does.
    #[cfg(not(feature = "rules"))]
    #[must_use]
    pub const fn hold(self, _: Rule) -> bool {
        true
    }
}

#[cfg(not(feature = "rules"))]
const _: () = assert!(size_of::<Rules>() == 0, "there is nothing to switch");
