//! Many reads of one file in flight at once, from one thread.
//!
//! Owns [`FileRead`] and [`ReadContext::read_many`]. It carries out the reads whose extents and
//! checksums are cached. The caller carries out the others one by one, and every read that fails.
//!
//! Locks: those of the volume. Kernel counterpart: `io_uring/rw.c` (an attempt that does not wait,
//! then a worker).

use crate::data::file_data::FileData;
use crate::data::read::ReadContext;
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
    /// Carries out at once those of `reads` that are inside the file and whose extents and
    /// checksums are cached. Notes in each how many bytes it read.
    pub(crate) fn read_many(&self, file: &FileData<'_>, reads: &mut [FileRead<'_>]) {
        assert_no_handle();
        let mut placed: SmallVec<[usize; USUAL_READS]> = SmallVec::new();
        let mut requests: SmallVec<[LogicalRead<'_>; USUAL_READS]> = SmallVec::new();
        for (number, read) in reads.iter_mut().enumerate() {
            let length = read.buffer.len();
            let inside = read.offset.checked_add(length as u64).is_some_and(|end| end <= file.size);
            let located = self
                .locate_cached(file, read.offset, length)
                .filter(|&logical| inside && length > 0 && self.has_cached_checksums(file, logical, length));
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
                (number, request.result.is_ok() && self.matches_cached(file, logical, request.buffer))
            })
            .collect();
        drop(requests);
        for (number, good) in good {
            let read = &mut reads[number];
            read.read = good.then_some(read.buffer.len());
        }
    }
}
