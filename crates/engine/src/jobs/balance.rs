//! Balance: block groups are emptied one after the other, and their contents written anew.
//!
//! Owns [`FsInfo::balance`], its pausing and resuming, [`BalanceOptions`], [`BalanceFilter`], and
//! [`BalanceReport`].
//!
//! **Invariant:** each batch is committed. A balance that is cut short leaves a complete file
//! system, and its item (see [`super::balance_item`]), by which it is resumed.
//!
//! **Locks:** those of a commit.
//!
//! Kernel counterpart: `btrfs_balance`, `should_balance_chunk` (`fs/btrfs/volumes.c`).

use crate::errors::{Error, Result};
use crate::file::exclusive::{BalanceControl, Operation};
use crate::file::fs_info::FsInfo;
use crate::space::chunk_allocation::devices_min;
use crate::space::{NewBlockGroup, Space, SpaceKind};
use crate::volume::chunk_map::Chunk;
use papilio_format::DeviceId;
use papilio_format::features::IncompatFeatures;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{RaidProfile, Stripe};
use std::ops::{Range, RangeInclusive};

/// Which block groups of a kind a balance takes; an empty filter takes all.
#[derive(Clone, Debug, Default)]
pub struct BalanceFilter {
    /// The share in use, in percent.
    pub usage: Option<RangeInclusive<u8>>,
    /// A device that holds a part.
    pub devid: Option<DeviceId>,
    /// The profiles; single is [`BlockGroupFlags::empty`].
    pub profiles: Option<Vec<BlockGroupFlags>>,
    /// Logical addresses that it overlaps. The end is not one of them, as for the kernel
    /// (`chunk_vrange_filter`).
    pub vrange: Option<Range<u64>>,
    /// The number of stripes.
    pub stripes: Option<RangeInclusive<u32>>,
    /// Physical addresses of [`devid`](Self::devid) that it overlaps, without the end.
    pub drange: Option<Range<u64>>,
    /// The most block groups to take.
    pub limit: Option<u32>,
    /// The fewest block groups: if there are fewer, none is taken.
    pub limit_min: Option<u32>,
    /// The profile to convert to; single is [`BlockGroupFlags::empty`].
    pub convert: Option<BlockGroupFlags>,
    /// Leaves block groups that have the profile already.
    pub soft: bool,
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
    /// Allows a conversion that tolerates fewer lost devices than before.
    pub force: bool,
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

impl FsInfo {
    /// Relocates the block groups that `options` selects. Files may be open, and change. Calls
    /// `progress` after each batch; it says how to go on.
    ///
    /// # Errors
    /// [`Error::Busy`] while another operation or a send runs; [`Error::Invalid`] while a balance
    /// is paused, for a profile that needs more devices, or for one that tolerates fewer lost
    /// devices without `force`; [`Error::NoSpace`]; data without a good copy; as
    /// [`FsInfo::sync`]. Extents that were moved until then stay moved, and nothing is lost.
    pub fn balance(
        &self,
        options: &BalanceOptions,
        progress: &mut dyn FnMut(&BalanceReport) -> BalanceControl,
    ) -> Result<BalanceReport> {
        let _running = self.exclusive.begin(Operation::Balance)?;
        self.check_conversions(options)?;
        if self.stored_balance()?.is_some() {
            return Err(Error::Invalid("a balance is paused: resume or cancel it".to_owned()));
        }
        self.store_balance(Some(options))?;
        self.balance_stored(options, progress)
    }

    /// Resumes the balance that is paused, or that a crash has cut short.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none; as [`FsInfo::balance`].
    pub fn resume_balance(
        &self,
        progress: &mut dyn FnMut(&BalanceReport) -> BalanceControl,
    ) -> Result<BalanceReport> {
        let _running = self.exclusive.begin(Operation::Balance)?;
        let options = self.stored_balance()?.ok_or_else(no_balance)?.resumed();
        self.check_conversions(&options)?;
        self.balance_stored(&options, progress)
    }

    /// Cancels the balance that is paused. Extents that were moved stay moved.
    ///
    /// # Errors
    /// [`Error::Busy`] while it runs; [`Error::Invalid`] if there is none; as [`FsInfo::sync`].
    pub fn cancel_balance(&self) -> Result<()> {
        let _running = self.exclusive.begin(Operation::Balance)?;
        self.stored_balance()?.ok_or_else(no_balance)?;
        self.store_balance(None)?;
        self.commit()
    }

