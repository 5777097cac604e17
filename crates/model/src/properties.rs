//! The invariants of protocol.md §10 as properties of the model, and the goals, which show that a search has reached
//! the interesting states.
//!
//! | property | invariant |
//! |---|---|
//! | nothing acknowledged is lost | 1: what a client was told is in the primary's store, or in the log of a member of the newest chain, durable, after A, with nothing missing before it; or the loss was declared |
//! | nothing takes effect twice | 2 |
//! | each session's effects are in order | 3: no effect after a later one of its session, none before an earlier logged one |
//! | linearizable, each session in its order | 3 and 4, see [`crate::history`] |
//! | nothing of an ended session takes effect | 5 |
//! | only what was sent takes effect | 6, as far as damage goes; that lower epochs change nothing shows in the others |
//! | no order has two identities | 9 |
//! | the store is a prefix of every log | 9, and rule 3; judged where there is an adversary |
//! | no process is unheard for its key | none: a rollover in the documented order fails no call (keys.md §7); judged where there is one |
//!
//! Invariants 7, 8 and 10 are about time and processes. The simulator checks these invariants.

use std::sync::atomic::Ordering;

use stateright::{Model, Property};

use crate::configuration::{CLIENTS, Call, Goal, Step};
use crate::network::Packet;
use crate::protocol::{Action, Protocol};
use crate::state::{Bad, Phase, State, op_of};

const INVARIANTS: [(Bad, &str); 9] = [
    (Bad::Lost, "nothing acknowledged is lost"),
    (Bad::Twice, "nothing takes effect twice"),
    (Bad::Disorder, "each session's effects are in order"),
    (Bad::History, "linearizable, each session in its order"),
    (Bad::Ended, "nothing of an ended session takes effect"),
    (Bad::Garbage, "only what was sent takes effect"),
    (Bad::Fork, "no order has two identities"),
    (Bad::Ahead, "the store is a prefix of every log"),
    (Bad::Unheard, "no process is unheard for its key"),
];

const GOALS: [(Goal, &str); 21] = [
    (Goal::Acknowledged, "an update is acknowledged"),
    (Goal::AllDone, "both clients finish"),
    (Goal::Reclaimed, "an entry is freed"),
    (Goal::Recovered, "a restarted device serves"),
    (
        Goal::Zombie,
        "a removed device and a newer epoch serve at once",
    ),
    (Goal::NewEpochCommits, "the head of a later epoch commits"),
    (Goal::FallenBack, "a fallback is confirmed"),
    (Goal::Hit, "a read is answered by the head"),
    (Goal::Missed, "a read goes straight to the store"),
    (Goal::AtOnce, "a MISS meets what the store has said"),
    (Goal::Passed, "an operation is passed through"),
    (Goal::MarkEnded, "a mark is ended"),
    (
        Goal::OwnWrite,
        "a read is answered with its session's update",
    ),
    (Goal::CaughtUp, "a device that joined has caught up"),
    (Goal::ReplicaServes, "the replica applies as primary"),
    (Goal::Declared, "a loss is declared"),
    (Goal::Begun, "a bypass is answered as begun"),
    (Goal::LeasedAgain, "a removed device holds a lease again"),
    (Goal::Apart, "a replica that lags may answer a read"),
    (Goal::Refused, "a client of another kind is refused"),
    (
        Goal::Rolled,
        "the old key is forgotten, and both clients finish",
    ),
];

/// Whether invariant `I` holds in a state. Returns false only at the first violation, so the reported example is the
/// shortest.
fn invariant<const I: usize>(model: &Protocol, state: &State) -> bool {
    state.bad != INVARIANTS[I].0 || model.violated.swap(true, Ordering::Relaxed)
}

