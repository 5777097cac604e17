//! Writes the test vectors: `vectors/wire.json`, `vectors/payload.json` and `vectors/keys.json` (`docs/spec/wire.md`
//! §7).
//!
//! Run it from the root of the repository: `cargo run -p pmnet-wire --example vectors`. The test `vectors` fails if the
//! committed files differ from the output of this program.

mod keys;
mod packets;
mod payloads;
mod vector;

use std::path::Path;

fn main() -> std::io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors");
    std::fs::create_dir_all(&directory)?;
    for (name, text) in [
        ("wire.json", vector::text(&packets::all())),
        ("payload.json", vector::text(&payloads::all())),
        ("keys.json", vector::text(&keys::all())),
    ] {
        std::fs::write(directory.join(name), text)?;
        println!("vectors/{name} written");
    }
    Ok(())
}
