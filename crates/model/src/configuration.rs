//! The bounds of a search: the clients' programs, the chain of each epoch, the faults, and the components of the
//! system.

use crate::queue::Queue;
use crate::rule::{Rule, Rules};

/// Number of clients of a configuration.
pub const CLIENTS: usize = 2;
/// Number of sessions: first each client's own session, then each client's mark session.
pub const SESSIONS: usize = 2 * CLIENTS;
/// Number of devices of a configuration.
pub const DEVICES: usize = 2;
/// Maximum number of steps of a client's program.
pub const STEPS: usize = 4;

/// Number of keys: *the key*, which nearly all calls concern, and *the other key*. A set of keys is a bit mask.
pub const KEYS: usize = 2;
/// The set that contains only the key.
pub const KEY: u8 = 1;
/// The set that contains only the other key.
pub const OTHER: u8 = 2;
/// The set that contains both keys.
pub const BOTH: u8 = KEY | OTHER;

/// A call of a client. Every write has a different value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Opens the session (a log entry).
    Open,
    /// Sets the key (nilext: acknowledged early).
    Write,
    /// Sets the other key.
    WriteOther,
    /// Sets both keys, by an update whose hash means "several keys".
    WriteBoth,
    /// Reads the key in the manner of [`Configuration::reads`].
    Read,
    /// Reads the other key.
    ReadOther,
    /// Reads both keys at once.
    ReadBoth,
    /// Reads the key. The read is called before the preceding update of the key is sent. When the update is committed,
    /// the read is answered with the update's value, without a packet. If the step before the read is no update of the
    /// key, the read is a [`Call::Read`].
    ReadOwn,
    /// Reads the key by a bypass, independently of [`Configuration::reads`].
    ReadBypass,
    /// Sets the key if it is not set yet, and replies whether it has set the key (a bypass that changes state).
    WriteIfNone,
    /// Sets the key at the server unconditionally (a bypass that changes state).
    Set,
    /// Sets the other key at the server unconditionally (a bypass that changes state).
    SetOther,
    /// Sets the other key if the key is not set yet, and replies whether it has set the other key (a bypass that
    /// changes state).
    Script,
    /// Changes only the server's record of the session's bypasses (a bypass that counts as changing state).
    Fence,
    /// Ends the session (a log entry).
    End,
    /// The head ends the session, because the client is silent: an END for which no client waits.
    Expire,
    /// Reads the key on the client's own connection to the store, after a barrier (a bypass that names the store).
    ReadDirect,
    /// Sets the key on the client's own connection to the store, after a barrier.
    SetDirect,
    /// Executes the script of [`Call::Script`] on the client's own connection to the store, after a barrier.
    ScriptDirect,
    /// The second barrier of the preceding operation.
    Confirm,
    /// Opens the mark session (a log entry).
    OpenMark,
    /// Ends the mark session (a log entry).
    EndMark,
    /// The head ends the mark session, because the client is silent: an END for which no client waits.
    ExpireMark,
}

impl Call {
    /// Whether the call only asks, and changes nothing.
    #[must_use]
    pub fn is_question(self) -> bool {
        matches!(
            self,
            Self::Read | Self::ReadOther | Self::ReadBoth | Self::ReadBypass | Self::ReadOwn
        )
    }

    /// Whether the call is a bypass for which the server changes nothing.
    #[must_use]
    pub fn is_read(self) -> bool {
        self.is_question() || self.is_barrier()
    }

    /// Whether the server answers the call only with the name of its store.
    #[must_use]
    pub fn is_barrier(self) -> bool {
        self.is_direct() || self == Self::Confirm
    }

    /// Whether the call goes to the store on the client's own connection, after a barrier.
    #[must_use]
    pub fn is_direct(self) -> bool {
        self == Self::ReadDirect || self.is_direct_write()
    }

    /// Whether the call goes to the store on the client's own connection and may change state. Such a call needs a
    /// mark.
    #[must_use]
    pub fn is_direct_write(self) -> bool {
        matches!(self, Self::SetDirect | Self::ScriptDirect)
    }

    /// Whether the call is an entry of the mark session.
    #[must_use]
    pub fn is_mark(self) -> bool {
        matches!(self, Self::OpenMark | Self::EndMark | Self::ExpireMark)
    }

    /// Whether the call is an END of the own or the mark session.
    #[must_use]
    pub fn is_end(self) -> bool {
        matches!(
            self,
            Self::End | Self::Expire | Self::EndMark | Self::ExpireMark
        )
    }

