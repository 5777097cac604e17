//! `pmnet status --at`: shows the state of processes, from their status ports.

use std::time::{Duration, Instant};

use pmnet_cli::{notice, tell};
use pmnet_status::Place;
use serde_json::{Value, json};

use crate::ask::{named, state, text};
use crate::status::Spot;

/// Interval at which processes are asked until all of them are ready.
const AGAIN: Duration = Duration::from_millis(200);

/// Asks these processes until all of them are ready, or the time has passed. Returns whether all
/// are ready.
pub fn main(places: &[Spot], wait: u64, as_json: bool) -> anyhow::Result<bool> {
    let until = Instant::now() + Duration::from_secs(wait);
    let all = loop {
        let all: Vec<(Place, anyhow::Result<Value>)> = places
            .iter()
            .map(|spot| (spot.place.clone(), state(spot)))
            .collect();
        let ready = all.iter().all(|(_, state)| is_ready(state));
        if ready || Instant::now() >= until {
            break all;
        }
        std::thread::sleep(AGAIN);
    };
    if as_json {
        let all: Vec<Value> = all
            .iter()
            .map(|(place, state)| as_object(place, state))
            .collect();
        tell(format_args!("{}", Value::Array(all)));
    } else {
        for (place, state) in &all {
            match state {
                Ok(state) => tell(format_args!("{}", as_text(place, state))),
                Err(error) => notice(&format!("{place}: {error:#}")),
            }
        }
    }
    Ok(all.iter().all(|(_, state)| is_ready(state)))
}

fn is_ready(state: &anyhow::Result<Value>) -> bool {
    state.as_ref().is_ok_and(|state| state["ready"] == true)
}

fn as_object(place: &Place, state: &anyhow::Result<Value>) -> Value {
    match state {
        Ok(state) => json!({ "at": place.to_string(), "state": state }),
        Err(error) => json!({ "at": place.to_string(), "error": format!("{error:#}") }),
    }
}

/// The metrics in the short output, by role, with the names that the output uses.
const FIRST: [(&str, &str); 12] = [
    ("pmnet_device_copies", "copies"),
    ("pmnet_device_epoch", "epoch"),
    ("pmnet_device_sessions", "sessions"),
    ("pmnet_device_unapplied_orders", "not applied yet"),
    (
        "pmnet_device_oldest_unapplied_seconds",
        "oldest of them, seconds",
    ),
    ("pmnet_device_log_entries_used", "log entries in use"),
    ("pmnet_device_log_entries_capacity", "log entries, at most"),
    ("pmnet_server_applied_total", "updates applied"),
    ("pmnet_server_unapplied_orders", "received, not applied yet"),
    ("pmnet_front_clients", "clients"),
    ("pmnet_front_copies", "copies"),
    ("pmnet_memcached_clients", "clients"),
];

fn as_text(place: &Place, state: &Value) -> String {
    let mut out = format!(
        "{place}: {} {} ({}), up {} s: {}",
        text(&state["role"]),
        text(&state["version"]),
        text(&state["commit"]),
        state["uptime_seconds"],
        if state["ready"] == true {
            "ready"
        } else {
            "not ready"
        }
    );
    for one in state["loops"].as_array().into_iter().flatten() {
        out += &format!("\n  {}", named(&one["labels"]));
        if one["alive"] != true {
            out += "\n    the loop is stuck";
        }
        for reason in one["reasons"].as_array().into_iter().flatten() {
            out += &format!("\n    not ready: {}", text(reason));
        }
        for advice in one["advice"].as_array().into_iter().flatten() {
            let (what, alert) = (text(&advice["text"]), text(&advice["alert"]));
            out += &format!("\n    {what} What to do: docs/operate/alerts.md, {alert}");
        }
        for (name, title) in FIRST {
            if let Some(number) = one["metrics"].get(name) {
                out += &format!("\n    {title:<26} {number:>14}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_shown_with_its_reasons() {
        let state = json!({
            "role": "device", "version": "1", "commit": "c", "uptime_seconds": 5, "ready": false,
            "loops": [{
                "labels": { "shard": "0", "device": "7" }, "alive": true, "reasons": ["too few"],
                "advice": [{ "alert": "PmnetTooFewCopies", "text": "One is missing." }],
                "metrics": { "pmnet_device_copies": 1 },
            }],
        });
        let text = as_text(&Place::Tcp("127.0.0.1:9".parse().unwrap()), &state);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[0], "127.0.0.1:9: device 1 (c), up 5 s: not ready");
        assert_eq!(lines[1], "device 7, shard 0");
        assert_eq!(lines[2], "not ready: too few");
        assert_eq!(
            lines[3],
            "One is missing. What to do: docs/operate/alerts.md, PmnetTooFewCopies"
        );
        assert!(lines[4].starts_with("copies ") && lines[4].ends_with(" 1"));
    }
}
