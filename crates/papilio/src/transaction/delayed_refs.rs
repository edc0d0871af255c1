//! Delayed references: what changes did to extents, merged in memory until the extent tree is told.
//!
//! Owns [`DelayedRefs`], [`Head`] and [`Reference`]. Invariants: one head for an extent; a head keeps the
//! sum of what happened to each reference, so that an addition and a removal leave no trace; an extent
//! that was new and lost all references goes without having been in the extent tree.
//!
//! Lock: one, for one operation on the map at a time; a leaf. Kernel counterpart:
//! `fs/btrfs/delayed-ref.c`.

use papilio_format::items::back_ref::BackRef;
use papilio_format::{FileOffset, Generation, InodeNumber, Key, LogicalAddress, TreeId};
use papilio_locks::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Who refers to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reference {
    /// A tree, to a block of it.
    Tree(TreeId),
    /// A parent block, to a tree block.
    SharedBlock(LogicalAddress),
    /// Extent items of an inode.
    Data {
        /// The subvolume.
        root: TreeId,
        /// The inode.
        inode: InodeNumber,
        /// File offset that the extent's first byte would have.
        offset: FileOffset,
    },
    /// Extent items in a leaf.
    SharedData(LogicalAddress),
}

impl Reference {
    /// What an item of the extent tree refers by; `None` for a record of ownership only.
    pub(super) fn of(reference: &BackRef) -> Option<Self> {
        Some(match *reference {
            BackRef::Owner { .. } => return None,
            BackRef::TreeBlock { root } => Self::Tree(root),
            BackRef::SharedBlock { parent } => Self::SharedBlock(parent),
            BackRef::Data { root, inode, offset, .. } => Self::Data { root, inode, offset },
            BackRef::SharedData { parent, .. } => Self::SharedData(parent),
        })
    }

    /// `count` such references, as the extent tree has them.
    pub(super) fn counted(&self, count: u32) -> BackRef {
        match *self {
            Self::Tree(root) => BackRef::TreeBlock { root },
            Self::SharedBlock(parent) => BackRef::SharedBlock { parent },
            Self::Data { root, inode, offset } => BackRef::Data { root, inode, offset, count },
            Self::SharedData(parent) => BackRef::SharedData { parent, count },
        }
    }
}

/// What kind of extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentKind {
    /// A tree block of that level.
    TreeBlock {
        /// 0 for a leaf.
        level: u8,
    },
    /// File data.
    Data,
}

/// What happened to one extent.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// Bytes.
    pub(crate) length: u64,
    /// What it holds.
    pub(crate) kind: ExtentKind,
    /// The extent tree has no item for it yet.
    pub(crate) new: bool,
    /// The transaction that made it, where new.
    pub(crate) generation: Generation,
    /// A tree block's first key, for the items of old file systems.
    pub(crate) first_key: Key,
    /// The block's references are to be counted by the block from now on.
    pub(crate) full_backref: bool,
    /// The sums.
    pub(crate) changes: ReferenceChanges,
}

/// Sums of what happened to the references of an extent, none of them 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReferenceChanges {
    /// The least one. Mostly it is the only one, and heads are many.
    first: Option<(Reference, i64)>,
    more: BTreeMap<Reference, i64>,
}

impl ReferenceChanges {
    /// Adds `change` to the sum of a reference.
    pub(crate) fn add(&mut self, reference: Reference, change: i64) {
        match &mut self.first {
            Some((first, sum)) if *first == reference => {
                *sum += change;
                if *sum == 0 {
                    self.first = self.more.pop_first();
                }
            }
            Some((first, _)) if *first < reference => {
                let sum = self.more.entry(reference).or_insert(0);
                *sum += change;
                if *sum == 0 {
                    self.more.remove(&reference);
                }
            }
            _ if change == 0 => {}
            first => {
                if let Some((reference, sum)) = first.replace((reference, change)) {
                    self.more.insert(reference, sum);
                }
            }
        }
    }

    /// Whether nothing is left of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The references and their sums, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Reference, &i64)> {
        self.first.iter().map(|(reference, sum)| (reference, sum)).chain(&self.more)
    }
}

impl Head {
    /// A head without changes.
    pub(crate) fn new(length: u64, kind: ExtentKind) -> Self {
        Self {
            length,
            kind,
            new: false,
            generation: Generation(0),
            first_key: Key::MIN,
            full_backref: false,
            changes: ReferenceChanges::default(),
        }
    }

    /// The sum of all changes.
    pub(crate) fn total(&self) -> i64 {
        self.changes.iter().map(|(_, change)| change).sum()
    }
}

/// What became of an extent by a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "space of an extent that is gone must be given back"]
pub(crate) enum Outcome {
    /// It waits for the extent tree.
    Queued,
    /// It was new and has no reference left: it is gone, and its space with it.
    Gone,
}

