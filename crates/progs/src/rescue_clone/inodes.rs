//! The inode whose items are being copied.
//!
//! Owns [`Current`]. Where the leaf with an inode item is lost, items of the inode may be left in
//! the next one. Without an inode item before them no leaf would be valid, so one is made.
//!
//! **Invariant**: a made inode has the size, the space and the number of names that its items say.

use papilio_engine::btree::Tree;
use papilio_engine::items::inode::first_name;
use papilio_format::items::dir_item::{DirEntries, FileType};
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, Timespec};
use papilio_format::items::inode_ref::{InodeExtrefs, InodeRefs};
use papilio_format::{FileOffset, Generation, InodeNumber, ItemType, Key};

/// An inode, as far as its items were copied.
#[derive(Clone, Copy)]
pub(super) struct Current {
    pub(super) number: InodeNumber,
    pub(super) item: Option<InodeItem>,
    /// Whether the item was made.
    pub(super) is_made: bool,
    /// Bytes of data that the clone lacks.
    pub(super) less: u64,
}

impl Current {
    pub(super) fn new(number: InodeNumber) -> Self {
        Self { number, item: None, is_made: false, less: 0 }
    }

    /// Makes the inode item before the first other item that is left, at `key`.
    pub(super) fn make(&mut self, source: &Tree, key: &Key) -> InodeItem {
        let kind = match kind_by_name(source, self.number) {
            _ if is_entry(key) => FileKind::Directory,
            kind => kind.unwrap_or(FileKind::Regular),
        };
        let permissions = match kind {
            FileKind::Directory => 0o700,
            FileKind::Symlink => 0o777,
            _ => 0o600,
        };
        let now = Timespec::default();
        let item = InodeItem {
            generation: Generation(1),
            transid: Generation(1),
            size: 0,
            nbytes: 0,
            block_group: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            mode: kind.mode_bits() | permissions,
            rdev: 0,
            flags: InodeFlags::empty(),
            sequence: 0,
            reserved: [0; 4],
            atime: now,
            ctime: now,
            mtime: now,
            otime: now,
        };
        (self.item, self.is_made) = (Some(item), true);
        item
    }

    /// Whether an item belongs to an inode of this kind.
    pub(super) fn can_have(&self, key: &Key) -> bool {
        let Some(item) = self.item else { return true };
        let is_directory = item.kind() == Some(FileKind::Directory);
        match key.item_type {
            // A made inode becomes a directory.
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => is_directory || self.is_made,
            ItemType::EXTENT_DATA => !is_directory,
            _ => true,
        }
    }

    /// Counts an item of a made inode.
    pub(super) fn count(&mut self, key: &Key, data: &[u8], sector_size: u32) {
        let Some(item) = self.item.as_mut().filter(|_| self.is_made) else { return };
        if is_entry(key) && item.kind() != Some(FileKind::Directory) {
            // Nothing said so before.
            item.mode = FileKind::Directory.mode_bits() | 0o700;
        }
        match key.item_type {
            ItemType::INODE_REF => {
                item.nlink += InodeRefs::parse(data).map_or(0, |names| names.count() as u32);
            }
            ItemType::INODE_EXTREF => {
                item.nlink += InodeExtrefs::parse(data).map_or(0, |names| names.count() as u32);
            }
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => {
                let names = DirEntries::parse(data).into_iter().flatten();
                item.size += names.map(|entry| entry.name.len() as u64).sum::<u64>();
            }
            ItemType::EXTENT_DATA => {
                let Ok(extent) = FileExtentItem::parse(data) else { return };
                match extent.content {
                    FileExtentContent::Inline(_) => {
                        item.nbytes += extent.ram_bytes;
                        item.size = extent.ram_bytes;
                    }
                    FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) => {
                        item.nbytes += if part.is_hole() { 0 } else { part.length };
                        let end = extent.end(FileOffset(key.offset), sector_size);
                        item.size = item.size.max(end.map_or(0, |end| end.0));
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns the inode item, if it is not as it was copied.
    pub(super) fn corrected(&self) -> Option<InodeItem> {
        let mut item = self.item.filter(|_| self.is_made || self.less > 0)?;
        item.nbytes = item.nbytes.saturating_sub(self.less);
        Some(item)
    }
}

fn is_entry(key: &Key) -> bool {
    matches!(key.item_type, ItemType::DIR_ITEM | ItemType::DIR_INDEX)
}

/// Returns the kind that the entry of an inode's name says.
fn kind_by_name(tree: &Tree, number: InodeNumber) -> Option<FileKind> {
    let name = first_name(tree, number).ok().flatten()?;
    let key = Key::new(name.parent.0, ItemType::DIR_INDEX, name.index);
    let entry = tree.get(&key).ok().flatten()?;
    let kind = DirEntries::parse(entry.data()).ok()?.next()?.file_type;
    Some(match kind {
        FileType::Regular => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::Symlink => FileKind::Symlink,
        _ => return None,
    })
}
