//! The numbers that a subvolume gives out: inode numbers, and indexes in directories.
//!
//! Owns [`SubvolumeNumbers`], one for each subvolume that is written to. Both kinds are one more than the
//! largest that the tree holds when it is first changed or asked for, and are then counted in memory: no number is
//! given twice while the file system is mounted. Kernel counterparts:
//! `btrfs_init_root_free_objectid`, `btrfs_get_free_objectid` (`fs/btrfs/disk-io.c`),
//! `btrfs_set_inode_index` (`fs/btrfs/inode.c`).
//!
//! Locks: its own mutex, for one number at a time (the first of a directory is read from the tree under
//! it), within the tree's writer lock. A number is taken for a change that may still fail; then it stays
//! unused.

use crate::btree::Tree;
use crate::errors::{Error, Result};
use crate::items::dir_edit;
use papilio_format::{InodeNumber, Key, objectid};
use papilio_locks::Mutex;
use std::collections::HashMap;

/// Directories whose next index is remembered; beyond that all are forgotten and looked up again.
const REMEMBERED_DIRECTORIES: usize = 1024;

/// The counters of one subvolume.
#[derive(Debug, Default)]
pub(crate) struct SubvolumeNumbers {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// 0 where the tree was not asked yet.
    next_inode: u64,
    /// The next index of directories.
    next_index: HashMap<InodeNumber, u64>,
    /// Not below that of any that was forgotten.
    least_index: u64,
}

impl State {
    fn begin(&mut self, tree: &Tree) -> Result<()> {
        if self.next_inode == 0 {
            let last = tree.last_up_to(&Key::last_of(objectid::LAST_FREE))?;
            let last = last.map_or(0, |item| item.key.objectid);
            self.next_inode = last.saturating_add(1).max(objectid::FIRST_FREE);
        }
        Ok(())
    }
}

impl State {
    /// The next index of a directory that is not remembered, for which there is room.
    fn first_index(&mut self, tree: &Tree, directory: InodeNumber) -> Result<u64> {
        if self.next_index.len() >= REMEMBERED_DIRECTORIES {
            let forgotten = self.next_index.drain().map(|(_, next)| next).max();
            self.least_index = self.least_index.max(forgotten.unwrap_or(0));
        }
        Ok(dir_edit::next_index(tree, directory)?.max(self.least_index))
    }
}

impl SubvolumeNumbers {
    /// Looks for the largest inode number in a tree, before anything is deleted from it: a log may tell of what
    /// is deleted by its number.
    ///
    /// # Errors
    /// A block on the way that cannot be read.
    pub(crate) fn begin(&self, tree: &Tree) -> Result<()> {
        self.state.lock().begin(tree)
    }

    /// A free inode number, above all that the tree ever had since the mount.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where all are taken, or a block on the way that cannot be read.
    pub(crate) fn inode(&self, tree: &Tree) -> Result<InodeNumber> {
        let mut state = self.state.lock();
        state.begin(tree)?;
        if state.next_inode >= objectid::LAST_FREE {
            return Err(Error::NoSpace { what: "inode numbers of a subvolume" });
        }
        state.next_inode += 1;
        Ok(InodeNumber(state.next_inode - 1))
    }

    /// A free index in a directory.
    ///
    /// # Errors
    /// A block on the way that cannot be read.
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

    /// An entry of a directory is about to go: its index is not given again, as a log may tell of either entry
    /// by it.
    ///
    /// # Errors
    /// A block on the way that cannot be read.
    pub(crate) fn keep_index(&self, tree: &Tree, directory: InodeNumber) -> Result<()> {
        let mut state = self.state.lock();
        if !state.next_index.contains_key(&directory) {
            let index = state.first_index(tree, directory)?;
            state.next_index.insert(directory, index);
        }
        Ok(())
    }

    /// Forgets everything, as the next mount would have.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        *self.state.lock() = State::default();
    }
}
