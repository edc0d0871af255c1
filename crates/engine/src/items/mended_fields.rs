//! Sets single fields that the reader refuses, so that an item keeps all its others.
//!
//! Owns [`FieldMender`]. A field gets the value that it must have by the item, by other items or by
//! the block that it names; else the nearest value that the reader accepts. Where bytes could mean
//! several things, such as an unknown compression, the item is left as it is.
//!
//! Locks: none. Userspace counterparts: `repair_imode`, `repair_inode_gen`, `repair_root_items`
//! (`check/main.c` of btrfs-progs).

use super::Items;
use super::blank_inode::{blank_inode, kind_in};
use papilio_format::items::dir_item::{DirEntries, DirItemHeader};
use papilio_format::items::file_extent::{ExtentPart, FileExtentHeader, FileExtentItem};
use papilio_format::items::file_type::FileType;
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, MODE_KIND_MASK, MODE_PERMISSION_MASK};
use papilio_format::items::inode_ref::InodeRefs;
use papilio_format::items::root::{RawRootItem, RootFlags};
use papilio_format::{Corrupt, Generation, Geometry, ItemType, Key, LogicalAddress, TreeId, objectid};

/// A reader of the items and blocks around a leaf.
pub trait Around {
    /// Returns an item of another leaf.
    fn item(&self, tree: TreeId, key: &Key) -> Option<Vec<u8>>;

    /// Returns the items of other leaves in a range of keys.
    fn items(&self, tree: TreeId, first: &Key, last: &Key) -> Items;

    /// Returns generation and level of a block.
    fn block(&self, address: LogicalAddress) -> Option<(Generation, u8)>;
}

/// A leaf of which nothing else can be read.
pub(crate) struct Alone;

impl Around for Alone {
    fn item(&self, _tree: TreeId, _key: &Key) -> Option<Vec<u8>> {
        None
    }

    fn items(&self, _tree: TreeId, _first: &Key, _last: &Key) -> Items {
        Items::new()
    }

    fn block(&self, _address: LogicalAddress) -> Option<(Generation, u8)> {
        None
    }
}

/// An item with a field that was set.
pub(super) struct Mended {
    pub(super) data: Vec<u8>,
    /// The name of the field.
    pub(super) field: &'static str,
}

/// Mends fields of the items of one leaf.
pub(super) struct FieldMender<'a> {
    pub(super) around: &'a dyn Around,
    pub(super) tree: TreeId,
    /// The first key of the next leaf.
    pub(super) bound: Option<Key>,
    pub(super) geometry: Geometry,
}

