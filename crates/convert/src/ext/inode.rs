//! Inodes of ext file systems.
//!
//! Owns [`ExtInode`], its parser, and [`ExtFs::for_each_ext_inode`], which walks the inode tables
//! in the order of numbers.
//!
//! Source: `Documentation/filesystems/ext4/inodes.rst`.

use super::checksum::crc;
use super::fields::{u16_at, u32_at};
use super::reader::ExtFs;
use crate::error::Result;
use papilio_format::items::inode::{FileKind, Timespec};

/// The number of the root directory.
pub(crate) const ROOT_INODE: u32 = 2;
/// Bytes of an inode table that are read at once.
const STEP: u64 = 256 << 10;

/// Inode flags.
pub(crate) mod flag {
    pub(crate) const SYNC: u32 = 0x8;
    pub(crate) const IMMUTABLE: u32 = 0x10;
    pub(crate) const APPEND: u32 = 0x20;
    pub(crate) const NODUMP: u32 = 0x40;
    pub(crate) const NOATIME: u32 = 0x80;
    pub(crate) const ENCRYPT: u32 = 0x800;
    pub(crate) const INDEX: u32 = 0x1000;
    pub(crate) const DIRSYNC: u32 = 0x1_0000;
    pub(crate) const EXTENTS: u32 = 0x8_0000;
    pub(crate) const VERITY: u32 = 0x10_0000;
    pub(crate) const EA_INODE: u32 = 0x20_0000;
    pub(crate) const INLINE_DATA: u32 = 0x1000_0000;
    pub(crate) const PROJINHERIT: u32 = 0x2000_0000;
    pub(crate) const CASEFOLD: u32 = 0x4000_0000;
}

/// An inode.
#[derive(Clone, Debug)]
pub(crate) struct ExtInode {
    pub(crate) number: u32,
    pub(crate) mode: u16,
    pub(crate) kind: FileKind,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) links: u16,
    pub(crate) flags: u32,
    pub(crate) generation: u32,
    pub(crate) project: u32,
    pub(crate) atime: Timespec,
    pub(crate) ctime: Timespec,
    pub(crate) mtime: Timespec,
    /// The time of creation, if the inode has one.
    pub(crate) otime: Option<Timespec>,
    /// The block map, the root of the extent tree, a target, or inline data.
    pub(crate) root: [u8; 60],
    /// The block of extended attributes; 0 without.
    pub(crate) xattr_block: u64,
    /// Extended attributes in the inode: the bytes behind its fields.
    pub(crate) xattr_bytes: Vec<u8>,
}

impl ExtInode {
    /// Whether a flag of [`flag`] is set.
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether the target of a symbolic link is in the inode.
    pub(crate) fn has_short_target(&self) -> bool {
        self.size < 60 && !self.has(flag::EXTENTS | flag::INLINE_DATA)
    }

    /// Major and minor number of a device.
    pub(crate) fn device_number(&self) -> (u32, u32) {
        let [old, new] = [0, 4].map(|at| u32_at(&self.root, at));
        match old {
            0 => ((new & 0xf_ff00) >> 8, (new & 0xff) | (new >> 12 & 0xf_ff00)),
            _ => (old >> 8 & 0xff, old & 0xff),
        }
    }
}

/// Returns a time from its seconds and, where the inode has the field, its nanoseconds with two
/// more bits of seconds.
fn time(bytes: &[u8], seconds: usize, extra: Option<usize>) -> Timespec {
    let extra = extra.map_or(0, |at| u32_at(bytes, at));
    let low = i64::from(u32_at(bytes, seconds) as i32);
    Timespec { seconds: low + (i64::from(extra & 3) << 32), nanoseconds: (extra >> 2).min(999_999_999) }
}

