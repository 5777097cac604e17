//! Compiles the kernel programs of the measurements, which are in `bpf/` of this crate.

use std::path::PathBuf;

#[path = "../../bpf/compile.rs"]
mod compile;

fn main() {
    let folder = |name| PathBuf::from(std::env::var_os(name).expect("cargo sets it"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../bpf/compile.rs");
    let source = folder("CARGO_MANIFEST_DIR").join("bpf");
    compile::objects(&source, &folder("OUT_DIR"), &["reflect", "feed"]);
}
