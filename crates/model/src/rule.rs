//! The rules that can be switched off: the eight rules of protocol.md §2 and their parts, rules of its other sections
//! (§), and the rules of reads.md, keys.md and verbs.md.

use crate::rule_table::{About, TABLE};

/// One rule of the protocol. If a rule is switched off, the configuration that belongs to it has a counterexample. In
/// the texts below, *Without* begins a description of what happens then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Rule 1: an update is identified by (session, seq). Without: by its hash.
    Identity,
    /// Rule 2: the head admits only seq = last + 1. Without: it admits any higher seq.
    SessionOrder,
    /// Rule 3: an entry is forwarded only when it is durable. Without: it is forwarded when it is appended.
    WriteAhead,
    /// Rule 4: a hop takes only order = last + 1. Without: it takes any higher order.
    InOrder,
    /// Rule 5: an update is acknowledged when all devices of the chain hold it. Without: when the head holds it.
    AckWhenAllHold,
    /// Rule 6: effects, table and A change in one step. Without: first the effect, then the rest.
    ApplyAtomically,
    /// Rule 7: APPLIED waits until all replicas of the server have the state. Without: only until the primary has the
    /// state.
    ReclaimEverywhere,
    /// Rule 7 for a recover-reply: the recover-reply also waits until all replicas have the state. Without: it may
    /// state orders that a failover undoes.
    RecoverReplicated,
    /// Rule 8: a bypass waits until A has reached its barrier. Without: it is executed at once.
    Barrier,
    /// Rule 5: the head sends one ack for all copies. Without: every device sends an ack, and the client counts them.
    OneAckForAll,
    /// Rule 7: entries are freed by their order. Without: by a hash of the update.
    ReclaimByOrder,
    /// Rule 1: a session's id is the order of its OPEN. Without: the id is a small number that is used again.
    SessionNeverReused,
    /// §8: the checksum covers the whole entry. Without: a torn entry passes recovery.
    EntryChecksum,
    /// Rule 8: a bypass waits for its own session's updates. Without: it may overtake them.
    OwnUpdatesFirst,
    /// Rule 8: one order for all clients. Without: the server keeps only each session's order.
    OneOrder,
    /// Rule 7: a primary that has lost its replica continues only in a new epoch, and APPLIED of an older epoch frees
    /// nothing.
    FencedReclaim,
    /// §5: a device with a replaced medium is refused until the loss is declared. Without: the new medium is taken for
    /// the old medium.
    LossDeclared,
    /// §4: a fallback has the (session, seq) of its update. Without: it is a write without identity.
    FallbackIdentity,
    /// §5: a device serves an epoch only after the server has persisted it.
    ServerFirst,
    /// §14: a new head answers no client before the old head's lease is over. Without: it answers at once.
    Lease,
    /// §14: no bypass, fallback or read passes a new head before the old head's lease is over. Without: only acks are
    /// held back.
    LeaseCoversReads,
    /// §14: a device answers only until its lease is over by its own clock. Without: it answers for ever.
    LeaseDeadline,
    /// §14: a member is declared stopped when its lease has disappeared and the margin has passed. Without: as soon as
    /// its lease has disappeared.
    LeaseWaited,
    /// §14: a member that was declared stopped gets no lease before it has joined again. Without: it gets one at any
    /// time.
    StoppedForGood,
    /// §5: the last member of a chain is removed only when it is stopped and its remaining entries are applied or
    /// declared lost.
    LastMemberStopped,
    /// §5: a device erases its log before it joins. Without: it keeps the log.
    EraseOnJoin,
    /// §5: a device that has joined is promoted only when it has caught up. Without: it may be promoted at any time.
    Synced,
    /// §5, joining: when the order up to which the joiner must catch up is noted, nothing is appended to the log of the
    /// device before the joiner. Without: this device continues to serve the previous epoch.
    StandsStill,
    /// Rule 7: an answer waits until all replicas of the server have the state that it shows. Without: the answer is
    /// sent at once.
    RepliesReplicated,
    /// §4: a session whose payloads the server does not take is not begun.
    TakenPayloads,
    /// §8: only updates that cannot fail are acknowledged early. Without: every write is.
    NilextOnly,
    /// §2, rule 8: the reply of a bypass that changes state is stored under its request id. Without: the bypass may be
    /// executed twice.
    RequestId,
    /// §2, late bypasses: a bypass whose session has sent later updates is dropped.
    LateBypass,
    /// §5: a recover-reply names its question (in the model: the incarnation). Without: any reply of the epoch is
    /// accepted.
    OwnReply,
    /// §2, §12: the record of a bypass that changes state says "begun" before the first effect of the bypass. Without:
    /// the record is written last, and if this write fails, the server assumes that the bypass had no effect.
    RecordFirst,
    /// §12: a command on an abandoned connection has no effect after the next load of the records. Without: the store
    /// may execute it at any time.
    Fenced,
    /// §2, operations that bypass the devices: they go to the store that their barrier has named. Without: they go to
    /// the store of the client's present connection.
    StoreNamed,
    /// §2: an operation that bypasses the devices and changes data is answered only after a second barrier that names
    /// the same store. Without: it is answered at once.
    DirectConfirmed,
    /// §2: after a call of unknown outcome, the session sends a recorded request before an operation may bypass the
    /// devices. Without: a late copy of the call may be executed after the operation.
    DirectSettled,
    /// §4: a fallback is applied only when A has reached its barrier, which the head has stamped. Without: it is
    /// applied at once.
    FallbackBarrier,
    /// reads.md §1: an update of unknown keys raises the floor. Without: the index ignores the update.
    FloorUnknown,
    /// reads.md §1: a recover-reply raises the floor to the last order. Without: the new index is empty, with floor 0.
    FloorRestart,
    /// reads.md §1: an index that is built from the log leaves out entries that are applied according to the
    /// recover-reply's session table. Without: it includes them.
    RebuildLeavesOut,
    /// reads.md §2: a HIT shows only committed updates. Without: it may show any update.
    HitCommitted,
    /// reads.md §2: a HIT shows no update that was admitted while the update's session had an outstanding fallback.
    HitBeside,
    /// reads.md §2: `need` includes updates of other keys in the same bucket. Without: it includes only updates of the
    /// key.
    NeedOnCollision,
    /// reads.md §2: when a restarted head computes `need`, it counts its whole log as committed. Without: it has
    /// forgotten C, and counts only applied entries as committed.
    RecoveredLast,
    /// reads.md §2: while a request that may change several keys is outstanding, `need` is at least C.
    SeveralKeys,
    /// reads.md §2: a read is sent to the head only when all updates of its session are acknowledged. Without: it is
    /// sent at any time.
    ReadOwnCommitted,
    /// reads.md §2: after a call of unknown outcome, the session sends a recorded request before a read, as it does
    /// before a bypass.
    ReadSettled,
    /// reads.md §3: the epoch of the store's record must be that of the MISS.
    ReadEpoch,
    /// reads.md §3: the store's A must have reached `need`.
    ReadWatermark,
    /// reads.md §3: all replicas of the store must have the state that a direct read shows.
    ReadDurable,
    /// reads.md §3: a store's reply that came before the head's MISS is used only if no request without an order has
    /// stopped being outstanding since.
    Unchanged,
    /// reads.md §3: after a move of the store, a removed head answers no MISS either. Without: it only answers no HIT.
    LeaseCoversMisses,
    /// reads.md §4: while a request that may change the key is outstanding, the head answers no HIT.
    Closed,
    /// reads.md §4: a session's bypasses are outstanding until its newest bypass is answered. Without: until any of
    /// them is answered.
    OutstandingById,
    /// reads.md §4: outstanding bypasses close the buckets of all their keys. Without: only the buckets of the newest
    /// bypass.
    OutstandingMerged,
    /// reads.md §4: when the answer to a request that may have changed state passes the head, the head no longer shows
    /// log entries of the request's keys up to the answer's watermark.
    Shown,
    /// reads.md §4: an update ends its session's earlier requests to the server: the buckets of these requests take the
    /// update's order. Without: the requests are no longer outstanding, but their buckets stay unchanged.
    UpdateRaises,
    /// reads.md §4: an END also ends its session's earlier requests in this way.
    EndRaises,
    /// reads.md §4: a fallback also counts as an outstanding request.
    FallbackCloses,
    /// reads.md §4: once the server has answered a new incarnation of the head, it refuses requests that an earlier
    /// incarnation has stamped. Without: it executes these requests.
    OldStamps,
    /// reads.md §4: the server's record has the last answered incarnation of the head. Without: a restarted server has
    /// forgotten this incarnation.
    StampsRecorded,
    /// reads.md §5: an operation that bypasses the devices and may change state waits until the OPEN of its mark is
    /// committed.
    MarkFirst,
    /// reads.md §5: the barrier of an operation under a mark also waits until the OPEN of the mark is committed.
    /// Without: only the operation itself waits.
    MarkBeforeBarrier,
    /// reads.md §5: while a mark is open, the head answers no HIT.
    MarkCloses,
    /// reads.md §5: while a mark is open, `need` is at least C.
    MarkNeed,
    /// reads.md §5: a mark is open until APPLIED covers its END. Without: until its END is admitted.
    MarkUntilApplied,
    /// reads.md §5: when APPLIED covers the END of a mark, the floor rises to that END.
    MarkEndFloor,
    /// reads.md §5: a head that recovers knows the marks in the recover-reply and in its log.
    MarksRecovered,
    /// reads.md §5: the client ends a mark when none of its operations can still be executed. Without: it ends a mark
    /// at any time.
    MarkEndSettled,
    /// reads.md §5: the END of a silent client's mark is applied only when the client's connection is closed.
    MarkClosed,
    /// reads.md §5: after the END of its mark a silent client sends nothing more to the store. Without: it may make
    /// another connection.
    MarkAlive,
    /// reads.md §5: if operations may bypass the devices, a store that the server has left is fenced.
    OldMasterFenced,
    /// reads.md §11: the replica's A must have reached `need`.
    ReplicaWatermark,
    /// reads.md §11: for a replica, `need` may be above the order that is known to be committed.
    ReplicaLast,
    /// reads.md §11: the replica must have an entry that was admitted after all answers to requests that changed these
    /// keys without an order.
    ReplicaBehind,
    /// reads.md §11: this includes answers that passed before the head's restart, so a replica must have an entry that
    /// was admitted after the recover-reply. Without: these answers do not count.
    ReplicaRecovered,
    /// reads.md §11: a replica is read only if no request that may change these keys without an order is outstanding at
    /// the head.
    ReplicaQuiet,
    /// reads.md §11: a head answers a read from a replica only while it has its lease.
    ReplicaLease,
    /// reads.md §6: a read is answered with its session's own update only if it was called before the update was sent.
    OwnUnsent,
    /// reads.md §6: no other update of the session lies between its own update and the read. Without: an update of
    /// another key may lie between them.
    OwnAdjacent,
    /// keys.md §1: the MAC covers the payload. Without: it covers only the header.
    KeyPayload,
    /// keys.md §2, §3: packets from client to head, from head to client, and between hops have different keys. Without:
    /// all have one key.
    KeyLeg,
    /// keys.md §2, §3: each hop sends with its own key. Without: all hops of an epoch have one key.
    KeySender,
    /// keys.md §2, §3: a hop's key belongs to an epoch, which the MAC covers. Without: a hop's packet is valid in any
    /// epoch.
    KeyEpoch,
    /// keys.md §2, §3: a session's keys are derived from a token that is never used again. Without: the front's next
    /// session has the same keys.
    KeyNonce,
    /// keys.md §3: a packet is verified before all other steps. Without: the head first counts the seq of an update.
    KeyFirst,
    /// keys.md §7: a process sends with the new key only when all processes accept this key. Without: it does so at any
    /// time.
    RollAccepted,
    /// keys.md §7: a process forgets the old key only when no process sends with it any more. Without: it does so at
    /// any time.
    RollSent,
    /// keys.md §7: a process forgets the old key only when no session has a key that is derived from it. Without: it
    /// may do so earlier.
    RollFronts,
    /// keys.md §7: stored entries are sealed again when they are sent. Without: they are sent as they were stored.
    RollAnew,
    /// keys.md §7: packets that are sealed with a forgotten key have no effect. Without: they are accepted for ever.
    RollForgotten,
    /// keys.md §7: a session loses its keys when the key from which they are derived is forgotten. Without: it keeps
    /// them.
    RollSessions,
    /// verbs.md §3, 1: messages are taken in the order of slots. Without: they are taken in the order of their
    /// completions.
    CqOrder,
    /// verbs.md §3, 1: messages are taken only up to the first open slot. Without: messages after it are taken, too.
    FirstHole,
    /// verbs.md §3, 1: a slot with an error holds no message. Without: the slot's content counts as a message.
    ErrorHole,
    /// verbs.md §3, 1: slots are posted in the order of the ring. Without: they are posted in any order.
    RingOrder,
    /// verbs.md §3, 1: the completions of a connection are polled before the server destroys its end of the connection.
    /// Without: they may disappear with it.
    DrainFirst,
    /// verbs.md §3, 2: clients that may have the oldest slot are disconnected after a deadline. Without: they are never
    /// disconnected.
    HeadDeadline,
    /// verbs.md §3, 3: before the record of a new epoch is written, all clients are disconnected and all messages that
    /// the NIC has are processed.
    ErrorsFirst,
    /// verbs.md §3, 3: a client is disconnected before the record says that its session has ended.
    EndErrorsFirst,
    /// verbs.md §3, 3: a client is disconnected, and its messages are processed, before the device forgets its key.
    ForgetErrorsFirst,
    /// verbs.md §3, 3: recovery also processes messages that have a MAC of a key that has been removed meanwhile.
    /// Without: it drops them.
    ScanForgotten,
    /// verbs.md §3, 4: with R > 1 the protocol acknowledges. Without: the NIC acknowledges.
    HardwareCopies,
    /// verbs.md §3, 5: a slot is posted again only when the medium has the record that its message is processed.
    /// Without: as soon as the message is processed.
    ProcessedFirst,
    /// verbs.md §3, 5: recovery reads all slots. Without: it reads up to the first slot without a message.
    ScanAll,
    /// verbs.md §3, 5: a slot with a torn message counts as a slot without a message.
    SlotChecksum,
    /// verbs.md §3, 6: in a session only seq = last + 1 is accepted. Without: any seq is accepted.
    SlotSeq,
    /// verbs.md §3, 6: on a new connection the first unacknowledged message is sent first. Without: a later message may
    /// be sent first.
    ResendFirst,
    /// verbs.md §3, 7: reads come through the queue. Without: reads do not pass the queue.
    SameQueue,
    /// verbs.md §3, 8: the READ after a message is its acknowledgement. Without: the NIC's acknowledgement is.
    DrainRead,
    /// verbs.md §3, 8: data that was read back is in memory, and not only in a cache that loses it in a power cut.
    DdioOff,
    /// verbs.md §3, 9: the NIC uses slots in the order in which they were posted. Without: it uses them in any order.
    SrqOrder,
}

impl Rule {
    /// All rules, in the order of the specification.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|about| about.rule)
    }

    /// Returns the rule with this name.
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

    /// Returns the rule's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.about().name
    }

    /// Returns the place where the rule is specified: a rule of protocol.md §2, a section of protocol.md, or a section
    /// of another page.
    #[must_use]
    pub fn source(self) -> &'static str {
        self.about().source
    }

    /// Returns the name of the configuration that needs the rule.
    #[must_use]
    pub fn configuration(self) -> &'static str {
        self.about().configuration
    }
}

/// The rules that hold: all rules, or all except one.
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

    /// All rules except this rule.
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
