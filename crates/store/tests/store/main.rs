//! Tests of the stores as the server uses them. Some modules test the embedded stores, all others test a real Redis.

mod apply;
mod begun;
mod cluster;
mod code;
mod durability;
mod embedded;
mod execute;
mod faults;
mod fence;
mod grow;
mod infrastructure;
mod modules;
mod name;
mod packet;
mod packs;
mod promises;
mod rights;
mod runs;
mod scripts;
mod servers;
mod settings;
mod support;
mod tls;
mod types;
