//! All references to an extent, and the extents of a range, as the extent tree has them.
//!
//! Owns [`ExtentRefs`] and [`Transactions::extents_in`]. Delayed references do not count, so that a
//! caller who acts on them makes sure that there are none.
//!
//! Locks: none.
//!
//! Kernel counterpart: `btrfs_find_all_leafs`, `add_inline_refs`, `add_keyed_refs`
//! (`fs/btrfs/backref.c`).

use super::delayed_refs::{RefKind, Reference};
use super::transaction::Transactions;
use crate::btree::{Item, Tree};
use crate::errors::{Error, Result};
use papilio_format::items::back_ref::{BackRef, KeyedRefs};
use papilio_format::items::extent::{ExtentFlags, ExtentHeader, ExtentItem};
use papilio_format::{Corrupt, ItemType, Key, LogicalAddress, TreeId, objectid};
use std::ops::Range;

/// An extent, and everything that refers to it.
#[derive(Clone, Debug)]
pub struct ExtentRefs {
    /// The logical address of its first byte.
    pub address: LogicalAddress,
    /// Its length in bytes.
    pub length: u64,
    /// Data, or a tree block with its level.
    pub(crate) kind: RefKind,
    /// Reference count, generation and flags.
    pub(super) header: ExtentHeader,
    /// The tree that data is charged to by simple quotas.
    pub(super) owner: Option<TreeId>,
    /// Each reference and its count.
    pub refs: Vec<(Reference, u32)>,
}

impl ExtentRefs {
    /// Whether it is file data.
    pub fn is_data(&self) -> bool {
        self.kind == RefKind::Data
    }

    /// Whether a tree block's references to its children are counted by its address.
    pub(super) fn is_full(&self) -> bool {
        self.header.flags.contains(ExtentFlags::FULL_BACKREF)
    }

    /// Reads the item of an extent, and the keyed references that follow it.
    fn of(tree: &Tree, item: &Item, node_size: u64) -> Result<Self> {
        let key = item.key;
        let fault = |key: Key| move |reason| Error::Item { tree: objectid::EXTENT_TREE, key, reason };
        let parsed = ExtentItem::parse(key.item_type, item.data()).map_err(fault(key))?;
        let (kind, length) = match (parsed.tree_block, key.item_type) {
            (_, ItemType::METADATA_ITEM) => {
                let level = u8::try_from(key.offset).map_err(|_| {
                    fault(key)(Corrupt::field("extent", "level", key.offset, "at most 7 is allowed"))
                })?;
                (RefKind::TreeBlock { level }, node_size)
            }
            (Some(block), _) => (RefKind::TreeBlock { level: block.level }, key.offset),
            (None, _) => (RefKind::Data, key.offset),
        };
        let address = LogicalAddress(key.objectid);
        let (mut refs, mut owner) = (Vec::new(), None);
        let mut add = |found: BackRef| {
            if let BackRef::Owner { root } = found {
                owner = Some(root);
            }
            refs.extend(Reference::of(&found).map(|reference| (reference, found.count())));
        };
        for found in parsed.inline_refs() {
            add(found.map_err(fault(key))?);
        }
        let first = Key::new(address.0, ItemType::TREE_BLOCK_REF, 0);
        let last = Key::new(address.0, ItemType::SHARED_DATA_REF, u64::MAX);
        for keyed in tree.range(first..=last) {
            let keyed = keyed?;
            for found in KeyedRefs::parse(&keyed.key, keyed.data()).map_err(fault(keyed.key))? {
                add(found);
            }
        }
        let sum: u64 = refs.iter().map(|&(_, count)| u64::from(count)).sum();
        if sum != parsed.header.refs {
            let why = "the back references are not as many";
            return Err(fault(key)(Corrupt::field("extent", "refs", parsed.header.refs, why)));
        }
        Ok(Self { address, length, kind, header: parsed.header, owner, refs })
    }

    /// Reads the extent at `address`, if there is one.
    pub(super) fn find(tree: &Tree, address: LogicalAddress, node_size: u64) -> Result<Option<Self>> {
        let first = Key::new(address.0, ItemType::EXTENT_ITEM, 0);
        let last = Key::new(address.0, ItemType::METADATA_ITEM, u64::MAX);
        let item = tree.range(first..=last).next().transpose()?;
        item.map(|item| Self::of(tree, &item, node_size)).transpose()
    }
}

impl Transactions {
    /// Returns the first extents that begin in `range` and have items in the extent tree: at most
    /// `most`, and of `most_bytes` bytes or one extent.
    ///
    /// # Errors
    /// A block or an item of the extent tree that cannot be read.
    pub fn extents_in(
        &self,
        range: &Range<LogicalAddress>,
        most: usize,
        most_bytes: u64,
    ) -> Result<Vec<ExtentRefs>> {
        let tree = self.live.get(objectid::EXTENT_TREE)?.tree();
        let first = Key::new(range.start.0, ItemType::EXTENT_ITEM, 0);
        let last = Key::new(range.end.0.saturating_sub(1), ItemType::METADATA_ITEM, u64::MAX);
        let (mut found, mut bytes) = (Vec::new(), 0);
        for item in tree.range(first..=last) {
            let item = item?;
            if !matches!(item.key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
                continue;
            }
            let extent = ExtentRefs::of(&tree, &item, self.node_size())?;
            bytes += extent.length;
            if found.len() >= most || bytes > most_bytes && !found.is_empty() {
                break;
            }
            found.push(extent);
        }
        Ok(found)
    }
}
