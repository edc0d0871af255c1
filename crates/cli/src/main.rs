//! The `papilio` command. Owns the exit codes, and nothing else: 0 when all went well, 1 when
//! something failed (each failure is one line on standard error), 2 when the command was used
//! wrongly.

use papilio_cli::{Outcome, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(std::env::args_os()) {
        Outcome::Done => ExitCode::SUCCESS,
        Outcome::Failed => ExitCode::from(1),
        Outcome::WrongUsage => ExitCode::from(2),
    }
}
