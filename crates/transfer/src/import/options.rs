//! The options, the observer and the result of filling a file system.
//!
//! Owns [`Populate`] with its options, [`NewSubvolume`], [`Existing`], [`PopulateObserver`] and
//! [`Populated`].

use super::manifest::{Manifest, normalized};
use papilio_engine::errors::{Error, Result};
use papilio_format::items::inode::InodeFlags;
use papilio_fs::AsPath;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The treatment of names that exist already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Existing {
    /// Fails with [`PathError::Exists`](papilio_engine::PathError::Exists). Directories with the
    /// same name merge.
    #[default]
    Refuse,
    /// Keeps what exists. Directories with the same name merge.
    Keep,
    /// Overwrites a regular file's content, and replaces every other kind except directories.
    /// Directories with the same name merge; a directory neither replaces another kind nor is
    /// replaced by one.
    Replace,
}

/// Fills a file system. By default it keeps all attributes of the source: owners, modes, times,
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
    pub(super) keep_attributes: bool,
    pub(super) owner: Option<(u32, u32)>,
    pub(super) umask: u32,
    pub(super) manifest: Option<Arc<Manifest>>,
    pub(super) existing: Existing,
    pub(super) steady_access_times: bool,
    pub(super) follow: bool,
    pub(super) recursive: bool,
    /// Device and inode numbers of host files to leave out.
    pub(super) excluded: Vec<(u64, u64)>,
    /// By path from the top of the source.
    pub(super) subvolumes: BTreeMap<Vec<u8>, NewSubvolume>,
    /// NODATACOW and NODATASUM, by path from the top of the source.
    pub(super) inode_flags: BTreeMap<Vec<u8>, InodeFlags>,
    pub(super) reflink: bool,
}

/// The properties of a directory that becomes a subvolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewSubvolume {
    /// Whether it becomes read-only once it is filled.
    pub read_only: bool,
    /// Whether a mount without options shows it.
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
            inode_flags: BTreeMap::new(),
            reflink: false,
        }
    }
}

/// The amount of work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Populated {
    /// Names created, hard links among them.
    pub entries: u64,
    /// Bytes of file data written, without holes.
    pub bytes: u64,
}

/// Receives progress and problems. The observer `()` ignores progress and stops at the first
/// problem.
pub trait PopulateObserver {
    /// Called before each entry, with its path from the top of the source.
    fn entry(&mut self, _path: &[u8]) {}

    /// Called after each write of file data, with its length in bytes.
    fn bytes(&mut self, _count: u64) {}

    /// Called before each step of the work, which is at most about 1 MiB of a file.
    ///
    /// # Errors
    /// An error that ends the work, such as of a user who cancels it.
    fn proceed(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called for each file that cannot be read or written. `Ok` skips the file and continues.
    ///
    /// # Errors
    /// The error that ends the work; by default the problem itself.
    fn problem(&mut self, problem: Error) -> Result<()> {
        Err(problem)
    }
}

impl PopulateObserver for () {}

impl Populate {
    /// The defaults: all attributes are kept, nothing is overwritten.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether owners, times, modes, extended attributes and access control lists are kept
    /// (default true). Otherwise new inodes get [`Populate::owner`] and the current time, and modes
    /// lack the bits of [`Populate::umask`].
    pub fn keep_attributes(mut self, keep: bool) -> Self {
        self.keep_attributes = keep;
        self
    }

    /// Sets owner and group of everything. The default are the source's, or root's if attributes
    /// are not kept.
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = Some((uid, gid));
        self
    }

    /// Sets the permission bits to clear if attributes are not kept (default 0).
    pub fn umask(mut self, umask: u32) -> Self {
        self.umask = umask;
        self
    }

    /// Takes owners and modes from a manifest, for the paths it contains.
    pub fn manifest(mut self, manifest: Manifest) -> Self {
        self.manifest = Some(Arc::new(manifest));
        self
    }

    /// Sets the treatment of names that exist already.
    pub fn existing(mut self, existing: Existing) -> Self {
        self.existing = existing;
        self
    }

    /// Sets whether access times become those of the last modification (default false). Reading the
    /// source may change access times, so this makes images reproducible.
    pub fn steady_access_times(mut self, steady: bool) -> Self {
        self.steady_access_times = steady;
        self
    }

    /// Sets whether to follow the source if it is a symbolic link itself (default false).
    pub fn follow(mut self, follow: bool) -> Self {
        self.follow = follow;
        self
    }

    /// Sets whether directories are entered (default true). Otherwise a directory is a problem.
    pub fn recursive(mut self, recursive: bool) -> Self {
        self.recursive = recursive;
        self
    }

    /// Leaves out the host file with these device and inode numbers, such as the image itself.
    pub fn exclude(mut self, device: u64, inode: u64) -> Self {
        self.excluded.push((device, inode));
        self
    }

    /// Makes the directory at `path`, from the top of the source, a subvolume. Filling fails if the
    /// source has no such directory. A file with hard links in several subvolumes becomes one file
    /// in each, and these share their data.
    pub fn subvolume(mut self, path: impl AsPath, subvolume: NewSubvolume) -> Self {
        self.subvolumes.insert(normalized(path.as_path_bytes()), subvolume);
        self
    }

    /// Gives the file or directory at `path`, from the top of the source, the flags NODATACOW
    /// (which files have together with NODATASUM) and NODATASUM. Everything in a directory with
    /// NODATACOW has it, too, except subvolumes. Filling fails if the source has no such path, or
    /// for other flags.
    pub fn inode_flags(mut self, path: impl AsPath, flags: InodeFlags) -> Self {
        *self.inode_flags.entry(normalized(path.as_path_bytes())).or_default() |= flags;
        self
    }

    /// Sets whether files share their blocks with those of the host instead of being copied
    /// (`FICLONERANGE`, default false). All images must be regular files, in the file system of the
    /// source. The end of a file that is no whole sector is copied. Compression does not apply.
    pub fn reflink(mut self, reflink: bool) -> Self {
        self.reflink = reflink;
        self
    }
}
