//! `papilio-bench`: the same reads by the kernel's Btrfs and by Papilio, in turn, on one image.
//!
//! Absolute figures drift with the machine; the ratio of two medians of one run is what counts.

mod measure;
mod read;

use clap::Parser;

/// Reads by the kernel and by Papilio, in turn, as ratios. Needs root and loop devices.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Bytes of the big file
    #[arg(long, default_value_t = 1 << 30)]
    big_bytes: u64,
    /// Small files
    #[arg(long, default_value_t = 50_000)]
    small_files: u32,
    /// Mount options of the file system that is written, such as compress=zstd
    #[arg(long, default_value = "")]
    mount_options: String,
    /// Only Papilio's side, for a profiler
    #[arg(long)]
    papilio_only: bool,
}

fn main() -> anyhow::Result<()> {
    read::run(&Arguments::parse())
}
