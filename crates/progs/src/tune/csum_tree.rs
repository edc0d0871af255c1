//! Building a checksum tree of another algorithm.
//!
//! Owns [`build`]: it reads the data of each checksum, verifies it, and writes full leaves with the
//! new checksums as it goes, then the nodes above them. Memory holds one piece of data, a batch of
//! blocks, and a few words for each block.
//!
//! Locks: none held between calls. No handle is held while a device works.

use crate::mkfs::block::BlockEncoder;
use papilio_engine::data::checksum::first_mismatch;
use papilio_engine::errors::{Error, Result};
use papilio_engine::transaction::csum_items::max_sums;
use papilio_engine::transaction::{BuiltBlock, BuiltTree, Transactions};
use papilio_engine::volume::{LogicalWrite, Volume};
use papilio_format::items::csum::CsumItem;
use papilio_format::node::{ItemHeader, KeyPointer, NodeHeader};
use papilio_format::superblock::Geometry;
use papilio_format::{ChecksumType, Key, LogicalAddress, Uuid, objectid};

/// Bytes of data that are read at once.
const PIECE: usize = 1 << 20;
/// The tree blocks that are written at once.
const BATCH: usize = 128;

/// Writes a checksum tree with checksums of the algorithm `wanted` for all data that has any.
/// `progress` is told the bytes of data that are done.
///
/// # Errors
/// Data of which no copy matches its checksum; [`Error::NoSpace`]; errors of devices.
pub(super) fn build(
    transactions: &Transactions,
    wanted: ChecksumType,
    progress: &mut dyn FnMut(u64),
) -> Result<BuiltTree> {
    let volume = transactions.volume();
    let old = volume.geometry();
    let new = Geometry { checksum_type: wanted, generation: transactions.generation(), ..old };
    let chunk_root = transactions.live().chunk_tree().tree().root_block()?;
    let chunk_tree_uuid = chunk_root.view().header().chunk_tree_uuid;
    let mut builder = Builder::new(transactions, new, chunk_tree_uuid);
    let tree = transactions.live().get(objectid::CSUM_TREE)?.tree().pinned(transactions.pin());
    let sector_size = old.sector_size as usize;
    let mut buffer = vec![0; PIECE];
    let mut done = 0;
    for item in tree.items() {
        let item = item?;
        let fault = |reason| Error::Item { tree: tree.id(), key: item.key, reason };
        let sums = CsumItem::parse(&item.key, item.data(), &old).map_err(fault)?;
        let mut start = sums.start();
        for piece in sums.as_bytes().chunks(PIECE / sector_size * old.checksum_type.size()) {
            let sectors = piece.len() / old.checksum_type.size();
            let data = &mut buffer[..sectors * sector_size];
            read_verified(volume, start, data, piece)?;
            for sector in data.chunks_exact(sector_size) {
                builder.push(start, wanted.compute(sector).as_bytes())?;
                start.0 += sector_size as u64;
            }
            done += data.len() as u64;
            progress(done);
        }
    }
    builder.finish()
}

/// Reads data from copies that match their checksums.
fn read_verified(volume: &Volume, start: LogicalAddress, data: &mut [u8], sums: &[u8]) -> Result<()> {
    let geometry = volume.geometry();
    let (algorithm, sector_size) = (geometry.checksum_type, geometry.sector_size as usize);
    if volume.read(start, data).is_ok() && first_mismatch(algorithm, sector_size, data, sums).is_none() {
        return Ok(());
    }
    let sectors = data.chunks_exact_mut(sector_size).zip(sums.chunks_exact(algorithm.size()));
    for (number, (sector, sum)) in sectors.enumerate() {
        let at = LogicalAddress(start.0 + (number * sector_size) as u64);
        let copies = volume.copies_in_order(at)?;
        let is_good =
            |copy: &usize| volume.read_copy(at, sector, *copy).is_ok() && algorithm.verify(sector, sum);
        if !copies.iter().any(is_good) {
            return Err(Error::Invalid(format!(
                "the data at logical address {at} matches its checksum in none of its copies: mend or \
                 delete the file first (`papilio scrub` names it)"
            )));
        }
    }
    Ok(())
}