/// Bytes of memory that a head takes, with its share of a map that is filled in ascending order, which leaves it half empty.
const HEAD_BYTES: u64 = (size_of::<Head>() + size_of::<LogicalAddress>()) as u64 * 2;

/// The heads of the running transaction, by logical address.
#[derive(Debug, Default)]
pub(crate) struct DelayedRefs {
    heads: Mutex<BTreeMap<LogicalAddress, Head>>,
    /// How many there are, to be asked without the lock.
    count: AtomicUsize,
}

impl DelayedRefs {
    /// A new extent with its first references.
    pub(crate) fn insert_new(&self, address: LogicalAddress, head: Head) {
        debug_assert!(head.new && head.total() > 0);
        let mut heads = self.heads.lock();
        let before = heads.insert(address, head);
        assert!(before.is_none(), "extent {address} is given out once");
        self.count.store(heads.len(), Ordering::Relaxed);
    }

    /// `change` further references of one kind to an extent (negative: fewer).
    pub(crate) fn change(
        &self,
        address: LogicalAddress,
        length: u64,
        kind: ExtentKind,
        reference: Reference,
        change: i64,
    ) -> Outcome {
        let mut heads = self.heads.lock();
        let head = heads.entry(address).or_insert_with(|| Head::new(length, kind));
        head.changes.add(reference, change);
        let gone = head.new && head.total() == 0;
        if gone || head.changes.is_empty() && !head.full_backref {
            heads.remove(&address);
        }
        self.count.store(heads.len(), Ordering::Relaxed);
        if gone { Outcome::Gone } else { Outcome::Queued }
    }

    /// The block's references count by the block from now on.
    pub(crate) fn set_full_backref(&self, address: LogicalAddress, length: u64, level: u8) {
        let mut heads = self.heads.lock();
        let head = heads.entry(address).or_insert_with(|| Head::new(length, ExtentKind::TreeBlock { level }));
        head.full_backref = true;
        self.count.store(heads.len(), Ordering::Relaxed);
    }

    /// What waits for an extent: the sum of changes, whether its references are to count by the block,
    /// and whether it is new.
    pub(crate) fn pending(&self, address: LogicalAddress) -> Option<(i64, bool, bool)> {
        self.heads.lock().get(&address).map(|head| (head.total(), head.full_backref, head.new))
    }

    /// What waits for an extent from references of one kind.
    pub(crate) fn pending_head(&self, address: LogicalAddress) -> Option<Head> {
        self.heads.lock().get(&address).cloned()
    }

    /// Takes all heads, ascending by address.
    pub(crate) fn take(&self) -> BTreeMap<LogicalAddress, Head> {
        let mut heads = self.heads.lock();
        self.count.store(0, Ordering::Relaxed);
        std::mem::take(&mut heads)
    }

    /// Heads that wait.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Bytes of memory that they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.len() as u64 * HEAD_BYTES
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.heads.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: ExtentKind = ExtentKind::TreeBlock { level: 0 };
    const AT: LogicalAddress = LogicalAddress(1 << 20);

    fn tree(id: u64) -> Reference {
        Reference::Tree(TreeId(id))
    }

    #[test]
    fn what_is_added_and_removed_leaves_no_trace() {
        let refs = DelayedRefs::default();
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), -1), Outcome::Queued);
        assert_eq!(refs.pending(AT), Some((-1, false, false)));
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), 1), Outcome::Queued);
        assert!(refs.is_empty());
    }

    #[test]
    fn a_new_extent_without_references_is_gone() {
        let refs = DelayedRefs::default();
        let mut head = Head::new(4096, BLOCK);
        head.new = true;
        head.changes.add(tree(5), 1);
        refs.insert_new(AT, head);
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(256), 1), Outcome::Queued);
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), -1), Outcome::Queued);
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(256), -1), Outcome::Gone);
        assert!(refs.is_empty());
    }

    #[test]
    fn sums_are_those_of_each_reference_in_order() {
        let mut changes = ReferenceChanges::default();
        let mut sums = BTreeMap::new();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let (id, change) = (random.u64(1..6), random.i64(-1..=1));
            changes.add(tree(id), change);
            *sums.entry(tree(id)).or_insert(0) += change;
            sums.retain(|_, sum| *sum != 0);
            assert!(changes.iter().eq(&sums), "{changes:?} instead of {sums:?}");
            assert_eq!(changes.is_empty(), sums.is_empty());
        }
    }

    #[test]
    fn counting_by_the_block_is_kept_without_changes() {
        let refs = DelayedRefs::default();
        refs.set_full_backref(AT, 4096, 1);
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), 1), Outcome::Queued);
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), -1), Outcome::Queued);
        assert_eq!(refs.pending(AT), Some((0, true, false)));
    }
}
