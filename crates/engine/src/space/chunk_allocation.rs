//! Planning a chunk: its length, its devices and the device extents.
//!
//! Owns [`plan_chunk`], a pure computation on the free space of the devices, and [`ChunkPlan`],
//! which creates the corresponding items. It follows the kernel's rules, so that both produce the
//! same layout:
//! - It takes as many devices as the profile can use, those with the largest hole first.
//! - On a device it takes the first hole that is large enough, else the largest.
//!
//! **Invariants**
//! - A plan lies within the devices, after their first MiB, and overlaps no device extent.
//! - Equal input gives an equal plan.
//! - Superblock copies are not avoided here. A chunk may cover them, and their logical addresses
//!   are never allocated (see [`super::superblock_exclusions`]).
//!
//! **Locks**: none.
//!
//! Kernel counterparts: `btrfs_create_chunk`, `init_alloc_chunk_ctl_policy_regular`,
//! `gather_device_info`, `decide_stripe_size_regular`, `find_free_dev_extent`
//! (`fs/btrfs/volumes.c`), `calc_chunk_size` (`fs/btrfs/space-info.c`).

use crate::errors::{Error, Result};
use crate::volume::chunk_map::ChunkMap;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{ChunkHeader, ChunkItem, RaidProfile, STRIPE_LENGTH, Stripe};
use papilio_format::items::device::DeviceExtent;
use papilio_format::node::{ItemHeader, NodeHeader};
use papilio_format::superblock::SYSTEM_CHUNK_ARRAY_SIZE;
use papilio_format::{DeviceId, ItemType, Key, LogicalAddress, PhysicalAddress, Uuid, objectid};
use std::cmp::Reverse;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Bytes at the start of a device that hold no chunk (`BTRFS_DEVICE_RANGE_RESERVED`).
pub(crate) const DEVICE_RANGE_RESERVED: u64 = MIB;
/// Largest data chunk in bytes (`BTRFS_MAX_DATA_CHUNK_SIZE`).
const DATA_CHUNK_MAX: u64 = 10 * GIB;
/// Largest metadata chunk in bytes; `_LARGE` applies above [`LARGE_FILE_SYSTEM`] bytes.
const METADATA_CHUNK_MAX: u64 = 256 * MIB;
const METADATA_CHUNK_MAX_LARGE: u64 = GIB;
const LARGE_FILE_SYSTEM: u64 = 50 * GIB;
/// Largest system chunk in bytes.
const SYSTEM_CHUNK_MAX: u64 = 32 * MIB;
/// Largest stripe on one device in bytes.
const STRIPE_MAX: u64 = GIB;
/// Stripes that a chunk's limit shortens are rounded up to a multiple of this.
const STRIPE_ROUNDING: u64 = 16 * MIB;
/// Stripe in bytes that [`ChunkLimits::shares`] does not shorten.
const SHARED_STRIPE: u64 = 8 * MIB;

/// The free and used space of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpace {
    /// Its devid.
    pub devid: DeviceId,
    /// Its UUID.
    pub uuid: Uuid,
    /// Bytes of the device that the file system may use.
    pub total_bytes: u64,
    /// Its device extents in ascending order: start and length in bytes.
    pub used: Vec<(PhysicalAddress, u64)>,
}

/// Limits of a chunk besides the available space.
#[derive(Clone, Copy, Debug)]
pub struct ChunkLimits {
    /// Size of a tree block in bytes: a chunk's item must fit into one.
    pub node_size: u32,
    /// Largest logical length in bytes that the caller wants. The kernel's limits apply as well.
    pub length_max: u64,
    /// Keeps to `length_max` exactly, down to 64 KiB, where the kernel rounds stripes up.
    pub exact: bool,
    /// Takes at most half of the free bytes of each device, down to [`SHARED_STRIPE`]. A conversion
    /// asks for it: the chunks of all kinds must find room on the same devices.
    pub shares: bool,
}

impl ChunkLimits {
    /// Returns the kernel's limits alone.
    pub fn new(node_size: u32) -> Self {
        Self { node_size, length_max: u64::MAX, exact: false, shares: false }
    }
}

