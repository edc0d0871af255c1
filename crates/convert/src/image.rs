//! The image of the source: a file in a subvolume of its own that shares all data.
//!
//! Owns [`save_image`] and [`find_image`]. File extents of the image refer to the extents of files
//! where there are some, and to new ones for everything else that the source uses. So files and
//! image each own whole extents, and a deleted file gives its space back as soon as the image is
//! gone.
//!
//! **Invariants**
//! - Where a block has not moved, its offset in the image is its logical address.
//! - What the source has free is a hole.
//! - All file extents of the image have the generation of its inode, so that later changes show.

use crate::block_set::BlockSet;
use crate::error::{ConvertError, Result};
use crate::items::extent_key;
use crate::places::{Moved, PlaceMap};
use crate::target::{Batch, Target, extent_item, hole_item};
use papilio_engine::btree::LiveTree;
use papilio_engine::errors::{Error, PathError};
use papilio_engine::namespace::create::{NewInode, NewKind};
use papilio_engine::transaction::DataReference;
use papilio_format::checksum::name_hash;
use papilio_format::items::dir_item::{DirEntry, FileType};
use papilio_format::items::extent::{ExtentFlags, ExtentItem};
use papilio_format::items::file_extent::ExtentPart;
use papilio_format::items::inode::{InodeFlags, InodeItem, Timespec, inode_key};
use papilio_format::items::inode_ref::InodeRef;
use papilio_format::{FileOffset, Generation, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use papilio_fs::{FileSystem, Inode};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The inode of the image.
const NUMBER: InodeNumber = InodeNumber(objectid::FIRST_FREE + 1);
/// The index of its entry.
const INDEX: u64 = 2;
/// Extents that are read ahead.
const AHEAD: usize = 2000;

/// The extents of files, in the order of addresses.
struct FileExtents<'a> {
    target: &'a Target,
    ahead: VecDeque<Range<u64>>,
    /// Where the next ones are looked for; `None` at the end.
    next: Option<u64>,
}

impl FileExtents<'_> {
    /// Returns the first extent that ends behind `address`. Addresses ascend from call to call,
    /// or the caller begins anew.
    fn first_behind(&mut self, address: u64) -> Result<Option<Range<u64>>> {
        loop {
            while self.ahead.front().is_some_and(|extent| extent.end <= address) {
                self.ahead.pop_front();
            }
            if let Some(extent) = self.ahead.front() {
                return Ok(Some(extent.clone()));
            }
            let Some(from) = self.next else { return Ok(None) };
            self.read(from)?;
        }
    }

    /// Begins anew at the extent that holds `address` or follows it.
    fn seek(&mut self, address: u64) -> Result<()> {
        self.ahead.clear();
        let tree = self.target.transactions.live().get(objectid::EXTENT_TREE)?.tree();
        // An extent that holds the address begins at most the length of the longest before it.
        let from = address.saturating_sub(crate::layout::EXTENT_MAX);
        let before = tree.last_up_to(&Key::new(address, ItemType::EXTENT_ITEM, u64::MAX))?;
        let start = before.map_or(from, |item| item.key.objectid.max(from));
        self.next = Some(start.min(address));
        Ok(())
    }

    fn read(&mut self, from: u64) -> Result<()> {
        let transactions = &self.target.transactions;
        let pin = transactions.pin();
        let tree = transactions.live().get(objectid::EXTENT_TREE)?.tree().pinned(pin);
        self.next = None;
        for item in tree.range(Key::first_of(from)..=Key::MAX) {
            let item = item?;
            if item.key.item_type != ItemType::EXTENT_ITEM {
                continue;
            }
            let extent = ExtentItem::parse(item.key.item_type, item.data()).map_err(|reason| {
                papilio_engine::errors::Error::Item { tree: tree.id(), key: item.key, reason }
            })?;
            if !extent.header.flags.contains(ExtentFlags::DATA) {
                continue;
            }
            if self.ahead.len() == AHEAD {
                self.next = Some(item.key.objectid);
                return Ok(());
            }
            self.ahead.push_back(item.key.objectid..item.key.objectid + item.key.offset);
        }
        Ok(())
    }
}

