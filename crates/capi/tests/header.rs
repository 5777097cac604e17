//! The header in the repository must equal the one that cbindgen generates from the source. `UPDATE=1 cargo test -p
//! pmnet-capi` writes the header.

use std::path::Path;

#[test]
fn the_header_is_that_of_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in ["fault", "memory", "log", "client", "server"] {
        builder = builder.with_src(root.join("src").join(name).with_extension("rs"));
    }
    let mut written = Vec::new();
    builder.generate().unwrap().write(&mut written);
    let written = String::from_utf8(written).unwrap();
    let path = root.join("include/pmnet.h");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert!(
        found == written,
        "include/pmnet.h is not that of the source: UPDATE=1 cargo test -p pmnet-capi"
    );
}
