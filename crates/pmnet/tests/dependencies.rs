//! What deny.toml demands, checked with nothing but cargo itself: licences, sources and banned
//! crates. `cargo deny` checks the same, and advisories, where it is installed.

use std::process::Command;

use serde_json::Value;

/// Permissive licences; an addition is a decision, not a formality.
const ALLOWED: &[&str] = &["Apache-2.0", "MIT", "Unicode-3.0", "Zlib"];

/// Crates that must not get in, and why.
const BANNED: &[(&str, &str)] = &[
    (
        "openssl-sys",
        "one static binary, without C libraries of the system",
    ),
    (
        "tokio",
        "a runtime would hide the wake-ups that are measured",
    ),
];

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {text}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Whether a licence expression can be satisfied with allowed licences: all of its AND parts have
/// an allowed choice among their OR parts.
fn permissive(expression: &str) -> bool {
    expression.replace('/', " OR ").split(" AND ").all(|part| {
        part.trim_matches(['(', ')', ' '])
            .split(" OR ")
            .any(|choice| ALLOWED.contains(&choice.trim_matches(['(', ')', ' '])))
    })
}

#[test]
fn licences_are_permissive() {
    assert!(permissive("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(!permissive("GPL-3.0-only") && !permissive("MIT AND GPL-2.0-only"));
    for package in packages() {
        let licence = package["license"].as_str().unwrap_or("none");
        assert!(
            permissive(licence),
            "{} is under {licence}",
            package["name"]
        );
    }
}

#[test]
fn every_crate_is_ours_or_from_the_registry() {
    for package in packages() {
        let source = package["source"].as_str().unwrap_or("path");
        let known = source == "path" || source.starts_with("registry+");
        assert!(known, "{} comes from {source}", package["name"]);
    }
}

#[test]
fn nothing_banned_gets_in() {
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        if let Some((_, why)) = BANNED.iter().find(|(banned, _)| *banned == name) {
            panic!("{name} must not be used: {why}");
        }
    }
}
