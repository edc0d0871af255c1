//! The blocks that an ext file system uses.
//!
//! Owns [`used_blocks`], which reads all block bitmaps and checks them against the counts of free
//! blocks. The metadata of groups counts as used even where a group has no bitmap.

use super::reader::ExtFs;
use super::superblock::incompat;
use crate::block_set::BlockSet;
use crate::error::Result;

/// Returns the blocks in use. Of a cluster in use, all blocks are.
///
/// # Errors
/// A bitmap that is damaged or contradicts the count of free blocks; the device's errors.
pub(crate) fn used_blocks(fs: &ExtFs) -> Result<BlockSet> {
    let superblock = &fs.superblock;
    let metadata = group_metadata(fs);
    let mut used = BlockSet::new(superblock.blocks);
    let mut free_clusters = 0;
    for (number, group) in fs.groups.iter().enumerate() {
        let number = number as u32;
        let (start, end) = (superblock.group_start(number), superblock.group_end(number));
        let clusters = (end - start).div_ceil(superblock.cluster_blocks);
        free_clusters += u64::from(group.free_clusters);
        if group.has_no_bitmap() {
            continue;
        }
        let bitmap = fs.block_bitmap(number)?;
        let is_set = |cluster: u64| bitmap[(cluster / 8) as usize] >> (cluster % 8) & 1 == 1;
        let (mut at, mut free) = (0, 0);
        while at < clusters {
            let first = at;
            let set = is_set(at);
            while at < clusters && is_set(at) == set {
                at += 1;
            }
            if set {
                let block = |cluster: u64| start + cluster * superblock.cluster_blocks;
                used.insert(block(first)..block(at).min(end));
            } else {
                free += at - first;
            }
        }
        let place = || format!("the block bitmap of group {number}");
        if free != u64::from(group.free_clusters) {
            let reason = format!("{free} free clusters, and {} by its descriptor", group.free_clusters);
            return Err(fs.damaged(place(), reason));
        }
        for run in metadata.runs_from(start).take_while(|run| run.start < end) {
            if !used.contains(&(run.start..run.end.min(end))) {
                return Err(fs.damaged(place(), format!("metadata at block {} counts as free", run.start)));
            }
        }
    }
    // A mount corrects the superblock's count after a replay.
    let is_exact = !fs.profile.is_replayed;
    if is_exact && free_clusters * superblock.cluster_blocks != superblock.free_blocks {
        let counted =
            format!("{} free blocks, and {free_clusters} clusters in groups", superblock.free_blocks);
        return Err(fs.damaged("the superblock", counted));
    }
    for run in metadata.runs() {
        used.insert(run);
    }
    Ok(used)
}

/// Returns the blocks of superblocks, descriptors, bitmaps and inode tables.
pub(crate) fn group_metadata(fs: &ExtFs) -> BlockSet {
    let superblock = &fs.superblock;
    let mut blocks = BlockSet::new(superblock.blocks);
    if superblock.first_data_block > 0 {
        blocks.insert(0..1);
    }
    let has_meta_bg = superblock.has(incompat::META_BG);
    let descriptors = match has_meta_bg {
        true => superblock.first_meta_bg.min(superblock.descriptor_blocks()),
        false => superblock.descriptor_blocks() + superblock.reserved_gdt_blocks,
    };
    let per_block = superblock.descriptors_per_block() as u32;
    for (number, group) in fs.groups.iter().enumerate() {
        let number = number as u32;
        let start = superblock.group_start(number);
        let has_copy = superblock.has_superblock(number);
        let meta_group = number / per_block;
        // A meta group has its descriptors in its first, second and last group.
        if has_meta_bg && u64::from(meta_group) >= superblock.first_meta_bg {
            let place = number % per_block;
            let holds = place < 2 || place == per_block - 1;
            blocks.insert(start..start + u64::from(has_copy) + u64::from(holds));
        } else if has_copy {
            blocks.insert(start..(start + 1 + descriptors).min(superblock.group_end(number)));
        }
        blocks.insert(group.block_bitmap..group.block_bitmap + 1);
        blocks.insert(group.inode_bitmap..group.inode_bitmap + 1);
        blocks.insert(group.inode_table..group.inode_table + superblock.table_blocks());
    }
    blocks
}
