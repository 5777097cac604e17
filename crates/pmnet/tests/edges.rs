//! Which crate may know which: the edges of ARCHITECTURE.md. Nothing calls upwards.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Crate and the crates of this workspace that it may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("resp", &[]),
    ("wire", &["resp"]),
    ("log", &[]),
    ("media", &["log"]),
    ("proto", &["wire"]),
    ("udp", &["proto"]),
    ("device", &["wire", "proto", "log"]),
    ("dataplane", &["wire", "device", "log", "proto", "udp"]),
    ("client", &["wire", "proto", "udp"]),
    ("server", &["wire", "proto", "udp"]),
    ("store", &["resp", "wire", "server"]),
    ("front", &["resp", "wire", "client"]),
    ("history", &[]),
    // The protocol in a model checker knows no code.
    ("model", &[]),
    (
        "sim",
        &[
            "wire", "log", "proto", "device", "client", "server", "store", "history", "pmnet",
        ],
    ),
];

/// These may see everything.
const TOPS: [&str; 3] = ["pmnet", "lab", "fuzz"];

fn edges() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {text}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let short = |name: &Value| {
        let name = name.as_str().unwrap();
        name.strip_prefix("pmnet-").unwrap_or(name).to_owned()
    };
    let packages = metadata["packages"].as_array().unwrap();
    let own: BTreeSet<_> = packages
        .iter()
        .map(|package| short(&package["name"]))
        .collect();
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().unwrap();
            let used = dependencies
                .iter()
                // Tests may look anywhere.
                .filter(|dependency| dependency["kind"] != "dev" && !dependency["path"].is_null())
                .map(|dependency| short(&dependency["name"]))
                .filter(|name| own.contains(name))
                .collect();
            (short(&package["name"]), used)
        })
        .collect()
}

#[test]
fn only_the_allowed_edges() {
    let edges = edges();
    assert!(edges.len() > ALLOWED.len(), "{edges:?}");
    for (name, used) in &edges {
        if TOPS.contains(&name.as_str()) {
            continue;
        }
        let allowed = ALLOWED
            .iter()
            .find(|(allowed, _)| allowed == name)
            .unwrap_or_else(|| panic!("crate {name} is not in the list of edges"))
            .1;
        for other in used {
            assert!(
                allowed.contains(&other.as_str()),
                "{name} must not depend on {other}"
            );
        }
    }
}

#[test]
fn the_protocol_and_the_log_never_see_each_other() {
    let edges = edges();
    for (from, hidden) in [
        ("proto", "log"),
        ("log", "proto"),
        ("log", "wire"),
        ("wire", "log"),
    ] {
        let mut seen = BTreeSet::from([from.to_owned()]);
        let mut next = vec![from.to_owned()];
        while let Some(name) = next.pop() {
            for other in &edges[&name] {
                if seen.insert(other.clone()) {
                    next.push(other.clone());
                }
            }
        }
        assert!(!seen.contains(hidden), "{from} reaches {hidden}: {seen:?}");
    }
}
