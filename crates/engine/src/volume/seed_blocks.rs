//! Tree blocks and chunks of a seed, in the file system that sprouted from it.
//!
//! Owns the part of [`Volume`] that tells them from others.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `check_tree_block_fsid` (`fs/btrfs/disk-io.c`).

use super::chunk_map::Chunk;
use super::volume::Volume;
use papilio_format::DeviceId;
use papilio_format::node::NodeHeader;

/// The offset of a tree block's checksummed part, and of its file system's UUID, in bytes.
const FSID_AT: usize = 32;

impl Volume {
    /// Whether a device of the chunk tree is a seed.
    pub fn is_seed(&self, devid: DeviceId) -> bool {
        self.devices().is_seed(devid, self.superblock().metadata_uuid())
    }

    /// Whether a part of a chunk lies on a seed, so that nothing may be written to it.
    pub fn is_on_seed(&self, chunk: &Chunk) -> bool {
        let (devices, own) = (self.devices(), self.superblock().metadata_uuid());
        chunk.stripes().iter().any(|stripe| devices.is_seed(stripe.devid, own))
    }

    /// Makes a good tree block of a seed one of this file system, in memory. Other blocks stay.
    pub(crate) fn adopt_block(&self, block: &mut [u8]) {
        let own = self.superblock().metadata_uuid();
        let Ok((header, _)) = NodeHeader::parse_prefix(block) else { return };
        if header.fsid == own || !self.devices().has_member_of(header.fsid) {
            return;
        }
        let checksum = self.geometry().checksum_type;
        if !checksum.verify(&block[FSID_AT..], &header.csum[..checksum.size()]) {
            return;
        }
        block[FSID_AT..FSID_AT + 16].copy_from_slice(own.as_bytes());
        let sum = checksum.compute(&block[FSID_AT..]);
        block[..FSID_AT].copy_from_slice(sum.padded());
    }
}
