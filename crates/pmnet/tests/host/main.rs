//! Tests of effects that a host has on processes: logs that cannot be written, signals, limits, addresses that change,
//! files that shrink. The tests start processes of the product.

mod chain;
#[allow(dead_code)] // Other tests use the rest of this file.
#[path = "../../../lab/src/harness/claims.rs"]
mod claims;
#[allow(dead_code)] // Other tests use the rest of this file.
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
