//! The cached inode item of an open file.
//!
//! Owns [`CachedInodeItem`]: the item with the version of the tree that it was read from. Beside it
//! are the parts that each read needs, in atomics that are read without a lock (a sequence lock).
//!
//! Invariant: atomics that were read between two loads of the same even `turn` belong to one item.
//!
//! Lock: its own, for one copy.

use papilio_format::items::inode::{InodeFlags, InodeItem};
use papilio_locks::RwLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// An inode item, if one was read before.
#[derive(Debug, Default)]
pub(super) struct CachedInodeItem {
    item: RwLock<Option<(u64, InodeItem)>>,
    /// Odd while the atomics change; 0 before the first store.
    turn: AtomicU64,
    version: AtomicU64,
    size: AtomicU64,
    flags: AtomicU64,
}

/// The parts of an inode item that each read needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SizeAndFlags {
    pub(super) size: u64,
    pub(super) flags: InodeFlags,
}

impl SizeAndFlags {
    /// Returns the parts of an item.
    pub(super) fn of(item: &InodeItem) -> Self {
        Self { size: item.size, flags: item.flags }
    }
}

impl CachedInodeItem {
    /// Returns the item as of `version` of its tree.
    pub(super) fn get(&self, version: u64) -> Option<InodeItem> {
        let known = self.item.read();
        known.as_ref().filter(|(read_at, _)| *read_at == version).map(|(_, item)| *item)
    }

    /// Returns the last stored item, of whatever version.
    pub(super) fn last(&self) -> Option<InodeItem> {
        self.item.read().as_ref().map(|(_, item)| *item)
    }

    /// As [`CachedInodeItem::get`]; may also return `None` while another thread stores.
    #[inline]
    pub(super) fn size_and_flags(&self, version: u64) -> Option<SizeAndFlags> {
        let turn = self.turn.load(Ordering::Acquire);
        let known = self.version.load(Ordering::Relaxed);
        let (size, flags) = (self.size.load(Ordering::Relaxed), self.flags.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        // Turn 0: nothing was stored yet.
        let stood = turn != 0 && turn.is_multiple_of(2) && self.turn.load(Ordering::Relaxed) == turn;
        (stood && known == version).then(|| SizeAndFlags { size, flags: InodeFlags::from_bits_retain(flags) })
    }

    /// Stores the item. The caller took `version` before it read the item.
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
    fn only_the_requested_version_is_returned() {
        let known = CachedInodeItem::default();
        assert_eq!((known.size_and_flags(0), known.get(0)), (None, None));
        known.set(0, item(5));
        assert_eq!(known.size_and_flags(0).map(|size_and_flags| size_and_flags.size), Some(5));
        known.set(7, item(9));
        assert_eq!((known.size_and_flags(0), known.get(0)), (None, None));
        assert_eq!(known.size_and_flags(7), known.get(7).map(|item| SizeAndFlags::of(&item)));
    }

    #[test]
    fn size_and_flags_are_of_one_item() {
        let known = CachedInodeItem::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 1..200_000 {
                    known.set(3, item(turn));
                }
            });
            let mut last = 0;
            while last < 199_999 {
                if let Some(size_and_flags) = known.size_and_flags(3) {
                    assert_eq!(size_and_flags.size, size_and_flags.flags.bits());
                    assert!(size_and_flags.size >= last);
                    last = size_and_flags.size;
                }
            }
        });
    }
}
