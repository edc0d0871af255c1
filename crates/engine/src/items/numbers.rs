//! The numbers that a subvolume hands out: inode numbers, and indexes in directories.
//!
//! Owns [`SubvolumeNumbers`], one for each subvolume that is written to. Both kinds start at one
//! more than the largest in the tree when it is first changed or asked, and are then counted in
//! memory.
//!
//! **Invariants**
//! - No number is handed out twice while the file system is mounted.
//! - A number taken for a change that then fails stays unused.
//!
//! **Locks**: its own mutex, inside the tree's writer lock, for one number at a time. The first
//! number of a directory is read from the tree under it.
//!
//! Kernel counterparts: `btrfs_init_root_free_objectid`, `btrfs_get_free_objectid`
//! (`fs/btrfs/disk-io.c`), `btrfs_set_inode_index` (`fs/btrfs/inode.c`).

use crate::btree::Tree;
use crate::errors::{Error, Result};
use crate::items::dir_edit;
use papilio_format::{InodeNumber, Key, objectid};
use papilio_locks::Mutex;
use std::collections::HashMap;

/// Directories whose next index is remembered. When there are more, all are forgotten and looked up
/// again.
const REMEMBERED_DIRECTORIES: usize = 1024;

/// The counters of one subvolume.
#[derive(Debug, Default)]
pub struct SubvolumeNumbers {
    state: Mutex<NumberState>,
}

#[derive(Debug, Default)]
struct NumberState {
    /// The next inode number; 0 until it was read from the tree.
    next_inode: u64,
    /// The next index of each remembered directory.
    next_index: HashMap<InodeNumber, u64>,
    /// A lower bound of the next index of every directory that was forgotten.
    least_index: u64,
}

impl NumberState {
    fn begin(&mut self, tree: &Tree) -> Result<()> {
        if self.next_inode == 0 {
            let last = tree.last_up_to(&Key::last_of(objectid::LAST_FREE))?;
            let last = last.map_or(0, |item| item.key.objectid);
            self.next_inode = last.saturating_add(1).max(objectid::FIRST_FREE);
        }
        Ok(())
    }
}

impl NumberState {
    /// The next index of a directory that is not remembered. Makes space to remember it.
    fn first_index(&mut self, tree: &Tree, directory: InodeNumber) -> Result<u64> {
        if self.next_index.len() >= REMEMBERED_DIRECTORIES {
            let forgotten = self.next_index.drain().map(|(_, next)| next).max();
            self.least_index = self.least_index.max(forgotten.unwrap_or(0));
        }
        Ok(dir_edit::next_index(tree, directory)?.max(self.least_index))
    }
}

impl SubvolumeNumbers {
    /// Reads the largest inode number of a tree, before anything is deleted from it. A log may
    /// refer to a deleted inode by its number, so the number must not be reused.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub(crate) fn begin(&self, tree: &Tree) -> Result<()> {
        self.state.lock().begin(tree)
    }

    /// Hands out a free inode number, above all that the tree had since the mount.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if all are taken; a tree block that cannot be read.
    pub(crate) fn inode(&self, tree: &Tree) -> Result<InodeNumber> {
        let mut state = self.state.lock();
        state.begin(tree)?;
        if state.next_inode >= objectid::LAST_FREE {
            return Err(Error::NoSpace { what: "inode numbers of a subvolume" });
        }
        state.next_inode += 1;
        Ok(InodeNumber(state.next_inode - 1))
    }

    /// Hands out a free index in a directory.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub(crate) fn index(&self, tree: &Tree, directory: InodeNumber) -> Result<u64> {
        let mut state = self.state.lock();
        if let Some(next) = state.next_index.get_mut(&directory) {
            *next += 1;
            return Ok(*next - 1);
        }
        let index = state.first_index(tree, directory)?;
        state.next_index.insert(directory, index + 1);
        Ok(index)
    }

    /// Remembers a directory's next index before one of its entries is removed. The entry's index
    /// is then not reused: a log may refer to either entry by it.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub fn keep_index(&self, tree: &Tree, directory: InodeNumber) -> Result<()> {
        let mut state = self.state.lock();
        if !state.next_index.contains_key(&directory) {
            let index = state.first_index(tree, directory)?;
            state.next_index.insert(directory, index);
        }
        Ok(())
    }

    /// Forgets everything, as a new mount would.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        *self.state.lock() = NumberState::default();
    }
}
