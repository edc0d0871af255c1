//! Sizes and addresses of the chunks of a new file system.
//!
//! Owns [`ChunkLayout`]. The chunks are the same as after `mkfs.btrfs`. It starts with a system
//! chunk of 4 MiB and single metadata and data chunks, one after the other from 1 MiB. It then
//! allocates chunks of the requested profiles after them and removes unneeded ones. A DUP profile
//! therefore leaves a gap.
//!
//! Counterparts: btrfs-progs' `btrfs_alloc_chunk` (`kernel-shared/volumes.c`) and
//! `btrfs_min_dev_size` (`mkfs/common.c`).

use super::options::{Choice, MkfsFeature};
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{ChunkItem, RaidProfile, STRIPE_LENGTH, Stripe};
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, superblock_offset};
use papilio_format::{DeviceId, LogicalAddress, PhysicalAddress};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Bytes before the first chunk, for boot loaders and the first superblock
/// (`BTRFS_DEVICE_RANGE_RESERVED`).
const RESERVED: u64 = MIB;
/// Bytes of the first system chunk, which is the only one if metadata is single.
const FIRST_SYSTEM_CHUNK: u64 = 4 * MIB;
/// The id of the device.
pub(super) const DEVICE: DeviceId = DeviceId(1);

/// One chunk and its block group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) start: LogicalAddress,
    pub(super) length: u64,
    pub(super) flags: BlockGroupFlags,
    /// The device offsets of its copies.
    pub(super) stripes: Vec<PhysicalAddress>,
}

impl Chunk {
    pub(super) fn end(&self) -> LogicalAddress {
        LogicalAddress(self.start.0 + self.length)
    }

    /// Returns the device offsets of the copies of `address`, which is in this chunk.
    pub(super) fn places(&self, address: LogicalAddress) -> impl Iterator<Item = PhysicalAddress> + '_ {
        let within = address.0 - self.start.0;
        self.stripes.iter().map(move |stripe| PhysicalAddress(stripe.0 + within))
    }

    /// Whether a copy of a range overlaps the stripe element of a superblock, where the kernel
    /// never allocates (`exclude_super_stripes`).
    pub(super) fn meets_superblock(&self, address: LogicalAddress, length: u64) -> bool {
        self.places(address).any(|place| {
            (0..SUPERBLOCK_MIRRORS)
                .map(|mirror| superblock_offset(mirror).0)
                .any(|superblock| place.0 < superblock + STRIPE_LENGTH && superblock < place.0 + length)
        })
    }

    /// Returns the chunk item.
    pub(super) fn item(&self, choice: &Choice) -> ChunkItem {
        let stripe = |offset: &PhysicalAddress| Stripe {
            devid: DEVICE,
            offset: *offset,
            device_uuid: choice.uuids.device,
        };
        ChunkItem {
            length: self.length,
            owner: papilio_format::objectid::EXTENT_TREE.0,
            stripe_length: STRIPE_LENGTH,
            flags: self.flags,
            io_align: STRIPE_LENGTH as u32,
            io_width: STRIPE_LENGTH as u32,
            sector_size: super::options::SECTOR_SIZE,
            sub_stripes: 1,
            stripes: self.stripes.iter().map(stripe).collect(),
        }
    }
}

/// All chunks, by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkLayout {
    pub(super) chunks: Vec<Chunk>,
}

impl ChunkLayout {
    /// Lays out the chunks on a device of `total` bytes, at least [`minimum_size`].
    pub(super) fn new(total: u64, choice: &Choice) -> Self {
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
        let mut places = Places::new();
        let mut chunks = Vec::new();
        // First a single chunk of each kind, kept or not, then the DUP chunks.
        for (kind, profile) in &kinds {
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

    /// Returns the chunk for blocks of the chunk tree.
    pub(super) fn system(&self) -> &Chunk {
        self.of_kind(BlockGroupFlags::SYSTEM)
    }

    /// Returns the chunk for all other tree blocks.
    pub(super) fn metadata(&self) -> &Chunk {
        self.of_kind(BlockGroupFlags::METADATA)
    }

    fn of_kind(&self, kind: BlockGroupFlags) -> &Chunk {
        let found = self.chunks.iter().find(|chunk| chunk.flags.contains(kind));
        found.expect("each kind has a chunk")
    }

    /// Returns the bytes of the device that chunks take.
    pub(super) fn device_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.length * chunk.stripes.len() as u64).sum()
    }
}

/// Allocates chunks one after the other, in both address spaces.
struct Places {
    logical: u64,
    physical: u64,
}

impl Places {
    fn new() -> Self {
        Self { logical: RESERVED, physical: RESERVED }
    }

    fn take(&mut self, kind: BlockGroupFlags, length: u64, profile: RaidProfile) -> Chunk {
        let start = LogicalAddress(self.logical);
        self.logical += length;
        let mut stripe = || {
            let place = PhysicalAddress(self.physical);
            self.physical += length;
            place
        };
        let stripes = (0..profile.copies()).map(|_| stripe()).collect();
        Chunk { start, length, flags: kind.union(profile.flags()), stripes }
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
    if choice.has(MkfsFeature::MixedGroups) {
        // Twice the system chunk and the smallest reserve of the kernel.
        let computed = 2 * (FIRST_SYSTEM_CHUNK + (u64::from(choice.node_size) << 10));
        let first = RESERVED + FIRST_SYSTEM_CHUNK + 8 * MIB;
        return if is_dup(choice.data_profile) { first + 2 * (8 + 64) * MIB } else { computed };
    }
    let metadata = if is_dup(choice.metadata_profile) { 2 * (8 + 32) * MIB } else { (8 + 8) * MIB };
    let data = if is_dup(choice.data_profile) { 2 * 64 * MIB } else { 8 * MIB };
    RESERVED + FIRST_SYSTEM_CHUNK + 2 * 8 * MIB + metadata + data
}

#[cfg(test)]
mod tests {
    use super::super::MkfsOptions;
    use super::*;

    fn choice(data: RaidProfile, metadata: RaidProfile, mixed: bool) -> Choice {
        let options = MkfsOptions::new().data_profile(data).metadata_profile(metadata);
        options.feature(MkfsFeature::MixedGroups, mixed).resolve().unwrap()
    }

    fn lengths(total: u64, data: RaidProfile, metadata: RaidProfile) -> Vec<u64> {
        let layout = ChunkLayout::new(total, &choice(data, metadata, false));
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
        let layout = ChunkLayout::new(GIB, &choice(RaidProfile::Single, RaidProfile::Dup, false));
        let metadata = layout.metadata();
        assert_eq!(metadata.start.0, 30_408_704);
        assert_eq!(metadata.stripes, [PhysicalAddress(38_797_312), PhysicalAddress(92_471_296)]);
        assert_eq!(layout.system().stripes[0].0, 22_020_096);
        assert_eq!(layout.device_bytes(), 132_513_792);
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
                let layout = ChunkLayout::new(total, &choice);
                let mut ranges: Vec<_> = layout
                    .chunks
                    .iter()
                    .flat_map(|chunk| chunk.stripes.iter().map(|at| (at.0, at.0 + chunk.length)))
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
            stripes: vec![PhysicalAddress(MIB)],
        };
        let meets = |address| chunk.meets_superblock(LogicalAddress(address), 16384);
        assert!(meets(64 * MIB) && meets(64 * MIB + 49152) && meets(64 * MIB - 4096));
        assert!(!meets(64 * MIB - 16384) && !meets(64 * MIB + 65536) && !meets(MIB));
    }
}
