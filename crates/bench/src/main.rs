//! `papilio-bench`: measures Papilio beside the kernel. `papilio bench` runs it.
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for wrong usage.

use clap::Parser;
use papilio_bench::{BenchArgs, UsageError};
use std::process::ExitCode;

/// Run the same workloads on the kernel's Btrfs and on Papilio, in turn, and print ratios.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Print no progress
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(flatten)]
    bench: BenchArgs,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match papilio_bench::run(&cli.bench, cli.quiet) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("papilio-bench: {error:#}");
            ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
        }
    }
}
