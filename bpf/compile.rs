//! Compiles programs for the kernel: part of the build scripts of `dataplane` and `lab`, included by its path.
//!
//! Without clang the build leaves the programs out. The binary says so when a user asks for one of the programs.

use std::path::Path;
use std::process::Command;

/// Compiles `NAME.bpf.c` of the folder `source` to `NAME.o` in `out`, which also has the generated headers. Cargo
/// repeats it when a file in `source` changes. The object file is empty if clang is missing.
pub fn objects(source: &Path, out: &Path, names: &[&str]) {
    // Given a folder, cargo watches every file in it.
    println!("cargo:rerun-if-changed={}", source.display());
    println!("cargo:rerun-if-env-changed=PMNET_CLANG");
    for name in names {
        let object = out.join(format!("{name}.o"));
        if let Err(why) = compile(&source.join(format!("{name}.bpf.c")), out, &object) {
            println!("cargo:warning={name}.bpf.c: {why}; what runs in the kernel is left out");
            std::fs::write(&object, []).expect("OUT_DIR can be written");
        }
    }
}

/// Runs clang on one program. A missing clang is no error; a program that clang rejects is an error.
fn compile(source: &Path, include: &Path, object: &Path) -> Result<(), String> {
    let clang = std::env::var("PMNET_CLANG").unwrap_or_else(|_| "clang".into());
    let folder = source.parent().unwrap_or(source);
    let output = Command::new(&clang)
        .args([
            "-O2",
            "-g",
            "-target",
            "bpf",
            "-mcpu=v3",
            // The programs access packets as structures, words and bytes.
            "-fno-strict-aliasing",
            // The object file does not depend on the folder in which it is compiled.
            "-ffile-compilation-dir=.",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        // The folder in which Debian keeps the kernel's headers of this architecture.
        .arg(format!(
            "-I/usr/include/{}-linux-gnu",
            std::env::consts::ARCH
        ))
        .args([
            format!("-ffile-prefix-map={}=bpf", folder.display()),
            format!("-ffile-prefix-map={}=bpf", include.display()),
        ])
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
