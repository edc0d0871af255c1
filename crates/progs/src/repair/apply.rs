//! Applies one remedy: turns it into changes of items, blocks and superblocks.
//!
//! Owns [`apply`]. A remedy that names another item reads it at this moment, since remedies before
//! it may have changed it.
//!
//! **Invariant**: a remedy whose premises no longer hold is an error, and changes nothing.

use super::super::check::inventory::Inventory;
use super::super::check::remedy::{InodeField, Remedy, SuperblockField};
use super::editor::{
    Editor, Items, RoundContext, current_superblock, inode_item, refuse, root_item_keys, write_superblock,
};
use super::{lost_found, rebuilt_inode as inodes, space_trees};
use papilio_engine::errors::Result;
use papilio_engine::volume::Volume;
use papilio_format::checksum::extref_hash;
use papilio_format::features::{CompatRoFeatures, SuperblockFlags};
use papilio_format::items::csum::CsumItem;
use papilio_format::items::dir_item::{DirEntries, DirEntry, FileType, dir_item_key};
use papilio_format::items::extent::{ExtentFlags, ExtentHeader};
use papilio_format::items::inode::{InodeFlags, InodeItem};
use papilio_format::items::inode_ref::{InodeExtrefs, InodeRef, InodeRefs};
use papilio_format::items::root::RootItem;
use papilio_format::node::NodeHeader;
use papilio_format::{InodeNumber, ItemType, Key, LogicalAddress, Node, NodeExpectation, TreeId, objectid};
use std::sync::Arc;

/// The most checksums that a new item gets; small enough for leaves of any size.
const MOST_SUMS: usize = 256;

/// Applies a remedy. Returns whether anything changed.
pub(super) fn apply(
    volume: &Arc<Volume>,
    context: &RoundContext,
    inventory: &Inventory,
    remedy: &Remedy,
) -> Result<bool> {
    let editor = Editor::new(volume, context);
    match *remedy {
        Remedy::Mirror(address) => {
            let block = editor.block(address)?;
            editor.write(address, block.bytes().to_vec())?;
            Ok(true)
        }
        Remedy::Byte { block, copy, change } => {
            let mut bytes = vec![0; volume.geometry().node_size as usize];
            volume.read_copy(block, &mut bytes, copy)?;
            bytes[change.offset] ^= change.flip;
            if let Err(reason) = Node::check(&bytes, &NodeExpectation::at(block), &volume.geometry()) {
                return refuse(format!("the block is another one by now: {reason}"));
            }
            editor.write(block, bytes)?;
            Ok(true)
        }
        Remedy::Pointer { parent, child, generation, first_key } => {
            let block = editor.block(parent)?;
            let view = block.view();
            let slot = (0..view.len()).find(|slot| view.child(*slot).address == child);
            let Some(slot) = slot else { return refuse("the block has no such pointer") };
            editor.edit_pointer(&block, slot, |pointer| {
                (pointer.generation, pointer.key) = (generation, first_key);
            })?;
            Ok(true)
        }
        Remedy::MoveBlock { tree, parent, block } => move_block(&editor, context, tree, parent, block),
        Remedy::DropLeftSpace { first, last } => {
            editor.replace(objectid::FREE_SPACE_TREE, &first, &last, Items::new())
        }
        Remedy::DropUnknown { tree, key } => editor.replace(tree, &key, &key, Items::new()),
        Remedy::RootGeneration { item, generation } => edit_root(&editor, item, |raw| {
            (raw.generation, raw.generation_v2) = (generation, generation);
        }),
        Remedy::RootCount { item, refs } => edit_root(&editor, item, |raw| raw.refs = refs),
        Remedy::Owner { block, owner } => {
            let mut bytes = editor.block(block)?.bytes().to_vec();
            let Ok((mut header, _)) = NodeHeader::parse_prefix(&bytes) else { return refuse("no header") };
            header.owner = owner;
            bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
            editor.write(block, bytes)?;
            Ok(true)
        }
        Remedy::Replace { tree, first, last, ref items } => {
            editor.replace(tree, &first, &last, items.clone())
        }
        Remedy::AddCsums { start, end } => add_csums(volume, &editor, start, end),
        Remedy::DropCsums { start, end } => drop_csums(volume, &editor, start, end),
        Remedy::Inode { tree, inode, field } => edit_inode(&editor, tree, inode, field),
        Remedy::AddEntryByName { tree, index } => add_by_name(&editor, tree, index),
        Remedy::AddEntryByIndex { tree, item, target } => add_by_index(&editor, tree, item, target),
        Remedy::AddInodeRef { tree, index } => add_inode_ref(&editor, tree, index),
        Remedy::AddEntries { tree, inode, directory, index } => {
            add_entries(&editor, tree, inode, directory, index)
        }
        Remedy::DropEntries { tree, index, .. } => drop_entries(&editor, tree, index),
        Remedy::EntryType { tree, index } => set_type(&editor, tree, index),
        Remedy::RootRef { from, to } => {
            let data = editor.need(objectid::ROOT_TREE, &from)?;
            editor.put(objectid::ROOT_TREE, to, data)
        }
        Remedy::DefaultSubvolume => {
            let key = dir_item_key(InodeNumber(objectid::ROOT_TREE_DIR), b"default");
            edit_entries(&editor, objectid::ROOT_TREE, key, |entry| {
                if entry.name == b"default" {
                    entry.location = Key::new(objectid::FS_TREE.0, ItemType::ROOT_ITEM, u64::MAX);
                }
            })
        }
        Remedy::Superblock(field) => set_superblock(volume, field),
        ref other => apply_other(&editor, context, inventory, other),
    }
}

