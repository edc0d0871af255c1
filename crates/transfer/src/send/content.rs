//! The content of an inode: attributes, data, and the commands that bring the receiver to them.
//!
//! Owns [`Sender::send_file`], [`Sender::send_attributes`] and the comparison of extents. A range
//! is sent if the parent has other content there: as a clone, as the compressed extent lies, or as
//! plain bytes. Holes are sent where the parent has data: as a hole in protocol 2, as zeros in
//! protocol 1. Preallocated space is sent as a hole.
//!
//! Kernel counterparts: `process_extent`, `send_extent_data`, `finish_inode_if_needed`
//! (`fs/btrfs/send.c`).

use super::compare::Differs;
use super::id::Id;
use super::sender::Sender;
use papilio_engine::data::extent_map::{DiskExtent, Extent, ExtentKind, FileExtents};
use papilio_engine::data::number_of_compression;
use papilio_engine::errors::Result;
use papilio_engine::items::inode;
use papilio_engine::items::xattr::{self, Xattr};
use papilio_format::checksum::name_hash;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem};
use papilio_format::send_stream::{Command, EncodedWrite, Protocol, WRITE_SIZE};
use papilio_format::{FileOffset, InodeNumber};
use papilio_fs::File;
use std::ops::Range;

/// Most bytes of file data in a command of protocol 2.
const WRITE_SIZE_V2: u64 = 128 << 10;
/// Most bytes of data that are read at once.
const READ_SIZE: u64 = 1 << 20;
/// The attribute that holds a program's capabilities.
const CAPABILITIES: &[u8] = b"security.capability";
/// `FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE`.
const PUNCH_HOLE: u32 = 3;

/// Whether inodes inherit an attribute from their directory, in this or another form.
pub(super) fn is_inherited(name: &[u8]) -> bool {
    matches!(name, b"btrfs.compression" | b"system.posix_acl_default")
}

/// An inode whose content is sent.
pub(super) struct Content<'a> {
    pub(super) number: u64,
    pub(super) item: &'a InodeItem,
    /// The inode in the parent, if it lasts.
    pub(super) before: Option<InodeItem>,
    pub(super) differs: Differs,
    /// The path at this point.
    pub(super) path: Vec<u8>,
}

