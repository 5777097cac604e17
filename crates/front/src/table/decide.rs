//! The decisions of the matrix: one rule for every command, with the reason where it is not plain.

use super::early::early_ack;
use super::{
    ADMIN, Action, BLOCKING, Facts, INTERNAL, Local, MAY_REPLICATE, NEW, NOSCRIPT, PUBSUB, Pass,
    READONLY, STATE, Sub, WRITE,
};
use pmnet_resp::Arguments;
use pmnet_wire::guard::UNNAMED_KEYS;

/// How the action of a command follows from its arguments.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// Early if [`early_ack`], else exactly once.
    Early,
    /// Repeatable.
    Read,
    /// Exactly once.
    Write,
    /// Repeatable, unless one of these words is an argument.
    ReadUnless(&'static [&'static str]),
    /// Decided by the subcommand: these are repeatable, these refused, all others exactly once.
    Container {
        reads: &'static [&'static str],
        refused: &'static [(&'static str, &'static str)],
    },
    /// The same, and KILL is passed.
    Scripts {
        reads: &'static [&'static str],
        refused: &'static [(&'static str, &'static str)],
    },
    /// CLUSTER: as a container; of what newer servers have, what reads is repeatable, and all else refused.
    Cluster {
        reads: &'static [&'static str],
        refused: &'static [(&'static str, &'static str)],
    },
    /// By its facts ([`by_facts`]).
    Learned,
    /// Passed if BLOCK is among the options (from argument `from` up to STREAMS).
    BlockOption { from: usize, read_only: bool },
    /// Answered by the front.
    Local(Local),
    /// Passed.
    Pass(Pass),
    /// Refused.
    Refuse(&'static str),
}

/// A rule, and a remark for the guide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decision {
    pub(super) rule: Rule,
    pub(super) note: &'static str,
}

