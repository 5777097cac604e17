//! Tests of the stores as the server uses them: the embedded stores, and a real Redis in all other modules.

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
