//! The commands of a store, from its reply to `COMMAND`: facts about newer versions and modules.
//!
//! Learned facts, names and key specifications are kept until this process ends. Each learned value is kept once, for
//! all threads. So a look-up can return a static reference. The number of kept values is small, because a store that is
//! asked again describes the same commands. Beyond [`KEPT_MAX`] nothing more is learned. This module does not decide
//! how a command is treated.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use pmnet_resp::read::{elements, integer, text};
use pmnet_wire::guard::keeps_state;

use super::keys::{Begin, Find};
use super::{
    ADMIN, BLOCKING, DENYOOM, FACTS, Facts, INTERNAL, KeySpec, MAY_REPLICATE, MODULE, MOVABLEKEYS,
    NAME_BYTES_MAX, NEW, NO_MULTI, NONDETERMINISTIC, NOSCRIPT, OPAQUE, PUBSUB, READONLY, STATE,
    SUBCOMMANDS, WRITE, subcommands_of,
};

/// Maximum number of commands and subcommands of one store. Redis 8 with its modules has about 700.
const COMMANDS_MAX: usize = 8192;
/// Maximum number of key specifications of one command.
const SPECS_MAX: usize = 16;
/// Maximum number of kept names, over all stores. The number of kept specifications, and the number of kept facts, have
/// the same bound.
const KEPT_MAX: usize = 32_768;

/// The flags, each with the name that Redis gives it.
const FLAGS: [(&str, u32); 13] = [
    ("readonly", READONLY),
    ("write", WRITE),
    ("denyoom", DENYOOM),
    ("blocking", BLOCKING),
    ("pubsub", PUBSUB),
    ("noscript", NOSCRIPT),
    ("admin", ADMIN),
    ("no_multi", NO_MULTI),
    ("movablekeys", MOVABLEKEYS),
    ("module", MODULE),
    ("may_replicate", MAY_REPLICATE),
    ("internal", INTERNAL),
    // The name of this flag before Redis 7.
    ("random", NONDETERMINISTIC),
];
/// The flags that the compiled facts have for a command that is known by name.
const COMPILED_FLAGS: u32 = ((1 << 9) - 1) | INTERNAL;

/// Prefix of commands of search modules. The descriptions by such a module are wrong: they call an index a key, name no
/// documents, and give the flag of a read to many commands that write.
const SEARCH_PREFIX: &str = "FT.";
/// Commands of search modules that only read.
const SEARCHES: [&str; 15] = [
    "FT._LIST",
    "FT.AGGREGATE",
    "FT.DICTDUMP",
    "FT.EXPLAIN",
    "FT.EXPLAINCLI",
    "FT.GET",
    "FT.HYBRID",
    "FT.INFO",
    "FT.MGET",
    "FT.PROFILE",
    "FT.SEARCH",
    "FT.SPELLCHECK",
    "FT.SUGGET",
    "FT.SYNDUMP",
    "FT.TAGVALS",
];

/// Why the reply of a store is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LearnError {
    /// The reply is not a list of commands.
    #[error("it is no list of commands")]
    Form,
    /// The reply has too many commands.
    #[error("it has more than {COMMANDS_MAX} commands")]
    Many,
    /// This process has learned too much from all stores together.
    #[error(
        "stores have said more than {KEPT_MAX} different things of commands since this process began"
    )]
    Full,
}

/// The commands of a store.
pub struct Learned {
    commands: Vec<Command>,
    names: HashSet<&'static [u8]>,
}

/// A command with its subcommands.
pub(super) struct Command {
    pub(super) facts: &'static Facts,
    pub(super) subcommands: Vec<&'static Facts>,
}

