//! Space of files: allocation, holes, shared ranges and extents.

use crate::arguments::{check_array, store};
use crate::failure::{Failure, Result, guard, guard_unit};
use crate::file::{OpenFile, file_of, papilio_file};
use crate::file_system::count;
use libc::{c_int, size_t};
use papilio::{DefragmentOptions, FileExtentKind};
use std::sync::Arc;

/// Flag of papilio_fallocate(): the size of the file does not change.
pub const PAPILIO_KEEP_SIZE: u32 = 0x1;
/// Flag of papilio_fallocate(), with PAPILIO_KEEP_SIZE: makes a hole.
pub const PAPILIO_PUNCH_HOLE: u32 = 0x2;
/// Flag of papilio_fallocate(): the range reads as zeros afterwards.
pub const PAPILIO_ZERO_RANGE: u32 = 0x10;

/// Allocates space for `length` bytes at `offset`. `mode` is 0, PAPILIO_KEEP_SIZE,
/// PAPILIO_ZERO_RANGE, both, or PAPILIO_PUNCH_HOLE with PAPILIO_KEEP_SIZE, which frees the space.
/// The values are those of fallocate(2).
///
/// Returns 0 or a negative errno: -ENOSPC, -EOPNOTSUPP for another mode.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_fallocate(file: *mut papilio_file, mode: u32, offset: u64, length: u64) -> c_int {
    const PUNCH: u32 = PAPILIO_PUNCH_HOLE | PAPILIO_KEEP_SIZE;
    const ZERO_KEEP: u32 = PAPILIO_ZERO_RANGE | PAPILIO_KEEP_SIZE;
    guard_unit(|| {
        let file = file_of(file)?;
        if length == 0 {
            return Err(Failure::invalid("the length is 0"));
        }
        match mode {
            0 | PAPILIO_KEEP_SIZE => file.allocate(offset, length, mode == PAPILIO_KEEP_SIZE)?,
            PUNCH => file.punch_hole(offset, length)?,
            PAPILIO_ZERO_RANGE | ZERO_KEEP => file.zero_range(offset, length, mode == ZERO_KEEP)?,
            _ => return Err(Failure::new(libc::EOPNOTSUPP, format!("mode {mode:#x} is not supported"))),
        }
        Ok(())
    })
}

/// Lets the file `to` share `length` bytes of the file `from`, from `from_offset` on, at
/// `to_offset`. A `length` of 0 means up to the end of `from`. Both may be the same file. Offsets
/// are multiples of the sector size, usually 4096; so is the length, unless it ends at the end of
/// `from`.
///
/// Returns 0 or a negative errno: -EXDEV for files of two file systems.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_clone_range(
    from: *mut papilio_file,
    from_offset: u64,
    length: u64,
    to: *mut papilio_file,
    to_offset: u64,
) -> c_int {
    guard_unit(|| {
        let (from, to) = (file_of(from)?, file_of(to)?);
        same_file_system(&from, &to)?;
        Ok(to.clone_range(&from, from_offset, length, to_offset)?)
    })
}

/// Shares a range as papilio_clone_range() does, if the bytes of both files are equal.
///
/// Returns the bytes shared, or a negative errno: -EXDEV for files of two file systems, -EILSEQ if
/// the ranges differ.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_dedupe_range(
    from: *mut papilio_file,
    from_offset: u64,
    length: u64,
    to: *mut papilio_file,
    to_offset: u64,
) -> i64 {
    guard(|| {
        let (from, to) = (file_of(from)?, file_of(to)?);
        same_file_system(&from, &to)?;
        match to.dedupe_range(&from, from_offset, length, to_offset)? {
            Some(bytes) => Ok(count(bytes)),
            None => Err(Failure::new(libc::EILSEQ, "the ranges differ")),
        }
    })
}

fn same_file_system(from: &OpenFile, to: &OpenFile) -> Result<()> {
    if Arc::ptr_eq(from.user().fs(), to.user().fs()) {
        return Ok(());
    }
    Err(Failure::new(libc::EXDEV, "the files are on two file systems"))
}

/// Value of papilio_extent.kind: in the leaf with the inode.
pub const PAPILIO_EXTENT_INLINE: u32 = 0;
/// Value of papilio_extent.kind: in an extent on disk.
pub const PAPILIO_EXTENT_REGULAR: u32 = 1;
/// Value of papilio_extent.kind: allocated, but not written.
pub const PAPILIO_EXTENT_PREALLOCATED: u32 = 2;

/// An extent of a file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_extent {
    /// The file offset of the first byte.
    pub start: u64,
    /// The length in bytes of the file.
    pub length: u64,
    /// The logical address of the whole extent, of which the file may use a part; 0 if inline.
    pub address: u64,
    /// The bytes that the whole extent takes on disk.
    pub stored: u64,
    /// The uncompressed bytes of the whole extent.
    pub uncompressed: u64,
    /// Where the file's part begins in the extent, in uncompressed bytes.
    pub offset: u64,
    /// The transaction that wrote the extent.
    pub generation: u64,
    /// PAPILIO_EXTENT_*.
    pub kind: u32,
    /// The compression: 0 none, 1 zlib, 2 lzo, 3 zstd.
    pub compression: u32,
}

const _: () = assert!(size_of::<papilio_extent>() == 7 * 8 + 2 * 4);

/// Stores the extents of the file in the array `extents`, in order and without holes, starting with
/// the one that contains byte `offset`: at most `count` of them. The layout of papilio_extent is
/// fixed.
///
/// Returns the number stored, fewer than `count` only at the end of the file, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_extents(
    file: *mut papilio_file,
    offset: u64,
    extents: *mut papilio_extent,
    count: size_t,
) -> i64 {
    guard(|| {
        check_array(extents.cast_const(), count, "extents")?;
        let found = file_of(file)?.extents(offset, count)?;
        for (index, extent) in found.iter().take(count).enumerate() {
            let value = papilio_extent {
                start: extent.start.0,
                length: extent.length,
                address: extent.address.0,
                stored: extent.stored,
                uncompressed: extent.uncompressed,
                offset: extent.offset,
                generation: extent.generation.0,
                kind: match extent.kind {
                    FileExtentKind::Inline => PAPILIO_EXTENT_INLINE,
                    FileExtentKind::Regular => PAPILIO_EXTENT_REGULAR,
                    FileExtentKind::Preallocated => PAPILIO_EXTENT_PREALLOCATED,
                },
                compression: extent.compression as u32,
            };
            // SAFETY: the array was checked, and the caller promises memory for `count` extents.
            unsafe { store(extents.add(index), value) };
        }
        Ok(found.len().min(count) as i64)
    })
}

/// Writes small extents in a range of bytes anew as larger ones, without a change of the content or
/// the times. A `length` of 0 means up to the end of the file. Extents that snapshots share are
/// copied.
///
/// Returns the bytes rewritten, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_defragment(file: *mut papilio_file, offset: u64, length: u64) -> i64 {
    guard(|| {
        let end = if length == 0 { u64::MAX } else { offset.saturating_add(length) };
        Ok(count(file_of(file)?.defragment(offset..end, &DefragmentOptions::default(), |_| true)?))
    })
}

/// Writes the file's cached data back to the device, and drops it from the page cache.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_file_drop_cache(file: *mut papilio_file) -> c_int {
    guard_unit(|| Ok(file_of(file)?.drop_cache()?))
}
