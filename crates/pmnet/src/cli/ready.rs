//! The ready line, which a process prints to stdout when it serves. Scripts can wait for this line.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use pmnet_cli::said;
use serde_json::{Map, Value};

use super::service;

/// The facts about one loop that serves.
type Facts = Vec<(String, Value)>;

/// The ready line of a process.
pub struct Line {
    json: bool,
    together: Option<Together>,
}

/// The state of a common line for several roles.
struct Together {
    /// Number of loops that must serve before the line is printed.
    loops: usize,
    serving: Mutex<Serving>,
}

/// The facts about each loop that serves, by section and address.
type Loops = BTreeMap<(String, String), Facts>;

#[derive(Default)]
struct Serving {
    loops: Loops,
    was_said: bool,
}

/// Fields that the common line has in addition to the addresses, each value without duplicates.
const PROMISES: [&str; 2] = ["survives", "store"];

impl Line {
    /// Makes the line of a process with one role: `ready ROLE key=value …`. The line is printed each time the loop
    /// begins to serve.
    pub const fn alone(json: bool) -> Line {
        Line {
            json,
            together: None,
        }
    }

    /// Makes the line of a process with several roles. The line is printed once, when this number of loops serve.
    pub fn together(json: bool, loops: usize) -> Line {
        Line {
            json,
            together: Some(Together {
                loops,
                serving: Mutex::default(),
            }),
        }
    }

    /// Notes that a loop serves. Prints the line if all loops serve.
    pub fn serves(&self, section: &str, role: &str, fields: &[(&str, Value)]) {
        let Some(together) = &self.together else {
            return self.print(role, fields);
        };
        tracing::info!("[{section}] serves: {}", plain(fields));
        let owned = fields
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()));
        let address = fields.first().map_or_else(String::new, |(_, at)| text(at));
        let mut serving = together
            .serving
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        serving
            .loops
            .insert((section.to_owned(), address), owned.collect());
        if serving.loops.len() >= together.loops && !serving.was_said {
            serving.was_said = true;
            let fields = summary(&serving.loops);
            let fields: Vec<(&str, Value)> = fields
                .iter()
                .map(|(key, value)| (key.as_str(), value.clone()))
                .collect();
            self.print("run", &fields);
        }
    }

    /// Prints `ready ROLE key=value …`, or a JSON object with these fields.
    fn print(&self, role: &str, fields: &[(&str, Value)]) {
        let plain = format!("{role} {}", plain(fields));
        let line = if self.json {
            let mut object = Map::new();
            object.insert("ready".into(), role.into());
            for (key, value) in fields {
                object.insert((*key).into(), value.clone());
            }
            Value::Object(object).to_string()
        } else {
            format!("ready {plain}")
        };
        said(&line);
        service::ready(&plain);
    }
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn plain(fields: &[(&str, Value)]) -> String {
    let parts: Vec<String> = fields
        .iter()
        .map(|(key, value)| format!("{key}={}", text(value)))
        .collect();
    parts.join(" ")
}

/// Returns the address of each loop, under the name of its section, and the values of [`PROMISES`] of all loops.
fn summary(serving: &Loops) -> Facts {
    let mut addresses: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (section, address) in serving.keys() {
        addresses.entry(section).or_default().push(address);
    }
    let addresses = addresses.into_iter();
    let mut fields: Facts = addresses
        .map(|(section, all)| (section.to_owned(), all.join(",").into()))
        .collect();
    let facts = || serving.values().flatten();
    for name in PROMISES {
        let mut said: Vec<String> = Vec::new();
        for (_, value) in facts().filter(|(key, _)| key == name) {
            let value = text(value);
            if !said.contains(&value) {
                said.push(value);
            }
        }
        if !said.is_empty() {
            fields.push((name.to_owned(), said.join("; ").into()));
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_common_line_has_each_address_and_each_promise_once() {
        let mut serving = BTreeMap::new();
        for (section, address, fact) in [
            ("device", "a:1", ("survives", "power loss")),
            ("device.2", "a:2", ("survives", "power loss")),
            ("server", "a:3", ("store", "null")),
        ] {
            let facts = vec![(fact.0.to_owned(), json!(fact.1))];
            serving.insert((section.to_owned(), address.to_owned()), facts);
        }
        let fields = summary(&serving);
        let fields: Vec<(&str, Value)> = fields
            .iter()
            .map(|(key, value)| (key.as_str(), value.clone()))
            .collect();
        assert_eq!(
            plain(&fields),
            "device=a:1 device.2=a:2 server=a:3 survives=power loss store=null"
        );
    }
}
