//! `fsck.btrfs`, which checks nothing.

use crate::context::Context;
use std::path::PathBuf;

/// The exit code of fsck(8) for an operational error.
const OPERATIONAL: u8 = 8;

/// Do nothing, successfully
///
/// fsck(8) runs this at boot. Btrfs needs no check then; `btrfs check` makes one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Accepted for compatibility with other fsck programs
    #[arg(short = 'A', short_aliases = ['a', 'p', 'y', 'n', 'f'])]
    automatic: bool,
    /// The device
    #[arg(value_hint = clap::ValueHint::FilePath)]
    device: PathBuf,
}

impl Args {
    /// Checks that the device is there.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if !self.device.exists() {
            context.fail_with(OPERATIONAL, format_args!("{}: does not exist", self.device.display()));
        } else if !self.automatic {
            context.note("To check or repair a Btrfs file system, see the command check of btrfs(8).");
        }
        Ok(())
    }
}
