//! `BlockDevice`: a disk in independently compressed blocks, for reading.
//!
//! It owns the table of blocks and a bounded cache of decompressed ones.
//!
//! **Invariants**
//! - The blocks follow one another without gaps on the disk.
//! - A block of more than [`MAX_BLOCK`] bytes is refused when the table is read, so that no request
//!   takes more memory than that.
//! - The cache has at most [`CACHE_BYTES`] bytes, or one block.
//!
//! **Locks**: `cache`, held for a lookup or an insertion. Blocks are decompressed without it, so
//! two threads may decompress one block.

use crate::device::{Access, Device, check_read, read_only};
use crate::error::OpenErrorKind;
use papilio_format::PhysicalAddress;
use papilio_locks::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The most bytes of a block, decompressed or compressed.
pub(super) const MAX_BLOCK: u64 = 256 << 20;
/// The most bytes of an image in one block that is decompressed into memory as a whole.
pub(super) const MAX_WHOLE: u64 = 64 << 20;
/// The most bytes of decompressed blocks that are kept.
const CACHE_BYTES: u64 = 64 << 20;

/// A block: its place in the file and its size on the disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The offset in the file.
    pub place: u64,
    /// Bytes in the file.
    pub packed: u64,
    /// Bytes in the file without padding.
    pub unpadded: u64,
    /// Bytes on the disk.
    pub length: u64,
}

/// Decompresses the blocks of a format.
pub(super) trait Decoder: Send + Sync + std::fmt::Debug {
    /// Decompresses a block. The result has the length of the block.
    fn decode(&self, file: &dyn Device, block: &Block) -> io::Result<Vec<u8>>;
}

/// A disk in compressed blocks.
#[derive(Debug)]
pub(super) struct BlockDevice {
    file: Arc<dyn Device>,
    decoder: Box<dyn Decoder>,
    blocks: Vec<Block>,
    /// The end of each block on the disk.
    ends: Vec<u64>,
    /// Newest last.
    cache: Mutex<VecDeque<(usize, Arc<Vec<u8>>)>>,
}

impl BlockDevice {
    /// Creates the device; `format` and `advice` are for the error about a block that is too large.
    pub(super) fn new(
        file: Arc<dyn Device>,
        decoder: Box<dyn Decoder>,
        blocks: Vec<Block>,
        format: &'static str,
        advice: &str,
    ) -> Result<Self, OpenErrorKind> {
        let fault = |reason: String| OpenErrorKind::Image { format, reason };
        let mut ends = Vec::with_capacity(blocks.len());
        let mut end = 0u64;
        for block in &blocks {
            let limit = if blocks.len() == 1 { MAX_WHOLE } else { MAX_BLOCK };
            if block.length > limit || block.packed > MAX_BLOCK {
                return Err(fault(format!(
                    "a block has {} bytes, which are too many to decompress for each read: {advice}",
                    block.length
                )));
            }
            end = end.checked_add(block.length).ok_or_else(|| fault("it has too many bytes".to_owned()))?;
            ends.push(end);
        }
        Ok(Self { file, decoder, blocks, ends, cache: Mutex::default() })
    }

    fn block(&self, index: usize) -> io::Result<Arc<Vec<u8>>> {
        let mut cache = self.cache.lock();
        if let Some(at) = cache.iter().position(|(known, _)| *known == index) {
            let found = cache.remove(at).expect("the position was just found");
            let bytes = Arc::clone(&found.1);
            cache.push_back(found);
            return Ok(bytes);
        }
        drop(cache);
        let block = &self.blocks[index];
        let bytes = self.decoder.decode(&*self.file, block)?;
        if bytes.len() as u64 != block.length {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the block at {} has another size than the index says", block.place),
            ));
        }
        let bytes = Arc::new(bytes);
        let mut cache = self.cache.lock();
        let mut total: u64 = cache.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        while total + block.length > CACHE_BYTES
            && let Some((_, oldest)) = cache.pop_front()
        {
            total -= oldest.len() as u64;
        }
        cache.push_back((index, Arc::clone(&bytes)));
        Ok(bytes)
    }
}

impl Device for BlockDevice {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size(), offset, buffer.len())?;
        let mut done = 0;
        while done < buffer.len() {
            let at = offset.get() + done as u64;
            let index = self.ends.partition_point(|end| *end <= at);
            let bytes = self.block(index)?;
            let skip = (at - (self.ends[index] - self.blocks[index].length)) as usize;
            let length = (bytes.len() - skip).min(buffer.len() - done);
            buffer[done..done + length].copy_from_slice(&bytes[skip..skip + length]);
            done += length;
        }
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: PhysicalAddress) -> io::Result<()> {
        Err(read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Err(read_only())
    }

    fn discard(&self, _: PhysicalAddress, _: u64) -> io::Result<()> {
        Err(read_only())
    }
}

/// Reads a range of a file.
pub(super) fn read_range(file: &dyn Device, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    check_read(file.size(), PhysicalAddress(offset), usize::try_from(length).unwrap_or(usize::MAX))?;
    let mut bytes = vec![0; length as usize];
    file.read_at(&mut bytes, PhysicalAddress(offset))?;
    Ok(bytes)
}