impl ExtFs {
    /// Parses the bytes of an inode that is in use.
    ///
    /// # Errors
    /// A checksum that does not match, or fields that contradict each other.
    pub(crate) fn parse_inode(&self, number: u32, bytes: &[u8]) -> Result<ExtInode> {
        let bad = |reason: &str| Err(self.damaged(format!("inode {number}"), reason));
        let extra_size = if bytes.len() > 128 { usize::from(u16_at(bytes, 0x80)) } else { 0 };
        if extra_size % 4 != 0 || 128 + extra_size > bytes.len() {
            return bad("the size of its extra fields is wrong");
        }
        let end = 128 + extra_size;
        let generation = u32_at(bytes, 0x64);
        if let Some(seed) = self.inode_seed(number, generation) {
            let has_high = extra_size >= 4;
            let mut sum = crc(crc(seed, &bytes[..0x7c]), &[0; 2]);
            sum = crc(sum, &bytes[0x7e..bytes.len().min(0x82)]);
            if bytes.len() > 128 {
                let high: &[u8] = if has_high { &[0; 2] } else { &bytes[0x82..0x84] };
                sum = crc(crc(sum, high), &bytes[0x84..]);
            }
            let high = if has_high { u32::from(u16_at(bytes, 0x82)) << 16 } else { 0 };
            let stored = u32::from(u16_at(bytes, 0x7c)) | high;
            let mask = if has_high { !0 } else { 0xffff };
            if sum & mask != stored {
                return bad("its checksum does not match");
            }
        }
        let optional = |at: usize| (at + 4 <= end).then_some(at);
        let mode = u16_at(bytes, 0);
        let Some(kind) = FileKind::from_mode(mode.into()) else {
            return bad("its mode has no kind of file");
        };
        let flags = u32_at(bytes, 0x20);
        // Files and directories have sizes of 64 bits; other kinds have something else there.
        let is_long = matches!(kind, FileKind::Regular | FileKind::Directory);
        let size =
            u64::from(u32_at(bytes, 4)) | if is_long { u64::from(u32_at(bytes, 0x6c)) << 32 } else { 0 };
        if i64::try_from(size).is_err() {
            return bad("its size exceeds that of any file");
        }
        let half =
            |low: usize, high: usize| u32::from(u16_at(bytes, low)) | u32::from(u16_at(bytes, high)) << 16;
        Ok(ExtInode {
            number,
            mode,
            kind,
            uid: half(0x2, 0x78),
            gid: half(0x18, 0x7a),
            size,
            links: u16_at(bytes, 0x1a),
            flags,
            generation,
            project: optional(0x9c).map_or(0, |at| u32_at(bytes, at)),
            atime: time(bytes, 0x8, optional(0x8c)),
            ctime: time(bytes, 0xc, optional(0x84)),
            mtime: time(bytes, 0x10, optional(0x88)),
            otime: optional(0x90).map(|at| time(bytes, at, optional(0x94))),
            root: bytes[0x28..0x64].try_into().expect("60 bytes"),
            xattr_block: u64::from(u32_at(bytes, 0x68)) | u64::from(u16_at(bytes, 0x76)) << 32,
            xattr_bytes: bytes[end.max(128)..].to_vec(),
        })
    }

    /// Reads one inode, which must be in use.
    ///
    /// # Errors
    /// A number that does not exist; damage; the device's errors.
    pub(crate) fn read_inode(&self, number: u32) -> Result<ExtInode> {
        if number == 0 || number > self.superblock.inodes {
            return Err(self.damaged(format!("inode {number}"), "there is no such inode"));
        }
        let (group, index) = (
            (number - 1) / self.superblock.inodes_per_group,
            (number - 1) % self.superblock.inodes_per_group,
        );
        let size = self.superblock.inode_size;
        let table = self.groups[group as usize].inode_table * self.superblock.block_size;
        let mut bytes = vec![0; size];
        self.read(&mut bytes, table + u64::from(index) * size as u64)?;
        self.parse_inode(number, &bytes)
    }

