//! Facts about files: when they were modified, and how well they are compressed.
//!
//! Owns [`Places`], which looks files up by their paths from the top level, whatever subvolume the
//! options or the mount show.

use crate::context::of_image;
use crate::mounted::names_from_top;
use crate::tree_source::TreeSource;
use papilio::format::items::file_extent::Compression;
use papilio::format::objectid;
use papilio::{FileExtent, FileExtentKind, FileKind, FileSystem, Inode};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Looks up files.
pub struct Places<'s> {
    source: &'s TreeSource,
    /// Of a mount: the mount point, and the path of what it shows from the top level.
    place: Option<(PathBuf, Vec<Vec<u8>>)>,
}

impl<'s> Places<'s> {
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
        Ok(match self.find(path)? {
            Some(Looked::Inode(inode)) => Some(inode.metadata().mtime().seconds),
            // It may have gone, or moved, since it was sampled.
            Some(Looked::Host(host)) => fs::symlink_metadata(host).ok().map(|metadata| metadata.mtime()),
            None => None,
        })
    }

    /// Returns how the data of the file at a path is stored; `None` if it has none, is not there,
    /// or cannot be looked into.
    ///
    /// # Errors
    /// A tree block of an image that cannot be read.
    pub fn stored(&self, path: &[u8]) -> anyhow::Result<Option<StoredShare>> {
        let extents = match self.find(path)? {
            Some(Looked::Inode(inode)) if inode.file_type() == FileKind::Regular => {
                let extents = inode.open().and_then(|file| file.extents(0, usize::MAX));
                extents.map_err(|error| self.of_source(error))?
            }
            Some(Looked::Host(host)) if fs::symlink_metadata(&host).is_ok_and(|found| found.is_file()) => {
                // The kernel shows this to root only.
                let found = papilio_ioctl::client::MountedPath::open(&host).and_then(|file| file.extents());
                found.unwrap_or_default().into_iter().map(|(extent, _)| extent).collect()
            }
            _ => Vec::new(),
        };
        let mut share = StoredShare::default();
        for extent in extents.iter().filter(|extent| extent.kind != FileExtentKind::Preallocated) {
            share.add(extent);
        }
        Ok(Some(share).filter(|share| share.plain > 0))
    }

    fn of_source(&self, error: papilio::Error) -> anyhow::Error {
        match self.source {
            TreeSource::Image { path, .. } => of_image(path, error),
            TreeSource::Mounted { .. } => error.into(),
        }
    }

    fn find(&self, path: &[u8]) -> anyhow::Result<Option<Looked>> {
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        match (self.source, &self.place) {
            (TreeSource::Image { fs, .. }, _) => {
                let found = lookup(fs, &names).map_err(|error| self.of_source(error))?;
                Ok(found.map(Looked::Inode))
            }
            (_, Some((point, top)))
                if names.len() > top.len() && names.iter().zip(top).all(|(a, b)| a == b) =>
            {
                let mut host = point.clone();
                host.extend(names[top.len()..].iter().map(|name| OsStr::from_bytes(name)));
                Ok(Some(Looked::Host(host)))
            }
            _ => Ok(None),
        }
    }
}

/// A file that was found.
#[allow(clippy::large_enum_variant, reason = "one at a time")]
enum Looked {
    Inode(Inode),
    Host(PathBuf),
}

/// Bytes of a file, and of the disk for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredShare {
    /// Bytes of the file that are not in holes.
    pub plain: u64,
    /// Bytes of the disk. A part of an extent has a part of these.
    pub disk: u64,
    /// Whether any extent is compressed.
    pub is_compressed: bool,
}

impl StoredShare {
    fn add(&mut self, extent: &FileExtent) {
        let part = u128::from(extent.stored) * u128::from(extent.length);
        let part = part / u128::from(extent.uncompressed.max(extent.length).max(1));
        self.plain = self.plain.saturating_add(extent.length);
        self.disk = self.disk.saturating_add(u64::try_from(part).unwrap_or(u64::MAX));
        self.is_compressed |= extent.compression != Compression::None;
    }

    /// Returns the bytes of the disk in percent of those of the file.
    pub fn percent(&self) -> u64 {
        let percent = u128::from(self.disk) * 100 / u128::from(self.plain.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
}

fn lookup(fs: &FileSystem, names: &[&[u8]]) -> papilio::Result<Option<Inode>> {
    let mut inode = fs.subvolume_root(objectid::FS_TREE)?;
    for name in names {
        let is_directory = inode.file_type() == FileKind::Directory;
        match if is_directory { inode.lookup(name)? } else { None } {
            Some(below) => inode = below,
            None => return Ok(None),
        }
    }
    Ok(Some(inode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio::format::{FileOffset, Generation, LogicalAddress};

    fn extent(length: u64, stored: u64, uncompressed: u64, compression: Compression) -> FileExtent {
        FileExtent {
            start: FileOffset(0),
            length,
            kind: FileExtentKind::Regular,
            compression,
            address: LogicalAddress(1 << 20),
            stored,
            uncompressed,
            offset: 0,
            generation: Generation(1),
        }
    }

    #[test]
    fn parts_of_extents_have_parts_of_their_bytes() {
        let mut share = StoredShare::default();
        share.add(&extent(64 << 10, 32 << 10, 128 << 10, Compression::Zstd));
        assert_eq!((share.disk, share.percent()), (16 << 10, 25));
        share.add(&extent(64 << 10, 1 << 20, 1 << 20, Compression::None));
        assert_eq!((share.disk, share.percent()), (80 << 10, 62));
        // A file system may say anything.
        share.add(&extent(u64::MAX, u64::MAX, 0, Compression::None));
        assert_eq!(share.plain, u64::MAX);
    }
}
