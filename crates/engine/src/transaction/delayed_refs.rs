//! Delayed references: reference changes of extents, merged in memory until a commit applies them.
//!
//! Owns [`DelayedRefs`], [`Head`] and [`Reference`].
//!
//! **Invariants**
//! - There is one head for an extent.
//! - A head keeps the net change of each reference, so that an addition and a removal cancel out.
//! - A new extent that loses all references vanishes without ever entering the extent tree.
//!
//! **Locks**: one, a leaf, held for one operation on the map at a time.
//!
//! Kernel counterpart: `fs/btrfs/delayed-ref.c`.

use crate::errors::{Error, Result};
use crate::space::{LogicalRange, extent_error};
use papilio_format::items::back_ref::BackRef;
use papilio_format::{FileOffset, Generation, InodeNumber, Key, LogicalAddress, TreeId};
use papilio_locks::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A reference to an extent: the tree, block or inode that refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// A tree, which owns a tree block.
    Tree(TreeId),
    /// The address of a parent block, which refers to a tree block.
    SharedBlock(LogicalAddress),
    /// Extent items of one inode, which refer to data.
    Data {
        /// The subvolume.
        root: TreeId,
        /// The inode.
        inode: InodeNumber,
        /// The file offset that the extent's first byte would have.
        offset: FileOffset,
    },
    /// The address of a leaf whose extent items refer to data.
    SharedData(LogicalAddress),
}

impl Reference {
    /// Converts a back reference of the extent tree; `None` for one that only records ownership.
    pub(super) fn of(reference: &BackRef) -> Option<Self> {
        Some(match *reference {
            BackRef::Owner { .. } => return None,
            BackRef::TreeBlock { root } => Self::Tree(root),
            BackRef::SharedBlock { parent } => Self::SharedBlock(parent),
            BackRef::Data { root, inode, offset, .. } => Self::Data { root, inode, offset },
            BackRef::SharedData { parent, .. } => Self::SharedData(parent),
        })
    }

    /// Converts `count` such references to a back reference of the extent tree.
    pub(super) fn counted(&self, count: u32) -> BackRef {
        match *self {
            Self::Tree(root) => BackRef::TreeBlock { root },
            Self::SharedBlock(parent) => BackRef::SharedBlock { parent },
            Self::Data { root, inode, offset } => BackRef::Data { root, inode, offset, count },
            Self::SharedData(parent) => BackRef::SharedData { parent, count },
        }
    }
}

/// The kind of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefKind {
    /// A tree block.
    TreeBlock {
        /// The block's level; 0 for a leaf.
        level: u8,
    },
    /// File data.
    Data,
}

/// The net change of one extent.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// The extent's length in bytes.
    pub(crate) length: u64,
    /// The extent's kind.
    pub(crate) kind: RefKind,
    /// Whether the extent tree has no item for it yet.
    pub(crate) new: bool,
    /// The transaction that allocated it, if it is new.
    pub(crate) generation: Generation,
    /// The tree that allocated it, if it is new: simple quotas charge it. Data has it only with
    /// simple quotas, and its item then names the tree.
    pub(crate) owner: Option<TreeId>,
    /// A tree block's first key, which file systems without `SKINNY_METADATA` store.
    pub(crate) first_key: Key,
    /// Whether the block's references to its children are counted by the block from now on.
    pub(crate) full_backref: bool,
    /// Whether the subvolumes that reach the extent may change, and what is known about them.
    pub(crate) touch: Option<QuotaMark>,
    /// The net change of each reference.
    pub(crate) changes: ReferenceChanges,
}

/// A mark for quotas: the subvolumes that reach the extent may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaMark {
    /// The one subvolume that reached the extent when the transaction began, if that is known.
    pub(crate) only: Option<TreeId>,
    /// A tree block's first key, if it is known.
    pub(crate) key: Option<Key>,
    /// Whether subvolumes that no reference names may reach it, although it is new.
    pub(crate) shared: bool,
}

/// Net changes of the references of an extent, none of them 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReferenceChanges {
    /// The least reference. Most heads have only one, and heads are many.
    first: Option<(Reference, i64)>,
    more: BTreeMap<Reference, i64>,
    /// The sum of all changes. Each further clone of an extent asks for it.
    total: i64,
}

