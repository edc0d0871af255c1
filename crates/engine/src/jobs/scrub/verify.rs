//! Verifying every copy of one unit, and mending the wrong ones in memory.
//!
//! Owns [`UnitScrub`]. The copies of a sector of data, or of a tree block, are compared with their
//! checksum. A copy that is equal to a good one needs no computation of its own.
//!
//! **Invariants**
//! - A copy is replaced only by bytes that were verified. Sectors without a checksum are replaced
//!   only where they could not be read, or where their device missed writes.
//! - A device that missed writes is not believed: its bytes count as wrong where they differ from
//!   those of another device, even if the checksum fits.
//!
//! **Locks**: those of rows, where the chunk has parity.
//!
//! Kernel counterparts: `scrub_verify_one_sector`, `scrub_verify_one_metadata`,
//! `scrub_stripe_read_repair_worker`, `scrub_stripe_report_errors` (`fs/btrfs/scrub.c`).

use super::extents::{ExtentContent, UnitExtent, UnitExtents};
use super::report::ScrubCounts;
use crate::volume::{Chunk, Element, LoadedPlace, LoadedRows};
use papilio_format::items::chunk::STRIPE_LENGTH;
use papilio_format::node::NodeHeader;
use papilio_format::{DeviceId, Generation, Geometry, LogicalAddress, Uuid};
use std::sync::Arc;

/// A fault of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Unreadable,
    Checksum,
    TreeBlock,
    Generation,
}

/// The work on one unit.
pub(super) struct UnitScrub<'a, 'v> {
    pub(super) rows: LoadedRows<'v>,
    extents: &'a UnitExtents,
    /// The counters, by device slot.
    counts: &'a mut [ScrubCounts],
    /// The slots whose copies are verified; the others only serve to mend.
    verified: &'a [bool],
    /// A device whose stripes are mended in memory even if it is missing.
    rebuilt: Option<DeviceId>,
    /// For each data extent without a good copy somewhere, the address of the first such sector.
    pub(super) lost: Vec<u64>,
}

impl<'a, 'v> UnitScrub<'a, 'v> {
    pub(super) fn new(
        rows: LoadedRows<'v>,
        extents: &'a UnitExtents,
        counts: &'a mut [ScrubCounts],
        verified: &'a [bool],
    ) -> Self {
        Self { rows, extents, counts, verified, rebuilt: None, lost: Vec::new() }
    }

    /// Mends the stripes of a device in memory even if it is missing.
    pub(in crate::jobs) fn rebuilding(mut self, devid: DeviceId) -> Self {
        self.rebuilt = Some(devid);
        self
    }

    /// Returns whether a place is to be mended although its device is missing.
    fn is_rebuilt(&self, place: &LoadedPlace) -> bool {
        self.rebuilt == Some(self.rows.devid(place)) && self.rows.slot(place).is_none()
    }

    /// Verifies all copies, and mends those that can be.
    pub(super) fn run(&mut self) {
        for extent in &self.extents.extents {
            self.count_extent(extent);
            match extent.kind {
                ExtentContent::TreeBlock(generation) => self.tree_block(extent, generation),
                ExtentContent::Data => self.data(extent),
            }
        }
        if self.rows.chunk().profile().parity() > 0 {
            if let Some(devid) = self.rebuilt {
                let extents = &self.extents.extents;
                self.rows.read_unused(devid, |address| {
                    let next = extents.partition_point(|extent| extent.end <= address.0);
                    extents.get(next).is_some_and(|extent| extent.start <= address.0)
                });
                self.rows.rebuild_unused(devid);
            }
            self.parity();
        }
    }

