//! Makes the rows of collections consistent again after some rows were lost (`docs/spec/embedded-store.md` §2).
//!
//! The repair never invents a member: a lost row is restored only if another row has its content.

use std::ops::ControlFlow;

use super::layout::{self, FIRST_ID, Head, Kind, MEMBER_PREFIX, PLAIN, Part};
use crate::rows::{Fault, Order, Rows};

/// Counts the members of all collections again, closes gaps in lists, and restores the missing row of each member of a
/// sorted set of which only one row exists. Returns the number of collections that were inconsistent.
///
/// # Errors
/// [`Fault`].
pub fn mend(rows: &mut dyn Rows) -> Result<u64, Fault> {
    let mut heads = Vec::new();
    let mut failed = None;
    let all = layout::all_heads();
    rows.scan(layout::range(&all), Order::Ascending, &mut |key, row| {
        match Head::read(row) {
            Ok(head) if head.kind != Kind::String => heads.push((key.to_vec(), head)),
            Ok(_) => {}
            Err(fault) => {
                failed = Some(fault);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    if let Some(fault) = failed {
        return Err(fault);
    }
    let mut changed = 0;
    for (key, head) in heads {
        let mut whole = head;
        match head.kind {
            Kind::List => mend_list(rows, &mut whole)?,
            Kind::SortedSet => mend_sorted_set(rows, &mut whole)?,
            _ => whole.count = count_of(&names(rows, head.id, Part::Members)?),
        }
        if whole == head {
            continue;
        }
        changed += 1;
        if whole.count == 0 {
            rows.remove(&key)?;
        } else {
            rows.put(&key, whole.kind.byte(), whole.expires, &whole.value())?;
        }
    }
    mend_next_id(rows)?;
    Ok(changed)
}

fn count_of<T>(all: &[T]) -> u64 {
    u64::try_from(all.len()).unwrap_or(u64::MAX)
}

/// Returns the names in one part of a collection.
fn names(rows: &dyn Rows, id: u64, part: Part) -> Result<Vec<Vec<u8>>, Fault> {
    let bounds = (layout::member(id, part, b""), layout::end_of(id, part));
    let mut names = Vec::new();
    rows.scan(layout::range(&bounds), Order::Ascending, &mut |key, _| {
        names.push(key[MEMBER_PREFIX..].to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

fn value(rows: &dyn Rows, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
    let mut found = None;
    rows.get(key, &mut |row| found = Some(row.value.to_vec()))?;
    Ok(found)
}

/// Moves the remaining elements of a list together, so that their positions are consecutive.
fn mend_list(rows: &mut dyn Rows, head: &mut Head) -> Result<(), Fault> {
    let left = names(rows, head.id, Part::Elements)?;
    head.count = count_of(&left);
    if let Some(first) = left.first() {
        let bytes: [u8; 8] = first
            .as_slice()
            .try_into()
            .map_err(|_| Fault::Corrupted("a position of another length".into()))?;
        head.first = layout::position_of(bytes);
    }
    for (index, name) in (head.first..).zip(left) {
        let to = layout::position(index);
        if to[..] == name[..] {
            continue;
        }
        let from = layout::member(head.id, Part::Elements, &name);
        if let Some(element) = value(rows, &from)? {
            rows.put(
                &layout::member(head.id, Part::Elements, &to),
                PLAIN,
                0,
                &element,
            )?;
            rows.remove(&from)?;
        }
    }
    Ok(())
}

/// Restores rows of a sorted set. Each member has a row by its name and a row by its score, and each of these rows has
/// the content of the other row.
fn mend_sorted_set(rows: &mut dyn Rows, head: &mut Head) -> Result<(), Fault> {
    for name in names(rows, head.id, Part::Scores)? {
        let member = name.get(8..).unwrap_or_default();
        let by_score = layout::member(head.id, Part::Scores, &name);
        let by_name = layout::member(head.id, Part::Members, member);
        let score = value(rows, &by_score)?.unwrap_or_default();
        match value(rows, &by_name)? {
            None => rows.put(&by_name, PLAIN, 0, &score)?,
            // This row belongs to an older score of the member.
            Some(known) if known != score => rows.remove(&by_score)?,
            Some(_) => {}
        }
    }
    let members = names(rows, head.id, Part::Members)?;
    for member in &members {
        let score = value(rows, &layout::member(head.id, Part::Members, member))?;
        let bytes = score.as_deref().and_then(|score| score.try_into().ok());
        let bytes: [u8; 8] =
            bytes.ok_or_else(|| Fault::Corrupted("a score of another length".into()))?;
        // In the names of rows, both zeros have the same bytes, so the bytes are computed again.
        let place = layout::score(layout::score_of(bytes));
        let by_score = layout::member(head.id, Part::Scores, &[&place[..], member].concat());
        if value(rows, &by_score)?.is_none() {
            rows.put(&by_score, PLAIN, 0, &bytes)?;
        }
    }
    head.count = count_of(&members);
    Ok(())
}

/// Raises the next free number above all numbers that rows have, so that no number is given twice.
fn mend_next_id(rows: &mut dyn Rows) -> Result<(), Fault> {
    let numbered = (layout::head(0, b""), layout::garbage(u64::MAX));
    let mut highest = FIRST_ID - 1;
    rows.scan(
        layout::range(&numbered),
        Order::Ascending,
        &mut |key, row| {
            let of_head = Head::read(row)
                .ok()
                .filter(|head| head.kind != Kind::String);
            let ids = [layout::garbage_id(key), of_head.map(|head| head.id)];
            highest = ids.into_iter().flatten().fold(highest, u64::max);
            ControlFlow::Continue(())
        },
    )?;
    let key = layout::next_id();
    let next = value(rows, &key)?.and_then(|bytes| bytes.try_into().ok());
    if next.map_or(0, u64::from_be_bytes) <= highest && (next.is_some() || highest >= FIRST_ID) {
        rows.put(&key, PLAIN, 0, &(highest + 1).to_be_bytes())?;
    }
    Ok(())
}
