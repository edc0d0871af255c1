//! Many reads of one file in one request to the devices.
//!
//! Owns [`FileRead`] and [`ReadContext::read_batch`]. A thread has as many requests in flight as the devices take, without a
//! thread for each. Only reads that memory places are batched: an uncompressed extent and its checksums in the caches of
//! the open file. All others are left to the caller, one by one, and so is every read that fails.
//!
//! Locks: those of the volume. Kernel counterpart: `io_uring/rw.c` (an attempt that does not wait, then a worker).

use crate::data::read::{FileData, ReadContext};
use crate::transaction::assert_no_handle;
use crate::volume::LogicalRead;
use papilio_format::LogicalAddress;
use smallvec::SmallVec;

/// Reads of a batch that take no allocation.
const USUAL_READS: usize = 64;

/// One read of a batch.
#[derive(Debug)]
pub(crate) struct FileRead<'a> {
    /// File offset in bytes.
    pub(crate) offset: u64,
    pub(crate) buffer: &'a mut [u8],
    /// Bytes that were read; `None` where the caller has to read them.
    pub(crate) read: Option<usize>,
}

impl ReadContext {
    /// Carries out those of `reads` that memory places, all at once, and notes in each how many bytes it read. Reads that
    /// reach past the end of the file are not placed.
    pub(crate) fn read_batch(&self, file: &FileData<'_>, reads: &mut [FileRead<'_>]) {
        assert_no_handle();
        let mut placed: SmallVec<[usize; USUAL_READS]> = SmallVec::new();
        let mut requests: SmallVec<[LogicalRead<'_>; USUAL_READS]> = SmallVec::new();
        for (number, read) in reads.iter_mut().enumerate() {
            let length = read.buffer.len();
            let inside = read.offset.checked_add(length as u64).is_some_and(|end| end <= file.size);
            let located = self
                .locate_in_one_piece(file, read.offset, length)
                .filter(|&logical| inside && length > 0 && self.has_checksums_at_hand(file, logical, length));
            if let Some(logical) = located {
                placed.push(number);
                requests.push(LogicalRead::new(logical, &mut *read.buffer));
            }
        }
        self.volume.read_many(&mut requests);
        let good: SmallVec<[(usize, bool); USUAL_READS]> = placed
            .iter()
            .zip(&requests)
            .map(|(&number, request)| {
                let logical: LogicalAddress = request.logical;
                (number, request.result.is_ok() && self.is_verified(file, logical, request.buffer))
            })
            .collect();
        drop(requests);
        for (number, good) in good {
            let read = &mut reads[number];
            read.read = good.then_some(read.buffer.len());
        }
    }
}