    fn geometry(&self) -> &'a Geometry {
        self.extents.geometry()
    }

    /// Returns the counters of a place's device, if it is present and to be verified.
    fn counts_of(&mut self, place: &LoadedPlace) -> Option<&mut ScrubCounts> {
        let slot = self.rows.slot(place)?;
        if self.verified[slot] { self.counts.get_mut(slot) } else { None }
    }

    /// Returns the elements of an extent, none across 64 KiB of a stripe.
    fn elements(&self, extent: &UnitExtent) -> Vec<(u64, Element)> {
        let chunk = self.rows.chunk();
        let mut elements = Vec::new();
        let mut at = extent.start;
        while at < extent.end {
            let inside = (at - chunk.start().0) % STRIPE_LENGTH;
            let length = (extent.end - at).min(STRIPE_LENGTH - inside);
            elements.extend(chunk.elements(LogicalAddress(at), length as usize).map(|element| (at, element)));
            at += length;
        }
        elements
    }

    fn count_extent(&mut self, extent: &UnitExtent) {
        for (_, element) in self.elements(extent) {
            for place in self.rows.places(&element) {
                let Some(counts) = self.counts_of(&place) else { continue };
                if extent.kind == ExtentContent::Data {
                    counts.data_extents_scrubbed += 1;
                    counts.data_bytes_scrubbed += element.length as u64;
                } else {
                    counts.tree_extents_scrubbed += 1;
                    counts.tree_bytes_scrubbed += element.length as u64;
                }
            }
        }
    }

    /// Verifies a tree block. One that crosses stripes is not supported by the format's own rules:
    /// the kernel refuses to scrub it, too, and counts it as uncorrectable.
    fn tree_block(&mut self, extent: &UnitExtent, generation: Generation) {
        let elements = self.elements(extent);
        let [(address, element)] = elements[..] else {
            for (_, element) in elements {
                for place in self.rows.places(&element) {
                    self.count(&place, Fault::TreeBlock, false);
                }
            }
            return;
        };
        let geometry = *self.geometry();
        let devices = Arc::clone(self.rows.devices());
        let verify = |bytes: &[u8]| {
            tree_block_fault(bytes, address, generation, &geometry, &|fsid| devices.has_member_of(fsid))
        };
        self.compare(&element, &verify, true);
    }

    fn data(&mut self, extent: &UnitExtent) {
        let geometry = *self.geometry();
        let (sector, extents) = (geometry.sector_size as usize, self.extents);
        let mut is_named = false;
        for (start, element) in self.elements(extent) {
            let places = self.rows.places(&element);
            let summed = (0..element.length / sector)
                .filter(|index| extents.sum(start + (index * sector) as u64).is_some())
                .count();
            let without = (element.length / sector - summed) as u64;
            for place in &places {
                if let Some(counts) = self.counts_of(place) {
                    counts.no_csum += without;
                }
            }
            let fault_at = |bytes: &[u8], at: u64| match extents.sum(at) {
                Some(sum) if !geometry.checksum_type.verify(bytes, sum) => Some(Fault::Checksum),
                _ => None,
            };
            if self.all_equal_and_good(&places, start, summed > 0, &fault_at) {
                continue;
            }
            for index in 0..element.length / sector {
                let at = start + (index * sector) as u64;
                let part =
                    Element { within: element.within + (index * sector) as u64, length: sector, ..element };
                let summed = extents.sum(at).is_some();
                let before = self.uncorrectable();
                self.compare(&part, &|bytes: &[u8]| fault_at(bytes, at), summed);
                if self.uncorrectable() > before && !std::mem::replace(&mut is_named, true) {
                    self.lost.push(at);
                }
            }
        }
    }

    fn uncorrectable(&self) -> u64 {
        self.counts.iter().map(|counts| counts.uncorrectable_errors).sum()
    }

    /// Returns whether one copy is good as a whole and all others are equal to it, which is the
    /// usual case.
    fn all_equal_and_good(
        &self,
        places: &[LoadedPlace],
        start: u64,
        summed: bool,
        fault_at: &dyn Fn(&[u8], u64) -> Option<Fault>,
    ) -> bool {
        let sector = self.geometry().sector_size as usize;
        let present = || places.iter().filter(|place| self.rows.slot(place).is_some());
        let rebuilt = places.iter().any(|place| self.is_rebuilt(place));
        if rebuilt || present().any(|place| self.rows.has_failed(place)) {
            return false;
        }
        let Some(first) = present().find(|place| !self.rows.is_stale(place)) else { return false };
        let bytes = self.rows.bytes(first);
        let mut sectors = bytes.chunks_exact(sector).zip((start..).step_by(sector));
        sectors.all(|(bytes, at)| fault_at(bytes, at).is_none())
            && present().all(|place| !summed && !self.rows.is_stale(place) || self.rows.bytes(place) == bytes)
    }

    /// Compares the copies of an element, which is good or wrong as a whole, and mends the wrong
    /// ones. `verified` says that `verify` knows wrong bytes.
    fn compare(&mut self, element: &Element, verify: &dyn Fn(&[u8]) -> Option<Fault>, verified: bool) {
        let places = self.rows.places(element);
        if places.iter().all(|place| self.rows.slot(place).is_none() && !self.is_rebuilt(place)) {
            return;
        }
        let mut faults: Vec<Option<Fault>> = places
            .iter()
            .map(|place| {
                if self.rows.has_failed(place) {
                    Some(Fault::Unreadable)
                } else {
                    verify(self.rows.bytes(place))
                }
            })
            .collect();
        let trusted = (0..places.len())
            .filter(|&copy| faults[copy].is_none() && !self.rows.is_stale(&places[copy]))
            .map(|copy| places[copy])
            .next();
        if let Some(trusted) = trusted {
            for (place, fault) in places.iter().zip(&mut faults) {
                let differs = || self.rows.bytes(place) != self.rows.bytes(&trusted);
                if fault.is_none() && self.rows.is_stale(place) && differs() {
                    *fault = Some(Fault::Checksum);
                }
            }
        }
        if faults.iter().all(Option::is_none)
            && (trusted.is_some() || !self.is_outdated(element, &places, verify))
        {
            return;
        }
        if faults.iter().all(Option::is_none) {
            faults.fill(Some(Fault::Checksum));
        }
        for (place, _) in places.iter().zip(&faults).filter(|(_, fault)| fault.is_some()) {
            self.rows.set_bad(place);
        }
        let source = trusted
            .or_else(|| (0..places.len()).find(|&copy| faults[copy].is_none()).map(|copy| places[copy]));
        let good = match source {
            Some(source) => Some(self.rows.bytes(&source).to_vec()),
            None => self.rebuilt(element, verify, verified, true),
        };
        for (place, fault) in places.iter().zip(faults) {
            let Some(fault) = fault else { continue };
            self.count(place, fault, good.is_some());
            let here =
                self.is_rebuilt(place) || self.rows.slot(place).is_some_and(|slot| self.verified[slot]);
            if let Some(good) = good.as_deref().filter(|_| here) {
                self.rows.mend(place, good);
            }
        }
    }

    /// Returns whether the only copy of an element is on a device that missed writes, and the other
    /// columns of its row say otherwise.
    fn is_outdated(
        &self,
        element: &Element,
        places: &[LoadedPlace],
        verify: &dyn Fn(&[u8]) -> Option<Fault>,
    ) -> bool {
        // Only the attempt that assumes no wrong column can tell.
        self.rebuilt(element, verify, false, false)
            .is_some_and(|rebuilt| places.iter().any(|place| self.rows.bytes(place) != rebuilt))
    }

    /// Rebuilds an element from the other columns of its row, in the way that `verify` accepts.
    fn rebuilt(
        &self,
        element: &Element,
        verify: &dyn Fn(&[u8]) -> Option<Fault>,
        verified: bool,
        with_stale: bool,
    ) -> Option<Vec<u8>> {
        let chunk: &Chunk = self.rows.chunk();
        if chunk.profile().parity() == 0 {
            return None;
        }
        let mut bytes = vec![0; element.length];
        // Without a checksum nothing tells which attempt is right: only the first one counts.
        let attempts = if verified { chunk.copies() } else { 2 };
        (1..attempts)
            .any(|attempt| {
                self.rows.rebuild(element, attempt, with_stale, &mut bytes).is_ok()
                    && verify(&bytes).is_none()
            })
            .then_some(bytes)
    }

    fn count(&mut self, place: &LoadedPlace, fault: Fault, corrected: bool) {
        let sectors = (place.length / self.geometry().sector_size as usize) as u64;
        let Some(counts) = self.counts_of(place) else { return };
        match fault {
            Fault::Unreadable => counts.read_errors += sectors,
            Fault::Checksum => counts.csum_errors += sectors,
            Fault::TreeBlock => counts.verify_errors += sectors,
            Fault::Generation => {
                counts.verify_errors += sectors;
                counts.generation_errors += sectors;
            }
        }
        if corrected {
            counts.corrected_errors += sectors;
        } else {
            counts.uncorrectable_errors += sectors;
        }
    }

    /// Compares the parity of the rows with their data, which was mended before.
    fn parity(&mut self) {
        let data = self.rows.chunk().data_columns();
        let sector = self.geometry().sector_size as usize;
        let (counts, verified, rebuilt) = (&mut *self.counts, self.verified, self.rebuilt);
        self.rows.for_each_good_run(|rows, places| {
            let (columns, parities) = places.split_at(data);
            let slot_of = |rows: &LoadedRows<'_>, place| rows.slot(place).filter(|slot| verified[*slot]);
            let is_rebuilt = |rows: &LoadedRows<'_>, place: &LoadedPlace| {
                rebuilt == Some(rows.devid(place)) && rows.slot(place).is_none()
            };
            if parities.iter().all(|place| slot_of(rows, place).is_none() && !is_rebuilt(rows, place)) {
                return;
            }
            let expected = rows.parity_of(columns, parities.len() == 2);
            for (place, expected) in parities.iter().zip(expected) {
                if is_rebuilt(rows, place) {
                    rows.mend(place, &expected);
                    continue;
                }
                let Some(slot) = slot_of(rows, place) else { continue };
                if !rows.has_failed(place) && rows.bytes(place) == expected {
                    continue;
                }
                for (index, expected) in expected.chunks(sector).enumerate() {
                    let part = rows.part(place, index * sector, sector);
                    let failed = rows.has_failed(&part);
                    if failed || rows.bytes(&part) != expected {
                        counts[slot].read_errors += u64::from(failed);
                        counts[slot].parity_errors += 1;
                        rows.mend(&part, expected);
                    }
                }
            }
        });
    }
}

/// Returns what is wrong with a tree block: checksum, address, file system and generation.
fn tree_block_fault(
    bytes: &[u8],
    address: u64,
    generation: Generation,
    geometry: &Geometry,
    is_seed: &dyn Fn(Uuid) -> bool,
) -> Option<Fault> {
    let Ok((header, _)) = NodeHeader::parse_prefix(bytes) else { return Some(Fault::TreeBlock) };
    let sum = &header.csum[..geometry.checksum_type.size()];
    if header.address.0 != address
        || header.fsid != geometry.metadata_uuid && !is_seed(header.fsid)
        || !geometry.checksum_type.verify(&bytes[header.csum.len()..], sum)
    {
        return Some(Fault::TreeBlock);
    }
    (header.generation != generation).then_some(Fault::Generation)
}

/// Returns the ranges of a unit's extents.
pub(super) fn wanted(extents: &UnitExtents) -> impl Iterator<Item = (LogicalAddress, u64)> + '_ {
    extents.extents.iter().map(|extent| (LogicalAddress(extent.start), extent.end - extent.start))
}
