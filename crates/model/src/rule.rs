//! The rules that can be switched off: the eight of protocol.md §2, and those that answer the lines of its §8
//! (numbered as in the design's table, 16 lines); and those of reads.md and verbs.md.

use crate::rule_table::{About, TABLE};

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
    /// Rule 7, more: so does a recover-reply. Without: it says what a failover may take back.
    RecoverReplicated,
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
    /// Line 11: a replaced medium is refused until the loss is declared. Without: it is taken for the old one.
    LossDeclared,
    /// Line 12: a fallback carries its update's (session, seq). Without: it is an anonymous write.
    FallbackIdentity,
    /// Line 13: a device serves an epoch only after the server has persisted it.
    ServerFirst,
    /// Line 13: a new head answers nobody before the old head's lease is over.
    Lease,
    /// Line 13, more on the lease: meanwhile no bypass, fallback or read passes it either. Without: only acks wait.
    LeaseCoversReads,
    /// §14: a device answers until its lease is over by its own clock. Without: for ever.
    LeaseDeadline,
    /// The same: a member is declared stopped when its lease is gone and the margin has passed. Without: when the lease is
    /// gone.
    LeaseWaited,
    /// The same: a member that was declared stopped gets no lease again, unless it has joined anew. Without: at any time.
    StoppedForGood,
    /// Line 13: the last member of a chain is removed only when stopped, its rest applied or declared lost.
    LastMemberStopped,
    /// Line 14: a device that joins erases its log first. Without: it keeps it.
    EraseOnJoin,
    /// Line 14: a device that joined is promoted only when it has caught up. Without: at any time.
    Synced,
    /// §5, more on joining: the log before it stands still when it is taken down how much it must hold. Without: that one
    /// goes on serving the epoch before.
    StandsStill,
    /// Line 15: no answer before the state that it shows is in all replicas of the server.
    RepliesReplicated,
    /// §4: a session whose payloads the server does not take is not begun.
    TakenPayloads,
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
    /// reads.md §1: an update of unknown keys raises the floor. Without: the index does not know it.
    FloorUnknown,
    /// The same: a recover-reply raises the floor to the last order. Without: the index is empty from the start.
    FloorRestart,
    /// The same: an index that is built from the log leaves out what the reply's session table has. Without: it has it.
    RebuildLeavesOut,
    /// reads.md §2: a HIT shows what is committed. Without: also what is not.
    HitCommitted,
    /// The same: no HIT shows what was admitted while its session had a fallback outstanding.
    HitBeside,
    /// The same: `need` counts other keys' updates in the bucket. Without: only this key's.
    NeedOnCollision,
    /// The same: a head that restarted takes all that it has for committed, in `need`. Without: it has forgotten C.
    RecoveredLast,
    /// The same: while something is outstanding that may change several keys, `need` is C at least.
    SeveralKeys,
    /// The same: a read goes to the head when all updates of its session are acknowledged. Without: at any time.
    ReadOwnCommitted,
    /// The same: behind a call of unknown outcome something that is recorded comes first, as before a bypass.
    ReadSettled,
    /// reads.md §3: the store's epoch is the MISS's.
    ReadEpoch,
    /// The same: A has reached `need`. Also line 10.
    ReadWatermark,
    /// The same: what is shown is in all replicas.
    ReadDurable,
    /// The same: what the store said before the head's MISS is used only if nothing without an order has left the head's index
    /// since.
    Unchanged,
    /// The same: a removed head says no MISS either, where a store is left behind. Without: only no HIT.
    LeaseCoversMisses,
    /// reads.md §4: no HIT while something that changes state is outstanding.
    Closed,
    /// The same: a session's bypasses leave with a reply to the newest. Without: with any.
    OutstandingById,
    /// The same: they close the buckets of all of them. Without: of the newest.
    OutstandingMerged,
    /// The same: when the answer to something that may have changed state passes, what the log has of those keys up to its
    /// watermark is not shown any more.
    Shown,
    /// The same: an update takes the place of what its session had sent to the server before. Without: that is not
    /// outstanding any more, and leaves no trace.
    UpdateRaises,
    /// The same: so does an END.
    EndRaises,
    /// The same: a fallback is outstanding, too.
    FallbackCloses,
    /// The same: the server refuses what an earlier incarnation of the head has stamped, once it has answered the new
    /// one. Without: it executes it.
    OldStamps,
    /// The same: that incarnation is in the record. Without: a server that restarts has forgotten it.
    StampsRecorded,
    /// reads.md §5: what is passed through, and may change state, waits until the OPEN of its mark is committed.
    MarkFirst,
    /// The same: so does its barrier. Without: only the operation itself.
    MarkBeforeBarrier,
    /// The same: while a mark is open, there are no HITs.
    MarkCloses,
    /// The same: while a mark is open, `need` is C at least.
    MarkNeed,
    /// The same: a mark is open until APPLIED covers its END. Without: until that is admitted.
    MarkUntilApplied,
    /// The same: when APPLIED covers the END of a mark, the index knows nothing up to that END any more.
    MarkEndFloor,
    /// The same: a head that recovers has the marks of the recover-reply and of its log.
    MarksRecovered,
    /// The same: the client ends a mark when nothing of it can be executed any more. Without: at any time.
    MarkEndSettled,
    /// The same: the END of a silent client's mark is applied when its connection is closed.
    MarkClosed,
    /// The same: behind that END the client sends nothing more. Without: it may make another connection.
    MarkAlive,
    /// The same: a store that is left behind is fenced, where anything is passed through.
    OldMasterFenced,
    /// reads.md §11: a replica's A has reached `need`.
    ReplicaWatermark,
    /// The same: for a replica, `need` is not bounded by what is known to be committed.
    ReplicaLast,
    /// The same: it has an entry that was admitted behind every answer to what changed these keys without an order.
    ReplicaBehind,
    /// The same: so it has after a recover-reply. Without: what the head has not seen answered need not be there.
    ReplicaRecovered,
    /// The same: nothing that may change these keys without an order is outstanding at the head.
    ReplicaQuiet,
    /// The same: the head has its lease when it answers.
    ReplicaLease,
    /// reads.md §6: a read that is answered with its session's own update was called before that was sent.
    OwnUnsent,
    /// The same: and nothing of its session is between the two. Without: an update of another key may be.
    OwnAdjacent,
    /// keys.md §1: the MAC covers the payload. Without: the header alone.
    KeyPayload,
    /// keys.md §2, §3: client to head, head to client, and hops have keys of their own. Without: one key for all of them.
    KeyLeg,
    /// The same: a hop's key belongs to its sender. Without: one key for all hops of an epoch.
    KeySender,
    /// The same: and of the epoch, which the MAC covers. Without: a hop's packet is good in any epoch.
    KeyEpoch,
    /// The same: a session's keys come from a token that is never used again. Without: the front's next session has the same.
    KeyNonce,
    /// keys.md §3: verified before anything else. Without: the head counts the seq of an update first.
    KeyFirst,
    /// keys.md §7: the new key is used when all accept it. Without: at any time.
    RollAccepted,
    /// A rollover: a process forgets the old key when no process sends under it any more. Without: at any time.
    RollSent,
    /// The same: and when no session has a key that follows from it. Without: before that.
    RollFronts,
    /// The same: entries that were stored before are sealed anew. Without: sent as they were stored.
    RollAnew,
    /// The same: what is sealed with a forgotten key has no effect. Without: it is accepted for ever.
    RollForgotten,
    /// The same: a session whose key follows from a forgotten one has none. Without: it keeps it.
    RollSessions,
    /// verbs.md §3, 1: messages are taken by slot. Without: as their completions are seen.
    CqOrder,
    /// The same: up to the first slot that is open. Without: past it.
    FirstHole,
    /// The same: a slot with an error holds no message. Without: what is in it counts.
    ErrorHole,
    /// The same: slots are posted in the order of the ring. Without: in any order.
    RingOrder,
    /// The same: the completions of a connection are polled before its end is destroyed. Without: they may be gone with it.
    DrainFirst,
    /// verbs.md §3, 2: clients that may have the oldest slot are cut off after a deadline. Without: never.
    HeadDeadline,
    /// verbs.md §3, 3: all clients are cut off, and what the NIC has is processed, before the record says that the epoch has changed.
    ErrorsFirst,
    /// The same: a client is cut off before the record says that its session has ended.
    EndErrorsFirst,
    /// verbs.md §3, 4: with R > 1 the protocol acknowledges. Without: the NIC does.
    HardwareCopies,
    /// verbs.md §3, 5: a slot is posted again when the medium says that it is processed. Without: when it is.
    ProcessedFirst,
    /// The same: all slots are read. Without: up to the first that holds no message.
    ScanAll,
    /// The same: a torn message is none.
    SlotChecksum,
    /// verbs.md §3, 6: of a session only seq = last + 1 is taken. Without: whatever comes.
    SlotSeq,
    /// The same: on a new connection the first unacknowledged message comes first. Without: a later one may.
    ResendFirst,
    /// verbs.md §3, 7: reads come through the queue. Without: past it.
    SameQueue,
    /// verbs.md §3, 8: the read after a message is its acknowledgement. Without: the NIC's own.
    DrainRead,
    /// The same: what is read back is in the memory, not only in a cache that power takes.
    DdioOff,
    /// verbs.md §3, 9: the NIC uses slots in the order in which they were posted. Without: in any.
    SrqOrder,
}

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
