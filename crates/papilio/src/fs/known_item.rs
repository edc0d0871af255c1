//! The inode item of an open file in memory.
//!
//! Owns [`KnownItem`]: the item, with the version of the tree that it was read from, and beside it what each read
//! needs of it, in words that are read without a lock. Invariant: words that were read with an even, unchanged
//! turn belong together. Lock: its own, for one copy.

use papilio_format::items::inode::{InodeFlags, InodeItem};
use papilio_locks::RwLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// An inode item, if it was read before.
#[derive(Debug, Default)]
pub(super) struct KnownItem {
    item: RwLock<Option<(u64, InodeItem)>>,
    /// Odd while the words change.
    turn: AtomicU64,
    version: AtomicU64,
    size: AtomicU64,
    flags: AtomicU64,
}

/// What reading needs of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Glance {
    pub(super) size: u64,
    pub(super) flags: InodeFlags,
}

impl Glance {
    /// Of an item.
    pub(super) fn of(item: &InodeItem) -> Self {
        Self { size: item.size, flags: item.flags }
    }
}

impl KnownItem {
    /// The item as of that version of its tree.
    pub(super) fn get(&self, version: u64) -> Option<InodeItem> {
        let known = self.item.read();
        known.as_ref().filter(|(read_at, _)| *read_at == version).map(|(_, item)| *item)
    }

    /// The item, whatever it is by now.
    pub(super) fn last(&self) -> Option<InodeItem> {
        self.item.read().as_ref().map(|(_, item)| *item)
    }

    /// As [`KnownItem::get`]; it may also fail where another thread stores at the same time.
    #[inline]
    pub(super) fn glance(&self, version: u64) -> Option<Glance> {
        let turn = self.turn.load(Ordering::Acquire);
        let known = self.version.load(Ordering::Relaxed);
        let (size, flags) = (self.size.load(Ordering::Relaxed), self.flags.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        // Turn 0: nothing was ever stored.
        let stood = turn != 0 && turn.is_multiple_of(2) && self.turn.load(Ordering::Relaxed) == turn;
        (stood && known == version).then(|| Glance { size, flags: InodeFlags::from_bits_retain(flags) })
    }

    /// The item as it was read after that version of its tree was asked for.
    pub(super) fn set(&self, version: u64, item: InodeItem) {
        let mut known = self.item.write();
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.version.store(version, Ordering::Relaxed);
        self.size.store(item.size, Ordering::Relaxed);
        self.flags.store(item.flags.bits(), Ordering::Relaxed);
        self.turn.store(turn + 2, Ordering::Release);
        *known = Some((version, item));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::items::inode::InodeItem;

    fn item(size: u64) -> InodeItem {
        let bytes = [0; InodeItem::SIZE];
        let item = InodeItem::parse(&bytes).expect("zeros are an item");
        InodeItem { size, flags: InodeFlags::from_bits_retain(size), ..item }
    }

    #[test]
    fn only_the_version_asked_for_is_given() {
        let known = KnownItem::default();
        assert_eq!((known.glance(0), known.get(0)), (None, None));
        known.set(0, item(5));
        assert_eq!(known.glance(0).map(|glance| glance.size), Some(5));
        known.set(7, item(9));
        assert_eq!((known.glance(0), known.get(0)), (None, None));
        assert_eq!(known.glance(7), known.get(7).map(|item| Glance::of(&item)));
    }

    #[test]
    fn a_glance_is_of_one_item() {
        let known = KnownItem::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 1..200_000 {
                    known.set(3, item(turn));
                }
            });
            let mut last = 0;
            while last < 199_999 {
                if let Some(glance) = known.glance(3) {
                    assert_eq!(glance.size, glance.flags.bits());
                    assert!(glance.size >= last);
                    last = glance.size;
                }
            }
        });
    }
}
