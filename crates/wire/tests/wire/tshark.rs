//! With the committed dissector, tshark shows for each vector the fields that the parser reads.

#[path = "../../../../tests/shared/skip.rs"]
mod skip;

use pmnet_wire::{Header, Kind, packet::EntryKind, raw};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A capture of IPv4 packets (pcap, LINKTYPE_RAW), each with a UDP datagram.
fn capture(datagrams: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    // The format's version 2.4 is written as two 16-bit numbers.
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for (second, datagram) in (0u32..).zip(datagrams) {
        let udp = u16::try_from(8 + datagram.len()).expect("a datagram");
        let length = u32::from(udp) + 20;
        for word in [second, 0, length, length] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&[0x45, 0]);
        out.extend_from_slice(&(udp + 20).to_be_bytes());
        out.extend_from_slice(&[0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 2]);
        for half in [40_000, 51_000, udp, 0] {
            out.extend_from_slice(&half.to_be_bytes());
        }
        out.extend_from_slice(datagram);
    }
    out
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the fields of each packet, as tshark shows them; commas separate several fields of one name. `None`: tshark
/// is not installed.
fn shown(
    name: &str,
    datagrams: &[Vec<u8>],
    fields: &[&str],
) -> Option<Vec<HashMap<String, String>>> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.pcap"));
    std::fs::write(&path, capture(datagrams)).unwrap();
    let script = root().join("contrib/wireshark/pmnet.lua");
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-T", "fields", "-E", "separator=|"]);
    tshark
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()));
    tshark.arg("-r").arg(&path);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let Ok(done) = tshark.output() else {
        skip::skip("tshark is not installed");
        return None;
    };
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && !said.contains("Lua:"), "{said}");
    let text = String::from_utf8(done.stdout).expect("text");
    let rows: Vec<_> = text
        .lines()
        .map(|line| {
            let values = line.split('|').map(str::to_owned);
            fields
                .iter()
                .map(|field| (*field).to_owned())
                .zip(values)
                .collect()
        })
        .collect();
    assert_eq!(rows.len(), datagrams.len(), "{said}");
    Some(rows)
}

fn vectors(name: &str) -> Vec<Value> {
    let path = root().join("vectors").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn bytes(vector: &Value) -> Vec<u8> {
    let hex = vector["hex"].as_str().expect("hex");
    let byte = |at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex digits");
    (0..hex.len() / 2).map(byte).collect()
}

/// Parses a number as the vectors have it (JSON, or text with `0x`) or as tshark prints it (decimal, or with `0x`).
fn number(text: &str) -> u64 {
    let text = text.trim_matches('"');
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).expect(text),
        None => text.parse().expect(text),
    }
}

const HEADER: [&str; 18] = [
    "kind",
    "flags",
    "copies",
    "shard",
    "epoch",
    "device",
    "incarnation",
    "session",
    "seq",
    "order",
    "request",
    "key_hash",
    "fragment_index",
    "fragment_count",
    "payload_len",
    "payload_crc",
    "tag",
    "name",
];

#[test]
fn each_vector_is_named_with_all_its_fields_or_refused_for_its_reason() {
    let all: Vec<Value> = ["wire.json", "keys.json"]
        .iter()
        .flat_map(|name| vectors(name))
        .filter(|vector| vector["hex"].is_string())
        .collect();
    let datagrams: Vec<_> = all.iter().map(bytes).collect();
    let fields: Vec<String> = HEADER.iter().map(|name| format!("pmnet.{name}")).collect();
    let mut fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    fields.extend(["pmnet.reject", "_ws.expert.message"]);
    let Some(rows) = shown("vectors", &datagrams, &fields) else {
        return;
    };
    let mut named = 0;
    for (vector, row) in all.iter().zip(rows) {
        let name = &vector["name"];
        // The dissector itself must not fail. tshark may report vectors that carry no real payload.
        let said = &row["_ws.expert.message"];
        assert!(
            !said.contains("Lua") && !said.contains("Malformed"),
            "{name}: {said}"
        );
        match vector["reject"].as_str() {
            // tshark does not verify the MAC.
            None | Some("key") => {
                named += 1;
                assert_eq!(row["pmnet.reject"], "", "{name}");
                assert_ne!(row["pmnet.name"], "", "{name}");
                let Some(expected) = vector["fields"].as_object() else {
                    continue;
                };
                for (field, value) in expected {
                    if HEADER.contains(&field.as_str()) {
                        let shown = number(&row[&format!("pmnet.{field}")]);
                        assert_eq!(shown, number(&value.to_string()), "{name}: {field}");
                    }
                }
            }
            Some("foreign") => assert_eq!(row["pmnet.name"], "", "{name}"),
            Some(reason) => assert_eq!(row["pmnet.reject"], reason, "{name}"),
        }
    }
    assert!(named >= 2 * Kind::ALL.len(), "{named}");
}