/// Makes the subvolume `saved` and the image in it. The files' extents are committed. Returns the
/// subvolume's id.
///
/// # Errors
/// No space; a device that fails.
#[allow(clippy::too_many_arguments)]
pub(crate) fn save_image(
    fs: &FileSystem,
    saved: &str,
    target: &Target,
    used: &BlockSet,
    block_size: u64,
    total: u64,
    places: &PlaceMap,
    progress: &mut dyn FnMut(u64),
) -> Result<TreeId> {
    let root = fs.inode("/")?;
    let new = NewInode::new(NewKind::Directory, 0o755);
    let id = root.create_subvolume(saved.as_bytes(), &new)?.tree();
    let tree = target.transactions.live().get(id)?;
    let generation = target.transactions.generation();
    let nbytes = used.runs().map(|run| (run.end - run.start) * block_size).sum();
    let mut batch = head(target, &tree, generation, total, nbytes)?;
    let extents = FileExtents { target, ahead: VecDeque::new(), next: None };
    let mut writer =
        ImageWriter { target, tree, id, generation, extents, reached: 0, position: None, done: 0 };
    for run in used.runs() {
        let (place, length) = (run.start * block_size, (run.end - run.start) * block_size);
        for part in places.parts(place, length) {
            writer.part(part?, &mut batch)?;
            progress(writer.done);
        }
    }
    writer.hole_up_to(total, &mut batch);
    target.apply(&writer.tree, &batch)?;
    Ok(id)
}

/// Returns the items of the image's inode and names. That of the root directory is replaced: it has
/// one entry now.
fn head(
    target: &Target,
    tree: &Arc<LiveTree>,
    generation: Generation,
    total: u64,
    nbytes: u64,
) -> Result<Batch> {
    let root = InodeNumber(objectid::FIRST_FREE);
    let name = crate::IMAGE.as_bytes();
    let mut batch = Batch::default();
    let missing = || ConvertError::Invalid("the new subvolume has no root directory".to_owned());
    let old = tree.tree().get(&inode_key(root))?.ok_or_else(missing)?;
    let old = InodeItem::parse(old.data()).map_err(|reason| papilio_engine::errors::Error::Item {
        tree: tree.id(),
        key: inode_key(root),
        reason,
    })?;
    let directory = InodeItem { size: 2 * name.len() as u64, ..old };
    batch.put(inode_key(root), directory.to_bytes().to_vec());
    let entry = DirEntry {
        location: inode_key(NUMBER),
        transid: generation,
        file_type: FileType::Regular,
        encrypted: false,
        name,
        data: &[],
    };
    batch.put(Key::new(root.0, ItemType::DIR_ITEM, name_hash(name)), entry.to_bytes());
    batch.put(Key::new(root.0, ItemType::DIR_INDEX, INDEX), entry.to_bytes());
    let mut flags = InodeFlags::READONLY;
    flags.set(InodeFlags::NODATASUM, !target.checksums);
    let now = target.transactions.now();
    let item = InodeItem {
        generation,
        transid: generation,
        size: total,
        nbytes,
        block_group: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        mode: 0o100_400,
        rdev: 0,
        flags,
        sequence: 0,
        reserved: [0; 4],
        atime: now,
        ctime: now,
        mtime: now,
        otime: now,
    };
    batch.put(inode_key(NUMBER), item.to_bytes().to_vec());
    batch.put(Key::new(NUMBER.0, ItemType::INODE_REF, root.0), InodeRef { index: INDEX, name }.to_bytes());
    Ok(batch)
}

