//! The items of chunks that are added and removed.
//!
//! Owns [`Transactions::insert_chunks`], which enters a chunk made in memory into the trees, and
//! [`Transactions::remove_empty_groups`], which removes empty chunks. Both cover the chunk and
//! device extents, the block group, its free space, and the used bytes of the devices.
//!
//! **Invariants**
//! - Allocating data space takes no handle, so chunks are made and filled at any time during a
//!   commit.
//! - A chunk is removed only if its items are in the trees and nothing is allocated in it.
//!
//! **Locks**: the caller's; those of trees; leaves.
//!
//! Kernel counterparts: `btrfs_chunk_alloc_add_chunk_item`, `btrfs_remove_chunk`
//! (`fs/btrfs/volumes.c`), `btrfs_create_pending_block_groups`, `btrfs_delete_unused_bgs`
//! (`fs/btrfs/block-group.c`).

use super::chunks::PendingChunk;
use super::commit_state::CommitState;
use super::handle::Handle;
use super::transaction::Transactions;
use crate::btree::Change;
use crate::errors::{Error, Result};
use crate::space::{LogicalRange, NewBlockGroup, RangeSet, free_space_tree};
use papilio_format::items::block_group::{BlockGroupFlags, BlockGroupItem};
use papilio_format::items::chunk::ChunkItem;
use papilio_format::superblock::{RawSuperblock, SYSTEM_CHUNK_ARRAY_SIZE};
use papilio_format::{DeviceId, ItemType, Key, LogicalAddress, objectid};
use std::sync::Arc;

impl Transactions {
    /// Inserts the items of all chunks that were made in memory. Returns whether there were any.
    pub(super) fn insert_chunks(&self, handle: &Handle<'_>, state: &mut CommitState) -> Result<bool> {
        let chunks = self.chunks.take_pending();
        chunks.iter().try_for_each(|chunk| self.insert_chunk(handle, state, chunk))?;
        Ok(!chunks.is_empty())
    }

    /// Inserts the items of a chunk that was made in memory.
    fn insert_chunk(&self, handle: &Handle<'_>, state: &mut CommitState, chunk: &PendingChunk) -> Result<()> {
        let item = chunk.plan.chunk_item(self.volume.geometry().sector_size);
        let key = chunk_key(chunk.start);
        self.live.chunk_tree().edit(handle).insert(key, &item.to_bytes())?;
        if item.flags.contains(BlockGroupFlags::SYSTEM) {
            append_system_chunk(&mut state.superblock, &key, &item.to_bytes())?;
        }
        let chunk_tree_uuid = self.chunk_tree_uuid()?;
        let extents = chunk.plan.device_extents(chunk.start, chunk_tree_uuid);
        let dev_tree = self.live.get(objectid::DEV_TREE)?;
        for (key, extent) in extents {
            dev_tree.edit(handle).insert(key, &extent.to_bytes())?;
        }
        let mut devices: Vec<DeviceId> = chunk.plan.stripes.iter().map(|stripe| stripe.devid).collect();
        devices.dedup();
        for devid in devices {
            self.change_device_use(handle, devid, chunk.plan.bytes_on(devid) as i64)?;
        }
        let range = LogicalRange { start: chunk.start, length: chunk.plan.length };
        self.block_group_tree()?.edit(handle).apply(&[put_block_group(range, 0, item.flags)])?;
        if self.has_free_space_tree() {
            let mut free = RangeSet::default();
            free.cover(&(range.start.0..range.end().0));
            let tree = self.live.get(objectid::FREE_SPACE_TREE)?;
            free_space_tree::create(&mut tree.edit(handle), range, &free)?;
        }
        Ok(())
    }

    fn chunk_tree_uuid(&self) -> Result<papilio_format::Uuid> {
        Ok(self.live.chunk_tree().tree().root_block()?.view().header().chunk_tree_uuid)
    }

