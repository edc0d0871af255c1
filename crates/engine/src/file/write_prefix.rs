//! Writes that store what fits.
//!
//! Owns [`OpenFile::write_prefix`]. A write for which there is not enough space, or that a qgroup's
//! limit does not allow as a whole, stores its first sectors, as many as find space. So the file is
//! a prefix of what was written, up to the last sector that fits.
//!
//! Invariant: the pieces end where sectors end, so that no sector is written twice: on a full file
//! system the second time would need the space again.
//!
//! Locks: those of the write. Kernel counterpart: `btrfs_buffered_write` (`fs/btrfs/file.c`), which
//! reserves the space of one folio after the other.

use crate::errors::{Error, QuotaError, Result};
use crate::file::open_file::{OpenFile, Stamp};
use crate::file::write_promise::WritePromise;

impl OpenFile {
    /// Writes `data` at byte `offset`, in the space of `promise` as far as that lasts; neither
    /// offset nor length has to be aligned. Bytes between the old end and `offset` read as zeros.
    /// Adds the number of bytes that are stored to `stored`, also where it fails.
    ///
    /// # Errors
    /// As [`OpenFile::write_whole`].
    pub fn write_prefix(
        &self,
        data: &[u8],
        offset: u64,
        (stamp, promise): (Stamp, WritePromise),
        stored: &mut usize,
    ) -> Result<()> {
        let mut done = 0;
        let result = match self.write_whole(data, offset, stamp, promise, &mut done) {
            Err(error) if is_scarcity(&error) && done < data.len() => {
                self.write_pieces(data, offset, stamp, &mut done, error)
            }
            whole => whole,
        };
        *stored += done;
        result
    }

    /// Writes the rest of `data`, from byte `done` on, in smaller and smaller pieces.
    fn write_pieces(
        &self,
        data: &[u8],
        offset: u64,
        stamp: Stamp,
        done: &mut usize,
        mut error: Error,
    ) -> Result<()> {
        let sector = self.fs.sector_size() as usize;
        let piece = |done: &mut usize, step: usize| {
            let at = offset + *done as u64;
            let rest = &data[*done..];
            let part = &rest[..piece_length(at, step, sector).min(rest.len())];
            self.write_whole(part, at, stamp, WritePromise::default(), done)
        };
        // Where not even one sector fits, the second attempt is the last.
        piece(done, sector)?;
        let mut step = ((data.len() - *done).next_power_of_two() / 2).max(sector);
        while *done < data.len() && step >= sector {
            match piece(done, step) {
                Ok(()) => {}
                Err(again) if is_scarcity(&again) => {
                    error = again;
                    step /= 2;
                }
                Err(again) => return Err(again),
            }
        }
        if *done < data.len() { Err(error) } else { Ok(()) }
    }
}

/// Returns whether a smaller write may have another result.
fn is_scarcity(error: &Error) -> bool {
    matches!(error, Error::NoSpace { .. } | Error::Quota(QuotaError::Exceeded { .. }))
}

/// Returns the length of a piece at file offset `at`: `step`, cut to the last end of a sector in
/// it.
fn piece_length(at: u64, step: usize, sector: usize) -> usize {
    let beyond = (at % sector as u64) as usize;
    if step > beyond { step - beyond } else { sector - beyond }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_with_sectors() {
        for (at, step, length) in [
            (0, 4096, 4096),
            (1, 4096, 4095),
            (4095, 4096, 1),
            (8192, 65_536, 65_536),
            (8193, 65_536, 65_535),
        ] {
            assert_eq!(piece_length(at, step, 4096), length, "{step} bytes at {at}");
            assert!((at + length as u64).is_multiple_of(4096));
        }
    }
}
