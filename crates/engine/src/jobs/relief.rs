//! Relief for a full file system: the measures that give metadata room again.
//!
//! Owns [`Relief`], the plan, and [`FsInfo::relieve`], which carries it out. A file system whose
//! metadata is full cannot even delete: the kernel needs free metadata for every change, and makes
//! a file system read-only that runs out of it in the middle of one. Free data space is of no use
//! then, as long as it lies in chunks of data.
//!
//! Measures, in this order, until metadata has room:
//! 1. cleaning subvolumes that were deleted;
//! 2. removing block groups that are empty, which every commit does;
//! 3. growing to the end of devices that are larger than the file system;
//! 4. moving the data of the emptiest block groups into others, which empties them.
//!
//! Deleting snapshots is the user's choice, and no part of it.
//!
//! **Invariant:** each measure is a commit, so that a crash leaves a complete file system.
//!
//! **Locks:** those of a balance.
//!
//! Kernel counterparts: `btrfs_delete_unused_bgs`, `btrfs_reclaim_bgs_work`
//! (`fs/btrfs/block-group.c`), `btrfs_init_global_block_rsv` (`fs/btrfs/block-rsv.c`).

use super::balance::{BalanceFilter, BalanceOptions};
use super::usage::{Usage, block_group_used, stripe_bytes, usage};
use crate::btree::Cursor;
use crate::errors::{Error, Result};
use crate::file::exclusive::BalanceControl;
use crate::file::fs_info::FsInfo;
use crate::items::trees::Trees;
use crate::subvolume;
use papilio_format::features::CompatRoFeatures;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::RaidProfile;
use papilio_format::{DeviceId, LogicalAddress, objectid};

/// Room for metadata beside the global reserve, in multiples of it, that lets the kernel work.
const RESERVES: u64 = 2;
/// The least room for metadata in bytes: the kernel reserves some for each open transaction.
const ROOM_MIN: u64 = 16 << 20;

/// A block group of data that can be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReliefGroup {
    /// Its start.
    pub start: LogicalAddress,
    /// Its length in bytes.
    pub length: u64,
    /// The bytes of data in it.
    pub used: u64,
    /// The bytes that it takes on devices.
    pub raw: u64,
}

/// The measures that would help a full file system.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Relief {
    /// How the space is used now.
    pub usage: Usage,
    /// Bytes of metadata space, without copies.
    pub metadata_total: u64,
    /// Bytes of it in use.
    pub metadata_used: u64,
    /// Bytes of metadata that chunks in unallocated space could provide.
    pub unallocated_metadata: u64,
    /// The bytes of room for metadata that the kernel needs to work.
    pub needed: u64,
    /// Deleted subvolumes whose content is still there.
    pub deleted_subvolumes: u64,
    /// Block groups without content.
    pub empty: Vec<ReliefGroup>,
    /// Devices that are larger than the file system on them, with the bytes behind its end.
    pub slack: Vec<(DeviceId, u64)>,
    /// Block groups of data whose content fits into the others, the emptiest first.
    pub movable: Vec<ReliefGroup>,
}

/// What [`FsInfo::relieve`] does next, and has done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReliefStep {
    /// Deleted subvolumes were cleaned, and empty block groups removed.
    Cleaned,
    /// A device's file system has grown by bytes.
    Grown(DeviceId, u64),
    /// A block group was emptied, and removed.
    Moved(ReliefGroup),
    /// A block group could not be emptied.
    NotMoved(ReliefGroup, String),
}

impl Relief {
    /// Looks for what would help. Reads the trees of the last commit.
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub fn plan(trees: &Trees) -> Result<Self> {
        let usage = usage(trees)?;
        let of_metadata = usage.spaces.iter().filter(|space| space.kind.contains(BlockGroupFlags::METADATA));
        let (metadata_total, metadata_used) =
            of_metadata.clone().fold((0, 0), |(total, used), space| (total + space.total, used + space.used));
        let profile = of_metadata.map(|space| space.profile).next_back().unwrap_or(RaidProfile::Single);
        let unallocated_metadata = usage.room_for(profile);
        let groups = groups(trees)?;
        let deleted = subvolume::list(trees)?.into_iter().filter(subvolume::Subvolume::is_being_deleted);
        let slack = usage.devices.iter().map(|device| (device.devid, device.slack()));
        let slack = slack.filter(|(_, bytes)| *bytes >= MIB).collect();
        let is_system = |flags: &BlockGroupFlags| flags.contains(BlockGroupFlags::SYSTEM);
        let empty = groups.iter().filter(|(flags, group)| group.used == 0 && !is_system(flags));
        Ok(Self {
            metadata_total,
            metadata_used,
            unallocated_metadata,
            needed: (RESERVES * usage.global_reserve).max(ROOM_MIN),
            deleted_subvolumes: deleted.count() as u64,
            empty: empty.map(|(_, group)| *group).collect(),
            slack,
            movable: movable(&groups),
            usage,
        })
    }

    /// Returns the bytes of room that metadata has: free in its block groups, and in unallocated
    /// space.
    pub fn metadata_room(&self) -> u64 {
        self.metadata_total.saturating_sub(self.metadata_used).saturating_add(self.unallocated_metadata)
    }

    /// Whether metadata has too little room for the kernel to work.
    pub fn is_short(&self) -> bool {
        self.metadata_room() < self.needed
    }

