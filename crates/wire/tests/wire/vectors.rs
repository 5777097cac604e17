//! The committed vectors agree with this crate, and equal the generator's output.

#[path = "../../examples/vectors/keys.rs"]
mod keys;
#[path = "../../examples/vectors/packets.rs"]
mod packets;
#[path = "../../examples/vectors/payloads.rs"]
mod payloads;
#[path = "../../examples/vectors/vector.rs"]
mod vector;

use pmnet_wire::packet::{self, Stamp};
use pmnet_wire::{Flags, Header, Kind, Packet, Reject};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

fn committed(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../vectors")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn parsed(name: &str) -> Vec<Value> {
    serde_json::from_str(&committed(name)).expect("the vectors are a JSON array")
}

fn text<'a>(vector: &'a Value, key: &str) -> &'a str {
    vector[key]
        .as_str()
        .unwrap_or_else(|| panic!("{key} of {vector}"))
}

fn bytes(vector: &Value) -> Vec<u8> {
    from_hex(text(vector, "hex"))
}

fn from_hex(digits: &str) -> Vec<u8> {
    assert!(digits.len().is_multiple_of(2), "whole bytes");
    (0..digits.len() / 2)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("hex digits"))
        .collect()
}

#[test]
fn committed_files_are_what_the_generator_writes() {
    let advice = "run: cargo run -p pmnet-wire --example vectors";
    assert!(
        committed("wire.json") == vector::text(&packets::all()),
        "wire.json is old; {advice}"
    );
    assert!(
        committed("payload.json") == vector::text(&payloads::all()),
        "payload.json is old; {advice}"
    );
    assert!(
        committed("keys.json") == vector::text(&keys::all()),
        "keys.json is old; {advice}"
    );
}

#[test]
fn every_packet_vector_holds() {
    for vector in parsed("wire.json") {
        let (name, datagram) = (text(&vector, "name"), bytes(&vector));
        match Packet::parse(&datagram) {
            Ok(packet) => {
                assert_eq!(vector::packet_fields(&packet), vector["fields"], "{name}");
                let mut again = Vec::new();
                packet.emit(&mut again);
                assert_eq!(again, datagram, "{name}: emitted again");
                let mut written = Vec::new();
                packet.header.write(packet.payload, &mut written);
                assert_eq!(written, datagram, "{name}: written anew");
            }
            Err(reason) => assert_eq!(vector["reject"], reason.name(), "{name}"),
        }
        assert!(
            vector["fields"].is_null() != vector["reject"].is_null(),
            "{name}: one of the two"
        );
    }
}

/// Returns the header as the view of its kind writes it.
fn through_its_view(header: &Header) -> Header {
    let stamp = &Stamp::of(header);
    let fallback = header.flags.has(Flags::FALLBACK);
    match header.kind {
        Kind::Open => packet::Open::read(header).header(stamp),
        Kind::OpenReply => packet::OpenReply::read(header).header(stamp),
        Kind::Update => packet::Update::read(header).header(stamp),
        Kind::Append => packet::Append::read(header).header(stamp),
        Kind::Ack => packet::Ack::read(header).header(stamp),
        Kind::Nack => packet::Nack::read(header).header(stamp),
        Kind::NotLogged => packet::NotLogged::read(header).header(stamp),
        Kind::Durable => packet::Durable::read(header).header(stamp),
        Kind::Applied => packet::Applied::read(header).header(stamp),
        Kind::Bypass if fallback => packet::Fallback::read(header).header(stamp),
        Kind::Bypass => packet::Bypass::read(header).header(stamp),
        Kind::Response if header.flags.has(Flags::PROGRESS) => {
            packet::Progress::read(header).header(stamp)
        }
        Kind::Response => packet::Response::read(header).header(stamp),
        Kind::Hit => packet::Hit::read(header).header(stamp),
        Kind::Read => packet::ReadKeys::read(header).header(stamp),
        Kind::Miss => packet::Miss::read(header).header(stamp),
        Kind::Retrans => packet::Retrans::read(header).header(stamp),
        Kind::Recover => packet::Recover::read(header).header(stamp),
        Kind::RecoverReply => packet::RecoverReply::read(header).header(stamp),
        Kind::StaleEpoch => packet::StaleEpoch::read(header).header(stamp),
        Kind::Ping => packet::Ping::read(header).header(stamp),
        Kind::Pong => packet::Pong::read(header).header(stamp),
        Kind::End => packet::End::read(header).header(stamp),
    }
}

