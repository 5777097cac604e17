//! Ports of a device. [`relay`]: a batched UDP relay, which needs no privileges. [`xdp`]: its fast path in the
//! kernel. [`af_xdp`]: frames past the kernel's network stack.

pub mod af_xdp;
mod burst;
pub mod relay;
pub mod xdp;
