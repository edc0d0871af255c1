//! Has `cargo test` build the Python module with the features and dependencies of the other tests.
//! `scripts/test-python.sh` installs that module and runs the tests in Python.

#[test]
fn the_module_is_built_and_exports_its_initialiser() {
    let program = std::env::current_exe().unwrap();
    let name = format!("{}papilio_python{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let module = program.with_file_name(name);
    let bytes = std::fs::read(&module).unwrap_or_else(|error| panic!("{}: {error}", module.display()));
    let symbol = b"PyInit__papilio\0";
    assert!(bytes.windows(symbol.len()).any(|window| window == symbol), "{}", module.display());
}
