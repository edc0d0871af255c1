//! The bytes of data extents, stored in another way.
//!
//! Owns [`FsInfo::recode_extents`], which reads the used bytes of extents and compresses them, and
//! [`FsInfo::write_recoded`], which writes them to new space. Several portions are under way at
//! once.
//!
//! **Invariants**
//! - Every byte is verified on the way, and taken from a copy that fits its checksum.
//! - A piece has at most 128 KiB of data if it is compressed. Neighbours that do not become smaller
//!   are one piece.
//! - The caller keeps the old space from being reused.
//!
//! **Locks**: those of reading and writing a volume.
//!
//! Kernel counterpart: `compress_file_range` (`fs/btrfs/inode.c`).

use crate::btree::Tree;
use crate::data::checksum::DataChecksums;
use crate::data::{compress, decompress};
use crate::errors::{Error, Result};
use crate::file::fs_info::FsInfo;
use crate::options::CompressionChoice;
use crate::transaction::{ExtentUse, MovedPiece, StayReason, csum_items};
use crate::workers::{each_at_once, threads};
use papilio_device::AlignedBuffer;
use papilio_format::items::file_extent::{Compression, MAX_UNCOMPRESSED};
use papilio_format::{LogicalAddress, objectid};
use std::ops::Range;

/// Runs of checksums, by the address of their first sector.
pub(super) type Sums = Vec<(LogicalAddress, Vec<u8>)>;

/// Bytes of an extent as they are to be stored.
#[derive(Debug)]
pub(super) struct Recoded {
    /// Where they are in the old extent, without compression.
    pub(super) range: Range<u64>,
    pub(super) compression: Compression,
    /// Whole sectors.
    pub(super) bytes: Vec<u8>,
}

/// A part of an extent that is read and compressed at once.
struct PlainPart<'e> {
    extent: usize,
    address: LogicalAddress,
    used: &'e ExtentUse,
    range: Range<u64>,
}

