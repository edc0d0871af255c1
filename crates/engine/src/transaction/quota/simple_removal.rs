//! Taking simple quotas out of a file system, so that kernels before 6.7 mount it again.
//!
//! Owns the removal of owner references from the items of data extents, and of the feature bit.
//! Turning quotas off keeps both.
//!
//! **Invariants**
//! - Quotas are off before the first owner reference goes, since an extent without one is refunded
//!   to nobody.
//! - The feature bit goes last. An interrupted removal leaves a valid file system with the bit, and
//!   the next call finishes it.
//!
//! Locks: those of transactions and of the extent tree.
//!
//! Counterpart: `remove_squota` of btrfs-progs (`tune/quota.c`).

use crate::btree::Change;
use crate::errors::{Error, Result};
use crate::transaction::start::Start;
use crate::transaction::transaction::Transactions;
use papilio_format::features::IncompatFeatures;
use papilio_format::items::back_ref::BackRef;
use papilio_format::items::extent::ExtentItem;
use papilio_format::{ItemType, Key, objectid};

/// Extent items that one change looks at. They come in the order of the tree, so that few leaves
/// hold them.
const LOOKED_AT: usize = 512;
/// The items for which metadata is reserved meanwhile: a leaf holds eight extent items and more.
const LEAVES: u64 = LOOKED_AT as u64 / 8;
/// Changes between commits, which bound the changed blocks in memory.
const CHANGES: u64 = 64;

impl Transactions {
    /// Turns simple quotas off, removes the owner references of all data extents and the feature
    /// bit, and commits. Other quotas stay on. Nothing else may change the file system meanwhile.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; blocks and items that cannot be read.
    pub fn remove_simple_quotas(&self) -> Result<()> {
        if self.quotas().is_simple() {
            self.disable_quotas()?;
        }
        self.commit()?;
        let mut from = Some(Key::MIN);
        let mut changes = 0;
        while let Some(first) = from {
            from = self.remove_owners(first)?;
            changes += 1;
            if changes % CHANGES == 0 {
                self.commit()?;
            }
        }
        self.commit()?;
        self.forget_features(IncompatFeatures::SIMPLE_QUOTA);
        self.commit()
    }

    /// Removes the owner references of data extents, from a key on. Returns the key at which to go
    /// on, or `None` at the end of the tree.
    fn remove_owners(&self, from: Key) -> Result<Option<Key>> {
        self.change(Start::items(LEAVES), |handle| {
            let live = self.live().get(objectid::EXTENT_TREE)?;
            let tree = live.tree();
            let mut next = None;
            let mut changes = Vec::new();
            for item in tree.range(from..=Key::MAX).take(LOOKED_AT) {
                let item = item?;
                next = item.key.successor();
                if item.key.item_type != ItemType::EXTENT_ITEM {
                    continue;
                }
                let fault = |reason| Error::Item { tree: tree.id(), key: item.key, reason };
                let data = without_owner(item.data()).map_err(fault)?;
                changes.extend(data.map(|data| Change::Put { key: item.key, data }));
            }
            drop(tree);
            live.edit(handle).apply(&changes)?;
            Ok(next)
        })
    }
}

/// Returns an extent item without its owner reference, or `None` if it has none.
fn without_owner(bytes: &[u8]) -> std::result::Result<Option<Vec<u8>>, papilio_format::Corrupt> {
    let item = ExtentItem::parse(ItemType::EXTENT_ITEM, bytes)?;
    let mut references = item.inline_refs().collect::<std::result::Result<Vec<_>, _>>()?;
    let before = references.len();
    references.retain(|reference| !matches!(reference, BackRef::Owner { .. }));
    let is_owned = references.len() < before;
    Ok(is_owned.then(|| ExtentItem::encode(&item.header, item.tree_block.as_ref(), &references)))
}
