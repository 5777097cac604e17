//! The form of a vector: a name, bytes, and either the fields that the bytes contain or the reason why they are
//! refused.
//!
//! Numbers of 64 and 128 bits are strings (`"0x…"`), because many languages read JSON numbers as doubles. Shorter
//! numbers are JSON numbers. Bytes are lower-case hexadecimal.

use pmnet_wire::command::Commands;
use pmnet_wire::record::{DurableRow, Member, RecoverReply};
use pmnet_wire::{Header, Packet, StoreName};
use serde::Serialize;
use serde_json::{Value, json};

/// A test vector.
#[derive(Serialize)]
pub struct Vector {
    /// Unique and stable name, which says what the vector tests.
    pub name: String,
    /// Language of a payload; packets have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<&'static str>,
    /// The bytes of the packet or payload, in hexadecimal.
    pub hex: String,
    /// The fields, if the bytes are accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Value>,
    /// The reason, if the bytes are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reject: Option<&'static str>,
}

/// Returns the text of a file with these vectors.
pub fn text(vectors: &[impl Serialize]) -> String {
    serde_json::to_string_pretty(vectors).expect("vectors are plain data") + "\n"
}

/// Returns bytes as lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a number of 64 or 128 bits as a JSON string.
pub fn long(value: impl std::fmt::LowerHex) -> Value {
    Value::String(format!("{value:#x}"))
}

/// Returns all fields of a packet.
pub fn packet_fields(packet: &Packet<'_>) -> Value {
    let h: &Header = &packet.header;
    json!({
        "kind": h.kind.number(),
        "kind_name": format!("{:?}", h.kind),
        "flags": h.flags.0,
        "copies": h.copies.raw(),
        "shard": h.shard,
        "epoch": h.epoch,
        "device": h.device,
        "incarnation": h.incarnation,
        "session": long(h.session),
        "seq": long(h.seq),
        "order": long(h.order),
        "request": long(h.request.raw()),
        "key_hash": long(h.key_hash.raw()),
        "fragment_index": h.fragment_index,
        "fragment_count": h.fragment_count,
        "payload_len": h.payload_len,
        "payload_crc": h.payload_crc,
        "tag": long(h.tag),
        "payload": hex(packet.payload),
    })
}

/// Returns all fields of a payload of commands.
pub fn command_fields(commands: &Commands<'_>) -> Value {
    let list: Vec<Vec<String>> = commands
        .iter()
        .map(|command| command.map(hex).collect())
        .collect();
    json!({
        "form": format!("{:?}", commands.form),
        "protocol": format!("{:?}", commands.protocol),
        "database": commands.database,
        "count": commands.count,
        "commands": list,
    })
}

/// Returns the rows of a DURABLE.
pub fn durable_fields(rows: &[DurableRow]) -> Value {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "device": row.device,
                "incarnation": row.incarnation,
                "order": long(row.order),
            })
        })
        .collect();
    json!({ "rows": rows })
}

fn member_fields(member: &Member) -> Value {
    json!({
        "device": member.device,
        "incarnation": member.incarnation,
        "log_uuid": long(member.log_uuid),
        "tail": long(member.tail),
        "applied": long(member.applied),
        "flags": member.flags,
        "size": member.size.bytes(),
    })
}

/// Returns the path of a RECOVER.
pub fn path_fields(path: &[Member]) -> Value {
    json!({ "members": path.iter().map(member_fields).collect::<Vec<_>>() })
}

/// Returns the fields of one part of a recover-reply.
pub fn reply_fields(reply: &RecoverReply) -> Value {
    let sessions: Vec<Value> = reply
        .sessions
        .iter()
        .map(|row| {
            json!({
                "session": long(row.session),
                "last_seq": long(row.last_seq),
                "token": long(row.token),
            })
        })
        .collect();
    json!({
        "shard_token": long(reply.shard_token),
        "members": reply.members.iter().map(member_fields).collect::<Vec<_>>(),
        "sessions": sessions,
    })
}

/// Returns the parts of a store's name.
pub fn store_name_fields(name: &StoreName) -> Value {
    json!({
        "address": name.address.to_string(),
        "run_id": name.run_id,
        "records": name.records,
        "owner": name.owner,
        "reads": name.reads,
    })
}
