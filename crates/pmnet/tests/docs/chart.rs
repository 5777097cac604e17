//! Checks of the Helm chart that need no Helm. `make helm-test` makes the other checks.

use std::collections::BTreeSet;

use crate::root;

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_charts_alert_rules_are_the_files_own_and_its_version_is_the_products() {
    let rules = read("contrib/helm/pmnet/files/pmnet.rules.yml");
    assert_eq!(rules, read("contrib/prometheus/pmnet.rules.yml"));
    let version = env!("CARGO_PKG_VERSION");
    let chart = read("contrib/helm/pmnet/Chart.yaml");
    for line in [
        format!("version: {version}\n"),
        format!("appVersion: \"{version}\"\n"),
    ] {
        assert!(chart.contains(&line), "Chart.yaml misses {line}");
    }
}

#[test]
fn each_value_of_the_chart_is_in_its_schema_and_on_its_page() {
    let values = read("contrib/helm/pmnet/values.yaml");
    let named: BTreeSet<&str> = values
        .lines()
        .filter(|line| line.starts_with(|char: char| char.is_ascii_alphabetic()))
        .filter_map(|line| line.split(':').next())
        .collect();
    assert!(named.len() > 10, "{named:?}");
    let schema: serde_json::Value =
        serde_json::from_str(&read("contrib/helm/pmnet/values.schema.json")).unwrap();
    let known = schema["properties"].as_object().unwrap();
    let known: BTreeSet<&str> = known.keys().map(String::as_str).collect();
    // Helm passes `global` to every chart.
    let known = known.into_iter().filter(|name| *name != "global").collect();
    assert_eq!(named, known);
    let page = read("docs/operate/kubernetes.md");
    for name in named {
        assert!(page.contains(&format!("`{name}`")), "kubernetes.md: {name}");
    }
}