impl ReferenceChanges {
    /// Adds `change` to the net change of a reference.
    pub(crate) fn add(&mut self, reference: Reference, change: i64) {
        self.total += change;
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

    /// Whether all changes have cancelled out.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The references and their net changes, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Reference, &i64)> {
        self.first.iter().map(|(reference, sum)| (reference, sum)).chain(&self.more)
    }
}

impl Head {
    /// A head without changes.
    pub(crate) fn new(length: u64, kind: RefKind) -> Self {
        Self {
            length,
            kind,
            new: false,
            generation: Generation(0),
            owner: None,
            first_key: Key::MIN,
            full_backref: false,
            touch: None,
            changes: ReferenceChanges::default(),
        }
    }

    /// Adds a mark. The first one saw the extent as the transaction found it.
    fn mark(&mut self, touch: Option<QuotaMark>) {
        match (&mut self.touch, touch) {
            (Some(first), Some(touch)) => first.key = first.key.or(touch.key),
            (mark, touch) => *mark = mark.or(touch),
        }
    }

    /// Whether nothing has to change in the extent tree.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.changes.is_empty() && !self.full_backref && !self.new
    }

    /// The one tree that all changed references name, if it is one.
    pub(crate) fn only_tree(&self) -> Option<TreeId> {
        let mut trees = self.changes.iter().map(|(reference, _)| match *reference {
            Reference::Tree(root) | Reference::Data { root, .. } => Some(root),
            Reference::SharedBlock(_) | Reference::SharedData(_) => None,
        });
        let first = trees.next()??;
        trees.all(|tree| tree == Some(first)).then_some(first)
    }

    /// The net change of the reference count.
    pub(crate) fn total(&self) -> i64 {
        self.changes.total
    }
}

/// The state of an extent after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the space of an extent that is gone must be released"]
pub(crate) enum Outcome {
    /// The change waits for the next commit.
    Queued,
    /// The extent was new and lost its last reference. The caller releases its space.
    Gone,
}

/// The error of an extent whose references contradict each other; its length is not known.
pub(super) fn wrong_extent(address: LogicalAddress, why: &'static str) -> Error {
    extent_error(LogicalRange { start: address, length: 0 }, why)
}

/// Bytes of memory for one head. A map filled in ascending order leaves its nodes half empty, hence
/// the factor of 2.
const HEAD_BYTES: u64 = (size_of::<Head>() + size_of::<LogicalAddress>()) as u64 * 2;

/// The heads of the running transaction, by logical address.
#[derive(Debug, Default)]
pub(crate) struct DelayedRefs {
    heads: Mutex<BTreeMap<LogicalAddress, Head>>,
    /// The number of heads, readable without the lock.
    count: AtomicUsize,
    /// Bytes of data that lost references, and that the commit may therefore free.
    dropped: AtomicU64,
}

