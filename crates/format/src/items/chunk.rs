//! Chunks: ranges of the logical address space, and the device stripes that back them.
//!
//! Owns [`ChunkItem`], [`Stripe`] and [`RaidProfile`]. Sources: `struct btrfs_chunk`
//! (`include/uapi/linux/btrfs_tree.h`), `btrfs_check_chunk_valid` (`fs/btrfs/tree-checker.c`),
//! `btrfs_raid_array` (`fs/btrfs/volumes.c`).

use crate::error::Corrupt;
use crate::features::IncompatFeatures;
use crate::geometry::Geometry;
use crate::items::block_group::BlockGroupFlags;
use crate::parse::disk_struct;
use crate::units::{DeviceId, LogicalAddress, PhysicalAddress};
use uuid::Uuid;

/// Bytes per stripe element; the format allows no other value (`BTRFS_STRIPE_LEN`).
pub const STRIPE_LENGTH: u64 = 64 << 10;

disk_struct! {
    /// One stripe: a chunk's location on one device.
    pub struct Stripe as StripeDisk = 32 {
        /// The device.
        pub devid: DeviceId,
        /// Byte offset on the device.
        pub offset: PhysicalAddress,
        /// The device's UUID.
        pub device_uuid: Uuid,
    }
}

disk_struct! {
    /// The fixed part of a chunk item.
    pub struct ChunkHeader as ChunkHeaderDisk = 48 {
        /// Length in the logical address space, in bytes.
        pub length: u64,
        /// Always 2, the extent tree's object id.
        pub owner: u64,
        /// Bytes per stripe element, always 64 KiB.
        pub stripe_length: u64,
        /// Content type and profile.
        pub flags: BlockGroupFlags,
        /// Optimal I/O alignment in bytes.
        pub io_align: u32,
        /// Optimal I/O width in bytes.
        pub io_width: u32,
        /// The sector size.
        pub sector_size: u32,
        /// Number of stripes that follow, at least 1.
        pub num_stripes: u16,
        /// Copies within RAID10 (2); otherwise 0 or 1.
        pub sub_stripes: u16,
    }
}

/// One chunk: key (FIRST_CHUNK_TREE, CHUNK_ITEM, logical start).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkItem {
    /// Length in the logical address space, in bytes.
    pub length: u64,
    /// Always 2.
    pub owner: u64,
    /// Bytes per stripe element.
    pub stripe_length: u64,
    /// Content type and profile.
    pub flags: BlockGroupFlags,
    /// Optimal I/O alignment in bytes.
    pub io_align: u32,
    /// Optimal I/O width in bytes.
    pub io_width: u32,
    /// The sector size.
    pub sector_size: u32,
    /// Copies within RAID10.
    pub sub_stripes: u16,
    /// The stripes; their order is significant to the profile.
    pub stripes: Vec<Stripe>,
}

impl ChunkItem {
    /// Returns the size of a chunk item with `stripes` stripes, in bytes.
    pub const fn size_on_disk(stripes: usize) -> usize {
        ChunkHeader::SIZE + stripes * Stripe::SIZE
    }

    /// Decodes the chunk at the start of `bytes` and returns it with the remaining bytes.
    ///
    /// # Errors
    /// [`Corrupt::TooShort`], or a count of 0 stripes.
    pub fn parse_prefix(bytes: &[u8]) -> Result<(Self, &[u8]), Corrupt> {
        let (header, mut rest) = ChunkHeader::parse_prefix(bytes)?;
        if header.num_stripes == 0 {
            return Err(Corrupt::field("chunk", "num_stripes", 0, "not at least 1"));
        }
        let need = Self::size_on_disk(header.num_stripes.into());
        if bytes.len() < need {
            return Err(Corrupt::TooShort { what: "chunk", need, have: bytes.len() });
        }
        let mut stripes = Vec::with_capacity(header.num_stripes.into());
        for _ in 0..header.num_stripes {
            let (stripe, after) = Stripe::parse_prefix(rest)?;
            stripes.push(stripe);
            rest = after;
        }
        let chunk = Self {
            length: header.length,
            owner: header.owner,
            stripe_length: header.stripe_length,
            flags: header.flags,
            io_align: header.io_align,
            io_width: header.io_width,
            sector_size: header.sector_size,
            sub_stripes: header.sub_stripes,
            stripes,
        };
        Ok((chunk, rest))
    }

