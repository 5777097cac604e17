//! The committed dissector for Wireshark equals the generator's output.

#[path = "../../examples/dissector/tables.rs"]
mod tables;

use std::path::Path;

#[test]
fn the_committed_dissector_is_what_the_generator_writes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/wireshark/pmnet.lua");
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == tables::dissector(),
        "contrib/wireshark/pmnet.lua is old; run: cargo run -p pmnet-wire --example dissector"
    );
}
