//! Changing operands, and all that is below them.
//!
//! Owns [`for_each_inode`].

use crate::context::{Context, describe};
use crate::operands::for_each_operand_to_change;
use crate::path::ImagePath;
use papilio::{Error, FileKind, Inode};
use std::ffi::OsString;

/// How far a change goes.
#[derive(Clone, Copy, Debug)]
pub struct Recursion {
    /// Into directories, and subvolumes in them.
    pub recursive: bool,
    /// A symbolic link that is named itself is followed.
    pub follow: bool,
}

/// Runs `change` on each operand and, where that was asked for, on everything below it; a failure of one
/// is reported and the others go on.
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
            if !how.recursive || inode.kind() != FileKind::Directory {
                continue;
            }
            let mut below = Vec::new();
            for entry in inode.entries().map_err(|error| context.at(&path, &error))? {
                let entry = entry.map_err(|error| context.at(&path, &error))?;
                let path = path.join(entry.name());
                match entry.inode() {
                    Ok(inode) => below.push((path, inode)),
                    Err(error) => context.error(describe(&path, &error)),
                }
            }
            pending.extend(below.into_iter().rev());
        }
        Ok(())
    })
}
