//! The command matrix: the front's treatment of every command of Redis.
//!
//! Purpose: decides whether a command is acknowledged early, goes to the store, is answered by the front, needs its
//! client's own connection, or is refused. `docs/use/commands.md` is generated from this table. Facts about commands
//! come from the store, which is asked once for each of its processes ([`Learned`]). Until the store has answered, and
//! with an embedded store, the facts are those of [`FACTS`]. The module `decide` makes the decisions from these facts,
//! or by name if the facts do not describe a command well enough. The rule for early acknowledgement, which also checks
//! the arguments, is [`pmnet_wire::promise`] ([`early_ack`]). A command of an unusual form goes to Redis, so that Redis
//! gives its own error. Not allowed here: state that outlives a command.

mod assume;
mod decide;
mod early;
mod facts;
pub(crate) mod keys;
mod learned;
mod matrix;
mod subcommands;

use rustc_hash::FxHashMap;

pub use assume::{ASSUMABLE, AssumeError};
pub use early::{early_ack, touches_reserved};
pub use facts::{FACTS, SERVER_VERSION};
pub use keys::{KeySpec, keys};
pub(crate) use keys::{Named, named, sort_options};
pub use learned::{LearnError, Learned};
pub use matrix::guide_markdown;
pub use subcommands::SUBCOMMANDS;

use decide::{Decision, Rule};
use pmnet_resp::Arguments;

/// Flag of [`Facts`]: the command changes nothing.
pub const READONLY: u32 = 1;
/// Flag of [`Facts`]: the command may change keys.
pub const WRITE: u32 = 1 << 1;
/// Flag of [`Facts`]: Redis refuses the command when it is out of memory.
pub const DENYOOM: u32 = 1 << 2;
/// Flag of [`Facts`]: the command may block its connection.
pub const BLOCKING: u32 = 1 << 3;
/// Flag of [`Facts`]: the command is about publishing or subscribing.
pub const PUBSUB: u32 = 1 << 4;
/// Flag of [`Facts`]: the command is not allowed in scripts.
pub const NOSCRIPT: u32 = 1 << 5;
/// Flag of [`Facts`]: the command is for administration.
pub const ADMIN: u32 = 1 << 6;
/// Flag of [`Facts`]: the command is not allowed in MULTI.
pub const NO_MULTI: u32 = 1 << 7;
/// Flag of [`Facts`]: the places of the keys depend on the arguments.
pub const MOVABLEKEYS: u32 = 1 << 8;

/// Flag of learned [`Facts`]: the command belongs to a module.
pub const MODULE: u32 = 1 << 9;
/// Flag of learned [`Facts`]: the command may send something to replicas although it is not a write.
pub const MAY_REPLICATE: u32 = 1 << 10;
/// Flag of learned [`Facts`]: the command is for the store's own use.
pub const INTERNAL: u32 = 1 << 11;
/// Flag of learned [`Facts`]: the command sets or uses the state of its connection.
pub const STATE: u32 = 1 << 12;
/// Flag of learned [`Facts`]: two processes with the same data may answer the command differently.
pub const NONDETERMINISTIC: u32 = 1 << 13;
/// Flag of learned [`Facts`]: the command has keys, but the store does not describe all their places.
pub const OPAQUE: u32 = 1 << 14;
/// Flag of learned [`Facts`]: this program does not know the command by name.
pub const NEW: u32 = 1 << 15;

/// Longest command name that is looked up, in bytes. A command with a longer name is unknown.
const NAME_BYTES_MAX: usize = 64;

/// Redis's description of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// Name of the command, in capitals.
    pub name: &'static str,
    /// Number of arguments, including the name. A negative arity means that its absolute value is the minimum.
    pub arity: i32,
    /// Flags: [`READONLY`], [`WRITE`], …
    pub flags: u32,
    /// Position of the first key among the arguments; 0: no key at a fixed position.
    pub first_key: i32,
    /// Position of the last key; a negative position counts from the end.
    pub last_key: i32,
    /// Distance between two neighbouring keys.
    pub step: i32,
    /// The places of the keys, if the command is [`NEW`].
    pub keys: &'static [KeySpec],
}

const fn fact(
    name: &'static str,
    arity: i32,
    flags: u32,
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
        keys: &[],
    }
}

impl Facts {
    /// Whether all of `flags` are set.
    #[must_use]
    pub const fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Whether a [`NEW`] command names keys, at known or unknown places.
    #[must_use]
    pub const fn names_keys(&self) -> bool {
        !self.keys.is_empty() || self.has(OPAQUE)
    }

