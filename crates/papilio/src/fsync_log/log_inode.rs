//! What an fsync enters into the log.
//!
//! Owns [`log_file`]: from what changed of an inode since the last commit to the items that say so. Logged are
//! the inode item, all extended attributes (replay deletes others), the extents of changed ranges with their
//! checksums, holes as items even where the file system does without, and the names where they changed, with
//! all inodes that have to do with these ([`Related`]). A name that is there stands in its inode's
//! references, in the log as in the subvolume; one that is gone in a range of indexes of its directory, which
//! holds no entry in the log.
//!
//! Items are complete before the log tree's lock is taken, and enter it in one pass; the other way, one item
//! after the other while it is held, is kept to be compared with ([`LogItems`]). Invariants: extent items in
//! the log do not overlap; one file is logged by one thread at a time, and nobody changes names while names are
//! logged, both of which the caller sees to. Locks: the log tree's writer lock. Kernel counterparts: `btrfs_log_inode`, `log_one_extent`, `btrfs_log_holes`
//! (`fs/btrfs/tree-log.c`).

use crate::btree::{Change, LiveTree, Tree, TreeEditor};
use crate::data::checksum::DataChecksums;
use crate::data::csum_edit::{ChecksumRuns, insert_short_checksums, plan_short_checksums};
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

/// Extents that an fsync logs at most; beyond that, a commit is as quick.
const MAX_EXTENTS: usize = 4096;

/// Sums in one item of a log, which is written anew with each fsync, at most.
const MAX_SUMS: usize = 128;

/// What is known of an inode that is to be logged.
#[derive(Clone, Copy)]
pub(crate) struct LogRequest<'a> {
    /// Its subvolume.
    pub(crate) live: &'a LiveTree,
    /// Its number.
    pub(crate) inode: InodeNumber,
    /// The ranges that changed since the last commit and are not in the log; `None` if that is not known.
    pub(crate) changed: Option<&'a RangeSet>,
    /// Names may be entered too.
    pub(crate) names: Option<WithNames<'a>>,
    /// How items enter the log.
    pub(crate) how: LogItems,
}

/// What logging names takes. Who asks for it holds [`NameChanges::entering`].
#[derive(Clone, Copy)]
pub(crate) struct WithNames<'a> {
    /// Names that the log does not say yet.
    pub(crate) changes: &'a NameChanges,
    /// The changed ranges of another file, as in [`LogRequest::changed`].
    pub(crate) changed_of: &'a dyn Fn(InodeNumber) -> Option<RangeSet>,
    /// Whether another file has data in memory that it is to be logged with.
    pub(crate) unflushed: &'a dyn Fn(InodeNumber) -> bool,
}

