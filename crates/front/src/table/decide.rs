//! The decisions of the matrix: a rule for every command, with the reason if it is not obvious.

use super::early::early_ack;
use super::{
    ADMIN, Action, BLOCKING, Facts, INTERNAL, Local, MAY_REPLICATE, NEW, NOSCRIPT, PUBSUB, Pass,
    READONLY, STATE, Sub, WRITE,
};
use pmnet_resp::Arguments;
use pmnet_wire::guard::UNNAMED_KEYS;

/// How the action for a command follows from its arguments.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// The command is acknowledged early if [`early_ack`] holds; otherwise it is executed exactly once.
    Early,
    /// The command is a bypass that may be repeated.
    Read,
    /// The command is executed exactly once.
    Write,
    /// The command may be repeated. If one of these words is an argument, the command is executed exactly once.
    ReadUnless(&'static [&'static str]),
    /// The subcommand decides: `reads` may be repeated, `refused` are refused, and all other subcommands are executed
    /// exactly once.
    Container {
        reads: &'static [&'static str],
        refused: &'static [(&'static str, &'static str)],
    },
    /// As `Container`, but the subcommand KILL is passed.
    Scripts {
        reads: &'static [&'static str],
        refused: &'static [(&'static str, &'static str)],
    },
    /// The command CLUSTER. As `Container` for the subcommands that this program knows. Newer subcommands that only
    /// read may be repeated; all other newer subcommands are refused.
    Cluster {
        reads: &'static [&'static str],
        refused: &'static [(&'static str, &'static str)],
    },
    /// The facts decide ([`by_facts`]).
    Learned,
    /// The command is passed if the word BLOCK is among its options, which are the arguments from `from` up to STREAMS.
    BlockOption { from: usize, read_only: bool },
    /// The front answers the command.
    Local(Local),
    /// The command is passed to the store.
    Pass(Pass),
    /// The command is refused with this reason.
    Refuse(&'static str),
}

/// A bypass that may be executed repeatedly.
const REPEATABLE: Action = Action::Bypass {
    read_only: true,
    alone: false,
};
/// A bypass that is executed exactly once.
const ONCE: Action = Action::Bypass {
    read_only: false,
    alone: false,
};
/// A bypass that is executed exactly once, in a pack of its own.
const ONCE_ALONE: Action = Action::Bypass {
    read_only: false,
    alone: true,
};

/// A rule, and a remark for the guide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decision {
    pub(super) rule: Rule,
    pub(super) note: &'static str,
}

impl Rule {
    /// Returns the action. `sub`: the meaning of the command's first argument.
    pub(super) fn action(&self, facts: &Facts, sub: Sub, arguments: &Arguments<'_>) -> Action {
        let alone = facts.has(NOSCRIPT);
        match *self {
            Rule::Early if early_ack(arguments) => Action::Update,
            Rule::Early => ONCE,
            Rule::Read => REPEATABLE,
            Rule::Write if alone => ONCE_ALONE,
            Rule::Write => ONCE,
            Rule::ReadUnless(words) => {
                let writes =
                    (1..arguments.len()).any(|i| words.iter().any(|word| arguments.is(i, word)));
                if writes { ONCE } else { REPEATABLE }
            }
            Rule::Learned if matches!(sub, Sub::Unknown) => ONCE_ALONE,
            Rule::Learned => by_facts(facts),
            Rule::Scripts { .. } if arguments.is(1, "KILL") => Action::Pass(Pass::Kill),
            Rule::Cluster { reads, refused }
                if let Sub::Known(sub) = sub
                    && !is_listed(arguments, reads, refused) =>
            {
                let changes = sub.has(ADMIN) || sub.has(WRITE) || sub.has(INTERNAL);
                if changes {
                    Action::Refuse(NODES)
                } else {
                    REPEATABLE
                }
            }
            Rule::Container { reads, refused }
            | Rule::Scripts { reads, refused }
            | Rule::Cluster { reads, refused } => {
                if let Some((_, why)) = refused.iter().find(|(word, _)| arguments.is(1, word)) {
                    return Action::Refuse(why);
                }
                let read_only = reads
                    .iter()
                    .any(|word| *word == "*" || arguments.is(1, word));
                if read_only { REPEATABLE } else { ONCE_ALONE }
            }
            Rule::BlockOption { from, read_only } => {
                let blocks = (from..arguments.len())
                    .take_while(|i| !arguments.is(*i, "STREAMS"))
                    .any(|i| arguments.is(i, "BLOCK"));
                if blocks {
                    Action::Pass(Pass::Blocking)
                } else {
                    Action::Bypass { read_only, alone }
                }
            }
            Rule::Local(local) => Action::Local(local),
            Rule::Pass(pass) => Action::Pass(pass),
            Rule::Refuse(why) => Action::Refuse(why),
        }
    }
}

