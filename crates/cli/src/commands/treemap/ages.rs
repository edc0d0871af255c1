//! When files were modified.
//!
//! Owns [`Ages`], which looks files up by their paths from the top level, whatever subvolume the
//! options or the mount show.

use crate::context::of_image;
use crate::mounted::names_from_top;
use crate::tree_source::TreeSource;
use papilio::format::objectid;
use papilio::{FileSystem, Inode};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Looks up the times of files.
pub struct Ages<'s> {
    source: &'s TreeSource,
    /// Of a mount: the mount point, and the path of what it shows from the top level.
    place: Option<(PathBuf, Vec<Vec<u8>>)>,
}

impl<'s> Ages<'s> {
    /// Prepares for the files of a file system.
    ///
    /// # Errors
    /// The mount does not tell which of its directories it shows.
    pub fn of(source: &'s TreeSource) -> anyhow::Result<Self> {
        let TreeSource::Mounted { mounted, root } = source else { return Ok(Self { source, place: None }) };
        let subvolumes = root.subvolumes();
        let top = subvolumes.and_then(|all| {
            let point = papilio_ioctl::client::MountedPath::open(&mounted.mount.point)?;
            names_from_top(&point, &all)
        });
        let top = top.map_err(|error| mounted.at(&error))?;
        Ok(Self { source, place: Some((mounted.mount.point.clone(), top)) })
    }

    /// Returns when the file at a path was modified, in seconds since 1970; `None` if it is not
    /// there, or outside of what a mount shows.
    ///
    /// # Errors
    /// A tree block of an image that cannot be read.
    pub fn modified(&self, path: &[u8]) -> anyhow::Result<Option<i64>> {
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        match (self.source, &self.place) {
            (TreeSource::Image { fs, path }, _) => {
                let found = lookup(fs, &names).map_err(|error| of_image(path, error))?;
                Ok(found.map(|inode| inode.metadata().mtime().seconds))
            }
            (_, Some((point, top)))
                if names.len() > top.len() && names.iter().zip(top).all(|(a, b)| a == b) =>
            {
                let mut host = point.clone();
                host.extend(names[top.len()..].iter().map(|name| OsStr::from_bytes(name)));
                // It may have gone, or moved, since it was sampled.
                Ok(fs::symlink_metadata(host).ok().map(|metadata| metadata.mtime()))
            }
            _ => Ok(None),
        }
    }
}

fn lookup(fs: &FileSystem, names: &[&[u8]]) -> papilio::Result<Option<Inode>> {
    let mut inode = fs.subvolume_root(objectid::FS_TREE)?;
    for name in names {
        let is_directory = inode.file_type() == papilio::FileKind::Directory;
        match if is_directory { inode.lookup(name)? } else { None } {
            Some(below) => inode = below,
            None => return Ok(None),
        }
    }
    Ok(Some(inode))
}
