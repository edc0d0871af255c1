//! The superblock, from which every read of a file system starts.
//!
//! Owns [`Superblock`], its 4,096 bytes, the array of system chunks in it and the four backup
//! roots.
//!
//! **Invariants**
//! - [`Superblock::parse`] accepts what the kernel accepts.
//! - An accepted superblock has a power-of-two sector size of 4K to 64K, a node size from the
//!   sector size to 64K, aligned roots, levels below 8 and a valid system chunk array.
//!
//! Kernel counterpart: `struct btrfs_super_block` (`include/uapi/linux/btrfs_tree.h`) and
//! `btrfs_validate_super` (`fs/btrfs/disk-io.c`).

use crate::checksum::{CHECKSUM_SIZE, ChecksumType};
use crate::disk::OnDisk;
use crate::error::Corrupt;
use crate::features::{CompatRoFeatures, IncompatFeatures, SuperblockFlags};
pub use crate::geometry::{Geometry, MAX_LEVEL};
use crate::incompatible::Incompatible;
use crate::items::chunk::ChunkItem;
use crate::items::device::DeviceItem;
use crate::key::{ItemType, Key};
use crate::parse::disk_struct;
use crate::units::{Generation, LogicalAddress, PhysicalAddress, TreeId};
use uuid::Uuid;
use zerocopy::FromBytes;

/// Size of a superblock in bytes.
pub const SUPERBLOCK_SIZE: usize = 4096;
/// `_BHRfS_M`, little-endian.
pub const MAGIC: u64 = 0x4d5f_5366_5248_425f;
/// `!BHRfS_M`, little-endian: the magic of a file system that is being made
/// (`BTRFS_MAGIC_TEMPORARY` of btrfs-progs). No kernel mounts it.
pub const MAGIC_TEMPORARY: u64 = 0x4d5f_5366_5248_4221;
/// Size of the system chunk array in bytes.
pub const SYSTEM_CHUNK_ARRAY_SIZE: usize = 2048;
/// Size of the label field in bytes, including its NUL.
pub const LABEL_SIZE: usize = 256;

/// Returns the device offset of superblock copy `mirror` (0 to 2): 64 KiB, 64 MiB or 256 GiB
/// (`btrfs_sb_offset`).
pub const fn superblock_offset(mirror: usize) -> PhysicalAddress {
    match mirror {
        0 => PhysicalAddress(64 << 10),
        1 => PhysicalAddress(64 << 20),
        2 => PhysicalAddress(256 << 30),
        _ => panic!("superblock mirror numbers are 0 to 2"),
    }
}

/// The number of superblock copies on a device that is large enough.
pub const SUPERBLOCK_MIRRORS: usize = 3;

disk_struct! {
    /// One of the four records of recent roots (`struct btrfs_root_backup`).
    pub struct RootBackup as RootBackupDisk = 168 {
        /// Root of the root tree.
        pub tree_root: LogicalAddress,
        /// Its generation.
        pub tree_root_generation: Generation,
        /// Root of the chunk tree.
        pub chunk_root: LogicalAddress,
        /// Its generation.
        pub chunk_root_generation: Generation,
        /// Root of the extent tree, or of the block-group tree with EXTENT_TREE_V2.
        pub extent_root: LogicalAddress,
        /// Its generation.
        pub extent_root_generation: Generation,
        /// Root of the top-level subvolume.
        pub fs_root: LogicalAddress,
        /// Its generation.
        pub fs_root_generation: Generation,
        /// Root of the device tree.
        pub dev_root: LogicalAddress,
        /// Its generation.
        pub dev_root_generation: Generation,
        /// Root of the checksum tree.
        pub csum_root: LogicalAddress,
        /// Its generation.
        pub csum_root_generation: Generation,
        /// Size of all devices in bytes.
        pub total_bytes: u64,
        /// Bytes in use.
        pub bytes_used: u64,
        /// Number of devices.
        pub num_devices: u64,
        /// Reserved.
        pub unused_64: [u64; 4],
        /// Level of the root tree's root.
        pub tree_root_level: u8,
        /// Level of the chunk tree's root.
        pub chunk_root_level: u8,
        /// Level of the extent tree's root.
        pub extent_root_level: u8,
        /// Level of the top-level subvolume's root.
        pub fs_root_level: u8,
        /// Level of the device tree's root.
        pub dev_root_level: u8,
        /// Level of the checksum tree's root.
        pub csum_root_level: u8,
        /// Reserved.
        pub unused_8: [u8; 10],
    }
}

