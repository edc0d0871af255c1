//! Sizes and addresses of the chunks of a new file system.
//!
//! Owns [`ChunkLayout`]. On several devices, and for striped profiles, chunks are those that the
//! kernel would allocate. On one device they are the same as after `mkfs.btrfs`. It starts with a
//! system chunk of 4 MiB and single metadata and data chunks, one after the other from 1 MiB. It
//! then allocates chunks of the requested profiles after them and removes unneeded ones. A DUP
//! profile therefore leaves a gap.
//!
//! Counterparts: btrfs-progs' `btrfs_alloc_chunk` (`kernel-shared/volumes.c`) and
//! `btrfs_min_dev_size` (`mkfs/common.c`).

use super::features::MkfsFeature;
use super::options::Choice;
use papilio_engine::errors::Result;
use papilio_engine::space::chunk_allocation::{ChunkLimits, ChunkPlan, DeviceSpace, plan_chunk};
use papilio_engine::volume;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{ChunkItem, RaidProfile, STRIPE_LENGTH, Stripe};
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, superblock_offset};
use papilio_format::{DeviceId, LogicalAddress, PhysicalAddress, Uuid};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Bytes before the first chunk, for boot loaders and the first superblock
/// (`BTRFS_DEVICE_RANGE_RESERVED`).
const RESERVED: u64 = MIB;
/// Bytes of the first system chunk, which is the only one if metadata is single.
const FIRST_SYSTEM_CHUNK: u64 = 4 * MIB;
/// The id of the first device.
const FIRST_DEVICE: DeviceId = DeviceId(1);
/// Wanted bytes of a system chunk on several devices. The kernel's rounding may double it.
const SYSTEM_CHUNK: u64 = 8 * MIB;
/// Bytes of the first chunks of a file system that will be shrunk to its content.
const SMALL_SYSTEM_CHUNK: u64 = MIB;
const SMALL_CHUNK: u64 = 4 * MIB;

/// A location on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceLocation {
    /// The index of the device: its devid less 1.
    pub(super) device: usize,
    pub(super) offset: PhysicalAddress,
}

/// One chunk and its block group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) start: LogicalAddress,
    pub(super) length: u64,
    pub(super) flags: BlockGroupFlags,
    /// Bytes of each stripe.
    pub(super) stripe_bytes: u64,
    pub(super) stripes: Vec<Stripe>,
    /// The file system's sector size, which the item repeats.
    pub(super) sector_size: u32,
}

impl Chunk {
    pub(super) fn end(&self) -> LogicalAddress {
        LogicalAddress(self.start.0 + self.length)
    }

    /// Returns the chunk as the volume maps it.
    pub(super) fn map(&self) -> volume::Chunk {
        volume::Chunk::new(self.start, &self.item()).expect("a planned chunk is valid")
    }

    /// Returns the place of an offset on a stripe of this chunk.
    pub(super) fn place(&self, (stripe, offset): (usize, PhysicalAddress)) -> DeviceLocation {
        DeviceLocation { device: self.stripes[stripe].devid.0 as usize - 1, offset }
    }

    /// Whether a copy of a block, or its row of a parity profile, overlaps the stripe element of a
    /// superblock, where the kernel never allocates (`exclude_super_stripes`).
    pub(super) fn meets_superblock(&self, address: LogicalAddress, length: u64) -> bool {
        let map = self.map();
        let meets = |place: u64, length: u64| {
            (0..SUPERBLOCK_MIRRORS)
                .map(|mirror| superblock_offset(mirror).0)
                .any(|superblock| place < superblock + STRIPE_LENGTH && superblock < place + length)
        };
        map.elements(address, length as usize).any(|element| {
            if map.profile().parity() > 0 {
                let row = element.row * STRIPE_LENGTH;
                return self.stripes.iter().any(|stripe| meets(stripe.offset.0 + row, STRIPE_LENGTH));
            }
            let mut copies = (0..map.copies()).filter_map(|copy| map.direct(&element, copy));
            copies.any(|(_, offset)| meets(offset.0, element.length as u64))
        })
    }

    /// Returns the chunk item.
    pub(super) fn item(&self) -> ChunkItem {
        let plan = ChunkPlan {
            flags: self.flags,
            length: self.length,
            stripe_bytes: self.stripe_bytes,
            stripes: self.stripes.clone(),
        };
        plan.chunk_item(self.sector_size)
    }