    /// Calls `act` with each inode in use from `first` on, in the order of numbers, until it
    /// returns false. Checks the inode bitmaps against the counts of free inodes.
    ///
    /// # Errors
    /// Damage; errors of `act`; the device's.
    pub(crate) fn for_each_ext_inode(
        &self,
        first: u32,
        act: &mut dyn FnMut(ExtInode) -> Result<bool>,
    ) -> Result<()> {
        let superblock = &self.superblock;
        let per_group = superblock.inodes_per_group;
        let size = superblock.inode_size;
        let per_step = STEP / size as u64;
        let from = first.saturating_sub(1);
        for number in from / per_group..superblock.groups() {
            let group = self.groups[number as usize];
            if group.has_no_inodes() {
                continue;
            }
            let bitmap = self.inode_bitmap(number)?;
            let is_set = |at: u32| bitmap[(at / 8) as usize] >> (at % 8) & 1 == 1;
            let free = (0..per_group).filter(|at| !is_set(*at)).count() as u32;
            if free != group.free_inodes {
                let reason = format!("{free} free inodes, and {} by its descriptor", group.free_inodes);
                return Err(self.damaged(format!("the inode bitmap of group {number}"), reason));
            }
            let used = per_group - group.unused_inodes;
            if let Some(at) = (used..per_group).find(|at| is_set(*at)) {
                let reason = format!("inode {at} is in use, and never was by its descriptor");
                return Err(self.damaged(format!("the inode bitmap of group {number}"), reason));
            }
            let mut at = if number == from / per_group { from % per_group } else { 0 };
            while at < used {
                let count = per_step.min(u64::from(used - at)) as u32;
                if !(at..at + count).any(is_set) {
                    at += count;
                    continue;
                }
                let mut bytes = vec![0; count as usize * size];
                let table = group.inode_table * superblock.block_size;
                self.read(&mut bytes, table + u64::from(at) * size as u64)?;
                for (slot, bytes) in bytes.chunks_exact(size).enumerate() {
                    let index = at + slot as u32;
                    let inode = number * per_group + index + 1;
                    // The bad blocks inode and other reserved ones may be empty.
                    let is_empty = inode < superblock.first_inode && inode != ROOT_INODE;
                    if !is_set(index) || is_empty {
                        continue;
                    }
                    if !act(self.parse_inode(inode, bytes)?)? {
                        return Ok(());
                    }
                }
                at += count;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::superblock::tests::sample;
    use super::super::superblock::{ExtSuperblock, incompat};
    use super::*;
    use crate::source::Profile;
    use crate::source::Source;
    use papilio_device::MemoryDevice;
    use std::sync::Arc;

    /// An ext file system of 16 MiB without groups, for parsers of single structures.
    pub(crate) fn bare() -> (ExtFs, Arc<MemoryDevice>) {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        let superblock = ExtSuperblock::parse(&sample()).unwrap();
        let profile = Profile::for_test(superblock.block_size, superblock.blocks);
        (ExtFs { device: device.clone(), superblock, groups: Vec::new(), profile, replayed: None }, device)
    }

    fn sample_inode() -> Vec<u8> {
        let mut bytes = vec![0; 256];
        bytes[..2].copy_from_slice(&0o100_644u16.to_le_bytes());
        bytes[0x2..0x4].copy_from_slice(&1000u16.to_le_bytes());
        bytes[0x78..0x7a].copy_from_slice(&2u16.to_le_bytes());
        bytes[0x4..0x8].copy_from_slice(&5000u32.to_le_bytes());
        bytes[0x8..0xc].copy_from_slice(&u32::MAX.to_le_bytes());
        bytes[0x1a] = 1;
        bytes[0x80] = 32;
        // Half a second, in the second age of 2^32 seconds.
        bytes[0x8c..0x90].copy_from_slice(&(500_000_000u32 << 2 | 1).to_le_bytes());
        bytes
    }

    #[test]
    fn fields_of_an_inode_are_read() {
        let (fs, _) = bare();
        let inode = fs.parse_inode(12, &sample_inode()).unwrap();
        assert_eq!((inode.uid, inode.size, inode.links), (131_072 + 1000, 5000, 1));
        assert_eq!(inode.atime, Timespec { seconds: (1 << 32) - 1, nanoseconds: 500_000_000 });
        assert_eq!((inode.otime.is_some(), inode.xattr_bytes.len()), (true, 96));
        let short = fs.parse_inode(12, &sample_inode()[..128]).unwrap();
        assert_eq!((short.otime, short.atime.seconds), (None, -1));
    }

    #[test]
    fn any_byte_of_an_inode_may_be_damaged() {
        for checksums in [None, Some(7)] {
            let (mut fs, _) = bare();
            fs.superblock.seed = checksums;
            fs.superblock.incompat |= incompat::INLINE_DATA;
            for at in 0..256 {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut bytes = sample_inode();
                    bytes[at] = value;
                    if let Ok(inode) = fs.parse_inode(12, &bytes) {
                        let _ = (inode.has_short_target(), inode.device_number());
                        let _ = fs.read_xattrs(&inode);
                        let _ = fs.read_start(&inode, 4096);
                    }
                }
            }
        }
    }

    #[test]
    fn device_numbers_have_two_forms() {
        let (fs, _) = bare();
        let mut inode = fs.parse_inode(12, &sample_inode()).unwrap();
        inode.root[..4].copy_from_slice(&0x0501u32.to_le_bytes());
        assert_eq!(inode.device_number(), (5, 1));
        inode.root[..4].fill(0);
        // Major 259, minor 70,000 (0x11170).
        inode.root[4..8].copy_from_slice(&(0x70u32 | 259 << 8 | 0x111 << 20).to_le_bytes());
        assert_eq!(inode.device_number(), (259, 70_000));
    }
}