    /// Runs a balance that is stored, and forgets it at its end.
    fn balance_stored(
        &self,
        options: &BalanceOptions,
        progress: &mut dyn FnMut(&BalanceReport) -> BalanceControl,
    ) -> Result<BalanceReport> {
        self.heal();
        let moved = self.sync().and_then(|()| self.clean_subvolumes()).and_then(|()| self.sync());
        let moved = moved.and_then(|()| self.move_selected(options, progress));
        if matches!(moved, Ok((_, BalanceControl::Pause))) {
            return moved.map(|(report, _)| report);
        }
        let forgotten = self.store_balance(None).and_then(|()| self.commit());
        let (report, _) = moved?;
        forgotten.map(|()| report)
    }

    /// Cleans deleted subvolumes until none is left, except those in use.
    ///
    /// # Errors
    /// As [`FsInfo::clean_subvolumes_step`].
    pub fn clean_subvolumes(&self) -> Result<()> {
        while self.clean_subvolumes_step()? {}
        Ok(())
    }

    fn move_selected(
        &self,
        options: &BalanceOptions,
        progress: &mut dyn FnMut(&BalanceReport) -> BalanceControl,
    ) -> Result<(BalanceReport, BalanceControl)> {
        let transactions = self.transactions()?;
        let groups = transactions.space().block_groups();
        let mut report = BalanceReport { considered: groups.len() as u32, ..BalanceReport::default() };
        let mut taken = [0; 3];
        let mut selected = Vec::new();
        // The last ones come first, as for the kernel, so that a limit takes the same ones.
        for group in groups.into_iter().rev() {
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
            selected.push((kind, group));
        }
        let filters = [&options.data, &options.metadata, &options.system];
        let enough = |kind: usize| {
            filters[kind].as_ref().and_then(|filter| filter.limit_min).is_none_or(|min| taken[kind] >= min)
        };
        selected.retain(|(kind, _)| enough(*kind));
        let selected: Vec<_> = selected.into_iter().rev().map(|(_, group)| group).collect();
        report.expected = selected.len() as u32;
        report.expected_bytes = selected.iter().map(|group| group.used).sum();
        let _targets = Targets::set(self, options)?;
        self.move_groups(selected, report, progress)
    }

    /// Moves block groups. One that finds no room waits until the others have moved.
    fn move_groups(
        &self,
        mut groups: Vec<NewBlockGroup>,
        mut report: BalanceReport,
        progress: &mut dyn FnMut(&BalanceReport) -> BalanceControl,
    ) -> Result<(BalanceReport, BalanceControl)> {
        while !groups.is_empty() {
            let completed = report.completed;
            let (mut refusal, mut waiting) = (None, Vec::new());
            for group in groups {
                let mut control = BalanceControl::Continue;
                let gone = self.relocate_block_group(&group, &mut |bytes| {
                    report.bytes += bytes;
                    control = progress(&report);
                    control == BalanceControl::Continue
                });
                match gone {
                    Ok(true) => report.completed += 1,
                    Ok(false) => return Ok((report, control)),
                    Err(error @ Error::NoSpace { .. }) => {
                        refusal = Some(error);
                        waiting.push(group);
                    }
                    Err(error) => return Err(error),
                }
            }
            if let Some(error) = refusal.filter(|_| report.completed == completed) {
                return Err(error);
            }
            groups = waiting;
        }
        Ok((report, BalanceControl::Continue))
    }

    fn selects(&self, filter: &BalanceFilter, group: &NewBlockGroup) -> bool {
        let chunks = self.volume().chunk_map();
        let Some(chunk) = chunks.find(group.range.start) else { return false };
        let percent = (u128::from(group.used) * 100).div_ceil(u128::from(group.range.length.max(1)));
        let profile = group.flags & BlockGroupFlags::PROFILE_MASK;
        let (start, last) = (group.range.start.0, group.range.end().0 - 1);
        filter.usage.as_ref().is_none_or(|usage| usage.contains(&(percent.min(100) as u8)))
            && filter.devid.is_none_or(|devid| chunk.stripes().iter().any(|stripe| stripe.devid == devid))
            && filter.profiles.as_ref().is_none_or(|profiles| profiles.contains(&profile))
            && filter.vrange.as_ref().is_none_or(|range| range.start <= last && start < range.end)
            && filter.stripes.as_ref().is_none_or(|range| range.contains(&(chunk.stripes().len() as u32)))
            && filter.drange.as_ref().is_none_or(|range| on_device(chunk, filter.devid, range))
            && !(filter.soft && filter.convert == Some(profile))
    }

