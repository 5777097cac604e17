//! A configuration: the clients' programs, the chain of each epoch, the faults, and which parts are included.

use crate::rule::{Rule, Rules};

/// Clients of a configuration.
pub const CLIENTS: usize = 2;
/// Devices of a configuration.
pub const DEVICES: usize = 2;
/// Most steps of a client's program.
pub const STEPS: usize = 4;

/// Keys of a configuration: the key of nearly all calls, and the other one.
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
    /// Reads the key by a bypass, whatever [`Configuration::reads`] says.
    ReadBypass,
    /// Sets the key if nobody has, and says whether it did (a bypass that changes state).
    WriteIfNone,
    /// Sets the key at the server, whatever its value was (a bypass that changes state).
    Set,
    /// Sets the other key if nobody has set the key, and says whether it did (a bypass that changes state).
    Script,
    /// Changes nothing but the server's record of the session's bypasses (a bypass that changes state).
    Fence,
    /// Ends the session (a log entry).
    End,
    /// The head ends the session, whose client is silent: an END that nobody waits for.
    Expire,
    /// Reads the key on the client's own connection to the store, after a barrier (a bypass that names the store).
    ReadDirect,
    /// Sets the key in the same way.
    SetDirect,
    /// The second barrier of the [`Call::SetDirect`] before it.
    Confirm,
    /// Sets the key on the client's own connection to the store, after a mark (a bypass that changes the shard's
    /// record).
    SetMarked,
    /// As [`Call::Script`], in the same way.
    ScriptMarked,
    /// The second mark of the operation before it.
    Unmark,
}

impl Call {
    /// Whether it only asks.
    #[must_use]
    pub fn is_question(self) -> bool {
        matches!(
            self,
            Self::Read | Self::ReadOther | Self::ReadBoth | Self::ReadBypass
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
        matches!(self, Self::ReadDirect | Self::SetDirect | Self::Confirm)
    }

    /// Whether it goes to the store on the client's own connection, behind a barrier.
    #[must_use]
    pub fn is_direct(self) -> bool {
        matches!(self, Self::ReadDirect | Self::SetDirect)
    }

    /// Whether it goes there behind a mark.
    #[must_use]
    pub fn is_marked(self) -> bool {
        matches!(self, Self::SetMarked | Self::ScriptMarked)
    }

    /// The keys that it may read or change.
    #[must_use]
    pub fn keys(self) -> u8 {
        match self {
            Self::Open | Self::End | Self::Expire | Self::Confirm | Self::Fence | Self::Unmark => 0,
            Self::WriteOther | Self::ReadOther => OTHER,
            Self::WriteBoth | Self::ReadBoth | Self::Script | Self::ScriptMarked => BOTH,
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

/// The kinds of chain changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A member leaves, and another one with the whole log stays; or a device joins at the tail.
    Plain,
    /// The member that stays has joined in the epoch before: it must be synced.
    PromoteJoined,
    /// No member stays.
    LastRemoved,
    /// The medium of the only member is a blank one.
    Replaced,
    /// The server's replica takes over; the chain stays.
    Server,
    /// The server goes on with another store, which has all that the old one had; the old one lives on, without
    /// replicas and without the server. The chain changes by its sequence, and the head that leaves lives on.
    Moved,
}

/// How [`Call::Read`] and its kin are answered (docs/spec/reads.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// All are bypasses.
    Bypasses,
    /// The head says MISS, and the client reads directly from the store.
    Misses,
    /// The head says HIT where it may, or MISS.
    Hits,
}

/// What an exhausted configuration must have reached; otherwise it would prove nothing.
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
    /// A client may read directly from the store.
    Missed,
    /// A passed-through operation has ended between its two marks.
    Marked,
    /// A mark was ended by the server.
    MarkEnded,
    /// A device that joined has caught up.
    CaughtUp,
    /// The server's replica has applied an entry as primary.
    ReplicaServes,
    /// A loss has been declared.
    Declared,
    /// A bypass whose store failed after its effect is answered as begun.
    Begun,
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
    /// How reads are answered.
    pub reads: Reads,
    /// Buckets of the index: 1, so that the two keys collide, or 2.
    pub buckets: u8,
    /// Whether a recover-reply's index is built from the log's entries. Otherwise it is empty.
    pub rebuilds: bool,
    /// Whether the head may find no room for an update of the first client at any time.
    pub refuses: bool,
    /// Whether the server may end a mark whose client is silent.
    pub ends_marks: bool,
    /// Whether the store may fail after the effect of a bypass.
    pub store_fails: bool,
    /// Whether the second client is the first one's next session.
    pub successive: bool,
    /// Whether a client may stop waiting for a bypass.
    pub impatient: bool,
    /// Whether packets that cannot have an effect any more are forgotten: fewer states, the same verdict.
    pub forgetful: bool,
    /// What must be reached.
    pub goals: &'static [Goal],
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
    /// Its seq (logged), or the last seq that the session had given out before it (bypass).
    pub seq: u8,
    /// The keys that it reads or changes.
    pub keys: u8,
}

impl Configuration {
    /// The steps of both programs, numbered.
    #[must_use]
    pub fn plan(&self, rules: Rules) -> [Vec<Step>; CLIENTS] {
        self.programs.map(|program| {
            let mut seq = 0;
            let number = |call: &Call| {
                let logged = match call {
                    Call::Open | Call::Write | Call::WriteOther | Call::WriteBoth => true,
                    Call::End | Call::Expire => true,
                    Call::WriteIfNone => !rules.on(Rule::NilextOnly),
                    _ => false,
                };
                seq += u8::from(logged);
                Step {
                    call: *call,
                    logged,
                    seq,
                    keys: call.keys(),
                }
            };
            program.iter().map(number).collect()
        })
    }
}