/// A chunk to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkPlan {
    /// Type of contents and profile.
    pub flags: BlockGroupFlags,
    /// Length in bytes of logical address space.
    pub length: u64,
    /// Bytes of each stripe on its device.
    pub stripe_bytes: u64,
    /// The stripes, in the order that the profile defines.
    pub stripes: Vec<Stripe>,
}

/// The numbers of devices that a profile uses (`btrfs_raid_array`).
struct Spread {
    devices_min: usize,
    /// `None`: as many as there are.
    devices_max: Option<usize>,
    /// The number of devices is a multiple of this.
    devices_increment: usize,
    /// Stripes on each device.
    device_stripes: usize,
}

const fn spread(profile: RaidProfile) -> Spread {
    let (devices_min, devices_max, devices_increment, device_stripes) = match profile {
        RaidProfile::Single => (1, Some(1), 1, 1),
        RaidProfile::Dup => (1, Some(1), 1, 2),
        RaidProfile::Raid0 => (1, None, 1, 1),
        RaidProfile::Raid1 => (2, Some(2), 2, 1),
        RaidProfile::Raid1c3 => (3, Some(3), 3, 1),
        RaidProfile::Raid1c4 => (4, Some(4), 4, 1),
        RaidProfile::Raid10 => (2, None, 2, 1),
        RaidProfile::Raid5 => (2, None, 1, 1),
        RaidProfile::Raid6 => (3, None, 1, 1),
    };
    Spread { devices_min, devices_max, devices_increment, device_stripes }
}

/// Returns the smallest number of devices for a chunk of this profile (`devs_min` of
/// `btrfs_raid_array`, `fs/btrfs/volumes.c`).
pub fn devices_min(profile: RaidProfile) -> usize {
    spread(profile).devices_min
}

/// A device with space for a stripe.
struct Candidate<'d> {
    device: &'d DeviceSpace,
    hole: PhysicalAddress,
    /// Size of the hole in bytes, capped at the wanted size.
    available: u64,
    /// Free bytes on the whole device.
    total_available: u64,
}

/// Plans a chunk with `flags` (type and profile) on `devices`: those that are present and writable.
///
/// # Errors
/// [`Error::NoSpace`] if too few devices have a hole.
///
/// # Panics
/// If the flags name no type, or more than one profile.
pub fn plan_chunk(
    devices: &[DeviceSpace],
    flags: BlockGroupFlags,
    limits: &ChunkLimits,
) -> Result<ChunkPlan> {
    let profile = RaidProfile::from_flags(flags).expect("a chunk has one profile");
    let spread = spread(profile);
    let writable = devices.iter().fold(0u64, |sum, device| sum.saturating_add(device.total_bytes));
    let length_max = type_limit(flags, writable);
    let stripe_max = length_max.min(STRIPE_MAX);
    // A chunk takes at most a tenth of the file system.
    let length_max = length_max.min(writable / 10).min(limits.length_max);

    let mut candidates = candidates(devices, stripe_max, spread.device_stripes as u64);
    candidates.sort_by_key(|candidate| {
        (Reverse(candidate.available), Reverse(candidate.total_available), candidate.device.devid)
    });
    let usable = candidates.len() - candidates.len() % spread.devices_increment;
    if usable < spread.devices_min {
        return Err(Error::NoSpace { what: "a chunk" });
    }
    let most = spread.devices_max.unwrap_or_else(|| devices_limit(flags, limits.node_size));
    let usable = usable.min(most - most % spread.devices_increment);
    candidates.truncate(usable);

    let stripes = usable * spread.device_stripes;
    let data_stripes = profile.data_stripes(stripes) as u64;
    let mut fits = candidates[usable - 1].available / spread.device_stripes as u64;
    if limits.shares {
        let free = candidates.iter().map(|candidate| candidate.total_available).min().unwrap_or(0);
        let free = free.saturating_sub(DEVICE_RANGE_RESERVED);
        fits = fits.min((free / 2 / spread.device_stripes as u64).max(SHARED_STRIPE));
    }
    let rounding = if limits.exact { STRIPE_LENGTH } else { STRIPE_ROUNDING };
    let stripe_bytes = stripe_bytes(fits, length_max, data_stripes, rounding);
    let stripes = candidates.iter().flat_map(|candidate| {
        (0..spread.device_stripes as u64).map(|number| Stripe {
            devid: candidate.device.devid,
            offset: PhysicalAddress(candidate.hole.0 + number * stripe_bytes),
            device_uuid: candidate.device.uuid,
        })
    });
    Ok(ChunkPlan { flags, length: stripe_bytes * data_stripes, stripe_bytes, stripes: stripes.collect() })
}

