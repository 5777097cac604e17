//! Sends random commands, and compares the answers with those of a real memcached.

use crate::bench::Bench;
use crate::shared::{Caller, Known, Memcached, Script};
use crate::skip::skip;

/// Number of exchanges in the short form of the test.
const EXCHANGES: u64 = 2_000;
/// Maximum number of commands of an exchange.
const TOGETHER: usize = 6;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

#[test]
fn random_commands_are_answered_as_by_memcached() {
    let Some(theirs) = Memcached::start() else {
        return skip("memcached is not installed");
    };
    let seed = setting("PMNET_SEED").unwrap_or(1);
    let exchanges = setting("PMNET_EXCHANGES").unwrap_or(EXCHANGES);
    let (mut bench, mut caller) = (Bench::new(), Caller::connect(theirs.address));
    let (mut ours, mut known) = (Known::default(), Known::default());
    let mut script = Script::new(seed);
    let mut history: Vec<String> = Vec::new();
    for number in 0..exchanges {
        let commands = script.together(TOGETHER);
        let (our, their) = (ours.render(&commands), known.render(&commands));
        history.push(our.escape_ascii().to_string());
        let answer = bench.say(&our);
        let wanted = caller.exchange(&their).unwrap();
        let (answer, wanted) = (ours.normalise(&answer), known.normalise(&wanted));
        assert_eq!(
            answer,
            wanted,
            "exchange {number}, PMNET_SEED={seed}; the last commands:\n{}",
            history[history.len().saturating_sub(12)..].join("\n")
        );
    }
}
