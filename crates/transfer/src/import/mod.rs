//! Filling a file system from a host directory, a tar archive, or layers of them.
//!
//! Owns the methods of [`Populate`] that do it. A directory is copied by two threads: one walks and
//! reads the host (`host`), the other changes the file system (`writer`). A bounded queue of events
//! (`event`) connects them. An archive (`tar`) is read by the thread that writes. All changes use
//! the public methods of [`Inode`], by directory and name, so that no path is resolved twice.
//!
//! **Invariant:** the entries of a directory are created in the order of their names, so that equal
//! content gives equal images.
//!
//! **Locks:** those of the public methods.
//!
//! Counterpart: btrfs-progs' `mkfs/rootdir.c`.

mod acl_text;
mod content;
mod decompressed;
mod estimate;
mod event;
mod host;
mod host_calls;
mod layers;
mod manifest;
mod oci;
mod options;
mod replacing;
mod tar;
#[cfg(test)]
mod tests;
mod writer;

pub use content::{ContentSource, MkfsContent, is_to_be_made};
pub use layers::Layer;
pub use manifest::{Manifest, ManifestEntry};
pub use options::{Existing, NewSubvolume, Populate, PopulateObserver, Populated};

use crate::fakeroot;
use event::Batch;
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::file::change::NAME_ITEMS;
use papilio_format::items::inode::FileKind;
use papilio_fs::Inode;
use replacing::Replacing;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use writer::{TreeWriter, no_such_path};

/// Batches in the queue between the threads; each has about 1 MiB, or one piece of a large file.
const QUEUED_BATCHES: usize = 4;

impl Populate {
    /// Copies the content of the host directory `from` into the directory `into`, with the
    /// attributes of `from` itself if attributes are kept.
    ///
    /// # Errors
    /// Problems that the observer does not skip; no space left; a file system that failed or is
    /// read-only. [`Error::Invalid`] for a process under fakeroot, whose owners cannot be seen, if
    /// attributes are kept without a manifest.
    pub fn directory(
        &self,
        from: impl AsRef<Path>,
        into: &Inode,
        observer: &mut dyn PopulateObserver,
    ) -> Result<Populated> {
        self.carry(from.as_ref(), into, None, observer)
    }

    /// Copies the host file or directory `from` into the directory `into`, with the name `name`.
    ///
    /// # Errors
    /// As [`Populate::directory`].
    pub fn entry(
        &self,
        from: impl AsRef<Path>,
        into: &Inode,
        name: &[u8],
        observer: &mut dyn PopulateObserver,
    ) -> Result<Populated> {
        self.carry(from.as_ref(), into, Some(name), observer)
    }

    /// Unpacks a tar archive into the directory `into`. `name` names the archive in errors.
    ///
    /// The archive may be in the format ustar, pax or GNU, uncompressed or compressed by gzip,
    /// zstd, xz, bzip2 or lzma. All versions of sparse files, extended attributes (`SCHILY.xattr`)
    /// and access control lists with numeric ids (`SCHILY.acl`) are supported. A later member
    /// replaces an earlier one with the same name. Symbolic links on the way to a member are
    /// followed inside `into`. Archives that follow one another are unpacked one after the other.
    ///
    /// # Errors
    /// As [`Populate::directory`]; an invalid archive.
    pub fn tar(
        &self,
        name: impl AsRef<Path>,
        archive: impl Read,
        into: &Inode,
        observer: &mut dyn PopulateObserver,
    ) -> Result<Populated> {
        must_be_directory(into)?;
        let replacing = Self { existing: Existing::Replace, ..self.clone() };
        if self.reflink {
            return Err(Error::Invalid("an archive shares no blocks with an image".to_owned()));
        }
        let mut writer = TreeWriter::new(&replacing, into, observer)?;
        writer.replacing = Replacing::ByName;
        tar::unpack(name.as_ref(), archive, into, &mut writer)?;
        self.finish_subvolumes(into, &writer)?;
        writer.check_inode_flags()?;
        Ok(writer.done)
    }

    /// Estimates the size in bytes of a new file system for the host directory `from`, with
    /// duplicate metadata and spare space, without compression.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn estimated_size(&self, from: impl AsRef<Path>) -> Result<u64> {
        Ok(estimate::of_directory(from.as_ref(), &self.excluded)?.file_system_size())
    }

    /// Estimates the size as [`Populate::estimated_size`], for an archive, which is read to its
    /// end.
    ///
    /// # Errors
    /// An archive that cannot be read or is invalid.
    pub fn estimated_size_of_tar(&self, name: impl AsRef<Path>, archive: impl Read) -> Result<u64> {
        Ok(tar::estimate(name.as_ref(), archive)?.file_system_size())
    }

    fn carry(
        &self,
        from: &Path,
        into: &Inode,
        name: Option<&[u8]>,
        observer: &mut dyn PopulateObserver,
    ) -> Result<Populated> {
        must_be_directory(into)?;
        let mut writer = TreeWriter::new(self, into, observer)?;
        // A source is named by any of its hard links.
        for (path, flags) in &self.inode_flags {
            let host = from.join(OsStr::from_bytes(path));
            let id = host::identity(&host)?.ok_or_else(|| no_such_path(path))?;
            writer.flags_of_links.insert(id, *flags);
        }
        self.walk_host(from, into, name, &mut writer)?;
        self.finish_subvolumes(into, &writer)?;
        writer.check_inode_flags()?;
        Ok(writer.done)
    }

    /// Copies a file or directory of the host.
    fn walk_host(
        &self,
        from: &Path,
        into: &Inode,
        name: Option<&[u8]>,
        writer: &mut TreeWriter<'_>,
    ) -> Result<()> {
        if self.keep_attributes && self.manifest.is_none() {
            fakeroot::refuse(from)?;
        }
        let sector = into.file_system().info.volume().geometry().sector_size.into();
        let options = host::HostTreeOptions {
            xattrs: self.keep_attributes,
            follow: self.follow,
            recursive: self.recursive,
            excluded: &self.excluded,
            reflink: self.reflink.then_some(sector),
        };
        std::thread::scope(|scope| {
            let (send, batches) = sync_channel::<Batch>(QUEUED_BATCHES);
            scope.spawn(move || host::read(from, name, options, &send));
            // Returning early drops the receiving end, which ends the reader.
            for batch in batches {
                for event in batch {
                    writer.take(event)?;
                }
            }
            Ok::<_, Error>(())
        })
    }

    /// Applies the properties of the new subvolumes once they are filled.
    fn finish_subvolumes(&self, into: &Inode, writer: &TreeWriter<'_>) -> Result<()> {
        for (path, wanted) in &self.subvolumes {
            let Some(id) = writer.subvolumes.get(path).copied() else {
                let path = String::from_utf8_lossy(path);
                return Err(Error::Invalid(format!("subvolume {path}: the source has no such directory")));
            };
            into.file_system().info.transactions()?.change(NAME_ITEMS, |handle| {
                if wanted.default {
                    papilio_engine::subvolume::set_default(handle, id)?;
                }
                if wanted.read_only {
                    papilio_engine::subvolume::set_read_only(handle, id, true)
                } else {
                    Ok(())
                }
            })?;
        }
        Ok(())
    }
}

fn must_be_directory(into: &Inode) -> Result<()> {
    match into.file_type() {
        FileKind::Directory => Ok(()),
        _ => Err(Error::path(format!("inode {}", into.number()).as_bytes(), PathError::NotADirectory)),
    }
}
