//! The arguments of `papilio cp`.

use crate::copy::image::Share;
use std::ffi::OsString;
use std::path::PathBuf;

/// Copy files and directories out of a file system, into one, and within it
///
/// The rules are cp(1)'s: into DEST if that is a directory, else as DEST; dir/. means the content of a
/// directory. Without -r and -a, symbolic links are followed and directories left out. Holes stay holes. What
/// exists at the destination is replaced; below DEST, links of the host are never followed. Within a file
/// system, the copy shares the data of the original.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sources, then the destination unless -t or --to-tar names it; each is IMAGE:/PATH or a path of
    /// the host, but not all are the host's
    #[arg(value_name = "SOURCE... [DEST]", required = true)]
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    pub(super) paths: Vec<OsString>,
    /// Copy directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    pub(super) recursive: bool,
    /// As -r, and keep owners (on the host: if root), modes, times, extended attributes, ACLs and hard links
    #[arg(short, long)]
    pub(super) archive: bool,
    /// Leave alone what exists
    #[arg(short, long, conflicts_with = "to_tar")]
    pub(super) no_clobber: bool,
    /// Stay in the subvolume of each source
    #[arg(short = 'x', long)]
    pub(super) one_file_system: bool,
    /// Copy into this directory
    #[arg(short, long, value_name = "DIR", conflicts_with = "to_tar")]
    #[arg(value_hint = clap::ValueHint::DirPath)]
    pub(super) target_directory: Option<OsString>,
    /// Copy as DEST even if that is a directory
    #[arg(short = 'T', long, conflicts_with_all = ["target_directory", "to_tar"])]
    pub(super) no_target_directory: bool,
    /// Within a file system, share the data of files instead of copying it
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "auto", default_missing_value = "always")]
    pub(super) reflink: Share,
    /// Write a tar archive instead, with all that -a keeps; `-` is standard output
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(super) to_tar: Option<PathBuf>,
    /// No progress bar (there is none anyway where standard error is no terminal)
    #[arg(long)]
    pub(super) no_progress: bool,
}
