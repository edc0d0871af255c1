//! The `papilio` command as a library, so that its man pages, completions and tests come from the
//! same definitions as the command itself.
//!
//! Arguments pass three stages: they are parsed ([`cli::Cli`]), resolved ([`context::Context`]) and
//! run ([`commands`]). This crate only translates; the file-system logic is in the `papilio` crate.

#![forbid(unsafe_code)]

mod args;
mod btrfs_json;
#[cfg(test)]
mod btrfs_table;
mod cli;
mod command_table;
mod commands;
mod confinement;
mod context;
mod copy;
mod devices;
mod drop_in;
mod errno_text;
mod filling;
mod helper;
mod holder;
mod host_calls;
mod host_output;
mod jobs;
mod kernel_devices;
mod kernel_jobs;
mod log;
mod mounted;
mod moving;
mod new_secret;
mod numbers;
mod operands;
mod other_program;
mod output;
mod path;
mod rights;
mod scanning;
mod sought;
mod state_folder;
mod stream_output;
mod time;
mod tree;
mod tree_source;
mod units;
mod usage_error;
mod views;
mod web_front_end;

pub use commands::TlsFiles;
pub use usage_error::UsageError;
pub use views::{DrawnView, draw_heatmap, draw_usage};
pub use web_front_end::{RunningWeb, WebFrontEnd, WebJob, install_web};

use clap::CommandFactory;
use cli::Cli;
use context::Context;
use std::ffi::OsString;
use std::process::ExitCode;

/// How a run ended, which is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything that was requested was done.
    Done,
    /// Something failed. Standard error has a line for each failure.
    Failed,
    /// The arguments are wrong.
    WrongUsage,
    /// As `Failed`, with an exit code that has a meaning of its own.
    Code(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::Failed => Self::from(1),
            Outcome::WrongUsage => Self::from(2),
            Outcome::Code(code) => Self::from(code),
        }
    }
}

/// Runs the command with `arguments`, the first of which is the program's own name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Outcome {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    other_program::run_with_stores(&arguments);
    other_program::run_with_web(&arguments);
    let drop_in_code = drop_in::usage_code(&arguments);
    // `mkfs.btrfs /dev/sda` has the form of a helper, too.
    let is_helper = drop_in_code.is_none() && helper::is_helper(&arguments);
    let usage_code = is_helper.then_some(helper::WRONG_INVOCATION).or(drop_in_code);
    match run_arguments(arguments) {
        Outcome::WrongUsage => usage_code.map_or(Outcome::WrongUsage, Outcome::Code),
        Outcome::Failed if is_helper => Outcome::Code(helper::MOUNT_FAILED),
        other => other,
    }
}

fn run_arguments(arguments: Vec<OsString>) -> Outcome {
    let is_drop_in = drop_in::usage_code(&arguments).is_some();
    let arguments = drop_in::translate(arguments).and_then(helper::translate);
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(error) => {
            let global = args::GlobalArgs { drop_in: is_drop_in, ..args::GlobalArgs::default() };
            Context::resolve(global).error(error);
            return Outcome::WrongUsage;
        }
    };
    let cli = match Cli::parse_arguments(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let wrong = error.use_stderr();
            // A failure to print the message cannot be reported either.
            let _ = match is_drop_in {
                true => print_as_btrfs(&error),
                false => error.print(),
            };
            return if wrong { Outcome::WrongUsage } else { Outcome::Done };
        }
    };
    papilio_layers::install(cli.global.layer_options());
    let wrong_mode = cli.global.sandbox_mode().err();
    let context = Context::resolve(cli.global);
    if let Some(wrong) = wrong_mode {
        context.error(wrong);
        return Outcome::WrongUsage;
    }
    if is_drop_in {
        errno_text::use_system_words();
    }
    // Warnings of the library; -v is for the command's own messages.
    log::Log::start(context.verbosity.min(0));
    let ran = cli.command.run(&context, Cli::command, interpret);
    // Changes made before a failure are kept, as on a mounted file system.
    context.close();
    papilio_layers::forget_keys();
    match ran {
        Ok(()) if context.has_failed() => context.code().map_or(Outcome::Failed, Outcome::Code),
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

/// Prints a help or an error with the first words of those of btrfs-progs, which scripts look for.
fn print_as_btrfs(error: &clap::Error) -> std::io::Result<()> {
    use std::io::Write;
    let text = error.render().to_string();
    let text = text.replace("Usage: papilio", "usage: btrfs").replacen("error: ", "ERROR: ", 1);
    // The list of subcommands is in the usage.
    let text = text.replacen("'papilio", "'btrfs", 1);
    let is_list = |line: &&str| line.trim_start().starts_with("[subcommands: ");
    let text: String = text.split_inclusive('\n').filter(|line| !is_list(line)).collect();
    match error.use_stderr() {
        true => std::io::stderr().write_all(text.as_bytes()),
        false => std::io::stdout().write_all(text.as_bytes()),
    }
}

/// Runs the arguments of one command of a shell. Options for opening file systems have no effect.
fn interpret(context: &Context, arguments: Vec<OsString>) -> anyhow::Result<()> {
    match Cli::parse_arguments(arguments) {
        Ok(cli) => cli.command.run(context, Cli::command, interpret),
        Err(error) => {
            if error.use_stderr() {
                context.fail_silently();
            }
            // A failure to print the message cannot be reported either.
            let _ = error.print();
            Ok(())
        }
    }
}
