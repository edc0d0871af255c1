//! The chunk map: which chunk covers a logical address.
//!
//! Owns [`Chunk`], the in-memory form of a chunk item, and [`ChunkMap`], an immutable snapshot of
//! all known chunks. Adding chunks creates a new snapshot, so readers never wait.
//!
//! **Invariants**
//! - Chunks are in ascending order and do not overlap.
//! - A chunk's end and the last physical byte of each stripe fit in 64 bits, so mapping an address
//!   inside a chunk cannot overflow.
//! - A RAID6 chunk has at most 255 data stripes, the number that GF(2^8) can distinguish.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `struct btrfs_chunk_map` and `fs_info->mapping_tree` (`fs/btrfs/volumes.c`).

use crate::errors::{Error, Result};
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{ChunkItem, RaidProfile, STRIPE_LENGTH, Stripe};
use papilio_format::{Corrupt, DeviceId, Key, LogicalAddress, Uuid, objectid};
use std::sync::Arc;

/// The number of data stripes that the powers of the generator of GF(2^8) can distinguish.
const RAID6_DATA_STRIPES_MAX: usize = 255;

/// One chunk: a range of logical addresses and the stripes that store it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    start: LogicalAddress,
    length: u64,
    flags: BlockGroupFlags,
    profile: RaidProfile,
    stripes: Box<[Stripe]>,
}

impl Chunk {
    /// Converts an item that [`ChunkItem::validate`] accepted.
    ///
    /// # Errors
    /// Fails if the item violates an invariant of the map.
    pub fn new(start: LogicalAddress, item: &ChunkItem) -> Result<Self, Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("chunk", field, value, why));
        let profile = item.profile()?;
        let stripes = item.stripes.len();
        if !profile.accepts_stripes(stripes) {
            return bad("num_stripes", stripes as u64, "not a number that its profile allows");
        }
        if profile == RaidProfile::Raid6 && profile.data_stripes(stripes) > RAID6_DATA_STRIPES_MAX {
            return bad("num_stripes", stripes as u64, "more than the 257 that RAID6 allows");
        }
        if item.length == 0 || start.checked_add(item.length).is_none() {
            return bad("length", item.length, "zero, or extends past the address space");
        }
        let data_stripes = profile.data_stripes(stripes) as u64;
        // Allow one element more than the length: a rebuild reads the whole last row.
        let stripe_bytes = (item.length / data_stripes).checked_add(2 * STRIPE_LENGTH);
        for stripe in &item.stripes {
            if stripe_bytes.and_then(|bytes| stripe.offset.checked_add(bytes)).is_none() {
                return bad("stripe offset", stripe.offset.0, "extends past the address space");
            }
        }
        Ok(Self {
            start,
            length: item.length,
            flags: item.flags,
            profile,
            stripes: item.stripes.clone().into_boxed_slice(),
        })
    }

    /// Returns the first logical address.
    #[inline]
    pub fn start(&self) -> LogicalAddress {
        self.start
    }

    /// Returns the length in bytes of logical address space.
    #[inline]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the first logical address after the chunk.
    #[inline]
    pub fn end(&self) -> LogicalAddress {
        LogicalAddress(self.start.0 + self.length)
    }

    /// Returns the flags: type of contents and profile.
    pub fn flags(&self) -> BlockGroupFlags {
        self.flags
    }

    /// Returns the RAID profile.
    #[inline]
    pub fn profile(&self) -> RaidProfile {
        self.profile
    }

    /// Returns the bytes of data in a row with parity; 0 without parity.
    pub(crate) fn row_bytes(&self) -> u64 {
        if self.profile.parity() == 0 { 0 } else { self.data_columns() as u64 * STRIPE_LENGTH }
    }

    /// Returns the stripes; the profile defines the meaning of their order.
    #[inline]
    pub fn stripes(&self) -> &[Stripe] {
        &self.stripes
    }
}

/// An immutable snapshot of the known chunks, in ascending order of address.
#[derive(Debug, Default)]
pub struct ChunkMap {
    chunks: Vec<Arc<Chunk>>,
}

impl ChunkMap {
    /// Returns the chunk that covers `logical`.
    #[inline]
    pub fn find(&self, logical: LogicalAddress) -> Option<&Arc<Chunk>> {
        let after = self.chunks.partition_point(|chunk| chunk.start <= logical);
        let chunk = self.chunks.get(after.checked_sub(1)?)?;
        (logical < chunk.end()).then_some(chunk)
    }

    /// Returns the chunk that covers `logical`, or [`Error::Unmapped`].
    #[inline]
    pub fn require(&self, logical: LogicalAddress, length: u64) -> Result<&Arc<Chunk>> {
        self.find(logical).ok_or(Error::Unmapped { logical, length })
    }

