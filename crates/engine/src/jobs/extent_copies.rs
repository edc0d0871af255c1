//! Copying data extents to new space, before the trees lead there.
//!
//! Owns [`FsInfo::copy_extents`]. Extents that follow one another at both places are read and
//! written as one *part* of up to a MiB, and several parts are under way at once.
//!
//! **Invariants**
//! - Bytes are copied as they are on the device, and verified on the way. Each sector is taken from
//!   a copy that fits its checksum; without a checksum from the first copy that can be read.
//! - Nothing refers to the new space meanwhile.
//!
//! **Locks**: those of reading and writing a volume.
//!
//! Kernel counterpart: `relocate_file_extent_cluster` (`fs/btrfs/relocation.c`).

use crate::btree::Tree;
use crate::data::checksum::DataChecksums;
use crate::errors::{Error, Result};
use crate::file::fs_info::FsInfo;
use crate::transaction::CopiedExtent;
use crate::workers::{each_at_once, threads};
use papilio_device::AlignedBuffer;
use papilio_format::{LogicalAddress, objectid};
use papilio_locks::Mutex;

/// Most bytes of a part.
const PART: u64 = 1 << 20;

/// A range of bytes that is copied at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CopyPart {
    from: LogicalAddress,
    to: LogicalAddress,
    length: u64,
}

/// Checksums in a row, of the sectors from an address on.
type Sums = (LogicalAddress, Vec<u8>);

/// Splits extents into parts, and joins those that follow one another at both places.
fn parts_of(extents: &[CopiedExtent]) -> Vec<CopyPart> {
    let mut parts: Vec<CopyPart> = Vec::new();
    for extent in extents {
        let mut at = 0;
        while at < extent.length {
            let (from, to) = (LogicalAddress(extent.from.0 + at), LogicalAddress(extent.to.0 + at));
            let left = extent.length - at;
            let follows = |part: &&mut CopyPart| {
                part.from.0 + part.length == from.0 && part.to.0 + part.length == to.0 && part.length < PART
            };
            let length = match parts.last_mut().filter(follows) {
                Some(part) => {
                    let length = left.min(PART - part.length);
                    part.length += length;
                    length
                }
                None => {
                    let length = left.min(PART);
                    parts.push(CopyPart { from, to, length });
                    length
                }
            };
            at += length;
        }
    }
    parts
}

impl FsInfo {
    /// Copies the bytes of extents from their old to their new places, and adds their checksums.
    ///
    /// # Errors
    /// Data without a good copy; a checksum that cannot be read; a write that fails.
    pub(super) fn copy_extents(&self, extents: &mut [CopiedExtent]) -> Result<()> {
        let tree = self.transactions()?.live().find(objectid::CSUM_TREE)?.map(|tree| tree.tree());
        let buffers = Mutex::new(Vec::new());
        let copied = each_at_once(&parts_of(extents), threads(self.volume().waits()), |part| {
            let buffer = buffers.lock().pop();
            let mut buffer = buffer.unwrap_or_else(|| AlignedBuffer::for_direct_io(PART as usize));
            let sums = self.copy_part(part, tree.as_ref(), &mut buffer[..part.length as usize]);
            buffers.lock().push(buffer);
            sums
        });
        let mut sums = Vec::new();
        for part in copied {
            sums.append(&mut part?);
        }
        self.distribute(extents, &sums);
        Ok(())
    }

    fn copy_part(&self, part: &CopyPart, tree: Option<&Tree>, buffer: &mut [u8]) -> Result<Vec<Sums>> {
        let geometry = self.volume().geometry();
        let sector = geometry.sector_size as usize;
        let mut sums: Vec<Sums> = Vec::new();
        if let Some(tree) = tree {
            let mut checksums = DataChecksums::new(tree, geometry);
            checksums.for_each_run(part.from, buffer.len() / sector, |first, _, run| {
                let at = LogicalAddress(part.from.0 + (first * sector) as u64);
                sums.extend(run.map(|run| (at, run.to_vec())));
                true
            })?;
        }
        self.read_good(part.from, buffer, &sums)?;
        self.volume().write(part.to, buffer)?;
        Ok(sums)
    }

