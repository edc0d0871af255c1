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
mod content_update;
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
mod update;
mod writer;

pub use content::{ContentSource, MkfsContent, is_to_be_made};
pub use layers::Layer;
pub use manifest::{Manifest, ManifestEntry};
pub use options::{Existing, NewSubvolume, Populate, PopulateObserver, Populated};
pub use update::Updated;

use crate::fakeroot;
use event::{Batch, ImportEvent};
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::file::change::NAME_ITEMS;
use papilio_format::items::inode::FileKind;
use papilio_format::objectid;
use papilio_fs::Inode;
use replacing::Replacing;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use update::TreeUpdater;
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
        let mut writer = self.writer_of(from, into, observer)?;
        self.walk_host(from, into, name, &mut |event| writer.take(event))?;
        self.finish_subvolumes(into, &writer)?;
        writer.check_inode_flags()?;
        Ok(writer.done)
    }

    /// Makes the content of the top-level directory `into` that of the host directory `from`, and
    /// adds the work to `done`. `compresses` says whether files that are written are compressed.
    ///
    /// # Errors
    /// As [`Populate::directory`]. [`Error::Invalid`] if there are subvolumes that are not among
    /// those of these options.
    fn update(
        &self,
        from: &Path,
        into: &Inode,
        compresses: bool,
        observer: &mut dyn PopulateObserver,
        done: &mut Updated,
    ) -> Result<()> {
        self.refuse_other_subvolumes(into)?;
        // A subvolume that the source lacks would be emptied before it is missed.
        let missing = |path: &&Vec<u8>| !from.join(OsStr::from_bytes(path)).is_dir();
        if let Some(path) = self.subvolumes.keys().find(missing) {
            return Err(no_such_subvolume(path));
        }
        let writer = self.writer_of(from, into, observer)?;
        let sector = into.file_system().info.volume().geometry().sector_size;
        let mut updater = TreeUpdater::new(writer, compresses, sector as usize);
        let walked = self.walk_host(from, into, None, &mut |event| updater.take(event));
        updater.add_to(done, walked.is_ok());
        walked?;
        if !self.subvolumes.values().any(|wanted| wanted.default) {
            self.set_default_to_top_level(into)?;
        }
        self.finish_subvolumes(into, &updater.writer)?;
        updater.writer.check_inode_flags()
    }

    fn refuse_other_subvolumes(&self, into: &Inode) -> Result<()> {
        let mut others = Vec::new();
        for subvolume in into.file_system().subvolumes()? {
            let Some(path) = subvolume.path.filter(|path| !path.is_empty()) else { continue };
            if !self.subvolumes.contains_key(&path) {
                others.push(String::from_utf8_lossy(&path).into_owned());
            }
        }
        match others.is_empty() {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "the file system has subvolumes that the new content lacks: {}; name or delete them",
                others.join(", ")
            ))),
        }
    }

    fn set_default_to_top_level(&self, into: &Inode) -> Result<()> {
        if into.file_system().default_subvolume()? == objectid::FS_TREE {
            return Ok(());
        }
        into.file_system()
            .info
            .transactions()?
            .change(NAME_ITEMS, |handle| papilio_engine::subvolume::set_default(handle, objectid::FS_TREE))
    }

    /// Returns a writer for the content of a host directory.
    fn writer_of<'a>(
        &'a self,
        from: &Path,
        into: &Inode,
        observer: &'a mut dyn PopulateObserver,
    ) -> Result<TreeWriter<'a>> {
        must_be_directory(into)?;
        let mut writer = TreeWriter::new(self, into, observer)?;
        // A source is named by any of its hard links.
        for (path, flags) in &self.inode_flags {
            let host = from.join(OsStr::from_bytes(path));
            let id = host::identity(&host)?.ok_or_else(|| no_such_path(path))?;
            writer.flags_of_links.insert(id, *flags);
        }
        Ok(writer)
    }

    /// Walks a file or directory of the host, whose events `take` applies.
    fn walk_host(
        &self,
        from: &Path,
        into: &Inode,
        name: Option<&[u8]>,
        take: &mut dyn FnMut(ImportEvent) -> Result<()>,
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
                    take(event)?;
                }
            }
            Ok::<_, Error>(())
        })
    }

    /// Applies the properties of the new subvolumes once they are filled.
    fn finish_subvolumes(&self, into: &Inode, writer: &TreeWriter<'_>) -> Result<()> {
        for (path, wanted) in &self.subvolumes {
            let Some(id) = writer.subvolumes.get(path).copied() else { return Err(no_such_subvolume(path)) };
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

fn no_such_subvolume(path: &[u8]) -> Error {
    let path = String::from_utf8_lossy(path);
    Error::Invalid(format!("subvolume {path}: the source has no such directory"))
}

fn must_be_directory(into: &Inode) -> Result<()> {
    match into.file_type() {
        FileKind::Directory => Ok(()),
        _ => Err(Error::path(format!("inode {}", into.number()).as_bytes(), PathError::NotADirectory)),
    }
}
