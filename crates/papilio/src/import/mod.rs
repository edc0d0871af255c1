//! Filling a file system: from a directory of the host, or from a tar archive.
//!
//! Owns [`Populate`], which says how, and what it tells while it works. Two threads carry a directory
//! over: one walks and reads the host ([`host`]), the other changes the file system ([`writer`]), with a
//! bounded queue of [`event`]s in between. An archive is read by the thread that writes ([`tar`]).
//! Everything goes through the public operations on inodes, by directory and name: no path is resolved
//! twice. Entries of a directory are taken in the order of their names, so that the same content gives
//! the same image.
//!
//! Locks: those of the operations. Counterpart: btrfs-progs' `mkfs/rootdir.c`.

mod acl_text;
mod estimate;
mod event;
mod host;
mod manifest;
mod tar;
#[cfg(test)]
mod tests;
mod writer;

pub use manifest::{Manifest, ManifestEntry};

use crate::errors::{Error, PathError, Result};
use crate::file::change::NAME_ITEMS;
use crate::fs::Inode;
use event::Batch;
use papilio_format::items::inode::FileKind;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use writer::TreeWriter;

/// Batches of about a MiB, or a piece of a large file, that wait between the two threads.
const QUEUED_BATCHES: usize = 4;

/// What happens to names that are there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Existing {
    /// [`PathError::Exists`]; a directory takes in the entries of one that has its name.
    #[default]
    Refuse,
    /// They stay as they are, with a directory as above.
    Keep,
    /// A regular file gets the new content, everything else that is no directory is replaced; a directory
    /// is never replaced by what is none, and the other way round.
    Replace,
}

/// How a file system is filled. By default, everything of the source is kept: owners, modes, times,
/// extended attributes, access control lists, hard links, holes.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let (image, source) = (folder.path().join("new.img"), folder.path().join("source"));
/// # std::fs::create_dir(&source)?;
/// # std::fs::write(source.join("file"), "content")?;
/// use papilio::{FileSystem, MkfsOptions, OpenOptions, Populate};
///
/// papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20))?;
/// let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true))?;
/// let done = Populate::new().owner(0, 0).directory(&source, &fs.inode("/")?, &mut ())?;
/// assert_eq!((done.entries, done.bytes), (1, 7));
/// assert_eq!(fs.read("/file")?, b"content");
/// fs.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Populate {
    keep_attributes: bool,
    owner: Option<(u32, u32)>,
    umask: u32,
    manifest: Option<Arc<Manifest>>,
    existing: Existing,
    steady_access_times: bool,
    follow: bool,
    recursive: bool,
    excluded: Vec<(u64, u64)>,
    subvolumes: BTreeMap<Vec<u8>, NewSubvolume>,
}

/// What a directory is to be instead: a subvolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewSubvolume {
    /// It is read-only once it is filled.
    pub read_only: bool,
    /// A mount without options shows it.
    pub default: bool,
}

