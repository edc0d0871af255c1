//! The superblock of ext2, ext3 and ext4, and the features that it names.
//!
//! Owns [`ExtSuperblock`]. Parsing checks all fields that arithmetic depends on.
//!
//! **Invariants** of a parsed superblock
//! - The block size is a power of two from 1 KiB to 64 KiB, and a cluster has whole blocks.
//! - Blocks of a group fit one bitmap block; inodes of a group fill whole or partial table blocks.
//! - The number of groups fits 32 bits, and so do inodes.
//!
//! Source: `Documentation/filesystems/ext4/super.rst`.

use super::checksum::crc;
use super::fields::{split_u64, u16_at, u32_at};

/// Byte offset of the superblock on the device.
pub(crate) const SUPERBLOCK_OFFSET: u64 = 1024;
/// Bytes of the superblock.
pub(crate) const SUPERBLOCK_BYTES: usize = 1024;
const MAGIC: u16 = 0xef53;

/// Feature bits that readers must know.
pub(crate) mod incompat {
    pub(crate) const COMPRESSION: u32 = 0x1;
    pub(crate) const FILETYPE: u32 = 0x2;
    pub(crate) const RECOVER: u32 = 0x4;
    pub(crate) const JOURNAL_DEV: u32 = 0x8;
    pub(crate) const META_BG: u32 = 0x10;
    pub(crate) const EXTENTS: u32 = 0x40;
    pub(crate) const BITS_64: u32 = 0x80;
    pub(crate) const MMP: u32 = 0x100;
    pub(crate) const FLEX_BG: u32 = 0x200;
    pub(crate) const EA_INODE: u32 = 0x400;
    pub(crate) const DIRDATA: u32 = 0x1000;
    pub(crate) const CSUM_SEED: u32 = 0x2000;
    pub(crate) const LARGEDIR: u32 = 0x4000;
    pub(crate) const INLINE_DATA: u32 = 0x8000;
    pub(crate) const ENCRYPT: u32 = 0x10000;
    pub(crate) const CASEFOLD: u32 = 0x20000;
    /// All that a conversion can read.
    pub(crate) const READABLE: u32 = FILETYPE
        | RECOVER
        | META_BG
        | EXTENTS
        | BITS_64
        | MMP
        | FLEX_BG
        | EA_INODE
        | CSUM_SEED
        | LARGEDIR
        | INLINE_DATA
        | ENCRYPT
        | CASEFOLD;
}

/// Feature bits that writers must know. A conversion rewrites all metadata, so it needs them, too.
pub(crate) mod ro_compat {
    pub(crate) const SPARSE_SUPER: u32 = 0x1;
    pub(crate) const GDT_CSUM: u32 = 0x10;
    pub(crate) const BIGALLOC: u32 = 0x200;
    pub(crate) const METADATA_CSUM: u32 = 0x400;
    pub(crate) const PROJECT: u32 = 0x2000;
    pub(crate) const ORPHAN_PRESENT: u32 = 0x10000;
    /// SPARSE_SUPER, LARGE_FILE, BTREE_DIR, HUGE_FILE, GDT_CSUM, DIR_NLINK, EXTRA_ISIZE, QUOTA,
    /// BIGALLOC, METADATA_CSUM, READONLY, PROJECT, VERITY and ORPHAN_PRESENT.
    pub(crate) const KNOWN: u32 =
        0x7f | 0x100 | BIGALLOC | METADATA_CSUM | 0x1000 | PROJECT | 0x8000 | ORPHAN_PRESENT;
}

/// Optional features.
pub(crate) mod compat {
    pub(crate) const HAS_JOURNAL: u32 = 0x4;
    pub(crate) const SPARSE_SUPER2: u32 = 0x200;
    pub(crate) const ORPHAN_FILE: u32 = 0x1000;
}

/// The superblock, parsed and checked.
#[derive(Clone, Debug)]
pub(crate) struct ExtSuperblock {
    pub(crate) inodes: u32,
    pub(crate) blocks: u64,
    pub(crate) first_data_block: u64,
    /// Bytes of a block.
    pub(crate) block_size: u64,
    /// Blocks of a cluster, the unit of the block bitmap.
    pub(crate) cluster_blocks: u64,
    pub(crate) blocks_per_group: u64,
    pub(crate) inodes_per_group: u32,
    pub(crate) free_blocks: u64,
    pub(crate) free_inodes: u32,
    pub(crate) state: u16,
    /// The first inode that is not reserved.
    pub(crate) first_inode: u32,
    /// Bytes of an inode.
    pub(crate) inode_size: usize,
    pub(crate) compat: u32,
    pub(crate) incompat: u32,
    pub(crate) ro_compat: u32,
    pub(crate) uuid: [u8; 16],
    pub(crate) label: Vec<u8>,
    pub(crate) reserved_gdt_blocks: u64,
    pub(crate) last_orphan: u32,
    /// Bytes of a group descriptor.
    pub(crate) descriptor_size: usize,
    pub(crate) first_meta_bg: u64,
    pub(crate) mmp_block: u64,
    /// The inode of the journal; 0 if there is none here.
    pub(crate) journal_inode: u32,
    /// The only groups with copies of the superblock, with SPARSE_SUPER2.
    pub(crate) backup_groups: [u32; 2],
    /// Inodes that have no name: quota files and the orphan file.
    pub(crate) nameless: Vec<u32>,
    /// The state that checksums begin with, if metadata has any.
    pub(crate) seed: Option<u32>,
}