    /// Changes the number of bytes that chunks use on a device.
    fn change_device_use(&self, handle: &Handle<'_>, devid: DeviceId, change: i64) -> Result<()> {
        let devices = self.volume.devices();
        let slot = devices
            .iter()
            .find(|slot| slot.devid() == devid)
            .expect("a chunk's stripes are on known devices");
        let mut item = slot.item;
        item.bytes_used = item.bytes_used.saturating_add_signed(change);
        let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, devid.0);
        self.live.chunk_tree().edit(handle).replace(key, &item.to_bytes())?;
        self.volume.set_device_item(item)
    }

    /// Removes the chunks of empty block groups. Returns those of the chunk tree, which the
    /// superblock's array has to lose.
    pub fn remove_empty_groups(&self, handle: &Handle<'_>) -> Result<Vec<LogicalAddress>> {
        let mut system = Vec::new();
        for group in self.space.empty_groups() {
            let start = group.range.start;
            // System chunks stay, unless they are relocated. The other checks are needed because
            // data space is allocated without a handle. A chunk's items may still be pending, or
            // something may be allocated in it by now.
            let kept = group.flags.contains(BlockGroupFlags::SYSTEM) && !self.space.is_relocating(start);
            if kept || self.chunks.is_pending(start) || !self.space.mark_empty_read_only(start) {
                continue;
            }
            self.remove_chunk(handle, &group)?;
            if group.flags.contains(BlockGroupFlags::SYSTEM) {
                system.push(start);
            }
        }
        Ok(system)
    }

    fn remove_chunk(&self, handle: &Handle<'_>, group: &NewBlockGroup) -> Result<()> {
        let start = group.range.start;
        let chunks = self.volume.chunk_map();
        let chunk = Arc::clone(chunks.require(start, group.range.length)?);
        if self.has_free_space_tree() {
            let tree = self.live.get(objectid::FREE_SPACE_TREE)?;
            free_space_tree::delete(&mut tree.edit(handle), group.range)?;
        }
        self.block_group_tree()?.edit(handle).remove(block_group_key(group.range))?;
        self.live.chunk_tree().edit(handle).remove(chunk_key(start))?;
        let dev_tree = self.live.get(objectid::DEV_TREE)?;
        for stripe in chunk.stripes() {
            let key = Key::new(stripe.devid.0, ItemType::DEV_EXTENT, stripe.offset.0);
            dev_tree.edit(handle).remove(key)?;
            let bytes = chunk.length() / chunk.data_columns() as u64;
            self.change_device_use(handle, stripe.devid, -(bytes as i64))?;
        }
        self.space.remove_block_group(start);
        self.volume.remove_chunk(start)?;
        self.discards.forget(&group.range.bytes());
        self.chunks.removed(chunk.stripes().iter().map(|stripe| (stripe.devid, stripe.offset)));
        Ok(())
    }
}

fn chunk_key(start: LogicalAddress) -> Key {
    Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.0)
}

fn block_group_key(range: LogicalRange) -> Key {
    Key::new(range.start.0, ItemType::BLOCK_GROUP_ITEM, range.length)
}

pub(super) fn put_block_group(range: LogicalRange, used: u64, flags: BlockGroupFlags) -> Change {
    let item = BlockGroupItem { used, chunk_objectid: objectid::FIRST_CHUNK_TREE, flags };
    Change::Put { key: block_group_key(range), data: item.to_bytes().to_vec() }
}

/// Appends a system chunk to the superblock's array.
fn append_system_chunk(superblock: &mut RawSuperblock, key: &Key, chunk: &[u8]) -> Result<()> {
    let used = superblock.sys_chunk_array_size as usize;
    let end = used + Key::SIZE + chunk.len();
    if end > SYSTEM_CHUNK_ARRAY_SIZE {
        return Err(Error::NoSpace { what: "the superblock's array of system chunks" });
    }
    superblock.sys_chunk_array[used..used + Key::SIZE].copy_from_slice(&key.to_bytes());
    superblock.sys_chunk_array[used + Key::SIZE..end].copy_from_slice(chunk);
    superblock.sys_chunk_array_size = end as u32;
    Ok(())
}

