//! An XFS file system that is open for reading: its superblock and allocation groups.
//!
//! Owns [`XfsFs`]. Blocks are numbered along the device, without the gaps that numbers with a
//! group have; [`XfsSuperblock::place_of`] converts. Memory: some 200 bytes a group, and 16
//! bytes for each run of blocks that files share.

use super::group::AllocationGroup;
use super::superblock::{SUPERBLOCK_BYTES, XfsSuperblock};
use crate::error::{ConvertError, Result};
use crate::shared::SharedExtents;
use crate::source::{Profile, read};
use papilio_device::Device;
use papilio_format::Uuid;
use std::sync::Arc;

/// The number that stands for the root directory, so that it precedes all inodes. No inode has it:
/// it would lie in the superblock.
pub(crate) const ROOT: u64 = 1;
/// The tool that repairs.
const TOOL: &str = "xfs_repair";

/// An XFS file system that is open for reading.
pub(crate) struct XfsFs {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) superblock: XfsSuperblock,
    pub(crate) groups: Vec<AllocationGroup>,
    pub(crate) profile: Profile,
    pub(crate) shared: SharedExtents,
}

impl XfsFs {
    /// Opens the file system on a device.
    ///
    /// # Errors
    /// No XFS; a feature that cannot be converted; a source that is not clean; damage.
    pub(crate) fn open(device: Arc<dyn Device>) -> Result<Self> {
        let name = device.name().to_owned();
        let damaged = |place: &str, reason: String| ConvertError::Damaged {
            device: name.clone(),
            place: place.to_owned(),
            reason,
            tool: TOOL,
        };
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        if device.size() >= SUPERBLOCK_BYTES as u64 {
            read(&*device, &mut bytes, 0)?;
        }
        let Some(size) = XfsSuperblock::sector_of(&bytes).filter(|size| device.size() >= *size as u64) else {
            return Err(damaged("the superblock", "it has an impossible size of sectors".to_owned()));
        };
        bytes.resize(size, 0);
        read(&*device, &mut bytes, 0)?;
        let superblock = XfsSuperblock::parse(&bytes)
            .map_err(|fault| damaged("the superblock", format!("it has {fault}")))?;
        if let Some(reason) = superblock.unsupported() {
            return Err(ConvertError::Unsupported { device: name, reason });
        }
        let total = superblock.blocks * superblock.block_size;
        if total > device.size() {
            let reason = format!("it has {total} bytes, the device {}", device.size());
            return Err(damaged("the superblock", reason));
        }
        if let Some(reason) = superblock.unclean() {
            return Err(ConvertError::Dirty { device: name, reason: reason.to_owned() });
        }
        let profile = Profile {
            device: name.clone(),
            variant: "XFS",
            saved: crate::SAVED_XFS,
            label: superblock.label.clone(),
            uuid: Uuid::from_bytes(superblock.uuid),
            block_size: superblock.block_size,
            blocks: superblock.blocks,
            inodes: superblock.inodes,
            free_inodes: superblock.free_inodes,
            root: ROOT,
            inode_offset: papilio_format::objectid::FIRST_FREE - ROOT,
            last_inode: u64::MAX - 1,
            accounts_for_all: true,
            is_replayed: false,
            tool: TOOL,
        };
        let mut fs =
            Self { device, superblock, groups: Vec::new(), profile, shared: SharedExtents::default() };
        fs.check_log()?;
        fs.groups = (0..fs.superblock.groups).map(|number| fs.read_group(number)).collect::<Result<_>>()?;
        if fs.groups.iter().any(|group| group.has_orphans) {
            let reason = "it has deleted files that are not freed yet: mount it once";
            return Err(ConvertError::Dirty { device: name, reason: reason.to_owned() });
        }
        fs.check_counts()?;
        fs.shared = fs.read_shared()?;
        Ok(fs)
    }

    /// Compares the counts of the superblock with those of the groups.
    fn check_counts(&self) -> Result<()> {
        let superblock = &self.superblock;
        let sum = |count: &dyn Fn(&AllocationGroup) -> u64| self.groups.iter().map(count).sum::<u64>();
        let inodes = sum(&|group| group.inode_count.into());
        let free_inodes = sum(&|group| group.free_inode_count.into());
        if (inodes, free_inodes) != (superblock.inodes, superblock.free_inodes) {
            let reason = format!(
                "{} inodes and {} of them free, and {inodes} and {free_inodes} in groups",
                superblock.inodes, superblock.free_inodes
            );
            return Err(self.damaged("the superblock", reason));
        }
        if superblock.has_lazy_counts {
            let free = sum(&|group| {
                u64::from(group.free_blocks) + group.spare.len() as u64 + u64::from(group.tree_blocks)
            });
            if free != superblock.free_blocks {
                let reason = format!("{} free blocks, and {free} in groups", superblock.free_blocks);
                return Err(self.damaged("the superblock", reason));
            }
        }
        Ok(())
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

    /// Reads blocks that are inside the file system.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn blocks(&self, first: u64, count: u64) -> Result<Vec<u8>> {
        let size = self.superblock.block_size;
        let mut bytes = vec![0; (count * size) as usize];
        self.read(&mut bytes, first * size)?;
        Ok(bytes)
    }

    /// Returns the number of an inode as the source has it.
    pub(crate) fn shown(&self, number: u64) -> u64 {
        if number == ROOT { self.superblock.root } else { number }
    }

    /// Returns the number of an inode as the conversion counts.
    pub(crate) fn counted(&self, number: u64) -> u64 {
        if number == self.superblock.root { ROOT } else { number }
    }
}
