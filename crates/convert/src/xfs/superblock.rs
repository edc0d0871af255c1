//! The superblock of XFS, and the features that it names.
//!
//! Owns [`XfsSuperblock`]. Parsing checks all fields that arithmetic depends on.
//!
//! **Invariants** of a parsed superblock
//! - Sizes of blocks, sectors and inodes are powers of two within the bounds of the format, and
//!   their logarithms agree with them.
//! - Every allocation group has at least 64 blocks, and a block number fits its bits.
//!
//! Source: "XFS Algorithms & Data Structures", chapter "Superblocks".

use super::fields::{is_intact, u16_at, u32_at, u64_at};

/// Bytes that the fields of a superblock take.
pub(crate) const SUPERBLOCK_BYTES: usize = 512;
const MAGIC: &[u8] = b"XFSB";
/// The place of the checksum.
const CRC: usize = 224;
/// A block or inode that is none.
pub(crate) const NULL: u64 = u64::MAX;

/// Bits of the version number.
mod version {
    pub(crate) const QUOTA: u16 = 0x40;
    pub(crate) const SHARED: u16 = 0x200;
    pub(crate) const DIRV2: u16 = 0x2000;
    pub(crate) const ASCII_CI: u16 = 0x4000;
    pub(crate) const MORE: u16 = 0x8000;
}

/// Bits of the second word of features, of version 4.
mod more {
    pub(crate) const LAZY_COUNTS: u32 = 0x2;
    pub(crate) const ATTR2: u32 = 0x8;
    pub(crate) const PROJECT32: u32 = 0x80;
    pub(crate) const CRC: u32 = 0x100;
    pub(crate) const KINDS: u32 = 0x200;
    pub(crate) const KNOWN: u32 = LAZY_COUNTS | ATTR2 | PROJECT32 | CRC | KINDS;
}

/// Features of version 5 that writers must know.
mod ro_compat {
    pub(crate) const FREE_INODES: u32 = 0x1;
    pub(crate) const REVERSE_MAP: u32 = 0x2;
    pub(crate) const REFLINK: u32 = 0x4;
    pub(crate) const INODE_COUNTS: u32 = 0x8;
    pub(crate) const KNOWN: u32 = FREE_INODES | REVERSE_MAP | REFLINK | INODE_COUNTS;
}

/// Features of version 5 that readers must know.
mod incompat {
    pub(crate) const KINDS: u32 = 0x1;
    pub(crate) const SPARSE_INODES: u32 = 0x2;
    pub(crate) const META_UUID: u32 = 0x4;
    pub(crate) const LONG_TIMES: u32 = 0x8;
    pub(crate) const NEEDS_REPAIR: u32 = 0x10;
    pub(crate) const LONG_COUNTS: u32 = 0x20;
    pub(crate) const EXCHANGE: u32 = 0x40;
    pub(crate) const PARENTS: u32 = 0x80;
    pub(crate) const META_TREE: u32 = 0x100;
    pub(crate) const ZONED: u32 = 0x200;
    pub(crate) const READABLE: u32 =
        KINDS | SPARSE_INODES | META_UUID | LONG_TIMES | LONG_COUNTS | EXCHANGE | PARENTS;
}

/// A superblock.
#[derive(Clone, Debug)]
pub(crate) struct XfsSuperblock {
    pub(crate) block_size: u64,
    pub(crate) blocks: u64,
    pub(crate) uuid: [u8; 16],
    /// The UUID in metadata, which stays when the other one changes.
    pub(crate) meta_uuid: [u8; 16],
    pub(crate) label: Vec<u8>,
    /// The first block of the log, as a number with its group; 0 if the log is elsewhere.
    pub(crate) log_start: u64,
    pub(crate) log_blocks: u32,
    pub(crate) root: u64,
    pub(crate) group_blocks: u32,
    pub(crate) groups: u32,
    pub(crate) sector_size: usize,
    pub(crate) inode_size: usize,
    /// The logarithm of the inodes in a block.
    pub(crate) inodes_log: u32,
    /// The logarithm of the blocks in a group, rounded up.
    pub(crate) group_log: u32,
    pub(crate) inodes: u64,
    pub(crate) free_inodes: u64,
    pub(crate) free_blocks: u64,
    /// Bytes of a directory's blocks.
    pub(crate) directory_block: usize,
    /// Inodes of the file system itself, which have no names.
    pub(crate) nameless: Vec<u64>,
    /// How many of them hold quotas.
    pub(crate) quotas: u64,
    pub(crate) has_lazy_counts: bool,
    /// Whether directories know the kind of each entry.
    pub(crate) has_kinds: bool,
    /// Whether names are the same in upper and lower case.
    pub(crate) has_casefold: bool,
    /// Whether the version is 5: metadata has checksums and says what it is.
    pub(crate) is_v5: bool,
    has_realtime: bool,
    is_unfinished: bool,
    version: u16,
    features2: u32,
    pub(crate) ro_compat: u32,
    pub(crate) incompat: u32,
}