    /// Returns the bytes that the chunk takes on a device.
    fn bytes_on(&self, devid: DeviceId) -> u64 {
        self.stripes.iter().filter(|stripe| stripe.devid == devid).count() as u64 * self.stripe_bytes
    }
}

/// All chunks, by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkLayout {
    pub(super) chunks: Vec<Chunk>,
}

impl ChunkLayout {
    /// Lays out the chunks on devices of `totals` bytes, each at least [`minimum_size`].
    ///
    /// # Errors
    /// [`Error::NoSpace`](papilio_engine::Error::NoSpace) if a profile finds too few devices with
    /// space.
    pub(super) fn new(totals: &[u64], choice: &Choice) -> Result<Self> {
        let mixed = choice.has(MkfsFeature::MixedGroups);
        let metadata = match mixed {
            true => BlockGroupFlags::METADATA.union(BlockGroupFlags::DATA),
            false => BlockGroupFlags::METADATA,
        };
        let mut kinds =
            vec![(BlockGroupFlags::SYSTEM, choice.metadata_profile), (metadata, choice.metadata_profile)];
        if !mixed {
            kinds.push((BlockGroupFlags::DATA, choice.data_profile));
        }
        let is_simple = |(_, profile): &(_, _)| matches!(profile, RaidProfile::Single | RaidProfile::Dup);
        match totals {
            [total] if kinds.iter().all(is_simple) => Ok(Self::on_one_device(*total, &kinds, choice)),
            _ => Self::on_devices(totals, &kinds, choice),
        }
    }

    /// Lays out chunks as the kernel allocates them.
    fn on_devices(totals: &[u64], kinds: &[(BlockGroupFlags, RaidProfile)], choice: &Choice) -> Result<Self> {
        let space = |(at, total): (usize, &u64)| DeviceSpace {
            devid: DeviceId(at as u64 + 1),
            uuid: choice.uuids.devices[at],
            total_bytes: *total,
            used: Vec::new(),
        };
        let mut devices: Vec<_> = totals.iter().enumerate().map(space).collect();
        let mut chunks: Vec<Chunk> = Vec::new();
        for (kind, profile) in kinds {
            let mut limits = ChunkLimits::new(choice.node_size);
            if *kind == BlockGroupFlags::SYSTEM {
                limits.length_max = SYSTEM_CHUNK;
            }
            let ChunkPlan { flags, length, stripe_bytes, stripes } =
                plan_chunk(&devices, kind.union(profile.flags()), &limits)?;
            for stripe in &stripes {
                let device = &mut devices[stripe.devid.0 as usize - 1];
                device.used.push((stripe.offset, stripe_bytes));
                device.used.sort_unstable();
            }
            let start = chunks.last().map_or(LogicalAddress(RESERVED), Chunk::end);
            chunks.push(Chunk {
                start,
                length,
                flags,
                stripe_bytes,
                stripes,
                sector_size: choice.sector_size,
            });
        }
        Ok(Self { chunks })
    }

    /// Lays out chunks as `mkfs.btrfs` does on one device.
    fn on_one_device(total: u64, kinds: &[(BlockGroupFlags, RaidProfile)], choice: &Choice) -> Self {
        let mut places = Places::new(choice.uuids.devices[0], choice.sector_size);
        let mut chunks = Vec::new();
        if choice.small_chunks {
            for (kind, profile) in kinds {
                let system = *kind == BlockGroupFlags::SYSTEM;
                let length = if system { SMALL_SYSTEM_CHUNK } else { SMALL_CHUNK };
                chunks.push(places.take(*kind, length, *profile));
            }
            return Self { chunks };
        }
        // First a single chunk of each kind, kept or not, then the DUP chunks.
        for (kind, profile) in kinds {
            let length =
                if *kind == BlockGroupFlags::SYSTEM { FIRST_SYSTEM_CHUNK } else { single_size(total) };
            let chunk = places.take(*kind, length, RaidProfile::Single);
            if *profile == RaidProfile::Single {
                chunks.push(chunk);
            }
        }
        for (kind, _) in kinds.iter().filter(|(_, profile)| *profile == RaidProfile::Dup) {
            chunks.push(places.take(*kind, dup_size(total, *kind), RaidProfile::Dup));
        }
        assert!(places.physical <= total, "a device of the minimum size has space for all chunks");
        Self { chunks }
    }

    /// Returns the chunk for blocks of the chunk tree: the longest one.
    pub(super) fn system(&self) -> &Chunk {
        self.longest_of(BlockGroupFlags::SYSTEM)
    }

