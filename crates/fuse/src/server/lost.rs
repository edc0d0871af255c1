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
//! Locks: `files` and the lists of who waits for a turn, leaves; a file's turn, while data from the
//! cache is written.

use crate::nodes::Node;
use crate::numbers::Place;
use papilio::format::{InodeNumber, TreeId};
use papilio_ioctl::Errno;
use papilio_locks::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};

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
    turns: [Turns; TURNS],
}

/// The writes of some files, one at a time.
#[derive(Debug, Default)]
struct Turns {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    busy: bool,
    /// The files and offsets of those that wait, with the number of the attempt.
    writes: BTreeSet<(u64, u64, u64)>,
    attempts: u64,
}

/// A file's turn. Dropping it ends the turn.
pub(super) struct WriteTurn<'a>(&'a Turns);

impl Turns {
    /// Waits for a turn, behind writes of the same file at lower offsets that wait as well.
    fn take(&self, file: u64, offset: u64) -> WriteTurn<'_> {
        let mut state = self.state.lock();
        let own = (file, offset, state.attempts);
        state.attempts += 1;
        state.writes.insert(own);
        while state.busy || state.writes.first() != Some(&own) {
            self.changed.wait(&mut state);
        }
        state.writes.remove(&own);
        state.busy = true;
        WriteTurn(self)
    }
}

impl Drop for WriteTurn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy = false;
        self.0.changed.notify_all();
    }
}

fn key(node: &Node) -> Option<(TreeId, InodeNumber)> {
    match node.place() {
        Place::Inode(tree, number) => Some((tree, number)),
        Place::Stub(..) => None,
    }
}

impl LostWrites {
    /// Waits for the turn of a write at `offset`: writes of the cache follow one another, so that
    /// none is stored after an earlier one was lost. The kernel sends several at once, and servers'
    /// threads overtake one another, so the lowest offset that waits comes first.
    pub(super) fn turn(&self, node: &Node, offset: u64) -> WriteTurn<'_> {
        self.turns[node.id.0 as usize % TURNS].take(node.id.0, offset)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_offset_that_waits_comes_first() {
        let (turns, order) = (Turns::default(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            let first = turns.take(1, 9);
            for offset in [7, 3, 5, 3] {
                let (turns, order) = (&turns, &order);
                scope.spawn(move || {
                    let turn = turns.take(1, offset);
                    order.lock().push(offset);
                    drop(turn);
                });
            }
            while turns.state.lock().writes.len() < 4 {
                std::thread::yield_now();
            }
            drop(first);
        });
        assert_eq!(*order.lock(), [3, 3, 5, 7]);
    }
}
