//! Compiles the programs in `bpf/`, and generates `generated.h`, the header that they share with the Rust code.
//!
//! The script runs again when an input changes: a file in `bpf/` (also a header), or a source of `generated.h`. These
//! sources are the two files below, and the crates `wire` and `log`, to which this script is linked.

use std::path::PathBuf;

#[path = "../../bpf/compile.rs"]
mod compile;
#[path = "src/xdp/generate.rs"]
mod generate;

const PROGRAMS: [&str; 4] = ["pipeline", "pipeline_keyed", "dispatch", "redirect"];

fn main() {
    let folder = |name| PathBuf::from(std::env::var_os(name).expect("cargo sets it"));
    let source = folder("CARGO_MANIFEST_DIR").join("../../bpf");
    let out = folder("OUT_DIR");
    for made_of in ["build.rs", "src/xdp/generate.rs", "src/xdp/shared.rs"] {
        println!("cargo:rerun-if-changed={made_of}");
    }
    std::fs::write(out.join("generated.h"), generate::header()).expect("OUT_DIR can be written");
    compile::objects(&source, &out, &PROGRAMS);
}
