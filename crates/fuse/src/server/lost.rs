//! Writes of the kernel's cache that could not be stored.
//!
//! Owns [`LostWrites`]. The kernel accepts such a write before the server sees it, and has extended
//! the file by then. A file that lost a write must not get the data after it: the result would have
//! a hole where the lost data was.
//!
//! - Later data from the cache, from the lost write's offset on, is refused with the same error,
//!   until the error was told to a program that writes the file, or the last one has closed it.
//! - The file's names leave the kernel's cache before it hears of the failure. With the last close
//!   the kernel forgets the file, and with it a size that the file does not have.
//! - A sync, an unmount, and a remount report a lost write once, with the file's path, unless the
//!   file was removed or cut meanwhile. An error belongs to its file: it fails no sync of others.
//!
//! Locks: `files`, a leaf; a file's turn, while data from the cache is written.

use crate::nodes::Node;
use crate::numbers::Place;
use papilio::format::{InodeNumber, TreeId};
use papilio_ioctl::Errno;
use papilio_locks::{Mutex, MutexGuard};
use std::collections::BTreeMap;

/// Files whose writes take turns share so many locks.
const TURNS: usize = 16;

/// A write that could not be stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) error: Errno,
    /// The lowest file offset that was lost.
    from: u64,
    /// The generation of the inode, whose number may be used again.
    pub(super) generation: Option<u64>,
    /// Later data is refused, too.
    refuses: bool,
}

/// The files that lost writes.
#[derive(Debug, Default)]
pub(super) struct LostWrites {
    files: Mutex<BTreeMap<(TreeId, InodeNumber), Lost>>,
    turns: [Mutex<()>; TURNS],
}

fn key(node: &Node) -> Option<(TreeId, InodeNumber)> {
    match node.place() {
        Place::Inode(tree, number) => Some((tree, number)),
        Place::Stub(..) => None,
    }
}

impl LostWrites {
    /// Waits for the file's turn: writes of the cache follow one another, so that none is stored
    /// after an earlier one was lost.
    pub(super) fn turn(&self, node: &Node) -> MutexGuard<'_, ()> {
        self.turns[node.id.0 as usize % TURNS].lock()
    }

    /// Notes that a write at `offset` was lost.
    pub(super) fn note(&self, node: &Node, generation: Option<u64>, offset: u64, error: Errno) {
        let Some(key) = key(node) else { return };
        let new = Lost { error, from: offset, generation, refuses: true };
        let mut files = self.files.lock();
        let lost = files.entry(key).or_insert(new);
        *lost = match lost.generation == generation {
            true => Lost { error: lost.error, from: lost.from.min(offset), ..new },
            false => new,
        };
    }

    /// Returns why data from the cache at `offset` is refused.
    pub(super) fn refusal(&self, node: &Node, offset: u64) -> Option<Errno> {
        let files = self.files.lock();
        let lost = files.get(&key(node)?).filter(|lost| lost.refuses && offset >= lost.from)?;
        Some(lost.error)
    }

    /// Notes that a program that writes the file was told, or that none writes it any more.
    pub(super) fn was_told(&self, node: &Node) {
        let Some(key) = key(node) else { return };
        if let Some(lost) = self.files.lock().get_mut(&key) {
            lost.refuses = false;
        }
    }

    /// Notes that the file was cut to `size` bytes.
    pub(super) fn was_cut(&self, node: &Node, size: u64) {
        let Some(key) = key(node) else { return };
        let mut files = self.files.lock();
        if files.get(&key).is_some_and(|lost| size <= lost.from) {
            files.remove(&key);
        }
    }

    /// Returns whether the file has lost a write.
    pub(super) fn has(&self, node: &Node) -> bool {
        key(node).is_some_and(|key| self.files.lock().contains_key(&key))
    }

    /// Takes a file that lost a write.
    pub(super) fn take(&self) -> Option<((TreeId, InodeNumber), Lost)> {
        self.files.lock().pop_first()
    }
}
