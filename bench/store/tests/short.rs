//! The short form measures every store, every place and the breakdown, and leaves only the report.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str], out: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pmnet-bench-store"))
        .args(arguments)
        .arg("--out")
        .arg(out)
        .output()
        .unwrap()
}

fn scratch(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn positive(figure: &Value) -> bool {
    figure.as_f64().is_some_and(|figure| figure > 0.0)
}

#[test]
fn everything_is_measured_and_nothing_is_left() {
    let (out, memory) = (scratch("short"), scratch("short-memory"));
    let arguments = ["--short", "--json", "--memory", memory.to_str().unwrap()];
    let output = bench(&arguments, &out);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    let engines = 4 + usize::from(cfg!(feature = "rocksdb"));
    let rows = outcome["rows"].as_array().unwrap();
    // Three cells in each of three places: two sizes of values, and the other distribution of keys.
    assert_eq!(rows.len(), 3 * 3 * engines);
    for row in rows {
        let run = &row["median"];
        for phase in ["put", "group", "get", "scan", "mixed"] {
            let phase = &run[phase];
            assert!(positive(&phase["operations"]), "{row}");
            assert!(
                positive(&phase["p50_us"]) && positive(&phase["per_second"]),
                "{row}"
            );
        }
        assert!(
            positive(&run["recovery_ms"]) && positive(&run["space_amplification"]),
            "{row}"
        );
    }
    let lines = outcome["breakdown"]["lines"].as_array().unwrap();
    let published: Vec<f64> = lines
        .iter()
        .filter_map(|line| line["published"].as_f64())
        .collect();
    assert_eq!(
        published,
        [26.71, 0.70, 1.77, 1.14, 2.78, 6.39, 1.94, 34.79]
    );
    for line in lines.iter().filter(|line| line["operation"] == "together") {
        assert!(
            positive(&line["usual"]) && positive(&line["packets"]),
            "{line}"
        );
    }
    // Two goals of the breakdown, and two of each cell.
    assert_eq!(outcome["goals"].as_array().unwrap().len(), 2 + 2 * 9);
    let page = std::fs::read_to_string(out.join("store.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 2 * 9, "two charts a cell");
    let file: Value =
        serde_json::from_slice(&std::fs::read(out.join("store.json")).unwrap()).unwrap();
    assert_eq!(file, outcome);
    assert_eq!(
        std::fs::read_dir(&out).unwrap().count(),
        2,
        "the report, and no store"
    );
    assert_eq!(std::fs::read_dir(&memory).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let out = scratch("refused");
    for (arguments, sentence) in [
        (["--keys", "99"], "--keys"),
        (["--values", "15"], "--values"),
        (["--seconds", "0"], "--seconds"),
    ] {
        let output = bench(&arguments, &out);
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).contains(sentence));
    }
}
