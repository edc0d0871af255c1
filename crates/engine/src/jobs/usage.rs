//! How the space of a file system is used: allocated and used bytes by profile and device.
//!
//! Owns [`Usage`]. Chunks are the allocated space; the block group of each chunk has its used
//! bytes. One seek finds the block group of a chunk, so that the cost depends on the number of
//! chunks, not on the size of the extent tree.
//!
//! Kernel counterparts: `btrfs_ioctl_space_info` (`fs/btrfs/ioctl.c`),
//! `btrfs_update_global_block_rsv` (`fs/btrfs/block-rsv.c`).

use crate::btree::{Cursor, Tree};
use crate::errors::Result;
use crate::items::item_error;
use crate::items::trees::Trees;
use crate::space::{SpaceKind, chunk_allocation::devices_min};
use crate::volume::{Chunk, DeviceSlot};
use papilio_format::features::CompatRoFeatures;
use papilio_format::items::block_group::{BlockGroupFlags, BlockGroupItem};
use papilio_format::items::chunk::RaidProfile;
use papilio_format::{DeviceId, ItemType, Key, TreeId, Uuid, objectid};
use std::collections::BTreeMap;

/// Most bytes that the kernel reserves (`btrfs_update_global_block_rsv`).
const GLOBAL_RESERVE_MAX: u64 = 512 << 20;
/// Tree changes that deleting a file can take (`BTRFS_UNLINK_METADATA_UNITS`).
const UNLINK_UNITS: u64 = 6;
/// Unallocated bytes below which they do not count as free, as in `btrfs filesystem usage`.
const UNALLOCATABLE: u64 = 16 << 20;

/// The space of all chunks of one type and one profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceUsage {
    /// The type: data, metadata, system, or data and metadata mixed.
    pub kind: BlockGroupFlags,
    /// The profile.
    pub profile: RaidProfile,
    /// Capacity in bytes.
    pub total: u64,
    /// Used bytes.
    pub used: u64,
    /// Bytes of devices that the chunks take.
    pub raw_total: u64,
    /// Bytes of devices that the used bytes take, all copies and parity included.
    pub raw_used: u64,
}

/// Chunks that survive fewer failed devices than others of their type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct LesserProfile {
    /// The type.
    pub kind: BlockGroupFlags,
    /// Their profile.
    pub profile: RaidProfile,
    /// The profile that survives most.
    pub best: RaidProfile,
    /// Used bytes in them.
    pub used: u64,
}

impl SpaceUsage {
    /// Returns the name of the type: `Data`, `Metadata`, `System` or `Data+Metadata`.
    pub fn kind_name(&self) -> &'static str {
        kind_name(self.kind)
    }
}

/// Returns the name of a chunk type, as in `btrfs filesystem df`.
pub(crate) fn kind_name(kind: BlockGroupFlags) -> &'static str {
    let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
    match kind & BlockGroupFlags::TYPE_MASK {
        BlockGroupFlags::DATA => "Data",
        BlockGroupFlags::METADATA => "Metadata",
        BlockGroupFlags::SYSTEM => "System",
        kind if kind == mixed => "Data+Metadata",
        _ => "unknown",
    }
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Its id.
    pub devid: DeviceId,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its path; `None` if it is missing.
    pub path: Option<String>,
    /// Bytes of it that belong to the file system.
    pub total: u64,
    /// Its actual size in bytes; `None` if it is missing.
    pub size: Option<u64>,
    /// Allocated bytes according to its device item.
    pub allocated: u64,
    /// Bytes of chunks of each type and profile on it, in the order of [`Usage::spaces`].
    pub by_space: Vec<u64>,
}

impl DeviceUsage {
    /// Whether it is missing.
    pub fn is_missing(&self) -> bool {
        self.path.is_none()
    }

    /// Returns the bytes that no chunk takes.
    pub fn unallocated(&self) -> u64 {
        self.total.saturating_sub(self.by_space.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes)))
    }

    /// Returns the bytes of the device after the end of the file system.
    pub fn slack(&self) -> u64 {
        self.size.unwrap_or(0).saturating_sub(self.total)
    }
}

