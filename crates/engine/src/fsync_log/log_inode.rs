//! Entering an inode into the log, for an fsync.
//!
//! Owns [`log_file`], which turns the changes of an inode since the last commit into items. It logs
//! - the inode item;
//! - all extended attributes, because replay deletes those that the log does not have;
//! - the extents of changed ranges with their checksums;
//! - holes as items, even where the file system does without;
//! - changed names, with all inodes that they concern ([`Related`]).
//!
//! A name that exists is logged as a reference of its inode, as in the subvolume. A name that is
//! gone is logged as a range of indexes of its directory in which the log has no entry.
//!
//! Items are complete before the log tree's lock is taken, and enter it in one pass. The
//! alternative, which inserts item after item under the lock, is kept for comparison
//! ([`LogItems`]).
//!
//! **Invariants**
//! - Extent items in the log do not overlap.
//! - The caller makes sure that one thread at a time logs a file, and that no names change while
//!   names are logged.
//!
//! **Locks**: the log tree's writer lock.
//!
//! Kernel counterparts: `btrfs_log_inode`, `log_one_extent`, `btrfs_log_holes`
//! (`fs/btrfs/tree-log.c`).

use crate::btree::{Change, LiveTree, Tree, TreeEditor};
use crate::data::checksum::DataChecksums;
#[cfg(feature = "ablation")]
use crate::data::csum_edit::insert_short_checksums;
use crate::data::csum_edit::{ChecksumRuns, plan_short_checksums};
use crate::data::file_extents_edit::{hole, on_disk};
use crate::data::stored_extents::StoredExtents;
use crate::errors::Result;
use crate::fsync_log::dir_log_key;
use crate::fsync_log::name_changes::NameChanges;
use crate::fsync_log::related_names::Related;
use crate::items::dir_edit::dir_index_key;
use crate::items::inode;
use crate::space::RangeSet;
use crate::transaction::{Handle, LogTicket};
use crate::tuning::LogItems;
use papilio_format::items::dir_log::DirLogItem;
use papilio_format::items::file_extent::{Compression, FileExtentContent, file_extent_key};
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, inode_key};
use papilio_format::{FileOffset, Geometry, InodeNumber, ItemType, Key, LogicalAddress, objectid};
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

/// Most extents that an fsync logs. Beyond that, a commit is as quick.
const MAX_EXTENTS: usize = 4096;

/// Most checksums in one item of a log. Each fsync rewrites such an item.
const MAX_SUMS: usize = 128;

/// An inode to be logged, and how.
#[derive(Clone, Copy)]
pub(crate) struct LogRequest<'a> {
    /// Its subvolume.
    pub(crate) live: &'a LiveTree,
    /// Its number.
    pub(crate) inode: InodeNumber,
    /// The ranges that changed since the last commit and are not in the log; `None` if unknown.
    pub(crate) changed: Option<&'a RangeSet>,
    /// Set if names may be entered too.
    pub(crate) names: Option<WithNames<'a>>,
    /// How items enter the log.
    pub(crate) how: LogItems,
}

/// The state that logging names needs. The caller holds [`NameChanges::entering`].
#[derive(Clone, Copy)]
pub(crate) struct WithNames<'a> {
    /// The names that the log does not have yet.
    pub(crate) changes: &'a NameChanges,
    /// The changed ranges of another file, as in [`LogRequest::changed`].
    pub(crate) changed_of: &'a dyn Fn(InodeNumber) -> Option<RangeSet>,
    /// Whether another file has dirty data in memory that must be logged with it.
    pub(crate) unflushed: &'a dyn Fn(InodeNumber) -> bool,
}

