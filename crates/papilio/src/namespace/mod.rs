//! The namespace: named inodes, and paths that cross subvolumes.
//!
//! Each change of names works on one subvolume's tree, through its editor. It checks everything
//! first and then makes one change. The layers above combine changes that concern two subvolumes.

pub(crate) mod acl;
pub(crate) mod attributes;
mod compression;
pub(crate) mod create;
pub(crate) mod evict;
mod handle;
mod inherit;
pub(crate) mod link;
mod names;
pub(crate) mod permission;
pub(crate) mod rename;
mod resolve;
pub(crate) mod setattr;
pub(crate) mod subvolume_entry;

#[cfg(test)]
mod tests;

pub(crate) use handle::{Handle, Place};
pub(crate) use resolve::{resolve, symlink_target};
