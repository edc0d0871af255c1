//! The cleaner, which drops the trees of deleted subvolumes.
//!
//! Owns [`clean_step`], and [`drop_relocation_trees`] for the trees of a balance that the kernel
//! did not finish.
//!
//! **Invariants**
//! - A tree is dropped only in a later transaction than the one that deleted it, or that ended its
//!   hold, so that all changes of it have ended.
//! - A tree that is held is not dropped as long as one of its inodes is in use.
//!
//! **Locks**, in this order: `cleaning` throughout; the root tree's writer lock, for the root item.
//!
//! Kernel counterparts: `btrfs_clean_one_deleted_snapshot` (`fs/btrfs/transaction.c`),
//! `btrfs_find_orphan_roots` (`fs/btrfs/root-tree.c`), `btrfs_drop_snapshot`
//! (`fs/btrfs/extent-tree.c`).

use super::drop_tree::{DropProgress, DropTree};
use super::root_items::{key_of, put_root_item};
use crate::btree::LiveTree;
use crate::errors::Result;
use crate::items::orphan;
use crate::transaction::{Handle, Transactions};
use papilio_format::items::orphan::orphan_key;
use papilio_format::{InodeNumber, Key, TreeId, objectid};
use std::sync::Arc;

/// References changed under one handle, approximately. A commit waits that long.
const PIECE: usize = 4096;
/// Items that a piece changes itself: the root item and the orphan item.
const ITEMS: u64 = 4;
/// Most extents with delayed references, which take memory, before the cleaner commits.
const DELAYED_LIMIT: usize = 1 << 17;

/// Drops a piece of a deleted subvolume of which no inode is `in_use`. Returns whether more may be
/// left.
///
/// # Errors
/// A block or an item of the subvolume or the extent tree that cannot be read: progress so far is
/// kept, and the file system goes on. [`crate::Error::NoSpace`];
/// [`crate::Error::ReadOnlyFileSystem`] after a failure.
pub fn clean_step(transactions: &Arc<Transactions>, in_use: impl Fn(TreeId) -> bool) -> Result<bool> {
    let _cleaning = transactions.lock_cleaning();
    transactions.check_running()?;
    let Some(tree) = next_dead(transactions, in_use)? else { return Ok(false) };
    if tree.is_held() {
        end_hold(transactions, &tree)?;
    }
    let delayed = transactions.delayed_refs();
    // The deletion, or a last change of the tree, may not be on disk yet.
    if tree.is_changed_in(transactions.generation()) || delayed > DELAYED_LIMIT {
        transactions.commit()?;
    }
    let mut walk = DropTree::new(&tree);
    loop {
        match drop_piece(transactions, &tree, &mut walk)? {
            // The root item cannot record the progress of a conversion; only this walk knows it.
            DropProgress::Converting => {
                if transactions.delayed_refs() > DELAYED_LIMIT {
                    transactions.commit()?;
                }
            }
            DropProgress::Dropping { .. } => return Ok(true),
            DropProgress::Done => {
                transactions.remove_quota_of(tree.id())?;
                return Ok(true);
            }
        }
    }
}

/// Drops a piece of a tree, and records how far the walk has come. That stays if the walk fails.
fn drop_piece(transactions: &Transactions, tree: &LiveTree, walk: &mut DropTree) -> Result<DropProgress> {
    let (progress, result) = transactions.change_to_free(ITEMS, |handle| {
        let (progress, result) = walk.run(handle, PIECE);
        record_progress(handle, tree, progress)?;
        Ok((progress, result))
    })?;
    result.map(|()| progress)
}

/// Drops the trees that a balance of the kernel left when it was cut short. A relocation tree is a
/// snapshot of a subvolume, in which blocks were moved. Blocks that were moved into the subvolume
/// stay there; all other blocks stay where they were. Nothing else changes the file system
/// meanwhile.
///
/// # Errors
/// A block or an item of such a tree or the extent tree that cannot be read;
/// [`crate::Error::NoSpace`].
pub fn drop_relocation_trees(transactions: &Arc<Transactions>) -> Result<()> {
    let live = transactions.live();
    while let Some(tree) = live.find(objectid::TREE_RELOC)? {
        if tree.record().is_some_and(|record| record.item.refs > 0) {
            // Until here the progress was that of the kernel's merge, not that of a drop.
            transactions.change_to_free(ITEMS, |handle| {
                tree.update_record(|record| {
                    record.item.refs = 0;
                    record.item.drop_progress = Key::MIN;
                    record.item.drop_level = 0;
                });
                put_root_item(&mut live.root_tree().edit(handle), &tree)
            })?;
        }
        let mut walk = DropTree::new(&tree);
        while drop_piece(transactions, &tree, &mut walk)? != DropProgress::Done {
            if transactions.delayed_refs() > DELAYED_LIMIT {
                transactions.commit()?;
            }
        }
    }
    Ok(())
}

/// Ends the hold of a tree: from here on, nothing finds it. Changes that have found it end with
/// this transaction at the latest, which is recorded as that of the deletion.
fn end_hold(transactions: &Transactions, tree: &LiveTree) -> Result<()> {
    transactions.change_to_free(ITEMS, |handle| {
        let _editor = tree.edit(handle);
        tree.update_record(|record| record.item.ctransid = handle.generation());
        tree.set_held(false);
        put_root_item(&mut transactions.live().root_tree().edit(handle), tree)
    })
}

/// Finds a deleted subvolume whose tree is not dropped yet, and that is not held for inodes that
/// are `in_use`.
fn next_dead(transactions: &Transactions, in_use: impl Fn(TreeId) -> bool) -> Result<Option<Arc<LiveTree>>> {
    let live = transactions.live();
    let mut from = InodeNumber(0);
    loop {
        let Some(listed) = orphan::next(&live.root_tree().tree(), from)? else { return Ok(None) };
        let id = TreeId(listed.0);
        if objectid::is_subvolume(id)
            && let Some(tree) = live.find(id)?
            && tree.record().is_some_and(|record| record.item.refs == 0)
            && !(tree.is_held() && in_use(id))
        {
            return Ok(Some(tree));
        }
        // Orphan items of the root tree may also name inodes of the old space cache.
        let Some(next) = listed.0.checked_add(1) else { return Ok(None) };
        from = InodeNumber(next);
    }
}

/// Records the progress of the walk in the root item. Removes the item once the tree is gone.
fn record_progress(handle: &Handle<'_>, tree: &LiveTree, progress: DropProgress) -> Result<()> {
    let live = handle.transactions().live();
    match progress {
        DropProgress::Converting => Ok(()),
        DropProgress::Dropping { key, level } => {
            tree.update_record(|record| {
                record.item.drop_progress = key;
                record.item.drop_level = level;
            });
            put_root_item(&mut live.root_tree().edit(handle), tree)
        }
        DropProgress::Done => {
            let mut editor = live.root_tree().edit(handle);
            editor.remove(key_of(tree))?;
            if tree.id() != objectid::TREE_RELOC {
                editor.remove(orphan_key(tree.id().0))?;
            }
            drop(editor);
            live.remove(tree.id());
            Ok(())
        }
    }
}