/// The result of logging an inode.
#[derive(Clone, Debug)]
#[must_use]
pub(crate) enum Logged {
    /// The inode is entered, and durable once the ticket is synced.
    Entered(LogTicket),
    /// The last commit or the log has all of it already.
    Nothing,
    /// Names have to be logged too.
    NeedsNames,
    /// These files have to be logged too, and flushed first.
    NeedsFlush(Vec<InodeNumber>),
    /// The log cannot express the change; says why.
    NeedsCommit(&'static str),
}

/// The items that are to enter the log.
struct Gathered {
    /// By key; `None` removes the item.
    items: BTreeMap<Key, Option<Vec<u8>>>,
    inodes: Vec<InodeNumber>,
    sums: ChecksumRuns,
}

/// Enters an inode into the log of its subvolume.
///
/// # Errors
/// Blocks and items that cannot be read; [`crate::Error::NoSpace`]. The log is then unchanged, or
/// marked so that only a commit makes its changes durable.
pub(crate) fn log_file(handle: &Handle<'_>, request: &LogRequest<'_>) -> Result<Logged> {
    let transactions = handle.transactions();
    let generation = handle.generation();
    let (tree, id) = (request.live.tree(), request.live.id());
    if !request.live.is_referenced() {
        // Replay leaves out logs of deleted subvolumes.
        return Ok(Logged::NeedsCommit("the subvolume was deleted"));
    }
    let Some(item) = inode::inode(&tree, request.inode)? else { return Ok(Logged::Nothing) };
    if item.nlink == 0 || item.transid < generation {
        return Ok(Logged::Nothing);
    }
    if request.live.record().is_none_or(|record| record.item.otransid >= generation) {
        return Ok(Logged::NeedsCommit("the subvolume is new"));
    }
    let related = match request.names {
        None if item.generation == generation && !transactions.is_logged(id, request.inode) => {
            return Ok(Logged::NeedsNames);
        }
        None => Related::default(),
        Some(names) => {
            let related = names.changes.with_subvolume(generation, id, |names| match names {
                Some(names) => Related::of(names, &tree, generation, request.inode),
                None => Ok(Err("too many names changed")),
            });
            let related = match related? {
                Ok(related) => related,
                Err(why) => return Ok(Logged::NeedsCommit(why)),
            };
            let others = related.inodes.keys().copied().filter(|inode| *inode != request.inode);
            let unflushed: Vec<_> = others
                .filter(|inode| !transactions.is_logged(id, *inode) && (names.unflushed)(*inode))
                .collect();
            if !unflushed.is_empty() {
                return Ok(Logged::NeedsFlush(unflushed));
            }
            related
        }
    };
    let log = transactions.log_tree(handle, id)?;
    let gather = || Gatherer { handle, request, tree: &tree, log: &log.tree() }.gather(&item, &related);
    let ticket = match request.how {
        LogItems::Prepared => match gather()? {
            Ok(gathered) => transactions.enter_log(handle, id, |editor| put_at_once(editor, gathered))?,
            Err(why) => return Ok(Logged::NeedsCommit(why)),
        },
        #[cfg(feature = "ablation")]
        LogItems::InPlace => {
            let mut refused = None;
            let ticket = transactions.enter_log(handle, id, |editor| match gather()? {
                Ok(gathered) => put_one_by_one(editor, gathered),
                Err(why) => {
                    refused = Some(why);
                    Ok(Vec::new())
                }
            })?;
            if let Some(why) = refused {
                return Ok(Logged::NeedsCommit(why));
            }
            ticket
        }
    };
    for inode in &related.gone {
        transactions.forget_logged(id, *inode);
    }
    if let Some(names) = request.names {
        let inodes = related.inodes.keys().chain(&related.gone).copied();
        names.changes.entered(generation, id, related.slots.iter(), inodes);
    }
    Ok(Logged::Entered(ticket))
}

/// Removes an inode that lost its last name from the log, so that a replay does not bring it back.
/// If the last commit has the inode, the log keeps everything but its names. The inode's name still
/// exists in that commit, and without a new commit earlier fsyncs of it must hold.
///
/// # Errors
/// As [`log_file`].
pub fn forget_inode(handle: &Handle<'_>, live: &LiveTree, inode: InodeNumber) -> Result<()> {
    let transactions = handle.transactions();
    if !transactions.is_logged(live.id(), inode) {
        return Ok(());
    }
    let log = transactions.log_tree(handle, live.id())?;
    let is_new = inode::inode(&log.tree(), inode)?.is_none_or(|item| item.generation >= handle.generation());
    let types =
        if is_new { ItemType(0)..=ItemType(u8::MAX) } else { ItemType::INODE_REF..=ItemType::INODE_EXTREF };
    let _ = transactions.enter_log(handle, live.id(), |editor| {
        let last = Key::new(inode.0, *types.end(), u64::MAX);
        editor.remove_range(Key::new(inode.0, *types.start(), 0)..=last)?;
        Ok(Vec::new())
    })?;
    transactions.forget_logged(live.id(), inode);
    Ok(())
}

fn change((key, data): (Key, Option<Vec<u8>>)) -> Change {
    match data {
        Some(data) => Change::Put { key, data },
        None => Change::Remove { key },
    }
}

/// Applies all items in one pass over the tree; returns the inodes.
fn put_at_once(editor: &mut TreeEditor<'_>, gathered: Gathered) -> Result<Vec<InodeNumber>> {
    let mut changes: Vec<_> = gathered.items.into_iter().map(change).collect();
    if !gathered.sums.is_empty() {
        // Their keys follow those of all inodes. Only here is it known which item they extend,
        // which may be another file's.
        changes.extend(plan_short_checksums(editor, gathered.sums, MAX_SUMS)?);
    }
    editor.apply(&changes)?;
    Ok(gathered.inodes)
}

/// Applies the items one by one, then the checksums; returns the inodes.
#[cfg(feature = "ablation")]
fn put_one_by_one(editor: &mut TreeEditor<'_>, gathered: Gathered) -> Result<Vec<InodeNumber>> {
    for (key, data) in gathered.items {
        match data {
            Some(data) => editor.put(key, &data)?,
            None => editor.remove(key).map(drop)?,
        }
    }
    if !gathered.sums.is_empty() {
        insert_short_checksums(editor, gathered.sums, MAX_SUMS)?;
    }
    Ok(gathered.inodes)
}

/// The inputs of gathering items.
struct Gatherer<'a> {
    handle: &'a Handle<'a>,
    request: &'a LogRequest<'a>,
    /// The subvolume's tree.
    tree: &'a Tree,
    /// The subvolume's log tree.
    log: &'a Tree,
}