/// What logging came to.
#[derive(Clone, Debug)]
#[must_use]
pub(crate) enum Logged {
    /// It is entered, and durable once the ticket is synced.
    Entered(LogTicket),
    /// All of it is in the last commit, or the log has it.
    Nothing,
    /// Names have to be logged with it.
    NeedsNames,
    /// These files have to be logged with it, and to be flushed first.
    NeedsFlush(Vec<InodeNumber>),
    /// The log cannot say it: why.
    NeedsCommit(&'static str),
}

/// What is to enter the log.
struct Gathered {
    /// By key; absent data removes the item.
    items: BTreeMap<Key, Option<Vec<u8>>>,
    inodes: Vec<InodeNumber>,
    sums: ChecksumRuns,
}

/// Enters an inode into the log of its subvolume.
///
/// # Errors
/// Blocks and items that cannot be read; [`crate::Error::NoSpace`]. The log is then as it was, or is not
/// synced any more: a commit has all of it.
pub(crate) fn log_file(handle: &Handle<'_>, request: &LogRequest<'_>) -> Result<Logged> {
    let transactions = handle.transactions();
    let generation = handle.generation();
    let (tree, id) = (request.live.tree(), request.live.id());
    let Some(item) = inode::inode(&tree, request.inode)? else { return Ok(Logged::Nothing) };
    if item.nlink == 0 || item.transid < generation {
        return Ok(Logged::Nothing);
    }
    if request.live.record().is_none_or(|record| record.item.otransid >= generation) {
        return Ok(Logged::NeedsCommit("its subvolume is new"));
    }
    let related = match request.names {
        None if item.generation == generation && !transactions.is_logged(id, request.inode) => {
            return Ok(Logged::NeedsNames);
        }
        None => Related::default(),
        Some(names) => {
            let related = names.changes.look(generation, id, |names| match names {
                Some(names) => Related::of(names, &tree, generation, request.inode),
                None => Ok(Err("very many names changed")),
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
    let prepared = match request.how {
        LogItems::Prepared => match gather()? {
            Ok(gathered) => Some(gathered),
            Err(why) => return Ok(Logged::NeedsCommit(why)),
        },
        LogItems::InPlace => None,
    };
    let mut refused = None;
    let ticket = transactions.enter_log(handle, id, |editor| match prepared {
        Some(gathered) => put_at_once(editor, gathered),
        None => match gather()? {
            Ok(gathered) => put_one_by_one(editor, gathered),
            Err(why) => {
                refused = Some(why);
                Ok(Vec::new())
            }
        },
    })?;
    if let Some(why) = refused {
        return Ok(Logged::NeedsCommit(why));
    }
    for inode in &related.gone {
        transactions.forget_logged(id, *inode);
    }
    if let Some(names) = request.names {
        let inodes = related.inodes.keys().chain(&related.gone).copied();
        names.changes.entered(generation, id, related.slots.iter(), inodes);
    }
    Ok(Logged::Entered(ticket))
}

/// An inode lost its last name: the log is not to bring that back. It keeps the rest of an inode that the last
/// commit has, as there its name still is, and without a commit what an fsync promised of it holds.
///
/// # Errors
/// As [`log_file`].
pub(crate) fn forget_inode(handle: &Handle<'_>, live: &LiveTree, inode: InodeNumber) -> Result<()> {
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

/// Puts all of it in one pass over the tree; gives back the inodes.
fn put_at_once(editor: &mut TreeEditor<'_>, gathered: Gathered) -> Result<Vec<InodeNumber>> {
    let mut changes: Vec<_> = gathered.items.into_iter().map(change).collect();
    if !gathered.sums.is_empty() {
        // Their keys are behind those of all inodes. What they make longer may be another's, and is known only here.
        changes.extend(plan_short_checksums(editor, gathered.sums, MAX_SUMS)?);
    }
    editor.apply(&changes)?;
    Ok(gathered.inodes)
}

/// Puts one item after the other, then the sums; gives back the inodes.
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

/// What gathering looks at.
struct Gatherer<'a> {
    handle: &'a Handle<'a>,
    request: &'a LogRequest<'a>,
    /// The subvolume.
    tree: &'a Tree,
    /// Its log.
    log: &'a Tree,
}

impl Gatherer<'_> {
    /// All that is to enter the log, or why it cannot.
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

    /// The names of related inodes, and what the log does not have of these.
    fn add_related(&self, gathered: &mut Gathered, related: &Related) -> Result<Option<&'static str>> {
        for (&inode, item) in &related.inodes {
            self.add_names(gathered, inode)?;
            if inode == self.request.inode {
                continue;
            }
            // What was logged of a file is of one moment with its data, as an fsync left it.
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
            // Not where it is still there, as nothing came of what was to change it.
            let Some(item) = inode::inode(self.tree, directory)?.filter(|item| item.nlink > 0) else {
                continue;
            };
            if self.tree.get(&dir_index_key(directory, index))?.is_some() {
                continue;
            }
            // Replay asks for such ranges where it meets the directory.
            if !gathered.items.contains_key(&inode_key(directory)) {
                self.add_inode(gathered, directory, &item)?;
            }
            let range = DirLogItem { end: index };
            gathered.items.insert(dir_log_key(directory, index), Some(range.to_bytes().to_vec()));
        }
        let many = gathered.items.len() > MAX_EXTENTS;
        Ok(many.then_some("very much changed with it"))
    }

    /// An inode and its attributes.
    fn add_inode(&self, gathered: &mut Gathered, inode: InodeNumber, item: &InodeItem) -> Result<()> {
        gathered.inodes.push(inode);
        gathered.items.insert(inode_key(inode), Some(item.to_bytes().to_vec()));
        self.replace(gathered, inode, ItemType::XATTR_ITEM..=ItemType::XATTR_ITEM)
    }

    /// All names that an inode knows it has.
    fn add_names(&self, gathered: &mut Gathered, inode: InodeNumber) -> Result<()> {
        // The root directory of a subvolume names itself, in no directory.
        if inode == objectid::FIRST_INODE {
            return Ok(());
        }
        self.replace(gathered, inode, ItemType::INODE_REF..=ItemType::INODE_EXTREF)
    }

    /// Items of an inode as they are, in place of those that the log has.
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

    /// What changed of the data of a file, or the target of a symbolic link.
    fn add_data(
        &self,
        gathered: &mut Gathered,
        inode: InodeNumber,
        item: &InodeItem,
    ) -> Result<Option<&'static str>> {
        if !matches!(item.kind(), Some(FileKind::Regular | FileKind::Symlink)) {
            return Ok(None);
        }
        let is_new = item.generation == self.handle.generation() && !self.is_logged(inode);
        let changed = match (is_new, self.request.names) {
            (true, _) => Some(std::iter::once(0..u64::MAX).collect()),
            _ if inode == self.request.inode => self.request.changed.cloned(),
            (_, Some(names)) => (names.changed_of)(inode),
            _ => None,
        };
        let Some(changed) = changed else { return Ok(Some("what changed of it is not known")) };
        let sums = self.handle.transactions().live().find(objectid::CSUM_TREE)?.map(|live| live.tree());
        let sums = sums.as_ref().filter(|_| !item.flags.contains(InodeFlags::NODATASUM));
        for range in self.widened(inode, &changed)?.iter() {
            self.drop_extents(gathered, inode, &range)?;
            if !self.add_extents(gathered, inode, item, &range, sums)? {
                return Ok(Some("very many extents changed"));
            }
        }
        Ok(None)
    }

    /// Changed ranges, made as large as the items that they touch, here and in the log.
    fn widened(&self, inode: InodeNumber, changed: &RangeSet) -> Result<RangeSet> {
        let sector_size = self.geometry().sector_size;
        let mut ranges = RangeSet::default();
        for changed in changed.iter() {
            let mut range = changed;
            loop {
                let before = range.clone();
                let own = StoredExtents::new(self.tree, inode, sector_size, before.start, before.end);
                // What reaches to the end of the file is widened at its start, which the first items say.
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

    /// Nothing of the range is to be left in the log.
    fn drop_extents(&self, gathered: &mut Gathered, inode: InodeNumber, range: &Range<u64>) -> Result<()> {
        for logged in self.logged_extents(inode, range) {
            let key = file_extent_key(inode, FileOffset(logged?.start));
            gathered.items.entry(key).or_insert(None);
        }
        Ok(())
    }

    /// The extents of a range, and its holes; says whether they are not too many.
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

/// The sums of a range, as far as it has any.
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
