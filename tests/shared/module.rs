//! A module of commands that pmnet has no name for (`invented.c`), for redis-server. Included by its path.

use std::path::Path;
use std::process::Command;

const SOURCE: &str = include_str!("invented.c");

/// Compiles it in this directory; what redis-server is to load.
///
/// # Panics
/// There is no C compiler, or it does not compile.
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
