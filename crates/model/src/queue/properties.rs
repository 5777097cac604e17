//! The invariants of the queue, and the goals, which show that a search has reached the interesting states.

use std::sync::atomic::Ordering;

use stateright::{Model, Property};

use crate::queue::state::{Life, State, Status};
use crate::queue::{Action, Goal, Machine};
use crate::state::Bad;

const INVARIANTS: [(Bad, &str); 5] = [
    (Bad::Lost, "nothing acknowledged is lost"),
    (Bad::Twice, "nothing takes effect twice"),
    (Bad::Disorder, "each session's effects are in order"),
    (Bad::History, "linearizable, each session in its order"),
    (Bad::Garbage, "only what was sent takes effect"),
];

/// The invariant about progress.
const STUCK: &str = "no client waits for ever";

const GOALS: [(Goal, &str); 8] = [
    (Goal::Finished, "the clients that live finish"),
    (Goal::Overtaken, "a completion overtakes an earlier slot"),
    (Goal::Reused, "a slot is posted again"),
    (Goal::Hole, "an error leaves a hole"),
    (Goal::Resent, "a message comes twice"),
    (Goal::Recovered, "a scan applies a message"),
    (Goal::GoneOn, "another device goes on"),
    (Goal::Ended, "a session is ended, the other one finishes"),
];

fn invariant<const I: usize>(model: &Machine, state: &State) -> bool {
    state.bad != INVARIANTS[I].0 || model.violated.swap(true, Ordering::Relaxed)
}

fn nobody_is_stuck(model: &Machine, state: &State) -> bool {
    !model.stuck(state) || model.violated.swap(true, Ordering::Relaxed)
}

fn goal<const I: usize>(model: &Machine, state: &State) -> bool {
    let bit = 1 << I;
    if model.reached.load(Ordering::Relaxed) & bit != 0 || !model.reaches(state, GOALS[I].0) {
        return false;
    }
    model.reached.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

impl Machine {
    /// Whether a client has finished its program. A dead client, and a client without a session, count as finished.
    fn finished(&self, state: &State, client: u8) -> bool {
        let ended = self.ends_session() && state.over;
        let gone = client == 0 && (state.dead || ended);
        gone || self.first_open(state, client) >= self.calls(client)
    }

    /// Whether a client waits although no step is possible any more.
    fn stuck(&self, state: &State) -> bool {
        // After a move, clients may continue at the other device, which is not modelled.
        let elsewhere = state.life == Life::Left;
        if elsewhere || self.finished(state, 0) && self.finished(state, 1) {
            return false;
        }
        let mut actions = Vec::new();
        self.possible(state, &mut actions);
        actions
            .iter()
            .all(|action| self.take(state, *action).is_none())
    }

    fn reaches(&self, state: &State, goal: Goal) -> bool {
        let all = self.finished(state, 0) && self.finished(state, 1);
        let oldest = state.slots[usize::from(self.slot_of(state.processed))].status;
        let any = |wanted: fn(&Status) -> bool| state.slots.iter().any(|slot| wanted(&slot.status));
        match goal {
            Goal::Finished => all,
            Goal::Overtaken => {
                any(|status| matches!(status, Status::Seen(..)))
                    && matches!(oldest, Status::Taken(_) | Status::Complete(..))
            }
            Goal::Reused => state.crashes == 0 && !state.over && state.next > self.queue.slots,
            Goal::Hole => matches!(oldest, Status::Seen(_, false)),
            Goal::Resent => state.resent,
            Goal::Recovered => state.recovered && state.life == Life::Serves,
            Goal::GoneOn => state.over && state.processed > 0 && all,
            Goal::Ended => state.over && all,
        }
    }
}

impl Model for Machine {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.beginning()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.possible(state, actions);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        self.take(before, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let invariants: [fn(&Self, &State) -> bool; INVARIANTS.len()] = [
            invariant::<0>,
            invariant::<1>,
            invariant::<2>,
            invariant::<3>,
            invariant::<4>,
        ];
        let goals: [fn(&Self, &State) -> bool; GOALS.len()] = [
            goal::<0>, goal::<1>, goal::<2>, goal::<3>, goal::<4>, goal::<5>, goal::<6>, goal::<7>,
        ];
        let mut properties: Vec<_> = INVARIANTS
            .iter()
            .zip(invariants)
            .map(|((_, name), holds)| Property::always(name, holds))
            .collect();
        properties.push(Property::always(STUCK, nobody_is_stuck));
        let wanted = GOALS
            .iter()
            .zip(goals)
            .filter(|((goal, _), _)| self.queue.goals.contains(goal));
        properties.extend(wanted.map(|((_, name), reached)| Property::sometimes(name, reached)));
        properties
    }
}
