//! The `papilio` command.
//!
//! Owns the exit codes: 0 on success, 1 if something failed (standard error has one line for each
//! failure), 2 for wrong usage. `papilio scrub` has the codes of `btrfs scrub`.

use papilio_cli::run;
use std::process::ExitCode;

fn main() -> ExitCode {
    run(std::env::args_os()).into()
}
