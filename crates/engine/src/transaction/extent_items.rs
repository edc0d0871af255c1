//! Turning delayed references into items of the extent tree.
//!
//! Owns [`ExtentItems`], which compares a head with the extent tree and returns the item changes
//! that make the tree agree, and [`extent_info`], which looks an extent up.
//!
//! **Invariants**
//! - Nothing changes here.
//! - The changes of one head have keys of its extent only, so that the changes of many heads can be
//!   applied in one pass.
//! - Dropping a reference that does not exist is corruption, not a count below zero.
//!
//! Locks: none.
//!
//! Kernel counterparts: `run_one_delayed_ref`, `__btrfs_free_extent`, `alloc_reserved_extent`,
//! `lookup_inline_extent_backref`, `insert_extent_data_ref`, `btrfs_lookup_extent_info`
//! (`fs/btrfs/extent-tree.c`).

use super::delayed_refs::{Head, RefKind, Reference};
use crate::btree::{Change, Tree};
use crate::errors::{Error, Result};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::back_ref::{BackRef, KeyedRefs};
use papilio_format::items::extent::{ExtentFlags, ExtentHeader, ExtentItem, TreeBlockInfo};
use papilio_format::node::{ItemHeader, NodeHeader};
use papilio_format::{Corrupt, Generation, Geometry, ItemType, Key, LogicalAddress, TreeId};
use std::collections::BTreeMap;

/// Most free key offsets between two references whose hashes collided, in an addition.
const LONGEST_GAP: u64 = 1024;

/// An extent's item in the extent tree.
#[derive(Clone, Debug)]
pub(crate) struct ExtentInfo {
    /// The item's key.
    pub(crate) key: Key,
    /// Reference count, generation and flags.
    pub(crate) header: ExtentHeader,
    tree_block: Option<TreeBlockInfo>,
    inline: Vec<BackRef>,
}

impl ExtentInfo {
    /// All references to the extent: those inline in its item, and those with items of their own.
    ///
    /// # Errors
    /// A block or an item that cannot be read.
    pub(super) fn references(&self, tree: &Tree) -> Result<Vec<BackRef>> {
        let mut references = self.inline.clone();
        let count: u64 = references.iter().map(|inline| u64::from(inline.count())).sum();
        if count >= self.header.refs {
            return Ok(references);
        }
        let at = |item_type, offset| Key::new(self.key.objectid, item_type, offset);
        for item in tree.range(at(ItemType::TREE_BLOCK_REF, 0)..=at(ItemType::SHARED_DATA_REF, u64::MAX)) {
            let item = item?;
            let fault = |reason| Error::Item { tree: tree.id(), key: item.key, reason };
            references.extend(KeyedRefs::parse(&item.key, item.data()).map_err(fault)?);
        }
        Ok(references)
    }

    /// A tree block's first key, if its item has it.
    pub(super) fn first_key(&self) -> Option<Key> {
        self.tree_block.as_ref().map(|info| info.first_key)
    }

    /// The number of references of one kind that are inline in the item; others have items of their
    /// own.
    pub(super) fn inline_count(&self, reference: &Reference) -> u64 {
        let of_kind = self.inline.iter().filter(|inline| Reference::of(inline).as_ref() == Some(reference));
        of_kind.map(|inline| u64::from(inline.count())).sum()
    }
}

/// Looks up the item of the extent at `address`.
///
/// # Errors
/// A block or an item that cannot be read.
pub(crate) fn extent_info(
    tree: &Tree,
    address: LogicalAddress,
    length: u64,
    kind: RefKind,
) -> Result<Option<ExtentInfo>> {
    let plain = Key::new(address.0, ItemType::EXTENT_ITEM, length);
    let keys = match kind {
        RefKind::TreeBlock { level } => {
            [Some(Key::new(address.0, ItemType::METADATA_ITEM, level.into())), Some(plain)]
        }
        RefKind::Data => [Some(plain), None],
    };
    for key in keys.into_iter().flatten() {
        if let Some(item) = tree.get(&key)? {
            let fault = |reason| Error::Item { tree: tree.id(), key, reason };
            let parsed = ExtentItem::parse(key.item_type, item.data()).map_err(fault)?;
            let inline = parsed.inline_refs().collect::<Result<Vec<_>, _>>().map_err(fault)?;
            return Ok(Some(ExtentInfo {
                key,
                header: parsed.header,
                tree_block: parsed.tree_block,
                inline,
            }));
        }
    }
    Ok(None)
}

/// The item changes of one head.
#[derive(Debug)]
pub(crate) struct Applied {
    /// The changes, in no particular order.
    pub(crate) changes: Vec<Change>,
    /// Whether the extent lost its last reference.
    pub(crate) removed: bool,
    /// The transaction that allocated the extent.
    pub(crate) generation: Generation,
    /// The tree that data is charged to by simple quotas.
    pub(crate) owner: Option<TreeId>,
}

