//! The pipeline in the kernel, compared with the device in user space: the same packets must give the same answers and
//! the same log. The tests need root. Otherwise the tests are skipped, with a message; in CI that is a failure.

mod attach;
mod beside;
mod chain;
mod coupled;
mod differential;
mod erase;
mod forwards;
mod hold;
mod keyed;
mod lease;
#[path = "../af_xdp/link.rs"]
mod link;
mod load;
mod net;
mod parties;
mod races;
mod reads;
mod rig;
mod several;
#[path = "../../src/xdp/shared.rs"]
mod shared;
#[path = "../../../../tests/shared/skip.rs"]
mod skip;
mod sleep;
mod vectors;
mod world;