    /// Whether there is anything to do but delete.
    pub fn has_measures(&self) -> bool {
        self.deleted_subvolumes > 0
            || !self.empty.is_empty()
            || !self.slack.is_empty()
            || !self.movable.is_empty()
    }
}

const MIB: u64 = 1 << 20;

/// Returns all block groups with their types.
fn groups(trees: &Trees) -> Result<Vec<(BlockGroupFlags, ReliefGroup)>> {
    let volume = trees.forest().volume();
    let tree = match volume.geometry().compat_ro.contains(CompatRoFeatures::BLOCK_GROUP_TREE) {
        true => trees.get(objectid::BLOCK_GROUP_TREE, "the block-group tree")?,
        false => trees.get(objectid::EXTENT_TREE, "the extent tree")?,
    };
    let mut cursor = Cursor::new(&tree.tree);
    let chunks = volume.chunk_map();
    let mut found = Vec::new();
    for chunk in chunks.iter() {
        let Some(used) = block_group_used(&tree.tree, &mut cursor, chunk)? else { continue };
        let raw = stripe_bytes(chunk).saturating_mul(chunk.stripes().len() as u64);
        found.push((chunk.flags(), ReliefGroup { start: chunk.start(), length: chunk.length(), used, raw }));
    }
    Ok(found)
}

/// Returns the block groups of data that can be emptied into the others, the emptiest first.
fn movable(groups: &[(BlockGroupFlags, ReliefGroup)]) -> Vec<ReliefGroup> {
    let is_data = |flags: &BlockGroupFlags| {
        flags.contains(BlockGroupFlags::DATA) && !flags.contains(BlockGroupFlags::METADATA)
    };
    let mut data: Vec<ReliefGroup> = groups
        .iter()
        .filter(|(flags, group)| is_data(flags) && group.used > 0)
        .map(|(_, group)| *group)
        .collect();
    data.sort_by_key(|group| (group.used, group.start));
    let mut free: u64 = data.iter().map(|group| group.length.saturating_sub(group.used)).sum();
    let mut moved = 0;
    data.into_iter()
        .take_while(|group| {
            free = free.saturating_sub(group.length.saturating_sub(group.used));
            moved += group.used;
            moved <= free
        })
        .collect()
}

impl FsInfo {
    /// Gives metadata room again, until it has enough. Tells `note` of each step. Returns the
    /// state afterwards, which may still be short: then only deleting, or another device, helps.
    ///
    /// # Errors
    /// [`Error::Busy`] while another operation runs; [`Error::Invalid`] while a balance is paused;
    /// as [`FsInfo::sync`]. A full file system may refuse even this with [`Error::NoSpace`].
    pub fn relieve(&self, note: &mut dyn FnMut(&ReliefStep)) -> Result<Relief> {
        self.sync()?;
        self.clean_subvolumes()?;
        self.sync()?;
        // The first commit removes empty block groups, although nothing else changes. The device
        // space of their chunks is free after the second.
        self.transactions()?.commit_always()?;
        self.transactions()?.commit_always()?;
        note(&ReliefStep::Cleaned);
        let mut relief = Relief::plan(&self.trees)?;
        for (devid, slack) in relief.slack.clone() {
            if !relief.is_short() {
                return Ok(relief);
            }
            let total = relief.usage.devices.iter().find(|device| device.devid == devid);
            let total = total.map_or(0, |device| device.total);
            let grown = self.resize(devid, total.saturating_add(slack))?;
            note(&ReliefStep::Grown(devid, grown.saturating_sub(total)));
            relief = Relief::plan(&self.trees)?;
        }
        for group in relief.movable.clone() {
            if !relief.is_short() {
                break;
            }
            match self.empty_group(&group) {
                Ok(()) => note(&ReliefStep::Moved(group)),
                Err(error @ Error::NoSpace { .. }) => {
                    note(&ReliefStep::NotMoved(group, error.to_string()));
                    break;
                }
                Err(error) => return Err(error),
            }
            relief = Relief::plan(&self.trees)?;
        }
        Ok(relief)
    }

    fn empty_group(&self, group: &ReliefGroup) -> Result<()> {
        let vrange = group.start.0..group.start.0.saturating_add(group.length);
        let filter = BalanceFilter { vrange: Some(vrange), ..BalanceFilter::default() };
        let options = BalanceOptions { data: Some(filter), ..BalanceOptions::default() };
        self.balance(&options, &mut |_| BalanceControl::Continue)?;
        self.commit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_that_fit_into_the_others_are_moved() {
        let group = |start, used| {
            let group = ReliefGroup { start: LogicalAddress(start), length: 100, used, raw: 100 };
            (BlockGroupFlags::DATA, group)
        };
        let starts = |groups: &[(BlockGroupFlags, ReliefGroup)]| {
            movable(groups).iter().map(|group| group.start.0).collect::<Vec<_>>()
        };
        assert_eq!(starts(&[group(0, 90), group(100, 10), group(200, 95)]), [100]);
        assert_eq!(starts(&[group(0, 90), group(100, 20)]), [0; 0]);
        assert_eq!(starts(&[group(0, 50), group(100, 20), group(200, 30)]), [100, 200]);
        // Metadata and empty block groups are not moved.
        let mixed = (BlockGroupFlags::DATA | BlockGroupFlags::METADATA, group(0, 10).1);
        assert_eq!(starts(&[mixed, group(100, 0), group(200, 5)]), [0; 0]);
    }
}