impl Learned {
    /// Parses the reply to `COMMAND` (RESP2).
    ///
    /// # Errors
    /// [`LearnError`] if the reply cannot be used.
    pub fn parse(reply: &[u8]) -> Result<Learned, LearnError> {
        let mut learned = Learned {
            commands: Vec::new(),
            names: HashSet::new(),
        };
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = COMMANDS_MAX;
        for row in elements(reply).ok_or(LearnError::Form)? {
            left = left.checked_sub(1).ok_or(LearnError::Many)?;
            let row = Row::parse(row).ok_or(LearnError::Form)?;
            let mut subs = Vec::with_capacity(row.subcommands.len());
            for sub in &row.subcommands {
                left = left.checked_sub(1).ok_or(LearnError::Many)?;
                subs.push(Row::parse(sub).ok_or(LearnError::Form)?);
            }
            // A name of this length is never looked up.
            if row.name.len() > NAME_BYTES_MAX {
                continue;
            }
            let command = kept.command(&row, &subs).ok_or(LearnError::Full)?;
            learned.names.insert(command.facts.name.as_bytes());
            learned.commands.push(command);
        }
        Ok(learned)
    }

    /// Returns the number of commands, and the number of those that this program does not know by name.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let new = self
            .commands
            .iter()
            .filter(|command| command.facts.has(NEW));
        (self.commands.len(), new.count())
    }

    pub(super) fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// Whether the store has a command of this name, which must be in capitals.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.names.contains(name)
    }
}

/// A row of the reply: the description of one command or subcommand.
struct Row<'a> {
    /// Name in capitals.
    name: String,
    arity: i32,
    flags: u32,
    /// First key, last key and step, as in [`Facts`].
    fixed: [i32; 3],
    specs: Vec<Spec>,
    subcommands: Vec<&'a [u8]>,
    /// Whether the reply is from a version before Redis 7. A reply before Redis 7 does not describe blocking,
    /// subcommands or modules.
    is_old: bool,
}

/// A key specification before it is interned.
struct Spec {
    begin: Word,
    find: Find,
}

enum Word {
    Index(usize),
    Keyword(String, i32),
}

