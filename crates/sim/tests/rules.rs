//! The tests of the tests: rules that are switched off are missed, and nowhere else can they be.

use pmnet_sim::cells::Cell;
use pmnet_sim::{Plan, Without, campaign};
use std::path::{Path, PathBuf};

/// Rules whose lack shows within a few seeds; `pmnet-sim --without all` goes through all of them.
const QUICK: &[&str] = &[
    "session-order",
    "no-gaps",
    "atomic-apply",
    "last-seq",
    "request-id",
    "nilext",
    "record-first",
    "fenced",
    "store-named",
    "forget-failed",
    "deadline",
];

#[test]
fn a_rule_that_is_switched_off_is_missed() {
    for name in QUICK {
        let without: Without = name.parse().unwrap();
        let plan = Plan {
            without: Some(without),
            ..Plan::default()
        };
        let summary = campaign(&plan, 0, 50, 2, |so_far| so_far.failing == 0);
        assert!(summary.failing > 0, "nobody noticed: {}", without.says);
    }
}

#[test]
fn rules_and_cells_have_names() {
    for without in Without::ALL {
        let again: Without = without.name.parse().unwrap();
        assert_eq!(again.place, without.place);
        assert!(without.says.starts_with('§'), "{}", without.name);
    }
    assert!("gravity".parse::<Without>().is_err());
    assert_eq!(Cell::all().count(), 72);
    for cell in Cell::all() {
        assert_eq!(cell.to_string().parse(), Ok(cell));
    }
    let error = "log-full/meteor".parse::<Cell>().unwrap_err();
    assert!(error.contains("server-crash"), "{error}");
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Only the simulator takes rules away: no flag, file or packet of the product can.
#[test]
fn nothing_but_the_simulator_switches_a_rule_off() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(crates).unwrap() {
        let folder = entry.unwrap().path();
        if folder.join("src").is_dir() && !folder.ends_with("sim") && !folder.ends_with("model") {
            sources(&folder.join("src"), &mut found);
        }
    }
    assert!(found.len() > 100, "{}", found.len());
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap();
        let defines = path.ends_with("proto/src/rules.rs");
        assert!(
            defines || !text.contains("Rules::without"),
            "{} switches a rule off",
            path.display()
        );
        let log = path.components().any(|part| part.as_os_str() == "log");
        assert!(
            log || !text.contains("Payloads::Trusted"),
            "{} trusts payloads",
            path.display()
        );
    }
}
