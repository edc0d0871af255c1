//! Inodes of a subvolume: the inode item and the inode's names.
//!
//! Kernel counterparts: `btrfs_lookup_inode` (`fs/btrfs/inode-item.c`), `iterate_inode_refs`
//! (`fs/btrfs/backref.c`).

use crate::btree::Tree;
use crate::errors::Result;
use crate::items::item_error;
use papilio_format::items::inode::{InodeItem, inode_key};
use papilio_format::items::inode_ref::{InodeExtrefs, InodeRefs};
use papilio_format::{InodeNumber, ItemType, Key};

/// Reads the inode `number`; `None` if the tree has none.
///
/// # Errors
/// A tree block that cannot be read, or an item that cannot be parsed.
pub fn inode(tree: &Tree, number: InodeNumber) -> Result<Option<InodeItem>> {
    let Some(item) = tree.get(&inode_key(number))? else { return Ok(None) };
    InodeItem::parse(item.data()).map(Some).map_err(|reason| item_error(tree, &item, reason))
}

/// One name of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeName {
    /// The directory.
    pub parent: InodeNumber,
    /// The entry's index there.
    pub index: u64,
    /// The name.
    pub name: Vec<u8>,
}

/// Calls `visit` with each name of an inode, plain references first, until it returns false.
///
/// # Errors
/// A tree block that cannot be read, or an item that cannot be parsed.
pub fn for_each_name(
    tree: &Tree,
    number: InodeNumber,
    mut visit: impl FnMut(InodeName) -> bool,
) -> Result<()> {
    let first = Key::new(number.0, ItemType::INODE_REF, 0);
    let last = Key::new(number.0, ItemType::INODE_EXTREF, u64::MAX);
    for item in tree.range(first..=last) {
        let item = item?;
        let fault = |reason| item_error(tree, &item, reason);
        if item.key.item_type == ItemType::INODE_REF {
            for entry in InodeRefs::parse(item.data()).map_err(fault)? {
                let name = entry.name.to_vec();
                let parent = InodeNumber(item.key.offset);
                if !visit(InodeName { parent, index: entry.index, name }) {
                    return Ok(());
                }
            }
        } else if item.key.item_type == ItemType::INODE_EXTREF {
            for entry in InodeExtrefs::parse(item.data()).map_err(fault)? {
                let name = entry.name.to_vec();
                if !visit(InodeName { parent: entry.parent, index: entry.index, name }) {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Returns any one name of an inode.
///
/// # Errors
/// A tree block that cannot be read, or an item that cannot be parsed.
pub fn first_name(tree: &Tree, number: InodeNumber) -> Result<Option<InodeName>> {
    let mut found = None;
    for_each_name(tree, number, |name| {
        found = Some(name);
        false
    })?;
    Ok(found)
}
