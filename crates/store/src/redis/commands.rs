//! Facts about a command that pmnet needs before it sends it to Redis.
//!
//! A command that would break the adaptor's own connection or transaction, or touch the protocol's records, is never
//! sent. If a command cannot run inside a Lua script, `execute` uses MULTI. The facts come from the server itself
//! (`COMMAND`), so they are right for Redis 6, 7 and Valkey.

use std::collections::HashMap;

use pmnet_wire::guard;

use pmnet_resp::parse_integer;
use pmnet_resp::read::{elements, integer, text};

/// Maximum number of arguments that a script passes to one command (Lua's C stack holds about 8,000).
pub const SCRIPT_ARGUMENTS_MAX: usize = 4000;
/// Longest command or subcommand name that is read, in bytes. A longer name counts as unknown.
const NAME_BYTES_MAX: usize = 1024;

/// Reason why a command with another name is refused: pmnet knows commands only by their original names.
const RENAMED: &str = "the store's configuration gave it this name (rename-command), and pmnet knows commands by their own names only: \
     send it to the Redis server itself";
/// Reason why a command with a very long name is refused.
const LONG_NAME: &str = "a name of a command has at most 1,024 bytes here";

/// Returns an upper-case copy of a name, or an empty copy if the text is too long to be a name.
#[must_use]
pub fn upper(name: &[u8]) -> Vec<u8> {
    if name.len() > NAME_BYTES_MAX {
        Vec::new()
    } else {
        name.to_ascii_uppercase()
    }
}

/// Subcommands of CLIENT that do not change the connection. Fronts use HELP, INFO and UNBLOCK to answer their own
/// clients. Fronts send LIST and KILL with some conditions to find out whether the store accepts these conditions.
const HARMLESS_CLIENT: [&[u8]; 5] = [b"HELP", b"INFO", b"KILL", b"LIST", b"UNBLOCK"];

/// Returns whether a command is harmless as a request, although no update may contain it.
#[must_use]
pub fn is_harmless(name: &[u8], arguments: &[&[u8]]) -> bool {
    let sub = arguments.get(1).copied().unwrap_or_default();
    name == b"CLIENT"
        && HARMLESS_CLIENT
            .iter()
            .any(|own| sub.eq_ignore_ascii_case(own))
}

/// Returns the reason why a command must never be sent over the adaptor's connection, or `None` if it may be sent.
#[must_use]
pub fn denied(name: &[u8]) -> Option<&'static str> {
    match name {
        b"MULTI" | b"EXEC" | b"DISCARD" | b"WATCH" | b"UNWATCH" => {
            Some("transactions are made by the front, this one would break the server's own")
        }
        b"RESET" | b"QUIT" | b"CLIENT" | b"HELLO" | b"AUTH" | b"SELECT" => {
            Some("it changes the connection, which is shared")
        }
        b"SUBSCRIBE" | b"UNSUBSCRIBE" | b"PSUBSCRIBE" | b"PUNSUBSCRIBE" | b"SSUBSCRIBE"
        | b"SUNSUBSCRIBE" | b"MONITOR" | b"WAIT" | b"WAITAOF" => {
            Some("it needs a connection of its own")
        }
        b"SYNC" | b"PSYNC" | b"REPLCONF" | b"REPLICAOF" | b"SLAVEOF" | b"FAILOVER"
        | b"SHUTDOWN" | b"DEBUG" | b"RESTORE-ASKING" => {
            Some("it is an operator's command: send it to Redis directly")
        }
        b"SWAPDB" => Some("it could swap away the records that make writes exactly once"),
        _ => None,
    }
}

/// Returns the reason why a command must not be an update (applied after its client got an OK), or `None` if it may be
/// an update.
#[must_use]
pub fn denied_as_effect(name: &[u8]) -> Option<&'static str> {
    denied(name).or(match name {
        b"CONFIG" | b"BGREWRITEAOF" | b"BGSAVE" | b"SAVE" | b"ACL" | b"LATENCY" | b"MODULE"
        | b"SLOWLOG" | b"MIGRATE" => Some("it administrates the server"),
        b"CLUSTER" | b"ASKING" | b"READONLY" | b"READWRITE" => Some("the store is not a cluster"),
        b"EVAL" | b"EVALSHA" | b"EVAL_RO" | b"EVALSHA_RO" | b"SCRIPT" | b"FUNCTION" | b"FCALL"
        | b"FCALL_RO" => Some("a script's reply cannot be known beforehand"),
        _ => None,
    })
}

