//! The reasons of decisions about a RECOVER, as texts for the operator.

use pmnet_wire::record::{CHAIN_MAX, Member};
use std::fmt;

/// Incarnation of a device, and the last incarnation in which its log was marked to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    incarnation: u32,
    served: u32,
}

impl From<&Member> for Life {
    fn from(member: &Member) -> Life {
        Life {
            incarnation: member.incarnation,
            served: member.served,
        }
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (served in {})", self.incarnation, self.served)
    }
}

/// The reason of a decision about a RECOVER. The text of the reason says what happened, and what to do.
///
/// `device`: the device concerned. `chain`: the present chain. `applied`: the last order that the store has applied.
/// `known`: the last order that the device's log knows to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of each says what it is")]
pub enum Reason {
    NothingToJoin {
        device: u32,
    },
    EmptyStore {
        device: u32,
        tail: u64,
    },
    RecordsDeleted {
        applied: u64,
    },
    NewShard {
        chain: Vec<u32>,
    },
    AnotherLog {
        device: u32,
    },
    RolledBack {
        device: u32,
        now: Life,
        registered: Life,
    },
    StoreLostData {
        device: u32,
        known: u64,
        applied: u64,
    },
    AnotherLogOnThePath {
        device: u32,
    },
    OldCopyOnThePath {
        device: u32,
    },
    EndDamaged {
        device: u32,
        tail: u64,
        next: u32,
        next_tail: u64,
    },
    LossDeclared {
        device: u32,
        from: Vec<u32>,
        to: Vec<u32>,
        applied: u64,
    },
    Grows {
        from: Vec<u32>,
        to: Vec<u32>,
    },
    NoMember {
        device: u32,
        chain: Vec<u32>,
    },
    LeavesOut {
        device: u32,
        gone: Vec<u32>,
        chain: Vec<u32>,
    },
    Lacks {
        device: u32,
        tail: u64,
        must_hold: u64,
        applied: u64,
        chain: Vec<u32>,
    },
    Shrinks {
        from: Vec<u32>,
        to: Vec<u32>,
    },
    DoesNotFit {
        path: Vec<u32>,
        chain: Vec<u32>,
    },
    JoinsWithAnotherShardsLog {
        device: u32,
        known: u64,
        applied: u64,
        chain: Vec<u32>,
    },
    ErasesFirst {
        device: u32,
        chain: Vec<u32>,
    },
    ReadyToJoin {
        device: u32,
        chain: Vec<u32>,
    },
    DoesNotFitBeforeJoiners {
        path: Vec<u32>,
        joiners: Vec<u32>,
        chain: Vec<u32>,
    },
    LeavesOutBeforeJoiners {
        device: u32,
        chain: Vec<u32>,
    },
    JoinerIsNotReady {
        device: u32,
        chain: Vec<u32>,
    },
    JoinsAfterALogThatGoesOn {
        joiners: Vec<u32>,
        last: u32,
    },
    TooMany {
        joiners: Vec<u32>,
        chain: Vec<u32>,
    },
    Joins {
        from: Vec<u32>,
        to: Vec<u32>,
        needs: u64,
        applied: u64,
    },
}

