//! A directory of the host as a target of a receive.
//!
//! Owns [`HostDirectory`]. Only Linux has it: it alone confines a path of the stream to a directory
//! (`openat2`). In a Btrfs, of Papilio or of the kernel, subvolumes are created with
//! Btrfs's ioctls. In other file systems they are plain directories, which nothing makes read-only,
//! and which only an extended attribute marks as received. A snapshot of one is a copy, which
//! shares data where the file system can.

mod copy;
mod mounts;
mod tree;

use super::target::{CloneRange, ExistingSubvolume, ReceiveTarget, SentSubvolume};
use crate::fakeroot;
use copy::copy_tree;
use mounts::Mounts;
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::namespace::create::NewKind;
use papilio_engine::subvolume::Received;
use papilio_format::items::inode::Timespec;
use papilio_format::send_stream::EncodedWrite;
use papilio_format::{Generation, Uuid};
use papilio_ioctl::client::MountedPath;
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use tree::{Descriptors, HostTree, open_beneath, shown};

/// The attribute of an incomplete subvolume's root that holds its note.
const NOTE: &str = "user.papilio.receive";
/// The attribute of a plain directory that holds the UUID and the generation it was received as.
const MARK: &str = "user.papilio.received";

/// A directory of the host that receives: [`Receive::receive_into`](super::Receive::receive_into)
/// takes it. In a Btrfs, of Papilio or of the kernel, subvolumes become subvolumes. Elsewhere they
/// become plain directories, and a snapshot is a copy of its parent, which must have been received
/// into the same directory.
#[derive(Debug)]
pub struct HostDirectory {
    /// The path, for messages.
    path: PathBuf,
    directory: MountedPath,
    /// `None` outside of Btrfs.
    mounts: Option<Mounts>,
    /// Whether a plain directory that is complete is marked as received.
    marks: bool,
    descriptors: Descriptors,
    current: Option<Subvolume>,
    /// The last source of clones in another subvolume.
    source: Option<(SentSubvolume, HostTree)>,
}

/// The subvolume that is received.
#[derive(Debug)]
struct Subvolume {
    path: PathBuf,
    tree: HostTree,
}

