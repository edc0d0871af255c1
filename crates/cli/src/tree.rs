//! [`for_each_inode`]: applies a change to operands and, recursively, to everything below them.

use crate::context::{Context, describe};
use crate::operands::for_each_operand_to_change;
use crate::path::ImagePath;
use papilio::{Error, FileKind, Inode};
use std::ffi::OsString;

/// The inodes that a change applies to.
#[derive(Clone, Copy, Debug)]
pub struct Recursion {
    /// Whether to descend into directories.
    pub recursive: bool,
    /// Whether to leave out subvolumes in directories.
    pub one_subvolume: bool,
    /// Whether to follow a symbolic link that is an operand.
    pub follow: bool,
}

/// Runs `change` on each operand and, if `how` is recursive, on everything below it. Reports a
/// failure of one inode and continues with the others.
pub fn for_each_inode(
    context: &Context,
    operands: &[OsString],
    how: Recursion,
    mut change: impl FnMut(&Inode) -> papilio::Result<()>,
) -> anyhow::Result<()> {
    for_each_operand_to_change(context, operands, |path, _| {
        let top = context.inode(&path, how.follow)?;
        let mut pending: Vec<(ImagePath, Inode)> = vec![(path, top)];
        while let Some((path, inode)) = pending.pop() {
            match change(&inode) {
                Ok(()) => {}
                Err(error @ (Error::Path { .. } | Error::Invalid(_))) => {
                    context.error(describe(&path, &error));
                }
                Err(error) => return Err(context.at(&path, &error)),
            }
            if !how.recursive || inode.file_type() != FileKind::Directory {
                continue;
            }
            let mut below = Vec::new();
            for entry in inode.read_dir().map_err(|error| context.at(&path, &error))? {
                let entry = entry.map_err(|error| context.at(&path, &error))?;
                let path = path.join(entry.file_name());
                match entry.inode() {
                    Ok(inode) if how.one_subvolume && inode.is_subvolume_root() => {}
                    Ok(inode) => below.push((path, inode)),
                    Err(error) => context.error(describe(&path, &error)),
                }
            }
            pending.extend(below.into_iter().rev());
        }
        Ok(())
    })
}
