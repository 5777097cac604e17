//! The pipeline in the kernel, compared with the device in user space: the same packets must give the same answers and the
//! same log. Needs root. Otherwise the tests are skipped, with a message; in CI that is a failure.

mod beside;
mod chain;
mod coupled;
mod differential;
mod erase;
mod forwards;
mod hold;
mod lease;
mod load;
mod net;
mod parties;
mod races;
mod reads;
mod rig;
#[path = "../../src/xdp/shared.rs"]
mod shared;
#[path = "../../../../tests/shared/skip.rs"]
mod skip;
mod sleep;
mod vectors;
mod world;
