//! The `papilio` command.
//!
//! Owns the exit codes: 0 on success, 1 if something failed (standard error has one line for each
//! failure), 2 for wrong usage. `papilio scrub` has the codes of `btrfs scrub`.

use papilio_cli::{Outcome, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(std::env::args_os()) {
        Outcome::Done => ExitCode::SUCCESS,
        Outcome::Failed => ExitCode::from(1),
        Outcome::WrongUsage => ExitCode::from(2),
        Outcome::Code(code) => ExitCode::from(code),
    }
}
