//! Facts about a store: `INFO`, `CONFIG`, `COMMAND` and other commands that clients and tools send first.
//!
//! Answers have the form of Redis 7.0.15. If the store does not know a fact, the answer leaves it out.

use std::ops::ControlFlow;

use super::arguments::{Options, Outcome, SYNTAX, Stop, error, integer, is, wrong_number};
use super::keyspace::STRING_BYTES_MAX;
use super::layout::{DATABASES, Head, Kind, Part};
use super::members::ALL;
use super::{Call, glob, size, table};
use crate::rows::{About, Order};

/// The version of Redis whose commands and replies this store implements.
const REDIS_VERSION: &str = "7.0.15";
/// Maximum number of members of a hash or sorted set that Redis keeps as a list.
const LISTPACK_ENTRIES: u64 = 128;
/// Maximum number of bytes of each member of such a hash or sorted set.
const LISTPACK_BYTES: usize = 64;
/// Maximum number of members of a set of integers that Redis keeps as an array.
const INTSET_ENTRIES: u64 = 512;
/// Longest string that Redis keeps in one allocation with its object (`embstr`), in bytes.
const EMBEDDED_BYTES: usize = 44;
/// Approximate number of bytes that a row takes besides key and value: its line, and its entry in the index.
const ROW_BYTES: usize = 128;
/// Number of members that `MEMORY USAGE` reads if the client gives no number.
const SAMPLES: u64 = 5;

const NO_CLUSTER: Stop = error("ERR This instance has cluster support disabled");

/// Returns the subcommand of this call, and the arguments after it.
fn subcommand<'c>(call: &Call<'c, '_>) -> Outcome<(&'c [u8], &'c [&'c [u8]])> {
    let (word, rest) = call.arguments.split_first().ok_or(SYNTAX)?;
    Ok((word, rest))
}

fn unknown(call: &Call<'_, '_>, word: &[u8]) -> Stop {
    let word = String::from_utf8_lossy(&word[..word.len().min(128)]).into_owned();
    let name = call.name.to_ascii_uppercase();
    let text = format!("ERR unknown subcommand '{word}'. Try {name} HELP.");
    Stop::Error(text.into_bytes().into())
}

/// The sections of INFO that this store has, by name.
const SECTIONS: [&str; 9] = [
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "cluster",
    "modules",
    "keyspace",
];

pub fn info(call: &mut Call<'_, '_>) -> Outcome {
    let everything = |word: &[u8]| {
        ["all", "default", "everything"]
            .iter()
            .any(|all| is(word, all))
    };
    let wanted = |section: &str| {
        call.arguments.is_empty()
            || call
                .arguments
                .iter()
                .any(|word| is(word, section) || everything(word))
    };
    let about = call.keys.about();
    let mut text = String::new();
    for section in SECTIONS {
        if !wanted(section) {
            continue;
        }
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        let mut title = section.to_owned();
        title[..1].make_ascii_uppercase();
        text.push_str(&format!("# {title}\r\n"));
        let lines = match section {
            "server" => server(call),
            "memory" => memory(&about),
            "keyspace" => keyspace(call)?,
            other => fixed(other, &about),
        };
        for (name, value) in lines {
            text.push_str(&format!("{name}:{value}\r\n"));
        }
    }
    call.reply.bulk(text.as_bytes());
    Ok(())
}

type Lines = Vec<(String, String)>;

fn lines(pairs: &[(&str, String)]) -> Lines {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect()
}

fn server(call: &Call<'_, '_>) -> Lines {
    let (now, started) = (call.keys.now(), call.keys.cursors.started);
    let seconds = now.saturating_sub(started) / 1000;
    let id = call.keys.cursors.id;
    lines(&[
        ("redis_version", REDIS_VERSION.into()),
        ("pmnet_version", env!("CARGO_PKG_VERSION").into()),
        ("redis_mode", "standalone".into()),
        ("os", "Linux".into()),
        ("arch_bits", usize::BITS.to_string()),
        ("process_id", std::process::id().to_string()),
        ("run_id", format!("{id:020x}{started:020x}")),
        ("server_time_usec", (now * 1000).to_string()),
        ("uptime_in_seconds", seconds.to_string()),
        ("uptime_in_days", (seconds / 86_400).to_string()),
    ])
}

