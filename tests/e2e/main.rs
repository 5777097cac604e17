//! End-to-end tests with real processes. Each theme has a module, and all are in one binary
//! (linking takes most of the time). Run them with `--test-threads=1`: they share a machine of two
//! cores, and some of them check times.

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
