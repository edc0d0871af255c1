//! The comparison of two file trees.
//!
//! Owns [`Changes`]: the inodes whose items differ, by number, each with the kinds of items that
//! do. The walk skips every block that both trees share, so its cost follows the number of changes.
//!
//! Kernel counterpart: `btrfs_compare_trees` (`fs/btrfs/send.c`).

use papilio_engine::btree::{Tree, TreeBlock};
use papilio_engine::errors::Result;
use papilio_format::{ItemType, Key, objectid};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The kinds of items of an inode that differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Differs {
    pub(super) inode: bool,
    pub(super) names: bool,
    pub(super) xattrs: bool,
    pub(super) extents: bool,
}

impl Differs {
    /// Every kind.
    pub(super) const ALL: Self = Self { inode: true, names: true, xattrs: true, extents: true };

    fn note(&mut self, item_type: ItemType) {
        match item_type {
            ItemType::INODE_ITEM => self.inode = true,
            ItemType::INODE_REF | ItemType::INODE_EXTREF => self.names = true,
            ItemType::XATTR_ITEM => self.xattrs = true,
            ItemType::EXTENT_DATA => self.extents = true,
            _ => {}
        }
    }
}

/// The inodes that differ, by number.
pub(super) type Changes = BTreeMap<u64, Differs>;

/// Returns all inodes of `tree`.
pub(super) fn all_inodes(tree: &Tree) -> Result<Changes> {
    let mut changes = Changes::new();
    for item in tree.range(Key::first_of(objectid::FIRST_INODE.0)..=Key::last_of(objectid::LAST_FREE)) {
        let key = item?.key;
        if key.item_type == ItemType::INODE_ITEM {
            changes.insert(key.objectid, Differs::ALL);
        }
    }
    Ok(changes)
}

/// Returns the inodes that differ between `old` and `new`.
pub(super) fn differences(old: &Tree, new: &Tree) -> Result<Changes> {
    let mut changes = Changes::new();
    let mut note = |key: Key| {
        if (objectid::FIRST_INODE.0..=objectid::LAST_FREE).contains(&key.objectid) {
            changes.entry(key.objectid).or_default().note(key.item_type);
        }
    };
    let (mut left, mut right) = (Walker::new(old)?, Walker::new(new)?);
    loop {
        let (before, after) = match (left.current(), right.current()) {
            (None, None) => return Ok(changes),
            (Some(step), None) | (None, Some(step)) if step.level == 0 => {
                note(step.key);
                left.next();
                right.next();
                continue;
            }
            (Some(_), None) => {
                left.down()?;
                continue;
            }
            (None, Some(_)) => {
                right.down()?;
                continue;
            }
            (Some(before), Some(after)) => (before, after),
        };
        match before.level.cmp(&after.level) {
            Ordering::Less => right.down()?,
            Ordering::Greater => left.down()?,
            Ordering::Equal if before.level > 0 => match before.key.cmp(&after.key) {
                Ordering::Less => left.down()?,
                Ordering::Greater => right.down()?,
                Ordering::Equal if before.block == after.block => {
                    left.next();
                    right.next();
                }
                Ordering::Equal => {
                    left.down()?;
                    right.down()?;
                }
            },
            Ordering::Equal => match before.key.cmp(&after.key) {
                Ordering::Less => {
                    note(before.key);
                    left.next();
                }
                Ordering::Greater => {
                    note(after.key);
                    right.next();
                }
                Ordering::Equal => {
                    if left.data() != right.data() {
                        note(before.key);
                    }
                    left.next();
                    right.next();
                }
            },
        }
    }
}

/// An item or a pointer to a child.
struct Step {
    level: u8,
    key: Key,
    /// Address and generation of the child.
    block: (u64, u64),
}

/// A block on the way down.
struct Level {
    block: Arc<TreeBlock>,
    slot: usize,
    bound: Option<Key>,
}

/// A walk through a tree that may pass over whole subtrees.
struct Walker<'a> {
    tree: &'a Tree,
    path: Vec<Level>,
}

impl<'a> Walker<'a> {
    fn new(tree: &'a Tree) -> Result<Self> {
        let block = tree.root_block()?;
        let mut walker = Self { tree, path: Vec::new() };
        if !block.view().is_empty() {
            walker.path.push(Level { block, slot: 0, bound: None });
        }
        Ok(walker)
    }

    fn current(&self) -> Option<Step> {
        let Level { block, slot, .. } = self.path.last()?;
        let (view, level) = (block.view(), block.level());
        if level == 0 {
            return Some(Step { level, key: view.key(*slot), block: (0, 0) });
        }
        let child = view.child(*slot);
        Some(Step { level, key: child.key, block: (child.address.0, child.generation.0) })
    }

    fn data(&self) -> &[u8] {
        self.path.last().map_or(&[], |level| level.block.view().item(level.slot))
    }

    /// Passes over the current item or subtree.
    fn next(&mut self) {
        while let Some(level) = self.path.last_mut() {
            level.slot += 1;
            if level.slot < level.block.view().len() {
                return;
            }
            self.path.pop();
        }
    }

    /// Enters the child that the current pointer names.
    fn down(&mut self) -> Result<()> {
        let Some(Level { block, slot, bound }) = self.path.last() else { return Ok(()) };
        let view = block.view();
        let bound = if slot + 1 < view.len() { Some(view.key(slot + 1)) } else { *bound };
        let child = self.tree.child(block, *slot, bound)?;
        self.path.push(Level { block: child, slot: 0, bound });
        Ok(())
    }
}
