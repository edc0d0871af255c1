//! Reads in flight of a file system that is open for reading only.
//!
//! Owns [`CommittedRead`]: as [`super::in_flight_io`], without what writers need. No lock is held
//! between its two halves. Kernel counterpart: `fs/btrfs/direct-io.c`.

use crate::btree::without_waiting;
use crate::data::{FileData, StartedRead};
use crate::errors::{Error, Result};
use crate::file::fs_info::FsInfo;
use crate::file::in_flight_io::{Begin, MAX_REQUEST, MayWait};
use crate::volume::Pieces;

/// A read in flight.
#[derive(Debug)]
pub struct CommittedRead(StartedRead);

impl FsInfo {
    /// Begins a read of `length` bytes at `offset`, and adds its pieces. With `may_wait` it waits
    /// for tree blocks that are not cached; else the answer is then [`Begin::Wait`].
    pub fn begin_committed_read(
        &self,
        file: &FileData<'_>,
        (offset, length): (u64, usize),
        may_wait: MayWait,
        pieces: &mut Pieces,
    ) -> Begin<CommittedRead> {
        if length > MAX_REQUEST {
            return Begin::Wait;
        }
        let mut place = || {
            let read = self.reader.place_read(file, offset, length, pieces)?;
            if let Some(read) = &read {
                self.reader.load_checksums(file, read)?;
            }
            Ok::<_, Error>(read)
        };
        let placed = match may_wait {
            MayWait::Yes => place(),
            MayWait::No => without_waiting(place),
        };
        if let Ok(Some(read)) = placed {
            return Begin::Started(CommittedRead(read));
        }
        pieces.clear();
        // A call that waits meets the error, too.
        Begin::Wait
    }

    /// Returns whether `data`, in which the pieces of a read have arrived, is valid. If not, a call
    /// that waits reads it anew, from other copies, too.
    ///
    /// # Errors
    /// A block of the checksum tree that cannot be read.
    pub fn is_valid_read(&self, file: &FileData<'_>, read: &CommittedRead, data: &[u8]) -> Result<bool> {
        self.reader.is_valid(file, &read.0, data)
    }

    /// Returns whether there is no second copy of any part, so that an error is final.
    pub fn has_one_copy(&self, read: &CommittedRead) -> bool {
        self.reader.has_one_copy(&read.0)
    }
}
