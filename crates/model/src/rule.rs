//! The rules that can be switched off: the eight of protocol.md §2, and those that answer the lines of its §8
//! (numbered as in the design's table, 16 lines).

/// One rule of the protocol. Without it, the configuration that belongs to it has a counterexample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Rule 1: an update is (session, seq), all of it. Without: a hash of it decides what is a duplicate.
    Identity,
    /// Rule 2: the head admits seq = last + 1 only. Without: any higher seq. Also line 8.
    SessionOrder,
    /// Rule 3: forwarded only when durable. Without: forwarded when appended.
    WriteAhead,
    /// Rule 4: a hop takes order = last + 1 only. Without: it takes any higher order.
    InOrder,
    /// Rule 5: acknowledged when all devices of the chain hold it. Without: when the head does.
    AckWhenAllHold,
    /// Rule 6: effects, table and A change in one step. Without: first the effect, then the rest. Also line 3.
    ApplyAtomically,
    /// Rule 7: APPLIED waits for all replicas of the server. Without: only for the primary.
    ReclaimEverywhere,
    /// Rule 8: a bypass waits until A has reached its barrier. Without: it is executed at once.
    Barrier,
    /// Line 1: one ack, by the head, for all copies. Without: every device acknowledges, the client counts.
    OneAckForAll,
    /// Line 2: reclaimed by order. Without: by a hash of the update.
    ReclaimByOrder,
    /// Line 4: a session is the order of its OPEN. Without: a small number, used again.
    SessionNeverReused,
    /// Line 5: the checksum covers the whole entry. Without: a torn entry passes recovery.
    EntryChecksum,
    /// Line 6: a bypass waits for its own session's updates. Without: it may overtake them.
    OwnUpdatesFirst,
    /// Line 7: one order for all clients. Without: the server keeps only each session's order.
    OneOrder,
    /// Line 9: a primary goes on alone only in a new epoch, and an older epoch's reclaim frees nothing.
    FencedReclaim,
    /// Line 10: a reply fills the cache only if no update passed meanwhile. Without: if the entry is applied.
    CacheTicket,
    /// Line 10, more: a bypass that changes state is outstanding by its request until its answer passes. Without:
    /// such bypasses are counted.
    CacheOutstanding,
    /// Line 10, more: the server refuses what an earlier incarnation of the head had stamped, once it has heard of
    /// the new one. Without: it executes it.
    CacheRestart,
    /// Line 11: a replaced medium is refused until the loss is declared. Without: it is taken for the old one.
    LossDeclared,
    /// Line 12: a fallback carries its update's (session, seq). Without: it is an anonymous write.
    FallbackIdentity,
    /// Line 13: a device serves an epoch only after the server has persisted it.
    ServerFirst,
    /// Line 13: a new head answers nobody before the old head's lease is over.
    Lease,
    /// Line 13, more on the lease: meanwhile it answers no bypass either. Without: only acks wait.
    LeaseCoversReads,
    /// Line 13: the last member of a chain is removed only when stopped, its rest applied or declared lost.
    LastMemberStopped,
    /// Line 14: a device that joins erases its log first. Without: it keeps it.
    EraseOnJoin,
    /// Line 14: a device that joined is promoted only when it has caught up. Without: at any time.
    Synced,
    /// Line 15: no answer before the state that it shows is in all replicas of the server.
    RepliesReplicated,
    /// Line 16: only what cannot fail is acknowledged early. Without: everything is.
    NilextOnly,
    /// §2, more on rule 8: the reply of a bypass that changes state is kept under its request id.
    RequestId,
    /// §2, late bypasses: one whose session has gone on is dropped.
    LateBypass,
    /// §5: a recover-reply echoes what asked (here: the incarnation). Without: any reply of the epoch is taken.
    OwnReply,
    /// §2, §12: the record of a bypass that changes state says "begun" before its first effect. Without: it is
    /// written last, and a failure of that write is taken for "nothing has happened".
    RecordFirst,
    /// §12: what was sent on a connection that was given up has no effect behind the next load of the records.
    /// Without: the store may execute it at any time.
    Fenced,
    /// §2, passed-through operations: they go to the store that their barrier named. Without: to whichever store the
    /// client's connection leads to.
    StoreNamed,
    /// The same, more: one that changes data is answered behind a second barrier that names the same store. Without:
    /// at once.
    DirectConfirmed,
    /// The same, more: behind a call of unknown outcome something that is recorded comes first. Without: the late
    /// copy of that call may be executed behind the passed-through operation.
    DirectSettled,
    /// §4: a fallback's barrier: it is applied only when A has reached the stamp of the head.
    FallbackBarrier,
}

/// Everything that is known about a rule for people.
struct About {
    rule: Rule,
    name: &'static str,
    source: &'static str,
    configuration: &'static str,
}

const fn about(
    rule: Rule,
    name: &'static str,
    source: &'static str,
    configuration: &'static str,
) -> About {
    About {
        rule,
        name,
        source,
        configuration,
    }
}