impl Rule {
    /// `sub`: what its first argument is.
    pub(super) fn action(&self, facts: &Facts, sub: Sub, arguments: &Arguments<'_>) -> Action {
        let alone = facts.has(NOSCRIPT);
        match *self {
            Rule::Early if early_ack(arguments) => Action::Update,
            Rule::Early => Action::Bypass {
                read_only: false,
                alone: false,
            },
            Rule::Read => Action::Bypass {
                read_only: true,
                alone: false,
            },
            Rule::Write => Action::Bypass {
                read_only: false,
                alone,
            },
            Rule::ReadUnless(words) => {
                let writes =
                    (1..arguments.len()).any(|i| words.iter().any(|word| arguments.is(i, word)));
                Action::Bypass {
                    read_only: !writes,
                    alone: false,
                }
            }
            Rule::Learned if matches!(sub, Sub::Unknown) => Action::Bypass {
                read_only: false,
                alone: true,
            },
            Rule::Learned => by_facts(facts),
            Rule::Scripts { .. } if arguments.is(1, "KILL") => Action::Pass(Pass::Kill),
            Rule::Cluster { reads, refused }
                if let Sub::Known(sub) = sub
                    && !is_listed(arguments, reads, refused) =>
            {
                let changes = sub.has(ADMIN) || sub.has(WRITE) || sub.has(INTERNAL);
                if changes {
                    return Action::Refuse(NODES);
                }
                Action::Bypass {
                    read_only: true,
                    alone: false,
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
                Action::Bypass {
                    read_only,
                    alone: !read_only,
                }
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

/// Whether the subcommand is one of these.
fn is_listed(
    arguments: &Arguments<'_>,
    reads: &[&str],
    refused: &[(&'static str, &'static str)],
) -> bool {
    let mut names = reads.iter().copied();
    names.any(|word| arguments.is(1, word)) || refused.iter().any(|(word, _)| arguments.is(1, word))
}

/// The action for a command that this program does not know by name, from its facts.
///
/// Where they say too little, the careful case counts. A command that changes keys without naming them could change pmnet's own. One
/// that rests on the state of its connection must not meet that of another client.
fn by_facts(facts: &Facts) -> Action {
    let has = |flag| facts.has(flag);
    let bypass = |read_only, alone| Action::Bypass { read_only, alone };
    let keys = facts.names_keys();
    if has(INTERNAL) {
        return Action::Refuse(FOR_ITSELF);
    }
    // First: nothing looks for pmnet's records in what passes through to the store.
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
        return bypass(false, has(NOSCRIPT));
    }
    if has(NOSCRIPT) && !has(ADMIN) && !keys {
        return Action::Pass(Pass::State);
    }
    let reads = has(READONLY) && !has(MAY_REPLICATE) && !has(ADMIN);
    bypass(reads, !reads)
}

const FOR_ITSELF: &str = "the store uses it internally";
const SUBSCRIPTIONS: &str =
    "it is about subscriptions, and pmnet does not know it: connect to the Redis server itself";
const NODES: &str = "it would change the cluster under the log; do that at its nodes themselves";
const REPLICATION: &str =
    "it changes who the store is; do it on the Redis server itself, with pmnet stopped";
const STREAM: &str =
    "it turns the connection into a replication stream; connect to the Redis server itself";

/// The rule for one command.
pub(super) fn decide(facts: &Facts) -> Decision {
    let (rule, note) = match facts.name {
        "SET" => (Rule::Early, "early without NX, XX, GET; else exactly once"),
        "MSET" => (Rule::Early, "early with one value for each key"),
        "SETEX" | "PSETEX" => (Rule::Early, "early with a valid time to live"),

        "PING" => (
            Rule::Local(Local::Ping),
            "says that the front is alive, not that the store is",
        ),
        "ECHO" => (Rule::Local(Local::Echo), ""),
        "HELLO" => (Rule::Local(Local::Hello), "2 and 3, AUTH, SETNAME"),
        "AUTH" => (
            Rule::Local(Local::Auth),
            "the front asks Redis whether the password is right: see [users](users-and-tls.md#users)",
        ),
        "SELECT" => (
            Rule::Local(Local::Select),
            "a database is checked with the store once",
        ),
        "QUIT" => (Rule::Local(Local::Quit), ""),
        "RESET" => (Rule::Local(Local::Reset), ""),
        "CLIENT" => (
            Rule::Local(Local::Client),
            "about the clients of this front: see [clients](connections.md#clients) and [client-side caching](connections.md#client-side-caching)",
        ),
        "MULTI" => (
            Rule::Local(Local::Multi),
            "commands are kept by the front until EXEC",
        ),
        "EXEC" => (
            Rule::Local(Local::Exec),
            "one atomic step, exactly once; a read if all commands are reads",
        ),
        "DISCARD" => (Rule::Local(Local::Discard), ""),
        "UNWATCH" => (Rule::Local(Local::Unwatch), "passed through while WATCHing"),

        "WATCH" => (
            Rule::Pass(Pass::Watch),
            "all commands pass through until EXEC, DISCARD or UNWATCH",
        ),
        "WAIT" | "WAITAOF" => (
            Rule::Pass(Pass::Wait),
            "counts replicas that have everything acknowledged before",
        ),
        "MONITOR" => (
            Rule::Pass(Pass::Monitor),
            "shows the store's side: commands as pmnet sends them",
        ),
        "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "PUNSUBSCRIBE"
        | "SUNSUBSCRIBE" => (Rule::Pass(Pass::Subscribe), ""),
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

        "PUBLISH" | "SPUBLISH" => (Rule::Write, "after everything this connection wrote before"),
        "EVAL" | "EVALSHA" | "FCALL" => {
            (Rule::Write, "with the script's effects in one atomic step")
        }
        "SORT" => (Rule::ReadUnless(&["STORE"]), "a write with STORE"),
        "GEORADIUS" | "GEORADIUSBYMEMBER" => (
            Rule::ReadUnless(&["STORE", "STOREDIST"]),
            "a write with STORE or STOREDIST",
        ),
        "BITFIELD" => (
            Rule::ReadUnless(&["SET", "INCRBY"]),
            "a write with SET or INCRBY",
        ),

        "ACL" => (
            Rule::Container {
                reads: &[
                    "CAT", "DRYRUN", "GENPASS", "GETUSER", "HELP", "LIST", "USERS", "WHOAMI",
                ],
                refused: &[],
            },
            "about Redis's users; WHOAMI says who the client is",
        ),
        "COMMAND" => (
            Rule::Container {
                reads: &["*"],
                refused: &[],
            },
            "",
        ),
        "CONFIG" => (
            Rule::Container {
                reads: &["GET", "HELP"],
                refused: &[],
            },
            "the store's configuration; what acknowledged writes rest on cannot be weakened",
        ),
        "FUNCTION" => (
            Rule::Scripts {
                reads: &["DUMP", "HELP", "LIST", "STATS"],
                refused: &[],
            },
            "KILL is passed through at once",
        ),
        "LATENCY" => (
            Rule::Container {
                reads: &["DOCTOR", "GRAPH", "HELP", "HISTOGRAM", "HISTORY", "LATEST"],
                refused: &[],
            },
            "of the store, not of pmnet",
        ),
        "MEMORY" => (
            Rule::Container {
                reads: &["DOCTOR", "HELP", "MALLOC-STATS", "STATS", "USAGE"],
                refused: &[],
            },
            "",
        ),
        "MODULE" => (
            Rule::Container {
                reads: &["HELP", "LIST"],
                refused: &[],
            },
            "",
        ),
        "OBJECT" | "PUBSUB" | "XINFO" => (
            Rule::Container {
                reads: &["*"],
                refused: &[],
            },
            "",
        ),
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
        "SLOWLOG" => (
            Rule::Container {
                reads: &["GET", "HELP", "LEN"],
                refused: &[],
            },
            "of the store",
        ),
        "XGROUP" => (
            Rule::Container {
                reads: &["HELP"],
                refused: &[],
            },
            "",
        ),

        "INFO" | "ROLE" | "LASTSAVE" | "TIME" => (Rule::Read, "of the store"),
        "SAVE" | "BGSAVE" | "BGREWRITEAOF" => (
            Rule::Read,
            "may be repeated after a loss, which does no harm",
        ),
        "PFSELFTEST" | "LOLWUT" => (Rule::Read, ""),
        "CLUSTER" => (
            Rule::Cluster {
                reads: &[
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
                ],
                refused: &[
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
                ],
            },
            "a store that is not a cluster says so; the others are refused, since they would change the cluster under the log",
        ),
        "ASKING" | "READONLY" | "READWRITE" => {
            (Rule::Read, "the store is not a cluster, and says so")
        }

        "SHUTDOWN" => (
            Rule::Refuse(
                "it would stop the store under the log; stop the Redis server itself, pmnet waits for it",
            ),
            "",
        ),
        "REPLICAOF" | "SLAVEOF" | "FAILOVER" => (Rule::Refuse(REPLICATION), ""),
        "SWAPDB" => (
            Rule::Refuse("it would move pmnet's own records to another database"),
            "",
        ),
        "DEBUG" => (
            Rule::Refuse("it can lose or block the store; send it to the Redis server itself"),
            "",
        ),
        "SYNC" | "PSYNC" | "REPLCONF" => (Rule::Refuse(STREAM), ""),
        "RESTORE-ASKING" => (Rule::Refuse("it is internal to Redis Cluster"), ""),

        _ if facts.has(NEW) => (Rule::Learned, ""),
        _ if facts.has(BLOCKING) => (Rule::Pass(Pass::Blocking), ""),
        _ if facts.has(WRITE) => (Rule::Write, ""),
        _ if facts.has(READONLY) => (Rule::Read, ""),
        // A command that says nothing about itself is treated as the most careful case.
        _ => (Rule::Write, ""),
    };
    Decision { rule, note }
}