#[test]
fn a_view_misses_nothing_of_a_packet_that_the_protocol_sends() {
    for (name, header, payload) in packets::kinds() {
        let view = through_its_view(&header);
        assert_eq!(
            view.for_payload(&payload),
            header.for_payload(&payload),
            "{name}"
        );
    }
}

#[test]
fn every_payload_vector_holds() {
    for vector in parsed("payload.json") {
        let name = text(&vector, "name");
        match payloads::judge(text(&vector, "payload"), &bytes(&vector)) {
            Ok(fields) => assert_eq!(fields, vector["fields"], "{name}"),
            Err(reason) => assert_eq!(vector["reject"], reason, "{name}"),
        }
    }
}

/// Computes the MAC from the bytes as they are sent. Only the hash function is this crate's.
fn mac_of_bytes(key: &[u8], datagram: &[u8]) -> u64 {
    let half = |at: usize| u64::from_le_bytes(key[at..at + 8].try_into().unwrap());
    let mut covered = datagram.to_vec();
    covered[76..88].fill(0);
    siphasher::sip::SipHasher24::new_with_keys(half(0), half(8)).hash(&covered)
}

#[test]
fn every_vector_of_keys_holds() {
    let mut kinds = BTreeSet::new();
    for vector in parsed("keys.json") {
        if vector["key"].is_null() {
            continue;
        }
        let (name, datagram) = (text(&vector, "name"), bytes(&vector));
        let key = from_hex(text(&vector, "key"));
        let packet = Packet::parse(&datagram).unwrap_or_else(|reason| panic!("{name}: {reason}"));
        let sealed = mac_of_bytes(&key, &datagram) == packet.header.tag;
        assert_eq!(sealed, vector["reject"].is_null(), "{name}");
        if sealed {
            assert_eq!(vector::packet_fields(&packet), vector["fields"], "{name}");
            kinds.insert(packet.header.kind);
        }
    }
    assert_eq!(
        kinds.len(),
        Kind::ALL.len(),
        "a sealed packet of every kind"
    );
}

#[test]
fn every_kind_and_every_reason_has_a_vector() {
    let vectors = parsed("wire.json");
    let kinds: BTreeSet<u64> = vectors
        .iter()
        .filter_map(|vector| vector["fields"]["kind"].as_u64())
        .collect();
    for kind in Kind::ALL {
        assert!(
            kinds.contains(&u64::from(kind.number())),
            "no vector of kind {kind:?}"
        );
    }
    let reasons: BTreeSet<&str> = vectors
        .iter()
        .filter_map(|vector| vector["reject"].as_str())
        .collect();
    for reason in Reject::ALL {
        assert!(
            reasons.contains(reason.name()),
            "no vector refused as {}",
            reason.name()
        );
    }
}

#[test]
fn names_are_unique() {
    for file in ["wire.json", "payload.json", "keys.json"] {
        let vectors = parsed(file);
        let names: BTreeSet<&str> = vectors.iter().map(|vector| text(vector, "name")).collect();
        assert_eq!(names.len(), vectors.len(), "{file}");
    }
}

/// wire.md shows one vector byte by byte for readers: offset, bytes, meaning.
#[test]
fn the_update_that_the_page_shows_is_the_vector() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/spec/wire.md");
    let page = std::fs::read_to_string(path).expect("the page of the wire format");
    let (_, shown) = page
        .split_once("### An update, byte by byte")
        .and_then(|(_, section)| section.split_once("```text\n"))
        .expect("the section");
    let (shown, _) = shown.split_once("```").expect("its end");
    let mut datagram = Vec::new();
    for line in shown.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[0], datagram.len().to_string(), "{line}");
        // Only the column of bytes is parsed, because a name of two letters could be read as a byte.
        let bytes = line[5..38].split_whitespace();
        datagram.extend(bytes.flat_map(from_hex));
    }
    let vectors = parsed("wire.json");
    let update = vectors
        .iter()
        .find(|vector| text(vector, "name") == "update");
    assert_eq!(datagram, bytes(update.expect("the vector")));
}
