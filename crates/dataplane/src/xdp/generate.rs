//! Generates `generated.h` for the in-kernel programs: constants of `wire` and `log`, the shared structures, checksum
//! tables. Part of the build script only.

use std::fmt::Write;

use pmnet_wire::{Header, Kind};

#[path = "shared.rs"]
mod shared;

/// First and last header byte that has a table of contributions to the checksum (`pm_place`): seq to payload_crc.
const PLACE_FIRST: usize = 32;
const PLACE_LAST: usize = 75;
/// Shift of the number of copies in the first eight bytes of a header, read as one number in this machine's byte order.
const COPIES_SHIFT: u32 = if cfg!(target_endian = "little") {
    40
} else {
    16
};
/// The Castagnoli polynomial, reflected.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// The whole header.
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
    define("PORT_FIRST", pmnet_wire::PORT_FIRST.into());
    define("PORT_LAST", pmnet_wire::PORT_LAST.into());
    define("KIND_UPDATE", Kind::Update.number().into());
    define("KIND_APPEND", Kind::Append.number().into());
    define("KIND_ACK", Kind::Ack.number().into());
    define("BLOCK_BYTES", pmnet_log::BLOCK_BYTES);
    define("ENTRY_BYTES", pmnet_log::ENTRY_BYTES);
    define("FRAME_ALIGN", pmnet_log::FRAME_ALIGN);
    define("PLACE_FIRST", PLACE_FIRST);
    define("ROW_BYTES", pmnet_wire::record::DURABLE_ROW_BYTES);
    define("BEHIND_MAX", pmnet_wire::record::CHAIN_MAX - 1);
    define("WAY_INTERFACE", shared::WAY_INTERFACE);
    define("TOOK_NS", shared::TOOK_NS);
    define("TOOK_SLOTS", shared::TOOK_SLOTS);
    // The first eight bytes of a header, read as one number in this machine's byte order.
    for (name, kind, copies) in [
        ("UPDATE_WORD", Kind::Update, 0),
        ("APPEND_WORD", Kind::Append, Kind::Update.number()),
        ("ACK_WORD", Kind::Ack, 0),
        ("DURABLE_WORD", Kind::Durable, 0),
    ] {
        let bytes = Header {
            copies,
            ..Header::new(kind)
        }
        .emit();
        let word = u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes"));
        writeln!(out, "#define PM_{name} {word:#x}ull").expect("a string grows");
    }
    writeln!(out, "#define PM_COPIES_SHIFT {COPIES_SHIFT}").expect("a string grows");
    for (name, fields) in [
        shared::Shard::C,
        shared::Hops::C,
        shared::Session::C,
        shared::Counters::C,
    ] {
        structure(&mut out, name, fields);
    }
    slices(&mut out);
    places(&mut out);
    out
}

fn structure(out: &mut String, name: &str, fields: &[(&str, &str, usize)]) {
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
    writeln!(out, "}} __attribute__((aligned(64)));").expect("a string grows");
    for (field, _, offset) in fields {
        writeln!(
            out,
            "_Static_assert(__builtin_offsetof(struct {name}, {field}) == {offset}, \"{field}\");"
        )
        .expect("a string grows");
    }
}

/// The CRC32C state after eight zero bits, from each state below 256.
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

/// What each byte value contributes if n more bytes follow, for n from 0.
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
    // The checksum's own four bytes are left out, and eight bytes of tag follow it.
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
