//! What a configuration bounds: the clients' programs, chains by epoch, faults, and which parts are there.

use crate::queue::Queue;
use crate::rule::{Rule, Rules};

/// Clients of a configuration.
pub const CLIENTS: usize = 2;
/// Sessions: each client's own, then each client's mark.
pub const SESSIONS: usize = 2 * CLIENTS;
/// Devices of a configuration.
pub const DEVICES: usize = 2;
/// Most steps of a client's program.
pub const STEPS: usize = 4;

/// Keys of a configuration: the key that nearly all calls are about, and the other one.
pub const KEYS: usize = 2;
/// The key, as a set of keys.
pub const KEY: u8 = 1;
/// The other key, as a set of keys.
pub const OTHER: u8 = 2;
/// Both.
pub const BOTH: u8 = KEY | OTHER;

/// What a client calls. Every write has a value of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Opens the session (a log entry).
    Open,
    /// Sets the key (nilext: acknowledged early).
    Write,
    /// Sets the other key.
    WriteOther,
    /// Sets both keys: an update whose hash says "several keys".
    WriteBoth,
    /// Reads the key: a bypass, or as [`Configuration::reads`] says.
    Read,
    /// Reads the other key.
    ReadOther,
    /// Reads both keys at once.
    ReadBoth,
    /// Reads the key, called before the update of the key that precedes it was sent: answered with that when it is
    /// committed, without a packet. Behind anything else: as [`Call::Read`].
    ReadOwn,
    /// Reads the key by a bypass, whatever [`Configuration::reads`] says.
    ReadBypass,
    /// Sets the key if nobody has, and says whether it did (a bypass that changes state).
    WriteIfNone,
    /// Sets the key at the server, whatever it was, and says so (a bypass that changes state).
    Set,
    /// Sets the other key at the server, as [`Call::Set`].
    SetOther,
    /// Sets the other key if nobody has set the key, and says whether it did (a bypass that changes state).
    Script,
    /// Changes nothing but the server's record of the session's bypasses (a bypass that changes state).
    Fence,
    /// Ends the session (a log entry).
    End,
    /// The head ends the session, whose client is silent: an END that nobody waits for.
    Expire,
    /// Reads the key on a connection of the client's own to the store, behind a barrier (a bypass that names the store).
    ReadDirect,
    /// Sets the key in the same way.
    SetDirect,
    /// As [`Call::Script`], in the same way.
    ScriptDirect,
    /// The second barrier of the operation before it.
    Confirm,
    /// Opens the mark session (a log entry).
    OpenMark,
    /// Ends the mark session (a log entry).
    EndMark,
    /// The head ends the mark session, whose client is silent: an END that nobody waits for.
    ExpireMark,
}

impl Call {
    /// Whether it only asks.
    #[must_use]
    pub fn is_question(self) -> bool {
        matches!(
            self,
            Self::Read | Self::ReadOther | Self::ReadBoth | Self::ReadBypass | Self::ReadOwn
        )
    }

    /// Whether what the server executes for it changes nothing.
    #[must_use]
    pub fn is_read(self) -> bool {
        self.is_question() || self.is_barrier()
    }

    /// Whether the server answers only which store it has.
    #[must_use]
    pub fn is_barrier(self) -> bool {
        self.is_direct() || self == Self::Confirm
    }

    /// Whether it goes to the store on the client's own connection, behind a barrier.
    #[must_use]
    pub fn is_direct(self) -> bool {
        self == Self::ReadDirect || self.is_direct_write()
    }

    /// Whether what goes there may change state: it needs a mark.
    #[must_use]
    pub fn is_direct_write(self) -> bool {
        matches!(self, Self::SetDirect | Self::ScriptDirect)
    }

    /// Whether it is an entry of the mark session.
    #[must_use]
    pub fn is_mark(self) -> bool {
        matches!(self, Self::OpenMark | Self::EndMark | Self::ExpireMark)
    }

    /// Whether it is an END of either session.
    #[must_use]
    pub fn is_end(self) -> bool {
        matches!(
            self,
            Self::End | Self::Expire | Self::EndMark | Self::ExpireMark
        )
    }

    /// Whether it is an END that nobody waits for.
    #[must_use]
    pub fn is_expiry(self) -> bool {
        matches!(self, Self::Expire | Self::ExpireMark)
    }

    /// The keys that it may read or change.
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
    /// Its devices, head first.
    #[must_use]
    pub fn members(self) -> &'static [u8] {
        match self {
            Self::First => &[0],
            Self::Second => &[1],
            Self::FirstSecond => &[0, 1],
            Self::SecondFirst => &[1, 0],
        }
    }

    /// Whether the device belongs to it.
    #[must_use]
    pub fn has(self, device: u8) -> bool {
        self.members().contains(&device)
    }

    /// Its head.
    #[must_use]
    pub fn head(self) -> u8 {
        self.members()[0]
    }

    /// The hop after the device; `None`: the server.
    #[must_use]
    pub fn next(self, device: u8) -> Option<u8> {
        let members = self.members();
        let at = members.iter().position(|member| *member == device)?;
        members.get(at + 1).copied()
    }
}

