//! Ports of a device. [`relay`]: a batched UDP relay, which needs no privileges.

pub mod relay;