/// Whether the list contains this subcommand.
fn is_listed(
    arguments: &Arguments<'_>,
    reads: &[&str],
    refused: &[(&'static str, &'static str)],
) -> bool {
    let mut names = reads.iter().copied();
    names.any(|word| arguments.is(1, word)) || refused.iter().any(|(word, _)| arguments.is(1, word))
}

/// Returns the action for a command that this program does not know by name, decided by the facts about the command.
///
/// If the facts are incomplete, the safe action is chosen. A command that changes keys without naming them could change
/// pmnet's own keys. A command that depends on the state of its connection must not run on a connection that has
/// another client's state.
fn by_facts(facts: &Facts) -> Action {
    let has = |flag| facts.has(flag);
    let keys = facts.names_keys();
    if has(INTERNAL) {
        return Action::Refuse(FOR_ITSELF);
    }
    // This check comes first, because the front does not check commands that pass through for pmnet's records.
    if has(WRITE) && !keys {
        return Action::Refuse(UNNAMED_KEYS);
    }
    if has(STATE) {
        return Action::Pass(Pass::State);
    }
    if has(BLOCKING) {
        return Action::Pass(Pass::Blocking);
    }
    if has(PUBSUB) {
        return Action::Refuse(SUBSCRIPTIONS);
    }
    if has(WRITE) {
        return if has(NOSCRIPT) { ONCE_ALONE } else { ONCE };
    }
    if has(NOSCRIPT) && !has(ADMIN) && !keys {
        return Action::Pass(Pass::State);
    }
    let reads = has(READONLY) && !has(MAY_REPLICATE) && !has(ADMIN);
    if reads { REPEATABLE } else { ONCE_ALONE }
}

const FOR_ITSELF: &str = "the store uses it internally";
const SUBSCRIPTIONS: &str =
    "it is about subscriptions, and pmnet does not know it: connect to the Redis server itself";
const NODES: &str = "it would change the cluster under the log; do that at its nodes themselves";
const REPLICATION: &str =
    "it changes who the store is; do it on the Redis server itself, with pmnet stopped";
const STREAM: &str =
    "it turns the connection into a replication stream; connect to the Redis server itself";

/// Subcommands of CLUSTER that read.
const CLUSTER_READS: &[&str] = &[
    "INFO",
    "MYID",
    "NODES",
    "SLOTS",
    "SHARDS",
    "LINKS",
    "KEYSLOT",
    "COUNTKEYSINSLOT",
    "GETKEYSINSLOT",
    "REPLICAS",
    "SLAVES",
    "COUNT-FAILURE-REPORTS",
    "HELP",
];

/// Subcommands of CLUSTER that change nodes.
const CLUSTER_CHANGES: &[(&str, &str)] = &[
    ("RESET", NODES),
    ("FORGET", NODES),
    ("FAILOVER", NODES),
    ("REPLICATE", NODES),
    ("MEET", NODES),
    ("SETSLOT", NODES),
    ("ADDSLOTS", NODES),
    ("ADDSLOTSRANGE", NODES),
    ("DELSLOTS", NODES),
    ("DELSLOTSRANGE", NODES),
    ("FLUSHSLOTS", NODES),
    ("BUMPEPOCH", NODES),
    ("SET-CONFIG-EPOCH", NODES),
    ("SAVECONFIG", NODES),
];

