//! What is on the wire, as the specification draws it.

mod command;
mod dissector;
mod header;
mod record;
mod store_name;
mod tshark;
mod vectors;