    /// Returns the chunk for all other tree blocks: the longest one.
    pub(super) fn metadata(&self) -> &Chunk {
        self.longest_of(BlockGroupFlags::METADATA)
    }

    fn longest_of(&self, kind: BlockGroupFlags) -> &Chunk {
        let found = self.chunks.iter().filter(|chunk| chunk.flags.contains(kind));
        // Of equal ones, the first.
        let found = found.rev().max_by_key(|chunk| chunk.length);
        found.expect("each kind has a chunk")
    }

    /// Returns the bytes of a device that chunks take.
    pub(super) fn bytes_on(&self, devid: DeviceId) -> u64 {
        self.chunks.iter().map(|chunk| chunk.bytes_on(devid)).sum()
    }
}

/// Allocates chunks one after the other, in both address spaces.
struct Places {
    logical: u64,
    physical: u64,
    device_uuid: Uuid,
    sector_size: u32,
}

impl Places {
    fn new(device_uuid: Uuid, sector_size: u32) -> Self {
        Self { logical: RESERVED, physical: RESERVED, device_uuid, sector_size }
    }

    fn take(&mut self, kind: BlockGroupFlags, length: u64, profile: RaidProfile) -> Chunk {
        let start = LogicalAddress(self.logical);
        self.logical += length;
        let mut stripe = || {
            let offset = PhysicalAddress(self.physical);
            self.physical += length;
            Stripe { devid: FIRST_DEVICE, offset, device_uuid: self.device_uuid }
        };
        let stripes = (0..profile.copies()).map(|_| stripe()).collect();
        Chunk {
            start,
            length,
            flags: kind.union(profile.flags()),
            stripe_bytes: length,
            stripes,
            sector_size: self.sector_size,
        }
    }
}

const fn round_down(bytes: u64) -> u64 {
    bytes - bytes % STRIPE_LENGTH
}

/// Returns the bytes of a single metadata or data chunk: 8 MiB, or a tenth of a device below 80
/// MiB.
fn single_size(total: u64) -> u64 {
    round_down((total / 10).min(8 * MIB)).max(MIB)
}

/// Returns the bytes of a DUP chunk. If one copy would exceed a tenth of the device, both copies
/// take a tenth together, but each has at least a minimum size.
fn dup_size(total: u64, kind: BlockGroupFlags) -> u64 {
    let (usual, most, least) = if kind.contains(BlockGroupFlags::SYSTEM) {
        (8 * MIB, 16 * MIB, MIB)
    } else if kind.contains(BlockGroupFlags::DATA) {
        (GIB, 10 * GIB, 64 * MIB)
    } else {
        let usual = if total > 50 * GIB { GIB } else { 256 * MIB };
        (usual, usual, 32 * MIB)
    };
    let most = most.min(total / 10);
    let size = if usual > most { round_down(most / 2) } else { usual };
    size.max(least)
}

/// Returns the bytes of the smallest device, as `mkfs.btrfs` computes it. For mixed block groups in
/// DUP, `mkfs.btrfs` computes too little and runs out of space later; this is the size of their
/// chunks.
pub(super) fn minimum_size(choice: &Choice) -> u64 {
    let is_dup = |profile| profile == RaidProfile::Dup;
    let is_single = |profile| profile == RaidProfile::Single;
    if choice.has(MkfsFeature::MixedGroups) {
        // Twice the system chunk and the smallest reserve of the kernel.
        let computed = 2 * (FIRST_SYSTEM_CHUNK + (u64::from(choice.node_size) << 10));
        let first = RESERVED + FIRST_SYSTEM_CHUNK + 8 * MIB;
        return match choice.data_profile {
            RaidProfile::Single => computed,
            RaidProfile::Dup => first + 2 * (8 + 64) * MIB,
            _ => first + (8 + 64) * MIB,
        };
    }
    let stripes = |profile| match profile {
        _ if is_dup(profile) => 2,
        _ => 1,
    };
    let least = |profile, single: u64, other: u64| match is_single(profile) {
        true => single * MIB,
        false => stripes(profile) * other * MIB,
    };
    let metadata = least(choice.metadata_profile, 8 + 8, 8 + 32);
    let data = least(choice.data_profile, 8, 64);
    RESERVED + FIRST_SYSTEM_CHUNK + 2 * 8 * MIB + metadata + data
}

#[cfg(test)]
mod tests {
    use super::super::MkfsOptions;
    use super::*;

    fn choice(data: RaidProfile, metadata: RaidProfile, mixed: bool) -> Choice {
        let options = MkfsOptions::new().data_profile(data).metadata_profile(metadata);
        options.feature(MkfsFeature::MixedGroups, mixed).resolve(1).unwrap()
    }

