//! The faults of one run, which its seed determines.

use std::time::Duration;

use crate::harness::cluster::{Medium, Role};
use crate::harness::fleet::{FleetPlan, Machine};
use crate::harness::proxy::Trouble;

/// Duration of the period in which faults happen.
pub const FAULTS_TIME: Duration = Duration::from_millis(3_200);
/// Time of the first possible fault. The chain must have served before.
const FIRST: Duration = Duration::from_millis(200);
/// Minimum time between the beginning of the last fault and the end of the period.
const LAST: Duration = Duration::from_millis(300);
/// Number of faults in one run.
const FAULTS: std::ops::RangeInclusive<usize> = 6..=10;

/// One action on the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Kills a process (`kill -9`).
    Kill(Role),
    /// Starts a killed process again.
    Start(Role),
    /// From now on, drops all packets from the first machine to the second.
    Cut(Machine, Machine),
    /// Ends a cut.
    Heal(Machine, Machine),
    /// Takes the link of a machine down.
    LinkDown(Machine),
    /// Takes the link of a machine up again.
    LinkUp(Machine),
    /// Deletes the clients' keys directly in the database. The run must then fail, which shows that the check notices a
    /// fault. A seed never selects this step.
    Spoil,
}

/// The fleet and the faults of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The parts of the fleet.
    pub fleet: FleetPlan,
    /// The actions with their times, earliest first.
    pub steps: Vec<(Duration, Step)>,
}

impl Plan {
    /// Makes the plan of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Plan {
        let faults = FAULTS_TIME;
        let mut random = fastrand::Rng::with_seed(seed);
        let devices = random.usize(1..=3);
        let medium = if random.bool() {
            Medium::Dram
        } else {
            Medium::File
        };
        let trouble = random.bool().then(|| Trouble {
            drop: random.f64() * 0.05,
            repeat: random.f64() * 0.05,
            hold: random.f64() * 0.05,
            hold_max: Duration::from_millis(random.u64(1..30)),
            seed,
        });
        let mut steps = Vec::new();
        let roles: Vec<Role> = [Role::Redis, Role::Server, Role::Front]
            .into_iter()
            .chain((0..devices).map(Role::Device))
            .collect();
        // The machines on the path of an update. Only neighbours on this path exchange packets.
        let way: Vec<Machine> = [Machine::Clients, Machine::Of(Role::Front)]
            .into_iter()
            .chain((0..devices).map(|index| Machine::Of(Role::Device(index))))
            .chain([Machine::Of(Role::Server), Machine::Of(Role::Redis)])
            .collect();
        let latest = faults.saturating_sub(LAST).max(FIRST);
        for _ in 0..random.usize(FAULTS) {
            let at = between(&mut random, FIRST, latest);
            // A short fault leads to retransmissions, and a long fault to timeouts.
            let long = if random.u8(0..4) == 0 { 900 } else { 300 };
            let end = (at + Duration::from_millis(random.u64(20..long))).min(faults);
            let hop = random.usize(1..way.len());
            let (near, far) = (way[hop - 1], way[hop]);
            match random.u8(0..10) {
                0..=4 => {
                    let role = roles[random.usize(..roles.len())];
                    steps.push((at, Step::Kill(role)));
                    steps.push((end, Step::Start(role)));
                }
                5 | 6 => {
                    for (from, to) in [(near, far), (far, near)] {
                        steps.push((at, Step::Cut(from, to)));
                        steps.push((end, Step::Heal(from, to)));
                    }
                }
                7 | 8 => {
                    let (from, to) = if random.bool() {
                        (near, far)
                    } else {
                        (far, near)
                    };
                    steps.push((at, Step::Cut(from, to)));
                    steps.push((end, Step::Heal(from, to)));
                }
                _ => {
                    steps.push((at, Step::LinkDown(far)));
                    steps.push((end, Step::LinkUp(far)));
                }
            }
        }
        steps.sort_by_key(|(at, _)| *at);
        // All writers use the same front.
        let cache = if random.bool() { "log" } else { "pending" };
        Plan {
            fleet: FleetPlan {
                devices,
                medium,
                trouble,
                front_args: ["--deadline-ms", "1200", "--cache", cache]
                    .map(String::from)
                    .to_vec(),
            },
            steps,
        }
    }
}

fn between(random: &mut fastrand::Rng, first: Duration, last: Duration) -> Duration {
    first + last.saturating_sub(first).mul_f64(random.f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_every_fault_ends() {
        let mut kinds = [0; 3];
        for seed in 0..200 {
            let plan = Plan::draw(seed);
            assert_eq!(format!("{plan:?}"), format!("{:?}", Plan::draw(seed)));
            assert!(plan.steps.windows(2).all(|two| two[0].0 <= two[1].0));
            for (at, step) in &plan.steps {
                assert!(*at <= FAULTS_TIME);
                let end = match *step {
                    Step::Kill(role) => Step::Start(role),
                    Step::Cut(from, to) => Step::Heal(from, to),
                    Step::LinkDown(machine) => Step::LinkUp(machine),
                    _ => continue,
                };
                let kind = match step {
                    Step::Kill(_) => 0,
                    Step::Cut(..) => 1,
                    _ => 2,
                };
                kinds[kind] += 1;
                assert!(plan.steps.contains(&(*at, *step)));
                assert!(
                    plan.steps
                        .iter()
                        .any(|(later, other)| later >= at && *other == end),
                    "{step:?} of seed {seed} never ends"
                );
            }
        }
        assert!(kinds.iter().all(|count| *count > 100), "{kinds:?}");
    }
}