/// How the space of a file system is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Space by type and profile: data, system, metadata (the order of `btrfs filesystem df`), each
    /// from the simplest profile on.
    pub spaces: Vec<SpaceUsage>,
    /// The devices, by id.
    pub devices: Vec<DeviceUsage>,
    /// Bytes of metadata space that the kernel reserves after mounting, estimated from the sizes of
    /// trees on disk. The kernel's own number depends on its state in memory, too.
    pub global_reserve: u64,
    /// Number of chunks without a block group, whose used bytes are unknown.
    pub chunks_without_block_group: u64,
}

impl Usage {
    /// Sets the used bytes of a type. A difference is put into the profiles that have room for it.
    fn set_used(&mut self, flag: BlockGroupFlags, used: u64) {
        let of_type = |space: &&mut SpaceUsage| space.kind.contains(flag);
        let before =
            sum(self.spaces.iter().filter(|space| space.kind.contains(flag)).map(|space| space.used));
        let (mut more, mut less) = (used.saturating_sub(before), before.saturating_sub(used));
        for space in self.spaces.iter_mut().filter(of_type) {
            let (taken, given) = (more.min(space.total.saturating_sub(space.used)), less.min(space.used));
            (more, less) = (more - taken, less - given);
            space.used = space.used + taken - given;
            let raw = u128::from(space.used) * u128::from(space.raw_total) / u128::from(space.total.max(1));
            space.raw_used = u64::try_from(raw).unwrap_or(u64::MAX);
        }
    }

    /// Returns the bytes of all devices.
    pub fn device_size(&self) -> u64 {
        sum(self.devices.iter().map(|device| device.total))
    }

    /// Returns the bytes of devices that chunks take.
    pub fn allocated(&self) -> u64 {
        sum(self.spaces.iter().map(|space| space.raw_total))
    }

    /// Returns the bytes of devices that no chunk takes.
    pub fn unallocated(&self) -> u64 {
        self.device_size().saturating_sub(self.allocated())
    }

    /// Returns the bytes of missing devices.
    pub fn missing(&self) -> u64 {
        sum(self.devices.iter().filter(|device| device.is_missing()).map(|device| device.total))
    }

    /// Returns the bytes of devices after the end of the file system.
    pub fn slack(&self) -> u64 {
        sum(self.devices.iter().map(DeviceUsage::slack))
    }

    /// Returns the used bytes of devices.
    pub fn used(&self) -> u64 {
        sum(self.spaces.iter().map(|space| space.raw_used))
    }

    /// Whether block groups have both data and metadata.
    pub fn is_mixed(&self) -> bool {
        let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        self.spaces.iter().any(|space| space.kind.contains(mixed))
    }

    /// Whether any type has chunks of more than one profile.
    pub fn has_multiple_profiles(&self) -> bool {
        self.spaces.windows(2).any(|pair| pair[0].kind == pair[1].kind)
    }

    /// Returns the chunks with content that survive fewer failed devices than others of their type.
    /// A mount without one of the devices leaves such chunks.
    pub fn lesser_profiles(&self) -> Vec<LesserProfile> {
        let failures = |space: &SpaceUsage| space.profile.tolerated_failures();
        let lesser = self.spaces.iter().filter(|space| space.used > 0).filter_map(|space| {
            let same = self.spaces.iter().filter(|other| other.kind == space.kind);
            let best = same.max_by_key(|other| failures(other))?;
            (failures(best) > failures(space)).then_some(LesserProfile {
                kind: space.kind,
                profile: space.profile,
                best: best.profile,
                used: space.used,
            })
        });
        lesser.collect()
    }

    /// Whether enough devices are present for chunks of this profile.
    pub fn has_devices_for(&self, profile: RaidProfile) -> bool {
        self.devices.iter().filter(|device| !device.is_missing()).count() >= devices_min(profile)
    }

    /// Returns the bytes on devices for a byte of data; 1 without data chunks.
    pub fn data_ratio(&self) -> f64 {
        self.ratio(BlockGroupFlags::DATA)
    }

