//! Faults between a server and its Redis, step by step.
//!
//! A request that changes state is a script. The script arrives, writes its record ("begun"), has its effects, and
//! writes the reply into the record. Then the server waits until the script's writes are as durable as configured.
//!
//! | step | what goes wrong there |
//! |---|---|
//! | arrives | connection lost; BUSY, LOADING, NOSCRIPT, MASTERDOWN; the connection is given up and Redis runs it later |
//! | first write | OOM, READONLY, MISCONF, NOREPLICAS; NOPERM for the records |
//! | effect | NOPERM for the command; Redis dies within the script: nothing of it is in the AOF |
//! | after the effect | the script fails; where no script can be used, the connection is lost between the transaction and the record of its reply |
//! | durable | not in the replica in time; the reply is lost |

/// A fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Unreached,
    NotNow,
    Late,
    WritesRefused,
    RecordsRefused,
    EffectRefused,
    Torn,
    ScriptFails,
    HalfWay,
    NotReplicated,
    ReplyLost,
}

impl Trouble {
    pub(super) const ALL: [Trouble; 11] = [
        Trouble::Unreached,
        Trouble::NotNow,
        Trouble::Late,
        Trouble::WritesRefused,
        Trouble::RecordsRefused,
        Trouble::EffectRefused,
        Trouble::Torn,
        Trouble::ScriptFails,
        Trouble::HalfWay,
        Trouble::NotReplicated,
        Trouble::ReplyLost,
    ];

    /// Returns the name of the fault, for counters and errors.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Trouble::Unreached => "store: connection lost before",
            Trouble::NotNow => "store: BUSY, LOADING, NOSCRIPT or MASTERDOWN",
            Trouble::Late => "store: given up, and executed later",
            Trouble::WritesRefused => "store: OOM, READONLY, MISCONF or NOREPLICAS",
            Trouble::RecordsRefused => "store: NOPERM for the records",
            Trouble::EffectRefused => "store: NOPERM for the command",
            Trouble::Torn => "store: died within a script",
            Trouble::ScriptFails => "store: script failed behind its effect",
            Trouble::HalfWay => "store: connection lost between effect and reply",
            Trouble::NotReplicated => "store: not in the replica in time",
            Trouble::ReplyLost => "store: connection lost after",
        }
    }
}

/// A fault that lasts for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spell {
    /// For each call a fault is drawn.
    Storm,
    /// All calls have this fault.
    Lasting(Trouble),
}

impl Spell {
    /// Draws a spell. In half of the cases it is a [`Spell::Storm`].
    pub(super) fn any(draw: u64) -> Spell {
        match draw % 8 {
            0..=3 => Spell::Storm,
            4 => Spell::Lasting(Trouble::NotNow),
            5 | 6 => Spell::Lasting(Trouble::WritesRefused),
            _ => Spell::Lasting(Trouble::RecordsRefused),
        }
    }
}
