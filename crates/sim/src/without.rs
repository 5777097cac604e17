//! Rules that can be switched off, to test the simulator: for each rule a violation must be found
//! (`docs/spec/protocol.md` §2 and §8).
//!
//! A rule that a protocol machine keeps is switched off in the machine ([`Rule`]). A rule that a store, a medium, a
//! client or an operator must keep is broken in the simulated one.

use pmnet_proto::rules::{Rule, Rules};
use std::str::FromStr;

/// The rule, and the part of the system that keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a protocol machine.
    Machine(Rule),
    /// In the store: two updates with the same hash are different updates.
    Identity,
    /// In the store: effects and records are one step.
    AtomicApply,
    /// In the store: a record that says "begun" comes before the first effect.
    RecordFirst,
    /// In the store: a command on an abandoned connection has no effect after a new load.
    Fenced,
    /// In the store: of two processes that have read the records, the later one may write.
    OneServer,
    /// In the store: a process that never owned the records does not read them while Redis refuses writes.
    OwnRecords,
    /// In the store: data counts as durable only if the replica has it, if this is configured.
    Replicas,
    /// In the client's caller: its own connection leads to the store that its barrier named.
    StoreNamed,
    /// In the client's caller: a direct read counts only if the store's record names the head's epoch.
    ReadEpoch,
    /// In the client's caller: a direct read counts only if the store has applied the order that the head named.
    ReadNeed,
    /// In the client's caller: a read from a replica counts only if the replica has applied the order that the head
    /// named.
    ReplicaNeed,
    /// In the client's caller: only updates that cannot fail are acknowledged early.
    Nilext,
    /// In the log: an entry's checksum covers its payload.
    Checksum,
    /// In the medium: data of a completed persist is durable.
    Persist,
    /// In the store: loaded records are durable in its replica, if that is configured.
    ReplicasLoad,
    /// In the store: a reported batch is durable in its replica, if that is configured.
    ReplicasApply,
    /// In the store: an answered request is durable in its replica, if that is configured.
    ReplicasExecute,
    /// In the client's caller: if the server waits for the store's replica, clients do not read directly from the
    /// store.
    ReadDurable,
    /// In the clocks: their rates differ by at most the allowed error.
    Drift,
    /// In the controllers: they wait for the margin after a lease has expired.
    Waited,
    /// In the lease store: a member is declared stopped in one transaction with a check of its last
    /// lease.
    LastLease,
    /// In the agents: a full store's refusal counts as no lease.
    Refused,
    /// In the client: the token of a session is never used again.
    Nonce,
    /// By the operator: no process sends with a new key before all processes accept this key.
    RollAccepted,
    /// By the operator: the old key is removed only when no process sends with it.
    RollSent,
    /// By the operator: the old key is removed only when all fronts have their new keys.
    RollFronts,
    /// By the operator: the last step removes the old key.
    Forgotten,
    /// By the operator: a front whose key is no longer valid is on the list of refused fronts.
    RefusedFronts,
    /// In the controllers: a device is declared stopped only if another device has all entries and a lease.
    Beside,
}

/// A rule that can be switched off.
#[derive(Clone, Copy, Debug)]
pub struct Without {
    /// Name of the rule on the command line.
    pub name: &'static str,
    /// The part that keeps the rule.
    pub place: Place,
    /// Section and text of the rule in the specification.
    pub says: &'static str,
    /// Number of seeds within which a violation must be found.
    pub seeds: u64,
}

const fn rule(name: &'static str, place: Place, seeds: u64, says: &'static str) -> Without {
    Without {
        name,
        place,
        says,
        seeds,
    }
}

const fn machine(name: &'static str, rule: Rule, seeds: u64, says: &'static str) -> Without {
    self::rule(name, Place::Machine(rule), seeds, says)
}

