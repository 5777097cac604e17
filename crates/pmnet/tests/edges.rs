//! Checks which crates depend on which. The list has all allowed dependencies. Any other dependency is an error.
//! ARCHITECTURE.md shows those of the product.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Each crate with the crates of this workspace on which it depends. Tests may depend on any crate.
const EDGES: &[(&str, &[&str])] = &[
    ("resp", &[]),
    ("wire", &["resp"]),
    ("log", &[]),
    ("cli", &["udp"]),
    ("status", &["tls", "udp"]),
    ("tls", &[]),
    ("media", &["log"]),
    ("proto", &["wire"]),
    ("udp", &["proto"]),
    ("device", &["wire", "proto", "log"]),
    (
        "dataplane",
        &["wire", "device", "log", "media", "proto", "udp"],
    ),
    // The client library is for users' own programs. The product does not use this library.
    (
        "packets",
        &["dataplane", "device", "log", "media", "packet-store", "udp"],
    ),
    ("verbs", &["wire", "proto", "log", "media", "device", "udp"]),
    ("client", &["proto", "udp", "verbs"]),
    ("server", &["wire", "proto", "udp"]),
    ("packet-store", &["log"]),
    (
        "store",
        &[
            "resp",
            "wire",
            "log",
            "media",
            "packet-store",
            "server",
            "tls",
        ],
    ),
    (
        "tail",
        &["device", "log", "packet-store", "proto", "server", "store"],
    ),
    ("front", &["resp", "wire", "client", "tls", "udp"]),
    ("memcached", &["resp", "wire", "client"]),
    ("fleet", &["proto", "tls", "udp"]),
    ("keys", &["proto", "wire"]),
    // The product.
    (
        "pmnet",
        &[
            "cli",
            "client",
            "dataplane",
            "device",
            "fleet",
            "front",
            "keys",
            "log",
            "media",
            "memcached",
            "packet-store",
            "proto",
            "server",
            "status",
            "store",
            "tail",
            "tls",
            "verbs",
            "wire",
        ],
    ),
    // Crates for users' programs in C and in Python, and the crate that these two share.
    ("bindings", &["wire", "client", "keys", "server", "udp"]),
    ("capi", &["bindings", "client", "server"]),
    ("python", &["bindings", "client", "server"]),
    // Crates that are not part of the product. The product does not depend on these crates.
    ("history", &[]),
    // The model of the protocol uses no code of the product.
    ("model", &[]),
    (
        "sim",
        &[
            "cli",
            "wire",
            "log",
            "packet-store",
            "proto",
            "device",
            "server",
        ],
    ),
    (
        "lab",
        &[
            "cli",
            "client",
            "dataplane",
            "device",
            "history",
            "keys",
            "log",
            "media",
            "packets",
            "proto",
            "resp",
            "wire",
        ],
    ),
    (
        "fuzz",
        &[
            "cli",
            "client",
            "device",
            "front",
            "history",
            "lab",
            "log",
            "memcached",
            "packet-store",
            "pmnet",
            "proto",
            "resp",
            "server",
            "wire",
        ],
    ),
];

type Edges = BTreeMap<String, BTreeSet<String>>;

fn edges() -> Edges {
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
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().unwrap();
            let used = dependencies
                .iter()
                .filter(|dependency| dependency["kind"] != "dev" && !dependency["path"].is_null())
                .map(|dependency| short(&dependency["name"]))
                .collect();
            (short(&package["name"]), used)
        })
        .collect()
}

#[test]
fn the_edges_are_these() {
    let wanted: Edges = EDGES
        .iter()
        .map(|(name, used)| {
            let used = used.iter().copied().map(str::to_owned).collect();
            ((*name).to_owned(), used)
        })
        .collect();
    for (name, used) in &edges() {
        let Some(wanted) = wanted.get(name) else {
            panic!("crate {name} is not in the list of edges");
        };
        let more: Vec<_> = used.difference(wanted).collect();
        assert!(more.is_empty(), "{name} must not depend on {more:?}");
        let fewer: Vec<_> = wanted.difference(used).collect();
        assert!(fewer.is_empty(), "{name} does not depend on {fewer:?}");
    }
    let gone: Vec<_> = wanted
        .keys()
        .filter(|name| !edges().contains_key(*name))
        .collect();
    assert!(gone.is_empty(), "there is no crate {gone:?}");
}

/// A dependency that no source file names is unnecessary.
#[test]
fn every_edge_is_used() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, used) in EDGES {
        let folder = match *name {
            "fuzz" => root.join("fuzz"),
            name => root.join("crates").join(name),
        };
        let mut text = std::fs::read_to_string(folder.join("build.rs")).unwrap_or_default();
        sources(&folder.join("src"), &mut text);
        for other in *used {
            let path = match *other {
                "pmnet" => "pmnet::".to_owned(),
                other => format!("pmnet_{}::", other.replace('-', "_")),
            };
            assert!(
                text.contains(&path),
                "{name} depends on {other} for nothing"
            );
        }
    }
}

fn sources(folder: &std::path::Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
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
        let seen = reached(&edges, from);
        assert!(!seen.contains(hidden), "{from} reaches {hidden}: {seen:?}");
    }
}

/// The product must not depend on the crates that measure and test it.
#[test]
fn the_product_does_not_simulate_or_measure() {
    let seen = reached(&edges(), "pmnet");
    for around in ["sim", "lab", "history", "model", "fuzz"] {
        assert!(
            !seen.contains(around),
            "the product reaches {around}: {seen:?}"
        );
    }
}

fn reached(edges: &Edges, from: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::from([from.to_owned()]);
    let mut next = vec![from.to_owned()];
    while let Some(name) = next.pop() {
        for other in &edges[&name] {
            if seen.insert(other.clone()) {
                next.push(other.clone());
            }
        }
    }
    seen
}
