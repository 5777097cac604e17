//! Checks linearizability in the order of sessions, by an automaton that reads calls and returns.
//!
//! The automaton's state is a ghost: the set of all sequential worlds that explain the replies that clients have
//! received so far. A world has the values of the keys, the number of steps of each client that have taken effect, and
//! the answer to a bypass that has not returned yet. Effects are tried only at returns that need them (just-in-time
//! linearization), for each client in program order. The set is empty exactly if there is no linearization. A call that
//! its client has abandoned may take effect or not, but never after a later call of its session.

use std::hash::{Hash, Hasher};

use crate::configuration::{BOTH, CLIENTS, Call, KEY, KEYS, OTHER, STEPS, Step};
use crate::state::{Client, Op, op_of};

/// Answer to a bypass. For a read: 1 + the value ([`read`]). For a conditional write: [`SET`] or [`NOT_SET`].
pub type Answer = u8;
/// The conditional write has set the key.
pub const SET: Answer = 1;
/// The conditional write has changed nothing, because the key was already set.
pub const NOT_SET: Answer = 2;
/// The write was begun, and its progress is unknown.
pub const BEGUN: Answer = 3;
/// Number of values that a key can have.
const VALUES: u8 = 1 + (CLIENTS * STEPS) as u8;
/// The answer of an update, which has no content.
pub const NONE: Answer = 0;

/// Returns the answer of a read of these keys.
#[must_use]
pub fn read(keys: u8, values: [Op; KEYS]) -> Answer {
    let [first, second] = values;
    match keys {
        KEY => 1 + first,
        OTHER => 1 + second,
        _ => 1 + first + second * VALUES,
    }
}

/// Returns the values in the answer of a read of these keys.
#[must_use]
pub fn seen(keys: u8, answer: Answer) -> Vec<Op> {
    match keys {
        BOTH => vec![(answer - 1) % VALUES, (answer - 1) / VALUES],
        _ => vec![answer - 1],
    }
}

/// One sequential world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
struct World {
    values: [Op; KEYS],
    taken: [u8; CLIENTS],
    answer: [Answer; CLIENTS],
}

/// The worlds that explain all replies so far, sorted and without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    worlds: Vec<World>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            worlds: vec![World::default()],
        }
    }
}

impl Hash for History {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_usize(self.worlds.len());
        for world in &self.worlds {
            let World {
                values: [first, second],
                taken,
                answer,
            } = *world;
            let bytes = [
                first, second, taken[0], taken[1], answer[0], answer[1], 0, 0,
            ];
            hasher.write_u64(u64::from_be_bytes(bytes));
        }
    }
}

impl History {
    /// Processes the return of a step. Returns `false` if no linearization is left.
    pub fn returns(
        &mut self,
        plan: &[Vec<Step>; CLIENTS],
        clients: &[Client; CLIENTS],
        client: u8,
        index: u8,
        answer: Answer,
    ) -> bool {
        let who = usize::from(client);
        let mut kept = Vec::new();
        let mut open = std::mem::take(&mut self.worlds);
        let mut seen = open.clone();
        // The loop ends, because every successor has taken more steps of finite programs.
        while let Some(world) = open.pop() {
            if world.taken[who] > index {
                let mut world = world;
                let own = plan[who][usize::from(index)].call == Call::ReadOwn;
                let last = world.taken[who] == index + 1 || own;
                if answer == NONE || (last && world.answer[who] == answer) {
                    if answer != NONE {
                        world.answer[who] = NONE;
                    }
                    kept.push(world);
                }
                continue;
            }
            for other in 0..CLIENTS {
                for next in successors(&world, plan, clients, other) {
                    if !seen.contains(&next) {
                        seen.push(next);
                        open.push(next);
                    }
                }
            }
        }
        kept.sort_unstable();
        kept.dedup();
        self.worlds = kept;
        !self.worlds.is_empty()
    }

    /// Stops the check of the history, because a loss was declared.
    pub fn forget(&mut self) {
        self.worlds.clear();
    }
}

/// Returns the worlds in which one more step of the client has taken effect.
fn successors(
    world: &World,
    plan: &[Vec<Step>; CLIENTS],
    clients: &[Client; CLIENTS],
    who: usize,
) -> impl Iterator<Item = World> {
    let (from, client) = (world.taken[who], &clients[who]);
    let mark = move |index: u8| plan[who][usize::from(index)].call.is_mark();
    // An abandoned step may be skipped. Steps of the mark session have their own order.
    let mut end = from;
    while end < client.invoked && (client.unknown & (1 << end) != 0 || mark(end)) {
        end += 1;
    }
    let past = (end + 1).min(client.invoked).max(from);
    (from..past)
        .filter(move |index| !mark(*index))
        .map(move |index| take(*world, plan, who, index))
}

/// The sequential specification: applies a step to the keys, and returns its answer.
pub fn perform(step: &Step, op: Op, values: &mut [Op; KEYS]) -> Answer {
    let unset = values[0] == 0;
    match step.call {
        Call::Open | Call::End | Call::Expire | Call::Confirm | Call::Fence => NONE,
        Call::OpenMark | Call::EndMark | Call::ExpireMark => NONE,
        Call::Read
        | Call::ReadOther
        | Call::ReadBoth
        | Call::ReadOwn
        | Call::ReadBypass
        | Call::ReadDirect => read(step.keys, *values),
        Call::Write | Call::WriteOther | Call::WriteBoth => {
            for (bit, value) in values.iter_mut().enumerate() {
                if step.keys & (1 << bit) != 0 {
                    *value = op;
                }
            }
            NONE
        }
        Call::Set | Call::SetDirect => {
            values[0] = op;
            SET
        }
        Call::SetOther => {
            values[1] = op;
            SET
        }
        Call::WriteIfNone if unset => {
            values[0] = op;
            SET
        }
        Call::Script | Call::ScriptDirect if unset => {
            values[1] = op;
            SET
        }
        Call::WriteIfNone | Call::Script | Call::ScriptDirect => NOT_SET,
    }
}