/// Returns the largest length in bytes of a chunk of this type.
fn type_limit(flags: BlockGroupFlags, writable: u64) -> u64 {
    if flags.contains(BlockGroupFlags::DATA) {
        DATA_CHUNK_MAX
    } else if flags.contains(BlockGroupFlags::SYSTEM) {
        SYSTEM_CHUNK_MAX
    } else if flags.contains(BlockGroupFlags::METADATA) {
        if writable > LARGE_FILE_SYSTEM { METADATA_CHUNK_MAX_LARGE } else { METADATA_CHUNK_MAX }
    } else {
        panic!("chunk flags without a type: {flags:?}");
    }
}

/// Returns the largest number of devices in a chunk: its item must fit into a leaf, and two system
/// chunks into the superblock's array (`BTRFS_MAX_DEVS`, `BTRFS_MAX_DEVS_SYS_CHUNK`).
fn devices_limit(flags: BlockGroupFlags, node_size: u32) -> usize {
    let leaf = node_size as usize - NodeHeader::SIZE - ItemHeader::SIZE - ChunkHeader::SIZE;
    let array = SYSTEM_CHUNK_ARRAY_SIZE - 2 * (Key::SIZE + ChunkItem::size_on_disk(1));
    let leaf = leaf / Stripe::SIZE;
    if flags.contains(BlockGroupFlags::SYSTEM) { leaf.min(array / Stripe::SIZE + 1) } else { leaf }
}

/// Returns the devices with a hole for at least a minimal stripe.
fn candidates(devices: &[DeviceSpace], stripe_max: u64, device_stripes: u64) -> Vec<Candidate<'_>> {
    let least = STRIPE_LENGTH * device_stripes;
    let wanted = stripe_max * device_stripes;
    let candidate = |device| {
        let total_available = free_bytes(device);
        let (hole, available) = find_hole(device, wanted);
        let available = available.min(wanted);
        let fits = total_available >= least && available >= least;
        fits.then_some(Candidate { device, hole, available, total_available })
    };
    devices.iter().filter_map(candidate).collect()
}

fn free_bytes(device: &DeviceSpace) -> u64 {
    // While a device shrinks, extents may lie behind its end.
    let inside =
        |&(start, length): &(PhysicalAddress, u64)| length.min(device.total_bytes.saturating_sub(start.0));
    device.used.iter().map(inside).fold(device.total_bytes, u64::saturating_sub)
}

/// Returns the first hole of at least `wanted` bytes, else the largest: start and length.
fn find_hole(device: &DeviceSpace, wanted: u64) -> (PhysicalAddress, u64) {
    let mut largest = (PhysicalAddress(DEVICE_RANGE_RESERVED), 0);
    let mut from = DEVICE_RANGE_RESERVED;
    let end = [(PhysicalAddress(device.total_bytes), 0)];
    for &(start, length) in device.used.iter().chain(&end) {
        // The kernel does not align holes, but all holes that it creates are aligned.
        let hole_start = from.checked_next_multiple_of(STRIPE_LENGTH).unwrap_or(u64::MAX);
        let hole = start.0.min(device.total_bytes).saturating_sub(hole_start);
        if hole > largest.1 {
            largest = (PhysicalAddress(hole_start), hole);
        }
        if largest.1 >= wanted {
            break;
        }
        from = from.max(start.0.saturating_add(length));
    }
    largest
}

/// Returns the stripe length in bytes if `fits` bytes fit on the device with the least space.
fn stripe_bytes(fits: u64, length_max: u64, data_stripes: u64, rounding: u64) -> u64 {
    let mut bytes = fits;
    if bytes.saturating_mul(data_stripes) > length_max {
        bytes = bytes.min((length_max / data_stripes).max(1).next_multiple_of(rounding));
    }
    let bytes = bytes.min(STRIPE_MAX);
    bytes - bytes % STRIPE_LENGTH
}

