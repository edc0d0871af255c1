//! Changes of a file's extent items, with the references that come and go with them.
//!
//! Owns [`ExtentChanges`], a plan that is made from one version of a tree and published at once.
//!
//! Invariants:
//! - The resulting items ascend without overlap.
//! - An extent on disk has one reference for each item that refers to a part of it.
//! - All items cut from one item have the same reference offset: the item's file offset less its
//!   offset in the extent. Cutting off an end changes no reference; cutting out the middle adds
//!   one.
//! - An extent of this transaction that nothing else refers to may grow, where a file grows.
//! - The inode's `nbytes` counts all extents except holes.
//! - The whole plan is made before the first change.
//!
//! Locks: the tree's editor, while publishing. Kernel counterparts: `btrfs_drop_extents`,
//! `fill_holes` (`fs/btrfs/file.c`), `insert_reserved_file_extent` (`fs/btrfs/inode.c`).

use crate::btree::{Change, LiveTree, Tree, TreeEditor};
use crate::data::space::{DataReference, DataSpace};
use crate::data::stored_extents::{StoredExtent, StoredExtents};
use crate::errors::{Error, Result};
use crate::items::inode_edit;
use papilio_format::features::IncompatFeatures;
use papilio_format::items::file_extent::{
    Compression, ExtentPart, FileExtentContent, FileExtentItem, file_extent_key,
};
use papilio_format::items::inode::{InodeFlags, InodeItem, inode_key};
use papilio_format::{Corrupt, FileOffset, Generation, Geometry, InodeNumber, LogicalAddress, TreeId};
use std::collections::BTreeMap;
use std::ops::Range;

/// The most bytes of an extent that grows with its file. A relocation moves an extent as a whole
/// and needs a free range of its length, which a nearly full file system may lack.
const MAX_GROWN: u64 = 8 << 20;

/// A change of a reference count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReferenceChange {
    /// The first reference to a new extent.
    New,
    /// Another reference.
    Add,
    Drop,
}

/// Changes of one file's extents that are planned but not made.
#[derive(Debug)]
pub(crate) struct ExtentChanges {
    tree: TreeId,
    inode: InodeNumber,
    sector_size: u32,
    no_holes: bool,
    generation: Generation,
    changes: Vec<Change>,
    references: Vec<(ReferenceChange, DataReference)>,
    appended: Option<Appended>,
    dropped: u64,
    added: u64,
}

/// A new extent that continues the one before it, in the file and on disk.
#[derive(Debug)]
struct Appended {
    start: u64,
    item: FileExtentItem<'static>,
    /// The reference to the extent before it.
    before: DataReference,
    /// The file offset and the item of both as one extent.
    joined: (u64, FileExtentItem<'static>),
}

impl ExtentChanges {
    /// Creates an empty plan. `generation` is the running transaction's.
    pub(crate) fn new(tree: TreeId, inode: InodeNumber, geometry: &Geometry, generation: Generation) -> Self {
        Self {
            tree,
            inode,
            sector_size: geometry.sector_size,
            no_holes: geometry.incompat.contains(IncompatFeatures::NO_HOLES),
            generation,
            changes: Vec::new(),
            references: Vec::new(),
            appended: None,
            dropped: 0,
            added: 0,
        }
    }

    /// Removes what `tree` has between `start` and `end`, both sector boundaries. Items inside are
    /// dropped; items that reach out are cut. Handles at most `limit` items, and returns the end of
    /// the emptied range. No item may be changed by two such calls on one plan.
    ///
    /// # Errors
    /// A tree block or an item that cannot be read; inline data that is only partly in the range.
    pub(crate) fn drop_range(&mut self, tree: &Tree, start: u64, end: u64, limit: usize) -> Result<u64> {
        for (count, extent) in StoredExtents::new(tree, self.inode, self.sector_size, start, end).enumerate()
        {
            let extent = extent?;
            if count == limit {
                return Ok(extent.start.max(start));
            }
            self.cut(&extent, start, end)?;
        }
        Ok(end)
    }

