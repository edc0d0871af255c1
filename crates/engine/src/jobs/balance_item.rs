//! The balance on disk: it tells a later mount what is left to do.
//!
//! Owns the item of the root tree, and its conversion to and from [`BalanceOptions`]. Papilio and
//! the kernel write the same item, so that each resumes the balance that the other left.
//!
//! **Invariant:** while a balance runs, or is paused, the item is on disk.
//!
//! **Locks:** those of a transaction handle.
//!
//! Kernel counterparts: `insert_balance_item`, `del_balance_item`, `update_balance_args`
//! (`fs/btrfs/volumes.c`).

use super::balance::{BalanceFilter, BalanceOptions};
use crate::errors::{Error, Result};
use crate::file::fs_info::FsInfo;
use papilio_format::items::balance::{BalanceArgs, BalanceArgsFlags, BalanceFlags, BalanceItem};
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::{ItemType, Key, LogicalAddress, PhysicalAddress, objectid};

/// Tree items that a change of the item touches.
const ITEMS: u64 = 1;
/// A resumed balance without filters leaves block groups that are fuller than this: it may have
/// written them itself.
const RESUMED_USAGE: u8 = 90;

const KEY: Key = Key::new(objectid::BALANCE, ItemType::TEMPORARY_ITEM, 0);

impl FsInfo {
    /// Returns the balance on disk, if there is one.
    ///
    /// # Errors
    /// An item that cannot be read.
    pub fn stored_balance(&self) -> Result<Option<BalanceOptions>> {
        let tree = self.trees.root_tree();
        let Some(item) = tree.get(&KEY)? else { return Ok(None) };
        let parsed = BalanceItem::parse(item.data());
        parsed.map(|item| Some(BalanceOptions::from(&item))).map_err(|reason| Error::Item {
            tree: objectid::ROOT_TREE,
            key: KEY,
            reason,
        })
    }

    /// Stores a balance, or forgets it. The next commit makes that durable.
    ///
    /// # Errors
    /// Errors of changing the root tree.
    pub(super) fn store_balance(&self, options: Option<&BalanceOptions>) -> Result<()> {
        let item = options.map(|options| BalanceItem::from(options).to_bytes());
        let transactions = self.transactions()?;
        transactions.change(ITEMS, |handle| {
            let mut editor = transactions.live().root_tree().edit(handle);
            match &item {
                Some(bytes) => editor.put(KEY, bytes),
                None => editor.remove(KEY).map(drop),
            }
        })
    }
}

impl BalanceOptions {
    /// Returns the part of a balance that is left after it was cut short, as far as that can be
    /// known.
    pub(super) fn resumed(mut self) -> Self {
        for filter in [&mut self.data, &mut self.metadata, &mut self.system].into_iter().flatten() {
            filter.soft |= filter.convert.is_some();
            let narrowed = filter.usage.is_some() || filter.vrange.is_some() || filter.convert.is_some();
            if !narrowed {
                filter.usage = Some(0..=RESUMED_USAGE);
            }
        }
        self
    }
}

impl From<&BalanceOptions> for BalanceItem {
    fn from(options: &BalanceOptions) -> Self {
        let mut flags = BalanceFlags::empty();
        flags.set(BalanceFlags::DATA, options.data.is_some());
        flags.set(BalanceFlags::METADATA, options.metadata.is_some());
        flags.set(BalanceFlags::SYSTEM, options.system.is_some());
        flags.set(BalanceFlags::FORCE, options.force);
        let args = |filter: &Option<BalanceFilter>| args_of(&filter.clone().unwrap_or_default());
        Self {
            flags,
            data: args(&options.data),
            metadata: args(&options.metadata),
            system: args(&options.system),
            unused: [0; 4],
        }
    }
}

impl From<&BalanceItem> for BalanceOptions {
    fn from(item: &BalanceItem) -> Self {
        let filter = |flag, args| item.flags.contains(flag).then(|| filter_of(args));
        Self {
            data: filter(BalanceFlags::DATA, &item.data),
            metadata: filter(BalanceFlags::METADATA, &item.metadata),
            system: filter(BalanceFlags::SYSTEM, &item.system),
            force: item.flags.contains(BalanceFlags::FORCE),
        }
    }
}

