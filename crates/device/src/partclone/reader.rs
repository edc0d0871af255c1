//! `PartcloneReader`: reads an image from its start to its end, also from a pipe.
//!
//! **Invariant:** blocks are returned only after their checksum matched, where the image has
//! checksums that can be verified. The end is reported only if all used blocks were read.

use super::error::{PartcloneError, PartcloneFault};
use super::layout::{ChecksumRule, PartcloneLayout, crc, read_exactly};
use std::io::Read;

/// Bytes of blocks that are read at once where the image has no checksums.
const GROUP_BYTES: u64 = 1 << 20;

/// Where each of some blocks is on the device, and the bytes of all.
pub type UsedBlocks = (Vec<u64>, Vec<u8>);

/// Reads an image in order.
pub struct PartcloneReader<R> {
    input: R,
    name: String,
    layout: PartcloneLayout,
    /// The number of the next used block.
    next: u64,
    /// Where it is on the device, or before that.
    block: u64,
    offset: u64,
    /// The checksum of all blocks so far, for images that need it.
    all: crc_fast::Digest,
}

impl<R: Read> PartcloneReader<R> {
    /// Reads header and bitmap.
    ///
    /// # Errors
    /// No image of Btrfs, or a damaged one.
    pub fn new(mut input: R, name: &str) -> Result<Self, PartcloneError> {
        let layout = PartcloneLayout::read(&mut input, name)?;
        let offset = layout.start;
        let all = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32IsoHdlc);
        Ok(Self { input, name: name.to_owned(), layout, next: 0, block: 0, offset, all })
    }

    /// Returns the layout.
    pub fn layout(&self) -> &PartcloneLayout {
        &self.layout
    }

    /// Returns the bytes of the image that were read.
    pub fn position(&self) -> u64 {
        self.offset
    }

    /// Returns the next used blocks: where each is on the device, and their bytes. `None` at the
    /// end.
    ///
    /// # Errors
    /// An image that was cut or damaged.
    pub fn next_blocks(&mut self) -> Result<Option<UsedBlocks>, PartcloneError> {
        let left = self.layout.used - self.next;
        if left == 0 {
            return Ok(None);
        }
        let sums = self.layout.checksums;
        let size = self.layout.block_size;
        let most = sums.map_or(GROUP_BYTES / size, |sums| sums.blocks).max(1);
        let count = most.min(left);
        let offset = self.offset;
        let bytes = read_exactly(&mut self.input, count * size, &self.name, offset)?;
        self.offset += bytes.len() as u64;
        if let Some(sums) = sums {
            let sum = read_exactly(&mut self.input, sums.size, &self.name, self.offset)?;
            self.offset += sums.size;
            let stored = u32::from_le_bytes(std::array::from_fn(|at| sum[at]));
            let computed = match sums.rule {
                ChecksumRule::Alone => crc(&bytes),
                ChecksumRule::Together => {
                    self.all.update(&bytes);
                    !(self.all.finalize() as u32)
                }
                ChecksumRule::Ignored => stored,
            };
            if stored != computed {
                let fault = PartcloneFault::Checksum { part: "blocks", stored, computed };
                return Err(PartcloneError::new(&self.name, offset, fault));
            }
        }
        let mut places = Vec::with_capacity(count as usize);
        while (places.len() as u64) < count {
            if self.layout.is_used(self.block) {
                places.push(self.block * size);
            }
            self.block += 1;
        }
        self.next += count;
        Ok(Some((places, bytes)))
    }
}