/// Turns heads into item changes, given the current extent tree.
pub(crate) struct ExtentItems<'a> {
    tree: &'a Tree,
    skinny: bool,
    /// Bytes of an item up to which references are stored inline (`BTRFS_MAX_EXTENT_ITEM_SIZE`).
    inline_limit: usize,
}

/// Changes of the own items of one extent's references.
#[derive(Default)]
struct Planned {
    changes: Vec<Change>,
    /// Whether the last change of a key removes its item. An extent may have a million references.
    removed: BTreeMap<Key, bool>,
}

impl Planned {
    fn push(&mut self, change: Change) {
        self.removed.insert(change.key(), matches!(change, Change::Remove { .. }));
        self.changes.push(change);
    }
}

impl<'a> ExtentItems<'a> {
    /// Reads from `tree`, the extent tree as it is now.
    pub(crate) fn new(tree: &'a Tree, geometry: &Geometry) -> Self {
        let leaf_bytes = geometry.node_size as usize - NodeHeader::SIZE;
        Self {
            tree,
            skinny: geometry.incompat.contains(IncompatFeatures::SKINNY_METADATA),
            inline_limit: (leaf_bytes >> 4) - ItemHeader::SIZE,
        }
    }

    /// Returns the item changes of `head`.
    ///
    /// # Errors
    /// A block that cannot be read; [`Error::MissingItem`] or [`Error::Item`] where the extent tree
    /// contradicts the change.
    pub(crate) fn apply(&self, address: LogicalAddress, head: &Head) -> Result<Applied> {
        if head.is_unchanged() {
            let changes = Vec::new();
            return Ok(Applied { changes, removed: false, generation: head.generation, owner: None });
        }
        if head.new { self.insert(address, head) } else { self.update(address, head) }
    }

    fn insert(&self, address: LogicalAddress, head: &Head) -> Result<Applied> {
        let (key, tree_block, mut flags) = match head.kind {
            RefKind::Data => {
                (Key::new(address.0, ItemType::EXTENT_ITEM, head.length), None, ExtentFlags::DATA)
            }
            RefKind::TreeBlock { level } if self.skinny => {
                let key = Key::new(address.0, ItemType::METADATA_ITEM, level.into());
                (key, None, ExtentFlags::TREE_BLOCK)
            }
            RefKind::TreeBlock { level } => {
                let key = Key::new(address.0, ItemType::EXTENT_ITEM, head.length);
                (key, Some(TreeBlockInfo { first_key: head.first_key, level }), ExtentFlags::TREE_BLOCK)
            }
        };
        if head.full_backref {
            flags |= ExtentFlags::FULL_BACKREF;
        }
        let info = ExtentInfo {
            key,
            header: ExtentHeader { refs: 0, generation: head.generation, flags },
            tree_block,
            inline: match (head.kind, head.owner) {
                (RefKind::Data, Some(root)) => vec![BackRef::Owner { root }],
                _ => Vec::new(),
            },
        };
        self.change(info, head)
    }

    fn update(&self, address: LogicalAddress, head: &Head) -> Result<Applied> {
        let Some(mut info) = extent_info(self.tree, address, head.length, head.kind)? else {
            let key = Key::new(address.0, ItemType::EXTENT_ITEM, head.length);
            return Err(Error::MissingItem { tree: self.tree.id(), key, what: "an extent that is in use" });
        };
        if head.full_backref {
            info.header.flags |= ExtentFlags::FULL_BACKREF;
        }
        self.change(info, head)
    }

    fn change(&self, mut info: ExtentInfo, head: &Head) -> Result<Applied> {
        let owner = info.inline.iter().find_map(|inline| match *inline {
            BackRef::Owner { root } => Some(root),
            _ => None,
        });
        let generation = info.header.generation;
        let mut applied = Applied { changes: Vec::new(), removed: false, generation, owner };
        let mut planned = Planned::default();
        let wrong = |field, value, why| {
            let reason = Corrupt::field("extent item", field, value, why);
            Error::Item { tree: self.tree.id(), key: info.key, reason }
        };
        let total = head.total();
        let Some(refs) = info.header.refs.checked_add_signed(total) else {
            return Err(wrong("refs", info.header.refs, "fewer references than are being dropped"));
        };
        info.header.refs = refs;
        // Removals come first: they free inline space.
        let (more, fewer): (Vec<_>, Vec<_>) = head.changes.iter().partition(|(_, change)| **change > 0);
        for (reference, change) in fewer.into_iter().chain(more) {
            self.change_reference(&mut info, reference, *change, &mut planned)?;
        }
        applied.changes = planned.changes;
        if refs == 0 {
            let left = info.inline.iter().any(|reference| reference.count() > 0);
            if left {
                let reason = Corrupt::field(
                    "extent item",
                    "refs",
                    0,
                    "references are left that the count does not include",
                );
                return Err(Error::Item { tree: self.tree.id(), key: info.key, reason });
            }
            applied.removed = true;
            applied.changes.push(Change::Remove { key: info.key });
            return Ok(applied);
        }
        info.inline.sort_by(BackRef::inline_order);
        let data = ExtentItem::encode(&info.header, info.tree_block.as_ref(), &info.inline);
        applied.changes.push(Change::Put { key: info.key, data });
        Ok(applied)
    }

