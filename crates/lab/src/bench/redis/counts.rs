//! The number of reads that a front answered in each way. The source is the last line of the
//! front's log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::plan::Row;

/// Name of a counter that only the last line of a front's log has.
const LAST_WORD: &str = "bypassed_reads";

/// The number of reads that the front of a row answered in each way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The row of the front.
    pub row: Row,
    /// Number of reads by the source of their answer: the value that the same pipeline had just
    /// set; the head device (HIT); the store, read directly; the store after all acknowledged
    /// updates (bypass).
    pub counts: BTreeMap<String, u64>,
}

/// A line of a log that was written with `--log-json`.
#[derive(Deserialize)]
struct Line {
    fields: Map<String, Value>,
}

/// Returns the counts in the log of a front that was started with `--log-json`. `None`: the log has
/// no counts.
pub fn of(row: Row, log: &str) -> Option<Counts> {
    let mut lines = log.lines().rev();
    let last = lines.find_map(|line| {
        let line: Line = serde_json::from_str(line).ok()?;
        line.fields.contains_key(LAST_WORD).then_some(line)
    })?;
    let counts = last.fields.into_iter();
    let counts = counts.filter_map(|(name, value)| Some((name, value.as_u64()?)));
    Some(Counts {
        row,
        counts: counts.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_its_last_word_are_taken() {
        let other = r#"{"level":"WARN","fields":{"message":"slow","after":7},"target":"front"}"#;
        assert_eq!(of(Row::Relay1, other), None);
        assert_eq!(of(Row::Relay1, "no object\n{}\n[1]"), None);
        let last = r#"{"level":"INFO","fields":{"message":"the end","hits":7,"bypassed_reads":2,"own_writes":0}}"#;
        let counts = of(Row::Nic, &format!("{other}\n{last}\n{other}\nno object")).unwrap();
        assert_eq!(counts.row, Row::Nic);
        let all: Vec<_> = counts.counts.into_iter().collect();
        let expected = [("bypassed_reads", 2), ("hits", 7), ("own_writes", 0)];
        assert_eq!(all, expected.map(|(name, count)| (name.to_owned(), count)));
    }
}