fn memory(about: &About) -> Lines {
    let human = |bytes: u64| format!("{}.{:02}M", bytes >> 20, ((bytes % (1 << 20)) * 100) >> 20);
    lines(&[
        ("used_memory", about.used_bytes.to_string()),
        ("used_memory_human", human(about.used_bytes)),
        ("used_memory_dataset", about.used_bytes.to_string()),
        ("maxmemory", about.bytes.to_string()),
        ("maxmemory_human", human(about.bytes)),
        ("maxmemory_policy", "noeviction".into()),
    ])
}

/// Returns the lines of a section that do not depend on the stored data.
fn fixed(section: &str, about: &About) -> Lines {
    let pairs: &[(&str, &str)] = match section {
        "clients" => &[("blocked_clients", "0"), ("cluster_connections", "0")],
        "persistence" => &[
            ("loading", "0"),
            ("async_loading", "0"),
            ("rdb_changes_since_last_save", "0"),
            ("rdb_bgsave_in_progress", "0"),
            ("rdb_last_bgsave_status", "ok"),
            ("aof_enabled", "1"),
            ("aof_rewrite_in_progress", "0"),
            ("aof_last_bgrewrite_status", "ok"),
            ("aof_last_write_status", "ok"),
        ],
        "stats" => &[("evicted_keys", "0")],
        "replication" => &[
            ("role", "master"),
            ("connected_slaves", "0"),
            ("master_failover_state", "no-failover"),
            ("master_repl_offset", "0"),
        ],
        "cluster" => &[("cluster_enabled", "0")],
        _ => &[],
    };
    let pairs = pairs.iter();
    let mut found: Lines = pairs
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    match (section, about.sessions) {
        ("clients", Some(sessions)) => {
            found.insert(0, ("connected_clients".into(), sessions.to_string()));
        }
        ("stats", _) => found.push(("pmnet_refused_requests".into(), about.refused.to_string())),
        _ => {}
    }
    found
}

fn keyspace(call: &Call<'_, '_>) -> Outcome<Lines> {
    let mut found = Lines::new();
    for database in 0..DATABASES {
        let keys = call.keys.count_heads(database)?;
        if keys > 0 {
            found.push((
                format!("db{database}"),
                format!("keys={keys},expires=0,avg_ttl=0"),
            ));
        }
    }
    Ok(found)
}

pub fn config(call: &mut Call<'_, '_>) -> Outcome {
    let (word, rest) = subcommand(call)?;
    if is(word, "GET") {
        if rest.is_empty() {
            return Err(wrong_number("config|get"));
        }
        let about = call.keys.about();
        let settings = [
            ("appendfsync", "always".to_owned()),
            ("appendonly", "yes".into()),
            ("databases", DATABASES.to_string()),
            ("maxmemory", about.bytes.to_string()),
            ("maxmemory-policy", "noeviction".into()),
            ("proto-max-bulk-len", STRING_BYTES_MAX.to_string()),
            ("save", String::new()),
        ];
        let asked = |name: &str| {
            rest.iter()
                .any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
        };
        let found: Vec<_> = settings.iter().filter(|(name, _)| asked(name)).collect();
        call.reply.map(found.len());
        for (name, value) in found {
            call.reply.bulk(name.as_bytes());
            call.reply.bulk(value.as_bytes());
        }
        return Ok(());
    }
    if is(word, "RESETSTAT") && rest.is_empty() {
        call.reply.ok();
        return Ok(());
    }
    if is(word, "SET") || is(word, "REWRITE") {
        return Err(error(
            "ERR pmnet: an embedded store has no settings that could be changed; its size is changed by pmnet store grow",
        ));
    }
    Err(unknown(call, word))
}

