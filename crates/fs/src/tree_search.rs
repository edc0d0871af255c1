//! Items of any tree by their keys, as the search ioctl returns them.
//!
//! Owns [`FileSystem::search_tree`].
//!
//! Kernel counterpart: `search_ioctl` (`fs/btrfs/ioctl.c`).

use crate::file_system::FileSystem;
use papilio_engine::btree::Tree;
use papilio_engine::errors::{Error, PathError, Result};
use papilio_format::{Generation, Key, TreeId, objectid};
use std::ops::RangeInclusive;

impl FileSystem {
    /// Passes the items of a tree in a range of keys to `visit`, in order, each with the generation
    /// of its leaf. Leaves older than `oldest` are left out. Ends early when `visit` returns false.
    /// The items are those in memory: changes since the last commit are seen, but not the data that
    /// open files still hold back.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] if there is no such tree; a tree block that cannot be read.
    pub fn search_tree(
        &self,
        id: TreeId,
        keys: RangeInclusive<Key>,
        oldest: Generation,
        visit: &mut dyn FnMut(Generation, Key, &[u8]) -> bool,
    ) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let tree = self.tree_to_search(id)?;
        if oldest > Generation(0) {
            return tree.visit_since(&keys, oldest, visit);
        }
        for item in tree.range(keys) {
            let item = item?;
            if !visit(item.generation(), item.key, item.data()) {
                break;
            }
        }
        Ok(())
    }

    fn tree_to_search(&self, id: TreeId) -> Result<Tree> {
        let trees = &self.info.trees;
        match id {
            objectid::ROOT_TREE => Ok(trees.root_tree()),
            objectid::CHUNK_TREE => Ok(trees.chunk_tree()),
            _ => match trees.find(id)? {
                Some(open) => Ok(open.tree.clone()),
                None => Err(Error::path(format!("tree {id}").as_bytes(), PathError::NoSubvolume)),
            },
        }
    }
}
