//! Writing data to the device: the one way that all file data takes.
//!
//! Owns [`write_data`], which computes the checksums of a write beside its I/O. Locks: those of the volume. Kernel
//! counterpart: `btrfs_submit_chunk` (`fs/btrfs/bio.c`).

use crate::data::overlap::{Sums, sum_and_write};
use crate::data::write_rules::WriteRules;
use crate::errors::Result;
use crate::transaction::assert_no_handle;
use crate::volume::{LogicalWrite, Volume};
use papilio_format::LogicalAddress;
use smallvec::SmallVec;

/// Pieces that a write places without an allocation.
const FEW: usize = 16;

/// Whole sectors and the address that they go to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed<'a> {
    pub(crate) address: LogicalAddress,
    pub(crate) bytes: &'a [u8],
}

/// Writes `pieces` and, for a file that has checksums (`summed`), returns those of their sectors one after the other.
/// After an error some of the pieces may be on the device.
///
/// # Errors
/// A device's error.
pub(crate) fn write_data(
    volume: &Volume,
    rules: &WriteRules<'_>,
    summed: bool,
    pieces: &[Placed<'_>],
) -> Result<Sums> {
    assert_no_handle();
    let write = || write_pieces(volume, pieces);
    if !summed {
        return write().map(|()| Sums::new());
    }
    let (how, sector_size) = (rules.options.checksum, rules.geometry.sector_size as usize);
    let checksum_type = rules.geometry.checksum_type;
    let bytes: SmallVec<[&[u8]; FEW]> = pieces.iter().map(|piece| piece.bytes).collect();
    let (sums, written) = sum_and_write(how, checksum_type, sector_size, &bytes, write);
    written.map(|()| sums)
}

fn write_pieces(volume: &Volume, pieces: &[Placed<'_>]) -> Result<()> {
    if let [piece] = pieces {
        return volume.write(piece.address, piece.bytes);
    }
    let mut writes: SmallVec<[LogicalWrite<'_>; FEW]> =
        pieces.iter().map(|piece| LogicalWrite::new(piece.address, piece.bytes)).collect();
    volume.write_many(&mut writes);
    writes.into_iter().try_for_each(|write| write.result)
}
