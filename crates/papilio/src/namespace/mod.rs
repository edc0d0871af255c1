//! The namespace: inodes as things with names, and paths that cross subvolumes.

mod handle;
mod resolve;

pub(crate) use handle::{Handle, Place};
pub(crate) use resolve::{resolve, symlink_target};