/// The sizes that everything else depends on, and their logarithms.
fn check_sizes(bytes: &[u8]) -> Result<(), String> {
    let log_of = |value: u32, least: u32, most: u32, log: u8, what: &str| match value.is_power_of_two()
        && (least..=most).contains(&value)
        && 1 << log.min(31) == value
    {
        true => Ok(()),
        false => Err(format!("{what} of {value} bytes")),
    };
    let block = u32_at(bytes, 4);
    log_of(block, 512, 65536, bytes[120], "a block size")?;
    log_of(u16_at(bytes, 102).into(), 512, 32768, bytes[121], "a sector size")?;
    log_of(u16_at(bytes, 104).into(), 256, 2048, bytes[122], "an inode size")?;
    let inodes = u16_at(bytes, 106);
    if u32::from(inodes) * u32::from(u16_at(bytes, 104)) != block || 1 << bytes[123].min(15) != inodes {
        return Err(format!("{inodes} inodes in a block"));
    }
    if u32::from(bytes[192]) + u32::from(bytes[120]) > 16 {
        return Err(format!("directory blocks of 2^{} blocks", bytes[192]));
    }
    let (group, groups, blocks) = (u32_at(bytes, 84), u32_at(bytes, 88), u64_at(bytes, 8));
    let log = u32::from(bytes[124]);
    if group < 64 || log > 31 || group > 1 << log || group <= 1 << log >> 1 {
        return Err(format!("{group} blocks in an allocation group"));
    }
    // Nothing shorter than a group's headers and trees may be the last one.
    let before = u64::from(groups.saturating_sub(1)) * u64::from(group);
    if groups == 0 || blocks < before + 32 || blocks > before + u64::from(group) {
        return Err(format!("{blocks} blocks in {groups} allocation groups of {group}"));
    }
    if blocks.checked_mul(block.into()).is_none_or(|bytes| bytes > i64::MAX as u64) {
        return Err(format!("{blocks} blocks"));
    }
    Ok(())
}

