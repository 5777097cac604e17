//! What is on the wire, as the specification draws it.

mod command;
mod header;
mod record;
mod store_name;
mod vectors;