impl fmt::Display for Reason {
    #[rustfmt::skip]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NothingToJoin { device } => write!(f,
                "PM1014 device {device} is to join a chain, but this shard has none: check --next, start the chain's other devices \
                 first, or start this one without --join."),
            Reason::EmptyStore { device, tail } => write!(f,
                "PM1001 the store has no watermark, but device {device} has a log with orders up to {tail}: the store is empty or was \
                 emptied. Restore it, or point the device at the store that it belongs to."),
            Reason::RecordsDeleted { applied } => write!(f,
                "PM1002 the store has sessions or a watermark (orders up to {applied} are applied) but no record of its \
                 chain: records were deleted behind the server's back. Restore the store."),
            Reason::NewShard { chain } => write!(f, "new shard, chain {chain:?}"),
            Reason::AnotherLog { device } => write!(f,
                "PM1003 device {device} comes with another log than the one it registered: its medium was lost, replaced or \
                 swapped. Put the right log back. If it is gone for good: start another member with --shrink-chain, \
                 or, if there is none, this one with --declare-data-loss."),
            Reason::RolledBack { device, now, registered } => write!(f,
                "PM1004 device {device} comes with incarnation {now} but has registered {registered}: its log was rolled back to an old copy, \
                 which may miss acknowledged updates. Put the newest log back, or treat the device as lost."),
            Reason::StoreLostData { device, known, applied } => write!(f,
                "PM1005 device {device} knows that orders up to {known} were applied, but the store's watermark is {applied}. Before you \
                 restore anything: does the server's --store lead to this shard's store, and not to a replica, an old copy, \
                 or another shard's? If it is the right one, it lost data: restore it; with Redis set appendonly yes and \
                 appendfsync always."),
            Reason::AnotherLogOnThePath { device } => write!(f,
                "PM1102 device {device} on the path comes with another log than the one it registered: put the right log back, or \
                 start this device with another --next and --shrink-chain."),
            Reason::OldCopyOnThePath { device } => write!(f,
                "PM1103 device {device} on the path comes with an old copy of its log: put the newest log back, or treat it as lost, and \
                 start this device with another --next and --shrink-chain."),
            Reason::EndDamaged { device, tail, next, next_tail } => write!(f,
                "PM1006 the log of device {device} ends at order {tail}, but that of device {next}, which got everything from it, at \
                 {next_tail}: the end of the first one was damaged, or it is an old copy. Put the newest log back, or treat the \
                 device as lost."),
            Reason::LossDeclared { device, from, to, applied } => write!(f,
                "PM1007 DATA LOSS declared by the operator of device {device}: chain {from:?} replaced by {to:?}; updates that were \
                 acknowledged and not applied (orders above {applied}) are gone"),
            Reason::Grows { from, to } => write!(f, "chain grows from {from:?} to {to:?}"),
            Reason::NoMember { device, chain } => write!(f,
                "PM1008 device {device} is not a member of the chain {chain:?}, which already holds data: a device joins a chain only \
                 before its first session, or at its end, with --join."),
            Reason::LeavesOut { device, gone, chain } => write!(f,
                "PM1101 the path of device {device} leaves out members {gone:?} of the chain {chain:?}. If they are stopped for good, \
                 start the first device that is left, the new head, with --shrink-chain; otherwise correct --next."),
            Reason::Lacks { device, tail, must_hold, applied, chain } => write!(f,
                "PM1104 device {device} has joined the chain {chain:?} lately and ends at order {tail}, but it must have everything up to \
                 {must_hold}, which was acknowledged before it joined, and the store has applied {applied} only. Start a member \
                 that was there before it. If none is left, what is missing is lost: --declare-data-loss."),
            Reason::Shrinks { from, to } => write!(f,
                "chain shrinks from {from:?} to {to:?} by order of the operator"),
            Reason::DoesNotFit { path, chain } => write!(f,
                "PM1009 the path {path:?} does not fit the chain {chain:?} of this shard: check --next and --id of the devices."),
            Reason::JoinsWithAnotherShardsLog { device, known, applied, chain } => write!(f,
                "PM1015 device {device} is to join the chain {chain:?}, but its log knows that orders up to {known} were applied, and \
                 the store's watermark is {applied}: it is the log of another shard, or the store lost data. Nothing \
                 was erased. Correct --next, or give another --log."),
            Reason::ErasesFirst { device, chain } => write!(f,
                "PM1108 device {device} is no member of the chain {chain:?}: it joins with an empty log, and erases what it has."),
            Reason::ReadyToJoin { device, chain } => write!(f,
                "PM1109 device {device} is ready to join the chain {chain:?}, its log is empty. Now start the chain's last device \
                 again, with --next to this one, and with keys --next-id {device}."),
            Reason::DoesNotFitBeforeJoiners { path, joiners, chain } => write!(f,
                "PM1017 the path {path:?} does not fit the chain {chain:?}, which {joiners:?} are to join at its end: check --next and \
                 --id of the devices."),
            Reason::LeavesOutBeforeJoiners { device, chain } => write!(f,
                "PM1105 the path of device {device} leaves out members of the chain {chain:?}. If they are stopped for good, start the \
                 first device that is left, the new head, with --shrink-chain; otherwise correct --next."),
            Reason::JoinerIsNotReady { device, chain } => write!(f,
                "PM1106 device {device}, which comes after this one, is no member of the chain {chain:?} yet, and the server does not know that \
                 its log is empty: the device has not asked the server in this epoch. Does it run, with --join?"),
            Reason::JoinsAfterALogThatGoesOn { joiners, last } => write!(f,
                "PM1107 {joiners:?} would join after device {last}, but the log of that device grows while it asks: it serves, or it was taken \
                 over in the kernel. Take it out of the kernel with its log (stop it with --spill FILE), then start it again."),
            Reason::TooMany { joiners, chain } => write!(f,
                "PM1010 a chain has at most {CHAIN_MAX} devices: {joiners:?} cannot join {chain:?}."),
            Reason::Joins { from, to, needs, applied } => write!(f,
                "chain {from:?} becomes {to:?}; a device that joins counts as a copy of what was acknowledged before only when it has \
                 everything up to order {needs} (applied: {applied})"),
        }
    }
}