    /// Whether `count` arguments, including the name, are a valid number for the command.
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

/// A command that the front answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// The command PING.
    Ping,
    /// The command ECHO.
    Echo,
    /// The command HELLO.
    Hello,
    /// The command AUTH.
    Auth,
    /// The command SELECT.
    Select,
    /// The command QUIT.
    Quit,
    /// The command RESET.
    Reset,
    /// The command CLIENT.
    Client,
    /// The command MULTI.
    Multi,
    /// The command EXEC.
    Exec,
    /// The command DISCARD.
    Discard,
    /// The command UNWATCH.
    Unwatch,
}

/// A command that needs the client's own connection to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// A command that may wait for another client.
    Blocking,
    /// WAIT or WAITAOF, whose reply is about the earlier writes that the store has executed.
    Wait,
    /// Commands about subscriptions.
    Subscribe,
    /// The command MONITOR.
    Monitor,
    /// The command WATCH. All commands up to EXEC, DISCARD or UNWATCH are then passed, too.
    Watch,
    /// SCRIPT KILL or FUNCTION KILL. The command is sent without a barrier, because no other command is executed before
    /// the script ends.
    Kill,
    /// A command that sets or uses connection state that only the store knows.
    State,
    /// A command that may check the rights of its user itself, of a client that does not have all rights.
    User,
}

/// The front's treatment of one command as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Acknowledge the command with `+OK` as soon as it is durable in the devices.
    Update,
    /// Send the command to the store and wait for the reply. Reads have faster paths (`docs/spec/reads.md`).
    Bypass {
        /// Whether the command changes nothing, so that it may be repeated.
        read_only: bool,
        /// Whether the command must not be packed with others (it is not allowed in scripts, or is unknown).
        alone: bool,
    },
    /// The front answers the command.
    Local(Local),
    /// Send the command on the client's own connection to the store, after a barrier.
    Pass(Pass),
    /// Refuse the command. The text gives the reason and an alternative.
    Refuse(&'static str),
}

/// The action for a command, and Redis's description of the command if it is known.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// The front's treatment of the command.
    pub action: Action,
    /// Redis's description; `None` for a command that the store is not known to have. For a [`NEW`] command
    /// with a known subcommand, the description of the subcommand.
    pub facts: Option<&'static Facts>,
    /// The meaning of the first argument, if there is one.
    pub sub: Sub,
}

/// The meaning of the first argument of a command.
#[derive(Clone, Copy, Debug)]
pub enum Sub {
    /// The command has no subcommands, or no argument.
    No,
    /// A known subcommand.
    Known(&'static Facts),
    /// An unknown subcommand: the store is not known to have it.
    Unknown,
}

struct Entry {
    facts: &'static Facts,
    /// The command's subcommands.
    subcommands: Vec<&'static Facts>,
    decision: Decision,
    assume_ok: bool,
}

impl Entry {
    fn new(
        facts: &'static Facts,
        subcommands: Vec<&'static Facts>,
        assumed: &[&'static str],
    ) -> Entry {
        Entry {
            facts,
            subcommands,
            decision: decide::decide(facts),
            assume_ok: assumed.contains(&facts.name),
        }
    }

    /// Whether the command stays in the table if the store does not name it. Only plain reads and writes leave the
    /// table.
    fn is_ours(&self) -> bool {
        !matches!(self.decision.rule, Rule::Read | Rule::Write)
    }
}

/// The matrix with the operator's additions, as a look-up table.
pub struct Table {
    entries: FxHashMap<&'static [u8], Entry>,
    /// The operator's additions.
    assumed: Vec<&'static str>,
}

impl Table {
    /// Makes the matrix for the commands of [`FACTS`]. `assume_ok`: further commands to acknowledge early
    /// (`--assume-ok`, in upper or lower case).
    ///
    /// # Errors
    /// [`AssumeError`] names the first command that cannot be listed, with the reason.
    pub fn new<S: AsRef<str>>(assume_ok: &[S]) -> Result<Table, AssumeError> {
        Ok(Table::compiled(assume::validate(assume_ok)?))
    }

    fn compiled(assumed: Vec<&'static str>) -> Table {
        let entry = |facts: &'static Facts| {
            let subcommands = subcommands_of(facts.name).iter().collect();
            let entry = Entry::new(facts, subcommands, &assumed);
            (facts.name.as_bytes(), entry)
        };
        let entries = FACTS.iter().map(entry).collect();
        Table { entries, assumed }
    }

    /// Returns the matrix for the compiled facts, with the operator's additions to this matrix.
    #[must_use]
    pub fn forgotten(&self) -> Table {
        Table::compiled(self.assumed.clone())
    }

