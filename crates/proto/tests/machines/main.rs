//! The three machines alone, without a network, a log or a store: a test gives a machine packets and examines the
//! packets that it sends (`docs/spec/protocol.md`). The simulator tests the whole system under faults; each test in
//! this folder examines a rule in the machine that applies it.

mod client_bypass;
mod client_doubts;
mod client_heads;
mod client_limits;
mod client_updates;
mod decide;
mod decide_join;
mod decide_lines;
mod decide_words;
mod device_admission;
mod device_chain;
mod device_doubts;
mod device_durable;
mod device_fast_path;
mod device_fold;
mod device_head;
mod device_joining;
mod device_lease;
mod device_reads;
mod device_recovery;
mod device_replicas;
mod device_sessions;
mod device_shares;
mod fragment_size;
mod keys;
mod server_apply;
mod server_background;
mod server_bypass;
mod server_chain;
mod server_delayed;
mod short;
mod support;
