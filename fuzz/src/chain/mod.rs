//! Clients, a chain of one to three devices, a server and a store, connected by a network that
//! loses, repeats and reorders packets. All of them are production code. Devices and server die and
//! come back, and the store fails.
//!
//! Invariants: nothing panics, no device or server stops, and every call ends once; no acknowledged
//! update is lost or takes effect twice, each session's order holds, and a read sees all updates
//! that were acknowledged before it began (`docs/spec/protocol.md` §10, 1–4). When the faults end,
//! all logs become empty (8).

mod calls;
mod world;

use crate::input::Input;
use world::World;

/// Maximum number of operations of one input.
const OPERATIONS: usize = 500;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    for _ in 0..OPERATIONS {
        if !input.more() {
            break;
        }
        step(&mut world, &mut input);
    }
    world.heal();
}

fn step(world: &mut World, input: &mut Input<'_>) {
    match input.byte() % 32 {
        0..=4 => world.update(input),
        5 | 6 => world.bypass(input),
        7 => world.open_or_end(input),
        8..=15 => {
            for _ in 0..1 + input.below(16) {
                world.deliver_one(input);
            }
        }
        16 | 17 => world.deliver_all(),
        18 => world.lose(input),
        19 => world.repeat(input),
        20 if input.rarely(2) => world.restart_device(input),
        21 if input.rarely(2) => world.restart_server(input),
        22 => world.fail_store(input),
        _ => world.pass_time(input),
    }
}
