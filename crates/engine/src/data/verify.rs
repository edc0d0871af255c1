//! Verifying data that was read against its checksums.
//!
//! Owns [`Verifier`], [`ChecksumSource`] and [`ChecksumTree`]. Checksums of an ordered extent are
//! in memory; those of other extents are in the file's cache or in the checksum tree.
//!
//! Locks: none held between calls. Kernel counterparts: `btrfs_lookup_bio_sums`
//! (`fs/btrfs/file-item.c`), `btrfs_data_csum_ok` (`fs/btrfs/inode.c`).

use crate::btree::{LiveTree, Tree};
use crate::data::checksum::{DataChecksums, SectorFault, first_mismatch};
use crate::data::checksum_cache::ChecksumCache;
use crate::data::extent_cache::ExtentCache;
use crate::data::ordered_extents::OrderedExtents;
use crate::errors::Result;
use crate::transaction::{LazyTree, Transactions};
use crate::tuning::CsumLookup;
use papilio_format::{Geometry, LogicalAddress, objectid};
use std::cell::OnceCell;
use std::sync::{Arc, OnceLock};

/// Bytes of checksums that one cache look-up copies to the stack.
pub(super) const CHECKSUMS_AT_ONCE: usize = 256;

/// The tree that checksums are looked up in.
#[derive(Debug)]
pub(super) enum ChecksumSource {
    /// This tree; `None` if the file system has none.
    Committed(Option<Tree>),
    /// The current version at the time of a request. The live tree is kept once it was found.
    Live(Arc<Transactions>, OnceLock<Arc<LiveTree>>),
}

/// The checksum tree of one request, taken when it is first needed.
pub(super) struct ChecksumTree<'a> {
    source: &'a ChecksumSource,
    live: OnceCell<LazyTree<'a>>,
}

impl<'a> ChecksumTree<'a> {
    pub(super) fn new(source: &'a ChecksumSource) -> Self {
        Self { source, live: OnceCell::new() }
    }

    /// Returns the tree, if there is one.
    fn get(&self) -> Result<Option<&Tree>> {
        let (transactions, known) = match self.source {
            ChecksumSource::Committed(tree) => return Ok(tree.as_ref()),
            ChecksumSource::Live(transactions, known) => (transactions, known),
        };
        let live = match known.get() {
            Some(live) => live,
            None => match transactions.live().find(objectid::CSUM_TREE)? {
                Some(live) => known.get_or_init(|| live),
                None => return Ok(None),
            },
        };
        Ok(Some(self.live.get_or_init(|| LazyTree::new(transactions, live)).get()))
    }
}

/// The location of data that was read.
#[derive(Clone, Copy)]
pub(super) struct ReadRange<'a> {
    pub(super) logical: LogicalAddress,
    /// The file offset.
    pub(super) offset: u64,
    /// The ordered extents that have the checksums, if the tree does not.
    pub(super) ordered: Option<&'a OrderedExtents>,
}

impl ReadRange<'_> {
    #[inline]
    pub(super) fn advanced(self, bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self { logical: LogicalAddress(self.logical.0 + bytes), offset: self.offset + bytes, ..self }
    }
}

/// Verifies the data of one request.
pub(super) struct Verifier<'a> {
    geometry: Geometry,
    lookup: CsumLookup,
    /// Whether data is verified: it has checksums, and the options ask for it.
    enabled: bool,
    /// The cache of the file, if it has one and the lookup uses it.
    cache: Option<&'a ExtentCache>,
    tree: &'a ChecksumTree<'a>,
    /// The walk over the checksum tree, once it has begun.
    walk: Option<DataChecksums<'a>>,
}

impl<'a> Verifier<'a> {
    pub(super) fn new(
        geometry: Geometry,
        lookup: CsumLookup,
        enabled: bool,
        cache: Option<&'a ExtentCache>,
        tree: &'a ChecksumTree<'a>,
    ) -> Self {
        let cache = cache.filter(|_| lookup.is_cached());
        Self { geometry, lookup, enabled, cache, tree, walk: None }
    }

