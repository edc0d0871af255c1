//! `papilio-bench`: `papilio bench` as a separate program.
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for wrong usage.

use clap::Parser;
use papilio_bench::{BenchArgs, UsageError};
use std::process::ExitCode;

/// Run the same workloads on the kernel's Btrfs and on Papilio, in turn, and print ratios.
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