disk_struct! {
    /// A superblock as stored on disk, unchecked.
    pub struct RawSuperblock as RawSuperblockDisk = 4096 {
        /// Checksum of the rest of the superblock.
        pub csum: [u8; 32],
        /// The user-visible UUID.
        pub fsid: Uuid,
        /// Device offset of this copy.
        pub bytenr: PhysicalAddress,
        /// State flags.
        pub flags: SuperblockFlags,
        /// [`MAGIC`].
        pub magic: u64,
        /// The transaction that wrote this superblock.
        pub generation: Generation,
        /// Root of the root tree.
        pub root: LogicalAddress,
        /// Root of the chunk tree.
        pub chunk_root: LogicalAddress,
        /// Root of the log root tree, 0 without a log.
        pub log_root: LogicalAddress,
        /// Unused; always 0 (`__unused_log_root_transid`).
        pub log_root_transid: u64,
        /// Size of all devices in bytes.
        pub total_bytes: u64,
        /// Logical bytes in use.
        pub bytes_used: u64,
        /// Always 6.
        pub root_dir_objectid: u64,
        /// Number of devices.
        pub num_devices: u64,
        /// Bytes per sector, the unit of data.
        pub sector_size: u32,
        /// Bytes per tree block.
        pub node_size: u32,
        /// Equals the node size (`__unused_leafsize`).
        pub leaf_size: u32,
        /// The striping unit from before chunks had their own; equals the sector size.
        pub stripe_size: u32,
        /// Bytes used in the system chunk array.
        pub sys_chunk_array_size: u32,
        /// Generation of the chunk tree's root.
        pub chunk_root_generation: Generation,
        /// Features that readers and writers may ignore.
        pub compat_flags: u64,
        /// Features that writers must support.
        pub compat_ro_flags: CompatRoFeatures,
        /// Features that readers must support.
        pub incompat_flags: IncompatFeatures,
        /// Checksum algorithm.
        pub csum_type: u16,
        /// Level of the root tree's root.
        pub root_level: u8,
        /// Level of the chunk tree's root.
        pub chunk_root_level: u8,
        /// Level of the log root tree's root.
        pub log_root_level: u8,
        /// The device that holds this superblock.
        pub dev_item: DeviceItem,
        /// The label, NUL-terminated.
        pub label: [u8; 256],
        /// Generation of the v1 free-space cache; 0 or `u64::MAX` if there is none.
        pub cache_generation: u64,
        /// Generation at which the UUID tree was last known to be complete.
        pub uuid_tree_generation: u64,
        /// UUID in tree blocks, if METADATA_UUID is set.
        pub metadata_uuid: Uuid,
        /// Number of global roots (EXTENT_TREE_V2).
        pub nr_global_roots: u64,
        /// Reserved.
        pub reserved: [u64; 27],
        /// System chunks: pairs of key and chunk item.
        pub sys_chunk_array: [u8; 2048],
        /// Backups of recent roots.
        pub super_roots: [RootBackup; 4],
        /// Padding.
        pub padding: [u8; 565],
    }
}

/// The reason a superblock is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// The bytes violate the format.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The file system uses an unsupported feature.
    #[error(transparent)]
    Incompatible(#[from] Incompatible),
}

/// A validated superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The decoded fields.
    pub raw: RawSuperblock,
    checksum_type: ChecksumType,
}

/// The bytes of a superblock that is rewritten with a new log root each time.
///
/// **Invariant:** [`Superblock::parse`] accepts the bytes.
#[derive(Clone, Debug)]
pub struct EncodedSuperblock {
    bytes: [u8; SUPERBLOCK_SIZE],
    checksum_type: ChecksumType,
    sector_size: u32,
}

impl EncodedSuperblock {
    /// Sets the root of the log root tree and updates the checksum.
    ///
    /// # Errors
    /// An address or level that no reader accepts; the bytes are then unchanged.
    pub fn name_log(&mut self, root: LogicalAddress, level: u8) -> Result<(), SuperblockError> {
        check_root("log_root", root, "log_root_level", level, self.sector_size)?;
        let disk = RawSuperblockDisk::mut_from_bytes(&mut self.bytes)
            .expect("the array has the size of a superblock");
        (disk.log_root, disk.log_root_level) = (root.to_disk(), level);
        let sum = self.checksum_type.compute(&self.bytes[CHECKSUM_SIZE..]);
        self.bytes[..CHECKSUM_SIZE].copy_from_slice(sum.padded());
        Ok(())
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8; SUPERBLOCK_SIZE] {
        &self.bytes
    }
}

/// Checks the address and level of a tree root.
fn check_root(
    address_field: &'static str,
    address: LogicalAddress,
    level_field: &'static str,
    level: u8,
    sector_size: u32,
) -> Result<(), SuperblockError> {
    let bad = |field, value, why| Err(Corrupt::field("superblock", field, value, why).into());
    if level >= MAX_LEVEL {
        return bad(level_field, level.into(), "not below 8");
    }
    if !address.is_aligned(sector_size.into()) {
        return bad(address_field, address.0, "not a multiple of the sector size");
    }
    Ok(())
}

