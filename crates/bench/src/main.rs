//! `papilio-bench`: `papilio bench` as a program of its own. Owns the exit codes: 0 when all went well, 1
//! when something failed, 2 for wrong usage.

use clap::Parser;
use papilio_bench::{BenchArgs, UsageError};
use std::process::ExitCode;

/// Papilio and the kernel's Btrfs at the same work, in turn, as ratios.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,
}

fn main() -> ExitCode {
    match papilio_bench::run(&Cli::parse().bench, false) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("papilio-bench: {error:#}");
            ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
        }
    }
}
