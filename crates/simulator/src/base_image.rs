//! A real file system in memory, with the locations of its checksummed blocks.
//!
//! Owns [`BaseImage`].
//!
//! **Invariant:** [`BaseImage::blocks`] lists every superblock copy and every tree block of the
//! image with a valid checksum, including superseded ones.

use papilio_device::{Device, MemoryDevice};
use papilio_format::node::NodeHeader;
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{ChecksumType, PhysicalAddress, Superblock, TreeId, objectid};
use std::io::Read;

/// Bytes in front of the part that a block's checksum covers.
const CHECKSUM_FIELD: usize = 32;
/// Bytes per step in which an image is loaded, so that empty parts stay unallocated.
const STEP: usize = 64 << 10;

/// A block with its own checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) offset: PhysicalAddress,
    pub(crate) size: usize,
    /// The tree that a tree block belongs to; `None` for a superblock.
    pub(crate) owner: Option<TreeId>,
}

/// A file system to mutate.
#[derive(Debug)]
pub struct BaseImage {
    device: MemoryDevice,
    blocks: Vec<Block>,
    checksum: ChecksumType,
}

impl BaseImage {
    /// Loads an image compressed with zstd.
    ///
    /// # Panics
    /// If it does not hold a Btrfs with a valid first superblock: images come from the repository.
    pub fn load(compressed: &[u8]) -> Self {
        let mut decoder = zstd::stream::read::Decoder::new(compressed).expect("the image is zstd-compressed");
        let mut pieces = Vec::new();
        let mut size = 0;
        loop {
            let mut piece = Vec::with_capacity(STEP);
            let read =
                (&mut decoder).take(STEP as u64).read_to_end(&mut piece).expect("the zstd frame is complete");
            if read == 0 {
                break;
            }
            if first_nonzero(&piece).is_some() {
                pieces.push((size, piece));
            }
            size += read as u64;
        }
        let device = MemoryDevice::new(size);
        for (offset, piece) in pieces.iter() {
            device.write_at(piece, PhysicalAddress(*offset)).expect("the piece lies within the device");
        }
        Self::with_blocks(device, &pieces)
    }

    /// Takes the content of a device.
    ///
    /// # Panics
    /// If it does not hold a Btrfs with a valid first superblock.
    pub fn of(device: &MemoryDevice) -> Self {
        let (device, size) = (device.snapshot(), device.size());
        let mut pieces = Vec::new();
        for start in (0..size).step_by(STEP) {
            let mut piece = vec![0; STEP.min((size - start) as usize)];
            device.read_at(&mut piece, PhysicalAddress(start)).expect("the piece lies within the device");
            if first_nonzero(&piece).is_some() {
                pieces.push((start, piece));
            }
        }
        Self::with_blocks(device, &pieces)
    }

    fn with_blocks(device: MemoryDevice, pieces: &[(u64, Vec<u8>)]) -> Self {
        let superblock = first_superblock(&device);
        let blocks = find_blocks(&superblock, device.size(), pieces);
        Self { device, blocks, checksum: superblock.checksum_type() }
    }

    /// Returns the image with the blocks of log trees only, so that every change hits a log.
    ///
    /// # Panics
    /// If the image has no log.
    pub fn only_logs(mut self) -> Self {
        self.blocks.retain(|block| block.owner == Some(objectid::TREE_LOG));
        assert!(!self.blocks.is_empty(), "the image has a log");
        self
    }

    /// Returns a copy to mutate, which shares unchanged parts.
    pub fn copy(&self) -> MemoryDevice {
        self.device.snapshot()
    }

    /// Writes a block's bytes to another device.
    pub(crate) fn restore(&self, device: &MemoryDevice, block: Block) {
        let mut bytes = vec![0; block.size];
        self.device.read_at(&mut bytes, block.offset).expect("the block was found when the image was loaded");
        device.write_at(&bytes, block.offset).expect("the block lies within the device");
    }

    /// Returns the number of blocks that changes are made in.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the blocks that have checksums.
    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Recomputes a block's checksum.
    pub(crate) fn repair(&self, bytes: &mut [u8]) {
        let sum = self.checksum.compute(&bytes[CHECKSUM_FIELD..]);
        bytes[..CHECKSUM_FIELD].copy_from_slice(sum.padded());
    }
}

fn first_superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let offset = superblock_offset(0);
    device.read_at(&mut bytes, offset).expect("the image is larger than a superblock");
    Superblock::parse(&bytes, offset).expect("the image has a valid first superblock")
}

fn find_blocks(superblock: &Superblock, size: u64, pieces: &[(u64, Vec<u8>)]) -> Vec<Block> {
    let mut blocks: Vec<_> = (0..SUPERBLOCK_MIRRORS)
        .map(superblock_offset)
        .filter(|offset| offset.0 + SUPERBLOCK_SIZE as u64 <= size)
        .map(|offset| Block { offset, size: SUPERBLOCK_SIZE, owner: None })
        .collect();
    let geometry = superblock.geometry();
    let (node_size, sector_size) = (geometry.node_size as usize, geometry.sector_size as usize);
    for (start, piece) in pieces {
        for offset in (0..piece.len()).step_by(sector_size) {
            // Blocks are aligned to their size, which divides the step.
            let Some(block) = piece.get(offset..offset + node_size) else { continue };
            let Ok((header, _)) = NodeHeader::parse_prefix(block) else { continue };
            let sum = geometry.checksum_type;
            if header.fsid == geometry.metadata_uuid && sum.verify(&block[CHECKSUM_FIELD..], block) {
                let offset = PhysicalAddress(start + offset as u64);
                blocks.push(Block { offset, size: node_size, owner: Some(header.owner) });
            }
        }
    }
    blocks
}

/// Returns the index of the first byte that is not zero. Most of a block is zeros, and a fuzzer
/// counts each turn of a loop, so that pieces are compared first.
pub(crate) fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    const PIECE: usize = 256;
    let pieces = bytes.chunks(PIECE).position(|piece| piece != &[0; PIECE][..piece.len()])?;
    let start = pieces * PIECE;
    bytes[start..].iter().position(|&byte| byte != 0).map(|at| start + at)
}