impl Gatherer<'_> {
    /// Collects all items for the log, or says why the log cannot express the change.
    fn gather(&self, item: &InodeItem, related: &Related) -> Result<Result<Gathered, &'static str>> {
        let mut gathered = Gathered {
            items: BTreeMap::new(),
            inodes: Vec::new(),
            sums: ChecksumRuns::new(&self.geometry()),
        };
        self.add_inode(&mut gathered, self.request.inode, item)?;
        if let Some(why) = self.add_data(&mut gathered, self.request.inode, item)? {
            return Ok(Err(why));
        }
        if self.request.names.is_some()
            && let Some(why) = self.add_related(&mut gathered, related)?
        {
            return Ok(Err(why));
        }
        gathered.sums.remove_duplicates();
        Ok(Ok(gathered))
    }

    fn geometry(&self) -> Geometry {
        self.handle.transactions().volume().geometry()
    }

    fn is_logged(&self, inode: InodeNumber) -> bool {
        self.handle.transactions().is_logged(self.request.live.id(), inode)
    }

    /// Adds the names of related inodes, and the related inodes that the log does not have.
    fn add_related(&self, gathered: &mut Gathered, related: &Related) -> Result<Option<&'static str>> {
        for (&inode, item) in &related.inodes {
            self.add_names(gathered, inode)?;
            if inode == self.request.inode {
                continue;
            }
            // A logged file is of one moment with its data, as an fsync left it, so it stays.
            let is_file = item.kind() == Some(FileKind::Regular);
            if is_file && self.is_logged(inode) {
                continue;
            }
            self.add_inode(gathered, inode, item)?;
            if let Some(why) = self.add_data(gathered, inode, item)? {
                return Ok(Some(why));
            }
        }
        for &inode in &related.gone {
            for old in self.log.range(Key::first_of(inode.0)..=Key::last_of(inode.0)) {
                gathered.items.insert(old?.key, None);
            }
        }
        for &(directory, index) in &related.removed {
            // Skip entries that still exist because the change they were noted for failed.
            let Some(item) = inode::inode(self.tree, directory)?.filter(|item| item.nlink > 0) else {
                continue;
            };
            if self.tree.get(&dir_index_key(directory, index))?.is_some() {
                continue;
            }
            // Replay handles such ranges at the directory's inode item, so the log needs that item.
            if !gathered.items.contains_key(&inode_key(directory)) {
                self.add_inode(gathered, directory, &item)?;
            }
            let range = DirLogItem { end: index };
            gathered.items.insert(dir_log_key(directory, index), Some(range.to_bytes().to_vec()));
        }
        let many = gathered.items.len() > MAX_EXTENTS;
        Ok(many.then_some("too many items changed with it"))
    }

    /// Adds an inode and its attributes.
    fn add_inode(&self, gathered: &mut Gathered, inode: InodeNumber, item: &InodeItem) -> Result<()> {
        gathered.inodes.push(inode);
        gathered.items.insert(inode_key(inode), Some(item.to_bytes().to_vec()));
        self.replace(gathered, inode, ItemType::XATTR_ITEM..=ItemType::XATTR_ITEM)
    }

    /// Adds all references of an inode to its names.
    fn add_names(&self, gathered: &mut Gathered, inode: InodeNumber) -> Result<()> {
        // A subvolume's root directory has a reference to itself, which is in no directory.
        if inode == objectid::FIRST_INODE {
            return Ok(());
        }
        self.replace(gathered, inode, ItemType::INODE_REF..=ItemType::INODE_EXTREF)
    }

    /// Adds an inode's items as they are, and removals for those that the log has.
    fn replace(
        &self,
        gathered: &mut Gathered,
        inode: InodeNumber,
        types: RangeInclusive<ItemType>,
    ) -> Result<()> {
        let keys = Key::new(inode.0, *types.start(), 0)..=Key::new(inode.0, *types.end(), u64::MAX);
        for old in self.log.range(keys.clone()) {
            gathered.items.insert(old?.key, None);
        }
        for item in self.tree.range(keys) {
            let item = item?;
            gathered.items.insert(item.key, Some(item.data().to_vec()));
        }
        Ok(())
    }

    /// Adds what changed of a file's data, or a symbolic link's target. Returns why the log cannot
    /// express it, if so.
    fn add_data(
        &self,
        gathered: &mut Gathered,
        inode: InodeNumber,
        item: &InodeItem,
    ) -> Result<Option<&'static str>> {
        if !matches!(item.kind(), Some(FileKind::Regular | FileKind::Symlink)) {
            return Ok(None);
        }
        // The log has no descriptor and no Merkle tree.
        if item.flags.contains(InodeFlags::VERITY) && item.transid >= self.handle.generation() {
            return Ok(Some("fs-verity may have been turned on in this transaction"));
        }
        let is_new = item.generation == self.handle.generation() && !self.is_logged(inode);
        let changed = match (is_new, self.request.names) {
            (true, _) => Some(std::iter::once(0..u64::MAX).collect()),
            _ if inode == self.request.inode => self.request.changed.cloned(),
            (_, Some(names)) => (names.changed_of)(inode),
            _ => None,
        };
        let Some(changed) = changed else { return Ok(Some("its changed ranges are unknown")) };
        let sums = self.handle.transactions().live().find(objectid::CSUM_TREE)?.map(|live| live.tree());
        let sums = sums.as_ref().filter(|_| !item.flags.contains(InodeFlags::NODATASUM));
        for range in self.widened(inode, &changed)?.iter() {
            self.drop_extents(gathered, inode, &range)?;
            if !self.add_extents(gathered, inode, item, &range, sums)? {
                return Ok(Some("too many extents changed"));
            }
        }
        Ok(None)
    }

    /// Extends changed ranges to the boundaries of the items that they touch, here and in the log.
    fn widened(&self, inode: InodeNumber, changed: &RangeSet) -> Result<RangeSet> {
        let sector_size = self.geometry().sector_size;
        let mut ranges = RangeSet::default();
        for changed in changed.iter() {
            let mut range = changed;
            loop {
                let before = range.clone();
                let own = StoredExtents::new(self.tree, inode, sector_size, before.start, before.end);
                // A range that reaches to the end of the file only widens at its start, and the
                // first items tell how far.
                let looked_at = if before.end == u64::MAX { 1 } else { usize::MAX };
                for stored in own.take(looked_at).chain(self.logged_extents(inode, &before).take(looked_at)) {
                    let stored = stored?;
                    range = range.start.min(stored.start)..range.end.max(stored.end);
                }
                if range == before {
                    break;
                }
            }
            ranges.cover(&range);
        }
        Ok(ranges)
    }

    fn logged_extents(&self, inode: InodeNumber, range: &Range<u64>) -> StoredExtents<'_> {
        let sector_size = self.geometry().sector_size;
        StoredExtents::new(self.log, inode, sector_size, range.start, range.end)
    }

    /// Adds removals of all extents that the log has in the range.
    fn drop_extents(&self, gathered: &mut Gathered, inode: InodeNumber, range: &Range<u64>) -> Result<()> {
        for logged in self.logged_extents(inode, range) {
            let key = file_extent_key(inode, FileOffset(logged?.start));
            gathered.items.entry(key).or_insert(None);
        }
        Ok(())
    }

    /// Adds the extents and holes of a range. Returns false if there are too many.
    fn add_extents(
        &self,
        gathered: &mut Gathered,
        inode: InodeNumber,
        item: &InodeItem,
        range: &Range<u64>,
        sums: Option<&Tree>,
    ) -> Result<bool> {
        let geometry = self.geometry();
        let end_of_file = item.size.next_multiple_of(geometry.sector_size.into());
        let mut next = range.start;
        let add_hole = |gathered: &mut Gathered, from: u64, to: u64| {
            let to = to.min(end_of_file);
            if from < to {
                let item = hole(self.handle.generation(), to - from).to_bytes();
                gathered.items.insert(file_extent_key(inode, FileOffset(from)), Some(item));
            }
        };
        for stored in StoredExtents::new(self.tree, inode, geometry.sector_size, range.start, range.end) {
            let stored = stored?;
            add_hole(gathered, next, stored.start);
            next = stored.end;
            let extent = stored.extent();
            let key = file_extent_key(inode, FileOffset(stored.start));
            gathered.items.insert(key, Some(extent.to_bytes()));
            if gathered.items.len() > MAX_EXTENTS {
                return Ok(false);
            }
            let (Some(tree), FileExtentContent::Regular(_), Some(part)) =
                (sums, &extent.content, on_disk(&extent))
            else {
                continue;
            };
            let (address, length) = match extent.compression {
                Compression::None => (LogicalAddress(part.disk_address.0 + part.offset), part.length),
                _ => (part.disk_address, part.disk_length),
            };
            add_sums(&mut gathered.sums, tree, geometry, address, length)?;
        }
        add_hole(gathered, next, range.end);
        Ok(true)
    }
}

/// Adds the checksums of a range, skipping sectors without one.
fn add_sums(
    sums: &mut ChecksumRuns,
    tree: &Tree,
    geometry: Geometry,
    address: LogicalAddress,
    length: u64,
) -> Result<()> {
    let sector = u64::from(geometry.sector_size);
    let mut lookup = DataChecksums::new(tree, geometry);
    lookup.for_each_run(address, (length / sector) as usize, |first, _, found| {
        if let Some(found) = found {
            let start = LogicalAddress(address.0 + first as u64 * sector);
            sums.add(start, found);
        }
        true
    })
}