impl XfsSuperblock {
    /// Whether bytes begin with the magic number of XFS.
    pub(crate) fn has_magic(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Returns the bytes of a sector, if the superblock is one at all.
    pub(crate) fn sector_of(bytes: &[u8]) -> Option<usize> {
        let size = usize::from(u16_at(bytes, 102));
        (Self::has_magic(bytes) && (512..=32768).contains(&size) && size.is_power_of_two()).then_some(size)
    }

    /// Parses the first sector of an allocation group.
    ///
    /// # Errors
    /// The first fault, in words.
    pub(crate) fn parse(sector: &[u8]) -> Result<Self, String> {
        let Some(sector_size) = Self::sector_of(sector).filter(|size| sector.len() >= *size) else {
            return Err("no magic number, or an impossible size of sectors".to_owned());
        };
        let version = u16_at(sector, 100);
        let is_v5 = version & 0xf == 5;
        if is_v5 && !is_intact(&sector[..sector_size], CRC) {
            return Err("a checksum that does not match".to_owned());
        }
        if !matches!(version & 0xf, 4 | 5) {
            return Err(format!("the version {}, which no kernel of today reads", version & 0xf));
        }
        check_sizes(sector)?;
        let features2 = if version & version::MORE != 0 { u32_at(sector, 200) } else { 0 };
        let [ro_compat, incompat] = [212, 216].map(|at| if is_v5 { u32_at(sector, at) } else { 0 });
        let uuid: [u8; 16] = sector[32..48].try_into().expect("16 bytes");
        let meta_uuid = match incompat & incompat::META_UUID {
            0 => uuid,
            _ => sector[248..264].try_into().expect("16 bytes"),
        };
        let label = sector[108..120].split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        let is_inode = |number: &u64| *number != 0 && *number != NULL;
        let quotas: Vec<u64> = match version & version::QUOTA {
            0 => Vec::new(),
            _ => [160, 168, 232][..if is_v5 { 3 } else { 2 }]
                .iter()
                .map(|at| u64_at(sector, *at))
                .filter(is_inode)
                .collect(),
        };
        let realtime = [64, 72].map(|at| u64_at(sector, at));
        let nameless = realtime.into_iter().filter(is_inode).chain(quotas.iter().copied()).collect();
        let block_size = u64::from(u32_at(sector, 4));
        Ok(Self {
            block_size,
            blocks: u64_at(sector, 8),
            uuid,
            meta_uuid,
            label,
            log_start: u64_at(sector, 48),
            log_blocks: u32_at(sector, 96),
            root: u64_at(sector, 56),
            group_blocks: u32_at(sector, 84),
            groups: u32_at(sector, 88),
            sector_size,
            inode_size: u16_at(sector, 104).into(),
            inodes_log: sector[123].into(),
            group_log: sector[124].into(),
            inodes: u64_at(sector, 128),
            free_inodes: u64_at(sector, 136),
            free_blocks: u64_at(sector, 144),
            directory_block: (block_size as usize) << sector[192],
            nameless,
            quotas: quotas.len() as u64,
            has_lazy_counts: is_v5 || features2 & more::LAZY_COUNTS != 0,
            has_kinds: if is_v5 { incompat & incompat::KINDS != 0 } else { features2 & more::KINDS != 0 },
            has_casefold: version & version::ASCII_CI != 0,
            is_v5,
            has_realtime: u64_at(sector, 16) != 0,
            is_unfinished: sector[126] != 0,
            version,
            features2,
            ro_compat,
            incompat,
        })
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
            (self.has_realtime, "it has a real-time section, which Btrfs does not have"),
            (self.log_start == 0, "its log is on another device, so that it would be lost"),
            (self.incompat & incompat::META_TREE != 0, "it has the feature metadir"),
            (self.incompat & incompat::ZONED != 0, "it is on a zoned device"),
            (!self.is_v5 && self.version & version::DIRV2 == 0, "its directories are of version 1"),
            (!self.is_v5 && self.version & version::SHARED != 0, "it is shared read-only"),
        ];
        if let Some((_, text)) = named.iter().find(|(found, _)| *found) {
            return Some((*text).to_owned());
        }
        let unknown = [
            ("incompat", self.incompat & !(incompat::READABLE | incompat::NEEDS_REPAIR)),
            ("ro_compat", self.ro_compat & !ro_compat::KNOWN),
            ("features2", self.features2 & !more::KNOWN),
        ];
        let (name, bits) = unknown.iter().find(|(_, bits)| *bits != 0)?;
        Some(format!("it has unknown features ({name} {bits:#x})"))
    }

