//! Reads the database and compares it with the ledger.

use std::collections::BTreeMap;

use anyhow::Context;

use super::Verdict;
use super::ledger::Ledger;
use crate::resp::{Client, Reply, write_command};

/// Number of keys that one pipeline reads.
const KEYS_PER_READ: usize = 500;
/// Number of list elements that one LRANGE reads.
const ITEMS_PER_READ: usize = 10_000;
/// Maximum number of elements that are read from one list.
const ITEMS_MAX: usize = 50_000_000;

/// Compares the ledger with the database to which `reader` is connected. No client may write to the
/// database during this time.
///
/// # Errors
/// Fails if the reader's connection fails. A missing or wrong value is a finding, not an error.
pub fn verify(ledger: &Ledger, reader: &mut Client) -> anyhow::Result<Verdict> {
    let mut verdict = Verdict {
        acknowledged: ledger.acknowledged,
        failed: ledger.failed,
        unknown: ledger.unknown,
        ..Verdict::default()
    };
    each_value(&ledger.sets, reader, |key, series, value| {
        series.check(key, value.map_or(Some(0), padded_number), &mut verdict);
    })?;
    each_value(&ledger.counters, reader, |key, series, value| {
        series.check(key, value.map_or(Some(0), number), &mut verdict);
    })?;
    each_value(&ledger.locks, reader, |key, series, value| {
        series.check(key, value.map(number), &mut verdict);
    })?;
    for (key, series) in &ledger.lists {
        series.check(key, &list(key, reader)?, &mut verdict);
    }
    let keys = ledger.sets.len() + ledger.counters.len() + ledger.locks.len() + ledger.lists.len();
    verdict.keys = u64::try_from(keys).unwrap_or(u64::MAX);
    Ok(verdict)
}

fn each_value<T>(
    map: &BTreeMap<String, T>,
    reader: &mut Client,
    mut check: impl FnMut(&str, &T, Option<&[u8]>),
) -> anyhow::Result<()> {
    let entries: Vec<_> = map.iter().collect();
    for chunk in entries.chunks(KEYS_PER_READ) {
        // MGET is not used, because the slots of the keys may differ.
        let mut commands = Vec::new();
        for (key, _) in chunk {
            write_command(&mut commands, &["GET", key]);
        }
        let values = reader
            .exchange(&commands, chunk.len())
            .context("the check cannot read the database")?;
        let refused = values.iter().find_map(|value| match value {
            Reply::Error(text) if !text.starts_with("WRONGTYPE") => Some(text),
            _ => None,
        });
        if let Some(text) = refused {
            anyhow::bail!("the database answered GET with {text}");
        }
        for ((key, series), value) in chunk.iter().zip(&values) {
            check(key, series, value.bytes());
        }
    }
    Ok(())
}

fn list(key: &str, reader: &mut Client) -> anyhow::Result<Vec<Option<u64>>> {
    let mut items = Vec::new();
    while items.len() < ITEMS_MAX {
        let first = items.len().to_string();
        let last = (items.len() + ITEMS_PER_READ - 1).to_string();
        let reply = reader
            .ask(&["LRANGE", key, &first, &last])
            .context("the check cannot read the database")?;
        let Reply::Array(page) = reply else {
            anyhow::bail!("the database answered LRANGE with {reply:?}");
        };
        items.extend(page.iter().map(|item| item.bytes().and_then(number)));
        if page.len() < ITEMS_PER_READ {
            break;
        }
    }
    Ok(items)
}

fn number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Parses a number that is padded with dots. Returns `None` if the value is torn or mixed.
fn padded_number(bytes: &[u8]) -> Option<u64> {
    let end = bytes
        .iter()
        .position(|byte| *byte == b'.')
        .unwrap_or(bytes.len());
    let (digits, dots) = bytes.split_at(end);
    number(digits).filter(|_| dots.iter().all(|byte| *byte == b'.'))
}