impl Sender<'_> {
    /// Sends the data of a regular file.
    pub(super) fn send_file(&mut self, content: &Content<'_>) -> Result<()> {
        let (old_size, new_size) = (content.before.map_or(0, |item| item.size), content.item.size);
        let mut transfer = Transfer { size: old_size, old_size, file: None, plain: Plain::default() };
        if content.differs.extents || old_size != new_size {
            self.send_extents(content, &mut transfer)?;
        }
        if transfer.size != new_size {
            self.out.put(&Command::Truncate { path: content.path.clone(), size: new_size })?;
        }
        Ok(())
    }

    fn send_extents(&mut self, content: &Content<'_>, transfer: &mut Transfer) -> Result<()> {
        let (sector, number) = (self.sector_size, InodeNumber(content.number));
        let new_tree = self.new.tree.clone();
        let old_tree = self.old.as_ref().map(|old| old.tree.clone());
        let end = content.item.size;
        let walk = |tree, end| FileExtents::new(tree, number, sector, FileOffset(0), FileOffset(end));
        let mut new = Extents::new(walk(&new_tree, end))?;
        let mut old = match old_tree.as_ref().filter(|_| content.before.is_some()) {
            Some(tree) => Extents::new(walk(tree, transfer.old_size.min(end)))?,
            None => Extents::none(),
        };
        let mut at = 0;
        while at < end {
            new.seek(at)?;
            old.seek(at)?;
            let until = new.end(at).min(old.end(at)).min(end);
            if !same(new.at(at), old.at(at)) {
                let piece = new.at(at);
                if !self.send_piece(content, &piece, at..until, transfer)?
                    && !transfer.plain.append(at..until, new.starts(at))
                {
                    self.send_plain(content, transfer)?;
                    transfer.plain.append(at..until, true);
                }
            }
            at = until;
        }
        self.send_plain(content, transfer)
    }

    /// Sends a range without reading its data, if that is possible. Returns whether it was.
    fn send_piece(
        &mut self,
        content: &Content<'_>,
        piece: &Piece<'_>,
        range: Range<u64>,
        transfer: &mut Transfer,
    ) -> Result<bool> {
        let path = content.path.clone();
        let (offset, length) = (range.start, range.end - range.start);
        if matches!(piece, Piece::Hole) {
            let Some(size) = range.end.min(transfer.old_size).checked_sub(offset).filter(|size| *size > 0)
            else {
                return Ok(true);
            };
            let hole = if self.no_data {
                Command::UpdateExtent { path, offset, size }
            } else if self.out.protocol() >= Protocol::V2 {
                Command::Fallocate { path, mode: PUNCH_HOLE, offset, size }
            } else {
                return Ok(false);
            };
            self.send_plain(content, transfer)?;
            self.out.put(&hole)?;
            return Ok(true);
        }
        if self.no_data {
            self.out.put(&Command::UpdateExtent { path, offset, size: length })?;
            transfer.size = transfer.size.max(range.end);
            return Ok(true);
        }
        let clone = match piece {
            Piece::Disk(disk) => self.find_clone(content, *disk, &range, transfer.size)?,
            _ => None,
        };
        let command = match clone {
            Some(clone) => clone,
            None => match self.encoded_part(content, piece, &range) {
                Some((write, stored)) => return self.send_encoded(content, piece, write, stored, transfer),
                None => return Ok(false),
            },
        };
        // A clone inside the file reads what was sent before.
        self.send_plain(content, transfer)?;
        self.out.put(&command)?;
        transfer.size = transfer.size.max(range.end);
        Ok(true)
    }

    /// Sends an extent as it lies. Returns false if it cannot be read so.
    fn send_encoded(
        &mut self,
        content: &Content<'_>,
        piece: &Piece<'_>,
        mut write: EncodedWrite,
        stored: u64,
        transfer: &mut Transfer,
    ) -> Result<bool> {
        let end = write.offset + write.file_length;
        // The receiver may have it. The plain data before it decides that.
        if self.out.skips() {
            self.send_plain(content, transfer)?;
        }
        if self.out.skips() {
            self.out.skip_encoded(&write, stored)?;
            transfer.size = transfer.size.max(end);
            return Ok(true);
        }
        let Some(data) = self.stored(content, piece, stored)? else { return Ok(false) };
        write.data = data;
        self.send_plain(content, transfer)?;
        self.out.put(&Command::EncodedWrite(write))?;
        transfer.size = transfer.size.max(end);
        Ok(true)
    }

    /// Returns the write of an extent as it lies, without its data, and the bytes of its data.
    /// There is one if the extent is compressed, the stream takes such, and the extent has no more
    /// bytes than the range.
    fn encoded_part(
        &self,
        content: &Content<'_>,
        piece: &Piece<'_>,
        range: &Range<u64>,
    ) -> Option<(EncodedWrite, u64)> {
        let (compression, stored, unencoded_length, unencoded_offset) = match piece {
            Piece::Hole => return None,
            Piece::Inline(inline) => {
                (inline.compression, inline.data().len() as u64, inline.ram_bytes, range.start)
            }
            Piece::Disk(disk) => (disk.compression, disk.disk_length, disk.ram_bytes, disk.offset),
        };
        let length = (range.end - range.start).min(unencoded_length.saturating_sub(unencoded_offset));
        if !self.compressed || compression == Compression::None || stored > length {
            return None;
        }
        // The Merkle tree verifies the bytes of the file, not those of its extents.
        if content.item.flags.contains(InodeFlags::VERITY) {
            return None;
        }
        let write = EncodedWrite {
            path: content.path.clone(),
            offset: range.start,
            file_length: length,
            unencoded_length,
            unencoded_offset,
            compression: number_of_compression(compression, self.sector_size),
            encryption: matches!(piece, Piece::Disk(_)).then_some(0),
            data: Vec::new(),
        };
        Some((write, stored))
    }

    /// Reads a compressed extent as it lies. Returns `None` if it cannot be read so.
    fn stored(&self, content: &Content<'_>, piece: &Piece<'_>, stored: u64) -> Result<Option<Vec<u8>>> {
        match piece {
            Piece::Hole => Ok(None),
            Piece::Inline(inline) => Ok(Some(inline.data().to_vec())),
            Piece::Disk(disk) => {
                let mut data = vec![0; stored as usize];
                let flags = content.item.flags;
                let good = self.fs.info.reader.read_stored(flags, disk.disk_address, &mut data)?;
                Ok(good.then_some(data))
            }
        }
    }

    /// Sends the ranges that are collected as plain bytes.
    fn send_plain(&mut self, content: &Content<'_>, transfer: &mut Transfer) -> Result<()> {
        let Some(start) = transfer.plain.start() else { return Ok(()) };
        let file = match &mut transfer.file {
            Some(file) => file,
            none => none.insert(self.fs.inode_at(self.new.tree.id(), InodeNumber(content.number))?.open()?),
        };
        let step = match self.out.protocol() {
            Protocol::V1 => WRITE_SIZE as u64,
            Protocol::V2 => WRITE_SIZE_V2,
        };
        let mut data = Vec::new();
        // The file offsets of `data`.
        let mut read = start..start;
        let end = transfer.plain.end();
        for range in std::mem::take(&mut transfer.plain.ranges) {
            let mut at = range.start;
            while at < range.end {
                let until = range.end.min(at + step);
                if self.out.skips() {
                    self.out.skip_write(&content.path, at, until - at)?;
                    at = until;
                    continue;
                }
                if until > read.end {
                    read = at..end.min(at + READ_SIZE);
                    data.resize((read.end - read.start) as usize, 0);
                    file.read_exact_at(&mut data, at)?;
                }
                let part = (at - read.start) as usize..(until - read.start) as usize;
                let data = data[part].to_vec();
                self.out.put(&Command::Write { path: content.path.clone(), offset: at, data })?;
                at = until;
            }
        }
        transfer.size = transfer.size.max(end);
        Ok(())
    }

    /// Sends owner, mode, flags and capabilities.
    pub(super) fn send_attributes(&mut self, content: &Content<'_>) -> Result<()> {
        let (item, before) = (content.item, content.before);
        let path = || content.path.clone();
        let owned = before.is_some_and(|before| (before.uid, before.gid) == (item.uid, item.gid));
        if !owned {
            self.out.put(&Command::Chown { path: path(), uid: item.uid.into(), gid: item.gid.into() })?;
        }
        // A change of owner removes a file's set-user-ID and set-group-ID bits.
        let is_directory = item.kind() == Some(FileKind::Directory);
        let kept = owned || is_directory || item.permissions() & 0o6000 == 0;
        let same_mode = kept && before.is_some_and(|before| before.mode == item.mode);
        if !same_mode && item.kind() != Some(FileKind::Symlink) {
            self.out.put(&Command::Chmod { path: path(), mode: item.permissions().into() })?;
        }
        // As the kernel, of a new inode none are sent.
        let flagged = before.is_some_and(|before| before.flags != item.flags);
        if flagged && item.kind() != Some(FileKind::Symlink) && self.out.protocol() >= Protocol::V2 {
            self.out.put(&Command::Fileattr { path: path(), attributes: item.flags.bits() })?;
        }
        // Writing and a change of owner remove them, so they come last.
        if let Some(value) = xattr::get(&self.new.tree, InodeNumber(content.number), CAPABILITIES)? {
            self.out.put(&Command::SetXattr { path: path(), name: CAPABILITIES.to_vec(), value })?;
        }
        Ok(())
    }

    /// Sends the times of an inode, which no command after them alters.
    pub(super) fn send_times(&mut self, number: u64) -> Result<()> {
        let Some(item) = inode::inode(&self.new.tree, InodeNumber(number))? else { return Ok(()) };
        let path = self.names.path_of(Id::lasting(number))?;
        self.put_times(path, &item)
    }

    pub(super) fn put_times(&mut self, path: Vec<u8>, item: &InodeItem) -> Result<()> {
        let InodeItem { atime, mtime, ctime, otime, .. } = *item;
        self.out.put(&Command::Utimes { path, atime, mtime, ctime, otime: Some(otime) })
    }

    /// Sends the xattrs that differ, in the order of their keys.
    pub(super) fn send_xattrs(&mut self, content: &Content<'_>) -> Result<()> {
        let number = InodeNumber(content.number);
        let postponed = |sender: &Self, name: &[u8]| {
            content.number == Id::ROOT.number && sender.names.creates_any() && is_inherited(name)
        };
        let before: Vec<Xattr> = match self.old.as_ref().filter(|_| content.before.is_some()) {
            Some(old) => xattr::list(&old.tree, number)?,
            None => Vec::new(),
        };
        let after = xattr::list(&self.new.tree, number)?;
        let gone = before.iter().filter(|old| after.iter().all(|new| new.name != old.name));
        let set = after.iter().filter(|new| new.name != CAPABILITIES && !before.contains(new));
        let gone = gone.map(|old| (name_hash(&old.name), true, old));
        let mut changes: Vec<_> = gone.chain(set.map(|new| (name_hash(&new.name), false, new))).collect();
        changes.sort_by_key(|(hash, gone, _)| (*hash, *gone));
        for (_, gone, Xattr { name, value }) in changes {
            if postponed(self, name) {
                continue;
            }
            let (path, name) = (content.path.clone(), name.clone());
            self.out.put(&if gone {
                Command::RemoveXattr { path, name }
            } else {
                Command::SetXattr { path, name, value: value.clone() }
            })?;
        }
        Ok(())
    }
}

