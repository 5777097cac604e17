//! Reads that travel with the writes before them.
//!
//! A read after a write of its pipeline would have to wait for the write's reply, and then travel alone: two round
//! trips for two commands. Instead, the read can be a part of the pack of writes. The store executes the read at its
//! place in the pack, and keeps the read's reply with the replies of the writes. The store should not keep a long
//! reply, so it ends the pack before a read whose reply is long. The read with the long reply then travels alone.

use pmnet_wire::command::{PREAMBLE_LEN, Protocol};

use super::pack::{Kind, PACK_BYTES_MAX, Packs};
use super::reads::Reads;
use crate::client::command::Command;
use crate::upstream::Time;

/// Commands whose replies are integers, scores or names of types. The store runs these commands in the script of the
/// writes (`exact` in `crates/store`).
const SHORT: [&str; 20] = [
    "BITCOUNT",
    "BITPOS",
    "EXISTS",
    "EXPIRETIME",
    "GETBIT",
    "HEXISTS",
    "HLEN",
    "HSTRLEN",
    "LLEN",
    "PEXPIRETIME",
    "PTTL",
    "SCARD",
    "SISMEMBER",
    "STRLEN",
    "TTL",
    "TYPE",
    "XLEN",
    "ZCARD",
    "ZCOUNT",
    "ZSCORE",
];
/// Commands whose replies may be long, and come back from a script unchanged. If a reply is long, the store leaves the
/// read of this reply and all later parts out of the pack.
const ANY_LENGTH: [&str; 24] = [
    "BITFIELD_RO",
    "GEODIST",
    "GEOHASH",
    "GET",
    "GETRANGE",
    "HGET",
    "HKEYS",
    "HMGET",
    "HVALS",
    "LINDEX",
    "LPOS",
    "LRANGE",
    "MGET",
    "PFCOUNT",
    "SINTERCARD",
    "SMISMEMBER",
    "SORT_RO",
    "SRANDMEMBER",
    "SUBSTR",
    "TOUCH",
    "DUMP",
    "ZINTERCARD",
    "ZLEXCOUNT",
    "ZMSCORE",
];
/// Commands that belong to [`ANY_LENGTH`] for RESP2 clients only.
const ANY_LENGTH_RESP2: [&str; 13] = [
    "HGETALL",
    "HRANDFIELD",
    "SDIFF",
    "SINTER",
    "SMEMBERS",
    "SUNION",
    "ZRANDMEMBER",
    "ZRANGE",
    "ZRANGEBYLEX",
    "ZRANGEBYSCORE",
    "ZREVRANGE",
    "ZREVRANGEBYLEX",
    "ZREVRANGEBYSCORE",
];
/// Maximum number of reads in a row that join packs. A longer row of reads is faster if it is sent separately.
const IN_A_ROW_MAX: usize = 16;

/// Whether this read travels with the writes before it.
pub(in crate::client) fn goes_beside_writes(
    command: &Command<'_>,
    packs: &Packs,
    reads: &Reads,
    protocol: Protocol,
    now: Time,
) -> bool {
    let Some(facts) = command
        .verdict
        .facts
        .filter(|_| packs.detours() < IN_A_ROW_MAX)
    else {
        return false;
    };
    let bytes = command.frame.len();
    let has_room = match packs.current() {
        // A pack with code must have nothing before or after the code, so that the code can be stopped.
        Some(pack) => {
            !pack.runs_code()
                && !pack.is_transaction_of_reads()
                && pack.has_room(Kind::Writes, bytes)
        }
        None => may_open_pack(packs, reads, bytes),
    };
    let is_in = |names: &[&str]| names.contains(&facts.name);
    let resp2 = protocol == Protocol::Resp2;
    let fits = is_in(&SHORT)
        || (reads.may_be_long(now) && (is_in(&ANY_LENGTH) || (resp2 && is_in(&ANY_LENGTH_RESP2))));
    fits && has_room
}

/// Whether a command of this length that could be sent alone is kept back as the first command of the next pack. The
/// command is kept back if the previous pack is under way, and if at most [`IN_A_ROW_MAX`] such commands in a row have
/// joined packs.
pub(in crate::client) fn may_open_pack(packs: &Packs, reads: &Reads, bytes: usize) -> bool {
    packs.is_out()
        && !reads.has_batch()
        && packs.detours() < IN_A_ROW_MAX
        && bytes <= PACK_BYTES_MAX - PREAMBLE_LEN
}