/// A tree that grows at its end.
struct Builder<'a> {
    transactions: &'a Transactions,
    geometry: Geometry,
    chunk_tree_uuid: Uuid,
    /// The items of the leaf that is being filled.
    items: Vec<(Key, Vec<u8>)>,
    /// Bytes that they take in the leaf.
    used: usize,
    /// The address after the last checksum's sector.
    end: LogicalAddress,
    blocks: Vec<BuiltBlock>,
    /// Blocks that are to be written.
    pending: Vec<(LogicalAddress, Vec<u8>)>,
}

impl<'a> Builder<'a> {
    fn new(transactions: &'a Transactions, geometry: Geometry, chunk_tree_uuid: Uuid) -> Self {
        let (items, blocks, pending) = (Vec::new(), Vec::new(), Vec::new());
        let end = LogicalAddress(0);
        Self { transactions, geometry, chunk_tree_uuid, items, used: 0, end, blocks, pending }
    }

    fn encoder(&self) -> BlockEncoder<'_> {
        BlockEncoder { geometry: &self.geometry, chunk_tree_uuid: self.chunk_tree_uuid }
    }

    /// Bytes for items or pointers in a block.
    fn capacity(&self) -> usize {
        self.geometry.node_size as usize - NodeHeader::SIZE
    }

    /// Appends the checksum of the sector at `at`, which lies behind all others.
    fn push(&mut self, at: LogicalAddress, sum: &[u8]) -> Result<()> {
        let most = max_sums(&self.geometry) * sum.len();
        let continues = at == self.end && self.items.last().is_some_and(|(_, sums)| sums.len() < most);
        let need = sum.len() + if continues { 0 } else { ItemHeader::SIZE };
        let fits = self.used + need <= self.capacity();
        if !fits {
            self.end_leaf()?;
        }
        if fits && continues {
            self.items.last_mut().expect("an item continues").1.extend_from_slice(sum);
            self.used += need;
        } else {
            self.items.push((CsumItem::key(at), sum.to_vec()));
            self.used += ItemHeader::SIZE + sum.len();
        }
        self.end = LogicalAddress(at.0 + u64::from(self.geometry.sector_size));
        Ok(())
    }

    fn end_leaf(&mut self) -> Result<()> {
        let address = self.transactions.allocate_built_block()?;
        let bytes = self.encoder().leaf(objectid::CSUM_TREE, address, &self.items);
        let first_key = self.items.first().map_or(Key::MIN, |(key, _)| *key);
        self.items.clear();
        self.used = 0;
        self.add(BuiltBlock { address, level: 0, first_key }, bytes)
    }

    fn add(&mut self, block: BuiltBlock, bytes: Vec<u8>) -> Result<()> {
        self.blocks.push(block);
        self.pending.push((block.address, bytes));
        if self.pending.len() >= BATCH { self.write_pending() } else { Ok(()) }
    }

    fn write_pending(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let mut writes: Vec<_> =
            pending.iter().map(|(address, bytes)| LogicalWrite::new(*address, bytes)).collect();
        self.transactions.volume().write_many(&mut writes);
        writes.into_iter().try_for_each(|write| write.result)
    }

    /// Writes the last leaf and the levels above the leaves.
    fn finish(mut self) -> Result<BuiltTree> {
        if !self.items.is_empty() || self.blocks.is_empty() {
            self.end_leaf()?;
        }
        let mut children = 0..self.blocks.len();
        for level in 1.. {
            if children.len() == 1 {
                break;
            }
            let next = self.blocks.len();
            let below: Vec<_> = self.blocks[children].to_vec();
            for below in below.chunks(self.capacity() / KeyPointer::SIZE) {
                let first_keys: Vec<_> = below.iter().map(|block| block.first_key).collect();
                let addresses: Vec<_> = below.iter().map(|block| block.address).collect();
                let address = self.transactions.allocate_built_block()?;
                let bytes = self.encoder().node(objectid::CSUM_TREE, address, level, &first_keys, &addresses);
                self.add(BuiltBlock { address, level, first_key: first_keys[0] }, bytes)?;
            }
            children = next..self.blocks.len();
        }
        self.write_pending()?;
        Ok(BuiltTree { generation: self.geometry.generation, blocks: self.blocks })
    }
}
