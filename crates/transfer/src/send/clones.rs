//! Extents that the receiver has already, elsewhere.
//!
//! Owns [`Sender::find_clone`]. The back references of an extent are taken as hints: they name
//! inodes and offsets, and each is looked up in the trees that the receiver has. So it does not
//! matter which snapshot a reference belongs to.
//!
//! Kernel counterpart: `find_extent_clone` (`fs/btrfs/send.c`).

use super::content::Content;
use super::id::Id;
use super::sender::{CloneSource, Sender};
use papilio_engine::btree::Tree;
use papilio_engine::data::extent_map::{DiskExtent, ExtentKind, FileExtents};
use papilio_engine::errors::Result;
use papilio_engine::items::inode::{self, first_name};
use papilio_format::items::back_ref::{BackRef, KeyedRefs};
use papilio_format::items::extent::ExtentItem;
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::send_stream::Command;
use papilio_format::{FileOffset, InodeNumber, ItemType, Key, LogicalAddress, NodeExpectation, objectid};
use std::collections::BTreeSet;
use std::ops::Range;

/// Most references of an extent that are followed. Extents with more are sent as data.
const REFERENCE_LIMIT: usize = 1024;
/// Most names in a path. A longer path means a loop.
const DEPTH_LIMIT: usize = 4096;

/// An inode that may contain the extent, and the file offset of the extent's first byte there.
type Hint = (u64, u64);

/// The place of a clone's data.
struct Found {
    source: usize,
    number: u64,
    offset: u64,
    length: u64,
}

