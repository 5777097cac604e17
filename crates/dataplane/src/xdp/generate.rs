//! Generates `generated.h` for the in-kernel programs: constants of `wire` and `log`, the shared structures, and
//! checksum tables. This module is part only of the build script.

use std::fmt::Write;

use pmnet_wire::packet::{Append, Field, LAYOUTS, Layout, READ_KEYS_MAX, Stamp};
use pmnet_wire::{Flags, Header, Kind};

#[path = "shared.rs"]
mod shared;

/// First and last byte of the header for which there is a table of contributions to the checksum (`pm_place`): from seq
/// to payload_crc.
const PLACE_FIRST: usize = 32;
const PLACE_LAST: usize = 75;
/// The places of a header whose meaning depends on the kind, which are adjacent and have eight bytes each. For each:
/// offset, and name in `docs/spec/wire.md` §1.
const PLACES: [(usize, &str); 4] = [
    (32, "seq"),
    (40, "order"),
    (48, "request"),
    (56, "key_hash"),
];
/// Offset of the session, which has this name in every kind.
const SESSION: usize = 24;
/// Offset of the fragment numbers, which the pipeline checks in packets of every kind.
const FRAGMENT: usize = 64;
/// Number of bytes at the beginning of a header, with the kind, that are compared as one word.
const WORD_BYTES: usize = 8;
/// The Castagnoli polynomial, reflected.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// Returns the text of `generated.h`.
pub fn header() -> String {
    let mut out = String::from(
        "/* Generated from the crates wire, log and dataplane. */\n#pragma once\n\n#include <linux/types.h>\n\n",
    );
    let mut define = |name: &str, value: usize| {
        writeln!(out, "#define PM_{name} {value}").expect("a string grows");
    };
    define("HEADER_LEN", pmnet_wire::HEADER_LEN);
    define("FRAGMENT_BYTES", pmnet_wire::FRAGMENT_BYTES);
    define("FRAGMENTS_MAX", pmnet_wire::FRAGMENTS_MAX.into());
    define("KIND_UPDATE", Kind::Update.number().into());
    define("BLOCK_BYTES", pmnet_log::BLOCK_BYTES);
    define("ENTRY_BYTES", pmnet_log::ENTRY_BYTES);
    define("FRAME_ALIGN", pmnet_log::FRAME_ALIGN);
    define("PLACE_FIRST", PLACE_FIRST);
    define("ROW_BYTES", pmnet_wire::record::DURABLE_ROW_BYTES);
    define("BEHIND_MAX", pmnet_wire::record::CHAIN_MAX - 1);
    define("READ_KEYS_MAX", READ_KEYS_MAX);
    define("WAY_INTERFACE", shared::WAY_INTERFACE);
    define("DEVICES_MAX", shared::DEVICES_MAX);
    define("TOOK_NS", shared::TOOK_NS);
    define("TOOK_SLOTS", shared::TOOK_SLOTS);
    // The first eight bytes of a header are read as one number in the byte order of this computer.
    let update = Header::new(Kind::Update);
    for (name, header) in [
        ("UPDATE_WORD", update),
        (
            "APPEND_WORD",
            Append::admitted(&update, 0, &Stamp::default()),
        ),
        ("ACK_WORD", Header::new(Kind::Ack)),
        ("DURABLE_WORD", Header::new(Kind::Durable)),
        ("READ_WORD", Header::new(Kind::Read)),
        (
            "KEPT_READ_WORD",
            Header {
                flags: Flags::KEPT,
                ..Header::new(Kind::Read)
            },
        ),
        ("HIT_WORD", Header::new(Kind::Hit)),
        ("MISS_WORD", Header::new(Kind::Miss)),
    ] {
        let bytes = header.emit();
        let word = u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes"));
        writeln!(out, "#define PM_{name} {word:#x}ull").expect("a string grows");
    }
    writeln!(out, "#define PM_HIDDEN {:#x}ull", shared::HIDDEN).expect("a string grows");
    writeln!(out, "#define PM_FOR_EVER {:#x}ull", shared::FOR_EVER).expect("a string grows");
    out.push_str("\n/* Bytes 32 to 63 of a header, and shifts for byte 5, by kind. */\n");
    for view in LAYOUTS {
        view_fields(&mut out, view);
    }
    for (name, align, fields) in [
        shared::Shard::C,
        shared::Hops::C,
        shared::Session::C,
        shared::HopKeys::C,
        shared::SessionKeys::C,
        shared::Bucket::C,
        shared::Closed::C,
        shared::Counters::C,
    ] {
        structure(&mut out, name, align, fields);
    }
    slices(&mut out);
    places(&mut out);
    out
}