/// Applies the remedies for inodes without a way to them, file extents and whole trees.
fn apply_other(
    editor: &Editor<'_>,
    context: &RoundContext,
    inventory: &Inventory,
    remedy: &Remedy,
) -> Result<bool> {
    match *remedy {
        Remedy::ExtentFlags { extent, flags } => set_extent_flags(editor, extent, flags),
        Remedy::BlankInode { tree, index } => inodes::blank(editor, tree, index),
        Remedy::RebuildInode { tree, inode } => inodes::rebuild(editor, tree, inode),
        Remedy::LostAndFound { tree, inode } => lost_found::put(editor, tree, inode),
        Remedy::DropInodeRef { tree, inode, directory, index } => {
            lost_found::drop_ref(editor, tree, inode, directory, index)
        }
        Remedy::FileExtent { tree, key } => inodes::fit_extent(editor, tree, key),
        Remedy::SizeOfData { tree, inode, end } => inodes::set_size(editor, tree, inode, end),
        Remedy::HangSubvolume { parent, child } => lost_found::hang_subvolume(editor, parent, child),
        Remedy::FillHoles { tree, inode } => inodes::fill_holes(editor, tree, inode),
        Remedy::AddTree(tree) => {
            let items = match tree {
                objectid::DEV_TREE => space_trees::device_extents(inventory),
                objectid::CSUM_TREE => Items::new(),
                _ => return refuse("nothing says what was in it"),
            };
            space_trees::replace_tree(editor.volume, context, inventory, tree, &items).map(|_| true)
        }
        Remedy::DropTree(tree) => {
            let (first, last) = root_item_keys(tree);
            editor.replace(objectid::ROOT_TREE, &first, &last, Items::new())
        }
        _ => unreachable!("the caller applies the others"),
    }
}

/// Writes a block to another place, and changes the pointer to it. The next round mends its extent
/// items.
fn move_block(
    editor: &Editor<'_>,
    context: &RoundContext,
    tree: TreeId,
    parent: Option<LogicalAddress>,
    block: LogicalAddress,
) -> Result<bool> {
    let mut bytes = editor.block(block)?.bytes().to_vec();
    let Ok((mut header, _)) = NodeHeader::parse_prefix(&bytes) else { return refuse("no header") };
    let (generation, level) = (header.generation, header.level);
    let (node, slot) = match parent {
        Some(parent) => {
            let node = editor.block(parent)?;
            let view = node.view();
            let slot = (0..view.len()).find(|slot| view.child(*slot).address == block);
            let Some(slot) = slot else { return refuse("the parent has no pointer to it any more") };
            (Some(node), slot)
        }
        None if editor.root(tree)? != block => return refuse("it is no root any more"),
        None => (None, 0),
    };
    header.address = context.take(tree)?;
    bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
    editor.write(header.address, bytes)?;
    match node {
        Some(node) => editor.edit_pointer(&node, slot, |pointer| pointer.address = header.address)?,
        None => editor.set_root(tree, |_, _, _| (header.address, Some(generation.0), level))?,
    }
    Ok(true)
}

