//! Changes of tree blocks on images, with right checksums afterwards.

use papilio::device::{Access, Device, FileDevice};
use papilio::format::checksum::CHECKSUM_SIZE;
use papilio::format::node::{ItemHeader, NodeHeader};
use papilio::format::{ChecksumType, Key, PhysicalAddress, TreeId};
use papilio::{BlockScan, ScanOptions};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// An item of a leaf, by the places of its parts in the block.
#[derive(Clone, Debug)]
pub struct Place {
    pub key: Key,
    /// Its header, which begins with the key.
    pub header: usize,
    pub data: Range<usize>,
}

/// Lists the tree blocks on an image.
pub fn scan(image: &Path) -> BlockScan {
    let read: Vec<Arc<dyn Device>> = vec![Arc::new(FileDevice::open(image, Access::ReadOnly).unwrap())];
    papilio::scan_devices(&read, &ScanOptions::new()).unwrap()
}

/// Returns the items of a leaf; none of a node.
pub fn items(block: &[u8]) -> Vec<Place> {
    let header = NodeHeader::parse_prefix(block).unwrap().0;
    if header.level > 0 {
        return Vec::new();
    }
    let place = |slot: usize| {
        let at = NodeHeader::SIZE + slot * ItemHeader::SIZE;
        let item = ItemHeader::parse(&block[at..][..ItemHeader::SIZE]).unwrap();
        let start = NodeHeader::SIZE + item.offset as usize;
        Place { key: item.key, header: at, data: start..start + item.size as usize }
    };
    (0..header.item_count as usize).map(place).collect()
}

/// Removes an item of a leaf. Without it the leaf is as a writer would have made it.
pub fn remove(block: &mut [u8], removed: &Place) {
    let kept: Vec<(Key, Vec<u8>)> = items(block)
        .into_iter()
        .filter(|item| item.header != removed.header)
        .map(|item| (item.key, block[item.data].to_vec()))
        .collect();
    let mut header = NodeHeader::parse_prefix(block).unwrap().0;
    header.item_count = kept.len() as u32;
    block.fill(0);
    block[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
    let mut end = block.len() - NodeHeader::SIZE;
    for (slot, (key, data)) in kept.into_iter().enumerate() {
        end -= data.len();
        let item = ItemHeader { key, offset: end as u32, size: data.len() as u32 };
        let at = NodeHeader::SIZE + slot * ItemHeader::SIZE;
        block[at..][..ItemHeader::SIZE].copy_from_slice(&item.to_bytes());
        block[NodeHeader::SIZE + end..][..data.len()].copy_from_slice(&data);
    }
}

/// Writes the checksum of a block.
pub fn seal(block: &mut [u8], checksum: ChecksumType) {
    let sum = checksum.compute(&block[CHECKSUM_SIZE..]);
    let bytes = sum.as_bytes().to_vec();
    block[..CHECKSUM_SIZE].fill(0);
    block[..bytes.len()].copy_from_slice(&bytes);
}

/// Changes each copy of the blocks of a tree for which `edit` returns true, and seals them.
pub fn edit_blocks(image: &Path, tree: TreeId, edit: impl Fn(&mut [u8]) -> bool) -> usize {
    let scan = scan(image);
    let device = FileDevice::open(image, Access::ReadWrite).unwrap();
    let mut changed = 0;
    for block in scan.blocks.iter().filter(|block| block.owner == tree) {
        let mut bytes = vec![0; scan.node_size as usize];
        device.read_at(&mut bytes, block.offset).unwrap();
        if edit(&mut bytes) {
            seal(&mut bytes, scan.checksum_type);
            device.write_at(&bytes, block.offset).unwrap();
            changed += 1;
        }
    }
    changed
}

/// Overwrites a range of an image with zeros.
pub fn erase(image: &Path, offset: u64, length: usize) {
    let device = FileDevice::open(image, Access::ReadWrite).unwrap();
    device.write_at(&vec![0; length], PhysicalAddress(offset)).unwrap();
}