    /// Whether the call is an END for which no client waits.
    #[must_use]
    pub fn is_expiry(self) -> bool {
        matches!(self, Self::Expire | Self::ExpireMark)
    }

    /// Returns the keys that the call may read or change.
    #[must_use]
    pub fn keys(self) -> u8 {
        match self {
            Self::Open | Self::Confirm | Self::Fence | Self::OpenMark => 0,
            _ if self.is_end() => 0,
            Self::WriteOther | Self::ReadOther | Self::SetOther => OTHER,
            Self::WriteBoth | Self::ReadBoth | Self::Script | Self::ScriptDirect => BOTH,
            _ => KEY,
        }
    }
}

/// Devices of a chain, head first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// D1 alone.
    First,
    /// D2 alone.
    Second,
    /// D1, then D2.
    FirstSecond,
    /// D2, then D1.
    SecondFirst,
}

impl Chain {
    /// Returns the chain's devices, head first.
    #[must_use]
    pub fn members(self) -> &'static [u8] {
        match self {
            Self::First => &[0],
            Self::Second => &[1],
            Self::FirstSecond => &[0, 1],
            Self::SecondFirst => &[1, 0],
        }
    }

    /// Whether the device belongs to the chain.
    #[must_use]
    pub fn has(self, device: u8) -> bool {
        self.members().contains(&device)
    }

    /// Returns the chain's head.
    #[must_use]
    pub fn head(self) -> u8 {
        self.members()[0]
    }

    /// Returns the hop after the device; `None`: the server.
    #[must_use]
    pub fn next(self, device: u8) -> Option<u8> {
        let members = self.members();
        let at = members.iter().position(|member| *member == device)?;
        members.get(at + 1).copied()
    }
}

/// The kind of a change, which decides its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A member leaves, and a member with the whole log stays; or a device joins at the tail.
    Plain,
    /// The only remaining member joined in the previous epoch. It must have caught up first.
    PromoteJoined,
    /// No member stays.
    LastRemoved,
    /// The only member has lost its medium, and has a blank medium instead.
    Replaced,
    /// The server's replica becomes the primary, and the chain stays the same.
    Server,
    /// The server moves to another store, which has all data of the old store. The old store keeps running, without the
    /// server and without replicas. The chain of the next epoch begins, and a removed head keeps running.
    Moved,
}

/// The kind of change of the cluster's key (docs/spec/keys.md §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rollover {
    /// The key does not change.
    None,
    /// The key changes in the documented order of steps.
    Ordered,
    /// In any order of steps. When all processes have forgotten the old key, a thief has this key.
    Hurried,
}

/// How [`Call::Read`], [`Call::ReadOther`] and [`Call::ReadBoth`] are answered (docs/spec/reads.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// All such reads are bypasses.
    Bypasses,
    /// The head answers MISS, and the client reads directly from the store.
    Misses,
    /// The head answers HIT where this is allowed, or MISS.
    Hits,
}

/// A state that an exhaustive search must reach. If the search does not reach it, its result proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// An update is acknowledged.
    Acknowledged,
    /// Both clients have finished their programs.
    AllDone,
    /// A device has freed an entry.
    Reclaimed,
    /// A restarted device serves.
    Recovered,
    /// A device serves a later epoch while a removed device still serves an earlier one.
    Zombie,
    /// The head of a later epoch has committed an entry.
    NewEpochCommits,
    /// An update took effect by fallback and the head has confirmed it.
    FallenBack,
    /// A head has answered a read with an update of its log.
    Hit,
    /// A client may read directly from the store.
    Missed,
    /// A replica may answer a read although it lacks an effect that the master has.
    Apart,
    /// A read was answered with a reply that the store had given before the head's MISS came.
    AtOnce,
    /// An operation that bypasses the devices and changes state was answered.
    Passed,
    /// A mark was ended, and the server has applied its END.
    MarkEnded,
    /// A read was answered with its own session's update.
    OwnWrite,
    /// A joined device has caught up.
    CaughtUp,
    /// The server's replica has applied an entry as primary.
    ReplicaServes,
    /// A loss was declared.
    Declared,
    /// The store failed after the effect of a bypass, and the bypass was answered as begun.
    Begun,
    /// A device that was declared stopped has joined again, and has a lease.
    LeasedAgain,
    /// A client whose updates the server would skip was refused.
    Refused,
    /// The old key is forgotten, and both clients have finished their programs.
    Rolled,
}