/// The sizes and counts that arithmetic depends on.
struct Shape {
    inodes: u32,
    blocks: u64,
    first_data_block: u64,
    block_size: u64,
    cluster_blocks: u64,
    blocks_per_group: u64,
    inodes_per_group: u32,
}

impl Shape {
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let bad = |text: String| Err(text);
        let [log_block, log_cluster] = [0x18, 0x1c].map(|at| u32_at(bytes, at));
        if log_block > 6 {
            return bad(format!("a block size of 2^{log_block} KiB"));
        }
        let block_size = 1024u64 << log_block;
        let [incompat, ro_compat] = [0x60, 0x64].map(|at| u32_at(bytes, at));
        let has_bigalloc = ro_compat & ro_compat::BIGALLOC != 0;
        let cluster_blocks = match (has_bigalloc, log_cluster.checked_sub(log_block)) {
            (false, _) => 1,
            (true, Some(ratio)) if ratio <= 16 => 1u64 << ratio,
            _ => return bad(format!("a cluster size of 2^{log_cluster} KiB")),
        };
        let high = if incompat & incompat::BITS_64 != 0 { u64::from(u32_at(bytes, 0x150)) } else { 0 };
        let blocks = u64::from(u32_at(bytes, 0x4)) | high << 32;
        let first_data_block = u64::from(u32_at(bytes, 0x14));
        let blocks_per_group = u64::from(u32_at(bytes, 0x20));
        let [inodes, inodes_per_group] = [0, 0x28].map(|at| u32_at(bytes, at));
        let bits = block_size * 8;
        if blocks_per_group == 0
            || !blocks_per_group.is_multiple_of(8 * cluster_blocks)
            || blocks_per_group / cluster_blocks > bits
        {
            return bad(format!("{blocks_per_group} blocks in a group"));
        }
        if inodes_per_group == 0 || !inodes_per_group.is_multiple_of(8) || u64::from(inodes_per_group) > bits
        {
            return bad(format!("{inodes_per_group} inodes in a group"));
        }
        if first_data_block != u64::from(log_block == 0 && cluster_blocks == 1) {
            return bad(format!("{first_data_block} as the first data block"));
        }
        let size = blocks.checked_mul(block_size);
        if blocks <= first_data_block || size.is_none_or(|size| size > i64::MAX as u64) {
            return bad(format!("{blocks} blocks"));
        }
        let groups = (blocks - first_data_block).div_ceil(blocks_per_group);
        if u64::from(inodes) != groups.saturating_mul(inodes_per_group.into()) {
            return bad(format!("{inodes} inodes in {groups} groups of {inodes_per_group}"));
        }
        Ok(Self {
            inodes,
            blocks,
            first_data_block,
            block_size,
            cluster_blocks,
            blocks_per_group,
            inodes_per_group,
        })
    }
}