/// Whether a state reaches goal `I`. Once a state has reached a goal, the goal is not checked any more.
fn goal<const I: usize>(model: &Protocol, state: &State) -> bool {
    let bit = 1 << I;
    if model.reached.load(Ordering::Relaxed) & bit != 0 || !model.reaches(state, GOALS[I].0) {
        return false;
    }
    model.reached.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

impl Protocol {
    /// Whether an acknowledged update is lost: it is not applied, and no log of the newest chain can still provide it.
    pub(crate) fn lost(&self, state: &State) -> bool {
        state.clients.iter().zip(0u8..).any(|(client, id)| {
            let told = client.done & !client.unknown;
            (0..client.invoked)
                .any(|index| told & (1 << index) != 0 && !self.safe(state, id, index))
        })
    }

    fn safe(&self, state: &State, client: u8, index: u8) -> bool {
        let step = self.step(client, index);
        if step.call.is_read() && !step.call.is_direct_write() {
            return true;
        }
        let op = op_of(client, index);
        let same = |at: &u8| self.step(client, *at).call.is_mark() == step.call.is_mark();
        let store = &state.servers[usize::from(self.primary(state.record.epoch))].store;
        let effective = |op: u8| store.effects & (1 << (op - 1)) != 0;
        if effective(op) || !step.logged {
            return effective(op);
        }
        self.chain(state.record.epoch)
            .members()
            .iter()
            .any(|member| {
                let device = &state.devices[usize::from(*member)];
                let rest = store.applied + 1..=device.durable;
                let mut whole = rest
                    .map(|order| device.entry(order))
                    .take_while(|entry| *entry != 0);
                // All earlier updates of the session must be applied, or be in the log before the entry.
                let mut missing: u8 = (0..index)
                    .filter(same)
                    .filter(|at| self.step(client, *at).logged && !effective(op_of(client, *at)))
                    .map(|at| 1 << at)
                    .sum();
                whole.any(|entry| {
                    for at in 0..index {
                        if entry == op_of(client, at) {
                            missing &= !(1 << at);
                        }
                    }
                    entry == op && missing == 0
                })
            })
    }

    /// Whether a client has received the answer to a call for which `wanted` is true.
    fn told(&self, state: &State, wanted: impl Fn(Call) -> bool) -> bool {
        self.plan.iter().zip(&state.clients).any(|(plan, client)| {
            let told = client.done & !client.unknown;
            let ended = |(at, step): (usize, &Step)| wanted(step.call) && told & (1 << at) != 0;
            plan.iter().enumerate().any(ended)
        })
    }

    fn reaches(&self, state: &State, goal: Goal) -> bool {
        let done = |client: usize| {
            let done = state.clients[client].done & !state.clients[client].unknown;
            usize::try_from(done.count_ones()).is_ok_and(|done| done == self.plan[client].len())
        };
        let serving = || {
            state
                .devices
                .iter()
                .filter(|device| device.phase == Phase::Serving)
        };
        let has = |wanted: fn(&Packet) -> bool| state.network.iter().any(|packet| wanted(&packet));
        match goal {
            Goal::Acknowledged => state.clients.iter().any(|client| client.done != 0),
            Goal::AllDone => done(0) && done(1),
            Goal::Reclaimed => serving().any(|device| device.applied > 0),
            Goal::Recovered => serving().any(|device| device.incarnation > 0),
            Goal::Zombie => {
                let newest = state.record.epoch;
                serving().any(|device| device.epoch == newest)
                    && serving().any(|device| device.epoch < newest && device.epoch > 0)
            }
            Goal::NewEpochCommits => serving().any(|device| {
                device.epoch > 1
                    && device.committed > device.applied
                    && device.answered.iter().any(|seq| *seq > 0)
            }),
            Goal::FallenBack => state.clients.iter().zip(0u8..).any(|(client, id)| {
                state.network.iter().any(|packet| match packet {
                    Packet::Fallback { client, index } if client == id => {
                        state.clients[usize::from(id)].done & (1 << index) != 0
                    }
                    _ => false,
                }) && client.fallback == 0
            }),
            Goal::Hit => has(|packet| matches!(packet, Packet::Hit { .. })),
            Goal::Missed => has(|packet| matches!(packet, Packet::Miss { .. })),
            Goal::AtOnce => state.network.iter().any(|packet| match packet {
                Packet::Miss { client, .. } => {
                    self.use_ahead(&mut state.clone(), packet)
                        && state.clients[usize::from(client)].ahead.epoch > 0
                }
                _ => false,
            }),
            Goal::Apart => {
                let [master, replica] = &state.servers;
                let lags = master.store != replica.store;
                lags && state
                    .network
                    .iter()
                    .any(|packet| self.shows(replica, packet))
            }
            Goal::Passed => self.told(state, Call::is_direct_write),
            Goal::OwnWrite => self.told(state, |call| call == Call::ReadOwn),
            Goal::MarkEnded => {
                let store = &state.servers[usize::from(self.primary(state.record.epoch))].store;
                store.table[CLIENTS..].contains(&2)
            }
            Goal::CaughtUp => self.synced(state),
            Goal::ReplicaServes => state.servers[1].epoch > 1 && state.servers[1].store.applied > 0,
            Goal::Declared => state.record.declared,
            Goal::LeasedAgain => {
                let all = state.devices.iter().zip(state.record.stopped);
                let mut again = all.filter(|(device, stopped)| *stopped > 0 && device.leased);
                again.any(|(device, stopped)| device.epoch > stopped)
            }
            Goal::Rolled => self.has_rolled(state),
            Goal::Refused => self.is_refused(state, 1),
            Goal::Begun => state.clients.iter().any(|client| client.unknown != 0),
        }
    }
}

impl Model for Protocol {
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
            invariant::<5>,
            invariant::<6>,
            invariant::<7>,
            invariant::<8>,
        ];
        let goals: [fn(&Self, &State) -> bool; GOALS.len()] = [
            goal::<0>, goal::<1>, goal::<2>, goal::<3>, goal::<4>, goal::<5>, goal::<6>, goal::<7>,
            goal::<8>, goal::<9>, goal::<10>, goal::<11>, goal::<12>, goal::<13>, goal::<14>,
            goal::<15>, goal::<16>, goal::<17>, goal::<18>, goal::<19>, goal::<20>,
        ];
        let wanted = GOALS
            .iter()
            .zip(goals)
            .filter(|((goal, _), _)| self.configuration.goals.contains(goal));
        let mut properties: Vec<_> = INVARIANTS
            .iter()
            .zip(invariants)
            .map(|((_, name), holds)| Property::always(name, holds))
            .collect();
        properties.extend(wanted.map(|((_, name), reached)| Property::sometimes(name, reached)));
        properties
    }
}
