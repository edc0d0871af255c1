//! The options that every command takes.

use clap::{ArgAction, Args};
use std::ffi::OsString;
use std::path::PathBuf;

/// The heading of the options that say how file systems are opened.
pub const HEADING: &str = "File system options";

/// Options of every command: how file systems are opened, and how much is said.
#[derive(Clone, Debug, Default, Args)]
pub struct GlobalArgs {
    /// A further device of the file system (once for each)
    #[arg(long, value_name = "PATH", global = true, help_heading = HEADING)]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub device: Vec<PathBuf>,
    /// Read although devices are missing, as far as each chunk's profile allows
    #[arg(long, global = true, help_heading = HEADING)]
    pub degraded: bool,
    /// Fall back to the superblock's older roots where the newest cannot be read
    #[arg(long, global = true, help_heading = HEADING)]
    pub backup_root: bool,
    /// Use superblock copy N (0 at 64 KiB, 1 at 64 MiB, 2 at 256 GiB)
    #[arg(long, value_name = "N", global = true, help_heading = HEADING)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=2))]
    pub superblock: Option<u8>,
    /// Paths start in this subvolume, named by its path from the top level
    ///
    /// Without --subvol, --subvolid and --default-subvol they start in the top level (id 5), from
    /// which all others can be reached.
    #[arg(long, value_name = "PATH", global = true, help_heading = HEADING)]
    #[arg(conflicts_with_all = ["subvolid", "default_subvol"])]
    pub subvol: Option<OsString>,
    /// Paths start in the subvolume with this id
    #[arg(long, value_name = "ID", global = true, help_heading = HEADING)]
    #[arg(conflicts_with = "default_subvol")]
    pub subvolid: Option<u64>,
    /// Paths start in the subvolume that a mount without options would show
    #[arg(long, global = true, help_heading = HEADING)]
    pub default_subvol: bool,
    /// Say less: no warnings
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub quiet: u8,
    /// Say more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}
