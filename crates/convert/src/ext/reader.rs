//! An ext file system that is open for reading: its superblock and group descriptors.
//!
//! Owns [`ExtFs`], which reads blocks and checks what it reads against the checksums that the
//! source has. Memory: the descriptors, about 64 bytes a group.
//!
//! Source: `Documentation/filesystems/ext4/group_descr.rst`.

use super::checksum::{Seed, crc, crc16};
use super::fields::{u16_at, u32_at};
use super::replayed::ReplayedDevice;
use super::superblock::{ExtSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, incompat, ro_compat};
use crate::block_set::BlockSet;
use crate::error::{ConvertError, Result};
use crate::source::{Profile, read};
use papilio_device::Device;
use papilio_format::Uuid;
use std::ops::Range;
use std::sync::Arc;

/// The tool that repairs.
const TOOL: &str = "e2fsck -f";

/// A block group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) block_bitmap: u64,
    pub(crate) inode_bitmap: u64,
    pub(crate) inode_table: u64,
    /// Clusters that are free.
    pub(crate) free_clusters: u32,
    pub(crate) free_inodes: u32,
    /// Inodes at the end of the table that were never used.
    pub(crate) unused_inodes: u32,
    flags: u16,
    block_bitmap_checksum: u32,
    inode_bitmap_checksum: u32,
}

impl Group {
    /// Whether no inode of the group was ever used.
    pub(crate) fn has_no_inodes(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Whether the group has no block bitmap: only metadata is in use.
    pub(crate) fn has_no_bitmap(&self) -> bool {
        self.flags & 2 != 0
    }
}

/// An ext file system that is open for reading.
pub(crate) struct ExtFs {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) superblock: ExtSuperblock,
    pub(crate) groups: Vec<Group>,
    pub(crate) profile: Profile,
    /// The blocks that the replay of the journal changes, if there was one.
    pub(crate) replayed: Option<BlockSet>,
}

impl ExtFs {
    /// Opens the file system on a device.
    ///
    /// # Errors
    /// No ext file system; a feature that cannot be converted; a source that is not clean; damage.
    pub(crate) fn open(device: Arc<dyn Device>) -> Result<Self> {
        let mut fs = Self::open_raw(Arc::clone(&device))?;
        if fs.superblock.has(incompat::RECOVER) {
            fs.groups = fs.read_groups()?;
            let replay = fs.replay()?;
            let mut changed = BlockSet::new(fs.superblock.blocks);
            for block in replay.blocks.keys() {
                changed.insert(*block..*block + 1);
            }
            let block_size = fs.superblock.block_size;
            fs = Self::open_raw(Arc::new(ReplayedDevice::new(device, replay, block_size)))?;
            fs.replayed = Some(changed);
            fs.profile.is_replayed = true;
        }
        if let Some(reason) = fs.unclean()? {
            let device = fs.profile.device;
            return Err(ConvertError::Dirty { device, reason: reason.to_owned() });
        }
        fs.groups = fs.read_groups()?;
        Ok(fs)
    }

    /// Reads the superblock.
    fn open_raw(device: Arc<dyn Device>) -> Result<Self> {
        let name = device.name().to_owned();
        let not_ext = |reason: String| ConvertError::NoSource { device: name.clone(), reason };
        if device.size() < SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64 {
            return Err(not_ext(format!("it has {} bytes only", device.size())));
        }
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        read(&*device, &mut bytes, SUPERBLOCK_OFFSET)?;
        let superblock = ExtSuperblock::parse(&bytes).map_err(|fault| match fault {
            None => not_ext("the superblock has no magic number of ext".to_owned()),
            Some(reason) => damaged(&name, "the superblock", format!("it has {reason}")),
        })?;
        if let Some(reason) = superblock.unsupported() {
            return Err(ConvertError::Unsupported { device: name, reason });
        }
        if superblock.bytes() > device.size() {
            let reason = format!("it has {} bytes, the device {}", superblock.bytes(), device.size());
            return Err(damaged(&name, "the superblock", reason));
        }
        let profile = Profile {
            device: name.clone(),
            variant: superblock.variant(),
            saved: crate::SAVED,
            label: superblock.label.clone(),
            uuid: Uuid::from_bytes(superblock.uuid),
            block_size: superblock.block_size,
            blocks: superblock.blocks,
            inodes: superblock.inodes.into(),
            free_inodes: superblock.free_inodes.into(),
            root: Self::ROOT,
            inode_offset: papilio_format::objectid::FIRST_FREE - Self::ROOT,
            last_inode: superblock.inodes.into(),
            accounts_for_all: false,
            is_replayed: false,
            tool: TOOL,
        };
        Ok(Self { device, superblock, groups: Vec::new(), profile, replayed: None })
    }

