//! `papilio bench`: runs `papilio-bench`.

use crate::context::Context;
use crate::other_program::BENCH;
use anyhow::bail;
use std::ffi::{OsStr, OsString};

/// Compare Papilio with the kernel's Btrfs on the same workloads, in turn
///
/// Runs the program papilio-bench with the same arguments; `papilio bench --help` lists them. fio
/// jobs run on the kernel's Btrfs, on Papilio inside fio, on Papilio's mount, and on the backing
/// without a file system. Sides that this machine cannot run are skipped, and the report says why.
/// Needs fio, and root for the kernel's side.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Arguments of papilio-bench
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Args {
    /// Runs the program in the place of this one.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let mut arguments = self.arguments;
        if context.verbosity < 0 {
            // Behind a subcommand: options before one make it the name of a job.
            arguments.push("--quiet".into());
        }
        BENCH.replace_this_one(OsStr::new(BENCH.name), &arguments);
        bail!(
            "{} is not installed beside this program; build it with: cargo build --release -p {0}",
            BENCH.name
        )
    }
}
