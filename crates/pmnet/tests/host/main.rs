//! The effects of a host on processes: logs that cannot be written, signals, limits, addresses that change, files that
//! shrink. The tests start the product's own processes.

mod chain;
#[allow(dead_code)] // Other tests use the rest of it.
#[path = "../../../lab/src/harness/claims.rs"]
mod claims;
#[allow(dead_code)] // As above.
#[path = "../../../../tests/shared/redis.rs"]
mod redis;
#[path = "../../../../tests/shared/skip.rs"]
mod skip;

mod addresses;
mod container;
mod files;
mod media;
mod names;
mod namespaces;
mod output;
mod restore;
mod service;
mod signals;
mod spare;
mod veth;