    /// Returns why the file system has to be repaired first, if so.
    pub(crate) fn unclean(&self) -> Option<&'static str> {
        if self.is_unfinished {
            return Some("mkfs.xfs or xfs_copy has not finished it");
        }
        (self.incompat & incompat::NEEDS_REPAIR != 0)
            .then_some("its superblock says that it needs a repair: run xfs_repair on it")
    }

    /// Whether inodes come in chunks with holes.
    pub(crate) fn has_sparse_inodes(&self) -> bool {
        self.incompat & incompat::SPARSE_INODES != 0
    }

    /// Whether there are trees of free inodes.
    pub(crate) fn has_free_inode_trees(&self) -> bool {
        self.ro_compat & ro_compat::FREE_INODES != 0
    }

    /// Whether there are trees from blocks to their owners.
    pub(crate) fn has_reverse_maps(&self) -> bool {
        self.ro_compat & ro_compat::REVERSE_MAP != 0
    }

    /// Whether files may share blocks.
    pub(crate) fn has_reflinks(&self) -> bool {
        self.ro_compat & ro_compat::REFLINK != 0
    }

    /// Returns the number of blocks of a group.
    pub(crate) fn blocks_of(&self, group: u32) -> u32 {
        let start = u64::from(group) * u64::from(self.group_blocks);
        self.blocks.saturating_sub(start).min(self.group_blocks.into()) as u32
    }

    /// Returns the blocks that the headers of a group take.
    pub(crate) fn header_blocks(&self) -> u32 {
        (4 * self.sector_size as u64).div_ceil(self.block_size) as u32
    }

    /// Returns the place of a block on the device, counted in blocks, and the number of blocks from
    /// it to the end of its group; `None` if there is no such block behind the headers.
    pub(crate) fn place_of(&self, number: u64) -> Option<(u64, u64)> {
        let group = u32::try_from(number >> self.group_log).ok().filter(|group| *group < self.groups)?;
        let block = (number & ((1 << self.group_log) - 1)) as u32;
        let length = self.blocks_of(group);
        (block >= self.header_blocks() && block < length).then(|| {
            let place = u64::from(group) * u64::from(self.group_blocks) + u64::from(block);
            (place, u64::from(length - block))
        })
    }

    /// Returns the place of an inode in bytes; `None` if there can be no such inode.
    pub(crate) fn place_of_inode(&self, number: u64) -> Option<u64> {
        let (block, _) = self.place_of(number >> self.inodes_log)?;
        let slot = number & ((1 << self.inodes_log) - 1);
        Some(block * self.block_size + slot * self.inode_size as u64)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A superblock of version 4: two groups of 2,048 blocks, inodes of 512 bytes.
    pub(crate) fn sample() -> Vec<u8> {
        let mut bytes = vec![0; 512];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, MAGIC);
        put(4, &4096u32.to_be_bytes());
        put(8, &4000u64.to_be_bytes());
        put(32, &[9; 16]);
        put(48, &(2048u64 + 500).to_be_bytes());
        put(56, &128u64.to_be_bytes());
        put(84, &2048u32.to_be_bytes());
        put(88, &2u32.to_be_bytes());
        put(96, &512u32.to_be_bytes());
        put(100, &0xb4a4u16.to_be_bytes());
        put(102, &512u16.to_be_bytes());
        put(104, &512u16.to_be_bytes());
        put(106, &8u16.to_be_bytes());
        put(108, b"label");
        put(120, &[12, 9, 9, 3, 11]);
        put(200, &0x8au32.to_be_bytes());
        bytes
    }

    #[test]
    fn fields_are_checked() {
        let superblock = XfsSuperblock::parse(&sample()).unwrap();
        assert_eq!((superblock.blocks_of(0), superblock.blocks_of(1)), (2048, 1952));
        assert_eq!(superblock.label, b"label");
        assert_eq!(superblock.unsupported(), None);
        assert_eq!(superblock.place_of(2048 + 7), Some((2048 + 7, 1945)));
        assert_eq!(superblock.place_of(2048 + 1952), None);
        assert_eq!(superblock.place_of(0), None);
        assert_eq!(superblock.place_of_inode(128), Some(16 * 4096));
        for (at, value, words) in [
            (0, 0u8, "no magic number"),
            (101, 0xa6, "the version 6"),
            (6, 0x30, "a block size"),
            (120, 13, "a block size"),
            (104, 3, "an inode size"),
            (107, 9, "inodes in a block"),
            (124, 12, "blocks in an allocation group"),
            (91, 3, "allocation groups of"),
            (192, 9, "directory blocks"),
        ] {
            let mut bytes = sample();
            bytes[at] = value;
            let fault = XfsSuperblock::parse(&bytes).unwrap_err();
            assert!(fault.contains(words), "{at}: {fault}");
        }
    }

    #[test]
    fn what_cannot_be_converted_has_a_name() {
        for (at, value, words) in [
            (23, 1u8, "a real-time section"),
            (54, 0, "its log is on another device"),
            (100, 0x80, "directories are of version 1"),
            (203, 0x11, "features2 0x11"),
        ] {
            let mut bytes = sample();
            bytes[at] = value;
            if at == 54 {
                bytes[48..56].fill(0);
            }
            let found = XfsSuperblock::parse(&bytes).unwrap().unsupported().unwrap();
            assert!(found.contains(words) || words.starts_with("features2"), "{found}");
        }
    }

    #[test]
    fn any_damage_is_an_error_or_a_superblock() {
        for at in 0..264 {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = sample();
                bytes[at] = value;
                if let Ok(superblock) = XfsSuperblock::parse(&bytes) {
                    for number in [0, 1, 2048, superblock.root, u64::MAX] {
                        let _ = (superblock.place_of(number), superblock.place_of_inode(number));
                    }
                    let _ = (superblock.unsupported(), superblock.unclean());
                }
            }
        }
    }
}