    /// Returns the matrix for a store's commands, with the operator's additions to this matrix.
    #[must_use]
    pub fn with(&self, learned: &Learned) -> Table {
        let mut table = self.forgotten();
        table
            .entries
            .retain(|name, entry| entry.is_ours() || learned.has(name));
        for command in learned.commands() {
            let name = command.facts.name.as_bytes();
            let mut subcommands = command.subcommands.clone();
            if let Some(own) = table.entries.get_mut(name)
                && matches!(own.decision.rule, Rule::Local(_))
                && subcommands.is_empty()
            {
                // An older store does not describe subcommands, so the compiled subcommands stay.
                subcommands = std::mem::take(&mut own.subcommands);
            }
            let entry = Entry::new(command.facts, subcommands, &table.assumed);
            table.entries.insert(name, entry);
        }
        table
    }

    /// Whether the store's error for a command that is not allowed in MULTI names that command. The error of Valkey 9
    /// names the command. A store is recognised as Valkey 9 because it does not allow CLIENT REPLY in MULTI.
    #[must_use]
    pub fn names_what_is_not_allowed(&self) -> bool {
        let client = self.entries.get(&b"CLIENT"[..]);
        client.is_some_and(|client| {
            let mut subcommands = client.subcommands.iter();
            subcommands.any(|sub| sub.name == "CLIENT|REPLY" && sub.has(NO_MULTI))
        })
    }

    /// Returns the verdict on a command, which must have at least a name.
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
        let mut facts = entry.facts;
        let mut sub = if entry.subcommands.is_empty() || arguments.len() < 2 {
            Sub::No
        } else {
            let name = |sub: &&'static Facts| {
                let own = sub.name.get(facts.name.len() + 1..);
                own.is_some_and(|own| arguments.is(1, own))
            };
            let found = entry.subcommands.iter().copied().find(name);
            found.map_or(Sub::Unknown, Sub::Known)
        };
        if let (Rule::Learned, Sub::Known(known)) = (entry.decision.rule, sub) {
            (facts, sub) = (known, Sub::No);
        }
        let action = if entry.assume_ok
            && facts.arity_fits(arguments.len())
            && assume::usual(facts.name, arguments)
        {
            Action::Update
        } else {
            entry.decision.rule.action(facts, sub, arguments)
        };
        Verdict {
            action,
            facts: Some(facts),
            sub,
        }
    }
}

/// Returns the compiled subcommands of this command.
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
    /// Whether the store is known to have this command, and the subcommand if there is one.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.facts.is_some() && !matches!(self.sub, Sub::Unknown)
    }

    /// Whether Redis accepts this number of arguments.
    #[must_use]
    pub fn arity_fits(&self, arguments: &Arguments<'_>) -> bool {
        self.misfit(arguments).is_none()
    }

    /// Returns the command, or its subcommand, if Redis does not accept this number of arguments.
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

/// Returns the keys of a command that only reads, if it has keys and their places are known.
#[must_use]
pub fn read_keys<'a>(
    facts: &Facts,
    arguments: &Arguments<'a>,
) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
    if !facts.has(READONLY) {
        return None;
    }
    if facts.has(NEW) {
        return named(facts, arguments).filter(|_| !facts.keys.is_empty());
    }
    let count = i32::try_from(arguments.len()).ok()?;
    let last = if facts.last_key < 0 {
        count + facts.last_key
    } else {
        facts.last_key
    };
    let first = usize::try_from(facts.first_key).ok()?;
    let last = usize::try_from(last).ok()?;
    let step = usize::try_from(facts.step).ok()?;
    let known = !facts.has(MOVABLEKEYS);
    (known && first > 0 && step > 0 && (first..arguments.len()).contains(&last))
        .then(|| Named::fixed(*arguments, first, last, step))
}

/// Returns the hash of the only key of a command (`key_hash` of the wire header). Returns 0 if the command has no key
/// or several keys, or if the places of its keys are unknown.
#[must_use]
pub fn key_hash(facts: &Facts, arguments: &Arguments<'_>) -> u64 {
    if facts.has(NEW) {
        // A command of a module may use other keys than those that it declares.
        let says_all = !facts.has(MODULE) && facts.keys.len() == 1;
        let mut keys = named(facts, arguments).filter(|_| says_all);
        let only = keys.as_mut().and_then(|keys| keys.next());
        let more = keys.is_some_and(|mut keys| keys.next().is_some());
        return only
            .filter(|_| !more)
            .map_or(0, pmnet_wire::command::key_hash);
    }
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
