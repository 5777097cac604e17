//! All commands by name, and the checks that precede a command.

use bytes::Bytes;
use pmnet_resp::reply::error as error_reply;
use pmnet_wire::command::{Arguments, Commands};

use super::arguments::{NO_SUCH_DATABASE, Outcome, Stop};
use super::float::c_string;
use super::layout::DATABASES;
use super::reply::Reply;
use super::{
    Call, Keyspace, about, bits, expiry, hashes, items, keys, lists, scan, score_ranges,
    score_sets, sets, sort, sorted_sets, strings, waiting,
};
use crate::rows::Fault;

/// Length of the arguments' text that an error repeats, in bytes, as in Redis.
const SHOWN_BYTES_MAX: usize = 128;

/// The settings of the client for which a command runs.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Selected database.
    pub database: u32,
    /// Whether replies are in RESP3.
    pub resp3: bool,
}

/// A command in the table.
struct Command {
    name: &'static str,
    /// Number of arguments, including the name, as in Redis. A negative number means a minimum.
    arity: i32,
    /// Whether the command may change data.
    writes: bool,
    /// Whether the command removes more data than it writes, so that a full store must still accept it.
    frees: bool,
    run: fn(&mut Call<'_, '_>) -> Outcome,
}

const fn read(name: &'static str, arity: i32, run: fn(&mut Call<'_, '_>) -> Outcome) -> Command {
    Command {
        name,
        arity,
        writes: false,
        frees: false,
        run,
    }
}

const fn write(name: &'static str, arity: i32, run: fn(&mut Call<'_, '_>) -> Outcome) -> Command {
    Command {
        name,
        arity,
        writes: true,
        frees: false,
        run,
    }
}

const fn free(name: &'static str, arity: i32, run: fn(&mut Call<'_, '_>) -> Outcome) -> Command {
    Command {
        frees: true,
        ..write(name, arity, run)
    }
}

