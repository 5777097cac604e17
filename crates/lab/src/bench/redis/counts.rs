//! What a front says at its end about what it did: how it served reads, among other things.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::plan::Row;

/// What the front of a row counted while it ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Which.
    pub row: Row,
    /// Name and number; names of groups come before a dot.
    pub counts: BTreeMap<String, u64>,
}

/// The counts in what a front printed with `--json`: the numbers of its last object that is not the one that it began
/// with. `None`: this front does not say.
pub fn of(row: Row, printed: &str) -> Option<Counts> {
    let mut objects = printed.lines().filter_map(|line| {
        let object: Map<String, Value> = serde_json::from_str(line).ok()?;
        (!object.contains_key("ready")).then_some(object)
    });
    let mut counts = BTreeMap::new();
    for (name, value) in objects.next_back()? {
        match value {
            Value::Object(group) => {
                for (part, value) in group {
                    insert(&mut counts, format!("{name}.{part}"), &value);
                }
            }
            value => insert(&mut counts, name, &value),
        }
    }
    (!counts.is_empty()).then_some(Counts { row, counts })
}

fn insert(counts: &mut BTreeMap<String, u64>, name: String, value: &Value) {
    if let Some(number) = value.as_u64() {
        counts.insert(name, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_last_object_are_taken() {
        let ready = r#"{"ready":"redis","copies":1}"#;
        assert_eq!(of(Row::Relay1, ready), None);
        assert_eq!(of(Row::Relay1, "ready redis\nno object"), None);
        let said = format!(
            "{ready}\n{{\"reads\":1}}\n{}\n",
            r#"{"ended":"redis","reads":{"hits":7,"direct":2,"ratio":0.5},"calls":9}"#
        );
        let counts = of(Row::Nic, &said).unwrap();
        assert_eq!(counts.row, Row::Nic);
        let all: Vec<_> = counts.counts.into_iter().collect();
        let expected = [("calls", 9), ("reads.direct", 2), ("reads.hits", 7)];
        assert_eq!(all, expected.map(|(name, count)| (name.to_owned(), count)));
    }
}
