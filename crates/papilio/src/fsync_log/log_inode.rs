//! What an fsync enters into the log.
//!
//! Owns [`log_file`]: from what changed of a file since the last commit to the items that say so. Logged are
//! the inode item, all extended attributes (replay deletes others), the extents of changed ranges with their
//! checksums, holes as items even where the file system does without, and the names where they are new, with
//! the directories that are new too.
//!
//! Items are complete before the log tree's lock is taken, and enter it in one pass; the other way, one item
//! after the other while it is held, is kept to be compared with ([`LogItems`]). Invariants: extent items in
//! the log do not overlap; one file is logged by one thread at a time, which the caller sees to. Locks: the
//! log tree's writer lock. Kernel counterparts: `btrfs_log_inode`, `log_one_extent`, `btrfs_log_holes`
//! (`fs/btrfs/tree-log.c`).

use crate::btree::{Change, LiveTree, Tree, TreeEditor};
use crate::data::checksum::DataSums;
use crate::data::csum_edit::{SumRuns, insert_sums};
use crate::data::file_extents_edit::{hole, on_disk};
use crate::data::stored_extents::StoredExtents;
use crate::errors::Result;
use crate::items::inode::{self, for_each_name};
use crate::space::RangeSet;
use crate::transaction::{Handle, LogTicket};
use crate::tuning::LogItems;
use papilio_format::items::file_extent::{Compression, FileExtentContent, file_extent_key};
use papilio_format::items::inode::{InodeFlags, InodeItem, inode_key};
use papilio_format::{FileOffset, Geometry, InodeNumber, ItemType, Key, LogicalAddress, objectid};
use std::collections::BTreeMap;
use std::ops::Range;

/// Extents that an fsync logs at most; beyond that, a commit is as quick.
const MAX_EXTENTS: usize = 4096;

/// What is known of a file that is to be logged.
#[derive(Clone, Copy)]
pub(crate) struct LogRequest<'a> {
    /// Its subvolume.
    pub(crate) live: &'a LiveTree,
    /// Its number.
    pub(crate) inode: InodeNumber,
    /// The ranges that changed since the last commit and are not in the log; `None` if that is not known.
    pub(crate) changed: Option<&'a RangeSet>,
    /// It got a name since the last commit.
    pub(crate) linked: bool,
    /// Whether a name in a directory was taken from something that still exists elsewhere: replay would
    /// take it for deleted.
    pub(crate) moved_away: &'a dyn Fn(InodeNumber, &[u8]) -> bool,
    /// How items enter the log.
    pub(crate) how: LogItems,
}

/// What logging came to.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) enum Logged {
    /// It is entered, and durable once the ticket is synced.
    Entered(LogTicket),
    /// All of it is in the last commit, or the log has it.
    Nothing,
    /// The log cannot say it: why.
    NeedsCommit(&'static str),
}

/// What is to enter the log.
struct Gathered {
    /// By key; absent data removes the item.
    items: BTreeMap<Key, Option<Vec<u8>>>,
    inodes: Vec<InodeNumber>,
    sums: SumRuns,
}