/// What a chain change must respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A member goes, another that is whole stays; or a device joins at the tail.
    Plain,
    /// The member that stays has joined in the epoch before: it must be synced.
    PromoteJoined,
    /// No member stays.
    LastRemoved,
    /// The medium of the only member is a blank one.
    Replaced,
    /// The server's replica takes over; the chain stays.
    Server,
    /// The server goes on at another store, which has all that the old one had; the old one lives on, without
    /// replicas and without the server. The chain changes as its sequence says, and the head that goes lives on.
    Moved,
}

/// How the cluster's key changes (docs/spec/keys.md §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rollover {
    /// Not at all.
    None,
    /// In the documented order.
    Ordered,
    /// In no order; and a thief has the old key when all have forgotten it.
    Hurried,
}

/// How [`Call::Read`] and its kin are answered (docs/spec/reads.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// All are bypasses.
    Bypasses,
    /// The head says MISS, and the client reads straight from the store.
    Misses,
    /// The head says HIT where it may, or MISS.
    Hits,
}

/// What an exhausted configuration must have reached, or it would say nothing.
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
    /// A device serves a later epoch while a removed one serves an earlier one.
    Zombie,
    /// The head of a later epoch has committed an entry.
    NewEpochCommits,
    /// An update took effect by fallback and the head has confirmed it.
    FallenBack,
    /// A head answered a read with what its log holds.
    Hit,
    /// A client may read straight from the store.
    Missed,
    /// A replica that lacks something of the master may answer a read.
    Apart,
    /// A read was answered with what the store had said before the head said MISS.
    AtOnce,
    /// A passed-through operation that changes state has been answered.
    Passed,
    /// A mark was ended, and the server has applied that.
    MarkEnded,
    /// A read was answered with its own session's update.
    OwnWrite,
    /// A device that joined has caught up.
    CaughtUp,
    /// The server's replica has applied an entry as primary.
    ReplicaServes,
    /// A loss has been declared.
    Declared,
    /// A bypass that the store failed behind its effect is answered as begun.
    Begun,
    /// A device that was declared stopped has joined anew, and holds a lease again.
    LeasedAgain,
    /// A client whose updates the server would skip was refused.
    Refused,
    /// The old key is forgotten, and both clients have finished their programs.
    Rolled,
}

/// One configuration: a small world with bounds, to be searched completely.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Its name.
    pub name: &'static str,
    /// What it is about, in one line.
    pub about: &'static str,
    /// What each client calls, in order.
    pub programs: [&'static [Call]; CLIENTS],
    /// Updates that a client may have under way.
    pub window: u8,
    /// The chain of each epoch, from epoch 1.
    pub chains: &'static [Chain],
    /// How the chain changes: one for each epoch after the first.
    pub changes: &'static [Change],
    /// Crashes of devices, all together.
    pub crashes: u8,
    /// Entries that the head's log can hold.
    pub capacity: u8,
    /// Servers: 1, or 2 with a replica.
    pub servers: u8,
    /// Whether devices answer by leases, and members go by the word of a controller that looks at these.
    pub leased: bool,
    /// How reads are answered.
    pub reads: Reads,
    /// Whether a client may read from a replica of the store, which has any state that the master has had.
    pub replicas: bool,
    /// Whether a client may ask head and store at once.
    pub at_once: bool,
    /// Buckets of the index: 1, so that the two keys collide, or 2.
    pub buckets: u8,
    /// Whether a recover-reply's index is built from the log's entries. Otherwise it is empty.
    pub rebuilds: bool,
    /// Whether the head may find no room for an update of the first client at any time.
    pub refuses: bool,
    /// Whether the store may fail behind the effect of a bypass.
    pub store_fails: bool,
    /// Whether the second client is the first one's next session.
    pub successive: bool,
    /// Whether a client may stop waiting for a bypass, or for an operation that it passed through.
    pub impatient: bool,
    /// Whether a client may stop waiting for an update.
    pub abandons: bool,
    /// Whether the second client's updates are of a kind that the server skips: those of a program, where a Redis serves.
    pub foreign: bool,
    /// Whether packets are sealed with keys, and an adversary without keys is there.
    pub adversary: bool,
    /// Whether the cluster's key changes, and how.
    pub rollover: Rollover,
    /// Whether packets that cannot have an effect any more are forgotten: fewer states, the same verdict.
    pub forgetful: bool,
    /// What must be reached.
    pub goals: &'static [Goal],
    /// The ordered queue over RDMA verbs, which is searched in place of the protocol. Of the fields above, `programs`, `window` and
    /// `crashes` count there.
    pub queue: Option<Queue>,
    /// Whether it belongs to the quick set.
    pub quick: bool,
}

/// One step of a client's program, with its numbers.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// What is called.
    pub call: Call,
    /// Whether it goes through the log; otherwise it is a bypass.
    pub logged: bool,
    /// Its seq in its session (logged), or the last seq that the client's own session had given out before it.
    pub seq: u8,
    /// The keys that it is about.
    pub keys: u8,
}

impl Configuration {
    /// The steps of both programs, numbered.
    #[must_use]
    pub fn plan(&self, rules: Rules) -> [Vec<Step>; CLIENTS] {
        self.programs.map(|program| {
            let (mut own, mut mark) = (0, 0);
            // Whether what comes next follows an update of the key, and reads of it.
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