/// Removes the system chunk that starts at `start` from the superblock's array.
pub(super) fn remove_system_chunk(superblock: &mut RawSuperblock, start: LogicalAddress) -> Result<()> {
    let used = (superblock.sys_chunk_array_size as usize).min(SYSTEM_CHUNK_ARRAY_SIZE);
    let mut at = 0;
    while at < used {
        let entry = &superblock.sys_chunk_array[at..used];
        let fault = |reason| Error::Item { tree: objectid::CHUNK_TREE, key: chunk_key(start), reason };
        let (key, rest) = Key::parse_prefix(entry).map_err(fault)?;
        let (_, rest) = ChunkItem::parse_prefix(rest).map_err(fault)?;
        let length = entry.len() - rest.len();
        if key.offset == start.0 {
            superblock.sys_chunk_array.copy_within(at + length..used, at);
            superblock.sys_chunk_array[used - length..used].fill(0);
            superblock.sys_chunk_array_size = (used - length) as u32;
            return Ok(());
        }
        at += length;
    }
    Err(Error::MissingItem {
        tree: objectid::CHUNK_TREE,
        key: chunk_key(start),
        what: "a system chunk in the superblock",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::testing::{chunk_item, superblock};
    use papilio_format::items::chunk::RaidProfile;

    /// A superblock whose array has system chunks at these addresses.
    fn with_chunks(starts: &[u64]) -> RawSuperblock {
        let chunk = chunk_item(RaidProfile::Dup, 2, 8 << 20);
        let mut raw = superblock(1, 1, &chunk);
        raw.sys_chunk_array.fill(0);
        raw.sys_chunk_array_size = 0;
        for start in starts {
            append_system_chunk(&mut raw, &chunk_key(LogicalAddress(*start)), &chunk.to_bytes()).unwrap();
        }
        raw
    }

    #[test]
    fn system_chunks_come_and_go() {
        for (gone, left) in [(1, [2, 3]), (2, [1, 3]), (3, [1, 2])] {
            let mut raw = with_chunks(&[1, 2, 3]);
            remove_system_chunk(&mut raw, LogicalAddress(gone)).unwrap();
            let expected = with_chunks(&left);
            assert_eq!(raw.sys_chunk_array_size, expected.sys_chunk_array_size);
            assert!(raw.sys_chunk_array == expected.sys_chunk_array);
        }
        let mut raw = with_chunks(&[1, 2]);
        let before = raw.sys_chunk_array;
        let error = remove_system_chunk(&mut raw, LogicalAddress(9)).unwrap_err();
        assert!(matches!(error, Error::MissingItem { .. }), "{error}");
        assert!(raw.sys_chunk_array == before);
        // Garbage behind the chunks.
        raw.sys_chunk_array_size += 5;
        let error = remove_system_chunk(&mut raw, LogicalAddress(9)).unwrap_err();
        assert!(matches!(error, Error::Item { .. }), "{error}");
    }

    #[test]
    fn the_array_is_used_to_its_last_byte() {
        let mut raw = with_chunks(&[1]);
        let key = chunk_key(LogicalAddress(2));
        let room = SYSTEM_CHUNK_ARRAY_SIZE - raw.sys_chunk_array_size as usize - Key::SIZE;
        let error = append_system_chunk(&mut raw, &key, &vec![7; room + 1]).unwrap_err();
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
        append_system_chunk(&mut raw, &key, &vec![7; room]).unwrap();
        assert_eq!(raw.sys_chunk_array_size as usize, SYSTEM_CHUNK_ARRAY_SIZE);
        assert_eq!(raw.sys_chunk_array[SYSTEM_CHUNK_ARRAY_SIZE - 1], 7);
    }
}
