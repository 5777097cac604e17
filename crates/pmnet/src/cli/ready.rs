//! The one line that a role prints to stdout when it serves, so that scripts can wait for it.

use pmnet_cli::said;
use serde_json::{Map, Value};

use super::service;

/// Prints `ready ROLE key=value …`, or one JSON object with the same.
pub fn announce(json: bool, role: &str, fields: &[(&str, Value)]) {
    let mut plain = role.to_owned();
    for (key, value) in fields {
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        plain += &format!(" {key}={text}");
    }
    let line = if json {
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
