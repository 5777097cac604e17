//! One device alone: the production machine over a production log, among neighbours that the input
//! plays: clients, a previous hop, a next hop, a server (`docs/spec/protocol.md` §2, §4, §5).
//!
//! Neighbours are honest or lie. Invariants with all neighbours: nothing panics, the cursors are in
//! order, sent packets parse and are bounded, and an unknown sender gets back at most as many bytes
//! as it sent. Invariants with honest neighbours: forwarded entries are durable in this device, and
//! acknowledged entries are durable everywhere and survive every crash.
//!
//! [`run`] copies packets into a ring; [`run_in_place`] receives them into packet buffers that are
//! the log.

mod buffers;
mod packets;
mod world;

use crate::input::Input;
use world::World;

/// Maximum number of operations of one input.
const OPERATIONS: usize = 600;

/// Runs one input with a ring.
pub fn run(data: &[u8]) {
    story(data, false);
}

/// Runs one input with packet buffers.
pub fn run_in_place(data: &[u8]) {
    story(data, true);
}

fn story(data: &[u8], in_place: bool) {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input, in_place);
    for _ in 0..OPERATIONS {
        if !input.more() || !step(&mut world, &mut input) {
            break;
        }
    }
}

/// Runs one operation; `false`: the device has stopped, with a text for its operator.
fn step(world: &mut World, input: &mut Input<'_>) -> bool {
    match input.byte() % 24 {
        22 if input.rarely(4) => return world.restart(input),
        22 | 23 => return world.finish(input),
        0..=2 => world.open(input),
        3..=7 => world.update(input),
        8 => world.bypass(input),
        9 => world.end_or_ping(input),
        10 | 11 => world.append(input),
        12 => world.hop_before(input),
        13 => world.durable(input),
        14 => world.applied(input),
        15 => world.retrans(input),
        16 => world.answer(input),
        17 => world.recover_reply(input),
        18 => world.relay(input),
        19 => world.again(input),
        20 => world.forged(input),
        _ => world.passes(input),
    }
    true
}