    /// Returns the bytes on devices for a byte of metadata; 1 without metadata chunks.
    pub fn metadata_ratio(&self) -> f64 {
        self.ratio(BlockGroupFlags::METADATA)
    }

    /// Returns two estimates of the bytes of data that still fit, as `btrfs filesystem usage`
    /// computes them: with unallocated space filled at the ratio of data, and at the worst ratio of
    /// any profile.
    pub fn free(&self) -> (u64, u64) {
        let data = || self.spaces.iter().filter(|space| space.kind.contains(BlockGroupFlags::DATA));
        let unused = sum(data().map(|space| space.raw_total.saturating_sub(space.raw_used)));
        let mut free = divide(unused, self.data_ratio());
        if self.is_mixed() {
            free = free.saturating_sub(self.global_reserve);
        }
        let unallocated = self.unallocated();
        if unallocated < UNALLOCATABLE {
            return (free, free);
        }
        let worst = self
            .spaces
            .iter()
            .filter(|space| space.total > 0)
            .map(|space| space.raw_total as f64 / space.total as f64)
            .fold(1.0, f64::max);
        let at = |ratio| free.saturating_add(divide(unallocated, ratio));
        (at(self.data_ratio()), at(worst))
    }

    fn ratio(&self, kind: BlockGroupFlags) -> f64 {
        let of_kind = || self.spaces.iter().filter(|space| space.kind.contains(kind));
        let total = sum(of_kind().map(|space| space.total));
        match total {
            0 => 1.0,
            _ => sum(of_kind().map(|space| space.raw_total)) as f64 / total as f64,
        }
    }
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// Divides bytes by a ratio of at least 1, rounded down.
fn divide(bytes: u64, ratio: f64) -> u64 {
    (bytes as f64 / ratio) as u64
}

/// Orders spaces for display, by type and then by profile.
type SpaceKey = (u8, u64, RaidProfile);

fn space_key(flags: BlockGroupFlags, profile: RaidProfile) -> SpaceKey {
    let kind = flags & BlockGroupFlags::TYPE_MASK;
    // Ascending bits are the order of `btrfs filesystem df`: data, system, metadata. Mixed chunks
    // sort with data.
    (u8::from(!kind.contains(BlockGroupFlags::DATA)), kind.bits(), profile)
}

/// Adds up chunks, block groups and devices.
///
/// # Errors
/// A tree block or item that cannot be read.
pub fn usage(trees: &Trees) -> Result<Usage> {
    let volume = trees.forest().volume();
    let compat_ro = volume.geometry().compat_ro;
    let block_group_tree = match compat_ro.contains(CompatRoFeatures::BLOCK_GROUP_TREE) {
        true => trees.get(objectid::BLOCK_GROUP_TREE, "the block-group tree")?,
        false => trees.get(objectid::EXTENT_TREE, "the extent tree")?,
    };
    let tree = &block_group_tree.tree;
    let mut cursor = Cursor::new(tree);
    let mut spaces: BTreeMap<SpaceKey, SpaceUsage> = BTreeMap::new();
    let mut chunks_without_block_group = 0;
    let chunks = volume.chunk_map();
    for chunk in chunks.iter() {
        let used = match block_group_used(tree, &mut cursor, chunk)? {
            Some(used) => used,
            None => {
                chunks_without_block_group += 1;
                0
            }
        };
        add_chunk(&mut spaces, chunk, used);
    }
    let devices = volume
        .devices()
        .iter()
        .filter(|slot| slot.in_chunk_tree)
        .map(|slot| device_usage(slot, &spaces, chunks.iter()))
        .collect();
    Ok(Usage {
        spaces: spaces.into_values().collect(),
        devices,
        global_reserve: global_reserve(trees, compat_ro)?,
        chunks_without_block_group,
    })
}

/// As [`usage`], with the space that changes since the last commit have taken, data that no tree
/// refers to yet included. The space that they have freed counts as free with the commit.
///
/// # Errors
/// As [`usage`].
pub fn live_usage(trees: &Trees) -> Result<Usage> {
    let mut usage = usage(trees)?;
    let Some(transactions) = trees.transactions() else { return Ok(usage) };
    let kinds = [
        (SpaceKind::Data, BlockGroupFlags::DATA),
        (SpaceKind::Metadata, BlockGroupFlags::METADATA),
        (SpaceKind::System, BlockGroupFlags::SYSTEM),
    ];
    let is_mixed = usage.is_mixed();
    for (kind, flag) in kinds.into_iter().filter(|(kind, _)| !is_mixed || *kind != SpaceKind::Metadata) {
        let totals = transactions.space().totals(kind);
        usage.set_used(flag, totals.used.saturating_add(totals.reserved));
    }
    Ok(usage)
}

/// Returns the used bytes of the chunk's block group; `None` if it has none.
pub(super) fn block_group_used(tree: &Tree, cursor: &mut Cursor<'_>, chunk: &Chunk) -> Result<Option<u64>> {
    cursor.seek(&Key::new(chunk.start().0, ItemType::BLOCK_GROUP_ITEM, 0))?;
    let Some(item) = cursor.item() else { return Ok(None) };
    if (item.key.objectid, item.key.item_type) != (chunk.start().0, ItemType::BLOCK_GROUP_ITEM) {
        return Ok(None);
    }
    let group = BlockGroupItem::parse(item.data()).map_err(|reason| item_error(tree, &item, reason))?;
    Ok(Some(group.used))
}

fn add_chunk(spaces: &mut BTreeMap<SpaceKey, SpaceUsage>, chunk: &Chunk, used: u64) {
    let raw_total = stripe_bytes(chunk).saturating_mul(chunk.stripes().len() as u64);
    // The length of a chunk is never 0. The result overflows only if the block group claims more
    // used bytes than the chunk has.
    let raw_used = u128::from(used) * u128::from(raw_total) / u128::from(chunk.length());
    let space = spaces.entry(space_key(chunk.flags(), chunk.profile())).or_insert_with(|| SpaceUsage {
        kind: chunk.flags() & BlockGroupFlags::TYPE_MASK,
        profile: chunk.profile(),
        total: 0,
        used: 0,
        raw_total: 0,
        raw_used: 0,
    });
    space.total = space.total.saturating_add(chunk.length());
    space.used = space.used.saturating_add(used);
    space.raw_total = space.raw_total.saturating_add(raw_total);
    space.raw_used = space.raw_used.saturating_add(u64::try_from(raw_used).unwrap_or(u64::MAX));
}

/// Returns the bytes of each stripe of a chunk.
pub(super) fn stripe_bytes(chunk: &Chunk) -> u64 {
    chunk.length() / chunk.profile().data_stripes(chunk.stripes().len()).max(1) as u64
}

fn device_usage<'a>(
    slot: &DeviceSlot,
    spaces: &BTreeMap<SpaceKey, SpaceUsage>,
    chunks: impl Iterator<Item = &'a std::sync::Arc<Chunk>>,
) -> DeviceUsage {
    let mut by_space: BTreeMap<SpaceKey, u64> = spaces.keys().map(|key| (*key, 0)).collect();
    for chunk in chunks {
        let own = |stripe: &&papilio_format::items::chunk::Stripe| {
            stripe.devid == slot.devid() && stripe.device_uuid == slot.item.uuid
        };
        let stripes = chunk.stripes().iter().filter(own).count() as u64;
        if stripes > 0 {
            let bytes = by_space.entry(space_key(chunk.flags(), chunk.profile())).or_default();
            *bytes = bytes.saturating_add(stripe_bytes(chunk).saturating_mul(stripes));
        }
    }
    DeviceUsage {
        devid: slot.devid(),
        uuid: slot.item.uuid,
        path: slot.name().map(str::to_owned),
        total: slot.item.total_bytes,
        size: slot.device.as_deref().map(papilio_device::Device::size),
        allocated: slot.item.bytes_used,
        by_space: by_space.into_values().collect(),
    }
}