/// The bits of a profile: single has one here.
fn bits_of(profile: BlockGroupFlags) -> u64 {
    if profile.is_empty() { BalanceArgs::SINGLE } else { profile.bits() }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn args_of(filter: &BalanceFilter) -> BalanceArgs {
    let mut flags = BalanceArgsFlags::empty();
    flags.set(BalanceArgsFlags::PROFILES, filter.profiles.is_some());
    flags.set(BalanceArgsFlags::USAGE_RANGE, filter.usage.is_some());
    flags.set(BalanceArgsFlags::DEVID, filter.devid.is_some());
    flags.set(BalanceArgsFlags::DRANGE, filter.drange.is_some());
    flags.set(BalanceArgsFlags::VRANGE, filter.vrange.is_some());
    flags.set(BalanceArgsFlags::STRIPES_RANGE, filter.stripes.is_some());
    flags.set(BalanceArgsFlags::LIMIT_RANGE, filter.limit.is_some() || filter.limit_min.is_some());
    flags.set(BalanceArgsFlags::CONVERT, filter.convert.is_some());
    flags.set(BalanceArgsFlags::SOFT, filter.soft);
    let (usage, stripes) = (filter.usage.clone(), filter.stripes.clone());
    let profiles = filter.profiles.iter().flatten();
    let bounds = |range: &Option<std::ops::Range<u64>>| {
        range.as_ref().map_or((0, 0), |range| (range.start, range.end))
    };
    let (physical, logical) = (bounds(&filter.drange), bounds(&filter.vrange));
    BalanceArgs {
        profiles: profiles.fold(0, |bits, profile| bits | bits_of(*profile)),
        usage: usage.map_or(0, |range| pair((*range.start()).into(), (*range.end()).into())),
        devid: filter.devid.unwrap_or_default(),
        physical_start: PhysicalAddress(physical.0),
        physical_end: PhysicalAddress(physical.1),
        virtual_start: LogicalAddress(logical.0),
        virtual_end: LogicalAddress(logical.1),
        target: filter.convert.map_or(0, bits_of),
        flags,
        limit: pair(filter.limit_min.unwrap_or(0), filter.limit.unwrap_or(u32::MAX)),
        stripes_min: stripes.as_ref().map_or(0, |range| *range.start()),
        stripes_max: stripes.map_or(0, |range| *range.end()),
        unused: [0; 6],
    }
}

fn filter_of(args: &BalanceArgs) -> BalanceFilter {
    let has = |flag| args.flags.contains(flag);
    let percent = |number: u32| u8::try_from(number).unwrap_or(100).min(100);
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let profiles = has(BalanceArgsFlags::PROFILES).then(|| {
        let single = (args.profiles & BalanceArgs::SINGLE != 0).then_some(BlockGroupFlags::empty());
        let others = BlockGroupFlags::from_bits_retain(args.profiles) & BlockGroupFlags::PROFILE_MASK;
        others.iter().chain(single).collect()
    });
    let limits = args.limit_range();
    BalanceFilter {
        usage: args.usage_range().map(|(low, high)| percent(low)..=percent(high)),
        devid: has(BalanceArgsFlags::DEVID).then_some(args.devid),
        profiles,
        vrange: has(BalanceArgsFlags::VRANGE).then_some(args.virtual_start.0..args.virtual_end.0),
        stripes: has(BalanceArgsFlags::STRIPES_RANGE).then_some(args.stripes_min..=args.stripes_max),
        drange: has(BalanceArgsFlags::DRANGE).then_some(args.physical_start.0..args.physical_end.0),
        limit: limits.map(|(_, most)| narrow(most)),
        limit_min: limits.map(|(least, _)| narrow(least)),
        convert: args.convert_to(),
        soft: has(BalanceArgsFlags::SOFT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::DeviceId;

    #[test]
    fn options_round_trip_through_the_item() {
        let data = BalanceFilter {
            usage: Some(10..=50),
            devid: Some(DeviceId(3)),
            profiles: Some(vec![BlockGroupFlags::RAID1, BlockGroupFlags::empty()]),
            vrange: Some(5..1 << 40),
            stripes: Some(2..=4),
            drange: Some(0..9),
            limit: Some(7),
            limit_min: Some(2),
            convert: Some(BlockGroupFlags::empty()),
            soft: true,
        };
        let options = BalanceOptions {
            data: Some(data),
            metadata: Some(BalanceFilter::default()),
            system: None,
            force: true,
        };
        let item = BalanceItem::parse(&BalanceItem::from(&options).to_bytes()).unwrap();
        assert_eq!(format!("{:?}", BalanceOptions::from(&item)), format!("{options:?}"));
        let resumed = options.resumed();
        assert_eq!(resumed.metadata.unwrap().usage, Some(0..=90));
        assert_eq!(resumed.data.unwrap().usage, Some(10..=50));
    }
}
