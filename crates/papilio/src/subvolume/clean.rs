//! The cleaner: takes apart the trees of deleted subvolumes.
//!
//! Owns [`clean_step`]. Invariant: a tree is touched only in a later transaction than the one that deleted
//! it, so that whoever was changing it has ended. Locks: `cleaning` throughout; the root tree's writer lock, for the root item.
//! Kernel counterparts: `btrfs_clean_one_deleted_snapshot` (`fs/btrfs/transaction.c`),
//! `btrfs_find_orphan_roots` (`fs/btrfs/root-tree.c`), `btrfs_drop_snapshot` (`fs/btrfs/extent-tree.c`).

use super::drop_tree::{DropTree, Progress};
use super::root_items::{key_of, put_root_item};
use crate::btree::LiveTree;
use crate::errors::Result;
use crate::items::orphan;
use crate::transaction::{Handle, Transactions};
use papilio_format::items::orphan::orphan_key;
use papilio_format::{InodeNumber, TreeId, objectid};
use std::sync::Arc;

/// References that one transaction handle changes, about: as long as that takes, a commit waits.
const PIECE: usize = 4096;
/// Places in trees that a piece changes itself: the root item and the orphan's.
const ITEMS: u64 = 4;
/// Extents with changed references that wait for a commit at most: they are memory.
const DELAYED_LIMIT: usize = 1 << 17;

/// Takes a piece of a deleted subvolume apart; says whether more may be left.
///
/// # Errors
/// A block or an item that cannot be read, of the subvolume or of the extent tree; the subvolume stays as
/// far as it had come, and the file system goes on. [`crate::Error::NoSpace`], and
/// [`crate::Error::ReadOnlyFileSystem`] after a failure.
pub(crate) fn clean_step(transactions: &Arc<Transactions>) -> Result<bool> {
    let _cleaning = transactions.lock_cleaning();
    transactions.check_running()?;
    let Some(tree) = next_dead(transactions)? else { return Ok(false) };
    let deleted_in = tree.record().map(|record| record.item.ctransid);
    let delayed = transactions.delayed_refs();
    if deleted_in.is_some_and(|deleted| deleted >= transactions.generation()) || delayed > DELAYED_LIMIT {
        transactions.commit()?;
    }
    let mut walk = DropTree::new(&tree);
    loop {
        let (progress, result) = transactions.change_to_free(ITEMS, |handle| {
            let (progress, result) = walk.run(handle, PIECE);
            keep_progress(handle, &tree, progress)?;
            Ok((progress, result))
        })?;
        result?;
        match progress {
            // Where a conversion stands is known to this walk only.
            Progress::Converting => {
                if transactions.delayed_refs() > DELAYED_LIMIT {
                    transactions.commit()?;
                }
            }
            Progress::Dropping { .. } | Progress::Done => return Ok(true),
        }
    }
}

/// A subvolume that was deleted and is not gone yet.
fn next_dead(transactions: &Transactions) -> Result<Option<Arc<LiveTree>>> {
    let live = transactions.live();
    let mut from = InodeNumber(0);
    loop {
        let Some(listed) = orphan::next(&live.root_tree().tree(), from)? else { return Ok(None) };
        let id = TreeId(listed.0);
        if objectid::is_subvolume(id)
            && let Some(tree) = live.find(id)?
            && tree.record().is_some_and(|record| record.item.refs == 0)
        {
            return Ok(Some(tree));
        }
        // Others list inodes here too: those of the old space cache.
        let Some(next) = listed.0.checked_add(1) else { return Ok(None) };
        from = InodeNumber(next);
    }
}

/// Writes into the root item how far the walk came; where it came to the end, removes the item.
fn keep_progress(handle: &Handle<'_>, tree: &LiveTree, progress: Progress) -> Result<()> {
    let live = handle.transactions().live();
    match progress {
        Progress::Converting => Ok(()),
        Progress::Dropping { key, level } => {
            tree.update_record(|record| {
                record.item.drop_progress = key;
                record.item.drop_level = level;
            });
            put_root_item(&mut live.root_tree().edit(handle), tree)
        }
        Progress::Done => {
            let mut editor = live.root_tree().edit(handle);
            editor.remove(key_of(tree))?;
            editor.remove(orphan_key(tree.id().0))?;
            drop(editor);
            live.remove(tree.id());
            Ok(())
        }
    }
}