impl Sender<'_> {
    /// Returns the command that clones a range, if the receiver has the data. `size` is the file's
    /// size at the receiver, in bytes.
    pub(super) fn find_clone(
        &mut self,
        content: &Content<'_>,
        disk: DiskExtent,
        range: &Range<u64>,
        size: u64,
    ) -> Result<Option<Command>> {
        let begin = range.start.wrapping_sub(disk.offset);
        let mut hints = self.hints(disk.disk_address)?;
        if self.sources.len() > 1 {
            hints.insert((content.number, begin));
        }
        for (number, start) in hints {
            let from = start.wrapping_add(disk.offset);
            for source in 0..self.sources.len() {
                let own = source == 0;
                let known = !own
                    || number < content.number
                    || (number == content.number
                        && from.saturating_add(range.end - range.start) <= range.start);
                if !known {
                    continue;
                }
                let Some(found) = self.look_for(source, number, from, disk, range, size)? else { continue };
                // The receiver may have compressed such a piece into an inline extent, which cannot
                // be cloned to another offset.
                if found.offset == 0 && found.length == u64::from(self.sector_size) {
                    return Ok(None);
                }
                if let Some(path) = self.source_path(&found)? {
                    let CloneSource { uuid, ctransid, .. } = self.sources[source];
                    return Ok(Some(Command::Clone {
                        offset: range.start,
                        length: found.length,
                        path: content.path.clone(),
                        clone_uuid: uuid,
                        clone_ctransid: ctransid.0,
                        clone_path: path,
                        clone_offset: found.offset,
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Looks for the whole range in one inode of one source.
    fn look_for(
        &self,
        source: usize,
        number: u64,
        from: u64,
        disk: DiskExtent,
        range: &Range<u64>,
        size: u64,
    ) -> Result<Option<Found>> {
        let tree = &self.sources[source].tree;
        let sector = u64::from(self.sector_size);
        let length = range.end - range.start;
        let Some(item) = inode::inode(tree, InodeNumber(number))? else { return Ok(None) };
        let Some(end) = from.checked_add(length).filter(|end| *end <= item.size) else { return Ok(None) };
        if item.nlink == 0 || !from.is_multiple_of(sector) {
            return Ok(None);
        }
        // A clone ends at a sector boundary, or at the end of both files.
        if !length.is_multiple_of(sector) && (end != item.size || size > range.end) {
            return Ok(None);
        }
        let (first, last) = (FileOffset(from), FileOffset(end));
        for extent in FileExtents::new(tree, InodeNumber(number), self.sector_size, first, last) {
            let extent = extent?;
            let expected = disk.advanced(extent.start.0 - from);
            match extent.kind {
                ExtentKind::Regular(found)
                    if (found.disk_address, found.offset, found.compression)
                        == (expected.disk_address, expected.offset, expected.compression) => {}
                _ => return Ok(None),
            }
        }
        Ok(Some(Found { source, number, offset: from, length }))
    }

    /// Returns the path of a source at the receiver.
    fn source_path(&mut self, found: &Found) -> Result<Option<Vec<u8>>> {
        if found.source == 0 {
            return self.names.path_of(Id::lasting(found.number)).map(Some);
        }
        path_in(&self.sources[found.source].tree, found.number)
    }

    /// Collects the inodes and offsets that the references of an extent name.
    fn hints(&mut self, address: LogicalAddress) -> Result<BTreeSet<Hint>> {
        if let Some((known, hints)) = &self.last_hints
            && *known == address
        {
            return Ok(hints.clone());
        }
        let hints = self.find_hints(address)?;
        self.last_hints = Some((address, hints.clone()));
        Ok(hints)
    }

    fn find_hints(&self, address: LogicalAddress) -> Result<BTreeSet<Hint>> {
        let mut hints = BTreeSet::new();
        let extents = self.fs.info.trees.get(objectid::EXTENT_TREE, "the extent tree")?;
        let tree = &extents.tree;
        let mut references = Vec::new();
        for item in tree.range(Key::first_of(address.0)..=Key::last_of(address.0)) {
            let item = item?;
            let fault = |reason| papilio_engine::items::item_error(tree, &item, reason);
            match item.key.item_type {
                ItemType::EXTENT_ITEM => {
                    let extent = ExtentItem::parse(item.key.item_type, item.data()).map_err(fault)?;
                    if extent.header.refs < 2 || extent.header.refs > REFERENCE_LIMIT as u64 {
                        return Ok(hints);
                    }
                    for reference in extent.inline_refs() {
                        references.push(reference.map_err(fault)?);
                    }
                }
                ItemType::EXTENT_DATA_REF | ItemType::SHARED_DATA_REF => {
                    references.extend(KeyedRefs::parse(&item.key, item.data()).map_err(fault)?);
                }
                _ => {}
            }
        }
        for reference in references {
            match reference {
                BackRef::Data { inode, offset, .. } => drop(hints.insert((inode.0, offset.0))),
                BackRef::SharedData { parent, .. } => {
                    self.hints_in_leaf(tree, parent, address, &mut hints)?
                }
                _ => {}
            }
        }
        Ok(hints)
    }

    /// Collects the inodes of a shared leaf that refer to an extent.
    fn hints_in_leaf(
        &self,
        tree: &Tree,
        leaf: LogicalAddress,
        address: LogicalAddress,
        hints: &mut BTreeSet<Hint>,
    ) -> Result<()> {
        let expected = NodeExpectation { level: Some(0), ..NodeExpectation::at(leaf) };
        let block = tree.forest().block(self.new.tree.id(), &expected)?;
        let view = block.view();
        for slot in 0..view.len() {
            let key = view.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let Ok(item) = FileExtentItem::parse(view.item(slot)) else { continue };
            if let FileExtentContent::Regular(part) = item.content
                && part.disk_address == address
            {
                hints.insert((key.objectid, key.offset.wrapping_sub(part.offset)));
            }
        }
        Ok(())
    }
}

/// Returns the path of an inode in a tree.
fn path_in(tree: &Tree, number: u64) -> Result<Option<Vec<u8>>> {
    let (mut names, mut at) = (Vec::new(), InodeNumber(number));
    while at != objectid::FIRST_INODE {
        let Some(name) = first_name(tree, at)? else { return Ok(None) };
        names.push(name.name);
        at = name.parent;
        if names.len() > DEPTH_LIMIT {
            return Ok(None);
        }
    }
    names.reverse();
    Ok(Some(names.join(&b'/')))
}