impl FieldMender<'_> {
    /// Returns the item in `slot` with the field set that `reason` names, or `None` if nothing says
    /// which value it had.
    pub(super) fn mend(&self, items: &Items, slot: usize, reason: &Corrupt) -> Option<Mended> {
        let Corrupt::Field { field, .. } = *reason else { return None };
        let (key, old) = &items[slot];
        let data = match key.item_type {
            ItemType::INODE_ITEM => self.inode(items, key, old, field)?,
            ItemType::ROOT_ITEM => self.root(old, field)?,
            ItemType::EXTENT_DATA => extent(old, field, self.geometry.sector_size)?,
            ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
                self.entry(items, key, old, field)?
            }
            _ => return None,
        };
        (data != *old).then_some(Mended { data, field })
    }

    /// Returns the generation, if it is not later than the last commit.
    fn not_later(&self, generation: Generation) -> Generation {
        Generation(generation.0.min(self.geometry.generation.0))
    }

    fn inode(&self, items: &Items, key: &Key, data: &[u8], field: &str) -> Option<Vec<u8>> {
        let mut inode = InodeItem::parse(data).ok()?;
        match field {
            "generation" => inode.generation = self.not_later(inode.generation),
            "transid" => inode.transid = self.not_later(inode.transid),
            "mode" => inode.mode = self.mode(items, key, inode.mode)?,
            "nlink" => inode.nlink = 1,
            "flags" => {
                inode.flags = inode.flags.intersection(InodeFlags::KNOWN.union(InodeFlags::KNOWN_RO));
            }
            "size" => {
                let (_, blank) = blank_inode(key.objectid, items, self.geometry.generation);
                inode.size = InodeItem::parse(&blank).ok()?.size;
            }
            _ => return None,
        }
        Some(inode.to_bytes().to_vec())
    }

    /// Returns a mode with a kind: that of the directory entry, else the one that the inode's items
    /// show. Permissions stay, unless all of the mode was lost.
    fn mode(&self, items: &Items, key: &Key, mode: u32) -> Option<u32> {
        // Unknown bits beside a sound kind.
        if FileKind::from_mode(mode).is_some() {
            return Some(mode & (MODE_KIND_MASK | MODE_PERMISSION_MASK));
        }
        let (_, blank) = blank_inode(key.objectid, items, self.geometry.generation);
        let blank = InodeItem::parse(&blank).ok()?;
        let kind = match self.tree {
            // Caches of free space; and the root tree's directory, which has entries.
            objectid::ROOT_TREE if key.objectid != objectid::ROOT_TREE_DIR => FileKind::Regular,
            objectid::ROOT_TREE => FileKind::Directory,
            _ => self.named_kind(items, key.objectid).or(blank.kind())?,
        };
        let permissions = match (mode & MODE_PERMISSION_MASK, kind) {
            (0, FileKind::Directory) => 0o700,
            (0, FileKind::Symlink) => 0o777,
            (0, _) => 0o600,
            (permissions, _) => permissions,
        };
        Some(kind.mode_bits() | permissions)
    }

    /// Returns the kind that a directory entry of an inode has, in this leaf or elsewhere.
    fn named_kind(&self, items: &Items, number: u64) -> Option<FileKind> {
        let of_inode = |key: &Key| key.objectid == number && key.item_type == ItemType::INODE_REF;
        // The inode's items may go on in the next leaf.
        let last = Key::new(number, ItemType::INODE_REF, u64::MAX);
        let next = self.bound.filter(|bound| bound.objectid == number && *bound <= last);
        let next = next.map(|bound| self.around.items(self.tree, &bound, &last)).unwrap_or_default();
        for (key, data) in items.iter().chain(&next).filter(|(key, _)| of_inode(key)) {
            for found in InodeRefs::parse(data).into_iter().flatten() {
                let index = Key::new(key.offset, ItemType::DIR_INDEX, found.index);
                let entry = self.item(items, &index).unwrap_or_default();
                let kind = kind_in(&entry, found.name);
                if kind.is_some() {
                    return kind;
                }
            }
        }
        None
    }

    /// Returns an item of the tree, in this leaf or in one that can be read.
    fn item(&self, items: &Items, key: &Key) -> Option<Vec<u8>> {
        match items.iter().find(|(other, _)| other == key) {
            Some((_, data)) => Some(data.clone()),
            None => self.around.item(self.tree, key),
        }
    }

    fn root(&self, data: &[u8], field: &str) -> Option<Vec<u8>> {
        // Root items of old file systems are shorter.
        let mut padded = data.to_vec();
        padded.resize(RawRootItem::SIZE, 0);
        let mut raw = RawRootItem::parse(&padded).ok()?;
        match field {
            "generation" | "level" => {
                // The block that the item names has both.
                let (generation, level) = match self.around.block(raw.address) {
                    Some(found) => found,
                    None if field == "generation" => (raw.generation, raw.level),
                    None => return None,
                };
                let was_current = raw.generation_v2 == raw.generation;
                raw.generation = self.not_later(generation);
                raw.level = level;
                if was_current {
                    raw.generation_v2 = raw.generation;
                }
            }
            "generation_v2" => raw.generation_v2 = raw.generation,
            "last_snapshot" => raw.last_snapshot = self.not_later(raw.last_snapshot),
            // A deletion begins again.
            "drop_level" => (raw.drop_level, raw.drop_progress) = (0, Key::MIN),
            "flags" => {
                let known = RootFlags::RDONLY.union(RootFlags::DEAD);
                raw.flags = RootFlags::from_bits_retain(raw.flags.bits() & known.bits());
            }
            _ => return None,
        }
        let mut bytes = raw.to_bytes().to_vec();
        bytes.truncate(data.len());
        Some(bytes)
    }

    /// Mends the header of an entry that is alone in its item.
    fn entry(&self, items: &Items, key: &Key, data: &[u8], field: &str) -> Option<Vec<u8>> {
        let (mut header, rest) = DirItemHeader::parse_prefix(data).ok()?;
        let is_attribute = key.item_type == ItemType::XATTR_ITEM;
        match field {
            // With the type of a file, the value of an attribute is one length too many.
            "file_type" | "data_length" if is_attribute => header.file_type = FileType::Xattr as u8,
            "file_type" => header.file_type = self.entry_type(items, &header.location)? as u8,
            "data_length" if rest.len() == usize::from(header.name_length) => {
                header.data_length = 0;
            }
            "location.objectid" if is_attribute => header.location = Key::MIN,
            _ => return None,
        }
        let mut data = data.to_vec();
        data[..DirItemHeader::SIZE].copy_from_slice(&header.to_bytes());
        DirEntries::parse(&data).ok().filter(|entries| entries.clone().count() == 1)?;
        Some(data)
    }

    /// Returns the type of the inode or subvolume that an entry leads to.
    fn entry_type(&self, items: &Items, location: &Key) -> Option<FileType> {
        if location.item_type == ItemType::ROOT_ITEM {
            return Some(FileType::Directory);
        }
        let inode = InodeItem::parse(&self.item(items, location)?).ok()?;
        inode.kind().map(FileKind::file_type)
    }
}

fn extent(data: &[u8], field: &str, sector_size: u32) -> Option<Vec<u8>> {
    let (mut header, rest) = FileExtentHeader::parse_prefix(data).ok()?;
    let part = || {
        let part = ExtentPart::parse(rest).ok().filter(|_| data.len() == FileExtentItem::SIZE)?;
        (part.disk_length.is_multiple_of(sector_size.into()) && part.disk_length > 0).then_some(part)
    };
    match (field, header.extent_type, header.compression) {
        ("encryption", _, _) => header.encryption = 0,
        ("ram_bytes", 0, 0) => header.ram_bytes = rest.len() as u64,
        ("ram_bytes", 1 | 2, 0) => header.ram_bytes = part()?.disk_length,
        _ => return None,
    }
    let mut data = data.to_vec();
    data[..FileExtentHeader::SIZE].copy_from_slice(&header.to_bytes());
    Some(data)
}
