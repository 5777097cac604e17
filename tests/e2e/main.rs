//! End-to-end tests with real processes. Each subject has a module. All modules are in one binary, because linking
//! takes most of the build time. Run the tests with `--test-threads=1`: they share a machine with two cores, and some
//! of them check times.

mod common;
mod support;

mod alerts;
mod attack;
mod bad_input;
mod bad_packets;
mod bundle;
mod chain;
mod clients;
mod embedded;
mod exactly_once;
mod failover;
mod failovers;
mod fleet;
mod full_log;
mod full_store;
mod hand;
mod histories;
mod idle;
mod invented;
mod joining;
mod kernel;
mod keys;
mod kills;
mod logins;
mod memcached;
mod operator;
mod programs;
mod promote;
mod redis_cluster;
mod refusals;
mod reload;
mod replicas;
mod run;
mod sentinel;
mod sessions;
mod sharding;
mod shares;
mod status;
mod three_boxes;
mod top;
mod upgrade;
mod values;
mod wireshark;