/// Returns whether the command empties databases, so that the records must be protected from it.
#[must_use]
pub fn is_flush(name: &[u8]) -> bool {
    matches!(name, b"FLUSHALL" | b"FLUSHDB")
}

/// Returns the setting that this `CONFIG SET` changes, if promises depend on this setting and the change could weaken
/// them. `unlimited`: whether Redis has no memory limit.
#[must_use]
pub fn sets_guarded(arguments: &[&[u8]], unlimited: bool) -> Option<&'static str> {
    guard::sets_guarded(arguments.len(), |index| arguments[index], unlimited)
}

/// Commands of the modules of Redis 8 that change one key, or a few named keys. Like Redis's own commands, they take a
/// time that depends on the size of these keys.
const QUICK: &[&str] = &[
    "BF.ADD",
    "BF.INSERT",
    "BF.MADD",
    "CF.ADD",
    "CF.ADDNX",
    "CF.DEL",
    "CMS.INCRBY",
    "JSON.ARRAPPEND",
    "JSON.ARRINSERT",
    "JSON.ARRPOP",
    "JSON.ARRTRIM",
    "JSON.CLEAR",
    "JSON.DEL",
    "JSON.MERGE",
    "JSON.MSET",
    "JSON.NUMINCRBY",
    "JSON.SET",
    "JSON.STRAPPEND",
    "JSON.TOGGLE",
    "TDIGEST.ADD",
    "TOPK.ADD",
    "TOPK.INCRBY",
    "TS.ADD",
    "TS.DECRBY",
    "TS.INCRBY",
    "TS.MADD",
];

/// Returns whether a command of a module, with these arguments, is known to take no longer than the commands of Redis.
#[must_use]
pub fn is_quick(name: &[u8], arguments: &[&[u8]]) -> bool {
    let has = |text: &[u8]| {
        let within = |argument: &&[u8]| argument.windows(text.len()).any(|part| part == text);
        arguments.iter().any(within)
    };
    // A path that descends or filters may take longer than the size of its document suggests. A new filter may have any
    // size that the client chooses.
    let is_wide = name.starts_with(b"JSON.") && (has(b"..") || has(b"?("));
    let is_made = |word: &&[u8]| word.eq_ignore_ascii_case(b"CAPACITY");
    QUICK.iter().any(|quick| quick.as_bytes() == name) && !is_wide && !arguments.iter().any(is_made)
}

/// Returns whether the command runs code of a client that can write.
#[must_use]
pub fn runs_code(name: &[u8]) -> bool {
    matches!(name, b"EVAL" | b"EVALSHA" | b"FCALL")
}

/// Returns whether the command runs code of a client that may not write.
#[must_use]
pub fn runs_reading_code(name: &[u8]) -> bool {
    matches!(name, b"EVAL_RO" | b"EVALSHA_RO" | b"FCALL_RO")
}

/// Returns whether the command waits for data unless it runs in a transaction.
#[must_use]
pub fn blocks(name: &[u8], arguments: &[&[u8]]) -> bool {
    match name {
        b"BLPOP" | b"BRPOP" | b"BLMPOP" | b"BZMPOP" | b"BZPOPMIN" | b"BZPOPMAX" | b"BRPOPLPUSH"
        | b"BLMOVE" => true,
        b"XREAD" | b"XREADGROUP" => arguments.iter().any(|a| a.eq_ignore_ascii_case(b"BLOCK")),
        _ => false,
    }
}

/// The server's description of one command or subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spec {
    arity: i64,
    write: bool,
    admin: bool,
    module: bool,
    noscript: bool,
    movable: bool,
    first: i64,
    last: i64,
    step: i64,
    container: bool,
    /// Whether the command belongs to a module and may keep state in its connection, or use such state.
    state: bool,
    /// Whether the server's configuration has renamed the command. The server reports the new name.
    renamed: bool,
}

impl Spec {
    /// Returns whether the command changes keys although none of its arguments is a key.
    fn writes_unnamed(&self) -> bool {
        self.write && self.first == 0 && !self.movable && !self.container
    }

    /// Returns whether the command may be about its connection. A command counts as such if no script may run it, and
    /// it neither writes nor names keys.
    fn seems_to_keep_state(&self) -> bool {
        let keyless = self.first == 0 && !self.movable;
        self.noscript && !self.write && !self.admin && keyless
    }
}

