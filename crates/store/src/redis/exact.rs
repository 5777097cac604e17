//! Commands whose replies a script returns unchanged.
//!
//! A script gets each reply as a Lua value, and encodes the value as bytes again. This conversion loses information:
//! nulls end an array, maps and sets lose their order, a null array and a null string become equal, and integers beyond
//! 53 bits are rounded. Also, inside a script, code of a client that may only read could write. So a script runs only
//! the commands in the lists of this module, whose replies have none of the forms that lose information. All other
//! commands, including unknown ones (of modules, of later versions of Redis), run between MULTI and EXEC, and their
//! replies are Redis's own bytes (`execute`).

/// The replies of these commands are integers, statuses, strings, nulls, or arrays of these, in both protocols.
/// `request.lua` runs these commands under RESP2.
const BOTH: &[&str] = &[
    // strings
    "APPEND",
    "DECR",
    "DECRBY",
    "GET",
    "GETDEL",
    "GETEX",
    "GETRANGE",
    "GETSET",
    "INCR",
    "INCRBY",
    "INCRBYFLOAT",
    "MGET",
    "MSET",
    "MSETNX",
    "PSETEX",
    "SET",
    "SETEX",
    "SETNX",
    "SETRANGE",
    "STRLEN",
    "SUBSTR",
    // keys
    "COPY",
    "DEL",
    "DUMP",
    "EXISTS",
    "EXPIRE",
    "EXPIREAT",
    "EXPIRETIME",
    "MOVE",
    "PERSIST",
    "PEXPIRE",
    "PEXPIREAT",
    "PEXPIRETIME",
    "PTTL",
    "RENAME",
    "RENAMENX",
    "RESTORE",
    "SORT",
    "SORT_RO",
    "TOUCH",
    "TTL",
    "TYPE",
    "UNLINK",
    // bits, HyperLogLogs
    "BITCOUNT",
    "BITFIELD",
    "BITFIELD_RO",
    "BITOP",
    "BITPOS",
    "GETBIT",
    "PFADD",
    "PFCOUNT",
    "PFMERGE",
    "SETBIT",
    // hashes
    "HDEL",
    "HEXISTS",
    "HGET",
    "HINCRBY",
    "HINCRBYFLOAT",
    "HKEYS",
    "HLEN",
    "HMGET",
    "HMSET",
    "HSET",
    "HSETNX",
    "HSTRLEN",
    "HVALS",
    // lists
    "LINDEX",
    "LINSERT",
    "LLEN",
    "LMOVE",
    "LPOP",
    "LPOS",
    "LPUSH",
    "LPUSHX",
    "LRANGE",
    "LREM",
    "LSET",
    "LTRIM",
    "RPOP",
    "RPOPLPUSH",
    "RPUSH",
    "RPUSHX",
    // sets
    "SADD",
    "SCARD",
    "SDIFFSTORE",
    "SINTERCARD",
    "SINTERSTORE",
    "SISMEMBER",
    "SMISMEMBER",
    "SMOVE",
    "SRANDMEMBER",
    "SREM",
    "SUNIONSTORE",
    // sorted sets: their numbers have the same text in both protocols
    "ZADD",
    "ZCARD",
    "ZCOUNT",
    "ZDIFFSTORE",
    "ZINCRBY",
    "ZINTERCARD",
    "ZINTERSTORE",
    "ZLEXCOUNT",
    "ZMSCORE",
    "ZRANGESTORE",
    "ZREM",
    "ZREMRANGEBYLEX",
    "ZREMRANGEBYRANK",
    "ZREMRANGEBYSCORE",
    "ZSCORE",
    "ZUNIONSTORE",
    // streams
    "XACK",
    "XADD",
    "XDEL",
    "XGROUP",
    "XLEN",
    "XSETID",
    "XTRIM",
    // places
    "GEOADD",
    "GEODIST",
    "GEOHASH",
    "GEOSEARCHSTORE",
    // other commands
    "ECHO",
    "PING",
    "PUBLISH",
    "SPUBLISH",
    // `request.lua` handles these itself
    "EVAL",
    "EVALSHA",
    "FLUSHALL",
    "FLUSHDB",
    "SCRIPT",
];
/// Under RESP2 only, the replies of these commands are integers, statuses, strings, nulls or arrays of these. Under
/// RESP3 their replies are maps, sets, or arrays of pairs or doubles.
const RESP2: &[&str] = &[
    "HGETALL",
    "HRANDFIELD",
    "SDIFF",
    "SINTER",
    "SMEMBERS",
    "SPOP",
    "SUNION",
    "ZDIFF",
    "ZINTER",
    "ZPOPMAX",
    "ZPOPMIN",
    "ZRANDMEMBER",
    "ZRANGE",
    "ZRANGEBYLEX",
    "ZRANGEBYSCORE",
    "ZREVRANGE",
    "ZREVRANGEBYLEX",
    "ZREVRANGEBYSCORE",
    "ZUNION",
];
/// Widest field of `BITFIELD` whose numbers Lua does not round, in bits.
const FIELD_BITS_MAX: u32 = 53;

/// Returns whether a script returns the reply to this command unchanged.
#[must_use]
pub fn survives_script(name: &[u8], arguments: &[&[u8]], resp3: bool) -> bool {
    let is_in = |names: &[&str]| names.iter().any(|known| known.as_bytes() == name);
    match name {
        b"BITFIELD" | b"BITFIELD_RO" => !arguments.iter().any(|a| is_wide_field(a)),
        // Redis does not let a script flush scripts.
        b"SCRIPT" => !is_script_flush(name, arguments),
        // The reply for a single member is a string.
        b"SPOP" if arguments.len() == 2 => true,
        _ => is_in(BOTH) || (!resp3 && is_in(RESP2)),
    }
}

/// Returns whether the command makes Redis forget the scripts of clients. Redis itself reports wrong arguments.
#[must_use]
pub fn is_script_flush(name: &[u8], arguments: &[&[u8]]) -> bool {
    name == b"SCRIPT" && arguments.len() >= 2 && arguments[1].eq_ignore_ascii_case(b"FLUSH")
}

fn is_wide_field(argument: &[u8]) -> bool {
    let Some((b'i' | b'u' | b'I' | b'U', digits)) = argument.split_first() else {
        return false;
    };
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse::<u32>().ok())
        .is_some_and(|bits| bits > FIELD_BITS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survives(command: &str, resp3: bool) -> bool {
        let arguments: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        survives_script(arguments[0], &arguments, resp3)
    }

    #[test]
    fn only_what_lua_can_hand_back_runs_in_a_script() {
        for command in ["SET k v", "SPOP s", "BITFIELD k GET i53 0", "EVAL x 0"] {
            assert!(
                survives(command, false) && survives(command, true),
                "{command}"
            );
        }
        for command in ["HGETALL h", "SPOP s 2", "ZPOPMIN z"] {
            assert!(
                survives(command, false) && !survives(command, true),
                "{command}"
            );
        }
        for command in [
            "XREADGROUP GROUP g c STREAMS s 0",
            "XPENDING s g",
            "BITFIELD k GET i64 0",
            "BITFIELD_RO k GET U63 0",
            "SCRIPT flush",
            "EVAL_RO x 0",
            "XRANGE s - +",
            "BF.ADD f x",
        ] {
            assert!(
                !survives(command, false) && !survives(command, true),
                "{command}"
            );
        }
    }
}
