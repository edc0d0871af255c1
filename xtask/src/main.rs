//! The project's own chores: `cargo xtask tidy` and `cargo xtask ci`.
//!
//! Nothing here is needed by a user of Papilio. `tidy` holds the rules of the house that neither the
//! compiler nor Clippy knows (see [`tidy`]); `ci` runs what every change must pass.

mod ci;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy [--tighten | --cycles] | cargo xtask ci

  tidy            check layers, cycles of imports, dead files, long functions, file headers,
                  the width and words of comments, and leftovers
  tidy --tighten  first lower the exceptions in xtask/tidy-ratchet.toml to the present numbers
  tidy --cycles   only list the files that import one another in a circle
  ci              run .ci/run: format, Clippy, tidy, tests and the demo";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["tidy"] => tidy::run(&workspace_root(), false),
        ["tidy", "--tighten"] => tidy::run(&workspace_root(), true),
        ["tidy", "--cycles"] => tidy::print_cycles(&workspace_root()).map(|()| true),
        ["ci"] => ci::run(&workspace_root()),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
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

/// The folder that holds this crate's folder.
fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies inside the workspace").to_path_buf()
}