/// The commands in the order of their names.
#[rustfmt::skip]
static COMMANDS: &[Command] = &[
    write("append", 3, strings::append),
    read("asking", 1, about::cluster),
    read("bitcount", -2, bits::bitcount),
    write("bitop", -4, bits::bitop),
    read("bitpos", -3, bits::bitpos),
    write("blmove", 6, lists::blmove),
    free("blmpop", -5, lists::blmpop),
    free("blpop", -3, lists::blpop),
    free("brpop", -3, lists::brpop),
    write("brpoplpush", 4, lists::brpoplpush),
    free("bzmpop", -5, sorted_sets::bzmpop),
    free("bzpopmax", -3, sorted_sets::bzpopmax),
    free("bzpopmin", -3, sorted_sets::bzpopmin),
    read("cluster", -2, about::cluster),
    read("command", -1, about::command),
    read("config", -2, about::config),
    write("copy", -3, keys::copy),
    read("dbsize", 1, keys::dbsize),
    write("decr", 2, strings::decr),
    write("decrby", 3, strings::decrby),
    free("del", -2, keys::del),
    read("echo", 2, keys::echo),
    read("exists", -2, keys::exists),
    free("expire", -3, expiry::expire),
    free("expireat", -3, expiry::expireat),
    read("expiretime", 2, expiry::expiretime),
    free("flushall", -1, keys::flushall),
    free("flushdb", -1, keys::flushdb),
    read("get", 2, strings::get),
    read("getbit", 3, bits::getbit),
    free("getdel", 2, strings::getdel),
    free("getex", -2, strings::getex),
    read("getrange", 4, strings::getrange),
    write("getset", 3, strings::getset),
    free("hdel", -3, hashes::hdel),
    read("hexists", 3, hashes::hexists),
    read("hget", 3, hashes::hget),
    read("hgetall", 2, hashes::hgetall),
    write("hincrby", 4, hashes::hincrby),
    write("hincrbyfloat", 4, hashes::hincrbyfloat),
    read("hkeys", 2, hashes::hkeys),
    read("hlen", 2, hashes::hlen),
    read("hmget", -3, hashes::hmget),
    write("hmset", -4, hashes::hmset),
    read("hrandfield", -2, hashes::hrandfield),
    read("hscan", -3, scan::hscan),
    write("hset", -4, hashes::hset),
    write("hsetnx", 4, hashes::hsetnx),
    read("hstrlen", 3, hashes::hstrlen),
    read("hvals", 2, hashes::hvals),
    write("incr", 2, strings::incr),
    write("incrby", 3, strings::incrby),
    write("incrbyfloat", 3, strings::incrbyfloat),
    read("info", -1, about::info),
    read("keys", 2, keys::keys),
    read("lastsave", 1, about::lastsave),
    read("latency", -2, about::latency),
    read("lindex", 3, lists::lindex),
    write("linsert", 5, lists::linsert),
    read("llen", 2, lists::llen),
    write("lmove", 5, lists::lmove),
    free("lmpop", -4, lists::lmpop),
    free("lpop", -2, lists::lpop),
    read("lpos", -3, lists::lpos),
    write("lpush", -3, lists::lpush),
    write("lpushx", -3, lists::lpushx),
    read("lrange", 4, lists::lrange),
    free("lrem", 4, lists::lrem),
    write("lset", 4, lists::lset),
    free("ltrim", 4, lists::ltrim),
    read("memory", -2, about::memory_command),
    read("mget", -2, strings::mget),
    read("module", -2, about::module),
    write("move", 3, keys::move_key),
    write("mset", -3, strings::mset),
    write("msetnx", -3, strings::msetnx),
    read("object", -2, about::object),
    write("persist", 2, expiry::persist),
    free("pexpire", -3, expiry::pexpire),
    free("pexpireat", -3, expiry::pexpireat),
    read("pexpiretime", 2, expiry::pexpiretime),
    read("ping", -1, keys::ping),
    write("psetex", 4, strings::psetex),
    read("pttl", 2, expiry::pttl),
    read("randomkey", 1, keys::randomkey),
    read("readonly", 1, about::cluster),
    read("readwrite", 1, about::cluster),
    write("rename", 3, keys::rename),
    write("renamenx", 3, keys::renamenx),
    read("role", 1, about::role),
    free("rpop", -2, lists::rpop),
    write("rpoplpush", 3, lists::rpoplpush),
    write("rpush", -3, lists::rpush),
    write("rpushx", -3, lists::rpushx),
    write("sadd", -3, sets::sadd),
    read("scan", -2, scan::scan),
    read("scard", 2, sets::scard),
    read("sdiff", -2, sets::sdiff),
    write("sdiffstore", -3, sets::sdiffstore),
    write("set", -3, strings::set),
    write("setbit", 4, bits::setbit),
    write("setex", 4, strings::setex),
    write("setnx", 3, strings::setnx),
    write("setrange", 4, strings::setrange),
    read("sinter", -2, sets::sinter),
    read("sintercard", -3, sets::sintercard),
    write("sinterstore", -3, sets::sinterstore),
    read("sismember", 3, sets::sismember),
    read("slowlog", -2, about::slowlog),
    read("smembers", 2, sets::smembers),
    read("smismember", -3, sets::smismember),
    write("smove", 4, sets::smove),
    write("sort", -2, sort::sort),
    read("sort_ro", -2, sort::sort_ro),
    free("spop", -2, sets::spop),
    read("srandmember", -2, sets::srandmember),
    free("srem", -3, sets::srem),
    read("sscan", -3, scan::sscan),
    read("strlen", 2, strings::strlen),
    read("substr", 4, strings::getrange),
    read("sunion", -2, sets::sunion),
    write("sunionstore", -3, sets::sunionstore),
    read("time", 1, about::time),
    read("touch", -2, keys::exists),
    read("ttl", 2, expiry::ttl),
    read("type", 2, keys::kind),
    free("unlink", -2, keys::del),
    write("zadd", -4, sorted_sets::zadd),
    read("zcard", 2, sorted_sets::zcard),
    read("zcount", 4, score_ranges::zcount),
    read("zdiff", -3, score_sets::zdiff),
    write("zdiffstore", -4, score_sets::zdiffstore),
    write("zincrby", 4, sorted_sets::zincrby),
    read("zinter", -3, score_sets::zinter),
    read("zintercard", -3, score_sets::zintercard),
    write("zinterstore", -4, score_sets::zinterstore),
    read("zlexcount", 4, score_ranges::zlexcount),
    free("zmpop", -4, sorted_sets::zmpop),
    read("zmscore", -3, sorted_sets::zmscore),
    free("zpopmax", -2, sorted_sets::zpopmax),
    free("zpopmin", -2, sorted_sets::zpopmin),
    read("zrandmember", -2, sorted_sets::zrandmember),
    read("zrange", -4, score_ranges::zrange),
    read("zrangebylex", -4, score_ranges::zrangebylex),
    read("zrangebyscore", -4, score_ranges::zrangebyscore),
    write("zrangestore", -5, score_ranges::zrangestore),
    read("zrank", 3, sorted_sets::zrank),
    free("zrem", -3, sorted_sets::zrem),
    free("zremrangebylex", 4, score_ranges::zremrangebylex),
    free("zremrangebyrank", 4, score_ranges::zremrangebyrank),
    free("zremrangebyscore", 4, score_ranges::zremrangebyscore),
    read("zrevrange", -4, score_ranges::zrevrange),
    read("zrevrangebylex", -4, score_ranges::zrevrangebylex),
    read("zrevrangebyscore", -4, score_ranges::zrevrangebyscore),
    read("zrevrank", 3, sorted_sets::zrevrank),
    read("zscan", -3, scan::zscan),
    read("zscore", 3, sorted_sets::zscore),
    read("zunion", -3, score_sets::zunion),
    write("zunionstore", -4, score_sets::zunionstore),
];