/// Returns whether a command that writes without naming keys is known to leave pmnet's own keys unchanged.
fn knows_unnamed(name: &[u8]) -> bool {
    guard::spares_keys(name) || name == b"FUNCTION" || name.starts_with(b"FUNCTION|")
}

/// Returns whether the name can stand in the text of a script without escaping.
fn is_plain(name: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_graphic() && !b"'\"\\".contains(byte);
    name.iter().all(fits)
}

/// The commands of the server; empty if the server does not list its commands.
#[derive(Clone, Debug, Default)]
pub struct CommandTable {
    specs: HashMap<Vec<u8>, Spec>,
    /// Redis's name for the user that runs the commands.
    user: Vec<u8>,
}

impl CommandTable {
    /// Reads the reply of `COMMAND`. `None`: the reply does not have the expected form.
    #[must_use]
    pub fn parse(reply: &[u8]) -> Option<CommandTable> {
        let mut table = CommandTable::default();
        for row in elements(reply)? {
            table.add(row, None)?;
        }
        Some(table)
    }

    /// Returns this table for commands that Redis runs as the given user.
    #[must_use]
    pub fn of_user(mut self, user: &str) -> CommandTable {
        self.user = user.into();
        self
    }

    /// Returns whether this is an ACL command that could take rights away from pmnet's own user.
    #[must_use]
    pub fn changes_access(&self, arguments: &[&[u8]]) -> bool {
        let own = Some(&self.user[..]).filter(|user| !user.is_empty());
        guard::changes_access(arguments.len(), |index| arguments[index], own)
    }

    /// Adds a row of a reply. `asked`: the name, in capitals, about which the server was asked. Returns the name under
    /// which the row was added.
    fn add(&mut self, row: &[u8], asked: Option<&[u8]>) -> Option<Vec<u8>> {
        let columns = elements(row)?;
        let own = text(columns.first()?)?.to_ascii_uppercase();
        let name = asked.map_or(own.clone(), <[u8]>::to_vec);
        let renamed = name != own;
        let flags = elements(columns.get(2)?)?;
        let has = |flag: &[u8]| flags.iter().any(|f| text(f) == Some(flag));
        let categories = columns.get(6).and_then(|c| elements(c)).unwrap_or_default();
        let connection = categories.iter().any(|c| text(c) == Some(b"@connection"));
        let subcommands = columns.get(9).and_then(|c| elements(c)).unwrap_or_default();
        let mut spec = Spec {
            arity: integer(columns.get(1)?)?,
            write: has(b"write"),
            admin: has(b"admin"),
            // Redis 6.2 does not mark the commands of modules. None of the server's own commands has a dot in its name.
            module: has(b"module") || own.contains(&b'.'),
            noscript: has(b"noscript"),
            movable: has(b"movablekeys"),
            first: integer(columns.get(3)?)?,
            last: integer(columns.get(4)?)?,
            step: integer(columns.get(5)?)?,
            container: !subcommands.is_empty() && !renamed,
            state: false,
            renamed,
        };
        spec.state = spec.module && (connection || spec.seems_to_keep_state());
        self.specs.insert(name.clone(), spec);
        if renamed {
            return Some(name);
        }
        let mut family = Vec::with_capacity(subcommands.len());
        for subcommand in subcommands {
            // Names of subcommands have the form "config|get".
            family.push(self.add(subcommand, None)?);
        }
        // If one command of a family sets a state, the other commands of the family may use the state.
        let keeps = |member: &Vec<u8>| self.specs.get(member).is_some_and(|spec| spec.state);
        if family.iter().any(keeps) {
            for member in family.iter().chain([&name]) {
                if let Some(spec) = self.specs.get_mut(member) {
                    spec.state = true;
                }
            }
        }
        Some(name)
    }

    fn spec(&self, name: &[u8], arguments: &[&[u8]]) -> Option<Spec> {
        let spec = *self.specs.get(name)?;
        if spec.container && arguments.len() > 1 {
            let full = [name, b"|", &upper(arguments[1])].concat();
            return self.specs.get(&full).copied();
        }
        Some(spec)
    }

