//! The `papilio` command as a library, so that its man pages, completions and tests come from the
//! same definitions as the command itself.
//!
//! Arguments pass three stages: as typed ([`args::Cli`]), resolved ([`context::Context`]), and run
//! ([`commands`]). Front ends translate; what a file system is, the `papilio` crate knows.

#![forbid(unsafe_code)]

mod args;
mod cli;
mod commands;
mod context;
mod copy;
mod errno_text;
mod filling;
mod helper;
mod holder;
mod log;
mod mounted;
mod operands;
mod output;
mod path;
mod time;
mod tree;
mod units;
mod usage_error;

pub use usage_error::UsageError;

use clap::CommandFactory;
use cli::Cli;
use context::Context;
use std::ffi::OsString;

/// How a run ended; `main` makes the exit code of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything that was asked for was done.
    Done,
    /// Something failed, and standard error has a line on each failure.
    Failed,
    /// The arguments make no sense.
    WrongUsage,
}

/// Runs the command with `arguments`, the first of which is the program's own name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Outcome {
    let arguments = match helper::translate(arguments.into_iter().collect()) {
        Ok(arguments) => arguments,
        Err(error) => {
            Context::resolve(args::GlobalArgs::default()).error(error);
            return Outcome::WrongUsage;
        }
    };
    let cli = match Cli::parse_arguments(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let wrong = error.use_stderr();
            // Nowhere is left to report that the report could not be printed.
            let _ = error.print();
            return if wrong { Outcome::WrongUsage } else { Outcome::Done };
        }
    };
    let context = Context::resolve(cli.global);
    let ran = cli.command.run(&context, Cli::command);
    // What was done before a failure stays done, as on a mounted file system.
    context.close();
    match ran {
        Ok(()) if context.has_failed() => Outcome::Failed,
        Ok(()) => Outcome::Done,
        Err(error) if output::is_closed_pipe(&error) => Outcome::Done,
        Err(error) => {
            context.failure(&error);
            match error.downcast_ref::<UsageError>() {
                Some(_) => Outcome::WrongUsage,
                None => Outcome::Failed,
            }
        }
    }
}