    /// Decodes `bytes`, which must be exactly one chunk item.
    ///
    /// # Errors
    /// As [`ChunkItem::parse_prefix`], or [`Corrupt::WrongSize`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Corrupt> {
        let (chunk, rest) = Self::parse_prefix(bytes)?;
        if !rest.is_empty() {
            return Err(Corrupt::WrongSize {
                what: "chunk",
                expected: bytes.len() - rest.len(),
                found: bytes.len(),
            });
        }
        Ok(chunk)
    }

    /// Encodes the chunk.
    ///
    /// # Panics
    /// If there are more than 65,535 stripes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = ChunkHeader {
            length: self.length,
            owner: self.owner,
            stripe_length: self.stripe_length,
            flags: self.flags,
            io_align: self.io_align,
            io_width: self.io_width,
            sector_size: self.sector_size,
            num_stripes: self.stripes.len().try_into().expect("a chunk has at most 65535 stripes"),
            sub_stripes: self.sub_stripes,
        };
        let mut bytes = header.to_bytes().to_vec();
        for stripe in &self.stripes {
            bytes.extend_from_slice(&stripe.to_bytes());
        }
        bytes
    }

    /// Returns the profile.
    ///
    /// # Errors
    /// More than one profile bit.
    pub fn profile(&self) -> Result<RaidProfile, Corrupt> {
        RaidProfile::from_flags(self.flags)
    }

    /// Returns the bytes that each stripe occupies on its device.
    ///
    /// # Errors
    /// As [`ChunkItem::profile`].
    pub fn stripe_bytes(&self) -> Result<u64, Corrupt> {
        let data_stripes = self.profile()?.data_stripes(self.stripes.len());
        Ok(self.length / data_stripes.max(1) as u64)
    }

    /// Runs the checks of `btrfs_check_chunk_valid`.
    ///
    /// # Errors
    /// The first field that the format forbids.
    pub fn validate(&self, logical: LogicalAddress, geometry: &Geometry) -> Result<(), Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("chunk", field, value, why));
        let sector_size = u64::from(geometry.sector_size);
        let profile = self.profile()?;
        let stripes = self.stripes.len();

        if !profile.accepts_stripes(stripes) {
            return bad("num_stripes", stripes as u64, "not allowed by the profile");
        }
        if profile == RaidProfile::Raid10 && self.sub_stripes != 2 {
            return bad("sub_stripes", self.sub_stripes.into(), "not 2, as RAID10 requires");
        }
        if !logical.is_aligned(sector_size) {
            return bad("logical", logical.0, "not a multiple of the sector size");
        }
        if self.sector_size != geometry.sector_size {
            return bad("sector_size", self.sector_size.into(), "not the file system's sector size");
        }
        if self.length == 0 || !self.length.is_multiple_of(sector_size) {
            return bad("length", self.length, "not a positive multiple of the sector size");
        }
        if logical.checked_add(self.length).is_none() {
            return bad("length", self.length, "reaches past the end of the address space");
        }
        if self.stripe_length != STRIPE_LENGTH {
            return bad("stripe_length", self.stripe_length, "not 65536");
        }
        // As in the kernel: stripe numbers must fit 32 bits.
        if self.length >= (u64::from(u32::MAX) << 16) {
            return bad("length", self.length, "too many stripe elements");
        }
        let known = BlockGroupFlags::TYPE_MASK.union(BlockGroupFlags::PROFILE_MASK);
        if self.flags.bits() & !known.bits() != 0 {
            return bad("flags", self.flags.bits(), "unknown bits");
        }
        let kind = self.flags.intersection(BlockGroupFlags::TYPE_MASK);
        let mixed = BlockGroupFlags::DATA.union(BlockGroupFlags::METADATA);
        match kind {
            BlockGroupFlags::DATA | BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM => {}
            _ if kind == mixed && geometry.incompat.contains(IncompatFeatures::MIXED_GROUPS) => {}
            _ => return bad("flags", self.flags.bits(), "not one of data, metadata and system"),
        }
        Ok(())
    }
}

/// The distribution of a chunk over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum RaidProfile {
    Single,
    Dup,
    Raid0,
    Raid1,
    Raid1c3,
    Raid1c4,
    Raid10,
    Raid5,
    Raid6,
}

