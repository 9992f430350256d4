//! Links the module so that it stays loaded: its thread and thread-local values outlive the last configuration.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Envoy calls dlclose when the last filter with the module is gone.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A callback that this Envoy lacks makes dlopen fail, instead of a later call.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}