fn set_superblock(volume: &Volume, field: SuperblockField) -> Result<bool> {
    // The fields of earlier remedies of this round are on the devices, not in the volume.
    let mut raw = current_superblock(volume)?;
    match field {
        SuperblockField::Copies => {}
        SuperblockField::BytesUsed(bytes) => raw.bytes_used = bytes,
        SuperblockField::TotalBytes(bytes) => raw.total_bytes = bytes,
        SuperblockField::Devices(count) => raw.num_devices = count,
        SuperblockField::ConversionDone => {
            raw.flags = raw.flags.difference(SuperblockFlags::CHANGING_BG_TREE);
            raw.compat_ro_flags |= CompatRoFeatures::BLOCK_GROUP_TREE;
        }
        SuperblockField::ConversionNotBegun => {
            raw.flags = raw.flags.difference(SuperblockFlags::CHANGING_BG_TREE);
        }
    }
    write_superblock(volume, &raw)?;
    Ok(true)
}

fn edit_root(
    editor: &Editor<'_>,
    key: Key,
    edit: impl FnOnce(&mut papilio_format::items::root::RawRootItem),
) -> Result<bool> {
    let data = editor.need(objectid::ROOT_TREE, &key)?;
    let Ok(item) = RootItem::parse(&data) else { return refuse("the root item is damaged") };
    let mut raw = item.into_raw();
    edit(&mut raw);
    let mut bytes = RootItem::new(raw).to_bytes().to_vec();
    // Root items of old file systems are shorter.
    bytes.truncate(data.len());
    editor.put(objectid::ROOT_TREE, key, bytes)
}

/// Sets the flags of a tree block's extent item.
fn set_extent_flags(editor: &Editor<'_>, extent: u64, flags: ExtentFlags) -> Result<bool> {
    let first = Key::new(extent, ItemType::EXTENT_ITEM, 0);
    let last = Key::new(extent, ItemType::METADATA_ITEM, u64::MAX);
    let items = editor.items(objectid::EXTENT_TREE, &first, &last)?;
    let Some((key, mut data)) = items.into_iter().next() else { return refuse("the extent has no item") };
    let Ok((mut header, _)) = ExtentHeader::parse_prefix(&data) else { return refuse("no extent item") };
    header.flags = flags;
    data[..ExtentHeader::SIZE].copy_from_slice(&header.to_bytes());
    editor.put(objectid::EXTENT_TREE, key, data)
}

fn edit_inode(editor: &Editor<'_>, tree: TreeId, inode: u64, field: InodeField) -> Result<bool> {
    let (key, mut item) = inode_item(editor, tree, inode)?;
    match field {
        InodeField::Links(links) => item.nlink = links,
        InodeField::Size(size) => item.size = size,
        InodeField::Bytes(bytes) => item.nbytes = bytes,
        InodeField::NoSymlinkFlags => item.flags = item.flags.difference(InodeFlags::OF_NO_SYMLINK),
        InodeField::NoVerity => item.flags = item.flags.difference(InodeFlags::VERITY),
        InodeField::HasCsums => item.flags = item.flags.difference(InodeFlags::NODATASUM),
    }
    editor.put(tree, key, item.to_bytes().to_vec())
}