    /// Cuts `start` to `end` out of an extent.
    ///
    /// # Errors
    /// Inline data that is only partly in the range.
    pub(crate) fn cut(&mut self, stored: &StoredExtent, start: u64, end: u64) -> Result<()> {
        let extent = stored.extent();
        let key = file_extent_key(self.inode, FileOffset(stored.start));
        let (from, to) = (stored.start.max(start), stored.end.min(end));
        self.dropped += stored.bytes_between(from, to);
        let part = match extent.content {
            FileExtentContent::Inline(_) if (from, to) == (stored.start, stored.end) => {
                self.changes.push(Change::Remove { key });
                return Ok(());
            }
            FileExtentContent::Inline(_) => {
                let reason = Corrupt::field(
                    "file extent",
                    "ram_bytes",
                    extent.ram_bytes,
                    "inline data ends outside the changed range",
                );
                return Err(Error::Item { tree: self.tree, key, reason });
            }
            FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) => part,
        };
        if from > stored.start {
            self.put_part(stored.start, &extent, ExtentPart { length: from - stored.start, ..part });
        } else {
            self.changes.push(Change::Remove { key });
        }
        if to < stored.end {
            // No overflow: the parser checked the whole part.
            let offset = part.offset + (to - stored.start);
            self.put_part(to, &extent, ExtentPart { offset, length: stored.end - to, ..part });
        }
        if !part.is_hole() {
            let reference = self.reference(stored.start, &part);
            match (from > stored.start, to < stored.end) {
                (false, false) => self.references.push((ReferenceChange::Drop, reference)),
                (true, true) => self.references.push((ReferenceChange::Add, reference)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Cuts `ranges`, ascending and disjoint, out of an extent that overlaps each of them. Without
    /// ranges it is empty, and removed.
    ///
    /// # Errors
    /// Inline data that is only partly in the first range.
    pub(crate) fn cut_all(&mut self, stored: &StoredExtent, ranges: &[Range<u64>]) -> Result<()> {
        let Some((first, rest)) = ranges.split_first() else {
            debug_assert_eq!(stored.start, stored.end, "the extent overlaps a range, or is empty");
            return self.cut(stored, stored.start, stored.end);
        };
        let extent = stored.extent();
        let (FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part)) = extent.content else {
            return self.cut(stored, first.start, first.end);
        };
        if rest.is_empty() {
            return self.cut(stored, first.start, first.end);
        }
        let key = file_extent_key(self.inode, FileOffset(stored.start));
        self.changes.push(Change::Remove { key });
        let (mut at, mut left) = (stored.start, 0);
        let end = stored.end..stored.end;
        for range in ranges.iter().chain([&end]) {
            if at < range.start {
                // Inside 64 bits, as the parser proved of the whole part.
                let offset = part.offset + (at - stored.start);
                self.put_part(at, &extent, ExtentPart { offset, length: range.start - at, ..part });
                left += 1;
            }
            let to = range.end.min(stored.end);
            self.dropped += stored.bytes_between(range.start.max(stored.start), to);
            at = to;
        }
        if !part.is_hole() {
            let reference = self.reference(stored.start, &part);
            match left {
                0 => self.references.push((ReferenceChange::Drop, reference)),
                more => self.references.extend((1..more).map(|_| (ReferenceChange::Add, reference))),
            }
        }
        Ok(())
    }

    /// Stores a remaining part of an extent, which otherwise stays as it was.
    fn put_part(&mut self, start: u64, extent: &FileExtentItem<'_>, part: ExtentPart) {
        let item = match extent.content {
            _ if part.is_hole() => hole(extent.generation, part.length),
            FileExtentContent::Prealloc(_) => {
                FileExtentItem { content: FileExtentContent::Prealloc(part), ..*extent }
            }
            _ => FileExtentItem { content: FileExtentContent::Regular(part), ..*extent },
        };
        self.put(start, &item);
    }

    fn put(&mut self, start: u64, item: &FileExtentItem<'_>) {
        let key = file_extent_key(self.inode, FileOffset(start));
        self.changes.push(Change::Put { key, data: item.to_bytes() });
    }

    fn reference(&self, start: u64, part: &ExtentPart) -> DataReference {
        DataReference {
            address: part.disk_address,
            length: part.disk_length,
            tree: self.tree,
            inode: self.inode,
            offset: FileOffset(start.wrapping_sub(part.offset)),
        }
    }

    /// Inserts an extent where the range is empty. `new` says that its space was just allocated;
    /// the extent then gets the running transaction's generation, as inline data does.
    pub(crate) fn insert(&mut self, start: u64, extent: &FileExtentItem<'_>, new: bool) {
        let mut extent = *extent;
        if new || matches!(extent.content, FileExtentContent::Inline(_)) {
            extent.generation = self.generation;
        }
        match extent.content {
            FileExtentContent::Inline(_) => self.added += extent.ram_bytes,
            FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) if !part.is_hole() => {
                self.added += part.length;
                let change = if new { ReferenceChange::New } else { ReferenceChange::Add };
                self.references.push((change, self.reference(start, &part)));
            }
            _ => {}
        }
        self.put(start, &extent);
    }

    /// Inserts a new, uncompressed extent where the file ends, at `start`. It becomes a part of the
    /// extent before it where it continues that one on disk, and [`DataSpace::may_extend_data`]
    /// allows it. A plan has at most one such extent.
    ///
    /// # Errors
    /// A tree block or an item that cannot be read.
    pub(crate) fn append(&mut self, tree: &Tree, start: u64, extent: &FileExtentItem<'static>) -> Result<()> {
        self.appended = self.continued(tree, start, extent)?;
        match &self.appended {
            Some(_) => self.added += extent.length(),
            None => self.insert(start, extent, true),
        }
        Ok(())
    }

    /// Returns how `extent` would continue the one before it, if it does.
    fn continued(
        &self,
        tree: &Tree,
        start: u64,
        extent: &FileExtentItem<'static>,
    ) -> Result<Option<Appended>> {
        let Some(from) = start.checked_sub(1) else { return Ok(None) };
        let Some(before) = StoredExtents::new(tree, self.inode, self.sector_size, from, start).next() else {
            return Ok(None);
        };
        let before = before?;
        let old = before.extent();
        let (FileExtentContent::Regular(head), FileExtentContent::Regular(tail)) =
            (old.content, extent.content)
        else {
            return Ok(None);
        };
        let is_whole = head.offset == 0 && head.length == head.disk_length && old.ram_bytes == head.length;
        let length = head.length + tail.length;
        let continues = old.generation == self.generation
            && !head.is_hole()
            && is_plain(&old)
            && is_plain(extent)
            && is_whole
            && before.end == start
            && head.disk_address.0 + head.disk_length == tail.disk_address.0
            && length <= MAX_GROWN;
        Ok(continues.then(|| {
            let item = FileExtentItem { generation: self.generation, ..*extent };
            let whole = FileExtentContent::Regular(ExtentPart { disk_length: length, length, ..head });
            Appended {
                start,
                before: self.reference(before.start, &head),
                joined: (before.start, FileExtentItem { ram_bytes: length, content: whole, ..item }),
                item,
            }
        }))
    }

    /// Replaces those items of `before` that refer to uncompressed extents on disk by `after`,
    /// ascending: the same parts, cut and typed differently. Other items of `before` stay.
    pub(crate) fn rewrite<'e>(
        &mut self,
        before: impl Iterator<Item = &'e StoredExtent>,
        after: &[(u64, FileExtentItem<'_>)],
    ) {
        let mut counts: BTreeMap<DataReference, i64> = BTreeMap::new();
        let mut old: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for stored in before {
            let extent = stored.extent();
            if let Some(part) = on_disk(&extent).filter(|_| is_plain(&extent)) {
                *counts.entry(self.reference(stored.start, &part)).or_default() -= 1;
                old.insert(stored.start, extent.to_bytes());
            }
        }
        for (start, extent) in after {
            let part = on_disk(extent).expect("only extents on disk are rewritten");
            *counts.entry(self.reference(*start, &part)).or_default() += 1;
            // Unchanged items are not stored again.
            let before = old.remove(start);
            if before.is_none_or(|before| before != extent.to_bytes()) {
                let extent = FileExtentItem { generation: self.generation, ..*extent };
                self.put(*start, &extent);
            }
        }
        for start in old.into_keys() {
            self.changes.push(Change::Remove { key: file_extent_key(self.inode, FileOffset(start)) });
        }
        for (reference, count) in counts {
            let change = if count > 0 { ReferenceChange::Add } else { ReferenceChange::Drop };
            self.references.extend((0..count.unsigned_abs()).map(|_| (change, reference)));
        }
    }

    /// Replaces the content of the existing inline extent.
    pub(crate) fn replace_inline(&mut self, old: &StoredExtent, extent: &FileExtentItem<'_>) {
        assert!(old.is_inline() && old.start == 0, "inline data is at the start of a file");
        self.dropped += old.bytes_between(old.start, old.end);
        self.insert(0, extent, false);
    }

    /// Makes the empty range `start` to `end` a hole. Stores an item for it only on a file system
    /// without NO_HOLES.
    pub(crate) fn insert_hole(&mut self, start: u64, end: u64) {
        if !self.no_holes && start < end {
            self.put(start, &hole(self.generation, end - start));
        }
    }

    /// Inserts hole items for all ranges between `start` and `end`, both sector boundaries, that no
    /// item covers.
    ///
    /// # Errors
    /// A tree block or an item that cannot be read.
    pub(crate) fn fill_gaps(&mut self, tree: &Tree, start: u64, end: u64) -> Result<()> {
        if self.no_holes {
            return Ok(());
        }
        let mut next = start;
        for extent in StoredExtents::new(tree, self.inode, self.sector_size, start, end) {
            let extent = extent?;
            self.insert_hole(next, extent.start.min(end));
            next = next.max(extent.end);
        }
        self.insert_hole(next, end);
        Ok(())
    }

    /// Returns the inode's `nbytes` after the change.
    fn count(&self, nbytes: u64) -> u64 {
        // The old count may be wrong on disk. It must not cause a panic.
        nbytes.saturating_add(self.added).saturating_sub(self.dropped)
    }

    /// Makes all changes: one pass over the tree for the items and the inode, then the references.
    /// Returns the new inode item with `nbytes` adjusted.
    ///
    /// # Errors
    /// An error of changing the tree or of queueing references. The caller then aborts the
    /// transaction.
    pub(crate) fn publish(
        mut self,
        tree: &LiveTree,
        space: &dyn DataSpace,
        inode: InodeItem,
    ) -> Result<InodeItem> {
        // Held until the references are queued: a snapshot in between would count references that
        // are missing.
        let mut editor = tree.edit(space);
        let mut inode = merged(&editor, self.inode, inode)?;
        inode.nbytes = self.count(inode.nbytes);
        let appended = self.appended.take();
        let mut extended = None;
        if let Some(Appended { start, item, before, joined }) = &appended {
            let FileExtentContent::Regular(part) = &item.content else { unreachable!("it is on disk") };
            if space.may_extend_data(before, part.length) {
                self.put(joined.0, &joined.1);
                extended = Some((before, part.length));
            } else {
                self.put(*start, item);
                self.references.push((ReferenceChange::New, self.reference(*start, part)));
            }
        }
        let key = inode_key(self.inode);
        self.changes.push(Change::Put { key, data: inode.to_bytes().to_vec() });
        // The sort is stable: an item that was stored after a removal of the same key wins.
        self.changes.sort_by_key(Change::key);
        let mut last: Vec<Change> = Vec::with_capacity(self.changes.len());
        for change in self.changes {
            match last.last_mut() {
                Some(before) if before.key() == change.key() => *before = change,
                _ => last.push(change),
            }
        }
        editor.apply(&last)?;
        if let Some((before, bytes)) = extended {
            space.extend_data(before, bytes);
        }
        // Drops come last, so that no extent looks unreferenced in between.
        self.references.sort_by_key(|(change, _)| *change == ReferenceChange::Drop);
        for (change, reference) in &self.references {
            match change {
                ReferenceChange::New => space.add_data_ref(reference, true)?,
                ReferenceChange::Add => space.add_data_ref(reference, false)?,
                ReferenceChange::Drop => space.drop_data_ref(reference)?,
            }
        }
        Ok(inode)
    }
}

/// Returns whether an extent's data is stored uncompressed and unencoded.
pub fn is_plain(extent: &FileExtentItem<'_>) -> bool {
    extent.compression == Compression::None && extent.other_encoding == 0
}

/// Returns the part of an extent on disk that an item refers to; `None` for a hole or inline data.
pub fn on_disk(extent: &FileExtentItem<'_>) -> Option<ExtentPart> {
    match extent.content {
        FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) if !part.is_hole() => Some(part),
        _ => None,
    }
}

/// Merges `edited`, the inode item after a change of data, with the current item in the tree:
/// names, owner and permissions may have changed meanwhile.
fn merged(editor: &TreeEditor<'_>, number: InodeNumber, edited: InodeItem) -> Result<InodeItem> {
    let key = inode_key(number);
    let Some(item) = editor.get(&key)? else {
        // Deleted since `edited` was read. Storing it would bring back an inode without a name.
        return Err(inode_edit::no_such_inode(editor.id(), number));
    };
    let current =
        InodeItem::parse(item.data()).map_err(|reason| Error::Item { tree: editor.id(), key, reason })?;
    Ok(InodeItem {
        transid: edited.transid,
        size: edited.size,
        nbytes: edited.nbytes,
        mtime: edited.mtime,
        ctime: edited.ctime,
        sequence: edited.sequence.max(current.sequence),
        flags: current.flags | (edited.flags & (InodeFlags::NOCOMPRESS | InodeFlags::PREALLOC)),
        ..current
    })
}

/// Returns the item of a hole of `length` bytes.
pub(crate) fn hole(generation: Generation, length: u64) -> FileExtentItem<'static> {
    let part = ExtentPart { disk_address: LogicalAddress(0), disk_length: 0, offset: 0, length };
    FileExtentItem {
        generation,
        ram_bytes: length,
        compression: Compression::None,
        other_encoding: 0,
        content: FileExtentContent::Regular(part),
    }
}