    /// Iterates over all chunks in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Chunk>> {
        self.chunks.iter()
    }

    /// Returns the end of the last stripe on a device, in bytes from its start.
    pub fn end_on(&self, devid: DeviceId, uuid: Uuid) -> u64 {
        let ends = self.chunks.iter().flat_map(|chunk| {
            let bytes = chunk.length.div_ceil(chunk.profile.data_stripes(chunk.stripes.len()).max(1) as u64);
            let own = |stripe: &&Stripe| stripe.devid == devid && stripe.device_uuid == uuid;
            chunk.stripes.iter().filter(own).map(move |stripe| stripe.offset.0.saturating_add(bytes))
        });
        ends.max().unwrap_or(0)
    }

    /// Returns this map with additional chunks. An identical chunk may be added again, because
    /// system chunks are stored in the superblock as well as in the chunk tree.
    ///
    /// # Errors
    /// Fails on a chunk that violates the map's invariants, overlaps another, or contradicts one at
    /// the same address.
    pub(crate) fn with(&self, items: impl IntoIterator<Item = (LogicalAddress, ChunkItem)>) -> Result<Self> {
        let mut chunks = self.chunks.clone();
        for (start, item) in items {
            let chunk = Chunk::new(start, &item).map_err(|reason| chunk_error(start, reason))?;
            chunks.push(Arc::new(chunk));
        }
        // The sort is stable, so of two equal chunks the known one stays.
        chunks.sort_by_key(|chunk| chunk.start);
        chunks.dedup_by(|later, earlier| later == earlier);
        for pair in chunks.windows(2) {
            if pair[0].start == pair[1].start {
                return Err(overlap(&pair[1], "contradicts another item of the same chunk"));
            }
            if pair[1].start < pair[0].end() {
                return Err(overlap(&pair[1], "overlaps the chunk before it"));
            }
        }
        Ok(Self { chunks })
    }

    /// Returns this map without the chunk that starts at `start`; `None` if there is none.
    pub(crate) fn without(&self, start: LogicalAddress) -> Option<Self> {
        let at = self.chunks.binary_search_by_key(&start, |chunk| chunk.start).ok()?;
        let mut chunks = self.chunks.clone();
        chunks.remove(at);
        Some(Self { chunks })
    }
}

fn overlap(chunk: &Chunk, why: &'static str) -> Error {
    chunk_error(chunk.start, Corrupt::field("chunk", "logical", chunk.start.0, why))
}

/// Returns an error about the chunk item at `start`.
pub(super) fn chunk_error(start: LogicalAddress, reason: Corrupt) -> Error {
    let key = Key {
        objectid: objectid::FIRST_CHUNK_TREE,
        item_type: papilio_format::ItemType::CHUNK_ITEM,
        offset: start.0,
    };
    Error::Item { tree: objectid::CHUNK_TREE, key, reason }
}

#[cfg(test)]
mod tests {
    use super::super::testing::chunk_item;
    use super::*;

    fn single(length: u64) -> ChunkItem {
        chunk_item(RaidProfile::Single, 1, length)
    }

    fn map(chunks: &[(u64, u64)]) -> Result<ChunkMap> {
        let items = chunks.iter().map(|&(start, length)| (LogicalAddress(start), single(length)));
        ChunkMap::default().with(items)
    }

    #[test]
    fn find_returns_the_covering_chunk() {
        let map = map(&[(8 << 20, 4 << 20), (1 << 20, 2 << 20), (3 << 20, 1 << 20)]).unwrap();
        let starts: Vec<_> = map.iter().map(|chunk| chunk.start().0 >> 20).collect();
        assert_eq!(starts, [1, 3, 8]);
        let find = |address| map.find(LogicalAddress(address)).map(|chunk| chunk.start().0 >> 20);
        assert_eq!(find(0), None);
        assert_eq!(find((1 << 20) - 1), None);
        assert_eq!(find(1 << 20), Some(1));
        assert_eq!(find((3 << 20) - 1), Some(1));
        assert_eq!(find(3 << 20), Some(3));
        assert_eq!(find(4 << 20), None);
        assert_eq!(find((12 << 20) - 1), Some(8));
        assert_eq!(find(12 << 20), None);
        assert_eq!(find(u64::MAX), None);
        assert!(matches!(map.require(LogicalAddress(0), 7), Err(Error::Unmapped { length: 7, .. })));
    }

    #[test]
    fn only_parity_has_rows() {
        let row_bytes = |profile, stripes| {
            let item = chunk_item(profile, stripes, 1 << 30);
            Chunk::new(LogicalAddress(0), &item).unwrap().row_bytes()
        };
        assert_eq!(row_bytes(RaidProfile::Raid5, 4), 3 * STRIPE_LENGTH);
        assert_eq!(row_bytes(RaidProfile::Raid6, 4), 2 * STRIPE_LENGTH);
        for (profile, stripes) in
            [(RaidProfile::Single, 1), (RaidProfile::Raid0, 3), (RaidProfile::Raid10, 4)]
        {
            assert_eq!(row_bytes(profile, stripes), 0);
        }
    }

    #[test]
    fn overlapping_or_contradicting_chunks_are_rejected() {
        assert!(map(&[(0, 2 << 20), (1 << 20, 1 << 20)]).is_err());
        assert!(map(&[(0, 2 << 20), (0, 1 << 20)]).is_err());
        assert_eq!(map(&[(0, 2 << 20), (0, 2 << 20)]).unwrap().iter().len(), 1);

        let known = map(&[(0, 1 << 20)]).unwrap();
        let mut elsewhere = single(1 << 20);
        elsewhere.stripes[0].offset.0 += 4096;
        let error = known.with([(LogicalAddress(0), elsewhere)]).unwrap_err();
        assert!(error.to_string().contains("contradicts"), "{error}");
        assert_eq!(known.with([(LogicalAddress(0), single(1 << 20))]).unwrap().iter().len(), 1);
    }

    #[test]
    fn chunks_that_would_overflow_are_rejected() {
        let mut item = single(1 << 20);
        item.stripes[0].offset.0 = u64::MAX - (1 << 20);
        assert!(Chunk::new(LogicalAddress(0), &item).is_err());
        assert!(Chunk::new(LogicalAddress(u64::MAX - 4096), &single(1 << 20)).is_err());
        assert!(Chunk::new(LogicalAddress(0), &single(0)).is_err());
        let wide = |stripes| Chunk::new(LogicalAddress(0), &chunk_item(RaidProfile::Raid6, stripes, 1 << 30));
        assert!(wide(257).is_ok());
        assert!(wide(258).is_err());
        let mut none = single(1 << 20);
        none.stripes.clear();
        assert!(Chunk::new(LogicalAddress(0), &none).is_err());
    }
}