    /// Returns whether data is verified at all.
    #[inline]
    pub(super) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Caches the checksums of `length` bytes from `logical`, as far as the file's cache has room,
    /// so that verifying the data does not wait for tree blocks.
    ///
    /// # Errors
    /// A block of the checksum tree that cannot be read.
    pub(super) fn load(&mut self, logical: LogicalAddress, length: usize) -> Result<()> {
        let (Some(cache), true) = (self.cache, self.enabled) else { return Ok(()) };
        let (sector_size, geometry) = (self.geometry.sector_size as usize, self.geometry);
        let mut checksums = [0; CHECKSUMS_AT_ONCE];
        let mut done = 0;
        while done < length {
            let at = LogicalAddress(logical.0 + done as u64);
            let size = geometry.checksum_type.size();
            let wanted = ((length - done) / sector_size * size).min(CHECKSUMS_AT_ONCE / size * size);
            let found = cache.checksums().copy(at, &geometry, &mut checksums[..wanted]);
            if found == 0
                && let Some(tree) = self.checksums()?
            {
                cache.checksums().fill(at, &geometry, tree)?;
            }
            done += (found / size).max(1) * sector_size;
        }
        Ok(())
    }

    /// Returns the first sector of `data`, read from `read`, that is not valid, and its fault.
    pub(super) fn first_fault(
        &mut self,
        read: &ReadRange<'_>,
        data: &[u8],
    ) -> Result<Option<(usize, SectorFault)>> {
        if !self.enabled {
            return Ok(None);
        }
        if let Some(ordered) = read.ordered {
            let bad = ordered.first_mismatch(read.offset, data);
            return Ok(bad.map(|sector| (sector, SectorFault::Mismatch)));
        }
        match self.cache {
            Some(cache) => self.first_fault_cached(cache.checksums(), read.logical, data),
            None => self.first_fault_in_tree(read.logical, data),
        }
    }

    /// As [`Verifier::first_fault`], from cached checksums. Fills the cache where they are missing.
    fn first_fault_cached(
        &mut self,
        cache: &ChecksumCache,
        logical: LogicalAddress,
        data: &[u8],
    ) -> Result<Option<(usize, SectorFault)>> {
        let (sector_size, algorithm) = (self.geometry.sector_size as usize, self.geometry.checksum_type);
        let mut checksums = [0; CHECKSUMS_AT_ONCE];
        let mut done = 0;
        while done < data.len() {
            let at = LogicalAddress(logical.0 + done as u64);
            let rest = &data[done..];
            let wanted = (rest.len() / sector_size * algorithm.size()).min(CHECKSUMS_AT_ONCE);
            let mut found = cache.copy(at, &self.geometry, &mut checksums[..wanted]);
            if found == 0 {
                let geometry = self.geometry;
                if let Some(tree) = self.checksums()? {
                    cache.fill(at, &geometry, tree)?;
                }
                found = cache.copy(at, &geometry, &mut checksums[..wanted]);
            }
            // The sector has no checksum, or the cache no memory.
            let sectors = (found / algorithm.size()).max(1);
            let part = &rest[..sectors * sector_size];
            let fault = if found == 0 {
                self.first_fault_in_tree(at, part)?
            } else {
                let bad = first_mismatch(algorithm, sector_size, part, &checksums[..found]);
                bad.map(|sector| (sector, SectorFault::Mismatch))
            };
            if let Some((sector, fault)) = fault {
                return Ok(Some((done / sector_size + sector, fault)));
            }
            done += part.len();
        }
        Ok(None)
    }

    fn first_fault_in_tree(
        &mut self,
        logical: LogicalAddress,
        data: &[u8],
    ) -> Result<Option<(usize, SectorFault)>> {
        let lookup = self.lookup;
        match self.checksums()? {
            Some(checksums) => match lookup {
                CsumLookup::Stack => checksums.first_fault(logical, data),
                #[cfg(feature = "ablation")]
                CsumLookup::Heap => checksums.first_fault_copied(logical, data),
            },
            None => Ok(Some((0, SectorFault::Missing))),
        }
    }

    /// Returns the walk over the checksum tree, if there is one.
    fn checksums(&mut self) -> Result<Option<&mut DataChecksums<'a>>> {
        if self.walk.is_none() {
            self.walk = self.tree.get()?.map(|tree| DataChecksums::new(tree, self.geometry));
        }
        Ok(self.walk.as_mut())
    }
}
