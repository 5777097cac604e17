//! Gives the shared library the name with which programs are linked: `libpmnet.so.0`. The name changes when
//! programs must be compiled again.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpmnet.so.0");
}
