//! Each alert rule has a section in the runbook, and a link to it. The runbook also has all alerts that the status port
//! and pmnet top name.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{anchor, pages, root};

const RUNBOOK: &str = "docs/operate/alerts.md";

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the words that begin with `Pmnet`, as the names of alerts do.
fn named(text: &str) -> BTreeSet<String> {
    text.split(|char: char| !char.is_ascii_alphanumeric())
        .filter(|word| word.len() > 5 && word.starts_with("Pmnet"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn each_alert_has_its_section() {
    let rules = read("contrib/prometheus/pmnet.rules.yml");
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(alerts.len() >= 10, "{alerts:?}");
    for alert in &alerts {
        let link = format!("runbook: {RUNBOOK}#{}\n", anchor(alert));
        assert!(rules.contains(&link), "{alert} has no {link}");
    }
    let links = rules.matches("runbook: ").count();
    let severities = rules.matches("severity: ").count();
    assert_eq!((links, severities), (alerts.len(), alerts.len()));
    let runbook = &pages()[Path::new(RUNBOOK)];
    let sections: BTreeSet<&str> = runbook
        .lines()
        .filter_map(|line| line.strip_prefix("## Pmnet"))
        .collect();
    let wanted: BTreeSet<&str> = alerts
        .iter()
        .filter_map(|alert| alert.strip_prefix("Pmnet"))
        .collect();
    assert_eq!(sections, wanted);
    let known: BTreeSet<String> = alerts.iter().map(|alert| (*alert).to_owned()).collect();
    // The source files of the status port, its page and pmnet top, which name alerts.
    let sources = [
        "crates/status/page/page.js",
        "crates/status/src/source.rs",
        "crates/pmnet/src/status/advice.rs",
        "crates/pmnet/src/top/model.rs",
    ];
    let on_page: BTreeSet<String> = sources.iter().flat_map(|path| named(&read(path))).collect();
    assert!(on_page.len() > 9, "{on_page:?}");
    for name in on_page.iter().chain(&named(runbook)) {
        assert!(known.contains(name), "there is no alert {name}");
    }
}

/// A rule about a metric that no process has would never fire.
#[test]
fn rules_ask_for_metrics_that_exist() {
    let metrics = read("docs/reference/metrics.md");
    let rules = read("contrib/prometheus/pmnet.rules.yml");
    let mut asked = 0;
    for line in rules.lines().filter(|line| line.contains("pmnet_")) {
        let words = line.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
        for name in words.filter(|word| word.starts_with("pmnet_")) {
            let name = name.trim_end_matches("_bucket");
            assert!(metrics.contains(&format!("`{name}`")), "{name}");
            asked += 1;
        }
    }
    assert!(asked > 15, "{asked}");
}