/// The data of a file on its way.
struct Transfer {
    /// The file's size at the receiver, and that in the parent, in bytes.
    size: u64,
    old_size: u64,
    /// The file, once bytes are read from it.
    file: Option<File>,
    plain: Plain,
}

/// Adjacent ranges that are read together. Each is sent by itself, as they are extents.
#[derive(Debug, Default)]
struct Plain {
    ranges: Vec<Range<u64>>,
}

impl Plain {
    fn start(&self) -> Option<u64> {
        Some(self.ranges.first()?.start)
    }

    fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |range| range.end)
    }

    /// Adds a range, which starts an extent or continues one. Returns whether it is adjacent and
    /// the whole is small enough.
    fn append(&mut self, range: Range<u64>, starts: bool) -> bool {
        let Some(start) = self.start() else {
            self.ranges.push(range);
            return true;
        };
        if self.end() != range.start || range.end - start > READ_SIZE {
            return false;
        }
        match self.ranges.last_mut() {
            Some(last) if !starts => last.end = range.end,
            _ => self.ranges.push(range),
        }
        true
    }
}

/// A part of a file's content.
#[derive(Debug)]
enum Piece<'a> {
    Hole,
    Inline(&'a papilio_engine::data::extent_map::InlineExtent),
    Disk(DiskExtent),
}

