//! The subvolume that a stream is applied to.
//!
//! Owns [`Target`], which applies one command at a time. It keeps the last directory and the last
//! file open, since a stream names them again and again.

use super::parent::find_parent;
use crate::data::decompress;
use crate::errors::{Error, PathError, Result};
use crate::fs::{File, FileSystem, Inode};
use crate::items::xattr_edit::XattrSet;
use crate::namespace::create::{NewInode, NewKind};
use crate::namespace::rename::RenameMode;
use crate::namespace::setattr::{SetAttributes, SetTime};
use papilio_format::items::file_extent::{Compression, MAX_UNCOMPRESSED};
use papilio_format::items::inode::{FileKind, MODE_PERMISSION_MASK};
use papilio_format::send_stream::{Command, EncodedWrite};
use papilio_format::{Generation, TreeId, Uuid};

/// `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE`, `FALLOC_FL_ZERO_RANGE`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// A subvolume that a stream is applied to.
pub(super) struct Target {
    root: Inode,
    /// The UUID of the subvolume at the sender.
    uuid: Uuid,
    directory: Option<(Vec<u8>, Inode)>,
    file: Option<(Vec<u8>, File)>,
}

/// Returns the path that a command is about.
pub(super) fn path_of(command: &Command) -> &[u8] {
    match command {
        Command::Subvol { path, .. }
        | Command::Snapshot { path, .. }
        | Command::Mkfile { path, .. }
        | Command::Mkdir { path, .. }
        | Command::Mknod { path, .. }
        | Command::Mkfifo { path, .. }
        | Command::Mksock { path, .. }
        | Command::Symlink { path, .. }
        | Command::Rename { from: path, .. }
        | Command::Link { path, .. }
        | Command::Unlink { path }
        | Command::Rmdir { path }
        | Command::SetXattr { path, .. }
        | Command::RemoveXattr { path, .. }
        | Command::Write { path, .. }
        | Command::Clone { path, .. }
        | Command::Truncate { path, .. }
        | Command::Chmod { path, .. }
        | Command::Chown { path, .. }
        | Command::Utimes { path, .. }
        | Command::UpdateExtent { path, .. }
        | Command::Fallocate { path, .. }
        | Command::Fileattr { path, .. } => path,
        Command::EncodedWrite(write) => &write.path,
        Command::End => b"",
    }
}

impl Target {
    pub(super) const fn new(root: Inode, uuid: Uuid) -> Self {
        Self { root, uuid, directory: None, file: None }
    }

    pub(super) fn tree(&self) -> TreeId {
        self.root.tree()
    }

    /// Applies one command.
    pub(super) fn apply(&mut self, fs: &FileSystem, command: &Command) -> Result<()> {
        match command {
            Command::Mkfile { path, .. } => self.create(path, NewKind::Regular, 0o600),
            Command::Mkdir { path, .. } => self.create(path, NewKind::Directory, 0o700),
            Command::Mkfifo { path, mode, .. } => self.create(path, NewKind::Fifo, *mode),
            Command::Mksock { path, mode, .. } => self.create(path, NewKind::Socket, *mode),
            Command::Mknod { path, rdev, mode, .. } => self.make_node(path, *rdev, *mode),
            Command::Symlink { path, target, .. } => self.create(path, NewKind::Symlink(target), 0o777),
            Command::Rename { from, to } => self.rename(from, to),
            Command::Link { path, existing } => {
                let target = self.inode(existing)?;
                let (directory, name) = self.parent(path)?;
                directory.hard_link(&target, name)
            }
            Command::Unlink { path } => {
                self.file = None;
                let (directory, name) = self.parent(path)?;
                directory.remove_file(name)
            }
            Command::Rmdir { path } => {
                self.forget();
                let (directory, name) = self.parent(path)?;
                directory.remove_dir(name)
            }
            Command::SetXattr { path, name, value } => {
                self.inode(path)?.set_xattr(name, value, XattrSet::Any)
            }
            Command::RemoveXattr { path, name } => self.inode(path)?.remove_xattr(name),
            Command::Chmod { path, mode } => {
                let mode = Some(*mode as u32 & MODE_PERMISSION_MASK);
                self.inode(path)?.set_attributes(&SetAttributes { mode, ..SetAttributes::default() })
            }
            Command::Chown { path, uid, gid } => {
                let (uid, gid) = (Some(narrow(*uid)?), Some(narrow(*gid)?));
                self.inode(path)?.set_attributes(&SetAttributes { uid, gid, ..SetAttributes::default() })
            }
            Command::Utimes { path, atime, mtime, .. } => {
                let (atime, mtime) = (Some(SetTime::At(*atime)), Some(SetTime::At(*mtime)));
                self.inode(path)?.set_attributes(&SetAttributes { atime, mtime, ..SetAttributes::default() })
            }
            Command::UpdateExtent { .. } | Command::Fileattr { .. } => Ok(()),
            other => self.apply_data(fs, other),
        }
    }