    /// Checks that the profiles to convert to are possible.
    fn check_conversions(&self, options: &BalanceOptions) -> Result<()> {
        let mixed = self.volume().geometry().incompat.contains(IncompatFeatures::MIXED_GROUPS);
        let (data, metadata) = (options.data.as_ref(), options.metadata.as_ref());
        if mixed && data.map(|filter| filter.convert) != metadata.map(|filter| filter.convert) {
            return invalid("data and metadata share block groups: give both the same filters".to_owned());
        }
        let devices = self.volume().devices();
        let present = devices.iter().filter(|slot| slot.in_chunk_tree && slot.device.is_some()).count();
        let groups = self.transactions()?.space().block_groups();
        for (filter, kind, name) in [
            (&options.data, BlockGroupFlags::DATA, "data"),
            (&options.metadata, BlockGroupFlags::METADATA, "metadata"),
            (&options.system, BlockGroupFlags::SYSTEM, "system"),
        ] {
            let Some(filter) = filter else { continue };
            if filter.drange.is_some() && filter.devid.is_none() {
                return invalid("a range of a device needs the device's id".to_owned());
            }
            let Some(target) = filter.convert else { continue };
            let Ok(profile) = RaidProfile::from_flags(target) else {
                return invalid(format!("{target:?} is not one profile"));
            };
            let need = devices_min(profile);
            if present < need {
                return invalid(format!("profile {profile} needs {need} devices, and there are {present}"));
            }
            let tolerated = groups
                .iter()
                .filter(|group| group.flags.contains(kind))
                .filter_map(|group| RaidProfile::from_flags(group.flags).ok())
                .map(lost_copies)
                .max();
            if kind != BlockGroupFlags::DATA && tolerated > Some(lost_copies(profile)) && !options.force {
                return invalid(format!(
                    "{name} in profile {profile} tolerates fewer lost devices or copies than now; --force converts nevertheless"
                ));
            }
        }
        Ok(())
    }
}

fn no_balance() -> Error {
    Error::Invalid("no balance is running or paused".to_owned())
}

fn invalid(reason: String) -> Result<()> {
    Err(Error::Invalid(reason))
}

/// Returns the bad copies of a block that a profile tolerates, on one device or several.
fn lost_copies(profile: RaidProfile) -> usize {
    match profile {
        RaidProfile::Dup => 1,
        _ => 2 * profile.tolerated_failures(),
    }
}

/// Returns whether a chunk has a part in this range of a device.
fn on_device(chunk: &Chunk, devid: Option<DeviceId>, range: &Range<u64>) -> bool {
    let bytes = chunk.length() / chunk.data_columns() as u64;
    let overlaps = |stripe: &Stripe| stripe.offset.0 < range.end && range.start < stripe.offset.0 + bytes;
    chunk.stripes().iter().any(|stripe| devid == Some(stripe.devid) && overlaps(stripe))
}

/// The profiles of new space during a conversion. Dropping it restores the usual choice.
struct Targets<'f> {
    space: &'f Space,
    kinds: Vec<SpaceKind>,
}

impl<'f> Targets<'f> {
    fn set(info: &'f FsInfo, options: &BalanceOptions) -> Result<Self> {
        let transactions = info.transactions()?;
        let mut targets = Self { space: transactions.space(), kinds: Vec::new() };
        for (filter, kind) in [
            (&options.data, SpaceKind::Data),
            (&options.metadata, SpaceKind::Metadata),
            (&options.system, SpaceKind::System),
        ] {
            let Some(target) = filter.as_ref().and_then(|filter| filter.convert) else { continue };
            let needs =
                |flags, feature| if target.intersects(flags) { feature } else { IncompatFeatures::empty() };
            transactions.require_features(
                needs(BlockGroupFlags::RAID5 | BlockGroupFlags::RAID6, IncompatFeatures::RAID56)
                    | needs(BlockGroupFlags::RAID1C3 | BlockGroupFlags::RAID1C4, IncompatFeatures::RAID1C34),
            );
            targets.kinds.push(kind);
            targets.space.set_target(kind, Some(target));
        }
        transactions.chunks().count_unallocated(targets.space);
        Ok(targets)
    }
}

impl Drop for Targets<'_> {
    fn drop(&mut self) {
        for kind in self.kinds.drain(..) {
            self.space.set_target(kind, None);
        }
    }
}