impl RaidProfile {
    /// All profiles.
    pub const ALL: [Self; 9] = [
        Self::Single,
        Self::Dup,
        Self::Raid0,
        Self::Raid1,
        Self::Raid1c3,
        Self::Raid1c4,
        Self::Raid10,
        Self::Raid5,
        Self::Raid6,
    ];

    /// Returns the profile that the flags select.
    ///
    /// # Errors
    /// More than one profile bit.
    pub fn from_flags(flags: BlockGroupFlags) -> Result<Self, Corrupt> {
        let profile = flags.intersection(BlockGroupFlags::PROFILE_MASK);
        Self::ALL.into_iter().find(|candidate| candidate.flags() == profile).ok_or(Corrupt::field(
            "chunk",
            "flags",
            flags.bits(),
            "more than one profile",
        ))
    }

    /// Returns the flag bit; none for single.
    pub const fn flags(self) -> BlockGroupFlags {
        match self {
            Self::Single => BlockGroupFlags::empty(),
            Self::Dup => BlockGroupFlags::DUP,
            Self::Raid0 => BlockGroupFlags::RAID0,
            Self::Raid1 => BlockGroupFlags::RAID1,
            Self::Raid1c3 => BlockGroupFlags::RAID1C3,
            Self::Raid1c4 => BlockGroupFlags::RAID1C4,
            Self::Raid10 => BlockGroupFlags::RAID10,
            Self::Raid5 => BlockGroupFlags::RAID5,
            Self::Raid6 => BlockGroupFlags::RAID6,
        }
    }

    /// Returns the name that `btrfs filesystem df` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Dup => "DUP",
            Self::Raid0 => "RAID0",
            Self::Raid1 => "RAID1",
            Self::Raid1c3 => "RAID1C3",
            Self::Raid1c4 => "RAID1C4",
            Self::Raid10 => "RAID10",
            Self::Raid5 => "RAID5",
            Self::Raid6 => "RAID6",
        }
    }

    /// Returns the number of whole copies of every byte; parity does not count.
    pub const fn copies(self) -> usize {
        match self {
            Self::Single | Self::Raid0 | Self::Raid5 | Self::Raid6 => 1,
            Self::Dup | Self::Raid1 | Self::Raid10 => 2,
            Self::Raid1c3 => 3,
            Self::Raid1c4 => 4,
        }
    }

    /// Returns the number of parity stripes.
    pub const fn parity(self) -> usize {
        match self {
            Self::Raid5 => 1,
            Self::Raid6 => 2,
            _ => 0,
        }
    }

    /// Returns the number of devices that may fail without data loss.
    pub const fn tolerated_failures(self) -> usize {
        match self {
            Self::Single | Self::Dup | Self::Raid0 => 0,
            Self::Raid1 | Self::Raid10 | Self::Raid5 => 1,
            Self::Raid1c3 | Self::Raid6 => 2,
            Self::Raid1c4 => 3,
        }
    }

    /// Returns whether a chunk with this profile may have `stripes` stripes.
    pub const fn accepts_stripes(self, stripes: usize) -> bool {
        match self {
            Self::Single => stripes == 1,
            Self::Dup | Self::Raid1 => stripes == 2,
            Self::Raid1c3 => stripes == 3,
            Self::Raid1c4 => stripes == 4,
            // The kernel allows degenerate profiles since 5.15: RAID0 on 1 device, RAID10 on 2.
            Self::Raid0 => stripes >= 1,
            Self::Raid10 => stripes >= 2 && stripes.is_multiple_of(2),
            Self::Raid5 => stripes >= 2,
            Self::Raid6 => stripes >= 3,
        }
    }

    /// Returns the number of stripes, out of `stripes`, that hold distinct data.
    pub const fn data_stripes(self, stripes: usize) -> usize {
        match self {
            Self::Single | Self::Dup | Self::Raid1 | Self::Raid1c3 | Self::Raid1c4 => 1,
            Self::Raid0 => stripes,
            Self::Raid10 => stripes / 2,
            Self::Raid5 => stripes.saturating_sub(1),
            Self::Raid6 => stripes.saturating_sub(2),
        }
    }
}

impl std::fmt::Display for RaidProfile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
