//! The command matrix: for every command of Redis, what the front does with it.
//!
//! Purpose: decides whether a command is acknowledged early, goes to the store, is answered here, needs
//! its own connection, or is refused. `docs/guide/redis.md` is generated from it. Facts come from Redis
//! ([`FACTS`]), decisions from `decide`. The rule for early acknowledgement, which looks at the arguments
//! too, is [`pmnet_wire::promise`] ([`early_ack`]); anything unusual goes to Redis, which then gives its
//! own error.
//! It may not keep state between commands.

mod assume;
mod decide;
mod early;
mod facts;
pub(crate) mod keys;
mod matrix;
mod subcommands;

use rustc_hash::FxHashMap;

pub use assume::{ASSUMABLE, AssumeError};
pub use early::{early_ack, touches_reserved};
pub use facts::{FACTS, SERVER_VERSION};
pub use keys::keys;
pub(crate) use keys::sort_options;
pub use matrix::guide_markdown;
pub use subcommands::SUBCOMMANDS;

use decide::Decision;
use pmnet_resp::Arguments;

/// Flag of [`Facts`]: changes nothing.
pub const READONLY: u16 = 1;
/// Flag of [`Facts`]: may change keys.
pub const WRITE: u16 = 1 << 1;
/// Flag of [`Facts`]: refused when Redis is out of memory.
pub const DENYOOM: u16 = 1 << 2;
/// Flag of [`Facts`]: may block its connection.
pub const BLOCKING: u16 = 1 << 3;
/// Flag of [`Facts`]: publish and subscribe.
pub const PUBSUB: u16 = 1 << 4;
/// Flag of [`Facts`]: not allowed in scripts.
pub const NOSCRIPT: u16 = 1 << 5;
/// Flag of [`Facts`]: administration.
pub const ADMIN: u16 = 1 << 6;
/// Flag of [`Facts`]: not allowed in MULTI.
pub const NO_MULTI: u16 = 1 << 7;
/// Flag of [`Facts`]: where the keys are depends on the arguments.
pub const MOVABLEKEYS: u16 = 1 << 8;

/// Longest command name that is looked up, in bytes; a longer one is unknown.
const NAME_BYTES_MAX: usize = 32;

/// What Redis says about a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Name in capitals.
    pub name: &'static str,
    /// Number of arguments with the name; negative: at least so many.
    pub arity: i32,
    /// [`READONLY`], [`WRITE`], …
    pub flags: u16,
    /// Position of the first key; 0: no key at a fixed position.
    pub first_key: i32,
    /// Position of the last key; negative: counted from the end.
    pub last_key: i32,
    /// Distance between keys.
    pub step: i32,
}

const fn fact(
    name: &'static str,
    arity: i32,
    flags: u16,
    first_key: i32,
    last_key: i32,
    step: i32,
) -> Facts {
    Facts {
        name,
        arity,
        flags,
        first_key,
        last_key,
        step,
    }
}

impl Facts {
    /// Whether all of `flags` are set.
    #[must_use]
    pub const fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// Whether a command of `count` arguments, name included, has as many as it must.
    #[must_use]
    pub fn arity_fits(&self, count: usize) -> bool {
        let needed = usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX);
        if self.arity < 0 {
            count >= needed
        } else {
            count == needed
        }
    }
}

/// A command that the front answers by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// PING.
    Ping,
    /// ECHO.
    Echo,
    /// HELLO.
    Hello,
    /// AUTH.
    Auth,
    /// SELECT.
    Select,
    /// QUIT.
    Quit,
    /// RESET.
    Reset,
    /// CLIENT.
    Client,
    /// MULTI.
    Multi,
    /// EXEC.
    Exec,
    /// DISCARD.
    Discard,
    /// UNWATCH.
    Unwatch,
}

/// A command that needs the client's own connection to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// May wait for another client.
    Blocking,
    /// WAIT: about what was written before on the store.
    Wait,
    /// Subscriptions.
    Subscribe,
    /// MONITOR.
    Monitor,
    /// WATCH: from here to EXEC, DISCARD or UNWATCH.
    Watch,
    /// Ends a script: without a barrier, as nothing else is executed before that.
    Kill,
}

/// What to do with one command as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Acknowledge with `+OK` as soon as it is durable in the devices.
    Update,
    /// Send it to the store and wait for the reply. A read may be answered in a faster way (`docs/spec/reads.md`).
    Bypass {
        /// It changes nothing, so it may be repeated.
        read_only: bool,
        /// It must not be packed together with others (not allowed in scripts, or unknown).
        alone: bool,
    },
    /// Answer it here.
    Local(Local),
    /// Barrier, then the client's own connection to the store.
    Pass(Pass),
    /// Not through the front; the text says why and what to do.
    Refuse(&'static str),
}

/// The action for a command, and what Redis says about it if it is known.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// What to do.
    pub action: Action,
    /// Facts; `None` for a command that Redis 7.0 does not have (a module's, or a newer one).
    pub facts: Option<&'static Facts>,
    /// What its first argument is, if it has one.
    pub sub: Sub,
}