/// Cuts the used bytes of extents into portions, in order.
fn portions_of<'e>(extents: &'e [(LogicalAddress, &'e ExtentUse)]) -> Vec<PlainPart<'e>> {
    let mut portions = Vec::new();
    for (extent, &(address, used)) in extents.iter().enumerate() {
        for range in &used.ranges {
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min(at + MAX_UNCOMPRESSED);
                portions.push(PlainPart { extent, address, used, range: at..end });
                at = end;
            }
        }
    }
    portions
}

impl FsInfo {
    /// Reads the used bytes of extents, and compresses them if `choice` says so. Returns for each
    /// extent its pieces, or why it stays.
    ///
    /// # Errors
    /// The checksum tree cannot be found.
    pub(super) fn recode_extents(
        &self,
        extents: &[(LogicalAddress, &ExtentUse)],
        choice: CompressionChoice,
    ) -> Result<Vec<Result<Vec<Recoded>, StayReason>>> {
        let tree = self.transactions()?.live().get(objectid::CSUM_TREE)?.tree();
        let portions = portions_of(extents);
        let done = each_at_once(&portions, threads(self.volume().waits()), |portion| {
            self.recode(portion, &tree, choice)
        });
        let mut all: Vec<_> = extents.iter().map(|_| Ok(Vec::new())).collect();
        for (portion, recoded) in portions.iter().zip(done) {
            let own: &mut Result<Vec<Recoded>, StayReason> = &mut all[portion.extent];
            match (own.as_mut(), recoded) {
                (Ok(pieces), Ok(recoded)) => add_piece(pieces, recoded),
                (Ok(_), Err(reason)) => *own = Err(reason),
                (Err(_), _) => {}
            }
        }
        Ok(all)
    }

    fn recode(
        &self,
        portion: &PlainPart<'_>,
        tree: &Tree,
        choice: CompressionChoice,
    ) -> Result<Recoded, StayReason> {
        let plain = self.plain_bytes(portion, tree)?;
        let sector = self.volume().geometry().sector_size;
        let range = portion.range.clone();
        let mut packed = Vec::new();
        let verify = self.tuning.verify_compression;
        if choice != CompressionChoice::NONE && compress(choice, &plain, &mut packed, sector, verify) {
            return Ok(Recoded { range, compression: choice.algorithm(), bytes: packed });
        }
        Ok(Recoded { range, compression: Compression::None, bytes: plain })
    }

    /// Reads the bytes of a portion, without compression.
    fn plain_bytes(&self, portion: &PlainPart<'_>, tree: &Tree) -> Result<Vec<u8>, StayReason> {
        let (used, range) = (portion.used, &portion.range);
        let damaged = |error: Error| StayReason::Damaged(error.to_string());
        if used.compression == Compression::None {
            let from = LogicalAddress(portion.address.0 + range.start);
            return self.verified(from, range.end - range.start, tree);
        }
        let packed = self.verified(portion.address, used.length, tree)?;
        let sector = self.volume().geometry().sector_size;
        let mut plain = vec![0; used.plain_length as usize];
        decompress(used.compression, &packed, &mut plain, sector).map_err(|reason| {
            damaged(Error::Invalid(format!("extent {} cannot be decompressed: {reason}", portion.address)))
        })?;
        Ok(plain[range.start as usize..range.end as usize].to_vec())
    }

    /// Reads bytes of an extent as they lie, and verifies them.
    fn verified(&self, from: LogicalAddress, length: u64, tree: &Tree) -> Result<Vec<u8>, StayReason> {
        let damaged = |error: Error| StayReason::Damaged(error.to_string());
        let geometry = self.volume().geometry();
        let (mut sums, mut gap) = (Vec::new(), false);
        let sectors = (length / u64::from(geometry.sector_size)) as usize;
        let mut checksums = DataChecksums::new(tree, geometry);
        let read = checksums.for_each_run(from, sectors, |_, _, run| {
            match run {
                Some(run) => sums.extend_from_slice(run),
                None => gap = true,
            }
            !gap
        });
        read.map_err(damaged)?;
        if gap {
            return Err(StayReason::NoChecksums);
        }
        let mut buffer = AlignedBuffer::for_direct_io(length as usize);
        self.read_good(from, &mut buffer[..length as usize], &[(from, sums)]).map_err(damaged)?;
        Ok(buffer[..length as usize].to_vec())
    }

    /// Writes pieces to their places. Returns the checksums of each, or why it cannot be written.
    pub(super) fn write_recoded(&self, pieces: &[(MovedPiece, Vec<u8>)]) -> Vec<Result<Sums, StayReason>> {
        each_at_once(pieces, threads(self.volume().waits()), |(piece, bytes)| {
            let mut buffer = AlignedBuffer::for_direct_io(bytes.len());
            buffer[..bytes.len()].copy_from_slice(bytes);
            let at = piece.place.address;
            let written = self.volume().write(at, &buffer[..bytes.len()]);
            written.map_err(|error| StayReason::Damaged(error.to_string()))?;
            Ok(self.sums_of(at, bytes))
        })
    }

    /// Computes the checksums of sectors from an address on, in runs that fit into an item.
    fn sums_of(&self, at: LogicalAddress, bytes: &[u8]) -> Sums {
        let geometry = self.volume().geometry();
        let (sector, size) = (geometry.sector_size as usize, geometry.checksum_type.size());
        let most = csum_items::max_sums(&geometry).max(1);
        let runs = bytes.chunks(most * sector).enumerate();
        let run = |(number, run): (usize, &[u8])| {
            let mut sums = Vec::with_capacity(run.len() / sector * size);
            for one in run.chunks_exact(sector) {
                sums.extend_from_slice(&geometry.checksum_type.compute(one).padded()[..size]);
            }
            (LogicalAddress(at.0 + (number * most * sector) as u64), sums)
        };
        runs.map(run).collect()
    }
}

/// Adds the next piece of an extent. One that is not compressed joins such a neighbour.
fn add_piece(pieces: &mut Vec<Recoded>, next: Recoded) {
    let joins = |last: &&mut Recoded| {
        last.compression == Compression::None
            && next.compression == Compression::None
            && last.range.end == next.range.start
    };
    match pieces.last_mut().filter(joins) {
        Some(last) => {
            last.range.end = next.range.end;
            last.bytes.extend_from_slice(&next.bytes);
        }
        None => pieces.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1024;

    #[test]
    fn portions_lie_in_the_used_ranges() {
        let used = ExtentUse {
            length: 1024 * K,
            plain_length: 1024 * K,
            compression: Compression::None,
            ranges: vec![4 * K..300 * K, 400 * K..404 * K],
            parts: Vec::new(),
            references: 1,
        };
        let extents = [(LogicalAddress(1 << 20), &used)];
        let ranges: Vec<_> = portions_of(&extents).into_iter().map(|portion| portion.range).collect();
        assert_eq!(ranges, [4 * K..132 * K, 132 * K..260 * K, 260 * K..300 * K, 400 * K..404 * K]);
    }

    #[test]
    fn what_is_not_compressed_joins_its_neighbour() {
        let piece = |start: u64, compression| Recoded {
            range: start * K..(start + 4) * K,
            compression,
            bytes: vec![0; 4096],
        };
        let mut pieces = Vec::new();
        for (start, compression) in
            [(0, Compression::None), (4, Compression::None), (8, Compression::Zstd), (12, Compression::None)]
        {
            add_piece(&mut pieces, piece(start, compression));
        }
        add_piece(&mut pieces, piece(20, Compression::None));
        let ranges: Vec<_> =
            pieces.iter().map(|piece| (piece.range.start / K, piece.range.end / K)).collect();
        assert_eq!(ranges, [(0, 8), (8, 12), (12, 16), (20, 24)]);
        assert_eq!(pieces[0].bytes.len(), 8192);
    }
}