impl<'a> Row<'a> {
    fn parse(row: &'a [u8]) -> Option<Row<'a>> {
        let columns = elements(row)?;
        let number = |at: usize| i32::try_from(integer(columns.get(at)?)?).ok();
        let words = |at: usize| columns.get(at).and_then(|list| elements(list));
        let name = word(columns.first()?)?.to_ascii_uppercase();
        let mut flags = 0;
        for flag in words(2)? {
            let flag = text(flag)?;
            let known = FLAGS.iter().find(|(name, _)| name.as_bytes() == flag);
            flags |= known.map_or(0, |(_, flag)| *flag);
        }
        let has = |at: usize, word: &[u8]| {
            let list = words(at).unwrap_or_default();
            list.iter().any(|found| text(found) == Some(word))
        };
        if has(6, b"@connection") {
            flags |= STATE;
        }
        if has(7, b"nondeterministic_output") {
            flags |= NONDETERMINISTIC;
        }
        let fixed = [number(3)?, number(4)?, number(5)?];
        let mut specs = Vec::new();
        match words(8) {
            Some(found) => {
                let module = flags & MODULE != 0;
                for spec in found.into_iter().take(SPECS_MAX + 1) {
                    match Spec::parse(spec, module)? {
                        Parsed::Whole(_) if specs.len() == SPECS_MAX => flags |= OPAQUE,
                        Parsed::Whole(spec) => specs.push(spec),
                        Parsed::NoKey => {}
                        Parsed::Part => flags |= OPAQUE,
                    }
                }
            }
            // The reply describes only fixed places of keys. A command that this program does not know by name counts
            // as a command of a module.
            None if flags & MOVABLEKEYS != 0 => flags |= MODULE | OPAQUE,
            None => {
                flags |= MODULE;
                specs.extend(Spec::fixed(fixed));
            }
        }
        if name.starts_with(SEARCH_PREFIX) {
            let reads = SEARCHES.contains(&name.as_str());
            flags = flags & !(READONLY | WRITE) | OPAQUE | if reads { READONLY } else { WRITE };
            specs.clear();
        }
        Some(Row {
            name,
            arity: number(1)?,
            flags,
            fixed,
            specs,
            subcommands: words(9).unwrap_or_default(),
            is_old: columns.get(9).is_none(),
        })
    }

    /// Whether the command may set state of its connection that the reply does not describe.
    fn may_set_state(&self) -> bool {
        let has = |flag: u32| self.flags & flag != 0;
        let keys = !self.specs.is_empty() || has(OPAQUE);
        has(STATE) || (has(NOSCRIPT) && !has(WRITE | ADMIN | BLOCKING | PUBSUB) && !keys)
    }
}

/// The result of parsing a key specification.
enum Parsed {
    /// The specification describes places of keys.
    Whole(Spec),
    /// The specification is about an argument that is not a key.
    NoKey,
    /// The specification does not describe all places of the keys.
    Part,
}

impl Spec {
    fn parse(spec: &[u8], module: bool) -> Option<Parsed> {
        let columns = elements(spec)?;
        let flags = elements(value(&columns, b"flags")?)?;
        let has = |flag: &[u8]| flags.iter().any(|found| text(found) == Some(flag));
        if has(b"not_key") {
            return Some(Parsed::NoKey);
        }
        // If a module finds keys by its own code, the reply names only the first key.
        if has(b"incomplete") || (module && has(b"variable_flags")) {
            return Some(Parsed::Part);
        }
        let (begin_kind, begin) = part(&columns, b"begin_search")?;
        let (find_kind, find) = part(&columns, b"find_keys")?;
        let number = |spec: &[&[u8]], name| i32::try_from(integer(value(spec, name)?)?).ok();
        let place = |spec: &[&[u8]], name| usize::try_from(number(spec, name)?).ok();
        let begin = match begin_kind {
            b"index" => Word::Index(place(&begin, b"index")?),
            b"keyword" => {
                let keyword = word(value(&begin, b"keyword")?)?.to_owned();
                Word::Keyword(keyword, number(&begin, b"startfrom")?)
            }
            _ => return Some(Parsed::Part),
        };
        let find = match find_kind {
            b"range" => Find::Range {
                last: number(&find, b"lastkey")?,
                step: place(&find, b"keystep")?,
                limit: place(&find, b"limit")?,
            },
            b"keynum" => Find::Number {
                at: place(&find, b"keynumidx")?,
                first: place(&find, b"firstkey")?,
                step: place(&find, b"keystep")?,
            },
            _ => return Some(Parsed::Part),
        };
        Some(Parsed::Whole(Spec { begin, find }))
    }

    /// Returns the specification for keys at fixed places, if the command has such keys.
    fn fixed([first, last, step]: [i32; 3]) -> Option<Spec> {
        let at = usize::try_from(first).ok().filter(|first| *first > 0)?;
        let last = if last < 0 {
            last
        } else {
            last.saturating_sub(first)
        };
        let step = usize::try_from(step).ok().filter(|step| *step > 0)?;
        let limit = 0;
        Some(Spec {
            begin: Word::Index(at),
            find: Find::Range { last, step, limit },
        })
    }
}

/// Returns the value of this name in a list of names and values.
fn value<'a>(columns: &[&'a [u8]], name: &[u8]) -> Option<&'a [u8]> {
    let at = columns.iter().position(|word| text(word) == Some(name))?;
    columns.get(at + 1).copied()
}

/// Returns the kind of this part of a specification, and its values.
fn part<'a>(columns: &[&'a [u8]], name: &[u8]) -> Option<(&'a [u8], Vec<&'a [u8]>)> {
    let part = elements(value(columns, name)?)?;
    let spec = value(&part, b"spec").and_then(elements);
    Some((text(value(&part, b"type")?)?, spec.unwrap_or_default()))
}

/// Returns a name if it consists of printable ASCII.
fn word(reply: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(text(reply)?).ok()?;
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    plain.then_some(text)
}

static KEPT: Mutex<Kept> = Mutex::new(Kept {
    names: None,
    specs: None,
    facts: None,
});