impl Superblock {
    /// Checks and decodes a superblock read from device offset `offset`.
    ///
    /// # Errors
    /// [`Corrupt::Magic`] if the bytes are not Btrfs, another [`Corrupt`] for a bad checksum or
    /// field, or [`Incompatible`] for an unknown checksum type or incompat bit.
    pub fn parse(bytes: &[u8], offset: PhysicalAddress) -> Result<Self, SuperblockError> {
        let superblock = Self::parse_unfinished(bytes, offset)?;
        match superblock.raw.magic {
            MAGIC => Ok(superblock),
            _ => Err(Corrupt::UnfinishedMkfs.into()),
        }
    }

    /// As [`Superblock::parse`], but accepts [`MAGIC_TEMPORARY`], too.
    ///
    /// # Errors
    /// As [`Superblock::parse`].
    pub fn parse_unfinished(bytes: &[u8], offset: PhysicalAddress) -> Result<Self, SuperblockError> {
        let superblock = Self::parse_unverified(bytes)?;
        let sum = superblock.checksum_type;
        let computed = sum.compute(&bytes[CHECKSUM_SIZE..SUPERBLOCK_SIZE]);
        let stored = sum.stored(bytes);
        if computed != stored {
            return Err(Corrupt::Checksum { what: "superblock", stored, computed }.into());
        }
        superblock.validate(offset)?;
        Ok(superblock)
    }

    /// Decodes without checking the checksum or the fields, as `dump-super --force` needs. Only the
    /// size, the magic and the checksum type must be right.
    ///
    /// # Errors
    /// As [`Superblock::parse`], for those three.
    pub fn parse_unverified(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let raw = RawSuperblock::parse(bytes)?;
        if raw.magic != MAGIC && raw.magic != MAGIC_TEMPORARY {
            return Err(Corrupt::Magic { found: raw.magic }.into());
        }
        let checksum_type = ChecksumType::from_raw(raw.csum_type)?;
        Ok(Self { raw, checksum_type })
    }

    /// Encodes the copy for device offset `offset`, with a fresh checksum.
    pub fn to_bytes(&self, offset: PhysicalAddress) -> [u8; SUPERBLOCK_SIZE] {
        let mut bytes = RawSuperblock { bytenr: offset, ..self.raw }.to_bytes();
        let sum = self.checksum_type.compute(&bytes[CHECKSUM_SIZE..]);
        bytes[..CHECKSUM_SIZE].copy_from_slice(sum.padded());
        bytes
    }

    /// Encodes as [`Superblock::to_bytes`] does and validates the result, so that the caller can
    /// set one log root after another.
    ///
    /// # Errors
    /// As [`Superblock::parse`].
    pub fn to_encoded(&self, offset: PhysicalAddress) -> Result<EncodedSuperblock, SuperblockError> {
        let bytes = self.to_bytes(offset);
        Self::parse_unfinished(&bytes, offset)?;
        let (checksum_type, sector_size) = (self.checksum_type, self.raw.sector_size);
        Ok(EncodedSuperblock { bytes, checksum_type, sector_size })
    }

