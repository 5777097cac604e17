//! A small network on one machine: clients, up to three devices in a row, a server, each in a
//! network namespace of its own, joined by veth pairs.
//!
//! Purpose: a place to play in (`pmnet-lab testbed`), and what `pmnet-lab bench micro` measures on.
//! Invariants: the network of the machine itself is never touched; whatever is made is removed by
//! its handle or by [`down`], also after a crash; every wait has a deadline. May not: start any
//! part of pmnet. Needs root, `ip` (iproute2) and `ethtool`.

mod layout;
mod network;
mod persistent;

pub use layout::{CLIENTS_MAX, DEVICES_MAX, END_INTERFACE, Layout, Link, Node};
pub use network::{Network, refusal};
pub use persistent::{PREFIX, down, exec, up};
