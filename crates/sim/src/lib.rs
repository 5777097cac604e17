//! Deterministic simulator: the production code of client, device and server in a simulated world.
//!
//! Each world runs on one thread. The same seed gives the same run on every computer. Clients, devices, logs and the
//! server are the production code, and not a model of it. Only their environment is simulated: network, media, store,
//! clocks, processes, operators. The crate must not read a clock, or draw randomness that does not come from the seed.

mod accidents;
mod aim;
mod campaign;
pub mod cells;
pub mod check;
mod client;
mod clock;
pub mod config;
mod direct;
mod fleet;
mod hosts;
mod joins;
mod leased;
pub mod media;
mod network;
mod paths;
mod reads;
mod report;
mod rollover;
pub mod slots;
mod standby;
pub mod store;
mod stores;
mod wide;
mod without;
mod world;

pub use campaign::{Plan, Summary, campaign, run_caught, run_with_trace};
pub use report::Report;
pub use without::{Place, Without};
pub use world::World;

/// Runs the world of one seed.
///
/// # Panics
/// If a machine panics, this function panics; [`run_caught`] makes the panic a violation.
#[must_use]
pub fn run(seed: u64, plan: &Plan) -> Report {
    World::new(seed, plan, false).run()
}
