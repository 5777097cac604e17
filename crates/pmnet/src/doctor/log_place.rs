//! Checks a path for a log: which medium it is, how data becomes durable on it, and which faults an acknowledged write
//! survives.

use std::path::Path;

use pmnet_media::{Kind, Place};

use super::{Finding, Level};

/// Returns a finding about the medium, and one for each possible improvement.
pub(super) fn findings(path: &Path) -> Vec<Finding> {
    match pmnet_media::look(path) {
        Ok(place) => about(path, place),
        Err(error) => vec![Finding::bad(
            Level::Fail,
            "log",
            error.to_string(),
            "choose a file in a folder that is there, or a devdax device",
        )],
    }
}

fn about(path: &Path, place: Place) -> Vec<Finding> {
    let media = match place.kind {
        Kind::File => "file",
        Kind::Dram => "dram",
        Kind::Pmem => "pmem",
    };
    let found = format!(
        "{}: {}; --media {media}; {}; an ack survives: {}",
        path.display(),
        place.class.name(),
        place.persist,
        place.survives
    );
    let mut advice = place.advice.into_iter();
    let first = match advice.next() {
        None => Finding::ok("log", found),
        Some(first) => Finding::bad(Level::Warn, "log", found, first),
    };
    let more =
        advice.map(|more| Finding::bad(Level::Warn, "log", path.display().to_string(), more));
    std::iter::once(first).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use pmnet_media::Class;

    use super::*;

    #[test]
    fn each_advice_is_a_line_and_without_any_all_is_well() {
        let place = |advice: &[&str]| Place {
            class: Class::DevDax,
            kind: Kind::Pmem,
            persist: "flush: clwb".into(),
            survives: "power loss",
            advice: advice.iter().map(ToString::to_string).collect(),
        };
        let path = Path::new("/dev/dax0.0");
        let good = about(path, place(&[]));
        assert_eq!((good.len(), good[0].level), (1, Level::Ok));
        assert_eq!(
            good[0].found,
            "/dev/dax0.0: persistent memory (devdax); --media pmem; flush: clwb; an ack survives: power loss"
        );
        let bad = about(path, place(&["one", "two"]));
        assert_eq!(bad.len(), 2);
        for (finding, advice) in bad.iter().zip(["one", "two"]) {
            assert_eq!(finding.level, Level::Warn);
            assert_eq!(finding.advice.as_deref(), Some(advice));
        }
    }

    #[test]
    fn a_path_that_cannot_hold_a_log_fails() {
        let found = findings(Path::new("/dev/null"));
        assert_eq!((found.len(), found[0].level), (1, Level::Fail));
        assert!(found[0].found.contains("/dev/null"), "{}", found[0].found);
    }
}
