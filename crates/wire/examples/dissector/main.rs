//! Writes the dissector for Wireshark, `contrib/wireshark/pmnet.lua` (`docs/operate/wireshark.md`).
//!
//! Run it from the root of the repository: `cargo run -p pmnet-wire --example dissector`. The test `dissector` fails if
//! the committed file differs from the output of this program.

mod tables;

use std::path::Path;

fn main() -> std::io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/wireshark/pmnet.lua");
    std::fs::write(path, tables::dissector())?;
    println!("contrib/wireshark/pmnet.lua written");
    Ok(())
}
