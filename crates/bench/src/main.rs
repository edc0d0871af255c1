//! `papilio-bench`: the same work by the kernel's Btrfs and by Papilio, in turn.
//!
//! Absolute figures drift with the machine; the ratio of two medians of one run is what counts.

mod measure;
mod names;
mod read;

use clap::Parser;

/// The kernel's Btrfs and Papilio at the same work, in turn, as ratios. Needs root and loop devices.
#[derive(Parser)]
#[command(version)]
enum Job {
    /// Reads one big file and many small ones, cold and warm
    Read(read::Arguments),
    /// Creates, lists, snapshots and deletes many files
    Names(names::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Job::parse() {
        Job::Read(arguments) => read::run(&arguments),
        Job::Names(arguments) => names::run(&arguments),
    }
}