impl DelayedRefs {
    /// Adds a new extent with its first references.
    ///
    /// # Errors
    /// Corruption: its space seemed free, but trees already referred to an extent there.
    pub(crate) fn insert_new(&self, address: LogicalAddress, head: Head) -> Result<()> {
        debug_assert!(head.new && head.total() > 0);
        let mut heads = self.heads.lock();
        match heads.entry(address) {
            Entry::Occupied(old) => {
                assert!(!old.get().new, "extent {address} was allocated twice");
                let why = "its space was free, but a tree refers to it";
                return Err(wrong_extent(address, why));
            }
            Entry::Vacant(place) => place.insert(head),
        };
        self.count.store(heads.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Adds `change` references of one kind to an extent; a negative number removes some.
    pub(crate) fn change(
        &self,
        address: LogicalAddress,
        length: u64,
        kind: RefKind,
        reference: Reference,
        change: i64,
        touch: Option<QuotaMark>,
    ) -> Outcome {
        let mut heads = self.heads.lock();
        if change < 0 && kind == RefKind::Data {
            self.dropped.fetch_add(length, Ordering::Relaxed);
        }
        let head = heads.entry(address).or_insert_with(|| Head::new(length, kind));
        head.changes.add(reference, change);
        head.mark(touch);
        let gone = head.new && head.total() == 0;
        if gone || head.changes.is_empty() && !head.full_backref && head.touch.is_none() {
            heads.remove(&address);
        }
        self.count.store(heads.len(), Ordering::Relaxed);
        if gone { Outcome::Gone } else { Outcome::Queued }
    }

    /// Returns whether the data extent of `length` bytes at `address` is new and has `reference`,
    /// once, and no other.
    pub(crate) fn is_new_with_only(
        &self,
        address: LogicalAddress,
        length: u64,
        reference: Reference,
    ) -> bool {
        self.heads.lock().get(&address).is_some_and(|head| {
            head.new
                && head.kind == RefKind::Data
                && head.length == length
                && head.changes.iter().eq([(&reference, &1)])
        })
    }

    /// Adds `bytes` bytes, allocated behind it, to a new extent.
    ///
    /// # Panics
    /// If there is no new extent at `address`.
    pub(crate) fn extend_new(&self, address: LogicalAddress, bytes: u64) {
        let mut heads = self.heads.lock();
        let head = heads.get_mut(&address).filter(|head| head.new).expect("the extent is new");
        head.length += bytes;
    }

    /// Marks an extent whose references do not change, though the subvolumes that reach it may.
    pub(crate) fn touch(&self, address: LogicalAddress, length: u64, kind: RefKind, touch: QuotaMark) {
        let mut heads = self.heads.lock();
        let head = heads.entry(address).or_insert_with(|| Head::new(length, kind));
        head.mark(Some(touch));
        self.count.store(heads.len(), Ordering::Relaxed);
    }

    /// Returns what `read` makes of each marked extent, ascending by address.
    pub(crate) fn touched<R>(&self, read: impl Fn(LogicalAddress, &Head, QuotaMark) -> R) -> Vec<R> {
        let heads = self.heads.lock();
        heads.iter().filter_map(|(&address, head)| Some(read(address, head, head.touch?))).collect()
    }

    /// Marks a block `FULL_BACKREF`: its references to children count by the block from now on.
    pub(crate) fn set_full_backref(&self, address: LogicalAddress, length: u64, level: u8) {
        let mut heads = self.heads.lock();
        let head = heads.entry(address).or_insert_with(|| Head::new(length, RefKind::TreeBlock { level }));
        head.full_backref = true;
        self.count.store(heads.len(), Ordering::Relaxed);
    }

    /// The pending changes of an extent: its net change, whether its references are to count by the
    /// block, and whether it is new.
    pub(crate) fn pending(&self, address: LogicalAddress) -> Option<(i64, bool, bool)> {
        self.heads.lock().get(&address).map(|head| (head.total(), head.full_backref, head.new))
    }

    /// A copy of an extent's head, if it has pending changes.
    pub(crate) fn pending_head(&self, address: LogicalAddress) -> Option<Head> {
        self.heads.lock().get(&address).cloned()
    }

    /// Takes all heads, ascending by address.
    pub(crate) fn take(&self) -> BTreeMap<LogicalAddress, Head> {
        let mut heads = self.heads.lock();
        self.count.store(0, Ordering::Relaxed);
        self.dropped.store(0, Ordering::Relaxed);
        std::mem::take(&mut heads)
    }

    /// Bytes of data that lost references since the last commit.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The number of heads.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Bytes of memory that the heads take.
    pub(crate) fn bytes(&self) -> u64 {
        self.len() as u64 * HEAD_BYTES
    }

    /// Whether there are no heads.
    pub(crate) fn is_empty(&self) -> bool {
        self.heads.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: RefKind = RefKind::TreeBlock { level: 0 };
    const AT: LogicalAddress = LogicalAddress(1 << 20);

    fn tree(id: u64) -> Reference {
        Reference::Tree(TreeId(id))
    }

    #[test]
    fn adding_and_removing_a_reference_leaves_no_trace() {
        let refs = DelayedRefs::default();
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), -1, None), Outcome::Queued);
        assert_eq!(refs.pending(AT), Some((-1, false, false)));
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), 1, None), Outcome::Queued);
        assert!(refs.is_empty());
    }

    #[test]
    fn a_new_extent_in_the_place_of_another_is_corruption() {
        let refs = DelayedRefs::default();
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), -1, None), Outcome::Queued);
        let mut head = Head::new(4096, BLOCK);
        head.new = true;
        head.changes.add(tree(7), 1);
        let error = refs.insert_new(AT, head).unwrap_err().to_string();
        assert!(error.contains("its space was free"), "{error}");
        assert_eq!(refs.pending(AT), Some((-1, false, false)));
    }

    #[test]
    fn new_extent_without_references_is_gone() {
        let refs = DelayedRefs::default();
        let mut head = Head::new(4096, BLOCK);
        head.new = true;
        head.changes.add(tree(5), 1);
        refs.insert_new(AT, head).unwrap();
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(256), 1, None), Outcome::Queued);
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), -1, None), Outcome::Queued);
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(256), -1, None), Outcome::Gone);
        assert!(refs.is_empty());
    }

    #[test]
    fn only_a_new_extent_with_one_reference_can_be_extended() {
        let refs = DelayedRefs::default();
        let data =
            |inode| Reference::Data { root: TreeId(5), inode: InodeNumber(inode), offset: FileOffset(0) };
        let mut head = Head::new(8192, RefKind::Data);
        head.new = true;
        head.changes.add(data(257), 1);
        refs.insert_new(AT, head).unwrap();
        assert!(refs.is_new_with_only(AT, 8192, data(257)));
        assert!(!refs.is_new_with_only(AT, 4096, data(257)), "another length");
        assert!(!refs.is_new_with_only(AT, 8192, data(258)), "another file");
        refs.extend_new(AT, 4096);
        assert!(refs.is_new_with_only(AT, 12288, data(257)));
        assert_eq!(refs.change(AT, 12288, RefKind::Data, data(257), 1, None), Outcome::Queued);
        assert!(!refs.is_new_with_only(AT, 12288, data(257)), "two references");
        assert_eq!(refs.change(AT, 12288, RefKind::Data, data(257), -1, None), Outcome::Queued);
        assert_eq!(refs.change(AT, 12288, RefKind::Data, data(258), 1, None), Outcome::Queued);
        assert!(!refs.is_new_with_only(AT, 12288, data(257)), "shared with another file");
        assert_eq!(refs.take()[&AT].length, 12288);
        assert_eq!(refs.change(AT, 12288, RefKind::Data, data(258), 1, None), Outcome::Queued);
        assert!(!refs.is_new_with_only(AT, 12288, data(258)), "the extent tree has it");
    }

    #[test]
    fn touched_extent_stays_pending_until_it_is_gone() {
        let refs = DelayedRefs::default();
        let touch = QuotaMark { only: Some(TreeId(5)), key: None, shared: false };
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), -1, Some(touch)), Outcome::Queued);
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), 1, None), Outcome::Queued);
        assert_eq!(refs.touched(|at, head, touch| (at, head.is_unchanged(), touch)), [(AT, true, touch)]);
        assert!(refs.take()[&AT].is_unchanged());
    }

    #[test]
    fn net_changes_match_a_map_of_counts() {
        let mut changes = ReferenceChanges::default();
        let mut sums = BTreeMap::new();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let (id, change) = (random.u64(1..6), random.i64(-1..=1));
            changes.add(tree(id), change);
            *sums.entry(tree(id)).or_insert(0) += change;
            sums.retain(|_, sum| *sum != 0);
            assert!(changes.iter().eq(&sums), "got {changes:?}, expected {sums:?}");
            assert_eq!(changes.is_empty(), sums.is_empty());
            assert_eq!(changes.total, sums.values().sum::<i64>());
        }
    }

    #[test]
    fn full_backref_stays_pending_without_net_changes() {
        let refs = DelayedRefs::default();
        refs.set_full_backref(AT, 4096, 1);
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), 1, None), Outcome::Queued);
        assert_eq!(refs.change(AT, 4096, BLOCK, tree(5), -1, None), Outcome::Queued);
        assert_eq!(refs.pending(AT), Some((0, true, false)));
    }
}