fn same(a: Piece<'_>, b: Piece<'_>) -> bool {
    match (a, b) {
        (Piece::Hole, Piece::Hole) => true,
        (Piece::Inline(a), Piece::Inline(b)) => {
            (a.ram_bytes, a.compression, a.data()) == (b.ram_bytes, b.compression, b.data())
        }
        (Piece::Disk(a), Piece::Disk(b)) => a == b,
        _ => false,
    }
}

/// The extents of a file, one at a time.
struct Extents<'a> {
    rest: Option<FileExtents<'a>>,
    current: Option<Extent>,
}

impl<'a> Extents<'a> {
    fn new(mut extents: FileExtents<'a>) -> Result<Self> {
        let current = extents.next().transpose()?;
        Ok(Self { rest: Some(extents), current })
    }

    const fn none() -> Self {
        Self { rest: None, current: None }
    }

    /// Moves to the extent that contains `at`, or past the last one.
    fn seek(&mut self, at: u64) -> Result<()> {
        while self.current.as_ref().is_some_and(|extent| extent.end.0 <= at) {
            self.current = self.rest.as_mut().and_then(Iterator::next).transpose()?;
        }
        Ok(())
    }

    /// Returns where the content at `at` ends.
    fn end(&self, at: u64) -> u64 {
        match &self.current {
            Some(extent) if extent.start.0 > at => extent.start.0,
            Some(extent) => extent.end.0,
            None => u64::MAX,
        }
    }

    /// Whether an extent starts at `at`.
    fn starts(&self, at: u64) -> bool {
        self.current.as_ref().is_some_and(|extent| extent.start.0 == at)
    }

    fn at(&self, at: u64) -> Piece<'_> {
        match &self.current {
            Some(extent) if extent.start.0 <= at => match &extent.kind {
                ExtentKind::Hole | ExtentKind::Prealloc(_) => Piece::Hole,
                ExtentKind::Inline(inline) => Piece::Inline(inline),
                ExtentKind::Regular(disk) => Piece::Disk(disk.advanced(at - extent.start.0)),
            },
            _ => Piece::Hole,
        }
    }
}