pub fn command(call: &mut Call<'_, '_>) -> Outcome {
    let Some((word, rest)) = call.arguments.split_first() else {
        call.reply.array(table::names().len());
        for name in table::names() {
            reply_command(call, name.as_bytes());
        }
        return Ok(());
    };
    match () {
        () if is(word, "COUNT") && rest.is_empty() => {
            call.reply
                .count(u64::try_from(table::names().len()).unwrap_or(u64::MAX));
        }
        () if is(word, "LIST") && rest.is_empty() => {
            call.reply.array(table::names().len());
            for name in table::names() {
                call.reply.bulk(name.as_bytes());
            }
        }
        () if is(word, "INFO") => {
            call.reply.array(rest.len());
            for name in rest {
                reply_command(call, name);
            }
        }
        // This store has no documentation of commands, because the documentation that Redis gives is better.
        () if is(word, "DOCS") => call.reply.map(0),
        () => return Err(unknown(call, word)),
    }
    Ok(())
}

fn reply_command(call: &mut Call<'_, '_>, name: &[u8]) {
    let Some(fact) = table::fact(name) else {
        return call.reply.null();
    };
    call.reply.array(10);
    call.reply.bulk(fact.name.as_bytes());
    call.reply.integer(fact.arity.into());
    call.reply.set(1);
    call.reply
        .status(if fact.writes { "write" } else { "readonly" });
    let [first, last, step] = fact.keys;
    for number in [first, last, step] {
        call.reply.integer(number);
    }
    // The four empty lists are categories, hints, details of key positions, and subcommands.
    for _ in 0..4 {
        call.reply.array(0);
    }
}

pub fn time(call: &mut Call<'_, '_>) -> Outcome {
    let now = call.keys.now();
    call.reply.array(2);
    call.reply.bulk((now / 1000).to_string().as_bytes());
    call.reply.bulk((now % 1000 * 1000).to_string().as_bytes());
    Ok(())
}

pub fn lastsave(call: &mut Call<'_, '_>) -> Outcome {
    // All data is always durable, so the last save was now.
    let now = call.keys.now() / 1000;
    call.reply.count(now);
    Ok(())
}

pub fn role(call: &mut Call<'_, '_>) -> Outcome {
    call.reply.array(3);
    call.reply.bulk(b"master");
    call.reply.integer(0);
    call.reply.array(0);
    Ok(())
}

pub fn object(call: &mut Call<'_, '_>) -> Outcome {
    let (word, rest) = subcommand(call)?;
    let [key] = rest else {
        return Err(unknown(call, word));
    };
    let freq = is(word, "FREQ");
    if !freq
        && !["ENCODING", "IDLETIME", "REFCOUNT"]
            .iter()
            .any(|known| is(word, known))
    {
        return Err(unknown(call, word));
    }
    let Some(head) = call.head(key)? else {
        call.reply.null();
        return Ok(());
    };
    if freq {
        return Err(error(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between \
             policies at runtime LRU and LFU data will take some time to adjust.",
        ));
    }
    if is(word, "ENCODING") {
        let encoding = encoding(call, key, &head)?;
        call.reply.bulk(encoding.as_bytes());
    } else {
        call.reply.integer(i64::from(is(word, "REFCOUNT")));
    }
    Ok(())
}

/// Returns the encoding that Redis would use for the value.
fn encoding(call: &Call<'_, '_>, key: &[u8], head: &Head) -> Outcome<&'static str> {
    Ok(match head.kind {
        Kind::String => {
            let look = |_: Head, value: &[u8]| match value.len() {
                _ if is_integer(value) => "int",
                0..=EMBEDDED_BYTES => "embstr",
                _ => "raw",
            };
            call.keys.string(call.database, key, look)?.unwrap_or("raw")
        }
        Kind::List => "quicklist",
        Kind::SortedSet if head.large => "skiplist",
        Kind::SortedSet => "listpack",
        Kind::Hash => match head.count <= LISTPACK_ENTRIES && all(call, head, is_short)? {
            true => "listpack",
            false => "hashtable",
        },
        Kind::Set => match head.count <= INTSET_ENTRIES && all(call, head, |m, _| is_integer(m))? {
            true => "intset",
            false => "hashtable",
        },
    })
}