type Row = (Rule, &'static str);

/// Makes a row for a command that the front answers.
const fn local(local: Local, note: &'static str) -> Row {
    (Rule::Local(local), note)
}

/// Makes a row for a command that passes through.
const fn pass(pass: Pass, note: &'static str) -> Row {
    (Rule::Pass(pass), note)
}

/// Makes a row for a command that is refused for this reason.
const fn refuse(why: &'static str) -> Row {
    (Rule::Refuse(why), "")
}

/// Makes a row for a command whose `reads` are subcommands that may be repeated (`*`: all). All other subcommands are
/// executed exactly once.
const fn container(reads: &'static [&'static str], note: &'static str) -> Row {
    let refused = &[];
    (Rule::Container { reads, refused }, note)
}

/// Returns the rule for one command.
pub(super) fn decide(facts: &Facts) -> Decision {
    let (rule, note) = match facts.name {
        "SET" => (Rule::Early, "early without NX, XX, GET; else exactly once"),
        "MSET" => (Rule::Early, "early with one value for each key"),
        "SETEX" | "PSETEX" => (Rule::Early, "early with a valid time to live"),

        "PING" => local(
            Local::Ping,
            "shows that the front is alive, but not the store",
        ),
        "ECHO" => local(Local::Echo, ""),
        "HELLO" => local(Local::Hello, "2 and 3, AUTH, SETNAME"),
        "AUTH" => local(
            Local::Auth,
            "the front asks Redis whether the password is right: see [users](users-and-tls.md#users)",
        ),
        "SELECT" => local(
            Local::Select,
            "the front asks the store once whether a database exists",
        ),
        "QUIT" => local(Local::Quit, ""),
        "RESET" => local(Local::Reset, ""),
        "CLIENT" => local(
            Local::Client,
            "about the clients of this front: see [clients](connections.md#clients) and [client-side caching](connections.md#client-side-caching)",
        ),
        "MULTI" => local(Local::Multi, "commands are kept by the front until EXEC"),
        "EXEC" => local(
            Local::Exec,
            "one atomic step, exactly once; a read if all commands are reads",
        ),
        "DISCARD" => local(Local::Discard, ""),
        "UNWATCH" => local(Local::Unwatch, "passed through while WATCHing"),

        "WATCH" => pass(
            Pass::Watch,
            "all commands pass through until EXEC, DISCARD or UNWATCH",
        ),
        "WAIT" | "WAITAOF" => pass(
            Pass::Wait,
            "counts replicas that have all writes that were acknowledged before",
        ),
        "MONITOR" => pass(
            Pass::Monitor,
            "shows the store's side: commands as pmnet sends them",
        ),
        "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "PUNSUBSCRIBE"
        | "SUNSUBSCRIBE" => pass(Pass::Subscribe, ""),
        "XREAD" => (
            Rule::BlockOption {
                from: 1,
                read_only: true,
            },
            "passed through with BLOCK",
        ),
        "XREADGROUP" => (
            Rule::BlockOption {
                from: 4,
                read_only: false,
            },
            "passed through with BLOCK",
        ),

        "PUBLISH" | "SPUBLISH" => (Rule::Write, "after all earlier writes of this connection"),
        "EVAL" | "EVALSHA" | "FCALL" => (
            Rule::Write,
            "the script's effects take place in one atomic step",
        ),
        "SORT" => (Rule::ReadUnless(&["STORE"]), "a write with STORE"),
        "GEORADIUS" | "GEORADIUSBYMEMBER" => (
            Rule::ReadUnless(&["STORE", "STOREDIST"]),
            "a write with STORE or STOREDIST",
        ),
        "BITFIELD" => (
            Rule::ReadUnless(&["SET", "INCRBY"]),
            "a write with SET or INCRBY",
        ),

        _ => decide_administrative(facts),
    };
    Decision { rule, note }
}

