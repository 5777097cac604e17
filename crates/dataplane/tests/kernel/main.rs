//! The pipeline in the kernel beside the device in user space: the same packets, the same answers,
//! the same log. Needs root; says so otherwise, and never skips in CI.

mod chain;
mod coupled;
mod differential;
mod hold;
mod load;
mod net;
mod parties;
mod races;
mod rig;
#[path = "../../src/xdp/shared.rs"]
mod shared;
#[path = "../../../../tests/shared/skip.rs"]
mod skip;
mod sleep;
mod vectors;
mod world;
