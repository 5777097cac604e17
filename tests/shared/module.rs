//! A module for redis-server with commands that pmnet does not know (`invented.c`). Tests include
//! this source file by its path.

use std::path::Path;
use std::process::Command;

const SOURCE: &str = include_str!("invented.c");

/// Compiles the module in this directory. Returns its path, for redis-server.
///
/// # Panics
/// No C compiler is installed, or the module does not compile.
pub fn invented(directory: &Path) -> String {
    let source = directory.join("invented.c");
    let module = directory.join("invented.so");
    std::fs::write(&source, SOURCE).expect("the source can be written");
    let done = Command::new("cc")
        .args(["-std=c11", "-O1", "-shared", "-fPIC", "-o"])
        .args([&module, &source])
        .status();
    assert!(done.expect("a C compiler (cc)").success(), "invented.c");
    module.to_str().expect("a path").to_owned()
}