/// What the first argument of a command is.
#[derive(Clone, Copy, Debug)]
pub enum Sub {
    /// No subcommand, or there is none.
    No,
    /// This subcommand.
    Known(&'static Facts),
    /// A subcommand that Redis 7.0 does not have.
    Unknown,
}

struct Entry {
    facts: &'static Facts,
    /// Its subcommands.
    subcommands: &'static [Facts],
    decision: Decision,
    assume_ok: bool,
}

/// The matrix with the operator's additions, ready for look-ups.
pub struct Table {
    entries: FxHashMap<&'static [u8], Entry>,
}

impl Table {
    /// The matrix, with the commands that the operator wants acknowledged early as well
    /// (`--assume-ok`, names in any case).
    ///
    /// # Errors
    /// [`AssumeError`] names the first command that cannot be listed, and says why.
    pub fn new<S: AsRef<str>>(assume_ok: &[S]) -> Result<Table, AssumeError> {
        let assumed = assume::validate(assume_ok)?;
        let entries = FACTS
            .iter()
            .map(|facts| {
                let assume_ok = assumed.contains(&facts.name);
                (
                    facts.name.as_bytes(),
                    Entry {
                        facts,
                        subcommands: subcommands_of(facts.name),
                        decision: decide::decide(facts),
                        assume_ok,
                    },
                )
            })
            .collect();
        Ok(Table { entries })
    }

    /// What to do with a command (which has at least a name).
    #[must_use]
    pub fn verdict(&self, arguments: &Arguments<'_>) -> Verdict {
        let name = arguments.get(0);
        let mut upper = [0u8; NAME_BYTES_MAX];
        let entry = upper.get_mut(..name.len()).and_then(|upper| {
            upper.copy_from_slice(name);
            upper.make_ascii_uppercase();
            self.entries.get(&*upper)
        });
        let Some(entry) = entry else {
            return Verdict {
                action: Action::Bypass {
                    read_only: false,
                    alone: true,
                },
                facts: None,
                sub: Sub::No,
            };
        };
        let facts = entry.facts;
        let sub = if entry.subcommands.is_empty() || arguments.len() < 2 {
            Sub::No
        } else {
            let name = |sub: &&Facts| {
                let own = sub.name.get(facts.name.len() + 1..);
                own.is_some_and(|own| arguments.is(1, own))
            };
            let found = entry.subcommands.iter().find(name);
            found.map_or(Sub::Unknown, Sub::Known)
        };
        let action = if entry.assume_ok
            && facts.arity_fits(arguments.len())
            && assume::usual(facts.name, arguments)
        {
            Action::Update
        } else {
            entry.decision.rule.action(facts, arguments)
        };
        Verdict {
            action,
            facts: Some(facts),
            sub,
        }
    }
}

/// The subcommands of this command.
fn subcommands_of(name: &str) -> &'static [Facts] {
    let own = |sub: &Facts| {
        sub.name
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('|'))
    };
    let begin = SUBCOMMANDS.iter().position(own).unwrap_or(0);
    let count = SUBCOMMANDS[begin..]
        .iter()
        .take_while(|sub| own(sub))
        .count();
    &SUBCOMMANDS[begin..begin + count]
}

impl Verdict {
    /// Whether the number of arguments is one that Redis takes.
    #[must_use]
    pub fn arity_fits(&self, arguments: &Arguments<'_>) -> bool {
        self.misfit(arguments).is_none()
    }

    /// The command, or the subcommand, that does not take so many arguments.
    #[must_use]
    pub fn misfit(&self, arguments: &Arguments<'_>) -> Option<&'static Facts> {
        let sub = match self.sub {
            Sub::Known(sub) => Some(sub),
            Sub::No | Sub::Unknown => None,
        };
        sub.or(self.facts)
            .filter(|facts| !facts.arity_fits(arguments.len()))
    }
}

/// The keys of a command that only reads, if their places are fixed and it has any.
#[must_use]
pub fn read_keys<'a>(
    facts: &Facts,
    arguments: &Arguments<'a>,
) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
    let count = i32::try_from(arguments.len()).ok()?;
    let last = if facts.last_key < 0 {
        count + facts.last_key
    } else {
        facts.last_key
    };
    let first = usize::try_from(facts.first_key).ok()?;
    let last = usize::try_from(last).ok()?;
    let step = usize::try_from(facts.step).ok()?;
    let known = facts.has(READONLY) && !facts.has(MOVABLEKEYS);
    let arguments = *arguments;
    (known && first > 0 && step > 0 && (first..arguments.len()).contains(&last)).then(move || {
        (first..=last)
            .step_by(step)
            .map(move |at| arguments.get(at))
    })
}

/// The hash of the one key of a command (`key_hash` of the wire header); 0 if it has none, several,
/// or its place is not fixed.
#[must_use]
pub fn key_hash(facts: &Facts, arguments: &Arguments<'_>) -> u64 {
    let Ok(first) = usize::try_from(facts.first_key) else {
        return 0;
    };
    if first == 0
        || facts.first_key != facts.last_key
        || facts.has(MOVABLEKEYS)
        || first >= arguments.len()
    {
        return 0;
    }
    pmnet_wire::command::key_hash(arguments.get(first))
}