/// A command for fronts that serve memcached. No client of Redis may send it.
static ITEM: Command = write(pmnet_wire::item::COMMAND, -3, items::item);

fn find(name: &[u8]) -> Option<&'static Command> {
    if name == ITEM.name.as_bytes() {
        return Some(&ITEM);
    }
    let name = name.to_ascii_lowercase();
    let at = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(&name));
    at.ok().map(|at| &COMMANDS[at])
}

/// Facts about a command.
pub struct Fact {
    /// The command's name in lower case.
    pub name: &'static str,
    /// Number of arguments, including the name. A negative number means a minimum.
    pub arity: i32,
    /// Whether the command may change data.
    pub writes: bool,
    /// Positions of the command's keys: the first, the last (negative: from the end), and the distance between two
    /// keys. 0: the command has no keys, or an argument gives their number.
    pub keys: [i64; 3],
}

/// Returns the names of all commands.
pub fn names() -> impl ExactSizeIterator<Item = &'static str> {
    COMMANDS.iter().map(|command| command.name)
}

/// Returns facts about a command if the table has it.
pub fn fact(name: &[u8]) -> Option<Fact> {
    let command = find(name)?;
    let Command {
        name,
        arity,
        writes,
        ..
    } = *command;
    let keys = match name {
        "asking" | "blmpop" | "bzmpop" | "cluster" | "command" | "config" | "dbsize" | "echo"
        | "flushall" | "flushdb" | "info" | "keys" | "lastsave" | "latency" | "lmpop"
        | "memory" | "module" | "object" | "ping" | "randomkey" | "readonly" | "readwrite"
        | "role" | "scan" | "sintercard" | "slowlog" | "time" | "zdiff" | "zinter"
        | "zintercard" | "zmpop" | "zunion" => [0; 3],
        "del" | "exists" | "mget" | "sdiff" | "sdiffstore" | "sinter" | "sinterstore"
        | "sunion" | "sunionstore" | "touch" | "unlink" => [1, -1, 1],
        "blpop" | "brpop" | "bzpopmax" | "bzpopmin" => [1, -2, 1],
        "mset" | "msetnx" => [1, -1, 2],
        "bitop" => [2, -1, 1],
        "blmove" | "brpoplpush" | "copy" | "lmove" | "rename" | "renamenx" | "rpoplpush"
        | "smove" | "zrangestore" => [1, 2, 1],
        _ => [1, 1, 1],
    };
    Some(Fact {
        name,
        arity,
        writes,
        keys,
    })
}

