//! The order of the stripes of a striped chunk, which its device extents do not tell.
//!
//! Owns [`Evidence`]. Every order is tried on what is known of the chunk's content: tree blocks
//! name their address, and checksums tell whether a sector of data is the right one.
//!
//! **Invariant**: an order is returned only if it explains more of the content than each other one,
//! and nearly all of it.

use super::block_scan::BlockScan;
use papilio_device::Device;
use papilio_engine::volume::Chunk;
use papilio_format::items::chunk::{ChunkItem, RaidProfile, STRIPE_LENGTH};
use papilio_format::items::csum::CsumItem;
use papilio_format::{DeviceId, ItemType, LogicalAddress, Node, NodeExpectation, PhysicalAddress, objectid};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most stripes whose orders are tried: 720.
const MOST_STRIPES: usize = 6;
/// The most samples of one chunk.
const MOST_SAMPLES: usize = 96;

/// Known content of a chunk.
#[derive(Clone, Debug)]
enum Sample {
    /// A tree block at a place.
    Block { address: LogicalAddress, devid: DeviceId, offset: PhysicalAddress },
    /// The checksum of a sector.
    Sum { address: LogicalAddress, sum: Vec<u8> },
}

/// The sources of known content.
pub(super) struct Evidence<'a> {
    pub(super) devices: &'a [Arc<dyn Device>],
    pub(super) scan: &'a BlockScan,
    /// The device id of each scanned device.
    pub(super) places: &'a [DeviceId],
}

impl Evidence<'_> {
    /// Returns a striped chunk, whose stripes are in any order, with its stripes in the right one.
    pub(super) fn order(&self, start: LogicalAddress, item: &ChunkItem) -> Option<ChunkItem> {
        let count = item.stripes.len();
        if !(2..=MOST_STRIPES).contains(&count) {
            return None;
        }
        let samples = self.samples(start, item.length);
        let paired = item.profile().ok()? == RaidProfile::Raid10;
        let mut best: Option<(usize, ChunkItem)> = None;
        let mut tied = true;
        for order in orders(count) {
            // The two copies of a RAID10 element are the same.
            if paired && order.chunks(2).any(|pair| pair[0] > pair[1]) {
                continue;
            }
            let stripes = order.iter().map(|index| item.stripes[*index]).collect();
            let candidate = ChunkItem { stripes, ..item.clone() };
            let Ok(chunk) = Chunk::new(start, &candidate) else { continue };
            let score = samples.iter().filter(|sample| self.explains(&chunk, sample)).count();
            match &best {
                Some((known, _)) if *known > score => {}
                Some((known, _)) if *known == score => tied = true,
                _ => (best, tied) = (Some((score, candidate)), false),
            }
        }
        let (score, chunk) = best?;
        // Some of the content may be outdated.
        (score > 0 && !tied && score * 10 >= samples.len() * 8).then_some(chunk)
    }

    fn samples(&self, start: LogicalAddress, length: u64) -> Vec<Sample> {
        let range = start.0..start.0.saturating_add(length);
        let inside = self.scan.blocks.iter().filter(|block| range.contains(&block.address.0));
        let mut blocks: Vec<_> = inside.collect();
        blocks.sort_by_key(|block| std::cmp::Reverse(block.generation));
        let block = |block: &&papilio_engine::options::rescue::FoundBlock| {
            let devid = *self.places.get(block.device)?;
            Some(Sample::Block { address: block.address, devid, offset: block.offset })
        };
        let mut samples: Vec<Sample> = blocks.iter().take(MOST_SAMPLES).filter_map(block).collect();
        if samples.is_empty() {
            samples = self.sums(range);
        }
        samples
    }

    /// Returns checksums of sectors in a range, one for each stripe element, the newest.
    fn sums(&self, range: std::ops::Range<u64>) -> Vec<Sample> {
        let geometry = self.scan.geometry();
        let size = geometry.checksum_type.size();
        let leaves =
            self.scan.blocks.iter().filter(|block| (block.owner, block.level) == (objectid::CSUM_TREE, 0));
        let mut leaves: Vec<_> = leaves.collect();
        leaves.sort_by_key(|block| std::cmp::Reverse(block.generation));
        let mut found = BTreeMap::new();
        for leaf in leaves {
            let mut bytes = vec![0; self.scan.node_size as usize];
            if self.devices[leaf.device].read_at(&mut bytes, leaf.offset).is_err() {
                continue;
            }
            let Ok(node) = Node::check(&bytes, &NodeExpectation::at(leaf.address), &geometry) else {
                continue;
            };
            for slot in (0..node.len()).filter(|slot| node.key(*slot).item_type == ItemType::EXTENT_CSUM) {
                let (key, data) = (node.key(slot), node.item(slot));
                let Ok(item) = CsumItem::parse(&key, data, &geometry) else { continue };
                let mut at = item.start().0.max(range.start);
                while at < item.end().0.min(range.end) {
                    let index = ((at - item.start().0) / u64::from(geometry.sector_size)) as usize * size;
                    found.entry(at).or_insert_with(|| data[index..index + size].to_vec());
                    at = range.start + ((at - range.start) / STRIPE_LENGTH + 1) * STRIPE_LENGTH;
                }
            }
            if found.len() >= MOST_SAMPLES {
                break;
            }
        }
        let sample = |(at, sum)| Sample::Sum { address: LogicalAddress(at), sum };
        found.into_iter().map(sample).take(MOST_SAMPLES).collect()
    }

    /// Whether the content is where the chunk has it.
    fn explains(&self, chunk: &Chunk, sample: &Sample) -> bool {
        let address = match sample {
            Sample::Block { address, .. } | Sample::Sum { address, .. } => *address,
        };
        let Some(element) = chunk.elements(address, 1).next() else { return false };
        let places = (0..chunk.profile().copies()).filter_map(|copy| chunk.direct(&element, copy));
        let mut places = places.map(|(stripe, place)| (chunk.stripes()[stripe].devid, place));
        match sample {
            Sample::Block { devid, offset, .. } => places.any(|found| found == (*devid, *offset)),
            Sample::Sum { sum, .. } => places.all(|(devid, place)| self.matches(devid, place, sum)),
        }
    }

    fn matches(&self, devid: DeviceId, place: PhysicalAddress, sum: &[u8]) -> bool {
        let geometry = self.scan.geometry();
        let Some(index) = self.places.iter().position(|found| *found == devid) else { return false };
        let mut bytes = vec![0; geometry.sector_size as usize];
        self.devices[index].read_at(&mut bytes, place).is_ok() && geometry.checksum_type.verify(&bytes, sum)
    }
}

/// Returns all orders of the numbers below `count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..count {
        let longer = |order: Vec<usize>| {
            let left: Vec<usize> = (0..count).filter(|number| !order.contains(number)).collect();
            left.into_iter().map(move |number| order.iter().copied().chain([number]).collect())
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_is_tried_once() {
        let all = orders(4);
        assert_eq!((all.len(), all[0].clone(), all[23].clone()), (24, vec![0, 1, 2, 3], vec![3, 2, 1, 0]));
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 24);
    }
}