    /// Reads each sector from a good copy.
    pub(super) fn read_good(&self, from: LogicalAddress, buffer: &mut [u8], sums: &[Sums]) -> Result<()> {
        let volume = self.volume();
        let sector = volume.geometry().sector_size as usize;
        let mut failure = None;
        let mut bad: Option<Vec<usize>> = None;
        let order = volume.copies_in_order(from)?;
        let copies = order.len();
        for copy in order {
            let Some(left) = bad.take() else {
                match volume.read_copy(from, buffer, copy) {
                    Ok(()) => bad = Some(self.mismatches(from, buffer, sums)),
                    Err(error) => {
                        failure = Some(error);
                        bad = Some((0..buffer.len() / sector).collect());
                    }
                }
                continue;
            };
            let mut still = Vec::new();
            for number in left {
                let at = LogicalAddress(from.0 + (number * sector) as u64);
                let piece = &mut buffer[number * sector..][..sector];
                match volume.read_copy(at, piece, copy) {
                    Ok(()) if self.mismatches(at, piece, sums).is_empty() => {}
                    Ok(()) => still.push(number),
                    Err(error) => {
                        failure = Some(error);
                        still.push(number);
                    }
                }
            }
            bad = Some(still);
        }
        let bad = bad.unwrap_or_default();
        let Some(&first) = bad.first() else { return Ok(()) };
        let at = LogicalAddress(from.0 + (first * sector) as u64);
        Err(failure.unwrap_or_else(|| {
            Error::Invalid(format!(
                "data at {at}: none of {copies} copies matches its checksum; nothing was moved"
            ))
        }))
    }

    /// Returns the numbers of the sectors of `data` that do not match their checksums.
    fn mismatches(&self, from: LogicalAddress, data: &[u8], sums: &[Sums]) -> Vec<usize> {
        let geometry = self.volume().geometry();
        let (sector, size) = (u64::from(geometry.sector_size), geometry.checksum_type.size());
        let mut bad = Vec::new();
        let end = from.0 + data.len() as u64;
        for (start, run) in sums {
            let first = start.0.max(from.0);
            let last = (start.0 + (run.len() / size) as u64 * sector).min(end);
            for at in (first..last).step_by(sector as usize) {
                let sum = &run[((at - start.0) / sector) as usize * size..][..size];
                let bytes = &data[(at - from.0) as usize..][..sector as usize];
                if geometry.checksum_type.compute(bytes).padded()[..size] != *sum {
                    bad.push(((at - from.0) / sector) as usize);
                }
            }
        }
        bad
    }

    /// Gives each extent its checksums, in runs that fit into an item.
    fn distribute(&self, extents: &mut [CopiedExtent], sums: &[Sums]) {
        let geometry = self.volume().geometry();
        let (sector, size) = (u64::from(geometry.sector_size), geometry.checksum_type.size());
        let most = crate::transaction::csum_items::max_sums(&geometry).max(1);
        let mut rest = sums;
        for extent in extents {
            let end = extent.from.0 + extent.length;
            let ends_before =
                |sums: &&Sums| sums.0.0 + (sums.1.len() / size) as u64 * sector <= extent.from.0;
            while rest.first().as_ref().is_some_and(ends_before) {
                rest = &rest[1..];
            }
            for (start, run) in rest.iter().take_while(|sums| sums.0.0 < end) {
                let first = start.0.max(extent.from.0);
                let last = (start.0 + (run.len() / size) as u64 * sector).min(end);
                let place = |at: u64| ((at - start.0) / sector) as usize * size;
                for (number, part) in run[place(first)..place(last)].chunks(most * size).enumerate() {
                    let offset = first - extent.from.0 + (number * most) as u64 * sector;
                    extent.checksums.push((offset, part.to_vec()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(from: u64, to: u64, length: u64) -> CopiedExtent {
        let (from, to) = (LogicalAddress(from), LogicalAddress(to));
        CopiedExtent { from, to, length, checksums: Vec::new() }
    }

    fn parts(extents: &[CopiedExtent]) -> Vec<(u64, u64, u64)> {
        parts_of(extents).iter().map(|part| (part.from.0, part.to.0, part.length)).collect()
    }

    #[test]
    fn extents_that_follow_one_another_are_copied_together() {
        const K: u64 = 1024;
        let together = [extent(0, 500 * K, 40 * K), extent(40 * K, 540 * K, 4 * K)];
        assert_eq!(parts(&together), [(0, 500 * K, 44 * K)]);
        // A gap at either place.
        assert_eq!(parts(&[extent(0, 500 * K, 40 * K), extent(44 * K, 540 * K, 4 * K)]).len(), 2);
        assert_eq!(parts(&[extent(0, 500 * K, 40 * K), extent(40 * K, 544 * K, 4 * K)]).len(), 2);
        let large = [extent(0, 8 * PART, PART / 2), extent(PART / 2, 8 * PART + PART / 2, 2 * PART)];
        let (half, from) = (PART / 2, 8 * PART);
        assert_eq!(
            parts(&large),
            [(0, from, PART), (PART, from + PART, PART), (2 * PART, from + 2 * PART, half)]
        );
        assert!(parts(&[]).is_empty());
    }
}
