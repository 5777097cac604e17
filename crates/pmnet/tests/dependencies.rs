//! Checks the rules of deny.toml with cargo alone: licences, sources and banned crates. If `cargo deny` is installed,
//! `cargo deny` also checks these rules, and advisories. This file also checks the features with which the product is
//! built.

use std::process::Command;

use serde_json::Value;

/// Permissive licences. A new licence needs a decision.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Tools of builds and tests, each with its licence. The tools are never shipped.
const TOOLS: &[(&str, &str)] = &[
    // cbindgen writes the header of libpmnet.
    ("cbindgen", "MPL-2.0"),
    // target-lexicon names the machine for which the Python extension is built.
    ("target-lexicon", "Apache-2.0 WITH LLVM-exception"),
];

/// Crates that must not be dependencies, each with the reason.
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

/// Returns whether a licence expression can be satisfied with allowed licences: each AND part must have an allowed
/// alternative among its OR parts.
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
        let name = package["name"].as_str().unwrap_or_default();
        if TOOLS.contains(&(name, licence)) {
            continue;
        }
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

/// Returns the packages that `cargo build -p PACKAGE` builds, with their features. A line has the form `NAME feature
/// "FEATURE"`.
fn built(package: &str) -> String {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--package",
            package,
            "--edges",
            "normal,build,features",
        ])
        .args(["--prefix", "none", "--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree: {text}");
    String::from_utf8(output.stdout).unwrap()
}

/// This test checks the build's features. A test of the binary itself is among the end-to-end tests (`operator`).
#[test]
fn the_product_is_built_without_rules_that_can_be_switched_off() {
    const RULES: &str = "feature \"rules\"";
    assert!(built("pmnet-sim").contains(RULES), "the simulator needs it");
    for package in ["pmnet", "pmnet-lab", "pmnet-capi", "pmnet-python"] {
        let built = built(package);
        assert!(built.contains("pmnet-proto v"), "{built}");
        assert!(!built.contains(RULES), "{package} is built with it");
    }
}

/// The product must not contain the libraries of the laboratory: for progress bars, latency counts, histories and
/// seeded loads. The product gets random numbers from the operating system.
#[test]
fn the_product_has_none_of_the_laboratory() {
    let (product, lab) = (built("pmnet"), built("pmnet-lab"));
    for name in ["indicatif", "hdrhistogram", "todc-utils", "fastrand"] {
        let name = format!("{name} v");
        assert!(lab.contains(&name), "the laboratory has no {name}");
        assert!(!product.contains(&name), "the product has {name}");
    }
}

/// The library with which the packet store is compared is in a workspace of its own.
#[test]
fn nothing_here_depends_on_the_rivals() {
    let lockfile = include_str!("../../../bench/store/Cargo.lock");
    let names: Vec<_> = packages()
        .iter()
        .map(|package| package["name"].as_str().unwrap().to_owned())
        .collect();
    for rival in ["rocksdb", "heed", "fjall", "redb"] {
        assert!(
            lockfile.contains(&format!("name = \"{rival}\"")),
            "{rival} is compared with no more"
        );
        assert!(!names.iter().any(|name| name == rival), "{rival} got in");
    }
}
