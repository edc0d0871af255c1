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
use super::names::Id;
use super::sender::Sender;
use crate::data::extent_map::{DiskExtent, Extent, ExtentKind, FileExtents};
use crate::data::number_of_compression;
use crate::errors::Result;
use crate::fs::File;
use crate::items::xattr::{self, Xattr};
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::send_stream::{Command, EncodedWrite, Protocol, WRITE_SIZE};
use papilio_format::{FileOffset, InodeNumber};

/// Most bytes of file data in a command of protocol 2.
const WRITE_SIZE_V2: u64 = 128 << 10;
/// Most bytes of data that are read at once.
const READ_SIZE: u64 = 1 << 20;
/// `FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE`.
const PUNCH_HOLE: u32 = 3;

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
        // The size at the receiver.
        let mut size = old_size;
        if content.differs.extents || old_size != new_size {
            self.send_extents(content, &mut size)?;
        }
        if size != new_size {
            self.out.put(&Command::Truncate { path: content.path.clone(), size: new_size })?;
        }
        Ok(())
    }

    fn send_extents(&mut self, content: &Content<'_>, size: &mut u64) -> Result<()> {
        let (sector, number) = (self.sector_size, InodeNumber(content.number));
        let new_tree = self.new.tree.clone();
        let old_tree = self.old.as_ref().map(|old| old.tree.clone());
        let end = content.item.size;
        let walk = |tree| FileExtents::new(tree, number, sector, FileOffset(0), FileOffset(end));
        let mut new = Extents::new(walk(&new_tree))?;
        let old_size = content.before.map_or(0, |item| item.size);
        let mut old = match old_tree.as_ref().filter(|_| content.before.is_some()) {
            Some(tree) => Extents::new(FileExtents::new(
                tree,
                number,
                sector,
                FileOffset(0),
                FileOffset(old_size.min(end)),
            ))?,
            None => Extents::none(),
        };
        let mut file = None;
        let mut plain = 0..0;
        let mut at = 0;
        while at < end {
            new.seek(at)?;
            old.seek(at)?;
            let until = new.end(at).min(old.end(at)).min(end);
            if !same(new.at(at), old.at(at)) {
                let piece = new.at(at);
                // Clones inside the file must not read what is still to be written.
                let sent = if plain.is_empty() { at } else { plain.start };
                let handled = self.send_piece(content, &piece, at..until, [old_size, sent], size)?;
                if handled {
                    self.send_plain(content, &mut file, std::mem::take(&mut plain), size)?;
                } else if plain.end == at && !plain.is_empty() && until - plain.start <= READ_SIZE {
                    plain.end = until;
                } else {
                    self.send_plain(content, &mut file, std::mem::replace(&mut plain, at..until), size)?;
                }
            }
            at = until;
        }
        self.send_plain(content, &mut file, plain, size)
    }

    /// Sends a range without reading its data, if that is possible. Returns whether it was.
    fn send_piece(
        &mut self,
        content: &Content<'_>,
        piece: &Piece<'_>,
        range: std::ops::Range<u64>,
        [old_size, sent]: [u64; 2],
        size: &mut u64,
    ) -> Result<bool> {
        let path = || content.path.clone();
        let length = range.end - range.start;
        let disk = match piece {
            Piece::Hole => {
                let end = range.end.min(old_size);
                if end <= range.start {
                    return Ok(true);
                }
                if self.no_data {
                    self.out.put(&Command::UpdateExtent {
                        path: path(),
                        offset: range.start,
                        size: end - range.start,
                    })?;
                    return Ok(true);
                }
                if self.out.protocol() < Protocol::V2 {
                    return Ok(false);
                }
                self.out.put(&Command::Fallocate {
                    path: path(),
                    mode: PUNCH_HOLE,
                    offset: range.start,
                    size: end - range.start,
                })?;
                return Ok(true);
            }
            Piece::Inline(_) => None,
            Piece::Disk(disk) => Some(*disk),
        };
        if self.no_data {
            self.out.put(&Command::UpdateExtent { path: path(), offset: range.start, size: length })?;
            *size = (*size).max(range.end);
            return Ok(true);
        }
        let Some(disk) = disk else { return Ok(false) };
        if self.send_clone(content, disk, &range, sent, *size)? {
            *size = (*size).max(range.end);
            return Ok(true);
        }
        if !self.compressed || disk.compression == Compression::None {
            return Ok(false);
        }
        let mut data = vec![0; disk.disk_length as usize];
        let flags = content.item.flags;
        if !self.fs.info.reader.read_stored(flags, disk.disk_address, &mut data)? {
            return Ok(false);
        }
        self.out.put(&Command::EncodedWrite(EncodedWrite {
            path: path(),
            offset: range.start,
            file_length: length,
            unencoded_length: disk.ram_bytes,
            unencoded_offset: disk.offset,
            compression: number_of_compression(disk.compression, self.sector_size),
            encryption: 0,
            data,
        }))?;
        *size = (*size).max(range.end);
        Ok(true)
    }

    /// Sends a range as plain bytes.
    fn send_plain(
        &mut self,
        content: &Content<'_>,
        file: &mut Option<File>,
        range: std::ops::Range<u64>,
        size: &mut u64,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if file.is_none() {
            *file = Some(self.fs.inode_at(self.new.tree.id(), InodeNumber(content.number))?.open()?);
        }
        let file = file.as_ref().expect("it was opened");
        let step = match self.out.protocol() {
            Protocol::V1 => WRITE_SIZE as u64,
            Protocol::V2 => WRITE_SIZE_V2,
        };
        let mut at = range.start;
        while at < range.end {
            let length = (range.end - at).min(READ_SIZE);
            let mut data = vec![0; length as usize];
            file.read_exact_at(&mut data, at)?;
            for (index, part) in data.chunks(step as usize).enumerate() {
                let offset = at + index as u64 * step;
                self.out.put(&Command::Write { path: content.path.clone(), offset, data: part.to_vec() })?;
            }
            at += length;
        }
        *size = (*size).max(range.end);
        Ok(())
    }

    /// Sends owner, mode, xattrs and times.
    pub(super) fn send_attributes(&mut self, content: &Content<'_>) -> Result<()> {
        let (item, before) = (content.item, content.before);
        let path = || content.path.clone();
        let owned = before.is_some_and(|before| (before.uid, before.gid) == (item.uid, item.gid));
        if !owned {
            self.out.put(&Command::Chown { path: path(), uid: item.uid.into(), gid: item.gid.into() })?;
        }
        let same_mode = owned && before.is_some_and(|before| before.mode == item.mode);
        if !same_mode && item.kind() != Some(FileKind::Symlink) {
            self.out.put(&Command::Chmod { path: path(), mode: item.permissions().into() })?;
        }
        // As the kernel, of a new inode none are sent.
        let flagged = before.is_some_and(|before| before.flags != item.flags);
        if flagged && item.kind() != Some(FileKind::Symlink) && self.out.protocol() >= Protocol::V2 {
            self.out.put(&Command::Fileattr { path: path(), attributes: item.flags.bits() })?;
        }
        let stripped = content.number == Id::ROOT.number && !self.stripped.is_empty();
        if content.differs.xattrs || !same_mode || stripped {
            self.send_xattrs(content, !same_mode)?;
        }
        self.out.put(&Command::Utimes {
            path: path(),
            atime: item.atime,
            mtime: item.mtime,
            ctime: item.ctime,
            otime: Some(item.otime),
        })
    }

    /// Sends the xattrs that differ. A change of owner removes capabilities, and a change of mode
    /// alters access control lists, so `again` sends these once more.
    fn send_xattrs(&mut self, content: &Content<'_>, again: bool) -> Result<()> {
        let number = InodeNumber(content.number);
        let mut before: Vec<Xattr> = match self.old.as_ref().filter(|_| content.before.is_some()) {
            Some(old) => xattr::list(&old.tree, number)?,
            None => Vec::new(),
        };
        if content.number == Id::ROOT.number {
            before.retain(|attribute| !self.stripped.contains(&attribute.name));
        }
        let after = xattr::list(&self.new.tree, number)?;
        for gone in before.iter().filter(|old| after.iter().all(|new| new.name != old.name)) {
            self.out.put(&Command::RemoveXattr { path: content.path.clone(), name: gone.name.clone() })?;
        }
        for Xattr { name, value } in after {
            let repeat = again && (name == b"security.capability" || name.starts_with(b"system.posix_acl_"));
            if !repeat && before.iter().any(|old| old.name == name && old.value == value) {
                continue;
            }
            self.out.put(&Command::SetXattr { path: content.path.clone(), name, value })?;
        }
        Ok(())
    }
}

/// A part of a file's content.
#[derive(Debug)]
enum Piece<'a> {
    Hole,
    Inline(&'a crate::data::extent_map::InlineExtent),
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
