//! What goes wrong between a server and its Redis, step by step.
//!
//! A request that changes state is a script: it arrives, writes its record ("begun"), does its
//! effects, writes the reply into the record, and is waited for until it is durable as configured.
//!
//! | step | what goes wrong there |
//! |---|---|
//! | arrives | connection lost; BUSY, LOADING, NOSCRIPT, MASTERDOWN; the connection is given up and Redis runs it later |
//! | first write | OOM, READONLY, MISCONF, NOREPLICAS; NOPERM for the records |
//! | effect | NOPERM for the command; Redis dies within the script: nothing of it is in the AOF |
//! | behind the effect | the script fails; where no script can be used, the connection is lost between the transaction and the record of its reply |
//! | durable | not in the replica in time; the reply is lost |

/// Something that goes wrong with one call.
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

    /// What happened, for counters and errors.
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

/// Trouble that lasts for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spell {
    /// Every call has another fault.
    Storm,
    /// Every call has this fault.
    Lasting(Trouble),
}

impl Spell {
    /// Any of them; in half of the cases a different fault for every call.
    pub(super) fn any(draw: u64) -> Spell {
        match draw % 8 {
            0..=3 => Spell::Storm,
            4 => Spell::Lasting(Trouble::NotNow),
            5 | 6 => Spell::Lasting(Trouble::WritesRefused),
            _ => Spell::Lasting(Trouble::RecordsRefused),
        }
    }
}