impl ChunkPlan {
    /// Returns the chunk item, for key (256, CHUNK_ITEM, logical start) of the chunk tree.
    pub fn chunk_item(&self, sector_size: u32) -> ChunkItem {
        let raid10 = self.flags.contains(BlockGroupFlags::RAID10);
        ChunkItem {
            length: self.length,
            owner: objectid::EXTENT_TREE.0,
            stripe_length: STRIPE_LENGTH,
            flags: self.flags,
            io_align: STRIPE_LENGTH as u32,
            io_width: STRIPE_LENGTH as u32,
            sector_size,
            sub_stripes: if raid10 { 2 } else { 1 },
            stripes: self.stripes.clone(),
        }
    }

    /// Returns the device tree items for a chunk at `start`, in ascending order of key.
    pub(crate) fn device_extents(
        &self,
        start: LogicalAddress,
        chunk_tree_uuid: Uuid,
    ) -> Vec<(Key, DeviceExtent)> {
        let extent = DeviceExtent {
            chunk_tree: objectid::CHUNK_TREE,
            chunk_objectid: objectid::FIRST_CHUNK_TREE,
            chunk_offset: start,
            length: self.stripe_bytes,
            chunk_tree_uuid,
        };
        let key = |stripe: &Stripe| Key::new(stripe.devid.0, ItemType::DEV_EXTENT, stripe.offset.0);
        let mut items: Vec<_> = self.stripes.iter().map(|stripe| (key(stripe), extent)).collect();
        items.sort_by_key(|(key, _)| *key);
        items
    }

    /// Returns the bytes that the chunk takes on a device.
    pub(crate) fn bytes_on(&self, devid: DeviceId) -> u64 {
        let stripes = self.stripes.iter().filter(|stripe| stripe.devid == devid).count();
        stripes as u64 * self.stripe_bytes
    }
}

