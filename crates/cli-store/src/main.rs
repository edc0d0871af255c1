//! `papilio-store`: the `papilio` command with object stores.
//!
//! `papilio` runs it in its own place when an argument names a URL: see other_program.rs in
//! crates/cli. It has all commands, and may be installed under the name `papilio`, too.

#![forbid(unsafe_code)]

use papilio_cli::run;
use std::process::ExitCode;

fn main() -> ExitCode {
    papilio_store::install();
    run(std::env::args_os()).into()
}
