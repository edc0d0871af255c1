//! Development tasks: `cargo xtask tidy`, `counterparts`, `dependencies`, `handbook`, `ci`, `man3`,
//! `sbom`, `notices`, `campaign`, `judges`, `mutants`.
//!
//! Users of Papilio do not need this crate. `tidy` enforces project rules that neither the compiler
//! nor Clippy checks (see [`tidy`]). `ci` runs the checks that every change must pass.

mod campaign;
mod ci;
mod counterparts;
mod dependencies;
mod handbook;
mod judges;
mod man3;
mod metadata;
mod mutants;
mod nested_cargo;
mod release;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str =
    "usage: cargo xtask tidy [--cycles] | cargo xtask counterparts | cargo xtask dependencies |
       cargo xtask handbook [--papilio FILE] | cargo xtask ci | cargo xtask man3 FOLDER |
       cargo xtask sbom FILE | cargo xtask notices FILE

  tidy            check layers, import cycles, dead files, file headers, names of types, and
                  the width and wording of comments
  tidy --cycles   list the files that import one another in a circle, and check nothing
  counterparts    write docs/internals/counterparts.md, the table of kernel counterparts
  dependencies    write docs/internals/dependencies.md, the table of direct dependencies
  handbook        assemble the handbook in target/handbook, with the reference of the command FILE
                  or of the newest one that is built
  ci              run .ci/run: format, Clippy, tidy, tests and the demo
  man3            write the manual pages of the C interface to FOLDER/man3
  sbom            write the software bill of materials of a release, CycloneDX as JSON
  notices         write the licence texts of all packages that a release is built of";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["tidy"] => tidy::run(&workspace_root()),
        ["tidy", "--cycles"] => tidy::print_cycles(&workspace_root()).map(|()| true),
        ["counterparts"] => tidy::write_counterparts(&workspace_root()).map(|()| true),
        ["dependencies"] => dependencies::run(&workspace_root()).map(|()| true),
        ["handbook"] => handbook::run(&workspace_root(), None).map(|()| true),
        ["handbook", "--papilio", file] => handbook::run(&workspace_root(), Some(file)).map(|()| true),
        ["ci"] => ci::run(&workspace_root()),
        ["campaign", arguments @ ..] => campaign::run(&workspace_root(), arguments),
        ["judges", arguments @ ..] => judges::run(&workspace_root(), arguments),
        ["mutants", arguments @ ..] => mutants::run(&workspace_root(), arguments),
        ["man3", folder] => man3::run(&workspace_root(), Path::new(folder)).map(|()| true),
        ["sbom", file] => release::write_sbom(&workspace_root(), Path::new(file)).map(|()| true),
        ["notices", file] => release::write_notices(&workspace_root(), Path::new(file)).map(|()| true),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}\n{}\n{}\n{}", campaign::USAGE, judges::USAGE, mutants::USAGE);
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}\n{}\n{}\n{}", campaign::USAGE, judges::USAGE, mutants::USAGE);
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the parent of this crate's directory.
fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask is a directory of the workspace").to_path_buf()
}
