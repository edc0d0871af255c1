//! Dedupe: sharing the extents of two ranges that hold the same bytes.
//!
//! Owns [`dedupe`].
//!
//! Invariant: nothing changes unless all bytes were compared and are equal. The files' content and
//! times stay the same.
//!
//! Locks: as [`super::clone`]. Kernel counterparts: `btrfs_extent_same` (`fs/btrfs/reflink.c`),
//! `vfs_dedupe_file_range_compare` (`fs/remap_range.c`).

use crate::data::clone::{CloneRange, CloneSource};
use crate::data::data_context::DataContext;
use crate::data::file_edit::FileEdit;
use crate::errors::{Error, Result};
use papilio_format::FileOffset;

/// The most bytes of one request. The caller splits a longer one, as the kernel does
/// (`BTRFS_MAX_DEDUPE_LEN`).
pub(crate) const MAX_DEDUPE: u64 = 16 << 20;
/// Bytes compared at once.
const COMPARED: usize = 256 << 10;

/// The result of a comparison.
#[derive(Debug)]
pub(crate) enum Deduped {
    /// The bytes are equal. The caller steps the range to its end; the source must not change
    /// before.
    Same(CloneRange),
    /// Nothing to do: the range contains no whole sector.
    Nothing,
    /// A byte differs.
    Differs,
}

/// Compares up to [`MAX_DEDUPE`] of the `length` bytes of `source` from `from` on with those of
/// `target` from `to` on. A length that is not a multiple of the sector size is rounded down,
/// unless both files end with the range.
///
/// # Errors
/// [`Error::Invalid`] as for [`CloneRange::new`], and for a range that ends after its file; a read
/// error.
pub(crate) fn dedupe(
    context: &DataContext<'_>,
    source: &CloneSource<'_>,
    from: FileOffset,
    length: u64,
    target: &FileEdit<'_>,
    to: FileOffset,
) -> Result<Deduped> {
    let in_file = |offset: FileOffset, size: u64| offset.0.checked_add(length).is_some_and(|end| end <= size);
    if !in_file(from, source.item.size) || !in_file(to, target.item.size) {
        return Err(Error::Invalid("dedupe: a range ends after the end of its file".into()));
    }
    let length = length.min(MAX_DEDUPE);
    let ends = from.0 + length == source.item.size && to.0 + length == target.item.size;
    let length = if ends { length } else { context.round_down(length) };
    if length == 0 {
        return Ok(Deduped::Nothing);
    }
    let Some(range) = CloneRange::checked(&context.rules, source, from, length, target, to, false)? else {
        return Ok(Deduped::Nothing);
    };
    let mut buffers = [vec![0; COMPARED], vec![0; COMPARED]];
    let mut done = 0;
    while done < length {
        let count = (length - done).min(COMPARED as u64) as usize;
        let [ours, theirs] = buffers.each_mut().map(|buffer| &mut buffer[..count]);
        source.read(context, from.0 + done, ours)?;
        context.read_as(target, target.item.size, to.0 + done, theirs)?;
        if ours != theirs {
            return Ok(Deduped::Differs);
        }
        done += count as u64;
    }
    Ok(Deduped::Same(range))
}