impl Default for Populate {
    fn default() -> Self {
        Self {
            keep_attributes: true,
            owner: None,
            umask: 0,
            manifest: None,
            existing: Existing::default(),
            steady_access_times: false,
            follow: false,
            recursive: true,
            excluded: Vec::new(),
            subvolumes: BTreeMap::new(),
        }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Populated {
    /// Names that were made, further links among them.
    pub entries: u64,
    /// Bytes of files that were written, holes not counted.
    pub bytes: u64,
}

/// Is told how it goes. `()` wants to know nothing, and ends everything with the first problem.
pub trait PopulateObserver {
    /// An entry is taken on: its path from the top of the source.
    fn entry(&mut self, _path: &[u8]) {}

    /// Bytes of a file's content were written.
    fn bytes(&mut self, _count: u64) {}

    /// A file cannot be read or written; the others go on if this returns `Ok`.
    ///
    /// # Errors
    /// What is to end the work; by default, the problem itself.
    fn problem(&mut self, problem: Error) -> Result<()> {
        Err(problem)
    }
}

impl PopulateObserver for () {}

impl Populate {
    /// Keeps everything, and overwrites nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether owners, times, extended attributes and access control lists are kept and modes are taken
    /// as they are (default true). If not, what is made has [`Populate::owner`] and the time of its making,
    /// and modes lack the bits of [`Populate::umask`].
    pub fn keep_attributes(mut self, keep: bool) -> Self {
        self.keep_attributes = keep;
        self
    }

    /// Gives everything this owner and group, instead of the source's (or root's, where attributes are
    /// not kept).
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = Some((uid, gid));
        self
    }

    /// Permission bits that are not given, where attributes are not kept.
    pub fn umask(mut self, umask: u32) -> Self {
        self.umask = umask;
        self
    }

    /// Takes owners and modes from a list; what it does not name is as it would be without it.
    pub fn manifest(mut self, manifest: Manifest) -> Self {
        self.manifest = Some(Arc::new(manifest));
        self
    }

    /// What happens to names that are there already.
    pub fn existing(mut self, existing: Existing) -> Self {
        self.existing = existing;
        self
    }

    /// Sets times of last access to those of the last modification, since reading the source may have
    /// changed them (default false).
    pub fn steady_access_times(mut self, steady: bool) -> Self {
        self.steady_access_times = steady;
        self
    }

    /// Whether a symbolic link that is named as the source itself is followed (default false).
    pub fn follow(mut self, follow: bool) -> Self {
        self.follow = follow;
        self
    }

    /// Whether directories are entered (default true); if not, they are a problem.
    pub fn recursive(mut self, recursive: bool) -> Self {
        self.recursive = recursive;
        self
    }

    /// Leaves out a file of the host, by device and inode number: the image that is being made, for one.
    pub fn exclude(mut self, device: u64, inode: u64) -> Self {
        self.excluded.push((device, inode));
        self
    }

    /// Makes the directory at `path`, from the top of the source, a subvolume. A source that has no such
    /// directory is an error. A file that has names in several subvolumes becomes a file of its own in each,
    /// and they share its data.
    pub fn subvolume(mut self, path: impl AsRef<[u8]>, subvolume: NewSubvolume) -> Self {
        self.subvolumes.insert(manifest::normalized(path.as_ref()), subvolume);
        self
    }

    /// Copies what is in directory `from` of the host into directory `into`, which also gets the
    /// attributes of `from` where attributes are kept.
    ///
    /// # Errors
    /// Problems that the observer does not pass over; no space left, a file system that failed or is
    /// read-only.
    pub fn directory(
        &self,
        from: impl AsRef<Path>,
        into: &Inode,
        observer: &mut dyn PopulateObserver,
    ) -> Result<Populated> {
        self.carry(from.as_ref(), into, None, observer)
    }

    /// Copies the host's `from`, whatever it is, as `name` into directory `into`.
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

    /// Unpacks a tar archive into directory `into`: the formats ustar, pax and GNU with sparse files of
    /// all versions, extended attributes (`SCHILY.xattr`) and access control lists (`SCHILY.acl`) of
    /// numbers; compressed by gzip or zstd, or not at all. Later members replace earlier ones of the same name.
    /// `name` stands for the archive in errors.
    ///
    /// # Errors
    /// As [`Populate::directory`]; an archive that makes no sense.
    pub fn tar(
        &self,
        name: impl AsRef<Path>,
        archive: impl Read,
        into: &Inode,
        observer: &mut dyn PopulateObserver,
    ) -> Result<Populated> {
        must_be_directory(into)?;
        let replacing = Self { existing: Existing::Replace, ..self.clone() };
        let mut writer = TreeWriter::new(&replacing, into, observer)?;
        tar::unpack(name.as_ref(), archive, into, &mut writer)?;
        self.finish_subvolumes(into, &writer)?;
        Ok(writer.done)
    }

    /// Bytes that a new file system should have to hold what is in directory `from` of the host, with
    /// metadata kept twice, and some room. An estimate: what compresses needs less.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn estimated_size(&self, from: impl AsRef<Path>) -> Result<u64> {
        Ok(estimate::of_directory(from.as_ref(), &self.excluded)?.file_system_size())
    }

    /// As [`Populate::estimated_size`], for an archive, which is read to its end.
    ///
    /// # Errors
    /// An archive that cannot be read or makes no sense.
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
        let options = host::HostOptions {
            xattrs: self.keep_attributes,
            follow: self.follow,
            recursive: self.recursive,
            excluded: &self.excluded,
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
        })?;
        self.finish_subvolumes(into, &writer)?;
        Ok(writer.done)
    }

    /// Everything is in its place: subvolumes get what was asked for them.
    fn finish_subvolumes(&self, into: &Inode, writer: &TreeWriter<'_>) -> Result<()> {
        for (path, wanted) in &self.subvolumes {
            let Some(id) = writer.subvolumes.get(path).copied() else {
                let path = String::from_utf8_lossy(path);
                return Err(Error::Invalid(format!("subvolume {path}: the source has no such directory")));
            };
            into.file_system().info.transactions()?.change(NAME_ITEMS, |handle| {
                if wanted.default {
                    crate::subvolume::set_default(handle, id)?;
                }
                if wanted.read_only { crate::subvolume::set_read_only(handle, id, true) } else { Ok(()) }
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