    fn change_reference(
        &self,
        info: &mut ExtentInfo,
        reference: &Reference,
        change: i64,
        planned: &mut Planned,
    ) -> Result<()> {
        let count_of = |old: u32, key: Key| {
            i64::from(old).checked_add(change).and_then(|sum| u32::try_from(sum).ok()).ok_or_else(|| {
                let reason = Corrupt::field(
                    "back reference",
                    "count",
                    old.into(),
                    "fewer than are being dropped, or too many",
                );
                Error::Item { tree: self.tree.id(), key, reason }
            })
        };
        let inline = info.inline.iter().position(|inline| Reference::of(inline).as_ref() == Some(reference));
        if let Some(index) = inline {
            match count_of(info.inline[index].count(), info.key)? {
                0 => drop(info.inline.remove(index)),
                count => {
                    self.check_single(reference, count, info.key)?;
                    info.inline[index] = reference.counted(count);
                }
            }
            return Ok(());
        }
        let address = LogicalAddress(info.key.objectid);
        let (key, old) = self.keyed(address, reference, change < 0, planned)?;
        match old {
            Some(old) => {
                let count = count_of(old, key)?;
                if count == 0 {
                    planned.push(Change::Remove { key });
                } else {
                    self.check_single(reference, count, key)?;
                    let (_, data) = reference.counted(count).encode_keyed(address);
                    planned.push(Change::Put { key, data });
                }
            }
            None => {
                let count = count_of(0, key)?;
                self.check_single(reference, count, key)?;
                let new = reference.counted(count);
                let fixed = ExtentHeader::SIZE + info.tree_block.map_or(0, |_| TreeBlockInfo::SIZE);
                let size: usize = info.inline.iter().map(BackRef::inline_size).sum();
                if fixed + size + new.inline_size() <= self.inline_limit {
                    info.inline.push(new);
                } else {
                    let (_, data) = new.encode_keyed(address);
                    planned.push(Change::Put { key, data });
                }
            }
        }
        Ok(())
    }

    /// Checks that a tree, or a parent block, refers to a tree block once only.
    fn check_single(&self, reference: &Reference, count: u32, key: Key) -> Result<()> {
        if count > 1 && matches!(reference, Reference::Tree(_) | Reference::SharedBlock(_)) {
            let reason = Corrupt::field(
                "back reference",
                "count",
                count.into(),
                "a second reference of the same parent",
            );
            return Err(Error::Item { tree: self.tree.id(), key, reason });
        }
        Ok(())
    }

    /// Returns the key of a reference's own item, and its count if there is one. References whose
    /// hashes collide take the next free offsets.
    ///
    /// A collision that ended leaves a gap before the references that stay. Like the kernel, a
    /// reference that is `dropped` is looked for behind all gaps. One that is added is looked for
    /// behind short ones: hashes that are as close without a collision are rare, so that this
    /// seldom reads another item. The kernel adds a second item in the gap then.
    fn keyed(
        &self,
        address: LogicalAddress,
        reference: &Reference,
        dropped: bool,
        planned: &Planned,
    ) -> Result<(Key, Option<u32>)> {
        let (first, _) = reference.counted(1).encode_keyed(address);
        let collides = first.item_type == ItemType::EXTENT_DATA_REF;
        let last = Key { offset: if collides { u64::MAX } else { first.offset }, ..first };
        let (mut expected, mut is_taken) = (first.offset, planned.removed.contains_key(&first));
        for item in self.tree.range(first..=last) {
            let item = item?;
            let key = item.key;
            is_taken |= key == first;
            if !dropped && key.offset - expected > LONGEST_GAP {
                break;
            }
            expected = key.offset;
            // The item of another reference of this head.
            if planned.removed.contains_key(&key) {
                continue;
            }
            let fault = |reason| Error::Item { tree: self.tree.id(), key, reason };
            for found in KeyedRefs::parse(&key, item.data()).map_err(fault)? {
                if Reference::of(&found).as_ref() == Some(reference) {
                    return Ok((key, Some(found.count())));
                }
            }
        }
        if !is_taken {
            return Ok((first, None));
        }
        let mut key = first;
        while !self.is_free(&key, planned)? {
            if !collides {
                let why = "the item belongs to another reference";
                let reason = Corrupt::field("back reference", "key", key.offset, why);
                return Err(Error::Item { tree: self.tree.id(), key, reason });
            }
            key.offset = key.offset.wrapping_add(1);
        }
        Ok((key, None))
    }

    /// Whether no item has the key once the planned changes are made.
    fn is_free(&self, key: &Key, planned: &Planned) -> Result<bool> {
        match planned.removed.get(key) {
            Some(removed) => Ok(*removed),
            None => Ok(self.tree.get(key)?.is_none()),
        }
    }
}

#[cfg(test)]
mod tests;