    /// Applies a command about the data of a file.
    fn apply_data(&mut self, fs: &FileSystem, command: &Command) -> Result<()> {
        match command {
            Command::Write { path, offset, data } => {
                fits(*offset, data.len() as u64)?;
                self.file(path)?.write_all_at(data, *offset)
            }
            Command::EncodedWrite(write) => {
                let data = decode(write)?;
                self.file(&write.path)?.write_all_at(&data, write.offset)
            }
            Command::Truncate { path, size } => {
                fits(*size, 0)?;
                self.file(path)?.set_len(*size)
            }
            Command::Fallocate { path, mode, offset, size } => {
                fits(*offset, *size)?;
                let file = self.file(path)?;
                let keep = mode & KEEP_SIZE != 0;
                match mode & !KEEP_SIZE {
                    0 => file.allocate(*offset, *size, keep),
                    PUNCH_HOLE if keep => file.punch_hole(*offset, *size),
                    ZERO_RANGE => file.zero_range(*offset, *size, keep),
                    _ => Err(Error::Invalid(format!("fallocate mode {mode:#x} is not supported"))),
                }
            }
            Command::Clone { offset, length, path, clone_uuid, clone_ctransid, clone_path, clone_offset } => {
                fits(*offset, *length)?;
                fits(*clone_offset, *length)?;
                let source = if *clone_uuid == self.uuid {
                    self.inode(clone_path)?
                } else {
                    let source = find_parent(fs, *clone_uuid, Generation(*clone_ctransid))?;
                    walk(&fs.subvolume_root(source.id)?, clone_path)?
                };
                let source = source.open()?;
                self.file(path)?.clone_range(&source, *clone_offset, *length, *offset)
            }
            other => Err(Error::Invalid(format!("{} in the middle of a subvolume", other.kind()))),
        }
    }

    fn forget(&mut self) {
        self.directory = None;
        self.file = None;
    }

    fn create(&mut self, path: &[u8], kind: NewKind<'_>, mode: u64) -> Result<()> {
        let (directory, name) = self.parent(path)?;
        let new = NewInode::new(kind, mode as u32 & MODE_PERMISSION_MASK);
        directory.create(name, &new).map(drop)
    }

    fn make_node(&mut self, path: &[u8], rdev: u64, mode: u64) -> Result<()> {
        let rdev = narrow(rdev)?;
        // `new_decode_dev` of the kernel.
        let (major, minor) = ((rdev & 0xf_ff00) >> 8, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00));
        let kind = match FileKind::from_mode(mode as u32) {
            Some(FileKind::CharacterDevice) => NewKind::CharacterDevice { major, minor },
            Some(FileKind::BlockDevice) => NewKind::BlockDevice { major, minor },
            _ => return Err(Error::Invalid(format!("mode {mode:o} is not that of a device"))),
        };
        self.create(path, kind, mode)
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        self.forget();
        let (source, name) = self.parent(from)?;
        let (directory, new_name) = self.parent(to)?;
        source.rename(name, &directory, new_name, RenameMode::Replace)?;
        self.forget();
        Ok(())
    }

    /// Returns the directory and the last name of a path.
    fn parent<'p>(&mut self, path: &'p [u8]) -> Result<(Inode, &'p [u8])> {
        let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&path[..0], path),
        };
        if path.starts_with(b"/") {
            return Err(Error::path(path, PathError::InvalidName));
        }
        check(path, name)?;
        if directory.is_empty() {
            return Ok((self.root.clone(), name));
        }
        if let Some((known, inode)) = &self.directory
            && known == directory
        {
            return Ok((inode.clone(), name));
        }
        let inode = walk(&self.root, directory)?;
        self.directory = Some((directory.to_vec(), inode.clone()));
        Ok((inode, name))
    }

    fn inode(&mut self, path: &[u8]) -> Result<Inode> {
        if path.is_empty() {
            return Ok(self.root.clone());
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
}

/// Refuses names that lead elsewhere.
fn check(path: &[u8], name: &[u8]) -> Result<()> {
    if matches!(name, b"" | b"." | b"..") {
        return Err(Error::path(path, PathError::InvalidName));
    }
    Ok(())
}

/// Follows one name inside a subvolume.
fn step(directory: &Inode, path: &[u8], name: &[u8]) -> Result<Inode> {
    check(path, name)?;
    let found = directory.lookup(name)?.ok_or_else(|| Error::path(path, PathError::NotFound))?;
    if found.tree() != directory.tree() || found.is_subvolume_stub() {
        return Err(Error::path(path, PathError::CrossDevice));
    }
    Ok(found)
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

fn narrow(number: u64) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::Invalid(format!("{number} exceeds 32 bits")))
}

/// Refuses ranges that no file can have.
fn fits(offset: u64, length: u64) -> Result<()> {
    match offset.checked_add(length) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(Error::Invalid(format!("{length} bytes at {offset} exceed the largest file"))),
    }
}

/// Returns the bytes that an encoded write puts into the file.
fn decode(write: &EncodedWrite) -> Result<Vec<u8>> {
    let bad = |why: &str| Error::Invalid(format!("encoded write: {why}"));
    fits(write.offset, write.file_length)?;
    let end = write.unencoded_offset.checked_add(write.file_length);
    if end.is_none_or(|end| end > write.unencoded_length) {
        return Err(bad("the range is not inside the extent"));
    }
    if write.encryption != 0 {
        return Err(bad("the encryption is unknown"));
    }
    let (compression, sector) = match write.compression {
        0 => (Compression::None, 4096),
        1 => (Compression::Zlib, 4096),
        2 => (Compression::Zstd, 4096),
        lzo @ 3..=7 => (Compression::Lzo, 4096 << (lzo - 3)),
        _ => return Err(bad("the compression is unknown")),
    };
    if write.unencoded_length > MAX_UNCOMPRESSED && compression != Compression::None {
        return Err(bad("a compressed extent holds 128 KiB at most"));
    }
    let range = write.unencoded_offset as usize..(write.unencoded_offset + write.file_length) as usize;
    if compression == Compression::None {
        return write.data.get(range).map(<[u8]>::to_vec).ok_or_else(|| bad("the data is too short"));
    }
    let mut whole = vec![0; write.unencoded_length as usize];
    decompress(compression, &write.data, &mut whole, sector).map_err(|error| bad(&error.to_string()))?;
    Ok(whole[range].to_vec())
}