/// Returns a packet of a kind that carries payloads of this language.
fn carrier(payload: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut header = Header::new(match payload {
        "commands" => Kind::Append,
        "durable" => Kind::Durable,
        "path" => Kind::Recover,
        "recover_reply" => Kind::RecoverReply,
        _ => return None,
    });
    header.copies = match header.kind {
        Kind::Append => raw(EntryKind::Update.number()),
        // In a DURABLE, byte 5 is the number of rows.
        Kind::Durable => raw(u8::try_from(bytes.len() / 16).unwrap_or(0)),
        _ => raw(0),
    };
    let mut out = Vec::new();
    header.write(bytes, &mut out);
    Some(out)
}

#[test]
fn payloads_are_shown_and_malformed_rows_are_said_to_be() {
    let (mut all, mut datagrams) = (Vec::new(), Vec::new());
    for vector in vectors("payload.json") {
        let payload = vector["payload"].as_str().expect("its language");
        let bytes = bytes(&vector);
        if bytes.len() > pmnet_wire::FRAGMENT_BYTES {
            continue;
        }
        if let Some(datagram) = carrier(payload, &bytes) {
            all.push(vector);
            datagrams.push(datagram);
        }
    }
    let fields = [
        "pmnet.name",
        "_ws.expert.message",
        "pmnet.command",
        "pmnet.command.form",
        "pmnet.durable_row.order",
        "pmnet.member.log_uuid",
        "pmnet.session_row.token",
    ];
    let Some(rows) = shown("payloads", &datagrams, &fields) else {
        return;
    };
    let count = |text: &str| text.split(',').filter(|part| !part.is_empty()).count();
    let length = |value: &Value| value.as_array().map_or(0, Vec::len);
    let mut malformed = 0;
    for (vector, row) in all.iter().zip(rows) {
        let (name, language) = (&vector["name"], vector["payload"].as_str().unwrap());
        let said = row["_ws.expert.message"].contains("The payload is not what its kind has");
        assert!(
            !row["_ws.expert.message"].contains("Lua"),
            "{name}: {row:?}"
        );
        if vector["fields"].is_null() {
            // The dissector does not check the commands after a preamble.
            assert!(said || language == "commands", "{name}: {row:?}");
            malformed += usize::from(said);
            continue;
        }
        assert!(!said, "{name}: {row:?}");
        let fields = &vector["fields"];
        match language {
            "commands" => assert_eq!(count(&row["pmnet.command.form"]), 1, "{name}"),
            "durable" => assert_eq!(
                count(&row["pmnet.durable_row.order"]),
                length(&fields["rows"]),
                "{name}"
            ),
            "path" => assert_eq!(
                count(&row["pmnet.member.log_uuid"]),
                length(&fields["members"]),
                "{name}"
            ),
            _ => {
                assert_eq!(
                    count(&row["pmnet.member.log_uuid"]),
                    length(&fields["members"]),
                    "{name}"
                );
                assert_eq!(
                    count(&row["pmnet.session_row.token"]),
                    length(&fields["sessions"]),
                    "{name}"
                );
            }
        }
    }
    assert!(malformed > 5, "{malformed}");
}
