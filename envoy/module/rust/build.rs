//! Links the module so that it stays loaded, because its thread and thread-local values outlive the last configuration, and so that
//! it needs no library that Envoy's image lacks.

use std::{env, fs, path::Path};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Envoy calls dlclose when the last filter with the module is gone.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A callback that this Envoy lacks makes dlopen fail, instead of a later call.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    link_unwinder();
}

/// Links the unwinder of panics into the file. Rust asks for libgcc_s, which Envoy's distroless image does not have: this script
/// is found in its place, and names the static libraries.
fn link_unwinder() {
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("gnu") {
        return;
    }
    fs::write(Path::new(&out).join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n").expect("write a linker script");
    println!("cargo:rustc-cdylib-link-arg=-L{out}");
}
