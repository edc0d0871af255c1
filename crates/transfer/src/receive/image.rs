//! A directory of an open file system as a target.
//!
//! Owns [`ImageTarget`], which uses the public operations only. It keeps the last directory and the
//! last file open, since a stream names them again and again.
//!
//! **Invariant:** paths are walked name by name, no symbolic link is followed, and no other
//! subvolume is entered.

use super::parent::find_parent;
use super::target::{CloneRange, ExistingSubvolume, ReceiveTarget, SentSubvolume};
use papilio_engine::data::{EncodedExtent, compression_of_number};
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::items::xattr_edit::XattrSet;
use papilio_engine::namespace::create::{NewInode, NewKind};
use papilio_engine::namespace::rename::RenameMode;
use papilio_engine::namespace::setattr::{SetAttributes, SetTime};
use papilio_engine::subvolume::Received;
use papilio_format::items::inode::Timespec;
use papilio_format::send_stream::EncodedWrite;
use papilio_format::{Generation, Uuid};
use papilio_fs::{File, FileSystem, Inode};

/// The attribute of an incomplete subvolume's root that holds its note.
const NOTE: &[u8] = b"user.papilio.receive";

/// A directory that receives.
pub(super) struct ImageTarget<'a> {
    fs: &'a FileSystem,
    directory: Inode,
    /// The root of the subvolume that is received.
    root: Option<Inode>,
    parent: Option<(Vec<u8>, Inode)>,
    file: Option<(Vec<u8>, File)>,
}

impl<'a> ImageTarget<'a> {
    pub(super) fn new(fs: &'a FileSystem, directory: Inode) -> Self {
        Self { fs, directory, root: None, parent: None, file: None }
    }

    fn root(&self) -> Result<&Inode> {
        self.root.as_ref().ok_or_else(|| Error::Invalid("no subvolume was begun".into()))
    }

    fn enter(&mut self, root: Inode) {
        self.forget();
        self.root = Some(root);
    }

    fn forget(&mut self) {
        self.parent = None;
        self.file = None;
    }

    /// Returns the directory and the last name of a path.
    fn parent<'p>(&mut self, path: &'p [u8]) -> Result<(Inode, &'p [u8])> {
        let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => return Ok((self.root()?.clone(), path)),
        };
        if let Some((known, inode)) = &self.parent
            && known == directory
        {
            return Ok((inode.clone(), name));
        }
        let inode = walk(self.root()?, directory)?;
        self.parent = Some((directory.to_vec(), inode.clone()));
        Ok((inode, name))
    }

    fn inode(&mut self, path: &[u8]) -> Result<Inode> {
        if path.is_empty() {
            return self.root().cloned();
        }
        let (directory, name) = self.parent(path)?;
        step(&directory, path, name)
    }

    fn file(&mut self, path: &[u8]) -> Result<&File> {
        if self.file.as_ref().is_none_or(|(known, _)| known != path) {
            let file = self.inode(path)?.open()?;
            self.file = Some((path.to_vec(), file));
        }
        Ok(&self.file.as_ref().expect("it was opened").1)
    }

    fn set(&mut self, path: &[u8], attributes: &SetAttributes) -> Result<()> {
        self.inode(path)?.set_attributes(attributes)
    }
}

