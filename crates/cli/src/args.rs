//! The options that every command takes.

use clap::{ArgAction, Args};
use std::ffi::OsString;
use std::path::PathBuf;

/// The heading of the options that say how file systems are opened.
pub const HEADING: &str = "File system options";

/// The options that every command takes: how to open file systems, and how much to print.
#[derive(Clone, Debug, Default, Args)]
pub struct GlobalArgs {
    /// A further device of the file system; may be given more than once
    #[arg(long, value_name = "PATH", global = true, help_heading = HEADING)]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub device: Vec<PathBuf>,
    /// Open the file system although devices are missing, as far as each chunk's profile allows
    #[arg(long, global = true, help_heading = HEADING)]
    pub degraded: bool,
    /// Fall back to the superblock's backup roots if the current tree root cannot be read
    #[arg(long, global = true, help_heading = HEADING)]
    pub backup_root: bool,
    /// Use superblock copy N (0 at 64 KiB, 1 at 64 MiB, 2 at 256 GiB)
    #[arg(long, value_name = "N", global = true, help_heading = HEADING)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=2))]
    pub superblock: Option<u8>,
    /// Resolve paths from this subvolume, which PATH names from the top level
    ///
    /// Without --subvol, --subvolid and --default-subvol, paths start at the top level (id 5), from
    /// which all other subvolumes can be reached.
    #[arg(long, value_name = "PATH", global = true, help_heading = HEADING)]
    #[arg(conflicts_with_all = ["subvolid", "default_subvol"])]
    pub subvol: Option<OsString>,
    /// Resolve paths from the subvolume with this id
    #[arg(long, value_name = "ID", global = true, help_heading = HEADING)]
    #[arg(conflicts_with = "default_subvol")]
    pub subvolid: Option<u64>,
    /// Resolve paths from the default subvolume, which a mount without options shows
    #[arg(long, global = true, help_heading = HEADING)]
    pub default_subvol: bool,
    /// Print the messages of btrfs-progs on success
    #[arg(long, global = true, hide = true)]
    pub drop_in: bool,
    /// Print less: no warnings
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub quiet: u8,
    /// Print more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}