    fn unclean(&self) -> Result<Option<&'static str>> {
        if let Some(reason) = self.superblock.unclean() {
            return Ok(Some(reason));
        }
        if !self.superblock.has(incompat::MMP) {
            return Ok(None);
        }
        /// The sequence number of a file system that nobody uses (`EXT4_MMP_SEQ_CLEAN`).
        const CLEAN: u32 = 0xff4d_4d50;
        const MAGIC: u32 = 0x004d_4d50;
        let block = self.block(self.superblock.mmp_block, "the MMP block")?;
        if u32_at(&block, 0) != MAGIC {
            return Err(self.damaged("the MMP block", "it has no magic number"));
        }
        let in_use = u32_at(&block, 4) != CLEAN;
        Ok(in_use.then_some("another host uses it, or did not unmount it: run e2fsck on it"))
    }

    /// Returns the error of a damaged structure.
    pub(crate) fn damaged(&self, place: impl Into<String>, reason: impl Into<String>) -> ConvertError {
        self.profile.damaged(place, reason)
    }

    /// Returns the error of something that cannot be converted.
    pub(crate) fn unsupported(&self, reason: impl Into<String>) -> ConvertError {
        self.profile.unsupported(reason)
    }

    /// Reads bytes of the device.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        read(&*self.device, buffer, offset)
    }

    /// Reads blocks.
    ///
    /// # Errors
    /// Blocks outside of the file system; the device's errors.
    pub(crate) fn blocks(&self, blocks: Range<u64>, what: &str) -> Result<Vec<u8>> {
        if blocks.start > blocks.end || blocks.end > self.superblock.blocks {
            return Err(self.damaged(what, format!("it lies in block {}, past the end", blocks.start)));
        }
        let size = self.superblock.block_size;
        let mut bytes = vec![0; ((blocks.end - blocks.start) * size) as usize];
        self.read(&mut bytes, blocks.start * size)?;
        Ok(bytes)
    }

    /// Reads one block.
    ///
    /// # Errors
    /// As [`ExtFs::blocks`].
    pub(crate) fn block(&self, block: u64, what: &str) -> Result<Vec<u8>> {
        self.blocks(block..block.saturating_add(1), what)
    }

    /// Returns the state that checksums of blocks of an inode begin with.
    pub(crate) fn inode_seed(&self, inode: u32, generation: u32) -> Seed {
        let seed = self.superblock.seed?;
        Some(crc(crc(seed, &inode.to_le_bytes()), &generation.to_le_bytes()))
    }

    /// The blocks that hold descriptors in the first copy, in order.
    fn descriptor_places(&self) -> impl Iterator<Item = u64> + '_ {
        let superblock = &self.superblock;
        let per_block = superblock.descriptors_per_block();
        (0..superblock.descriptor_blocks()).map(move |at| {
            if !superblock.has(incompat::META_BG) || at < superblock.first_meta_bg {
                return superblock.first_data_block + 1 + at;
            }
            let group = (at * per_block) as u32;
            superblock.group_start(group) + u64::from(superblock.has_superblock(group))
        })
    }

    fn read_groups(&self) -> Result<Vec<Group>> {
        let superblock = &self.superblock;
        let size = superblock.descriptor_size;
        let mut groups: Vec<Group> = Vec::with_capacity(superblock.groups() as usize);
        for place in self.descriptor_places() {
            let block = self.block(place, "the group descriptors")?;
            for bytes in block.chunks_exact(size) {
                if groups.len() as u64 == u64::from(superblock.groups()) {
                    break;
                }
                let number = groups.len() as u32;
                groups.push(self.parse_group(number, bytes)?);
            }
        }
        Ok(groups)
    }

    fn parse_group(&self, number: u32, bytes: &[u8]) -> Result<Group> {
        let superblock = &self.superblock;
        let place = || format!("the descriptor of group {number}");
        let stored = u16_at(bytes, 0x1e);
        let expected = match superblock.seed {
            Some(seed) => {
                let sum = crc(crc(seed, &number.to_le_bytes()), &bytes[..0x1e]);
                Some(crc(crc(sum, &[0; 2]), &bytes[0x20..]) as u16)
            }
            None if superblock.ro_compat & ro_compat::GDT_CSUM != 0 => {
                let sum = crc16(crc16(!0, &superblock.uuid), &number.to_le_bytes());
                Some(crc16(crc16(sum, &bytes[..0x1e]), &bytes[0x20..]))
            }
            None => None,
        };
        if expected.is_some_and(|expected| expected != stored) {
            return Err(self.damaged(place(), "its checksum does not match"));
        }
        let is_wide = bytes.len() >= 64;
        let wide = |low: usize, high: usize| {
            u64::from(u32_at(bytes, low)) | if is_wide { u64::from(u32_at(bytes, high)) << 32 } else { 0 }
        };
        let short = |low: usize, high: usize| {
            u32::from(u16_at(bytes, low)) | if is_wide { u32::from(u16_at(bytes, high)) << 16 } else { 0 }
        };
        // Without checksums nothing vouches for these fields, and the kernel ignores them.
        let has_flags = expected.is_some();
        let group = Group {
            block_bitmap: wide(0x0, 0x20),
            inode_bitmap: wide(0x4, 0x24),
            inode_table: wide(0x8, 0x28),
            free_clusters: short(0xc, 0x2c),
            free_inodes: short(0xe, 0x2e),
            unused_inodes: if has_flags { short(0x1c, 0x32) } else { 0 },
            flags: if has_flags { u16_at(bytes, 0x12) } else { 0 },
            block_bitmap_checksum: short(0x18, 0x38),
            inode_bitmap_checksum: short(0x1a, 0x3a),
        };
        let blocks = superblock.first_data_block..superblock.blocks;
        let table_end = group.inode_table.checked_add(superblock.table_blocks());
        if !blocks.contains(&group.block_bitmap)
            || !blocks.contains(&group.inode_bitmap)
            || !blocks.contains(&group.inode_table)
            || table_end.is_none_or(|end| end > superblock.blocks)
        {
            return Err(self.damaged(place(), "it names blocks past the end"));
        }
        if group.unused_inodes > superblock.inodes_per_group {
            return Err(self.damaged(place(), format!("{} unused inodes", group.unused_inodes)));
        }
        Ok(group)
    }

    /// Reads and verifies a group's block bitmap: one bit for each cluster.
    ///
    /// # Errors
    /// A checksum that does not match; the device's errors.
    pub(crate) fn block_bitmap(&self, number: u32) -> Result<Vec<u8>> {
        let group = &self.groups[number as usize];
        let superblock = &self.superblock;
        let place = format!("the block bitmap of group {number}");
        let bytes = self.block(group.block_bitmap, &place)?;
        let length = (superblock.blocks_per_group / superblock.cluster_blocks / 8) as usize;
        self.check_bitmap(&bytes[..length], group.block_bitmap_checksum, place)?;
        Ok(bytes)
    }

    /// Reads and verifies a group's inode bitmap.
    ///
    /// # Errors
    /// As [`ExtFs::block_bitmap`].
    pub(crate) fn inode_bitmap(&self, number: u32) -> Result<Vec<u8>> {
        let group = &self.groups[number as usize];
        let place = format!("the inode bitmap of group {number}");
        let bytes = self.block(group.inode_bitmap, &place)?;
        let length = (self.superblock.inodes_per_group / 8) as usize;
        self.check_bitmap(&bytes[..length], group.inode_bitmap_checksum, place)?;
        Ok(bytes)
    }

    fn check_bitmap(&self, bytes: &[u8], stored: u32, place: String) -> Result<()> {
        let Some(seed) = self.superblock.seed else { return Ok(()) };
        let mask = if self.superblock.descriptor_size >= 64 { !0 } else { 0xffff };
        if crc(seed, bytes) & mask != stored {
            return Err(self.damaged(place, "its checksum does not match"));
        }
        Ok(())
    }
}

fn damaged(device: &str, place: impl Into<String>, reason: impl Into<String>) -> ConvertError {
    ConvertError::Damaged {
        device: device.to_owned(),
        place: place.into(),
        reason: reason.into(),
        tool: TOOL,
    }
}
