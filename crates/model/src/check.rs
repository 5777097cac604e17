//! Searches a configuration exhaustively and reports what was found.

use std::time::{Duration, Instant};

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use crate::configuration::Configuration;
use crate::protocol::Protocol;
use crate::queue::Machine;
use crate::rule::Rules;
use crate::words::describe;

/// Most states that are generated before a search is given up as too large.
pub const STATES_MAX: usize = 2_000_000_000;

/// The shortest way to a violation.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The invariant that does not hold.
    pub invariant: &'static str,
    /// The steps, one a line.
    pub steps: Vec<String>,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name of the configuration.
    pub configuration: &'static str,
    /// States that were generated, repeats included.
    pub states: usize,
    /// Different states.
    pub unique: usize,
    /// Steps of the longest of the shortest paths (with more than one thread, about).
    pub depth: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// The first violation; with one thread, the shortest.
    pub counterexample: Option<Counterexample>,
    /// Goals that were not reached.
    pub missed: Vec<&'static str>,
    /// Whether every reachable state was visited.
    pub exhausted: bool,
}

impl Outcome {
    /// Searched exhaustively, no violation, every goal reached.
    #[must_use]
    pub fn clean(&self) -> bool {
        self.exhausted && self.counterexample.is_none() && self.missed.is_empty()
    }
}

/// Searches a configuration breadth first. A counterexample is the shortest if `threads` is 1.
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
