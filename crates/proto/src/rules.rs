//! The rules of the protocol that can be switched off (`docs/spec/protocol.md` §2 and §8), to check that the tests
//! notice a missing rule.
//!
//! If a rule is switched off, the machine does what the rule forbids, in the code that implements the rule. The
//! simulator must notice the violation. Only a program that is built with the feature `rules` can switch rules off. In
//! any other program [`Rules`] has no size and every rule holds, so the product contains no switch.

/// A rule that a machine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Rule {
    /// §2 rule 2: the head admits only `last + 1`, and refuses higher seqs.
    SessionOrder,
    /// §2 rule 2: an update whose seq is at most `last` was admitted before, so it is neither admitted nor applied
    /// again.
    Duplicates,
    /// §3: a client that searches for the head does not begin the first session of a chain.
    FirstHead,
    /// §2 rule 3: an entry is forwarded only when it is durable in this device.
    WriteAhead,
    /// §2 rule 4: the server takes only order `A + 1`.
    NoGaps,
    /// §2 rule 5: an order is committed only when this device has made it durable.
    DurableFirst,
    /// §2 rule 5: an order is committed only when every device of the chain has made it durable.
    AllCopies,
    /// §2 rule 5: a device's report of durable orders counts only for that device.
    WhoseCopy,
    /// §2 rule 7: an order is reported as applied, and its entry reclaimed, only when its effects are durable in the
    /// store.
    ReclaimApplied,
    /// §12: the server refuses a device, or stops the shard, only because of records that it has read after the
    /// device's question, and not because of its memory.
    FreshRecords,
    /// §2 rule 8: a bypass waits for all orders that were admitted earlier.
    Barrier,
    /// §2 rule 8: a bypass waits for its session's own updates, even if these updates are not in the log yet.
    LastSeq,
    /// §2 rule 8: a bypass that changes state is executed only once, even if copies of it arrive.
    RequestId,
    /// §2 rule 8: the server forgets a request that the store could not execute. A client that still wants the reply
    /// sends the request again.
    ForgetFailed,
    /// §2 rule 8: after a bypass of unknown outcome, the store records another request before the next bypass is sent.
    AfterUnknown,
    /// §2 rule 8: a bypass is not executed after its caller's deadline.
    Deadline,
    /// §1: an unknown session is refused, and never created.
    KnownSession,
    /// §1: a packet of an earlier epoch has no effect.
    Epoch,
    /// §5: a device is accepted only with the log that it had when it was registered.
    LogIdentity,
    /// §5: a device is accepted only with the newest copy of its log.
    Incarnation,
    /// §5: a device joins with an empty log. Without this rule, the device keeps its old entries, and the chain trusts
    /// them.
    EraseOnJoin,
    /// §5: a joined device becomes the head of a chain only when it holds all entries that were acknowledged before.
    Synced,
    /// §5: the order up to which a joining device must catch up is read from a log to which nothing is appended
    /// meanwhile.
    StandsStill,
    /// §5: no device is told of an epoch before the epoch is durable in the store.
    ServerFirst,
    /// §5: a device accepts only the reply to its present question.
    OwnReply,
    /// §5: if no member of a chain remains, the chain is replaced only if an operator declares its loss.
    LastMember,
    /// §5: an operator's statement counts in one epoch only.
    WordEpoch,
    /// §14: a device with a lease answers only until the lease, less a margin, is over by its own clock.
    Lease,
    /// §14: the lease also limits the answers to READs.
    LeaseCoversReads,
    /// §14: a device that was declared stopped gets no lease before it has joined again.
    StoppedForGood,
    /// §5: if records are loaded again and lack something that the store had confirmed about a session, the shard
    /// stops.
    Confirmed,
    /// §4: a fallback has the (session, seq) of the update that falls back, and counts as this update.
    FallbackIdentity,
    /// §7: a packet without the right token has no effect.
    Token,
    /// keys.md §1: with keys, a packet without the right seal has no effect.
    Sealed,
    /// keys.md §3: an entry that was stored under earlier keys is sealed again when it is sent.
    SealAnew,
    /// §7: a message is cut into fragments so small that the paths of all hops carry them.
    FragmentSize,
    /// reads.md §1: at or below the floor the index may lack updates.
    Floor,
    /// reads.md §2: a HIT shows only committed updates.
    HitCommitted,
    /// reads.md §3: after a change to another store, a new epoch begins before the new store executes anything.
    StoreEpoch,
    /// reads.md §4: a HIT shows no update that the store had applied when it answered a later request.
    ShownAbove,
    /// reads.md §11: a replica is read only if it has an entry that was admitted after the last answer to a request
    /// without an order.
    ReplicaBehind,
    /// reads.md §11: a replica is read only if it has an entry that was admitted after the head's recovery.
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

    /// Returns all rules except this rule. For the simulator only: a machine with these rules may lose acknowledged
    /// updates.
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

    /// Returns true: without the feature `rules` every rule holds.
    #[cfg(not(feature = "rules"))]
    #[must_use]
    pub const fn hold(self, _: Rule) -> bool {
        true
    }
}

#[cfg(not(feature = "rules"))]
const _: () = assert!(size_of::<Rules>() == 0, "there is nothing to switch");
