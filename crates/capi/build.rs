//! Gives the shared library its soname `libpmnet.so.0`, with which programs are linked. The soname changes when
//! programs must be compiled again.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpmnet.so.0");
}