impl Without {
    /// All rules that can be switched off.
    pub const ALL: &[Without] = &[
        rule(
            "identity",
            Place::Identity,
            2000,
            "§2.1, §8: an update is (shard, session, seq), not its hash",
        ),
        machine(
            "session-order",
            Rule::SessionOrder,
            2000,
            "§2.2, §8: nothing is admitted behind a gap",
        ),
        machine(
            "duplicates",
            Rule::Duplicates,
            2000,
            "§2.2: a duplicate is acknowledged, not applied again",
        ),
        machine(
            "write-ahead",
            Rule::WriteAhead,
            2000,
            "§2.3, §8: forwarded once durable",
        ),
        machine(
            "no-gaps",
            Rule::NoGaps,
            2000,
            "§2.4, §8: order A + 1 only, across all clients",
        ),
        machine(
            "durable-first",
            Rule::DurableFirst,
            2000,
            "§2.5: committed once durable",
        ),
        machine(
            "all-copies",
            Rule::AllCopies,
            2000,
            "§2.5: committed once durable in all R devices",
        ),
        machine(
            "whose-copy",
            Rule::WhoseCopy,
            2000,
            "§2.5, §8: two words of one device are one copy",
        ),
        rule(
            "persist",
            Place::Persist,
            2000,
            "§2.5: what a medium said to be durable is",
        ),
        rule(
            "atomic-apply",
            Place::AtomicApply,
            2000,
            "§2.6, §8: effects and watermark are one step",
        ),
        rule(
            "record-first",
            Place::RecordFirst,
            2000,
            "§2.8, §12: a request's record comes before its first effect",
        ),
        rule(
            "fenced",
            Place::Fenced,
            2000,
            "§12: what a connection left behind has no effect after the next load",
        ),
        rule(
            "one-server",
            Place::OneServer,
            2000,
            "§12, §14: the server that has read the records last may write",
        ),
        rule(
            "own-records",
            Place::OwnRecords,
            2000,
            "§12, §14: a server that never owned the records answers nothing from them",
        ),
        rule(
            "replicas",
            Place::Replicas,
            2000,
            "§2.7, §8: nothing is said before the store's replica has it",
        ),
        rule(
            "recover-replicated",
            Place::ReplicasLoad,
            12_000,
            "§2.7, §5: a recover-reply says only what the store's replica has",
        ),
        rule(
            "reclaim-everywhere",
            Place::ReplicasApply,
            2000,
            "§2.7, §8: nothing is reclaimed before the store's replica has it",
        ),
        rule(
            "replies-replicated",
            Place::ReplicasExecute,
            2000,
            "§2.7, §8: nothing is answered before the store's replica has it",
        ),
        rule(
            "store-named",
            Place::StoreNamed,
            2000,
            "§2.8: a client's own connection leads to the store that its barrier named",
        ),
        machine(
            "after-unknown",
            Rule::AfterUnknown,
            6000,
            "§2.8: nothing is asked while an earlier call of its session can still arrive",
        ),
        machine(
            "reclaim-applied",
            Rule::ReclaimApplied,
            2000,
            "§2.7: reclaimed once applied durably",
        ),
        machine(
            "fresh-records",
            Rule::FreshRecords,
            6000,
            "§12, §14: nobody is refused because of records that another server has changed since",
        ),
        machine(
            "barrier",
            Rule::Barrier,
            2000,
            "§2.8, §8: a read waits for what was acknowledged before",
        ),
        machine(
            "last-seq",
            Rule::LastSeq,
            2000,
            "§2.8, §8: a bypass does not overtake its own session",
        ),
        machine(
            "request-id",
            Rule::RequestId,
            2000,
            "§2.8: a bypass that changes state does it once",
        ),
        machine(
            "first-head",
            Rule::FirstHead,
            2000,
            "§3: who looks for the head does not begin the first session of a chain",
        ),
        machine(
            "forget-failed",
            Rule::ForgetFailed,
            2000,
            "§2.8: what the store could not execute is not executed by itself again",
        ),
        machine(
            "deadline",
            Rule::Deadline,
            2000,
            "§2.8: nothing is executed for a caller that has given up",
        ),
        machine(
            "known-session",
            Rule::KnownSession,
            2000,
            "§1, §8: an unknown session is refused, never created",
        ),
        rule(
            "checksum",
            Place::Checksum,
            2000,
            "§8: a torn entry is not replayed",
        ),
        machine(
            "epoch",
            Rule::Epoch,
            2000,
            "§1, §8: an earlier epoch has no effect",
        ),
        machine(
            "log-identity",
            Rule::LogIdentity,
            2000,
            "§5, §8: another log is another device",
        ),
        machine(
            "incarnation",
            Rule::Incarnation,
            2000,
            "§5: an old copy of a log is a lost log",
        ),
        machine(
            "erase-on-join",
            Rule::EraseOnJoin,
            2000,
            "§5: who joins a chain has erased its log",
        ),
        machine(
            "synced",
            Rule::Synced,
            2000,
            "§5: who joined is left alone only with everything that was acknowledged before",
        ),
        machine(
            "stands-still",
            Rule::StandsStill,
            2000,
            "§5: what who joins must hold is taken from a log that stands still",
        ),
        machine(
            "server-first",
            Rule::ServerFirst,
            2000,
            "§5, §8: no device hears of an epoch that is not durable at the server",
        ),
        machine(
            "own-reply",
            Rule::OwnReply,
            2000,
            "§5: a recover-reply answers the question that it echoes",
        ),
        machine(
            "last-member",
            Rule::LastMember,
            2000,
            "§5, §8: the last member of a chain is replaced only if the loss is declared",
        ),
        machine(
            "word-epoch",
            Rule::WordEpoch,
            2000,
            "§5: an operator's word is about one epoch",
        ),
        machine(
            "lease",
            Rule::Lease,
            2000,
            "§14: a device answers until its lease is over",
        ),
        machine(
            "lease-covers-reads",
            Rule::LeaseCoversReads,
            2000,
            "§14: without a lease READs are not answered either",
        ),
        rule(
            "lease-waited",
            Place::Waited,
            2000,
            "§14: when a lease is gone, a controller waits for its device's clock",
        ),
        rule(
            "last-lease",
            Place::LastLease,
            6000,
            "§14: the word is said in one step with a look at the last lease",
        ),
        rule(
            "lease-refused",
            Place::Refused,
            6000,
            "§14: a lease that a full store has refused is none",
        ),
        rule(
            "beside",
            Place::Beside,
            2000,
            "§14: nobody is declared stopped but beside another one that holds everything",
        ),
        rule(
            "lease-drift",
            Place::Drift,
            6000,
            "§14: the margin is for clocks that differ by so much and no more",
        ),
        machine(
            "stopped-for-good",
            Rule::StoppedForGood,
            2000,
            "§14: who was declared stopped gets no lease before it has joined anew",
        ),
        machine(
            "confirmed",
            Rule::Confirmed,
            12_000,
            "§5: a store that lost what it had confirmed stops the shard",
        ),
        machine(
            "fallback-identity",
            Rule::FallbackIdentity,
            2000,
            "§4, §8: a fallback counts as its update",
        ),
        rule(
            "nilext",
            Place::Nilext,
            2000,
            "§1, §8: what can fail is not acknowledged early",
        ),
        machine(
            "token",
            Rule::Token,
            2000,
            "§7: a wrong token has no effect",
        ),
        machine(
            "sealed",
            Rule::Sealed,
            2000,
            "keys.md §1: what nobody has sealed has no effect",
        ),
        machine(
            "seal-anew",
            Rule::SealAnew,
            2000,
            "keys.md §3, §7: what was stored before the present keys is sealed anew when it is sent",
        ),
        rule(
            "nonce",
            Place::Nonce,
            2000,
            "keys.md §2: a session's token is never used again",
        ),
        rule(
            "roll-accepted",
            Place::RollAccepted,
            2000,
            "keys.md §7: nobody sends under the new key before all accept it",
        ),
        rule(
            "roll-sent",
            Place::RollSent,
            2000,
            "keys.md §7: the old key is forgotten when nobody sends under it",
        ),
        rule(
            "roll-fronts",
            Place::RollFronts,
            2000,
            "keys.md §7: and when all fronts have keys that follow from the new one",
        ),
        rule(
            "roll-forgotten",
            Place::Forgotten,
            2000,
            "keys.md §7: after the last step the old key is good for nothing",
        ),
        rule(
            "refused-fronts",
            Place::RefusedFronts,
            2000,
            "keys.md §7: what a front sends that is refused has no effect",
        ),
        machine(
            "fragment-size",
            Rule::FragmentSize,
            2000,
            "§7: no packet is longer than a hop of its way carries",
        ),
        machine(
            "floor",
            Rule::Floor,
            2000,
            "reads.md §1: at or below the floor the index may not know everything",
        ),
        machine(
            "hit-committed",
            Rule::HitCommitted,
            12_000,
            "reads.md §2: only what is committed is shown",
        ),
        machine(
            "store-epoch",
            Rule::StoreEpoch,
            2000,
            "reads.md §3: another store means another epoch",
        ),
        machine(
            "shown-above",
            Rule::ShownAbove,
            2000,
            "reads.md §4: what the store had applied when it answered is not shown",
        ),
        rule(
            "read-epoch",
            Place::ReadEpoch,
            12_000,
            "reads.md §3: the store is read in the epoch that the head named",
        ),
        rule(
            "read-need",
            Place::ReadNeed,
            2000,
            "reads.md §3: the store has applied what the head named",
        ),
        rule(
            "read-durable",
            Place::ReadDurable,
            2000,
            "reads.md §3: what the store shows is in its replica, if the server waits for that",
        ),
        rule(
            "replica-need",
            Place::ReplicaNeed,
            2000,
            "reads.md §11: a replica that is read from has applied what the head named for replicas",
        ),
        machine(
            "replica-behind",
            Rule::ReplicaBehind,
            2000,
            "reads.md §11: an entry that a replica has was admitted behind every answer to what has no order",
        ),
        machine(
            "replica-recovered",
            Rule::ReplicaRecovered,
            2000,
            "reads.md §11: so was one behind the recover-reply",
        ),
        machine(
            "replica-quiet",
            Rule::ReplicaQuiet,
            2000,
            "reads.md §11: no replica is read from while something that has no order is outstanding",
        ),
    ];

    /// Returns the rules of the machines in a world without this rule.
    #[must_use]
    pub fn rules(without: Option<Without>) -> Rules {
        match without.map(|without| without.place) {
            Some(Place::Machine(rule)) => Rules::without(rule),
            _ => Rules::ALL,
        }
    }

    /// Whether the rule of this place is switched off.
    #[must_use]
    pub fn breaks(without: Option<Without>, place: Place) -> bool {
        without.is_some_and(|without| without.place == place)
    }
}

impl FromStr for Without {
    type Err = String;
    fn from_str(text: &str) -> Result<Without, String> {
        let found = Without::ALL.iter().find(|without| without.name == text);
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = Without::ALL.iter().map(|without| without.name).collect();
            format!("no such rule; there are: {}", names.join(", "))
        })
    }
}
