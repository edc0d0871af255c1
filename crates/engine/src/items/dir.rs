//! Directories of a subvolume: look-up by name, and entries in order.
//!
//! A look-up goes by the name's hash in the key of a DIR_ITEM, which names of equal hash share.
//! Listing goes by DIR_INDEX, in the order of creation.
//!
//! Kernel counterparts: `btrfs_lookup_dir_item`, `btrfs_match_dir_item_name`
//! (`fs/btrfs/dir-item.c`), `btrfs_real_readdir` (`fs/btrfs/inode.c`).

use crate::btree::{Item, Tree};
use crate::errors::Result;
use crate::items::item_error;
use papilio_format::checksum::name_hash;
use papilio_format::items::dir_item::{DirEntries, FileType};
use papilio_format::{InodeNumber, ItemType, Key, TreeId};

/// The inode or subvolume that a directory entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryTarget {
    /// An inode of the same subvolume.
    Inode(InodeNumber),
    /// The root directory of another subvolume.
    Subvolume(TreeId),
}

impl EntryTarget {
    /// The target that an entry's location key names.
    #[doc(hidden)]
    pub fn of(location: &Key) -> Self {
        if location.item_type == ItemType::ROOT_ITEM {
            EntryTarget::Subvolume(TreeId(location.objectid))
        } else {
            EntryTarget::Inode(InodeNumber(location.objectid))
        }
    }
}

/// An entry that was looked up by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundEntry {
    /// The inode or subvolume that the entry names.
    pub target: EntryTarget,
    pub(crate) file_type: FileType,
}

/// Looks up the entry `name` of a directory.
///
/// # Errors
/// A tree block that cannot be read.
pub fn look_up(tree: &Tree, directory: InodeNumber, name: &[u8]) -> Result<Option<FoundEntry>> {
    let key = Key::new(directory.0, ItemType::DIR_ITEM, name_hash(name));
    let Some(item) = tree.get(&key)? else { return Ok(None) };
    let mut entries = entries_of(tree, &item)?;
    let found = entries.find(|entry| entry.name == name);
    Ok(found.map(|entry| FoundEntry { target: EntryTarget::of(&entry.location), file_type: entry.file_type }))
}

/// Parses the directory entries in an item.
///
/// # Errors
/// [`crate::Error::Item`] if they cannot be parsed.
pub fn entries_of<'a>(tree: &Tree, item: &'a Item) -> Result<DirEntries<'a>> {
    DirEntries::parse(item.data()).map_err(|reason| item_error(tree, item, reason))
}

/// The key of a directory's first entry whose index is `index` or larger.
pub fn index_first_key(directory: InodeNumber, index: u64) -> Key {
    Key::new(directory.0, ItemType::DIR_INDEX, index)
}

/// The largest key that an entry of a directory can have.
pub fn index_last_key(directory: InodeNumber) -> Key {
    index_first_key(directory, u64::MAX)
}
