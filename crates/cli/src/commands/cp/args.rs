//! The arguments of `papilio cp`.

use papilio::{CompressionChoice, Share};
use std::ffi::OsString;
use std::path::PathBuf;

/// Whether files share their data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Reflink {
    /// Share where possible
    #[default]
    Auto,
    /// Share, or fail where that is impossible
    Always,
    /// Copy the data
    Never,
}

impl From<Reflink> for Share {
    fn from(reflink: Reflink) -> Self {
        match reflink {
            Reflink::Auto => Self::Auto,
            Reflink::Always => Self::Always,
            Reflink::Never => Self::Never,
        }
    }
}

/// Copy files and directories out of a file system, into one, and within it
///
/// The rules are those of cp(1): sources go into DEST if that is a directory, otherwise the source
/// is copied as DEST. DIR/. means the content of a directory. Without -r and -a, symbolic links are
/// followed and directories skipped. Holes are preserved. Existing files at the destination are
/// replaced. Below DEST, links of the host are never followed. Within a file system, the copy
/// shares the data of the original.
///
/// Unreadable parts are left out and listed, and the exit status is 1. A file gets zeros in place
/// of each unreadable sector.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sources, then the destination unless -t or --to-tar names it
    ///
    /// Each is IMAGE:/PATH or a path on the host. At least one must be in a file system.
    #[arg(value_name = "SOURCE... [DEST]", required = true)]
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    pub(super) paths: Vec<OsString>,
    /// Copy directories with everything below them
    #[arg(short, long, visible_short_alias = 'R')]
    pub(super) recursive: bool,
    /// Like -r, and keep owners, modes, times, extended attributes, ACLs and hard links
    ///
    /// Owners on the host can be kept by root only.
    #[arg(short, long)]
    pub(super) archive: bool,
    /// Do not replace existing files
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
    /// Share the data of files instead of copying it, within a file system
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "auto", default_missing_value = "always")]
    pub(super) reflink: Reflink,
    /// Compress data that is copied into a file system: zlib, lzo, zstd, or with a level, zstd:9
    #[arg(long, value_name = "ALGORITHM[:LEVEL]", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "zstd", conflicts_with = "to_tar")]
    pub(super) compress: Option<CompressionChoice>,
    /// Write a tar archive with everything that -a keeps; - means standard output
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(super) to_tar: Option<PathBuf>,
    /// List unreadable parts of files on standard output, one JSON object per line
    ///
    /// Each has path, offset, length and reason. Without it, the list is on standard error only.
    #[arg(long)]
    pub(super) json: bool,
    /// Show no progress bar; it is shown only if standard error is a terminal
    #[arg(long)]
    pub(super) no_progress: bool,
}