impl ExtSuperblock {
    /// Parses the 1,024 bytes at [`SUPERBLOCK_OFFSET`].
    ///
    /// # Errors
    /// The first fault, in words. `Err(None)` if there is no magic number at all.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Option<String>> {
        if bytes.len() < SUPERBLOCK_BYTES || u16_at(bytes, 0x38) != MAGIC {
            return Err(None);
        }
        let shape = Shape::parse(bytes).map_err(Some)?;
        Self::with_shape(bytes, shape).map_err(Some)
    }

    fn with_shape(bytes: &[u8], shape: Shape) -> Result<Self, String> {
        let bad = |text: String| Err(text);
        let [compat, incompat, ro_compat] = [0x5c, 0x60, 0x64].map(|at| u32_at(bytes, at));
        let is_64 = incompat & incompat::BITS_64 != 0;
        let block_size = shape.block_size;
        let is_old = u32_at(bytes, 0x4c) == 0;
        let inode_size = if is_old { 128 } else { usize::from(u16_at(bytes, 0x58)) };
        if inode_size < 128 || !inode_size.is_power_of_two() || inode_size as u64 > block_size {
            return bad(format!("an inode size of {inode_size} bytes"));
        }
        let descriptor_size = if is_64 { usize::from(u16_at(bytes, 0xfe)) } else { 32 };
        if descriptor_size < if is_64 { 64 } else { 32 }
            || !descriptor_size.is_power_of_two()
            || descriptor_size as u64 > block_size
        {
            return bad(format!("a descriptor size of {descriptor_size} bytes"));
        }
        let has_csums = ro_compat & ro_compat::METADATA_CSUM != 0;
        let uuid: [u8; 16] = bytes[0x68..0x78].try_into().expect("16 bytes");
        if has_csums && u32_at(bytes, 0x3fc) != crc(!0, &bytes[..0x3fc]) {
            return bad("the checksum does not match".to_owned());
        }
        let seed = match incompat & incompat::CSUM_SEED {
            0 => crc(!0, &uuid),
            _ => u32_at(bytes, 0x270),
        };
        let label = &bytes[0x78..0x88];
        let label = label.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        let orphan_file = if compat & compat::ORPHAN_FILE != 0 { u32_at(bytes, 0x280) } else { 0 };
        let nameless = [0x240, 0x244, 0x26c].map(|at| u32_at(bytes, at)).into_iter().chain([orphan_file]);
        Ok(Self {
            inodes: shape.inodes,
            blocks: shape.blocks,
            first_data_block: shape.first_data_block,
            block_size,
            cluster_blocks: shape.cluster_blocks,
            blocks_per_group: shape.blocks_per_group,
            inodes_per_group: shape.inodes_per_group,
            free_blocks: if is_64 { split_u64(bytes, 0xc, 0x158) } else { u32_at(bytes, 0xc).into() },
            free_inodes: u32_at(bytes, 0x10),
            state: u16_at(bytes, 0x3a),
            first_inode: if is_old { 11 } else { u32_at(bytes, 0x54) },
            inode_size,
            compat,
            incompat,
            ro_compat,
            uuid,
            label,
            reserved_gdt_blocks: u16_at(bytes, 0xce).into(),
            last_orphan: u32_at(bytes, 0xe8),
            descriptor_size,
            first_meta_bg: u32_at(bytes, 0x104).into(),
            mmp_block: split_u64(bytes, 0x168, 0x16c),
            journal_inode: u32_at(bytes, 0xe0),
            backup_groups: [u32_at(bytes, 0x24c), u32_at(bytes, 0x250)],
            nameless: nameless.filter(|number| *number != 0).collect(),
            seed: has_csums.then_some(seed),
        })
    }

    /// Whether a feature of [`incompat`] is on.
    pub(crate) fn has(&self, feature: u32) -> bool {
        self.incompat & feature != 0
    }

    /// The number of block groups.
    pub(crate) fn groups(&self) -> u32 {
        (self.blocks - self.first_data_block).div_ceil(self.blocks_per_group) as u32
    }

    /// The first block of a group.
    pub(crate) fn group_start(&self, group: u32) -> u64 {
        self.first_data_block + u64::from(group) * self.blocks_per_group
    }

    /// The first block behind a group.
    pub(crate) fn group_end(&self, group: u32) -> u64 {
        (self.group_start(group) + self.blocks_per_group).min(self.blocks)
    }

    /// Bytes of the file system.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks * self.block_size
    }

    /// Group descriptors in a block.
    pub(crate) fn descriptors_per_block(&self) -> u64 {
        self.block_size / self.descriptor_size as u64
    }

    /// Blocks of all group descriptors.
    pub(crate) fn descriptor_blocks(&self) -> u64 {
        u64::from(self.groups()).div_ceil(self.descriptors_per_block())
    }

    /// Blocks of a group's inode table.
    pub(crate) fn table_blocks(&self) -> u64 {
        (u64::from(self.inodes_per_group) * self.inode_size as u64).div_ceil(self.block_size)
    }

    /// Whether a group has a copy of the superblock.
    pub(crate) fn has_superblock(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.compat & compat::SPARSE_SUPER2 != 0 {
            return self.backup_groups.contains(&group);
        }
        if group == 1 || self.ro_compat & ro_compat::SPARSE_SUPER == 0 {
            return true;
        }
        let is_power_of = |base: u32| {
            let mut power = u64::from(base);
            while power < group.into() {
                power *= u64::from(base);
            }
            power == group.into()
        };
        [3, 5, 7].into_iter().any(is_power_of)
    }

    /// Returns the name of the variant, as people call it.
    pub(crate) fn variant(&self) -> &'static str {
        let newer = incompat::EXTENTS | incompat::BITS_64 | incompat::FLEX_BG | incompat::INLINE_DATA;
        let is_ext4 = self.has(newer) || self.ro_compat & !0x7 != 0;
        match is_ext4 {
            true => "ext4",
            false if self.compat & compat::HAS_JOURNAL != 0 => "ext3",
            false => "ext2",
        }
    }

    /// Returns why the file system cannot be converted, if a feature is the reason.
    pub(crate) fn unsupported(&self) -> Option<String> {
        if self.block_size < 4096 {
            return Some(format!(
                "blocks of {} bytes: Btrfs needs blocks of 4096 bytes or more, so that data can stay where it is",
                self.block_size
            ));
        }
        let named = [
            (incompat::JOURNAL_DEV, "it is the journal of another file system"),
            (incompat::COMPRESSION, "it has the feature compression, which no kernel ever had"),
            (incompat::DIRDATA, "it has the feature dirdata, which belongs to Lustre"),
        ];
        if let Some((_, text)) = named.iter().find(|(bit, _)| self.has(*bit)) {
            return Some((*text).to_owned());
        }
        let unknown = self.incompat & !incompat::READABLE;
        if unknown != 0 {
            return Some(format!("it has unknown features (incompat {unknown:#x})"));
        }
        let unknown = self.ro_compat & !ro_compat::KNOWN;
        (unknown != 0).then(|| format!("it has unknown features (ro_compat {unknown:#x})"))
    }

    /// Returns why the file system has to be checked or mounted first, if so. A journal that needs
    /// a replay is no reason.
    pub(crate) fn unclean(&self) -> Option<&'static str> {
        const VALID: u16 = 1;
        const ERRORS: u16 = 2;
        if self.state & ERRORS != 0 {
            return Some("its superblock says that it has errors: run e2fsck -f on it");
        }
        if self.state & VALID == 0 {
            return Some("it was not unmounted cleanly: run e2fsck -f on it");
        }
        if self.last_orphan != 0 || self.ro_compat & ro_compat::ORPHAN_PRESENT != 0 {
            return Some("it has deleted files that are not freed yet: mount it once, or run e2fsck on it");
        }
        None
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small file system of one group: 4 KiB blocks, 128 inodes.
    pub(crate) fn sample() -> Vec<u8> {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        put(0x0, 128);
        put(0x4, 4096);
        put(0x18, 2);
        put(0x1c, 2);
        put(0x20, 32768);
        put(0x24, 32768);
        put(0x28, 128);
        put(0x38, 0x0001_ef53);
        put(0x4c, 1);
        put(0x54, 11);
        put(0x58, 256);
        put(0x60, incompat::FILETYPE | incompat::EXTENTS);
        put(0x64, ro_compat::SPARSE_SUPER);
        bytes
    }

    #[test]
    fn fields_are_checked() {
        let parsed = ExtSuperblock::parse(&sample()).unwrap();
        assert_eq!((parsed.groups(), parsed.table_blocks(), parsed.variant()), (1, 8, "ext4"));
        assert_eq!((parsed.unsupported(), parsed.unclean()), (None, None));
        for (at, value) in [
            (0x0, 0u32),
            (0x4, 0),
            (0x18, 7),
            (0x20, 0),
            (0x20, 32769),
            (0x28, 0),
            (0x28, 12),
            (0x14, 1),
            (0x58, 100),
        ] {
            let mut bytes = sample();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            assert!(matches!(ExtSuperblock::parse(&bytes), Err(Some(_))), "{at:#x} {value}");
        }
        assert!(matches!(ExtSuperblock::parse(&[0; 1024]), Err(None)));
        assert!(matches!(ExtSuperblock::parse(&[]), Err(None)));
    }

    #[test]
    fn any_damage_is_an_error_or_a_superblock() {
        for at in 0..SUPERBLOCK_BYTES {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = sample();
                bytes[at] = value;
                let Ok(parsed) = ExtSuperblock::parse(&bytes) else { continue };
                let _ = (parsed.groups(), parsed.bytes(), parsed.table_blocks(), parsed.unsupported());
                assert!(parsed.descriptor_blocks() > 0 && parsed.group_end(0) <= parsed.blocks);
            }
        }
    }

    #[test]
    fn copies_of_the_superblock_lie_in_sparse_groups() {
        let parsed = ExtSuperblock::parse(&sample()).unwrap();
        let with: Vec<_> = (0..50).filter(|group| parsed.has_superblock(*group)).collect();
        assert_eq!(with, [0, 1, 3, 5, 7, 9, 25, 27, 49]);
    }
}
