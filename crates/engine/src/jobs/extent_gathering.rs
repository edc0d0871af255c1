//! Copying parts of data extents one behind the other into new space.
//!
//! Owns [`FsInfo::gather_extents`]. A *portion* is up to a MiB of a new extent: its parts are read
//! from wherever they are and written at once, and several portions are under way at once.
//!
//! **Invariants**
//! - Every byte is verified on the way, and taken from a copy that fits its checksum.
//! - Nothing refers to the new space meanwhile. The caller keeps the old space from being reused.
//!
//! **Locks**: those of reading and writing a volume.
//!
//! Kernel counterpart: none.

use crate::btree::Tree;
use crate::data::checksum::DataChecksums;
use crate::errors::{Error, Result};
use crate::file::fs_info::FsInfo;
use crate::transaction::{MergedExtent, StayReason, csum_items};
use crate::workers::{each_at_once, threads};
use papilio_device::AlignedBuffer;
use papilio_format::{LogicalAddress, objectid};
use papilio_locks::Mutex;

/// Most bytes of a portion.
const PORTION: u64 = 1 << 20;

/// A range of a new extent that is written at once.
#[derive(Debug, PartialEq, Eq)]
struct Portion {
    /// Which of the new extents it belongs to.
    extent: usize,
    to: LogicalAddress,
    /// Where its bytes are, with their lengths.
    sources: Vec<(LogicalAddress, u64)>,
    length: u64,
}

/// Splits new extents into portions. Each source lies in one extent, and so in one chunk.
fn portions_of(merged: &[MergedExtent]) -> Vec<Portion> {
    let mut portions: Vec<Portion> = Vec::new();
    for (extent, new) in merged.iter().enumerate() {
        let mut at = 0;
        for piece in &new.pieces {
            let mut done = 0;
            while done < piece.length {
                let from = LogicalAddress(piece.address().0 + done);
                let room = PORTION - at % PORTION;
                let length = room.min(piece.length - done);
                if at % PORTION == 0 {
                    let to = LogicalAddress(new.place.address.0 + at);
                    portions.push(Portion { extent, to, sources: Vec::new(), length: 0 });
                }
                let portion = portions.last_mut().expect("each extent begins one");
                portion.sources.push((from, length));
                portion.length += length;
                (at, done) = (at + length, done + length);
            }
        }
    }
    portions
}

impl FsInfo {
    /// Copies the bytes of all parts to their new places, and adds the checksums. Returns for
    /// each new extent why it cannot be made: data without a good copy or without a checksum, a
    /// write that fails.
    ///
    /// # Errors
    /// The checksum tree cannot be found.
    pub(super) fn gather_extents(&self, merged: &mut [MergedExtent]) -> Result<Vec<Option<StayReason>>> {
        let tree = self.transactions()?.live().get(objectid::CSUM_TREE)?.tree();
        let portions = portions_of(merged);
        let buffers = Mutex::new(Vec::new());
        let gathered = each_at_once(&portions, threads(self.volume().waits()), |portion| {
            let buffer = buffers.lock().pop();
            let mut buffer = buffer.unwrap_or_else(|| AlignedBuffer::for_direct_io(PORTION as usize));
            let buffered = &mut buffer[..portion.length as usize];
            let sums = self.gather(portion, &tree, buffered);
            buffers.lock().push(buffer);
            sums
        });
        let mut failures: Vec<_> = merged.iter().map(|_| None).collect();
        for (portion, sums) in portions.iter().zip(gathered) {
            match sums {
                Ok(sums) => self.add_run(&mut merged[portion.extent].checksums, portion.to, &sums),
                Err(reason) => failures[portion.extent] = Some(reason),
            }
        }
        Ok(failures)
    }

    /// Adds the checksums of a portion, in runs that fit into an item.
    fn add_run(&self, runs: &mut Vec<(LogicalAddress, Vec<u8>)>, to: LogicalAddress, sums: &[u8]) {
        let geometry = self.volume().geometry();
        let (sector, size) = (u64::from(geometry.sector_size), geometry.checksum_type.size());
        let most = csum_items::max_sums(&geometry).max(1) * size;
        let mut at = 0;
        while at < sums.len() {
            let room = runs.last().map_or(0, |(_, run)| most - run.len());
            if room == 0 {
                let start = to.0 + (at / size) as u64 * sector;
                runs.push((LogicalAddress(start), Vec::new()));
                continue;
            }
            let end = sums.len().min(at + room);
            runs.last_mut().expect("there is room in it").1.extend_from_slice(&sums[at..end]);
            at = end;
        }
    }

    /// Copies a portion. Returns its checksums in a row.
    fn gather(&self, portion: &Portion, tree: &Tree, buffer: &mut [u8]) -> Result<Vec<u8>, StayReason> {
        let damaged = |error: Error| StayReason::Damaged(error.to_string());
        let geometry = self.volume().geometry();
        let sector = geometry.sector_size as usize;
        let mut checksums = DataChecksums::new(tree, geometry);
        let (mut all, mut at) = (Vec::new(), 0);
        for &(from, length) in &portion.sources {
            let first = all.len();
            let mut gap = false;
            let read = checksums.for_each_run(from, length as usize / sector, |_, _, run| {
                match run {
                    Some(run) => all.extend_from_slice(run),
                    None => gap = true,
                }
                !gap
            });
            read.map_err(damaged)?;
            if gap {
                return Err(StayReason::NoChecksums);
            }
            let part = &mut buffer[at..at + length as usize];
            self.read_good(from, part, &[(from, all[first..].to_vec())]).map_err(damaged)?;
            at += length as usize;
        }
        self.volume().write(portion.to, buffer).map_err(damaged)?;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::{DataExtent, ExtentPiece};

    #[test]
    fn portions_follow_the_new_extent() {
        const K: u64 = 1024;
        let piece = |extent, offset, length| ExtentPiece {
            extent: LogicalAddress(extent),
            extent_length: 4 << 20,
            offset,
            length,
        };
        let pieces = vec![piece(0, 4 * K, 8 * K), piece(0, 12 * K, 4 * K), piece(64 << 20, 0, PORTION)];
        let length = PORTION + 12 * K;
        let place = DataExtent { address: LogicalAddress(128 << 20), length };
        let merged = MergedExtent { place, pieces, checksums: Vec::new() };
        let portions = portions_of(&[merged]);
        let sources: Vec<_> = portions.iter().map(|portion| (portion.to.0, portion.length)).collect();
        assert_eq!(sources, [(128 << 20, PORTION), ((128 << 20) + PORTION, 12 * K)]);
        let sources = [(4 * K, 8 * K), (12 * K, 4 * K), (64 << 20, PORTION - 12 * K)];
        assert_eq!(portions[0].sources, sources.map(|(from, length)| (LogicalAddress(from), length)));
        assert_eq!(portions[1].sources, [(LogicalAddress((64 << 20) + PORTION - 12 * K), 12 * K)]);
    }
}