struct ImageWriter<'a> {
    target: &'a Target,
    tree: Arc<LiveTree>,
    id: TreeId,
    generation: Generation,
    extents: FileExtents<'a>,
    /// The end of the last extent, in the image.
    reached: u64,
    /// The logical address behind the last extent; `None` before the first.
    position: Option<u64>,
    /// Bytes that have an extent.
    done: u64,
}

impl ImageWriter<'_> {
    /// Adds extents for a part of what the source uses.
    fn part(&mut self, part: Moved, batch: &mut Batch) -> Result<()> {
        self.hole_up_to(part.place, batch);
        // Addresses ascend except where content has moved.
        let follows = self.position.is_some_and(|position| position <= part.logical);
        let has_moved = part.logical != part.place && self.position != Some(part.logical);
        if !follows || has_moved {
            self.extents.seek(part.logical)?;
        }
        let end = part.logical + part.length;
        let mut at = part.logical;
        while at < end {
            let extent = self.extents.first_behind(at)?;
            let (extent, until, is_new) = match extent {
                Some(extent) if extent.start <= at => {
                    let until = extent.end.min(end);
                    (extent, until, false)
                }
                Some(extent) => (at..extent.start.min(end), extent.start.min(end), true),
                None => (at..end, end, true),
            };
            let offset = part.place + (at - part.logical);
            self.extent(offset, &extent, at..until, is_new, batch);
            at = until;
            if batch.is_full() {
                self.target.apply(&self.tree, batch)?;
                *batch = Batch::default();
            }
        }
        self.position = Some(end);
        self.reached = part.place + part.length;
        Ok(())
    }

    fn extent(
        &mut self,
        offset: u64,
        extent: &Range<u64>,
        used: Range<u64>,
        is_new: bool,
        batch: &mut Batch,
    ) {
        let (into, length) = (used.start - extent.start, used.end - used.start);
        let (address, whole) = (LogicalAddress(extent.start), extent.end - extent.start);
        let part = ExtentPart { disk_address: address, disk_length: whole, offset: into, length };
        batch.put(extent_key(NUMBER, offset), extent_item(self.generation, part, whole));
        let offset = FileOffset(offset.wrapping_sub(into));
        let reference = DataReference { address, length: whole, tree: self.id, inode: NUMBER, offset };
        batch.refer(reference, is_new);
        self.done += length;
    }

    fn hole_up_to(&mut self, place: u64, batch: &mut Batch) {
        if place > self.reached && !self.target.no_holes {
            batch.put(extent_key(NUMBER, self.reached), hole_item(self.generation, place - self.reached));
        }
        self.reached = place;
    }
}

/// Gives the root directory its old times back, which the new entry changed.
///
/// # Errors
/// A tree block that cannot be read; no space.
pub(crate) fn restore_root_times(target: &Target, times: [Timespec; 3]) -> Result<()> {
    let tree = target.transactions.live().get(objectid::FS_TREE)?;
    let key = inode_key(InodeNumber(objectid::FIRST_FREE));
    let missing = || ConvertError::Invalid("the root directory has no inode".to_owned());
    let old = tree.tree().get(&key)?.ok_or_else(missing)?;
    let old = InodeItem::parse(old.data()).map_err(|reason| papilio_engine::errors::Error::Item {
        tree: tree.id(),
        key,
        reason,
    })?;
    let [atime, mtime, ctime] = times;
    let mut batch = Batch::default();
    batch.put(key, InodeItem { atime, mtime, ctime, ..old }.to_bytes().to_vec());
    target.apply(&tree, &batch)
}

/// Finds the image, and the name of its subvolume. A directory of that name is none.
pub(crate) fn find_image(fs: &FileSystem) -> Result<Option<(&'static str, Inode)>> {
    for saved in [crate::SAVED, crate::SAVED_XFS] {
        match fs.inode(format!("/{saved}/{}", crate::IMAGE).as_str()) {
            Ok(inode) if inode.tree() != objectid::FS_TREE => return Ok(Some((saved, inode))),
            Ok(_) | Err(Error::Path { kind: PathError::NotFound | PathError::NotADirectory, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}