impl HostDirectory {
    /// Opens the directory at `path`. Parents are looked up in all mounts of its file system.
    ///
    /// # Errors
    /// The directory cannot be opened; [`Error::Invalid`] for a process under fakeroot, which would
    /// not see the owners of what is received.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path.as_ref(), None, false)
    }

    /// As [`Self::open`]. `root` is the root of the one mount in which parents are looked up. With
    /// `confine`, this process cannot leave the directory afterwards.
    ///
    /// # Errors
    /// As there; `root` is no root of a subvolume, or this process may not confine itself.
    pub fn open_with(path: &Path, root: Option<&Path>, confine: bool) -> Result<Self> {
        fakeroot::refuse_writing(path)?;
        let open = Self::open_directory(path, root, confine);
        open.map_err(|source| Error::Host { path: path.to_owned(), source })
    }

    fn open_directory(path: &Path, root: Option<&Path>, confine: bool) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = MountedPath::from_file(File::from(rustix::fs::open(path, flags, Mode::empty())?));
        let mounts = match directory.subvolume_id() {
            Ok(_) => Some(Mounts::around(path, root)?),
            Err(_) => None,
        };
        let descriptors = match confine {
            true => Descriptors::confined_to(directory.file())?,
            false => Descriptors::absolute(),
        };
        let (path, marks) = (path.to_owned(), true);
        Ok(Self { path, directory, mounts, marks, descriptors, current: None, source: None })
    }

    /// Opens the directory at `path`, in which subvolumes become plain directories without a mark,
    /// also if it is in a Btrfs.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_plain(path: impl AsRef<Path>) -> Result<Self> {
        let open = Self::open_with(path.as_ref(), None, false)?;
        Ok(Self { mounts: None, marks: false, ..open })
    }

    /// Returns whether subvolumes become plain directories.
    pub fn is_plain(&self) -> bool {
        self.mounts.is_none()
    }

    fn open_entry(&self, name: &[u8]) -> io::Result<OwnedFd> {
        open_beneath(&self.directory, name, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    fn enter(&mut self, name: &[u8]) -> io::Result<&mut HostTree> {
        let tree = HostTree::new(self.open_entry(name)?, self.descriptors.clone());
        let current = Subvolume { path: shown(&self.path, name), tree };
        Ok(&mut self.current.insert(current).tree)
    }

    /// Runs `change` on the subvolume that is received, and adds the path to its error.
    fn at(&mut self, path: &[u8], change: impl FnOnce(&mut HostTree) -> io::Result<()>) -> Result<()> {
        self.result_at(path, change)
    }

    fn result_at<R>(
        &mut self,
        path: &[u8],
        change: impl FnOnce(&mut HostTree) -> io::Result<R>,
    ) -> Result<R> {
        let current = self.current.as_mut().ok_or_else(|| Error::Invalid("no subvolume was begun".into()))?;
        change(&mut current.tree).map_err(|source| Error::Host { path: shown(&current.path, path), source })
    }

    /// Finds a plain directory that was received as `sent`.
    fn find_plain(&self, sent: SentSubvolume) -> io::Result<Option<OwnedFd>> {
        let mark = mark_of(sent);
        for entry in rustix::fs::Dir::read_from(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let Ok(open) = self.open_entry(name) else { continue };
            let tree = HostTree::new(open.try_clone()?, self.descriptors.clone());
            if tree.note(MARK)?.as_deref() == Some(&mark) {
                return Ok(Some(open));
            }
        }
        Ok(None)
    }

    /// Opens a subvolume that a stream names.
    fn find(&self, sent: SentSubvolume) -> Result<OwnedFd> {
        let host = |source| Error::Host { path: self.path.clone(), source };
        if let Some(mounts) = &self.mounts {
            let found = mounts.find(sent, &self.directory)?;
            return found.as_fd().try_clone_to_owned().map_err(host);
        }
        self.find_plain(sent).map_err(host)?.ok_or_else(|| {
            Error::Invalid(format!("no directory is marked as received with the parent's UUID {}", sent.uuid))
        })
    }

    /// Creates the subvolume or the directory.
    fn make(&self, name: &[u8], parent: Option<SentSubvolume>) -> Result<()> {
        let host = |source: io::Error| match Errno::from_io_error(&source) {
            Some(Errno::EXIST) => Error::Path { path: name.to_vec(), kind: PathError::Exists },
            _ => Error::Host { path: shown(&self.path, name), source },
        };
        // Looked for first, so that a missing parent leaves nothing.
        let parent = parent.map(|parent| self.find(parent)).transpose()?;
        if self.mounts.is_some() {
            let made = match parent {
                None => self.directory.create_subvolume(name),
                Some(parent) => {
                    let parent = MountedPath::from_file(File::from(parent));
                    self.directory.create_snapshot(&parent, name, false)
                }
            };
            return made.map_err(host);
        }
        let mode = Mode::from_raw_mode(0o755);
        rustix::fs::mkdirat(&self.directory, name, mode).map_err(|error| host(error.into()))?;
        let Some(parent) = parent else { return Ok(()) };
        let copied = self.open_entry(name).and_then(|made| copy_tree(&parent, &made, &self.descriptors));
        copied.map_err(host)
    }
}

/// Returns the value of [`MARK`].
fn mark_of(sent: SentSubvolume) -> Vec<u8> {
    format!("{} {}", sent.uuid, sent.ctransid.0).into_bytes()
}

fn parse_mark(mark: &[u8]) -> Option<SentSubvolume> {
    let (uuid, ctransid) = std::str::from_utf8(mark).ok()?.split_once(' ')?;
    let ctransid = Generation(ctransid.parse().ok()?);
    Some(SentSubvolume { uuid: Uuid::parse_str(uuid).ok()?, ctransid })
}

impl ReceiveTarget for HostDirectory {
    fn begin(&mut self, name: &[u8], parent: Option<SentSubvolume>) -> Result<()> {
        self.make(name, parent)?;
        let plain = self.is_plain();
        let path = shown(&self.path, name);
        let tree = self.enter(name).map_err(|source| Error::Host { path: path.clone(), source })?;
        if plain {
            // A copy must not look complete.
            for attribute in [MARK, NOTE] {
                let _ = rustix::fs::fremovexattr(tree.root(), attribute);
            }
        }
        Ok(())
    }

    fn finish(&mut self, mark: &Received) -> Result<()> {
        let (plain, marks) = (self.is_plain(), self.marks);
        self.at(b"", |tree| {
            tree.forget();
            if plain && !marks {
                return Ok(());
            }
            if plain {
                let mark = mark_of(SentSubvolume { uuid: mark.uuid, ctransid: mark.sent });
                return match rustix::fs::fsetxattr(tree.root(), MARK, &mark, XattrFlags::empty()) {
                    // Such a directory cannot be the parent of another one.
                    Err(Errno::OPNOTSUPP) => Ok(()),
                    result => Ok(result?),
                };
            }
            let root = MountedPath::from_file(File::from(tree.root().try_clone()?));
            root.set_received(mark)?;
            root.set_subvolume_read_only(true)
        })?;
        self.current = None;
        Ok(())
    }

    fn existing(&mut self, name: &[u8]) -> Result<ExistingSubvolume> {
        let host = |source| Error::Host { path: shown(&self.path, name), source };
        match rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => {}
            Err(Errno::NOENT) => return Ok(ExistingSubvolume::Missing),
            Err(error) => return Err(host(error.into())),
        }
        let Ok(open) = self.open_entry(name) else { return Ok(ExistingSubvolume::Other) };
        if self.mounts.is_some() {
            let root = MountedPath::from_file(File::from(open.try_clone().map_err(host)?));
            if !root.is_subvolume_root().map_err(host)? {
                return Ok(ExistingSubvolume::Other);
            }
            let info = root.subvolume_info().map_err(host)?;
            let uuid = Uuid::from_bytes(info.received_uuid);
            if !uuid.is_nil() && root.is_subvolume_read_only().map_err(host)? {
                let ctransid = Generation(info.sent);
                return Ok(ExistingSubvolume::Complete(SentSubvolume { uuid, ctransid }));
            }
        }
        let tree = HostTree::new(open, self.descriptors.clone());
        let mark = if self.is_plain() { tree.note(MARK).map_err(host)? } else { None };
        if let Some(sent) = mark.and_then(|mark| parse_mark(&mark)) {
            return Ok(ExistingSubvolume::Complete(sent));
        }
        Ok(match tree.note(NOTE).map_err(host)? {
            Some(note) => ExistingSubvolume::Incomplete(note),
            None => ExistingSubvolume::Other,
        })
    }

    fn suspend(&mut self, note: &[u8]) -> Result<()> {
        self.at(b"", |tree| {
            tree.forget();
            rustix::fs::syncfs(tree.root())?;
            Ok(rustix::fs::fsetxattr(tree.root(), NOTE, note, XattrFlags::empty())?)
        })
    }

    fn resume(&mut self, name: &[u8]) -> Result<()> {
        let path = shown(&self.path, name);
        let host = |source| Error::Host { path, source };
        let tree = self.enter(name).map_err(host.clone())?;
        // Durable before anything that follows.
        let removed = rustix::fs::fremovexattr(tree.root(), NOTE);
        removed.and_then(|()| rustix::fs::syncfs(tree.root())).map_err(|error| host(error.into()))
    }

    fn create(&mut self, path: &[u8], kind: NewKind<'_>, mode: u32) -> Result<()> {
        self.at(path, |tree| tree.create(path, kind, mode))
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        self.at(from, |tree| tree.rename(from, to))
    }

    fn link(&mut self, existing: &[u8], path: &[u8]) -> Result<()> {
        self.at(path, |tree| tree.link(existing, path))
    }

    fn remove_file(&mut self, path: &[u8]) -> Result<()> {
        self.at(path, |tree| tree.remove(path, false))
    }

    fn remove_dir(&mut self, path: &[u8]) -> Result<()> {
        self.at(path, |tree| tree.remove(path, true))
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        let plain = self.is_plain();
        self.at(path, |tree| match tree.set_xattr(path, name, value) {
            // Only Btrfs has these properties.
            Err(error) if plain && name.starts_with(b"btrfs.") && unsupported(&error) => Ok(()),
            result => result,
        })
    }

    fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> Result<()> {
        let plain = self.is_plain();
        self.at(path, |tree| match tree.remove_xattr(path, name) {
            Err(error) if plain && name.starts_with(b"btrfs.") && unsupported(&error) => Ok(()),
            result => result,
        })
    }

    fn set_mode(&mut self, path: &[u8], mode: u32) -> Result<()> {
        self.at(path, |tree| tree.set_mode(path, mode))
    }

    fn set_owner(&mut self, path: &[u8], uid: u32, gid: u32) -> Result<()> {
        self.at(path, |tree| tree.set_owner(path, uid, gid))
    }

    fn set_times(&mut self, path: &[u8], atime: Timespec, mtime: Timespec) -> Result<()> {
        self.at(path, |tree| tree.set_times(path, atime, mtime))
    }

    fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<()> {
        self.at(path, |tree| tree.write(path, offset, data))
    }

    fn write_encoded(&mut self, write: &EncodedWrite) -> Result<bool> {
        if self.is_plain() {
            return Ok(false);
        }
        self.result_at(&write.path, |tree| tree.write_encoded(write))
    }

    fn truncate(&mut self, path: &[u8], size: u64) -> Result<()> {
        self.at(path, |tree| tree.truncate(path, size))
    }

    fn allocate(&mut self, path: &[u8], offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.at(path, |tree| tree.allocate(path, offset, length, keep_size))
    }

    fn punch_hole(&mut self, path: &[u8], offset: u64, length: u64) -> Result<()> {
        self.at(path, |tree| tree.punch_hole(path, offset, length))
    }

    fn zero_range(&mut self, path: &[u8], offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.at(path, |tree| tree.zero_range(path, offset, length, keep_size))
    }

    fn clone_range(&mut self, path: &[u8], range: &CloneRange<'_>) -> Result<()> {
        let Some(sent) = range.subvolume else {
            return self.at(path, |tree| tree.clone_range(path, None, range));
        };
        if self.source.as_ref().is_none_or(|(known, _)| *known != sent) {
            let tree = HostTree::new(self.find(sent)?, self.descriptors.clone());
            self.source = Some((sent, tree));
        }
        let mut source = self.source.take();
        let other = source.as_mut().map(|(_, tree)| tree);
        let result = self.at(path, |tree| tree.clone_range(path, other, range));
        self.source = source;
        result
    }
}

fn unsupported(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::OPNOTSUPP | Errno::NODATA))
}
