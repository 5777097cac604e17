//! The bytes on the wire, as the specification describes them.

mod command;
mod dissector;
mod header;
mod record;
mod store_name;
mod tshark;
mod vectors;