/// Computes the checksums that a range lacks, in items of their own. Remedies for several files
/// overlap where the files share an extent, so some checksums of a range may be there by now.
fn add_csums(volume: &Volume, editor: &Editor<'_>, start: u64, end: u64) -> Result<bool> {
    let geometry = volume.geometry();
    let (sector, size) = (u64::from(geometry.sector_size), geometry.checksum_type.size());
    let mut covered = Vec::new();
    let first = csum_key(before_items(start, size, sector));
    for (key, data) in editor.items(objectid::CSUM_TREE, &first, &csum_key(end.saturating_sub(1)))? {
        let Ok(item) = CsumItem::parse(&key, &data, &geometry) else { return refuse("a bad checksum item") };
        covered.push(item.start().0..item.end().0);
    }
    let mut items = Items::new();
    let mut buffer = vec![0; sector as usize];
    let mut next = None;
    for at in (start..end).step_by(sector as usize) {
        if covered.iter().any(|range| range.contains(&at)) {
            continue;
        }
        volume.read(LogicalAddress(at), &mut buffer)?;
        let sum = geometry.checksum_type.compute(&buffer);
        match items.last_mut() {
            Some((_, sums)) if next == Some(at) && sums.len() < MOST_SUMS * size => {
                sums.extend_from_slice(sum.as_bytes());
            }
            _ => items.push((csum_key(at), sum.as_bytes().to_vec())),
        }
        next = Some(at + sector);
    }
    let mut changed = false;
    for (key, data) in items {
        changed |= editor.put(objectid::CSUM_TREE, key, data)?;
    }
    Ok(changed)
}

/// Returns an offset that no item which reaches `start` is before: the largest leaf has room for
/// less than 64 KiB of checksums.
fn before_items(start: u64, size: usize, sector: u64) -> u64 {
    start.saturating_sub((65536 / size as u64) * sector)
}

fn csum_key(at: u64) -> Key {
    Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, at)
}

/// Removes the checksums of a range; those around it stay.
fn drop_csums(volume: &Volume, editor: &Editor<'_>, start: u64, end: u64) -> Result<bool> {
    let geometry = volume.geometry();
    let (sector, size) = (u64::from(geometry.sector_size), geometry.checksum_type.size());
    let first = csum_key(before_items(start, size, sector));
    let last = csum_key(end.saturating_sub(1));
    let mut kept = Items::new();
    for (key, data) in editor.items(objectid::CSUM_TREE, &first, &last)? {
        let Ok(item) = CsumItem::parse(&key, &data, &geometry) else { return refuse("a bad checksum item") };
        let (from, to) = (item.start().0, item.end().0);
        if from < start {
            let count = ((start.min(to) - from) / sector) as usize * size;
            kept.push((key, data[..count].to_vec()));
        }
        if to > end {
            let skip = ((end.max(from) - from) / sector) as usize * size;
            kept.push((csum_key(end.max(from)), data[skip..].to_vec()));
        }
    }
    // The key of a rest at `end` is past `last`.
    let last = csum_key(end);
    if let Some(data) = editor.item(objectid::CSUM_TREE, &last)?
        && kept.iter().all(|(key, _)| *key != last)
    {
        kept.push((last, data));
    }
    editor.replace(objectid::CSUM_TREE, &first, &last, kept)
}

/// Returns the one entry of an index item.
fn index_entry(data: &[u8]) -> Result<DirEntry<'_>> {
    match DirEntries::parse(data).ok().and_then(|mut entries| entries.next()) {
        Some(entry) => Ok(entry),
        None => refuse("the index entry cannot be read"),
    }
}