/// Returns the kernel's global reserve: the size of the trees that every commit changes, within
/// limits.
fn global_reserve(trees: &Trees, compat_ro: CompatRoFeatures) -> Result<u64> {
    let counted: [TreeId; 4] =
        [objectid::EXTENT_TREE, objectid::CSUM_TREE, objectid::FREE_SPACE_TREE, objectid::BLOCK_GROUP_TREE];
    let mut tree_bytes = 0u64;
    // One for the root tree, whose size is not recorded.
    let mut units = 1;
    for id in counted {
        if let Some(open) = trees.find(id)? {
            tree_bytes = tree_bytes.saturating_add(open.item().bytes_used);
            units += 1;
        }
    }
    let delayed_refs = match compat_ro.contains(CompatRoFeatures::FREE_SPACE_TREE) {
        true => 2 * UNLINK_UNITS,
        false => UNLINK_UNITS,
    };
    // A unit is a path of 8 nodes, any of which may split.
    let unit = u64::from(trees.forest().volume().geometry().node_size) * 8 * 2;
    let least = (units + UNLINK_UNITS + delayed_refs) * unit;
    Ok(tree_bytes.max(least).min(GLOBAL_RESERVE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(kind: BlockGroupFlags, profile: RaidProfile, total: u64, used: u64, factor: u64) -> SpaceUsage {
        SpaceUsage { kind, profile, total, used, raw_total: total * factor, raw_used: used * factor }
    }

    fn usage_of(spaces: Vec<SpaceUsage>, total: u64) -> Usage {
        let by_space = spaces.iter().map(|space| space.raw_total).collect();
        let device = DeviceUsage {
            devid: DeviceId(1),
            uuid: Uuid::nil(),
            path: Some("image".into()),
            total,
            size: Some(total.saturating_add(4096)),
            allocated: 0,
            by_space,
        };
        Usage { spaces, devices: vec![device], global_reserve: 1 << 20, chunks_without_block_group: 0 }
    }

    #[test]
    fn numbers_of_a_new_file_system() {
        // From `btrfs filesystem usage -b` for a file system of the kernel.
        let usage = usage_of(
            vec![
                space(BlockGroupFlags::DATA, RaidProfile::Single, 8_388_608, 5_242_880, 1),
                space(BlockGroupFlags::SYSTEM, RaidProfile::Dup, 8_388_608, 16_384, 2),
                space(BlockGroupFlags::METADATA, RaidProfile::Dup, 33_554_432, 196_608, 2),
            ],
            536_870_912,
        );
        assert_eq!(usage.allocated(), 92_274_688);
        assert_eq!(usage.unallocated(), 444_596_224);
        assert_eq!(usage.used(), 5_668_864);
        assert_eq!(usage.free(), (447_741_952, 225_443_840));
        assert_eq!((usage.missing(), usage.slack()), (0, 4096));
        assert_eq!((usage.data_ratio(), usage.metadata_ratio()), (1.0, 2.0));
        assert!(!usage.has_multiple_profiles() && !usage.is_mixed());
        assert_eq!(usage.devices[0].unallocated(), 444_596_224);
    }

    #[test]
    fn mixed_groups_subtract_the_reserve() {
        let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        let usage = usage_of(vec![space(mixed, RaidProfile::Single, 8 << 20, 2 << 20, 1)], 9 << 20);
        assert!(usage.is_mixed());
        assert_eq!(usage.free(), (5 << 20, 5 << 20));
        assert_eq!(usage.spaces[0].kind_name(), "Data+Metadata");
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let mut usage = usage_of(
            vec![
                space(BlockGroupFlags::DATA, RaidProfile::Single, u64::MAX, 1, 1),
                space(BlockGroupFlags::DATA, RaidProfile::Raid1, u64::MAX / 2, 1, 2),
            ],
            u64::MAX,
        );
        usage.devices.push(DeviceUsage { path: None, size: None, ..usage.devices[0].clone() });
        assert!(usage.has_multiple_profiles());
        assert_eq!(usage.unallocated(), 0);
        assert_eq!(usage.missing(), u64::MAX);
        assert_eq!(usage.free().0, usage.free().1);
    }
}
