//! The names of rules and cells. `pmnet-sim --without all` (`make rules`, `make test`) tests that the absence of each
//! rule is found.

use pmnet_sim::Without;
use pmnet_sim::cells::Cell;
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn rules_and_cells_have_names() {
    for without in Without::ALL {
        let again: Without = without.name.parse().unwrap();
        assert_eq!(again.place, without.place);
        assert!(without.says.contains('§'), "{}", without.name);
    }
    assert!("gravity".parse::<Without>().is_err());
    assert_eq!(Cell::all().count(), 80);
    for cell in Cell::all() {
        assert_eq!(cell.to_string().parse(), Ok(cell));
    }
    let error = "log-full/meteor".parse::<Cell>().unwrap_err();
    assert!(error.contains("server-crash"), "{error}");
}

/// Returns the names in back quotes that follow this word in a row. The words are: model, simulator, mutants, tests.
fn named<'a>(rows: &[&'a str], word: &str) -> BTreeSet<&'a str> {
    let parts = rows.iter().flat_map(|row| row.rsplit(" | ").next());
    let parts = parts.flat_map(|cell| cell.split("; "));
    let parts = parts.filter(|part| part.trim_start().starts_with(word));
    parts
        .flat_map(|part| part.split('`').skip(1).step_by(2))
        .collect()
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The table in docs/spec/keys.md §10 has all rules about keys that can be switched off, and names
/// only existing tests.
#[test]
fn every_rule_about_keys_is_in_the_table_of_what_notices_it() {
    let text = read("docs/spec/keys.md");
    let (_, table) = text.split_once("## 10. ").unwrap();
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| rule |"))
        .collect();
    assert!(rows.len() > 30);
    for row in &rows {
        assert!(row.contains('`'), "nothing notices it: {row}");
    }
    let ours = Without::ALL
        .iter()
        .filter(|without| without.says.starts_with("keys.md"));
    let ours: BTreeSet<&str> = ours.map(|without| without.name).collect();
    assert_eq!(named(&rows, "simulator"), ours);
    let model = read("crates/model/src/rule_table.rs");
    let of_keys = model
        .split("about(")
        .filter(|about| about.contains("keys.md"));
    let of_keys: BTreeSet<&str> = of_keys
        .filter_map(|about| about.split('"').nth(1))
        .collect();
    assert_eq!(named(&rows, "model"), of_keys);
    let mutants = read("tests/mutants/keys.toml");
    let all = mutants.lines().filter_map(|line| {
        let name = line.strip_prefix("name = ")?;
        Some(name.trim_matches('"'))
    });
    assert_eq!(named(&rows, "mutant"), all.collect());
    let tests = [
        "crates/wire/src/key/tests.rs",
        "crates/proto/tests/machines/keys.rs",
        "crates/sim/src/slots.rs",
        "crates/dataplane/tests/kernel/keyed.rs",
        "crates/fleet/src/hand/door.rs",
    ]
    .map(read);
    for name in named(&rows, "test") {
        let function = format!("fn {name}()");
        assert!(tests.iter().any(|text| text.contains(&function)), "{name}");
    }
}
