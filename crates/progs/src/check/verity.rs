//! Checks the items of a file with fs-verity.
//!
//! Owns [`VerityItems`]. The kernel refuses to open a file whose descriptor is missing or wrong,
//! and to read data whose part of the Merkle tree is missing. The hashes themselves are verified
//! where the file is read.
//!
//! Kernel counterparts: `fs/btrfs/verity.c`, `fs/verity/open.c`.

use papilio_engine::data::fsverity::MerkleLevels;
use papilio_format::items::fsverity_descriptor::{FsverityDescriptor, MAX_DESCRIPTOR};
use papilio_format::items::verity::VerityDescriptorItem;
use papilio_format::{ItemType, Key};

/// The items of one inode, as they come.
#[derive(Debug, Default)]
pub(super) struct VerityItems {
    /// The size that the descriptor's item gives.
    size: Option<u64>,
    descriptor: Vec<u8>,
    /// The end of the Merkle tree's bytes without a gap.
    tree_end: u64,
}

impl VerityItems {
    /// Takes in an item of the descriptor or of the Merkle tree.
    pub(super) fn read(&mut self, key: &Key, data: &[u8]) {
        match (key.item_type, key.offset) {
            (ItemType::VERITY_DESC_ITEM, 0) => {
                self.size = VerityDescriptorItem::parse(data).ok().map(|item| item.size);
            }
            (ItemType::VERITY_DESC_ITEM, offset) => {
                // Behind a gap, the bytes are not those of the descriptor.
                let room = (MAX_DESCRIPTOR as usize).saturating_sub(self.descriptor.len());
                if offset - 1 == self.descriptor.len() as u64 {
                    self.descriptor.extend_from_slice(&data[..data.len().min(room)]);
                }
            }
            (_, offset) if offset <= self.tree_end => {
                self.tree_end = self.tree_end.max(offset.saturating_add(data.len() as u64));
            }
            _ => {}
        }
    }

    /// Returns what is wrong with a file of `file_size` bytes that has the flag of fs-verity.
    pub(super) fn fault(&self, file_size: u64) -> Option<String> {
        let Some(size) = self.size else { return Some("its descriptor is missing".to_owned()) };
        let bytes = usize::try_from(size).ok().and_then(|size| self.descriptor.get(..size));
        let Some(bytes) = bytes else {
            let have = self.descriptor.len();
            return Some(format!("its descriptor has {have} bytes, the item says {size}"));
        };
        let parsed = FsverityDescriptor::parse_prefix(bytes).map(|(descriptor, _)| descriptor);
        let parsed = parsed.and_then(|descriptor| {
            descriptor.validate(file_size, size)?;
            Ok((descriptor.log_blocksize, descriptor.algorithm()?))
        });
        let (log_blocksize, algorithm) = match parsed {
            Ok(parsed) => parsed,
            Err(fault) => return Some(fault.to_string()),
        };
        let Some(levels) = MerkleLevels::new(file_size, 1 << log_blocksize, algorithm.size()) else {
            return Some("its Merkle tree would have more than 8 levels".to_owned());
        };
        let (have, need) = (self.tree_end, levels.stored_bytes());
        (have < need).then(|| format!("its Merkle tree has {have} bytes without a gap, and needs {need}"))
    }
}