    fn lengths(total: u64, data: RaidProfile, metadata: RaidProfile) -> Vec<u64> {
        let layout = ChunkLayout::new(&[total], &choice(data, metadata, false)).unwrap();
        layout.chunks.iter().map(|chunk| chunk.length).collect()
    }

    const PROFILES: [(RaidProfile, RaidProfile, bool); 6] = [
        (RaidProfile::Single, RaidProfile::Dup, false),
        (RaidProfile::Single, RaidProfile::Single, false),
        (RaidProfile::Dup, RaidProfile::Dup, false),
        (RaidProfile::Dup, RaidProfile::Single, false),
        (RaidProfile::Single, RaidProfile::Single, true),
        (RaidProfile::Dup, RaidProfile::Dup, true),
    ];

    #[test]
    fn sizes_are_those_of_mkfs_btrfs() {
        use RaidProfile::{Dup, Single};
        // From file systems of `mkfs.btrfs`: data, system, metadata.
        assert_eq!(lengths(GIB, Single, Dup), [8 * MIB, 8 * MIB, 53_673_984]);
        assert_eq!(lengths(109 * MIB, Single, Dup), [8 * MIB, 8 * MIB, 32 * MIB]);
        assert_eq!(lengths(6 * GIB, Single, Dup)[2], 256 * MIB);
        assert_eq!(lengths(60 * GIB, Single, Dup)[2], GIB);
        assert_eq!(lengths(20 * GIB, Dup, Single), [4 * MIB, 8 * MIB, GIB]);
        assert_eq!(lengths(GIB, Dup, Single)[2], 64 * MIB);
    }

    #[test]
    fn addresses_are_those_of_mkfs_btrfs() {
        let layout = ChunkLayout::new(&[GIB], &choice(RaidProfile::Single, RaidProfile::Dup, false)).unwrap();
        let metadata = layout.metadata();
        assert_eq!(metadata.start.0, 30_408_704);
        let offsets: Vec<_> = metadata.stripes.iter().map(|stripe| stripe.offset.0).collect();
        assert_eq!(offsets, [38_797_312, 92_471_296]);
        assert_eq!(layout.system().stripes[0].offset.0, 22_020_096);
        assert_eq!(layout.bytes_on(FIRST_DEVICE), 132_513_792);
    }

    #[test]
    fn minima_are_those_of_mkfs_btrfs() {
        let minimum = |(data, metadata, mixed)| minimum_size(&choice(data, metadata, mixed));
        // From its error messages, except for the last, which it computes too small.
        let expected = [109, 45, 229, 165, 16, 157];
        assert_eq!(PROFILES.map(minimum), expected.map(|mib| mib * MIB));
    }

    #[test]
    fn chunks_fit_any_device_from_the_minimum_on() {
        for (data, metadata, mixed) in PROFILES {
            let choice = choice(data, metadata, mixed);
            let minimum = minimum_size(&choice);
            for total in (0..400).map(|step| minimum + step * step * MIB / 3).map(|size| size & !4095) {
                let layout = ChunkLayout::new(&[total], &choice).unwrap();
                let mut ranges: Vec<_> = layout
                    .chunks
                    .iter()
                    .flat_map(|chunk| {
                        chunk.stripes.iter().map(|at| (at.offset.0, at.offset.0 + chunk.length))
                    })
                    .collect();
                ranges.sort_unstable();
                assert!(ranges[0].0 >= RESERVED && ranges.last().unwrap().1 <= total);
                assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
                assert!(layout.chunks.is_sorted_by(|a, b| a.end() <= b.start));
            }
        }
    }

    #[test]
    fn ranges_with_superblocks_are_found() {
        let chunk = Chunk {
            start: LogicalAddress(MIB),
            length: 128 * MIB,
            flags: BlockGroupFlags::METADATA,
            stripe_bytes: 128 * MIB,
            stripes: vec![Stripe {
                devid: FIRST_DEVICE,
                offset: PhysicalAddress(MIB),
                device_uuid: Uuid::nil(),
            }],
            sector_size: 4096,
        };
        let meets = |address| chunk.meets_superblock(LogicalAddress(address), 16384);
        assert!(meets(64 * MIB) && meets(64 * MIB + 49152) && meets(64 * MIB - 4096));
        assert!(!meets(64 * MIB - 16384) && !meets(64 * MIB + 65536) && !meets(MIB));
    }
}
