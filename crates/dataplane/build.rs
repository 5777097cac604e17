//! Compiles the in-kernel programs of `bpf/`, and generates `generated.h`, the header that they share with the Rust code.
//! Without clang the programs are left out, and the binary says so when they are asked for.
//!
//! Runs again when a file in `bpf/` changes, headers included, and when what `generated.h` is made of does: the two files
//! below, and the crates `wire` and `log`, which this script is linked with.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "src/xdp/generate.rs"]
mod generate;

const PROGRAMS: [&str; 4] = ["pipeline", "redirect", "reflect", "feed"];

fn main() {
    let folder = |name| PathBuf::from(std::env::var_os(name).expect("cargo sets it"));
    let source = folder("CARGO_MANIFEST_DIR").join("../../bpf");
    let out = folder("OUT_DIR");
    for made_of in ["build.rs", "src/xdp/generate.rs", "src/xdp/shared.rs"] {
        println!("cargo:rerun-if-changed={made_of}");
    }
    // Of a folder cargo watches every file.
    println!("cargo:rerun-if-changed={}", source.display());
    println!("cargo:rerun-if-env-changed=PMNET_CLANG");
    std::fs::write(out.join("generated.h"), generate::header()).expect("OUT_DIR can be written");
    for name in PROGRAMS {
        let object = out.join(format!("{name}.o"));
        if let Err(why) = compile(&source.join(format!("{name}.bpf.c")), &out, &object) {
            println!("cargo:warning=bpf/{name}.bpf.c: {why}; what runs in the kernel is left out");
            std::fs::write(&object, []).expect("OUT_DIR can be written");
        }
    }
}

/// A compiler that is missing is no error; one that refuses the program is.
fn compile(source: &Path, include: &Path, object: &Path) -> Result<(), String> {
    let clang = std::env::var("PMNET_CLANG").unwrap_or_else(|_| "clang".into());
    let output = Command::new(&clang)
        .args([
            "-O2",
            "-g",
            "-target",
            "bpf",
            "-mcpu=v3",
            // Packets are looked at as structures, words and bytes.
            "-fno-strict-aliasing",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        // Where Debian keeps the kernel's headers of this architecture.
        .arg(format!(
            "-I/usr/include/{}-linux-gnu",
            std::env::consts::ARCH
        ))
        .arg("-I")
        .arg(include)
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|error| {
            format!("{clang} cannot be run ({error}): apt-get install clang libbpf-dev")
        })?;
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("file not found") {
        return Err("a header is missing: apt-get install libbpf-dev linux-libc-dev".into());
    }
    assert!(
        output.status.success(),
        "{clang} {}:\n{text}",
        source.display()
    );
    Ok(())
}
