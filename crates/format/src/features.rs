//! Feature bits of the superblock (`include/uapi/linux/btrfs.h`).
//!
//! Owns [`IncompatFeatures`], [`CompatRoFeatures`] and [`SuperblockFlags`]. An unknown incompat bit
//! forbids mounting; an unknown compat_ro bit forbids writing.

macro_rules! on_disk_flags {
    ($($name:ident),*) => { $(
        impl $crate::disk::OnDisk for $name {
            type Disk = zerocopy::little_endian::U64;
            fn from_disk(disk: &zerocopy::little_endian::U64) -> Self {
                Self::from_bits_retain(disk.get())
            }
            fn to_disk(&self) -> zerocopy::little_endian::U64 {
                zerocopy::little_endian::U64::new(self.bits())
            }
        }
    )* };
}
pub(crate) use on_disk_flags;

bitflags::bitflags! {
    /// Features that a reader must support.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct IncompatFeatures: u64 {
        /// Back references of mixed kinds (all file systems since 2009).
        const MIXED_BACKREF = 1 << 0;
        /// A default subvolume other than the top level was once set.
        const DEFAULT_SUBVOL = 1 << 1;
        /// Block groups hold both data and metadata.
        const MIXED_GROUPS = 1 << 2;
        /// Some extent is compressed with LZO.
        const COMPRESS_LZO = 1 << 3;
        /// Some extent is compressed with zstd.
        const COMPRESS_ZSTD = 1 << 4;
        /// Metadata blocks larger than a page.
        const BIG_METADATA = 1 << 5;
        /// Extended inode references.
        const EXTENDED_IREF = 1 << 6;
        /// RAID5 or RAID6 block groups.
        const RAID56 = 1 << 7;
        /// Tree blocks are METADATA_ITEMs with their level in the key.
        const SKINNY_METADATA = 1 << 8;
        /// Holes need no file extent item.
        const NO_HOLES = 1 << 9;
        /// Tree blocks carry a different UUID than the user-visible one.
        const METADATA_UUID = 1 << 10;
        /// RAID1C3 or RAID1C4 block groups.
        const RAID1C34 = 1 << 11;
        /// Zoned mode.
        const ZONED = 1 << 12;
        /// The second version of the extent tree (experimental, never finished).
        const EXTENT_TREE_V2 = 1 << 13;
        /// The RAID stripe tree.
        const RAID_STRIPE_TREE = 1 << 14;
        /// Simple quotas.
        const SIMPLE_QUOTA = 1 << 16;
        /// The remap tree: relocated block groups keep their addresses (experimental).
        const REMAP_TREE = 1 << 17;
        const _ = !0;
    }

    /// Features that only a writer must support.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct CompatRoFeatures: u64 {
        /// There is a free-space tree.
        const FREE_SPACE_TREE = 1 << 0;
        /// The free-space tree is valid.
        const FREE_SPACE_TREE_VALID = 1 << 1;
        /// Some file has fs-verity data.
        const VERITY = 1 << 2;
        /// Block groups have their own tree.
        const BLOCK_GROUP_TREE = 1 << 3;
        const _ = !0;
    }

    /// Flags of the superblock. Node headers share the lowest two.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct SuperblockFlags: u64 {
        /// Written out (node headers).
        const WRITTEN = 1 << 0;
        /// Under relocation (node headers).
        const RELOC = 1 << 1;
        /// The kernel encountered an error.
        const ERROR = 1 << 2;
        /// A seed device: read-only, a base for other file systems.
        const SEEDING = 1 << 32;
        /// A metadata dump (`btrfs-image`): no data.
        const METADUMP = 1 << 33;
        /// A metadata dump, version 2.
        const METADUMP_V2 = 1 << 34;
        /// `btrfstune` was interrupted while changing the UUID.
        const CHANGING_FSID = 1 << 35;
        /// `btrfstune` was interrupted while changing the metadata UUID.
        const CHANGING_FSID_V2 = 1 << 36;
        /// `btrfstune` was interrupted while converting to a block-group tree.
        const CHANGING_BG_TREE = 1 << 38;
        /// `btrfstune` was interrupted while changing data checksums.
        const CHANGING_DATA_CSUM = 1 << 39;
        /// `btrfstune` was interrupted while changing metadata checksums.
        const CHANGING_META_CSUM = 1 << 40;
        const _ = !0;
    }
}

on_disk_flags!(IncompatFeatures, CompatRoFeatures, SuperblockFlags);

impl SuperblockFlags {
    /// Whether the file system was restored from a dump of metadata, and so lacks its data.
    pub fn is_metadata_dump(self) -> bool {
        self.intersects(Self::METADUMP.union(Self::METADUMP_V2))
    }
}

impl IncompatFeatures {
    /// The features that this code can read. ZONED, EXTENT_TREE_V2, RAID_STRIPE_TREE and REMAP_TREE
    /// are known but not supported. A 6.18 kernel built without experimental features refuses the
    /// latter three as well.
    pub const SUPPORTED: Self = Self::MIXED_BACKREF
        .union(Self::DEFAULT_SUBVOL)
        .union(Self::MIXED_GROUPS)
        .union(Self::COMPRESS_LZO)
        .union(Self::COMPRESS_ZSTD)
        .union(Self::BIG_METADATA)
        .union(Self::EXTENDED_IREF)
        .union(Self::RAID56)
        .union(Self::SKINNY_METADATA)
        .union(Self::NO_HOLES)
        .union(Self::METADATA_UUID)
        .union(Self::RAID1C34)
        .union(Self::SIMPLE_QUOTA);

    /// Returns the bits that this code cannot read.
    pub const fn unsupported(self) -> u64 {
        self.bits() & !Self::SUPPORTED.bits()
    }
}

impl SuperblockFlags {
    /// Returns the flags of changes that were interrupted. The kernel refuses such a file system.
    pub const fn unfinished(self) -> Self {
        self.intersection(
            Self::CHANGING_FSID
                .union(Self::CHANGING_FSID_V2)
                .union(Self::CHANGING_BG_TREE)
                .union(Self::CHANGING_DATA_CSUM)
                .union(Self::CHANGING_META_CSUM),
        )
    }

    /// Returns those of [`Self::unfinished`] after which some tree blocks have the old UUID or
    /// checksum, and others the new one.
    pub const fn mixed_blocks(self) -> Self {
        self.intersection(Self::CHANGING_FSID.union(Self::CHANGING_FSID_V2).union(Self::CHANGING_META_CSUM))
    }

    /// Returns the names of the flags, for messages.
    pub fn names(self) -> String {
        self.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    }
}

impl CompatRoFeatures {
    /// The features that this code can write.
    pub const SUPPORTED: Self = Self::FREE_SPACE_TREE
        .union(Self::FREE_SPACE_TREE_VALID)
        .union(Self::VERITY)
        .union(Self::BLOCK_GROUP_TREE);

    /// Returns the bits that forbid writing.
    pub const fn unsupported(self) -> u64 {
        self.bits() & !Self::SUPPORTED.bits()
    }
}