    /// Runs the checks of `btrfs_validate_super` and those of feature bits.
    fn validate(&self, offset: PhysicalAddress) -> Result<(), SuperblockError> {
        let raw = &self.raw;
        let bad = |field, value, why| Err(Corrupt::field("superblock", field, value, why).into());

        if raw.bytenr != offset {
            return bad("bytenr", raw.bytenr.0, "not the offset it was read from");
        }
        let unsupported = raw.incompat_flags.unsupported();
        if unsupported != 0 {
            return Err(Incompatible::IncompatBits(unsupported).into());
        }
        let sector_size = raw.sector_size;
        if !sector_size.is_power_of_two() || !(4096..=65536).contains(&sector_size) {
            return bad("sector_size", sector_size.into(), "not a power of two from 4096 to 65536");
        }
        let node_size = raw.node_size;
        if !node_size.is_power_of_two() || !(sector_size..=65536).contains(&node_size) {
            return bad("node_size", node_size.into(), "not a power of two from the sector size to 65536");
        }
        if raw.leaf_size != node_size {
            return bad("leaf_size", raw.leaf_size.into(), "not the node size");
        }
        for (level_field, level, address_field, address) in [
            ("root_level", raw.root_level, "root", raw.root),
            ("chunk_root_level", raw.chunk_root_level, "chunk_root", raw.chunk_root),
            ("log_root_level", raw.log_root_level, "log_root", raw.log_root),
        ] {
            check_root(address_field, address, level_field, level, sector_size)?;
        }
        if raw.dev_item.fsid != self.metadata_uuid() {
            return Err(Corrupt::NodeFsid { expected: self.metadata_uuid(), found: raw.dev_item.fsid }.into());
        }
        if raw.bytes_used < 6 * u64::from(node_size) {
            return bad("bytes_used", raw.bytes_used, "less than six tree blocks");
        }
        if !raw.stripe_size.is_power_of_two() {
            return bad("stripe_size", raw.stripe_size.into(), "not a power of two");
        }
        if raw.num_devices == 0 {
            return bad("num_devices", 0, "no devices");
        }
        if raw.generation < raw.chunk_root_generation {
            return bad("chunk_root_generation", raw.chunk_root_generation.0, "newer than the generation");
        }
        if raw.cache_generation != u64::MAX && raw.generation.0 < raw.cache_generation {
            return bad("cache_generation", raw.cache_generation, "newer than the generation");
        }
        if raw.compat_ro_flags.contains(CompatRoFeatures::BLOCK_GROUP_TREE)
            && !(raw.compat_ro_flags.contains(CompatRoFeatures::FREE_SPACE_TREE_VALID)
                && raw.incompat_flags.contains(IncompatFeatures::NO_HOLES))
        {
            return bad(
                "compat_ro_flags",
                raw.compat_ro_flags.bits(),
                "a block-group tree needs a valid free-space tree and NO_HOLES",
            );
        }
        let size = raw.sys_chunk_array_size as usize;
        if size > SYSTEM_CHUNK_ARRAY_SIZE {
            return bad("sys_chunk_array_size", size as u64, "more than 2048");
        }
        if size < Key::SIZE + ChunkItem::size_on_disk(1) {
            return bad("sys_chunk_array_size", size as u64, "less than one chunk");
        }
        self.system_chunks()?;
        Ok(())
    }

    /// Returns the checksum algorithm.
    #[inline]
    pub fn checksum_type(&self) -> ChecksumType {
        self.checksum_type
    }

    /// Returns the UUID in tree blocks and device items.
    pub fn metadata_uuid(&self) -> Uuid {
        if self.raw.incompat_flags.contains(IncompatFeatures::METADATA_UUID) {
            self.raw.metadata_uuid
        } else {
            self.raw.fsid
        }
    }

    /// Returns the parameters that block readers need.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            node_size: self.raw.node_size,
            sector_size: self.raw.sector_size,
            checksum_type: self.checksum_type,
            incompat: self.raw.incompat_flags,
            compat_ro: self.raw.compat_ro_flags,
            metadata_uuid: self.metadata_uuid(),
            generation: self.raw.generation,
        }
    }

    /// Returns the label up to its NUL.
    pub fn label(&self) -> &[u8] {
        let end = self.raw.label.iter().position(|&byte| byte == 0).unwrap_or(LABEL_SIZE);
        &self.raw.label[..end]
    }

    /// Decodes the system chunks, which hold the chunk tree.
    ///
    /// # Errors
    /// A fault in the array or in a chunk.
    pub fn system_chunks(&self) -> Result<Vec<(LogicalAddress, ChunkItem)>, Corrupt> {
        let size = (self.raw.sys_chunk_array_size as usize).min(SYSTEM_CHUNK_ARRAY_SIZE);
        let mut rest = &self.raw.sys_chunk_array[..size];
        let mut chunks = Vec::new();
        while !rest.is_empty() {
            let (key, after_key) = Key::parse_prefix(rest)?;
            if key.item_type != ItemType::CHUNK_ITEM {
                return Err(Corrupt::field(
                    "system chunk array",
                    "item type",
                    key.item_type.0.into(),
                    "not a chunk item",
                ));
            }
            let (chunk, after_chunk) = ChunkItem::parse_prefix(after_key)?;
            chunk
                .validate(LogicalAddress(key.offset), &self.geometry())
                .map_err(|reason| reason.in_item(chunks.len(), key))?;
            if !chunk.flags.contains(crate::items::block_group::BlockGroupFlags::SYSTEM) {
                return Err(Corrupt::field(
                    "system chunk array",
                    "chunk flags",
                    chunk.flags.bits(),
                    "not a system chunk",
                ));
            }
            chunks.push((LogicalAddress(key.offset), chunk));
            rest = after_chunk;
        }
        Ok(chunks)
    }

    /// Returns the root and level of the log root tree, if there is a log.
    pub fn log_root(&self) -> Option<(LogicalAddress, u8)> {
        (self.raw.log_root.0 != 0).then_some((self.raw.log_root, self.raw.log_root_level))
    }

    /// The trees whose roots the backups hold, besides the root tree and the chunk tree.
    pub const BACKED_UP_TREES: [TreeId; 4] = [
        crate::objectid::EXTENT_TREE,
        crate::objectid::FS_TREE,
        crate::objectid::DEV_TREE,
        crate::objectid::CSUM_TREE,
    ];
}
