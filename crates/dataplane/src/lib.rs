//! Ports of a device. [`relay`]: a batched UDP relay, which needs no privileges. [`xdp`]: its fast path in the
//! kernel.

pub mod relay;
pub mod xdp;