fn take(mut world: World, plan: &[Vec<Step>; CLIENTS], who: usize, index: u8) -> World {
    let op = op_of(u8::try_from(who).expect("two clients"), index);
    let step = &plan[who][usize::from(index)];
    let answer = perform(step, op, &mut world.values);
    // A read that is answered with its session's own update may return after later updates.
    let kept = answer == NONE && plan[who].iter().any(|step| step.call == Call::ReadOwn);
    if !kept {
        world.answer[who] = answer;
    }
    world.taken[who] = index + 1;
    world
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Configuration;
    use crate::rule::Rules;

    fn plan(programs: [&'static [Call]; CLIENTS]) -> [Vec<Step>; CLIENTS] {
        let mut configuration: Configuration = crate::catalogue::all().remove(0);
        configuration.programs = programs;
        configuration.plan(Rules::all())
    }

    fn called(counts: [u8; CLIENTS]) -> [Client; CLIENTS] {
        counts.map(|invoked| Client {
            invoked,
            ..Client::default()
        })
    }

    #[test]
    fn a_read_may_see_a_concurrent_write_or_not() {
        let plan = plan([&[Call::Write], &[Call::Read]]);
        for seen in [0, op_of(0, 0)] {
            let mut history = History::default();
            assert!(history.returns(&plan, &called([1, 1]), 1, 0, 1 + seen));
            assert!(history.returns(&plan, &called([1, 1]), 0, 0, NONE));
        }
    }

    #[test]
    fn a_read_must_see_a_write_that_returned_before() {
        let plan = plan([&[Call::Write], &[Call::Read]]);
        let mut history = History::default();
        assert!(history.returns(&plan, &called([1, 0]), 0, 0, NONE));
        assert!(!history.returns(&plan, &called([1, 1]), 1, 0, 1));
    }

    #[test]
    fn a_read_must_see_its_own_earlier_write() {
        let plan = plan([&[Call::Write, Call::Read], &[]]);
        let mut history = History::default();
        assert!(!history.returns(&plan, &called([2, 0]), 0, 1, 1));
    }

    #[test]
    fn reads_do_not_go_back() {
        let plan = plan([&[Call::Write], &[Call::Read, Call::Read]]);
        let mut history = History::default();
        assert!(history.returns(&plan, &called([1, 1]), 1, 0, 1 + op_of(0, 0)));
        assert!(!history.returns(&plan, &called([1, 2]), 1, 1, 1));
    }

    #[test]
    fn only_one_conditional_write_succeeds() {
        let plan = plan([&[Call::WriteIfNone], &[Call::WriteIfNone]]);
        let mut history = History::default();
        assert!(history.returns(&plan, &called([1, 1]), 0, 0, SET));
        assert!(
            history
                .clone()
                .returns(&plan, &called([1, 1]), 1, 0, NOT_SET)
        );
        assert!(!history.returns(&plan, &called([1, 1]), 1, 0, SET));
    }

    #[test]
    fn an_unknown_call_takes_effect_before_later_ones_or_never() {
        let plan = plan([&[Call::WriteIfNone, Call::Write], &[Call::Read, Call::Read]]);
        let mut clients = called([2, 0]);
        clients[0].unknown = 1;
        let mut history = History::default();
        assert!(history.returns(&plan, &clients, 0, 1, NONE));
        clients[1].invoked = 1;
        // The acknowledged write must have taken effect. The write of unknown outcome must not take effect after it.
        assert!(
            !history
                .clone()
                .returns(&plan, &clients, 1, 0, 1 + op_of(0, 0))
        );
        assert!(history.returns(&plan, &clients, 1, 0, 1 + op_of(0, 1)));
    }

    #[test]
    fn a_read_of_an_own_update_comes_before_later_updates() {
        let plan = plan([&[Call::Write, Call::ReadOwn, Call::Write], &[Call::Write]]);
        let clients = called([3, 1]);
        let mut history = History::default();
        // The other client's update has returned before the read was called, so the read must come after it.
        assert!(history.returns(&plan, &clients, 1, 0, NONE));
        assert!(history.returns(&plan, &clients, 0, 0, NONE));
        for (value, may) in [(op_of(0, 0), true), (op_of(0, 2), false)] {
            let mut history = history.clone();
            assert_eq!(history.returns(&plan, &clients, 0, 1, 1 + value), may);
        }
    }

    #[test]
    fn a_mark_has_no_place_among_the_calls() {
        let plan = plan([
            &[Call::OpenMark, Call::SetDirect, Call::EndMark],
            &[Call::Read],
        ]);
        let mut clients = called([3, 1]);
        // The call was abandoned, and takes effect after the END.
        clients[0].unknown = 0b010;
        for value in [0, op_of(0, 1)] {
            let mut history = History::default();
            assert!(history.returns(&plan, &clients, 1, 0, 1 + value));
        }
    }
}