/// A configuration: a small bounded system, whose states are all searched.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Name of the configuration.
    pub name: &'static str,
    /// Subject of the configuration, in one line.
    pub about: &'static str,
    /// The calls of each client, in order.
    pub programs: [&'static [Call]; CLIENTS],
    /// Maximum number of updates that a client may have under way.
    pub window: u8,
    /// The chain of each epoch, from epoch 1.
    pub chains: &'static [Chain],
    /// The kind of each change of the chain: one for each epoch after the first.
    pub changes: &'static [Change],
    /// Number of crashes of all devices together.
    pub crashes: u8,
    /// Number of entries that the head's log can hold.
    pub capacity: u8,
    /// Number of servers: 1, or 2 with a replica.
    pub servers: u8,
    /// Whether devices answer only with a lease, and members are removed only when the controller, which watches the
    /// leases, has declared them stopped.
    pub leased: bool,
    /// How reads are answered.
    pub reads: Reads,
    /// Whether a client may read from a replica of the store. The replica has the present state of the master, or any
    /// earlier state.
    pub replicas: bool,
    /// Whether a client may ask the head and the store at the same time.
    pub at_once: bool,
    /// Number of buckets of the index: 2; or 1, so that the two keys collide.
    pub buckets: u8,
    /// Whether a recovering head builds its index from the log's entries. Otherwise the new index is empty.
    pub rebuilds: bool,
    /// Whether the head may at any time have no room for an update of the first client.
    pub refuses: bool,
    /// Whether the store may fail after the effect of a bypass.
    pub store_fails: bool,
    /// Whether the second client is the next session of the first client.
    pub successive: bool,
    /// Whether a client may abandon a bypass, or an operation that it has sent to the store on its own connection.
    pub impatient: bool,
    /// Whether a client may abandon an update.
    pub abandons: bool,
    /// Whether the second client's updates have payloads of a kind that the server skips: payloads for a program, at a
    /// server with a Redis.
    pub foreign: bool,
    /// Whether packets are sealed with keys, and there is an adversary without keys.
    pub adversary: bool,
    /// Whether the cluster's key changes, and how.
    pub rollover: Rollover,
    /// Whether packets that can no longer have an effect are removed. This makes the search smaller, and does not
    /// change its result.
    pub forgetful: bool,
    /// The goals that the search must reach.
    pub goals: &'static [Goal],
    /// If given, the ordered queue over RDMA verbs is searched instead of the protocol. Then only `programs`, `window`
    /// and `crashes` of the fields above count.
    pub queue: Option<Queue>,
    /// Whether the configuration belongs to the quick set.
    pub quick: bool,
}

/// One step of a client's program, with its numbers.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The call of the step.
    pub call: Call,
    /// Whether the step is an entry of the log; otherwise it is a bypass.
    pub logged: bool,
    /// For an entry, the seq in its session. For a bypass, the last seq of the client's own session before the bypass.
    pub seq: u8,
    /// The keys that the step concerns.
    pub keys: u8,
}

impl Configuration {
    /// Returns the steps of both programs with their numbers.
    #[must_use]
    pub fn plan(&self, rules: Rules) -> [Vec<Step>; CLIENTS] {
        self.programs.map(|program| {
            let (mut own, mut mark) = (0, 0);
            // Whether the last call is an update of the key, or one of several [`Call::ReadOwn`] directly after such an
            // update.
            let mut behind_write = false;
            let number = |call: &Call| {
                let apart = !behind_write && rules.on(Rule::OwnAdjacent);
                behind_write = *call == Call::Write || *call == Call::ReadOwn && behind_write;
                let call = match call {
                    Call::ReadOwn if apart => &Call::Read,
                    call => call,
                };
                let logged = match call {
                    Call::Open | Call::Write | Call::WriteOther | Call::WriteBoth => true,
                    Call::WriteIfNone => !rules.on(Rule::NilextOnly),
                    _ => call.is_end() || call.is_mark(),
                };
                let seq = if call.is_mark() { &mut mark } else { &mut own };
                *seq += u8::from(logged);
                Step {
                    call: *call,
                    logged,
                    seq: *seq,
                    keys: call.keys(),
                }
            };
            program.iter().map(number).collect()
        })
    }
}