    /// Adds the server's description of a command from the reply to `COMMAND INFO`; `name` is in capitals. The table
    /// lacks a command that the server got later, or that the server's configuration has renamed.
    pub fn learn(&mut self, name: &[u8], reply: &[u8]) {
        for row in elements(reply).unwrap_or_default() {
            // The reply is null if the server has no command of this name.
            let _ = self.add(row, Some(name));
        }
    }

    /// Returns the reason why the command must not run, whatever its arguments are. The server's facts about the
    /// command decide.
    #[must_use]
    pub fn unfit(&self, name: &[u8], arguments: &[&[u8]]) -> Option<&'static str> {
        if name.is_empty() && arguments[0].len() > NAME_BYTES_MAX {
            return Some(LONG_NAME);
        }
        let spec = self.spec(name, arguments)?;
        if spec.renamed {
            return Some(RENAMED);
        }
        if guard::keeps_state(name) {
            return Some(guard::OWN_CONNECTION);
        }
        if spec.writes_unnamed() && !is_flush(name) && !knows_unnamed(name) {
            return Some(guard::UNNAMED_KEYS);
        }
        spec.state.then_some(guard::OWN_CONNECTION)
    }

    /// Returns the names of the commands that change keys without naming them, with subcommands after `|`. No script of
    /// a client may call these commands.
    #[must_use]
    pub fn unnamed_writers(&self) -> String {
        let mut names: Vec<&[u8]> = self
            .specs
            .iter()
            .filter(|(name, spec)| spec.writes_unnamed() && !knows_unnamed(name) && is_plain(name))
            .map(|(name, _)| &name[..])
            .collect();
        names.sort_unstable();
        String::from_utf8_lossy(&names.join(&b' ')).into_owned()
    }

    /// Returns the names of all commands, with a blank before and after each name.
    #[must_use]
    pub fn names(&self) -> String {
        let names = self
            .specs
            .keys()
            .filter(|name| is_plain(name) && !name.contains(&b'|'));
        let mut names: Vec<&[u8]> = names.map(|name| &name[..]).collect();
        names.sort_unstable();
        format!(" {} ", String::from_utf8_lossy(&names.join(&b' ')))
    }

    /// Returns whether the server has this command.
    #[must_use]
    pub fn has(&self, name: &[u8]) -> bool {
        self.specs.contains_key(name)
    }

    /// Returns whether the command is one of the server's own: not a command of a module, and not unknown.
    #[must_use]
    pub fn is_core(&self, name: &[u8]) -> bool {
        self.specs.get(name).is_some_and(|spec| !spec.module)
    }

    /// Returns whether Redis 6.2 could corrupt memory when a script runs this command. For this command, Redis 6.2
    /// reallocates the script's array of arguments for four arguments, and does not note that the array may have become
    /// smaller. A later command of the script with more arguments then writes beyond the end of the array, unless Redis
    /// uses jemalloc.
    fn corrupts_scripts(&self, name: &[u8]) -> bool {
        name == b"INCRBYFLOAT" && !self.specs.contains_key(&b"EXPIRETIME"[..])
    }

    /// Returns whether the command can run inside a script.
    #[must_use]
    pub fn scriptable(&self, name: &[u8], arguments: &[&[u8]]) -> bool {
        if matches!(name, b"EVAL" | b"EVALSHA") {
            return arguments.len() >= 3;
        }
        if name == b"SCRIPT" {
            let is = |own: &[u8]| arguments[1].eq_ignore_ascii_case(own);
            return (arguments.len() == 3 && is(b"LOAD"))
                || (arguments.len() >= 3 && is(b"EXISTS"));
        }
        if arguments.len() > SCRIPT_ARGUMENTS_MAX
            || blocks(name, arguments)
            || self.corrupts_scripts(name)
        {
            return false;
        }
        let count = i64::try_from(arguments.len()).unwrap_or(i64::MAX);
        self.spec(name, arguments).is_some_and(|spec| {
            let arity_fits = if spec.arity >= 0 {
                count == spec.arity
            } else {
                count >= -spec.arity
            };
            arity_fits && !spec.noscript
        })
    }

    /// Returns keys of a command that determine the command's slots in a Redis Cluster. For a command that runs a
    /// script, these are all keys that the command declares. For other commands, the first key is enough, since Redis
    /// refuses keys in several slots. The result is empty if the command has no keys, or if its keys are not known.
    #[must_use]
    pub fn slot_keys<'k, 'a>(&self, name: &[u8], arguments: &'k [&'a [u8]]) -> &'k [&'a [u8]] {
        let from = |first: usize, count: usize| {
            let rest = arguments.get(first..).unwrap_or_default();
            &rest[..count.min(rest.len())]
        };
        match name {
            b"EVAL" | b"EVALSHA" | b"EVAL_RO" | b"EVALSHA_RO" | b"FCALL" | b"FCALL_RO" => {
                let count = arguments.get(2).and_then(|count| parse_integer(count));
                let count = count.and_then(|count| usize::try_from(count).ok());
                from(3, count.unwrap_or(0))
            }
            b"ZUNION" | b"ZINTER" | b"ZDIFF" | b"ZINTERCARD" | b"SINTERCARD" | b"LMPOP"
            | b"ZMPOP" => from(2, 1),
            b"BLMPOP" | b"BZMPOP" => from(3, 1),
            b"XREAD" | b"XREADGROUP" => {
                let is_word = |word: &&[u8]| word.eq_ignore_ascii_case(b"STREAMS");
                let at = arguments.iter().position(is_word);
                at.map_or(&[], |at| from(at + 1, 1))
            }
            _ => match self.spec(name, arguments) {
                Some(spec) if spec.first > 0 => {
                    usize::try_from(spec.first).map_or(&[], |first| from(first, 1))
                }
                _ => &[],
            },
        }
    }

    /// Returns whether the command names a key of pmnet's own. The server reports which arguments are keys. If the
    /// server does not report the keys, every argument that looks like a key of pmnet's own counts.
    #[must_use]
    pub fn touches_records(&self, name: &[u8], arguments: &[&[u8]]) -> bool {
        let looks = |a: &&[u8]| a.starts_with(pmnet_wire::promise::RECORDS_PREFIX);
        if !arguments[1..].iter().any(looks) {
            return false;
        }
        match self.spec(name, arguments) {
            Some(spec) if !spec.movable && spec.first > 0 && spec.step > 0 => {
                let count = i64::try_from(arguments.len()).unwrap_or(i64::MAX);
                let last = if spec.last < 0 {
                    count + spec.last
                } else {
                    spec.last.min(count - 1)
                };
                let mut at = spec.first;
                while at <= last {
                    if usize::try_from(at).is_ok_and(|at| arguments.get(at).is_some_and(looks)) {
                        return true;
                    }
                    at += spec.step;
                }
                false
            }
            Some(spec) if !spec.movable && !spec.container && spec.first == 0 => false,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> CommandTable {
        let row = |name: &str,
                   arity: i64,
                   flags: &str,
                   first: i64,
                   last: i64,
                   step: i64,
                   subs: &str| {
            format!(
                "*10\r\n+{name}\r\n:{arity}\r\n{flags}:{first}\r\n:{last}\r\n:{step}\r\n*0\r\n*0\r\n*0\r\n{subs}"
            )
        };
        let get = row(
            "config|get",
            -3,
            "*2\r\n+admin\r\n+noscript\r\n",
            0,
            0,
            0,
            "*0\r\n",
        );
        let rows = [
            row("mset", -3, "*1\r\n+write\r\n", 1, -1, 2, "*0\r\n"),
            row("config", -2, "*0\r\n", 0, 0, 0, &format!("*1\r\n{get}")),
            row(
                "sort",
                -2,
                "*2\r\n+write\r\n+movablekeys\r\n",
                1,
                1,
                1,
                "*0\r\n",
            ),
        ];
        CommandTable::parse(format!("*3\r\n{}", rows.concat()).as_bytes()).unwrap()
    }

    #[test]
    fn a_command_of_a_module_is_quick_only_if_its_arguments_are() {
        let quick = |line: &str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            is_quick(words[0], &words[1..])
        };
        for line in ["JSON.SET k $ 1", "JSON.DEL k $.a[0]", "BF.INSERT k ITEMS a"] {
            assert!(quick(line), "{line}");
        }
        for line in [
            "JSON.DEL k $..a",
            "JSON.DEL k $[?(@.a>1)]",
            "JSON.MSET k $ 1 l $..b 2",
            "BF.INSERT k CAPACITY 1000000000 ITEMS a",
            "BF.INSERT k capacity 9 ITEMS a",
            "BF.RESERVE k 0.1 9",
            "FT.SEARCH i *",
        ] {
            assert!(!quick(line), "{line}");
        }
    }

    #[test]
    fn only_keys_are_protected_where_keys_are_known() {
        let table = table();
        assert!(table.touches_records(b"MSET", &[b"MSET", b"a", b"b", b"pmnet:{0}", b"x"]));
        assert!(!table.touches_records(b"MSET", &[b"MSET", b"a", b"pmnet:{0}"]));
        assert!(table.touches_records(b"SORT", &[b"SORT", b"a", b"STORE", b"pmnet:{0}"]));
        assert!(table.touches_records(b"NEW", &[b"NEW", b"pmnet:{0}"]));
    }

    #[test]
    fn a_float_is_counted_in_no_script_of_redis_6() {
        let row = |name: &str, arity: i64| {
            format!("*7\r\n+{name}\r\n:{arity}\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n*0\r\n")
        };
        let rows = [
            row("incrbyfloat", 3),
            row("incrby", 3),
            row("expiretime", 2),
        ];
        let table = |count: usize| {
            CommandTable::parse(format!("*{count}\r\n{}", rows[..count].concat()).as_bytes())
                .unwrap()
        };
        for name in ["INCRBY", "INCRBYFLOAT"] {
            let words = [name.as_bytes(), b"k", b"1"];
            let is_safe = name == "INCRBY";
            assert_eq!(table(2).scriptable(words[0], &words), is_safe, "{name}");
            assert!(table(3).scriptable(words[0], &words), "{name}");
        }
    }

    #[test]
    fn slots_are_told_by_keys() {
        let table = table();
        let keys = |line: &str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let keys = table.slot_keys(words[0], &words);
            let keys: Vec<_> = keys
                .iter()
                .map(|key| String::from_utf8_lossy(key))
                .collect();
            keys.join(" ")
        };
        for (line, expected) in [
            ("MSET a 1 b 2", "a"),
            ("SORT a STORE b", "a"),
            ("CONFIG GET x", ""),
            ("NOSUCH a", ""),
            ("EVAL x 2 a b c", "a b"),
            ("EVAL x 9 a", "a"),
            ("EVALSHA x -1 a", ""),
            ("EVAL x", ""),
            ("ZUNION 2 a b", "a"),
            ("BLMPOP 0 1 a LEFT", "a"),
            ("XREADGROUP GROUP g c STREAMS a 0", "a"),
            ("XREAD COUNT 1", ""),
        ] {
            assert_eq!(keys(line), expected, "{line}");
        }
    }

    #[test]
    fn what_a_module_says_of_its_connection_counts_for_the_family() {
        let row = |name: &str, flags: &str, category: &str, subs: &str| {
            let flags: String = flags.split(' ').map(|f| format!("+{f}\r\n")).collect();
            format!(
                "*10\r\n+{name}\r\n:-2\r\n*2\r\n{flags}:1\r\n:1\r\n:1\r\n*1\r\n+{category}\r\n*0\r\n*0\r\n{subs}"
            )
        };
        let none = "*0\r\n";
        let subs = ["set", "get"].map(|sub| {
            let category = if sub == "set" { "@connection" } else { "@read" };
            row(&format!("m.family|{sub}"), "module fast", category, none)
        });
        let rows = [
            row("m.state", "module fast", "@connection", none),
            row("m.get", "module fast", "@read", none),
            row("ping", "fast stale", "@connection", none),
            row(
                "m.family",
                "module fast",
                "@slow",
                &format!("*2\r\n{}", subs.concat()),
            ),
        ];
        let table = CommandTable::parse(format!("*4\r\n{}", rows.concat()).as_bytes()).unwrap();
        for (line, refused) in [
            ("M.STATE a", true),
            ("M.GET a", false),
            ("PING a", false),
            ("M.FAMILY", true),
            ("M.FAMILY SET", true),
            ("M.FAMILY GET", true),
        ] {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let found = table.unfit(words[0], &words);
            assert_eq!(found, refused.then_some(guard::OWN_CONNECTION), "{line}");
        }
    }

    #[test]
    fn a_script_runs_only_what_it_can() {
        let table = table();
        assert!(table.scriptable(b"MSET", &[b"MSET", b"a", b"b"]));
        assert!(!table.scriptable(b"MSET", &[b"MSET", b"a"]), "arity");
        assert!(
            !table.scriptable(b"CONFIG", &[b"CONFIG", b"GET", b"x"]),
            "subcommand's flag"
        );
        assert!(!table.scriptable(b"NOSUCH", &[b"NOSUCH"]));
    }
}