/// Returns the rule for a command about the store itself, or for a command that has no row.
fn decide_administrative(facts: &Facts) -> Row {
    match facts.name {
        "ACL" => container(
            &[
                "CAT", "DRYRUN", "GENPASS", "GETUSER", "HELP", "LIST", "USERS", "WHOAMI",
            ],
            "about Redis's users; WHOAMI returns the client's user",
        ),
        "COMMAND" => container(&["*"], ""),
        "CONFIG" => container(
            &["GET", "HELP"],
            "the store's configuration; settings on which acknowledged writes depend cannot be weakened",
        ),
        "FUNCTION" => (
            Rule::Scripts {
                reads: &["DUMP", "HELP", "LIST", "STATS"],
                refused: &[],
            },
            "KILL is passed through at once",
        ),
        "LATENCY" => container(
            &["DOCTOR", "GRAPH", "HELP", "HISTOGRAM", "HISTORY", "LATEST"],
            "of the store, not of pmnet",
        ),
        "MEMORY" => container(&["DOCTOR", "HELP", "MALLOC-STATS", "STATS", "USAGE"], ""),
        "MODULE" => container(&["HELP", "LIST"], ""),
        "OBJECT" | "PUBSUB" | "XINFO" => container(&["*"], ""),
        "SCRIPT" => (
            Rule::Scripts {
                reads: &["EXISTS", "HELP"],
                refused: &[(
                    "DEBUG",
                    "it needs a connection of its own to the Redis server",
                )],
            },
            "KILL is passed through at once; DEBUG is refused",
        ),
        "SLOWLOG" => container(&["GET", "HELP", "LEN"], "of the store"),
        "XGROUP" => container(&["HELP"], ""),

        "INFO" => (
            Rule::Read,
            "of the store, and a section `# Pmnet` ([what it says](connections.md#info))",
        ),
        "ROLE" | "LASTSAVE" | "TIME" => (Rule::Read, "of the store"),
        "SAVE" | "BGSAVE" | "BGREWRITEAOF" => (
            Rule::Read,
            "may be repeated after a loss, which does no harm",
        ),
        "PFSELFTEST" | "LOLWUT" => (Rule::Read, ""),
        "CLUSTER" => (
            Rule::Cluster {
                reads: CLUSTER_READS,
                refused: CLUSTER_CHANGES,
            },
            "a store that is not a cluster says so; the others are refused, since they would change the cluster under the log",
        ),
        "ASKING" | "READONLY" | "READWRITE" => {
            (Rule::Read, "the store is not a cluster, and says so")
        }

        "SHUTDOWN" => refuse(
            "it would stop the store under the log; stop the Redis server itself, pmnet waits for it",
        ),
        "REPLICAOF" | "SLAVEOF" | "FAILOVER" => refuse(REPLICATION),
        "SWAPDB" => refuse("it would move pmnet's own records to another database"),
        "DEBUG" => refuse("it can lose or block the store; send it to the Redis server itself"),
        "SYNC" | "PSYNC" | "REPLCONF" => refuse(STREAM),
        "RESTORE-ASKING" => refuse("it is internal to Redis Cluster"),

        _ => without_row(facts),
    }
}

/// Returns the rule for a command that has no row. The flags of the command decide. Most commands have no row.
fn without_row(facts: &Facts) -> Row {
    if facts.has(NEW) {
        (Rule::Learned, "")
    } else if facts.has(BLOCKING) {
        pass(Pass::Blocking, "")
    } else if facts.has(READONLY) && !facts.has(WRITE) {
        (Rule::Read, "")
    } else {
        // A command without a description also gets this rule, because the rule is safe for every command.
        (Rule::Write, "")
    }
}