impl ReceiveTarget for ImageTarget<'_> {
    fn begin(&mut self, name: &[u8], parent: Option<SentSubvolume>) -> Result<()> {
        let Some(parent) = parent else {
            let new = NewInode::new(NewKind::Directory, 0o755);
            let root = self.directory.create_subvolume(name, &new)?;
            self.enter(root);
            return Ok(());
        };
        let parent = find_parent(self.fs, parent.uuid, parent.ctransid)?;
        let root = self.directory.create_snapshot(parent.id, name, false)?;
        // A snapshot inherits the mark of its source, with which it would look complete.
        let none = Received { uuid: Uuid::nil(), sent: Generation(0), send_time: Timespec::default() };
        self.fs.set_received_by_id(root.tree(), &none)?;
        self.enter(root);
        Ok(())
    }

    fn finish(&mut self, mark: &Received) -> Result<()> {
        let tree = self.root()?.tree();
        self.forget();
        self.root = None;
        self.fs.set_received_by_id(tree, mark)?;
        self.fs.set_subvolume_read_only_by_id(tree, true)
    }

    fn existing(&mut self, name: &[u8]) -> Result<ExistingSubvolume> {
        let Some(found) = self.directory.lookup(name)? else { return Ok(ExistingSubvolume::Missing) };
        if !found.is_subvolume_root() || found.tree() == self.directory.tree() {
            return Ok(ExistingSubvolume::Other);
        }
        let subvolume = self.fs.subvolume(found.tree())?;
        if subvolume.is_read_only() && !subvolume.received_uuid.is_nil() {
            let (uuid, ctransid) = (subvolume.received_uuid, subvolume.sent);
            return Ok(ExistingSubvolume::Complete(SentSubvolume { uuid, ctransid }));
        }
        let note = found.xattr(NOTE)?;
        Ok(note.map_or(ExistingSubvolume::Other, ExistingSubvolume::Incomplete))
    }

    fn suspend(&mut self, note: &[u8]) -> Result<()> {
        let root = self.root()?.clone();
        self.forget();
        self.fs.sync()?;
        root.set_xattr(NOTE, note, XattrSet::Any)
    }

    fn resume(&mut self, name: &[u8]) -> Result<()> {
        let root = step_into(&self.directory, name)?;
        root.remove_xattr(NOTE)?;
        self.enter(root);
        Ok(())
    }

    fn create(&mut self, path: &[u8], kind: NewKind<'_>, mode: u32) -> Result<()> {
        let (directory, name) = self.parent(path)?;
        directory.create(name, &NewInode::new(kind, mode)).map(drop)
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        self.forget();
        let (source, name) = self.parent(from)?;
        let (directory, new_name) = self.parent(to)?;
        source.rename(name, &directory, new_name, RenameMode::Replace)?;
        self.forget();
        Ok(())
    }

    fn link(&mut self, existing: &[u8], path: &[u8]) -> Result<()> {
        let target = self.inode(existing)?;
        let (directory, name) = self.parent(path)?;
        directory.hard_link(&target, name)
    }

    fn remove_file(&mut self, path: &[u8]) -> Result<()> {
        self.file = None;
        let (directory, name) = self.parent(path)?;
        directory.remove_file(name)
    }

    fn remove_dir(&mut self, path: &[u8]) -> Result<()> {
        self.forget();
        let (directory, name) = self.parent(path)?;
        directory.remove_dir(name)
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        self.inode(path)?.set_xattr(name, value, XattrSet::Any)
    }

    fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> Result<()> {
        self.inode(path)?.remove_xattr(name)
    }

    fn set_mode(&mut self, path: &[u8], mode: u32) -> Result<()> {
        self.set(path, &SetAttributes { mode: Some(mode), ..SetAttributes::default() })
    }

    fn set_owner(&mut self, path: &[u8], uid: u32, gid: u32) -> Result<()> {
        self.set(path, &SetAttributes { uid: Some(uid), gid: Some(gid), ..SetAttributes::default() })
    }

    fn set_times(&mut self, path: &[u8], atime: Timespec, mtime: Timespec) -> Result<()> {
        let (atime, mtime) = (Some(SetTime::At(atime)), Some(SetTime::At(mtime)));
        self.set(path, &SetAttributes { atime, mtime, ..SetAttributes::default() })
    }

    fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<()> {
        self.file(path)?.write_all_at(data, offset)
    }

    fn write_encoded(&mut self, write: &EncodedWrite) -> Result<bool> {
        let Some((compression, lzo_sector)) = compression_of_number(write.compression) else {
            return Ok(false);
        };
        let extent = EncodedExtent {
            compression,
            lzo_sector,
            data: &write.data,
            uncompressed: write.unencoded_length,
            offset: write.unencoded_offset,
            length: write.file_length,
        };
        self.file(&write.path)?.write_encoded_at(&extent, write.offset)
    }

    fn truncate(&mut self, path: &[u8], size: u64) -> Result<()> {
        self.file(path)?.set_len(size)
    }

    fn allocate(&mut self, path: &[u8], offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.file(path)?.allocate(offset, length, keep_size)
    }

    fn punch_hole(&mut self, path: &[u8], offset: u64, length: u64) -> Result<()> {
        self.file(path)?.punch_hole(offset, length)
    }

    fn zero_range(&mut self, path: &[u8], offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.file(path)?.zero_range(offset, length, keep_size)
    }

    fn clone_range(&mut self, path: &[u8], range: &CloneRange<'_>) -> Result<()> {
        let source = match range.subvolume {
            None => self.inode(range.source)?,
            Some(other) => {
                let found = find_parent(self.fs, other.uuid, other.ctransid)?;
                walk(&self.fs.subvolume_root(found.id)?, range.source)?
            }
        };
        let source = source.open()?;
        self.file(path)?.clone_range(&source, range.from, range.length, range.to)
    }
}

/// Follows one name inside a subvolume.
fn step(directory: &Inode, path: &[u8], name: &[u8]) -> Result<Inode> {
    let found = directory.lookup(name)?.ok_or_else(|| Error::path(path, PathError::NotFound))?;
    if found.tree() != directory.tree() || found.is_subvolume_stub() {
        return Err(Error::path(path, PathError::CrossDevice));
    }
    Ok(found)
}

/// Follows the name of a subvolume.
fn step_into(directory: &Inode, name: &[u8]) -> Result<Inode> {
    match directory.lookup(name)? {
        Some(found) if found.is_subvolume_root() => Ok(found),
        Some(_) => Err(Error::path(name, PathError::NoSubvolume)),
        None => Err(Error::path(name, PathError::NotFound)),
    }
}

/// Follows a path inside a subvolume. Symbolic links are not followed, since only a directory can
/// be looked into.
fn walk(root: &Inode, path: &[u8]) -> Result<Inode> {
    let mut at = root.clone();
    for name in path.split(|byte| *byte == b'/') {
        at = step(&at, path, name)?;
    }
    Ok(at)
}