const TABLE: &[About] = &[
    about(Rule::Identity, "identity", "rule 1", "one-device"),
    about(
        Rule::SessionOrder,
        "session-order",
        "rule 2, line 8",
        "pipelined",
    ),
    about(Rule::WriteAhead, "write-ahead", "rule 3", "one-device"),
    about(Rule::InOrder, "in-order", "rule 4", "one-device"),
    about(
        Rule::AckWhenAllHold,
        "ack-when-all-hold",
        "rule 5",
        "head-lost",
    ),
    about(
        Rule::ApplyAtomically,
        "apply-atomically",
        "rule 6, line 3",
        "one-device",
    ),
    about(
        Rule::ReclaimEverywhere,
        "reclaim-everywhere",
        "rule 7",
        "server-replica",
    ),
    about(Rule::Barrier, "barrier", "rule 8", "one-device"),
    about(Rule::OneAckForAll, "one-ack-for-all", "line 1", "head-lost"),
    about(
        Rule::ReclaimByOrder,
        "reclaim-by-order",
        "line 2",
        "one-device",
    ),
    about(
        Rule::SessionNeverReused,
        "session-never-reused",
        "line 4",
        "sessions",
    ),
    about(
        Rule::EntryChecksum,
        "entry-checksum",
        "line 5",
        "one-device",
    ),
    about(
        Rule::OwnUpdatesFirst,
        "own-updates-first",
        "line 6",
        "pipelined",
    ),
    about(Rule::OneOrder, "one-order", "line 7", "one-device"),
    about(
        Rule::FencedReclaim,
        "fenced-reclaim",
        "line 9",
        "server-replica",
    ),
    about(Rule::CacheTicket, "cache-ticket", "line 10", "cache"),
    about(
        Rule::CacheOutstanding,
        "cache-outstanding",
        "line 10 (bypasses)",
        "cache-set",
    ),
    about(
        Rule::CacheRestart,
        "cache-restart",
        "line 10 (restart)",
        "cache-restart",
    ),
    about(
        Rule::LossDeclared,
        "loss-declared",
        "line 11",
        "medium-replaced",
    ),
    about(
        Rule::FallbackIdentity,
        "fallback-identity",
        "line 12",
        "fallback",
    ),
    about(Rule::ServerFirst, "server-first", "line 13", "head-lost"),
    about(Rule::Lease, "lease", "line 13", "cache-lease"),
    about(
        Rule::LeaseCoversReads,
        "lease-covers-reads",
        "line 13 (reads)",
        "cache-lease",
    ),
    about(
        Rule::LastMemberStopped,
        "last-member-stopped",
        "line 13",
        "last-removed",
    ),
    about(Rule::EraseOnJoin, "erase-on-join", "line 14", "return"),
    about(Rule::Synced, "synced", "line 14", "join"),
    about(
        Rule::RepliesReplicated,
        "replies-replicated",
        "line 15",
        "server-replica",
    ),
    about(Rule::NilextOnly, "nilext-only", "line 16", "conditional"),
    about(
        Rule::RequestId,
        "request-id",
        "rule 8, request ids",
        "conditional",
    ),
    about(
        Rule::LateBypass,
        "late-bypass",
        "§2, late bypasses",
        "late-bypass",
    ),
    about(
        Rule::RecordFirst,
        "record-first",
        "rule 8, failing stores",
        "store-fails",
    ),
    about(
        Rule::Fenced,
        "fenced",
        "rule 8, connections given up",
        "store-fails",
    ),
    about(
        Rule::StoreNamed,
        "store-named",
        "rule 8, passed-through operations",
        "store-named",
    ),
    about(
        Rule::DirectConfirmed,
        "direct-confirmed",
        "rule 8, passed-through writes",
        "direct-set",
    ),
    about(
        Rule::DirectSettled,
        "direct-settled",
        "rule 8, passed-through after unknown",
        "late-direct",
    ),
    about(
        Rule::OwnReply,
        "own-reply",
        "§5, nonce of RECOVER",
        "medium-replaced",
    ),
    about(
        Rule::FallbackBarrier,
        "fallback-barrier",
        "rule 8 of a fallback",
        "fallback",
    ),
];

impl Rule {
    /// All rules, in the order of the specification.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|about| about.rule)
    }

    /// The rule of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        TABLE
            .iter()
            .find(|about| about.name == name)
            .map(|about| about.rule)
    }

    fn about(self) -> &'static About {
        TABLE
            .iter()
            .find(|about| about.rule == self)
            .expect("every rule is in the table: tested")
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.about().name
    }

    /// Where it is specified: a rule of protocol.md §2, or a line of the table in §8.
    #[must_use]
    pub fn source(self) -> &'static str {
        self.about().source
    }

    /// The configuration in which it is needed.
    #[must_use]
    pub fn configuration(self) -> &'static str {
        self.about().configuration
    }
}

/// Which rules hold: all, or all but one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    off: Option<Rule>,
}

impl Rules {
    /// All rules.
    #[must_use]
    pub fn all() -> Self {
        Self { off: None }
    }

    /// All rules but this one.
    #[must_use]
    pub fn without(rule: Rule) -> Self {
        Self { off: Some(rule) }
    }

    /// Whether the rule holds.
    #[must_use]
    pub fn on(self, rule: Rule) -> bool {
        self.off != Some(rule)
    }
}
