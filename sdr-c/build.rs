//! Names the shared library's ABI, so that programs find a compatible one at run time.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liblonghaul_sdr.so.0");
}