/// Interned names, specifications and facts. Each value is kept once.
struct Kept {
    names: Option<HashSet<&'static str>>,
    specs: Option<HashSet<&'static [KeySpec]>>,
    facts: Option<HashSet<&'static Facts>>,
}

/// Returns the interned value that equals `value`. If there is no such value, adds it. `None`: the bound is reached.
fn keep<T: ?Sized + Hash + Eq>(
    all: &mut Option<HashSet<&'static T>>,
    value: &T,
    own: impl FnOnce() -> Box<T>,
) -> Option<&'static T> {
    let all = all.get_or_insert_default();
    if let Some(known) = all.get(value) {
        return Some(known);
    }
    (all.len() < KEPT_MAX).then(|| {
        let kept: &'static T = Box::leak(own());
        all.insert(kept);
        kept
    })
}

/// The source of a command's facts.
#[derive(Clone, Copy)]
enum Origin {
    /// The command is known by name.
    Compiled(&'static Facts),
    /// Only the store has described the command.
    Learned {
        /// Whether the command sets or uses the state of its connection.
        state: bool,
    },
}

impl Kept {
    fn command(&mut self, row: &Row<'_>, subs: &[Row<'_>]) -> Option<Command> {
        let name = row.name.as_str();
        let compiled = FACTS.iter().find(|facts| facts.name == name);
        if let Some(facts) = compiled.filter(|_| row.is_old) {
            let subcommands = subcommands_of(name).iter().collect();
            return Some(Command { facts, subcommands });
        }
        // If one subcommand of a command sets connection state, the other subcommands may use that state.
        let state = keeps_state(name.as_bytes()) || subs.iter().any(Row::may_set_state);
        let learned = Origin::Learned { state };
        let facts = self.facts(row, compiled.map_or(learned, Origin::Compiled))?;
        let mut subcommands = Vec::with_capacity(subs.len());
        for sub in subs {
            let own = sub.name.strip_prefix(name);
            // A look-up would not find a subcommand whose name has another form.
            if !own.is_some_and(|own| own.starts_with('|')) {
                continue;
            }
            let known = compiled.and_then(|_| SUBCOMMANDS.iter().find(|f| f.name == sub.name));
            // A subcommand without compiled facts is treated like its command.
            let origin = known.or(compiled).map_or(learned, Origin::Compiled);
            subcommands.push(self.facts(sub, origin)?);
        }
        Some(Command { facts, subcommands })
    }

    /// Returns the facts of a command; `None`: the bound is reached.
    fn facts(&mut self, row: &Row<'_>, origin: Origin) -> Option<&'static Facts> {
        let [first_key, last_key, step] = row.fixed;
        let mut facts = Facts {
            name: "",
            arity: row.arity,
            flags: row.flags & COMPILED_FLAGS,
            first_key,
            last_key,
            step,
            keys: &[],
        };
        if let Origin::Learned { state } = origin {
            let state = if state { STATE } else { 0 };
            facts.flags = row.flags | NEW | state;
            facts.keys = self.specs(&row.specs)?;
        }
        facts.name = match origin {
            Origin::Compiled(known) if known.name == row.name => known.name,
            _ => self.name(&row.name)?,
        };
        match origin {
            Origin::Compiled(known) if *known == facts => Some(known),
            _ => keep(&mut self.facts, &facts, || Box::new(facts)),
        }
    }

    fn name(&mut self, name: &str) -> Option<&'static str> {
        keep(&mut self.names, name, || name.into())
    }

    fn specs(&mut self, specs: &[Spec]) -> Option<&'static [KeySpec]> {
        let mut found = Vec::with_capacity(specs.len());
        for spec in specs {
            let begin = match &spec.begin {
                Word::Index(at) => Begin::Index(*at),
                Word::Keyword(word, from) => Begin::Keyword(self.name(word)?, *from),
            };
            let find = spec.find;
            found.push(KeySpec { begin, find });
        }
        keep(&mut self.specs, &found[..], || found.clone().into())
    }
}