/// Enters a file into the log of its subvolume.
///
/// # Errors
/// Blocks and items that cannot be read; [`crate::Error::NoSpace`]. The log is then as it was, or lacks
/// what it was to get: a commit has all of it.
pub(crate) fn log_file(handle: &Handle<'_>, request: &LogRequest<'_>) -> Result<Logged> {
    let transactions = handle.transactions();
    let generation = handle.generation();
    let tree = request.live.tree();
    let Some(item) = inode::inode(&tree, request.inode)? else { return Ok(Logged::Nothing) };
    if item.nlink == 0 || item.transid < generation {
        return Ok(Logged::Nothing);
    }
    if request.live.record().is_none_or(|record| record.item.otransid >= generation) {
        return Ok(Logged::NeedsCommit("its subvolume is new"));
    }
    let log = transactions.log_tree(handle, request.live.id())?;
    let gather = || Gatherer { handle, request, tree: &tree, log: &log.tree() }.gather(&item);
    let prepared = match request.how {
        LogItems::Prepared => match gather()? {
            Ok(gathered) => Some(gathered),
            Err(why) => return Ok(Logged::NeedsCommit(why)),
        },
        LogItems::InPlace => None,
    };
    let mut refused = None;
    let ticket = transactions.enter_log(handle, request.live.id(), |editor| {
        let gathered = match prepared {
            Some(gathered) => {
                let changes: Vec<_> = gathered.items.into_iter().map(change).collect();
                editor.apply(&changes)?;
                Gathered { items: BTreeMap::new(), ..gathered }
            }
            None => match gather()? {
                Ok(gathered) => put_one_by_one(editor, gathered)?,
                Err(why) => {
                    refused = Some(why);
                    return Ok(Vec::new());
                }
            },
        };
        if !gathered.sums.is_empty() {
            insert_sums(editor, gathered.sums)?;
        }
        Ok(gathered.inodes)
    })?;
    Ok(refused.map_or(Logged::Entered(ticket), Logged::NeedsCommit))
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

fn put_one_by_one(editor: &mut TreeEditor<'_>, mut gathered: Gathered) -> Result<Gathered> {
    for (key, data) in std::mem::take(&mut gathered.items) {
        match data {
            Some(data) => editor.put(key, &data)?,
            None => editor.remove(key).map(drop)?,
        }
    }
    Ok(gathered)
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
    fn gather(&self, item: &InodeItem) -> Result<Result<Gathered, &'static str>> {
        let (generation, inode) = (self.handle.generation(), self.request.inode);
        let transactions = self.handle.transactions();
        let logged = transactions.is_logged(self.request.live.id(), inode);
        let is_new = item.generation == generation;
        let whole: RangeSet = std::iter::once(0..u64::MAX).collect();
        let changed = match self.request.changed {
            Some(changed) if logged || !is_new => changed,
            _ if is_new => &whole,
            _ => return Ok(Err("what changed of it is not known")),
        };
        let geometry = self.geometry();
        let mut gathered =
            Gathered { items: BTreeMap::new(), inodes: Vec::new(), sums: SumRuns::new(&geometry) };
        let named = self.request.linked || is_new && !logged;
        if let Some(why) = self.add_inode(&mut gathered, inode, item, named)? {
            return Ok(Err(why));
        }
        let ranges = self.widened(changed)?;
        let sums = transactions.live().find(objectid::CSUM_TREE)?.map(|live| live.tree());
        let sums = sums.as_ref().filter(|_| !item.flags.contains(InodeFlags::NODATASUM));
        for range in ranges.iter() {
            self.drop_extents(&mut gathered, &range)?;
            if !self.add_extents(&mut gathered, item, &range, sums)? {
                return Ok(Err("very many extents changed"));
            }
        }
        gathered.sums.forget_repeated();
        Ok(Ok(gathered))
    }

    fn geometry(&self) -> Geometry {
        self.handle.transactions().volume().geometry()
    }

    /// An inode, its attributes, and where `named` its names with the directories that are as new. Says why
    /// that cannot be logged.
    fn add_inode(
        &self,
        gathered: &mut Gathered,
        inode: InodeNumber,
        item: &InodeItem,
        named: bool,
    ) -> Result<Option<&'static str>> {
        gathered.inodes.push(inode);
        gathered.items.insert(inode_key(inode), Some(item.to_bytes().to_vec()));
        let attributes =
            Key::new(inode.0, ItemType::XATTR_ITEM, 0)..=Key::new(inode.0, ItemType::XATTR_ITEM, u64::MAX);
        for old in self.log.range(attributes.clone()) {
            gathered.items.insert(old?.key, None);
        }
        for attribute in self.tree.range(attributes) {
            let attribute = attribute?;
            gathered.items.insert(attribute.key, Some(attribute.data().to_vec()));
        }
        if !named {
            return Ok(None);
        }
        let names =
            Key::new(inode.0, ItemType::INODE_REF, 0)..=Key::new(inode.0, ItemType::INODE_EXTREF, u64::MAX);
        for old in self.log.range(names.clone()) {
            gathered.items.insert(old?.key, None);
        }
        for name in self.tree.range(names) {
            let name = name?;
            gathered.items.insert(name.key, Some(name.data().to_vec()));
        }
        let mut parents = Vec::new();
        let mut moved_away = false;
        for_each_name(self.tree, inode, |name| {
            moved_away |= (self.request.moved_away)(name.parent, &name.name);
            parents.push(name.parent);
            !moved_away
        })?;
        if moved_away {
            return Ok(Some("something else was moved away from its name"));
        }
        parents.sort_unstable();
        parents.dedup();
        for parent in parents {
            let Some(item) = inode::inode(self.tree, parent)? else { continue };
            let known = gathered.items.contains_key(&inode_key(parent));
            if item.generation == self.handle.generation()
                && !known
                && let Some(why) = self.add_inode(gathered, parent, &item, true)?
            {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    /// Changed ranges, made as large as the items that they touch, here and in the log.
    fn widened(&self, changed: &RangeSet) -> Result<RangeSet> {
        let sector_size = self.geometry().sector_size;
        let mut ranges = RangeSet::default();
        for changed in changed.iter() {
            let mut range = changed;
            loop {
                let before = range.clone();
                let own =
                    StoredExtents::new(self.tree, self.request.inode, sector_size, before.start, before.end);
                // What reaches to the end of the file is widened at its start, which the first items say.
                let looked_at = if before.end == u64::MAX { 1 } else { usize::MAX };
                for stored in own.take(looked_at).chain(self.logged_extents(&before).take(looked_at)) {
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

    fn logged_extents(&self, range: &Range<u64>) -> StoredExtents<'_> {
        let sector_size = self.geometry().sector_size;
        StoredExtents::new(self.log, self.request.inode, sector_size, range.start, range.end)
    }

    /// Nothing of the range is to be left in the log.
    fn drop_extents(&self, gathered: &mut Gathered, range: &Range<u64>) -> Result<()> {
        for logged in self.logged_extents(range) {
            let key = file_extent_key(self.request.inode, FileOffset(logged?.start));
            gathered.items.entry(key).or_insert(None);
        }
        Ok(())
    }

    /// The extents of a range, and its holes; says whether they are not too many.
    fn add_extents(
        &self,
        gathered: &mut Gathered,
        item: &InodeItem,
        range: &Range<u64>,
        sums: Option<&Tree>,
    ) -> Result<bool> {
        let (inode, geometry) = (self.request.inode, self.geometry());
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
    sums: &mut SumRuns,
    tree: &Tree,
    geometry: Geometry,
    address: LogicalAddress,
    length: u64,
) -> Result<()> {
    let sector = u64::from(geometry.sector_size);
    let mut lookup = DataSums::new(tree, geometry);
    lookup.for_each_run(address, (length / sector) as usize, |first, _, found| {
        if let Some(found) = found {
            let start = LogicalAddress(address.0 + first as u64 * sector);
            sums.add_known(start, found);
        }
        true
    })
}
