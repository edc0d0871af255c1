//! Writing data to the device: the one way that all file data takes.
//!
//! Owns [`write_data`], which computes the checksums of a write beside its I/O. Locks: the
//! volume's. Kernel counterpart: `btrfs_submit_chunk` (`fs/btrfs/bio.c`).

use crate::data::overlap::{ChecksumBytes, checksum_and_write};
use crate::data::write_rules::WriteRules;
use crate::errors::Result;
use crate::transaction::assert_no_handle;
use crate::volume::{LogicalWrite, Volume};
use papilio_format::LogicalAddress;
use smallvec::SmallVec;

/// The parts of a write that need no allocation.
const INLINE_PARTS: usize = 16;

/// Whole sectors and the address that they go to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed<'a> {
    pub(crate) address: LogicalAddress,
    pub(crate) bytes: &'a [u8],
}

/// Writes `parts`, and returns the checksums of their sectors in a row, or none unless
/// `checksummed`. After an error some of the parts may be on the device.
///
/// # Errors
/// A device's error.
pub(crate) fn write_data(
    volume: &Volume,
    rules: &WriteRules<'_>,
    checksummed: bool,
    parts: &[Placed<'_>],
) -> Result<ChecksumBytes> {
    assert_no_handle();
    let write = || write_parts(volume, parts);
    if !checksummed {
        return write().map(|()| ChecksumBytes::new());
    }
    let (how, sector_size) = (rules.options.checksum, rules.geometry.sector_size as usize);
    let checksum_type = rules.geometry.checksum_type;
    let bytes: SmallVec<[&[u8]; INLINE_PARTS]> = parts.iter().map(|part| part.bytes).collect();
    let (checksums, written) = checksum_and_write(how, checksum_type, sector_size, &bytes, write);
    written.map(|()| checksums)
}

fn write_parts(volume: &Volume, parts: &[Placed<'_>]) -> Result<()> {
    if let [part] = parts {
        return volume.write(part.address, part.bytes);
    }
    let mut writes: SmallVec<[LogicalWrite<'_>; INLINE_PARTS]> =
        parts.iter().map(|part| LogicalWrite::new(part.address, part.bytes)).collect();
    volume.write_many(&mut writes);
    writes.into_iter().try_for_each(|write| write.result)
}