/// Returns the logical start of the next chunk, after the last one (`find_next_chunk`); `None` if
/// the address space is exhausted.
pub fn next_chunk_start(chunks: &ChunkMap) -> Option<LogicalAddress> {
    let end = chunks.iter().last().map_or(DEVICE_RANGE_RESERVED, |chunk| chunk.end().0);
    end.checked_next_multiple_of(STRIPE_LENGTH).map(LogicalAddress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::items::chunk::RaidProfile;
    use proptest::prelude::*;

    const NODE: u32 = 16384;

    fn device(devid: u64, total_bytes: u64, used: &[(u64, u64)]) -> DeviceSpace {
        let used = used.iter().map(|&(start, length)| (PhysicalAddress(start), length)).collect();
        DeviceSpace { devid: DeviceId(devid), uuid: Uuid::from_u128(devid.into()), total_bytes, used }
    }

    fn plan(devices: &[DeviceSpace], flags: BlockGroupFlags) -> Result<ChunkPlan> {
        plan_chunk(devices, flags, &ChunkLimits::new(NODE))
    }

    fn places(plan: &ChunkPlan) -> Vec<(u64, u64)> {
        plan.stripes.iter().map(|stripe| (stripe.devid.0, stripe.offset.0 / MIB)).collect()
    }

    #[test]
    fn chunk_sizes_match_the_kernel() {
        let metadata = BlockGroupFlags::METADATA | BlockGroupFlags::DUP;
        let length = |total, flags| plan(&[device(1, total, &[])], flags).unwrap().length;
        // Large: each type's own limit; a data stripe is at most 1 GiB.
        assert_eq!(length(200 * GIB, BlockGroupFlags::DATA), GIB);
        assert_eq!(length(200 * GIB, metadata), GIB);
        assert_eq!(length(50 * GIB, metadata), 256 * MIB);
        assert_eq!(length(200 * GIB, BlockGroupFlags::SYSTEM | BlockGroupFlags::DUP), 32 * MIB);
        assert_eq!(length(200 * GIB, BlockGroupFlags::DATA | BlockGroupFlags::METADATA), GIB);
        // Small: a tenth, rounded up to 16 MiB.
        assert_eq!(length(GIB, BlockGroupFlags::DATA), 112 * MIB);
        assert_eq!(length(GIB, metadata), 112 * MIB);
        assert_eq!(length(64 * MIB, BlockGroupFlags::DATA), 16 * MIB);
        // Ten data stripes reach the largest chunk length.
        let many: Vec<_> = (1..=20).map(|devid| device(devid, 100 * GIB, &[])).collect();
        let striped = plan(&many, BlockGroupFlags::DATA | BlockGroupFlags::RAID0).unwrap();
        assert_eq!((striped.length, striped.stripe_bytes), (20 * 512 * MIB, 512 * MIB));
        let parity = plan(&many, BlockGroupFlags::DATA | BlockGroupFlags::RAID6).unwrap();
        assert_eq!((parity.stripes.len(), parity.stripe_bytes), (20, 576 * MIB));
        assert_eq!(parity.length, 18 * 576 * MIB);
    }

    #[test]
    fn first_sufficient_hole_is_used() {
        let used = [(MIB, 7 * MIB), (16 * MIB, 16 * MIB), (160 * MIB, MIB)];
        let space = device(1, GIB, &used);
        // The holes 8 to 16 and 32 to 160 are too small for 2 GiB; the largest starts at 161.
        assert_eq!(find_hole(&space, 2 * GIB), (PhysicalAddress(161 * MIB), GIB - 161 * MIB));
        assert_eq!(find_hole(&space, 100 * MIB), (PhysicalAddress(32 * MIB), 128 * MIB));
        assert_eq!(find_hole(&space, 8 * MIB), (PhysicalAddress(8 * MIB), 8 * MIB));
        // The first of two holes of the same size.
        let pair = device(1, 64 * MIB, &[(9 * MIB, 7 * MIB), (24 * MIB, 40 * MIB)]);
        assert_eq!(find_hole(&pair, GIB), (PhysicalAddress(MIB), 8 * MIB));
        // An extent in the reserved part, as on very old file systems, and an unaligned one.
        let odd = device(1, 32 * MIB, &[(0, 4 * MIB + 4096)]);
        assert_eq!(find_hole(&odd, GIB).0, PhysicalAddress(4 * MIB + STRIPE_LENGTH));
        assert_eq!(find_hole(&device(1, MIB, &[]), 1).1, 0);
        assert_eq!(find_hole(&device(1, 8 * MIB, &[(MIB, u64::MAX)]), 1).1, 0);
    }

    #[test]
    fn profiles_use_the_devices_with_the_largest_holes() {
        let devices = [
            device(1, 10 * GIB, &[(MIB, 9 * GIB)]),
            device(2, 10 * GIB, &[(MIB, 4 * GIB)]),
            device(3, 10 * GIB, &[]),
            device(4, 10 * GIB, &[(MIB, 10 * GIB - MIB)]),
        ];
        let devids = |flags: BlockGroupFlags| {
            plan(&devices, BlockGroupFlags::DATA | flags)
                .map(|plan| plan.stripes.iter().map(|stripe| stripe.devid.0).collect::<Vec<_>>())
        };
        assert_eq!(devids(BlockGroupFlags::empty()).unwrap(), [3]);
        assert_eq!(devids(BlockGroupFlags::DUP).unwrap(), [3, 3]);
        assert_eq!(devids(BlockGroupFlags::RAID1).unwrap(), [3, 2]);
        assert_eq!(devids(BlockGroupFlags::RAID10).unwrap(), [3, 2]);
        assert_eq!(devids(BlockGroupFlags::RAID1C3).unwrap(), [3, 2, 1]);
        assert_eq!(devids(BlockGroupFlags::RAID0).unwrap(), [3, 2, 1]);
        assert_eq!(devids(BlockGroupFlags::RAID5).unwrap(), [3, 2, 1]);
        assert!(matches!(devids(BlockGroupFlags::RAID1C4), Err(Error::NoSpace { .. })));
        // The stripes of DUP are adjacent.
        let dup = plan(&devices, BlockGroupFlags::DATA | BlockGroupFlags::DUP).unwrap();
        assert_eq!(places(&dup), [(3, 1), (3, 1 + dup.stripe_bytes / MIB)]);
        assert_eq!(dup.bytes_on(DeviceId(3)), 2 * dup.length);
        assert_eq!(dup.bytes_on(DeviceId(1)), 0);
    }

    #[test]
    fn stripes_shrink_when_space_is_short() {
        let full = |free: u64| device(1, 100 * MIB, &[(MIB, 99 * MIB - free)]);
        let data = |free| plan(&[full(free)], BlockGroupFlags::DATA);
        assert_eq!(data(5 * MIB + 1000).unwrap().length, 5 * MIB);
        assert_eq!(data(STRIPE_LENGTH).unwrap().length, STRIPE_LENGTH);
        assert!(matches!(data(STRIPE_LENGTH - 1), Err(Error::NoSpace { .. })));
        assert!(matches!(plan(&[], BlockGroupFlags::DATA), Err(Error::NoSpace { .. })));
        let dup = plan(&[full(2 * STRIPE_LENGTH)], BlockGroupFlags::METADATA | BlockGroupFlags::DUP);
        assert_eq!(dup.unwrap().length, STRIPE_LENGTH);
        // The caller's limit applies too, up to rounding.
        let limits = ChunkLimits { length_max: 3 * MIB, ..ChunkLimits::new(NODE) };
        let small = plan_chunk(&[device(1, GIB, &[])], BlockGroupFlags::DATA, &limits).unwrap();
        assert_eq!(small.length, 16 * MIB);
    }

    #[test]
    fn a_chunk_that_shares_leaves_half_of_each_device() {
        let limits = ChunkLimits { shares: true, ..ChunkLimits::new(NODE) };
        let stripe = |free: &[u64], flags| {
            let device = |&free| device(1, GIB, &[(MIB, GIB - MIB - free)]);
            let devices: Vec<_> = free.iter().map(device).collect();
            plan_chunk(&devices, BlockGroupFlags::DATA | flags, &limits).unwrap().stripe_bytes
        };
        let (single, dup) = (BlockGroupFlags::empty(), BlockGroupFlags::DUP);
        // With plenty of room the kernel's limit is the smaller one.
        assert_eq!(stripe(&[500 * MIB], single), 112 * MIB);
        assert_eq!(stripe(&[100 * MIB], single), 50 * MIB);
        assert_eq!(stripe(&[100 * MIB], dup), 25 * MIB);
        assert_eq!(stripe(&[100 * MIB, 60 * MIB], BlockGroupFlags::RAID1), 30 * MIB);
        // A small rest is taken whole, or in pieces of 8 MiB.
        assert_eq!(stripe(&[12 * MIB], single), 8 * MIB);
        assert_eq!(stripe(&[3 * MIB], single), 3 * MIB);
    }

    #[test]
    fn chunk_items_fit_into_leaf_and_superblock() {
        let many: Vec<_> = (1..=600).map(|devid| device(devid, GIB, &[])).collect();
        let stripes = |flags| plan(&many, flags).unwrap().stripes.len();
        assert_eq!(stripes(BlockGroupFlags::DATA | BlockGroupFlags::RAID0), 506);
        assert_eq!(stripes(BlockGroupFlags::SYSTEM | BlockGroupFlags::RAID0), 58);
        assert_eq!(stripes(BlockGroupFlags::METADATA | BlockGroupFlags::RAID10), 506);
    }

    #[test]
    fn the_next_chunk_starts_after_the_last() {
        let empty = ChunkMap::default();
        assert_eq!(next_chunk_start(&empty), Some(LogicalAddress(MIB)));
        let item = plan(&[device(1, GIB, &[])], BlockGroupFlags::DATA).unwrap().chunk_item(4096);
        let map = empty.with([(LogicalAddress(5 * MIB), item.clone())]).unwrap();
        assert_eq!(next_chunk_start(&map), Some(LogicalAddress(117 * MIB)));
        let last = u64::MAX - 112 * MIB;
        let map = empty.with([(LogicalAddress(last), item)]).unwrap();
        assert_eq!(next_chunk_start(&map), None);
    }

    /// Generates a device with ascending, disjoint extents, some of them unaligned.
    fn any_device() -> impl Strategy<Value = (u64, Vec<(u64, u64)>)> {
        let extent = (0u64..200 * MIB / 4096, 1u64..300 * MIB / 4096);
        (MIB..3 * GIB, prop::collection::vec(extent, 0..12)).prop_map(|(total, extents)| {
            let mut at = 0;
            let mut used = Vec::new();
            for (gap, length) in extents {
                let (start, length) = (at + gap * 4096, length * 4096);
                if start + length > total {
                    break;
                }
                used.push((start, length));
                at = start + length;
            }
            (total, used)
        })
    }

    fn any_flags() -> impl Strategy<Value = BlockGroupFlags> {
        let kind = prop::sample::select(vec![
            BlockGroupFlags::DATA,
            BlockGroupFlags::METADATA,
            BlockGroupFlags::SYSTEM,
            BlockGroupFlags::DATA | BlockGroupFlags::METADATA,
        ]);
        (kind, prop::sample::select(RaidProfile::ALL.to_vec()))
            .prop_map(|(kind, profile)| kind | profile.flags())
    }

    fn assert_sound(devices: &[DeviceSpace], plan: &ChunkPlan) {
        let profile = RaidProfile::from_flags(plan.flags).unwrap();
        assert!(plan.stripe_bytes > 0 && plan.stripe_bytes.is_multiple_of(STRIPE_LENGTH));
        assert_eq!(plan.length, plan.stripe_bytes * profile.data_stripes(plan.stripes.len()) as u64);
        let item = plan.chunk_item(4096);
        let geometry = papilio_format::Geometry {
            node_size: NODE,
            sector_size: 4096,
            checksum_type: papilio_format::ChecksumType::Crc32c,
            incompat: papilio_format::features::IncompatFeatures::SUPPORTED,
            compat_ro: Default::default(),
            metadata_uuid: Uuid::nil(),
            generation: papilio_format::Generation(1),
        };
        let start = LogicalAddress(13 * GIB);
        item.validate(start, &geometry).unwrap();

        let mut extents: Vec<(u64, u64, u64)> = Vec::new();
        for device in devices {
            extents.extend(device.used.iter().map(|&(start, length)| (device.devid.0, start.0, length)));
        }
        let items = plan.device_extents(start, Uuid::from_u128(9));
        assert_eq!(items.len(), plan.stripes.len());
        for (key, extent) in &items {
            extent.validate(key, None, &geometry).unwrap();
            let device = devices.iter().find(|device| device.devid.0 == key.objectid).unwrap();
            assert!(key.offset >= DEVICE_RANGE_RESERVED && key.offset + extent.length <= device.total_bytes);
            extents.push((key.objectid, key.offset, extent.length));
        }
        extents.sort_unstable();
        for pair in extents.windows(2) {
            assert!(pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1, "{pair:?} overlap");
        }
        let mut devids: Vec<_> = plan.stripes.iter().map(|stripe| stripe.devid).collect();
        devids.sort_unstable();
        devids.dedup();
        let per_device = if profile == RaidProfile::Dup { 2 } else { 1 };
        assert_eq!(devids.len() * per_device, plan.stripes.len(), "no device twice");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn plans_are_sound_until_space_is_exhausted(
            devices in prop::collection::vec(any_device(), 1..7),
            flags in prop::collection::vec(any_flags(), 1..40),
        ) {
            let mut devices: Vec<_> = devices
                .iter()
                .zip(1..)
                .map(|((total, used), devid)| device(devid, *total, used))
                .collect();
            for flags in flags {
                let Ok(made) = plan(&devices, flags) else { continue };
                prop_assert_eq!(plan(&devices, flags).unwrap(), made.clone());
                assert_sound(&devices, &made);
                for stripe in &made.stripes {
                    let device = devices.iter_mut().find(|device| device.devid == stripe.devid).unwrap();
                    device.used.push((stripe.offset, made.stripe_bytes));
                    device.used.sort_unstable();
                }
            }
        }
    }
}