/// Returns the error for a command that changes data but was sent as a read.
pub fn refuse_as_read(mut arguments: Arguments<'_>) -> Option<Bytes> {
    let command = find(arguments.next()?)?;
    let writes = match command.name {
        "sort" => arguments.any(|word| super::arguments::is(word, "STORE")),
        _ => command.writes,
    };
    writes.then(|| {
        error_reply(&format!(
            "ERR pmnet: {} changes data, but came as a read",
            command.name
        ))
    })
}

/// Returns the command. The error is the reason why Redis would not even queue it.
fn look_up(arguments: &[&[u8]]) -> Result<&'static Command, Bytes> {
    let Some(command) = find(arguments[0]) else {
        return Err(error_reply(&unknown(arguments)));
    };
    let count = i32::try_from(arguments.len()).unwrap_or(i32::MAX);
    let fits = if command.arity >= 0 {
        count == command.arity
    } else {
        count >= -command.arity
    };
    if fits {
        return Ok(command);
    }
    let Stop::Error(text) = super::arguments::wrong_number(command.name) else {
        return Ok(command);
    };
    Err(error_reply(&text))
}

/// Returns the text for a command that is not in the table.
fn unknown(arguments: &[&[u8]]) -> Vec<u8> {
    let cut = |text: &[u8], room: usize| {
        let text = c_string(text);
        text[..text.len().min(room)].to_vec()
    };
    let mut shown = Vec::new();
    for argument in &arguments[1..] {
        if shown.len() >= SHOWN_BYTES_MAX {
            break;
        }
        let text = cut(argument, SHOWN_BYTES_MAX - shown.len());
        shown.extend([b"'", &text[..], b"' "].concat());
    }
    let name = cut(arguments[0], SHOWN_BYTES_MAX);
    [
        b"ERR unknown command '",
        &name[..],
        b"', with args beginning with: ",
        &shown,
    ]
    .concat()
}

/// Returns the reply of a transaction if Redis would not have queued one of its commands.
pub fn execaborted(commands: &Commands<'_>) -> Option<Bytes> {
    commands
        .iter()
        .map(|arguments| arguments.collect::<Vec<_>>())
        .any(|arguments| waiting::Own::of(arguments[0]).is_none() && look_up(&arguments).is_err())
        .then(|| error_reply("EXECABORT Transaction discarded because of previous errors."))
}

/// Runs one command, which has at least a name. An error of the command is its reply.
///
/// # Errors
/// A [`Fault`] of the rows. The caller must then give the transaction up.
pub fn run(
    keys: &mut Keyspace<'_>,
    context: &Context,
    arguments: &[&[u8]],
) -> Result<Bytes, Fault> {
    if let Some(own) = waiting::Own::of(arguments[0]) {
        return own.run(keys, context, &arguments[1..]);
    }
    let command = match look_up(arguments) {
        Ok(command) => command,
        Err(error) => return Ok(error),
    };
    let mut call = Call {
        keys,
        database: context.database,
        name: command.name,
        arguments: &arguments[1..],
        reply: Reply::new(context.resp3),
    };
    call.keys.set_frees(command.frees);
    let done = if context.database < DATABASES {
        (command.run)(&mut call)
    } else {
        Err(NO_SUCH_DATABASE)
    };
    call.keys.set_frees(false);
    match done {
        Ok(()) => {}
        Err(Stop::Error(text)) => call.reply.fail(&text),
        Err(Stop::Fault(fault)) => return Err(fault),
    }
    Ok(call.reply.finish().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_names_all_commands_and_no_others() {
        let guide = include_str!("../../../../docs/use/embedded-store.md");
        let (_, from) = guide.split_once("## Commands").unwrap();
        let (list, _) = from.split_once("; the front").unwrap();
        let mut named: Vec<String> = list
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_ascii_lowercase)
            .collect();
        named.sort();
        let known: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
        assert_eq!(named, known);
    }

    #[test]
    fn the_table_is_in_order() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(
            COMMANDS
                .iter()
                .all(|command| find(command.name.as_bytes()).is_some())
        );
    }
}