fn is_integer(text: &[u8]) -> bool {
    pmnet_resp::parse_integer(text).is_some()
}

fn is_short(name: &[u8], value: &[u8]) -> bool {
    name.len() <= LISTPACK_BYTES && value.len() <= LISTPACK_BYTES
}

fn all(call: &Call<'_, '_>, head: &Head, fits: impl Fn(&[u8], &[u8]) -> bool) -> Outcome<bool> {
    let mut all = true;
    call.keys.members(
        head.id,
        Part::Members,
        ALL,
        Order::Ascending,
        &mut |name, row| {
            all = fits(name, row.value);
            match all {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        },
    )?;
    Ok(all)
}

pub fn memory_command(call: &mut Call<'_, '_>) -> Outcome {
    let (word, rest) = subcommand(call)?;
    match () {
        () if is(word, "USAGE") => usage(call, rest),
        () if is(word, "PURGE") && rest.is_empty() => {
            call.reply.ok();
            Ok(())
        }
        () if is(word, "DOCTOR") && rest.is_empty() => {
            call.reply
                .bulk(b"Ask pmnet store stat about the room in a packet store.");
            Ok(())
        }
        () => Err(unknown(call, word)),
    }
}

fn usage(call: &mut Call<'_, '_>, rest: &[&[u8]]) -> Outcome {
    let (key, options) = rest.split_first().ok_or(SYNTAX)?;
    let mut samples = SAMPLES;
    let mut options = Options::new(options);
    while let Some(option) = options.next() {
        if !is(option, "SAMPLES") {
            return Err(SYNTAX);
        }
        samples = match u64::try_from(integer(options.value()?)?) {
            Ok(0) => u64::MAX,
            Ok(some) => some,
            Err(_) => return Err(SYNTAX),
        };
    }
    let Some(head) = call.head(key)? else {
        call.reply.null();
        return Ok(());
    };
    let own = u64::try_from(key.len() + ROW_BYTES).unwrap_or(u64::MAX);
    let (part, rows) = match head.kind {
        Kind::String => {
            call.reply.count(own + head.count);
            return Ok(());
        }
        Kind::List => (Part::Elements, 1),
        Kind::SortedSet => (Part::Members, 2),
        Kind::Hash | Kind::Set => (Part::Members, 1),
    };
    let (mut seen, mut bytes) = (0, 0);
    call.keys
        .members(head.id, part, ALL, Order::Ascending, &mut |name, row| {
            seen += 1;
            bytes += name.len() + row.value.len() + ROW_BYTES;
            match seen < samples {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
    let mean = bytes / size(seen).max(1);
    let members = u64::try_from(mean).unwrap_or(u64::MAX) * head.count * rows;
    call.reply.count(own + members);
    Ok(())
}

pub fn slowlog(call: &mut Call<'_, '_>) -> Outcome {
    let (word, _) = subcommand(call)?;
    match () {
        () if is(word, "GET") => call.reply.array(0),
        () if is(word, "LEN") => call.reply.integer(0),
        () if is(word, "RESET") => call.reply.ok(),
        () => return Err(unknown(call, word)),
    }
    Ok(())
}

pub fn latency(call: &mut Call<'_, '_>) -> Outcome {
    let (word, _) = subcommand(call)?;
    match () {
        () if is(word, "LATEST") || is(word, "HISTORY") => call.reply.array(0),
        () if is(word, "HISTOGRAM") => call.reply.map(0),
        () if is(word, "RESET") => call.reply.integer(0),
        () => return Err(unknown(call, word)),
    }
    Ok(())
}

pub fn module(call: &mut Call<'_, '_>) -> Outcome {
    let (word, rest) = subcommand(call)?;
    if !is(word, "LIST") || !rest.is_empty() {
        return Err(unknown(call, word));
    }
    call.reply.array(0);
    Ok(())
}

pub fn cluster(_call: &mut Call<'_, '_>) -> Outcome {
    Err(NO_CLUSTER)
}
