//! Link options of the shared library.

fn main() {
    // fio unloads an engine with its first job, but the file system, its threads and `.fini_array`
    // must stay loaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
