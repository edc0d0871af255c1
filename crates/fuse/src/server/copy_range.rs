//! `copy_file_range`: shares whole sectors and copies the rest.
//!
//! FUSE passes no `FICLONE` on, so `cp` shares data through this call. If both offsets have the
//! same remainder within a sector, the sectors between the first and the last boundary are cloned,
//! and the last partial sector too if it ends both files. Otherwise bytes are copied, as they are
//! if the files cannot share because one of them has no checksums.

use super::state::Server;
use crate::ioctl::Caller;
use crate::nodes::stale;
use crate::transport::{CopyRange, DataChange};
use papilio::format::items::inode::InodeFlags;
use papilio::{ErrorKind, File};
use papilio_ioctl::Errno;

/// Bytes copied at a time.
const STEP: usize = 1 << 20;
/// Maximum number of bytes that one call copies, so that it can be interrupted. Callers continue
/// from the end of the copy.
const COPY_MAX: u64 = 64 << 20;

impl Server {
    /// Copies a range and shares extents where possible; returns the number of bytes copied.
    pub(crate) fn copy_range(&self, caller: Caller, range: &CopyRange) -> Result<(u64, DataChange), Errno> {
        let (source, target) = (self.node(range.source)?, self.node(range.target)?);
        let (from, to) = (self.used(&source)?, self.used(&target)?);
        let (from, to) = (from.file()?, to.file()?);
        self.check_change_unopened(&target, range.target_offset, None)?;
        if target.current(&self.fs())?.metadata().flags().contains(InodeFlags::IMMUTABLE) {
            return Err(Errno(libc::EPERM));
        }
        let size = from.len();
        let length = range.length.min(size.saturating_sub(range.source_offset));
        if length == 0 {
            return Ok((0, DataChange::default()));
        }
        let copy = Copy { from, to, delta: range.target_offset.wrapping_sub(range.source_offset) };
        let (start, end) = (range.source_offset, range.source_offset + length);
        let done = copy.share_or_copy(start, end, size, self.sector_size().into()).map_err(stale)?;
        self.changed(&target);
        let changed = self.after_change(caller, &target)?;
        self.note_read(&source, 0);
        Ok((done, changed))
    }
}

struct Copy<'a> {
    from: &'a File,
    to: &'a File,
    /// Difference from an offset in the source to the offset in the target, modulo 2^64.
    delta: u64,
}

impl Copy<'_> {
    /// Returns the number of bytes done from `start` on; an error only if there are none.
    fn share_or_copy(&self, start: u64, end: u64, size: u64, sector: u64) -> papilio::Result<u64> {
        let first = start.next_multiple_of(sector);
        let whole_file = end == size && self.there(end) >= self.to.size()?;
        let last = if whole_file { end } else { end / sector * sector };
        if !self.delta.is_multiple_of(sector) || first >= last {
            return self.copy(start, end);
        }
        let mut done = self.copy(start, first)?;
        if done < first - start {
            return Ok(done);
        }
        match self.to.clone_range(self.from, first, last - first, self.there(first)) {
            Ok(()) => done += last - first,
            // The files cannot share data, but the bytes can be copied.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                done += self.partly(done, self.copy(first, end))?;
                return Ok(done);
            }
            Err(error) => {
                self.partly(done, Err(error))?;
                return Ok(done);
            }
        }
        done += self.partly(done, self.copy(last, end))?;
        Ok(done)
    }

    fn there(&self, offset: u64) -> u64 {
        offset.wrapping_add(self.delta)
    }

    /// Drops an error after some bytes were done: the next call meets it again.
    fn partly(&self, done: u64, result: papilio::Result<u64>) -> papilio::Result<u64> {
        if done > 0 { Ok(result.unwrap_or(0)) } else { result }
    }

    fn copy(&self, start: u64, end: u64) -> papilio::Result<u64> {
        let end = end.min(start.saturating_add(COPY_MAX));
        let mut buffer = vec![0; STEP.min((end - start) as usize)];
        let mut at = start;
        while at < end {
            let step = buffer.len().min((end - at) as usize);
            let copied = self.from.read_at(&mut buffer[..step], at).and_then(|read| {
                self.to.write_at(&buffer[..read], self.there(at)).map(|stored| stored as u64)
            });
            match self.partly(at - start, copied)? {
                0 => break,
                read => at += read,
            }
        }
        Ok(at - start)
    }
}