/// Writes the fields of one kind under their names in that kind. The four [`PLACES`] become a structure, in which
/// places that the kind does not use are called reserved. For a byte of the first word, a shift is written.
fn view_fields(out: &mut String, view: &Layout) {
    let kind = in_snake_case(view.name);
    let mut names = PLACES.map(|(_, place)| format!("reserved_{place}"));
    for field in view.fields {
        let at = |place: &(usize, &str)| place.0 == field.offset && field.bytes == 8;
        if let Some(place) = PLACES.iter().position(at) {
            names[place] = field.name.into();
        } else if field.offset < WORD_BYTES {
            let name = format!("{kind}_{}", field.name).to_uppercase();
            writeln!(out, "#define PM_{name}_SHIFT {}", shift(field)).expect("a string grows");
        } else {
            let plain = [SESSION, FRAGMENT].contains(&field.offset);
            assert!(plain, "{kind}.{} has no place in C", field.name);
        }
    }
    let names = names.join(", ");
    writeln!(out, "struct pm_{kind}_fields {{ __be64 {names}; }};").expect("a string grows");
}

/// Returns the shift of one of the first eight bytes, which are read as one number in the byte order of this computer.
fn shift(field: &Field) -> usize {
    assert!(field.bytes == 1, "{} is not one byte", field.name);
    if cfg!(target_endian = "little") {
        8 * field.offset
    } else {
        8 * (WORD_BYTES - 1 - field.offset)
    }
}

/// Turns a name such as `NotLogged` into `not_logged`.
fn in_snake_case(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

fn structure(out: &mut String, name: &str, align: usize, fields: &[(&str, &str, usize)]) {
    writeln!(out, "\nstruct {name} {{").expect("a string grows");
    for (field, kind, _) in fields {
        let c_type = if kind.contains("AtomicU64") {
            "__u64"
        } else {
            "__u32"
        };
        // `[AtomicU32; 4]`
        let count = kind.split_once("; ").map_or("", |(_, count)| count);
        let bracket = if count.is_empty() { "" } else { "[" };
        writeln!(out, "\t{c_type} {field}{bracket}{count};").expect("a string grows");
    }
    writeln!(out, "}} __attribute__((aligned({align})));").expect("a string grows");
    for (field, _, offset) in fields {
        writeln!(
            out,
            "_Static_assert(__builtin_offsetof(struct {name}, {field}) == {offset}, \"{field}\");"
        )
        .expect("a string grows");
    }
}

/// For each CRC32C state below 256, returns the state after eight zero bits.
fn byte_table() -> [u32; 256] {
    std::array::from_fn(|byte| {
        let mut crc = u32::try_from(byte).expect("below 256");
        for _bit in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
        }
        crc
    })
}

fn zero_byte(table: &[u32; 256], crc: u32) -> u32 {
    (crc >> 8) ^ table[usize::try_from(crc & 255).expect("below 256")]
}

/// Returns tables of the contribution of each byte value to a checksum. Table number n (from 0) is for a byte after
/// which n more bytes follow.
fn contributions(count: usize) -> Vec<[u32; 256]> {
    let table = byte_table();
    let mut all = vec![table];
    while all.len() < count {
        let last = all[all.len() - 1];
        all.push(last.map(|crc| zero_byte(&table, crc)));
    }
    all
}

fn slices(out: &mut String) {
    table(out, "pm_slice", &contributions(16));
}

fn places(out: &mut String) {
    // After these places follow the checksum, whose four bytes do not count, and eight bytes of tag.
    let behind = |place: usize| PLACE_LAST - place + 8;
    let all = contributions(behind(PLACE_FIRST) + 1);
    let chosen: Vec<[u32; 256]> = (PLACE_FIRST..=PLACE_LAST)
        .map(|place| all[behind(place)])
        .collect();
    table(out, "pm_place", &chosen);
}

fn table(out: &mut String, name: &str, rows: &[[u32; 256]]) {
    writeln!(out, "\nstatic const __u32 {name}[{}][256] = {{", rows.len()).expect("a string grows");
    for row in rows {
        let cells: Vec<String> = row.iter().map(|cell| format!("{cell:#x}")).collect();
        writeln!(out, "{{{}}},", cells.join(",")).expect("a string grows");
    }
    writeln!(out, "}};").expect("a string grows");
}
