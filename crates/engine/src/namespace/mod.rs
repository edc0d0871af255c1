//! The namespace: named inodes, and paths that cross subvolumes.
//!
//! Each change of names works on one subvolume's tree, through its editor. It checks everything
//! first and then makes one change. The layers above combine changes that concern two subvolumes.

pub mod acl;
pub mod attributes;
mod compression;
pub mod create;
pub(crate) mod evict;
mod handle;
mod inherit;
pub mod link;
mod names;
pub mod permission;
pub mod rename;
mod resolve;
pub mod setattr;
pub(crate) mod subvolume_entry;

#[cfg(test)]
mod tests;

pub use handle::{InodeHandle, Place};
pub use resolve::{resolve, symlink_target};
