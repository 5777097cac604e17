//! Searches a configuration exhaustively, and reports the result.

use std::time::{Duration, Instant};

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use crate::configuration::Configuration;
use crate::protocol::Protocol;
use crate::queue::Machine;
use crate::rule::Rules;
use crate::words::describe;

/// Maximum number of states that a search generates. A larger search is abandoned.
pub const STATES_MAX: usize = 2_000_000_000;

/// The shortest path to a violation.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The violated invariant.
    pub invariant: &'static str,
    /// The steps of the path as text, one on each line.
    pub steps: Vec<String>,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name of the configuration.
    pub configuration: &'static str,
    /// Number of generated states, including repeated states.
    pub states: usize,
    /// Number of different states.
    pub unique: usize,
    /// Largest number of steps that is needed to reach any state on a shortest path. With more than one thread, the
    /// number is approximate.
    pub depth: usize,
    /// Duration of the search.
    pub elapsed: Duration,
    /// The first violation found. With one thread, its path is the shortest.
    pub counterexample: Option<Counterexample>,
    /// Names of the goals that no state has reached.
    pub missed: Vec<&'static str>,
    /// Whether every reachable state was visited.
    pub exhausted: bool,
}

impl Outcome {
    /// Whether the search was exhaustive, found no violation, and reached every goal.
    #[must_use]
    pub fn clean(&self) -> bool {
        self.exhausted && self.counterexample.is_none() && self.missed.is_empty()
    }
}

/// Searches a configuration breadth first. If `threads` is 1, a counterexample is as short as possible.
#[must_use]
pub fn check(configuration: &Configuration, rules: Rules, threads: usize) -> Outcome {
    let (name, own) = (configuration.name, configuration.clone());
    match configuration.queue {
        None => search(name, Protocol::new(own, rules), threads, describe),
        Some(queue) => {
            let machine = Machine::new(own, queue, rules);
            search(name, machine, threads, Machine::describe)
        }
    }
}

fn search<M>(
    configuration: &'static str,
    model: M,
    threads: usize,
    describe: fn(&M, &M::State, M::Action) -> String,
) -> Outcome
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Debug + Clone + PartialEq + Send + Sync + 'static,
    M::Action: Debug + Copy + PartialEq + Send + Sync + 'static,
{
    let started = Instant::now();
    let checker = model
        .checker()
        .threads(threads.max(1))
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(STATES_MAX)
        .spawn_bfs()
        .join();
    let mut discoveries = checker.discoveries();
    let mut counterexample = None;
    let mut missed = Vec::new();
    for property in checker.model().properties() {
        match (property.expectation, discoveries.remove(property.name)) {
            (Expectation::Always, Some(path)) => {
                let told = path.into_vec();
                let steps = told
                    .iter()
                    .filter_map(|(state, action)| {
                        Some(describe(checker.model(), state, (*action)?))
                    })
                    .collect();
                counterexample = Some(Counterexample {
                    invariant: property.name,
                    steps,
                });
            }
            (Expectation::Sometimes, None) => missed.push(property.name),
            _ => {}
        }
    }
    Outcome {
        configuration,
        states: checker.state_count(),
        unique: checker.unique_state_count(),
        depth: checker.max_depth(),
        elapsed: started.elapsed(),
        exhausted: counterexample.is_none() && checker.state_count() < STATES_MAX,
        counterexample,
        missed,
    }
}
