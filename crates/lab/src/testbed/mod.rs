//! A small network on one machine: clients, up to three devices in a row and a server. Each node
//! has a network namespace of its own, and veth pairs connect the nodes.
//!
//! Purpose: a test network (`pmnet-lab testbed`), which `pmnet-lab bench micro` also uses.
//! Invariants: the network of the machine itself is never changed; the handle or [`down`] removes
//! all created objects, even after a crash; every wait has a deadline. This module must not start
//! any part of pmnet. The module needs root, `ip` (iproute2) and `ethtool`.

mod layout;
mod network;
mod persistent;

pub use layout::{CLIENTS_MAX, DEVICES_MAX, END_INTERFACE, Layout, Link, Node};
pub use network::{Network, refusal};
pub use persistent::{PREFIX, down, exec, up};
