//! `papilio mv`.

use crate::context::Context;
use crate::path::parse_image_path;
use crate::usage_error::UsageError;
use papilio::{Error, FileKind, PathError, RenameMode};
use std::ffi::OsString;

/// Rename files and directories within a file system
///
/// Sources move into DEST if that is a directory. Otherwise the source is renamed to DEST, which is
/// replaced. Files cannot move from one subvolume to another; use cp --reflink and rm.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files and directories, then the destination, unless -t names it
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Do not replace existing files
    #[arg(short, long)]
    no_clobber: bool,
    /// Exchange two files or directories
    #[arg(long, conflicts_with_all = ["no_clobber", "target_directory"])]
    exchange: bool,
    /// Move into this directory
    #[arg(short, long, value_name = "IMAGE:/DIR", conflicts_with = "no_target_directory")]
    target_directory: Option<OsString>,
    /// Rename to DEST even if that is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
}

impl Args {
    /// Renames the operands.
    pub fn run(mut self, context: &Context) -> anyhow::Result<()> {
        let destination = match self.target_directory.take() {
            Some(directory) => directory,
            None => self.paths.pop().unwrap_or_default(),
        };
        if self.paths.is_empty() {
            return Err(UsageError::new("mv: the destination is missing").into());
        }
        let destination = parse_image_path(&destination)?;
        let fs = context.change(&destination.image)?;
        let into = !self.no_target_directory
            && !self.exchange
            && fs.inode(&destination.path).is_ok_and(|inode| inode.file_type() == FileKind::Directory);
        if !into && self.paths.len() > 1 {
            anyhow::bail!("{destination}: {}", PathError::NotADirectory);
        }
        let mode = match (self.exchange, self.no_clobber) {
            (true, _) => RenameMode::Exchange,
            (_, true) => RenameMode::NoReplace,
            _ => RenameMode::Replace,
        };
        for source in &self.paths {
            let source = parse_image_path(source)?;
            if source.image != destination.image {
                context.error(format_args!(
                    "{source}: not in the file system of the destination; use cp and rm"
                ));
                continue;
            }
            let to = match (into, source.base_name()) {
                (false, _) => destination.clone(),
                (true, Some(name)) => destination.join(name),
                (true, None) => {
                    context.error(format_args!("{source}: {}", PathError::InvalidName));
                    continue;
                }
            };
            match fs.rename_with(&source.path, &to.path, mode) {
                Ok(()) if context.verbosity > 0 => context.note(format_args!("{source} -> {to}")),
                Ok(()) => {}
                // Like mv -n, ignores an existing destination.
                Err(Error::Path { kind: PathError::Exists, .. }) if self.no_clobber => {}
                Err(error @ Error::Path { kind: PathError::NotFound, .. }) => {
                    context.error(crate::context::describe(&source, &error));
                }
                Err(error @ (Error::Path { .. } | Error::Invalid(_))) => {
                    context.error(format_args!("{source}: {}", crate::context::describe(&to, &error)));
                }
                Err(error) => return Err(context.at(&source, &error)),
            }
        }
        Ok(())
    }
}
