//! The protocol (docs/spec/protocol.md) as an explicit-state model, searched exhaustively in small configurations. Each
//! of the protocol's rules can be switched off; then the search finds a counterexample. docs/spec/model.md describes
//! what is modelled, what is left out, and the sizes of the searches.
//!
//! Not part of the product: this crate depends on no other crate of this repository, and no crate depends on it. Its
//! results hold for the code only as far as the model agrees with the code. The simulator runs the code itself.

mod adversary;
mod bypass;
pub mod catalogue;
mod catalogue_at_once;
mod catalogue_keys;
mod catalogue_leases;
mod catalogue_marks;
mod catalogue_queue;
mod catalogue_reads;
mod catalogue_replicas;
mod chain;
pub mod check;
mod client;
pub mod configuration;
mod device;
mod direct;
pub mod history;
mod lease;
pub mod network;
mod properties;
pub mod protocol;
pub mod queue;
mod reads;
mod replica;
mod rollover;
mod rule;
mod rule_table;
mod server;
pub mod state;
mod useful;
pub mod words;

pub use adversary::Trick;
pub use rule::{Rule, Rules};