/// Changes all entries of an item.
fn edit_entries(
    editor: &Editor<'_>,
    tree: TreeId,
    key: Key,
    edit: impl Fn(&mut DirEntry<'_>),
) -> Result<bool> {
    let data = editor.need(tree, &key)?;
    let Ok(entries) = DirEntries::parse(&data) else { return refuse("the entries cannot be read") };
    let mut bytes = Vec::new();
    for mut entry in entries {
        edit(&mut entry);
        entry.append_to(&mut bytes);
    }
    editor.put(tree, key, bytes)
}

/// Returns the type that entries of an inode have.
fn file_type_of(item: &InodeItem) -> Option<FileType> {
    Some(item.kind()?.file_type())
}

/// Adds an entry to the item of its name's hash, unless it has one of this name.
fn add_named(editor: &Editor<'_>, tree: TreeId, directory: u64, entry: &DirEntry<'_>) -> Result<bool> {
    let key = dir_item_key(InodeNumber(directory), entry.name);
    let mut data = editor.item(tree, &key)?.unwrap_or_default();
    if DirEntries::parse(&data).into_iter().flatten().any(|found| found.name == entry.name) {
        return refuse("the directory has an entry of this name");
    }
    entry.append_to(&mut data);
    editor.put(tree, key, data)
}

fn add_by_name(editor: &Editor<'_>, tree: TreeId, index: Key) -> Result<bool> {
    let data = editor.need(tree, &index)?;
    add_named(editor, tree, index.objectid, &index_entry(&data)?)
}

fn add_by_index(editor: &Editor<'_>, tree: TreeId, item: Key, target: u64) -> Result<bool> {
    let data = editor.need(tree, &item)?;
    let Ok(mut entries) = DirEntries::parse(&data) else { return refuse("the entries cannot be read") };
    let Some(entry) = entries.find(|entry| entry.location.objectid == target) else {
        return refuse("the entry is gone");
    };
    let inode = Key::new(target, ItemType::INODE_ITEM, 0);
    if entry.location.item_type == ItemType::INODE_ITEM && editor.item(tree, &inode)?.is_none() {
        // It leads to nothing.
        return drop_named(editor, tree, item, &entry);
    }
    let index = if entry.location.item_type == ItemType::ROOT_ITEM {
        let key = papilio_format::items::root_ref::root_backref_key(TreeId(target), tree);
        let data = editor.need(objectid::ROOT_TREE, &key)?;
        let found = papilio_format::items::root_ref::RootRef::parse(&data).ok();
        found.filter(|found| found.name == entry.name).map(|found| found.sequence)
    } else {
        match listed_index(editor, tree, item.objectid, target, entry.name)? {
            // The reference is lost, too. The next round writes it for the entry by index.
            None => Some(new_index(editor, tree, item.objectid)?),
            index => index,
        }
    };
    let Some(index) = index else { return refuse("nothing names the index of the entry") };
    let key = Key::new(item.objectid, ItemType::DIR_INDEX, index);
    if editor.item(tree, &key)?.is_some() {
        return refuse("the index is taken");
    }
    editor.put(tree, key, entry.to_bytes())
}

/// Returns the index that the references of an inode have for a name in a directory.
fn listed_index(
    editor: &Editor<'_>,
    tree: TreeId,
    directory: u64,
    inode: u64,
    name: &[u8],
) -> Result<Option<u64>> {
    let data = editor.item(tree, &Key::new(inode, ItemType::INODE_REF, directory))?.unwrap_or_default();
    let found = InodeRefs::parse(&data).into_iter().flatten().find(|found| found.name == name);
    if let Some(found) = found {
        return Ok(Some(found.index));
    }
    let key = Key::new(inode, ItemType::INODE_EXTREF, extref_hash(directory, name));
    let data = editor.item(tree, &key)?.unwrap_or_default();
    let mut found = InodeExtrefs::parse(&data).into_iter().flatten();
    let found = found.find(|found| found.parent.0 == directory && found.name == name);
    Ok(found.map(|found| found.index))
}

/// Returns an index for a new entry of a directory, behind those of entries that are lost and whose
/// references may still be there.
fn new_index(editor: &Editor<'_>, tree: TreeId, directory: u64) -> Result<u64> {
    const SPARED: u64 = 1 << 16;
    let last = lost_found::last_index(editor, tree, directory)?;
    match last.unwrap_or(0).checked_add(SPARED) {
        Some(index) => Ok(index),
        None => refuse("the directory has no index left"),
    }
}

fn add_inode_ref(editor: &Editor<'_>, tree: TreeId, index: Key) -> Result<bool> {
    let data = editor.need(tree, &index)?;
    let entry = index_entry(&data)?;
    if entry.location.item_type != ItemType::INODE_ITEM {
        return refuse("the entry is that of a subvolume");
    }
    inode_item(editor, tree, entry.location.objectid)?;
    let key = Key::new(entry.location.objectid, ItemType::INODE_REF, index.objectid);
    let mut data = editor.item(tree, &key)?.unwrap_or_default();
    let kept: Vec<u8> = match InodeRefs::parse(&data) {
        Ok(refs) => {
            // One with this index and another name is this one.
            let others = refs.filter(|found| found.name != entry.name && found.index != index.offset);
            others.flat_map(|found| found.to_bytes()).collect()
        }
        Err(_) => Vec::new(),
    };
    data = kept;
    InodeRef { index: index.offset, name: entry.name }.append_to(&mut data);
    editor.put(tree, key, data)
}

fn add_entries(editor: &Editor<'_>, tree: TreeId, inode: u64, directory: u64, index: u64) -> Result<bool> {
    let (_, item) = inode_item(editor, tree, inode)?;
    let (_, parent) = inode_item(editor, tree, directory)?;
    if parent.kind() != Some(papilio_format::items::inode::FileKind::Directory) {
        return refuse("the parent is not a directory");
    }
    let data = editor.need(tree, &Key::new(inode, ItemType::INODE_REF, directory))?;
    let found = InodeRefs::parse(&data).into_iter().flatten().find(|found| found.index == index);
    let Some(found) = found else { return refuse("the reference is gone") };
    let Some(file_type) = file_type_of(&item) else { return refuse("the inode has no kind") };
    let entry = DirEntry {
        location: Key::new(inode, ItemType::INODE_ITEM, 0),
        transid: item.transid,
        file_type,
        encrypted: false,
        name: found.name,
        data: &[],
    };
    let key = Key::new(directory, ItemType::DIR_INDEX, index);
    if editor.item(tree, &key)?.is_some() {
        return refuse("the index is taken");
    }
    let named = dir_item_key(InodeNumber(directory), found.name);
    let old = editor.item(tree, &named)?.unwrap_or_default();
    if DirEntries::parse(&old).into_iter().flatten().any(|other| other.name == found.name) {
        return refuse("the directory has an entry of this name");
    }
    editor.put(tree, key, entry.to_bytes())?;
    add_named(editor, tree, directory, &entry)
}

fn drop_entries(editor: &Editor<'_>, tree: TreeId, index: Key) -> Result<bool> {
    let data = editor.need(tree, &index)?;
    let entry = index_entry(&data)?;
    let key = dir_item_key(InodeNumber(index.objectid), entry.name);
    editor.replace(tree, &index, &index, Items::new())?;
    drop_named(editor, tree, key, &entry)?;
    Ok(true)
}

/// Removes an entry by name from the item of its name's hash.
fn drop_named(editor: &Editor<'_>, tree: TreeId, key: Key, entry: &DirEntry<'_>) -> Result<bool> {
    let old = editor.item(tree, &key)?.unwrap_or_default();
    let same = |found: &DirEntry<'_>| found.name == entry.name && found.location == entry.location;
    let kept: Vec<u8> = DirEntries::parse(&old)
        .into_iter()
        .flatten()
        .filter(|found| !same(found))
        .flat_map(|found| found.to_bytes())
        .collect();
    let items = if kept.is_empty() { Items::new() } else { vec![(key, kept)] };
    editor.replace(tree, &key, &key, items)
}

fn set_type(editor: &Editor<'_>, tree: TreeId, index: Key) -> Result<bool> {
    let data = editor.need(tree, &index)?;
    let entry = index_entry(&data)?;
    let (_, item) = inode_item(editor, tree, entry.location.objectid)?;
    let Some(file_type) = file_type_of(&item) else { return refuse("the inode has no kind") };
    let set = |found: &mut DirEntry<'_>| {
        if found.name == entry.name && found.location == entry.location {
            found.file_type = file_type;
        }
    };
    let by_index = edit_entries(editor, tree, index, set)?;
    let key = dir_item_key(InodeNumber(index.objectid), entry.name);
    Ok(edit_entries(editor, tree, key, set)? || by_index)
}
