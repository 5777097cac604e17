//! Names the shared library as programs are linked with it: `libpmnet.so.0`, which changes when a program must be compiled again.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpmnet.so.0");
}
