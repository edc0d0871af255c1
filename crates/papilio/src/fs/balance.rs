//! Balance: block groups are emptied one after the other, and their contents written anew.
//!
//! Owns [`FileSystem::balance`], [`BalanceOptions`], [`BalanceFilter`] and [`BalanceReport`].
//!
//! **Invariants**
//! - No file is open meanwhile.
//! - Each batch is committed. A balance that is cut short leaves a complete file system, in which
//!   another balance may begin.
//!
//! - A balance leaves no balance item on disk, so that a later mount does not resume it.
//!
//! **Locks:** those of a commit.
//!
//! Kernel counterpart: `btrfs_balance`, `should_balance_chunk` (`fs/btrfs/volumes.c`).

use crate::errors::Result;
use crate::fs::file_system::FileSystem;
use crate::space::NewBlockGroup;
use papilio_format::DeviceId;
use papilio_format::items::block_group::BlockGroupFlags;
use std::ops::RangeInclusive;

/// Which block groups of a kind a balance takes; an empty filter takes all.
#[derive(Clone, Debug, Default)]
pub struct BalanceFilter {
    /// The share in use, in percent.
    pub usage: Option<RangeInclusive<u8>>,
    /// A device that holds a part.
    pub devid: Option<DeviceId>,
    /// The profiles; single is [`BlockGroupFlags::empty`].
    pub profiles: Option<Vec<BlockGroupFlags>>,
    /// Logical addresses that it overlaps.
    pub vrange: Option<RangeInclusive<u64>>,
    /// The number of stripes.
    pub stripes: Option<RangeInclusive<u32>>,
    /// The most block groups to take.
    pub limit: Option<u32>,
}

/// The block groups that a balance moves. Kinds that are `None` stay as they are.
#[derive(Clone, Debug, Default)]
pub struct BalanceOptions {
    /// Block groups of file data.
    pub data: Option<BalanceFilter>,
    /// Block groups of tree blocks.
    pub metadata: Option<BalanceFilter>,
    /// Block groups of the chunk tree.
    pub system: Option<BalanceFilter>,
}

/// How far a balance is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceReport {
    /// Block groups that were looked at.
    pub considered: u32,
    /// Block groups to relocate.
    pub expected: u32,
    /// Block groups that were relocated.
    pub completed: u32,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Bytes in use in the block groups to relocate, at the start.
    pub expected_bytes: u64,
}

impl FileSystem {
    /// Relocates the block groups that `options` selects. Calls `progress` after each batch; where
    /// it returns false, the balance ends early.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] while files are open; [`crate::Error::NoSpace`]; data without a
    /// good copy; as [`FileSystem::sync`]. Extents that were moved until then stay moved, and
    /// nothing is lost.
    pub fn balance(
        &self,
        options: &BalanceOptions,
        mut progress: impl FnMut(&BalanceReport) -> bool,
    ) -> Result<BalanceReport> {
        let transactions = self.info.transactions()?;
        self.clean_subvolumes()?;
        self.sync()?;
        let groups = transactions.space().block_groups();
        let mut report = BalanceReport { considered: groups.len() as u32, ..BalanceReport::default() };
        let mut taken = [0; 3];
        let mut selected = Vec::new();
        for group in groups {
            let (kind, filter) = match () {
                () if group.flags.contains(BlockGroupFlags::DATA) => (0, &options.data),
                () if group.flags.contains(BlockGroupFlags::METADATA) => (1, &options.metadata),
                () => (2, &options.system),
            };
            let Some(filter) = filter else { continue };
            if filter.limit.is_some_and(|limit| taken[kind] >= limit) || !self.selects(filter, &group) {
                continue;
            }
            taken[kind] += 1;
            report.expected_bytes += group.used;
            selected.push(group);
        }
        report.expected = selected.len() as u32;
        for group in selected {
            let gone = self.info.relocate_block_group(&group, &mut |bytes| {
                report.bytes += bytes;
                progress(&report)
            })?;
            if !gone {
                break;
            }
            report.completed += 1;
        }
        Ok(report)
    }

    fn selects(&self, filter: &BalanceFilter, group: &NewBlockGroup) -> bool {
        let chunks = self.info.volume().chunk_map();
        let Some(chunk) = chunks.find(group.range.start) else { return false };
        let percent = (u128::from(group.used) * 100).div_ceil(u128::from(group.range.length.max(1)));
        let profile = group.flags & BlockGroupFlags::PROFILE_MASK;
        let (start, last) = (group.range.start.0, group.range.end().0 - 1);
        filter.usage.as_ref().is_none_or(|usage| usage.contains(&(percent.min(100) as u8)))
            && filter.devid.is_none_or(|devid| chunk.stripes().iter().any(|stripe| stripe.devid == devid))
            && filter.profiles.as_ref().is_none_or(|profiles| profiles.contains(&profile))
            && filter.vrange.as_ref().is_none_or(|range| *range.start() <= last && start <= *range.end())
            && filter.stripes.as_ref().is_none_or(|range| range.contains(&(chunk.stripes().len() as u32)))
    }
}
