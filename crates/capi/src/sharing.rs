//! Which subvolumes share which bytes: the cost of snapshots.
//!
//! One reading of the trees answers for every subvolume and every set of them. It needs no quotas.
//! The answers are an object of their own, which outlives the file system.

use crate::arguments::{
    Extensible, array, check_array, check_result, check_structure, store, store_structure, zeroed,
};
use crate::failure::{Failure, guard, guard_unit};
use crate::file_system::{User, count, fs_of, papilio_fs};
use crate::handles::{self, handle};
use crate::streams::{Progress, canceled, papilio_progress_fn};
use crate::subvolumes::past_end;
use libc::{c_char, c_int, c_void, size_t};
use papilio::{Estimate, SharingOptions, SpaceSharing, SubvolumeSpace, TreeId};
use std::ffi::CString;

/// Bit of papilio_sharing_statistics.flags: bytes of data are estimates.
pub const PAPILIO_SHARING_SAMPLED: u32 = 0x1;

/// Bytes as they lie on disk, compressed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_estimate {
    /// Bytes of data, without copies.
    pub data: u64,
    /// Bytes of tree blocks, without copies.
    pub metadata: u64,
    /// Bytes of data on devices, with all copies and parity.
    pub raw_data: u64,
    /// Bytes of tree blocks on devices, with all copies.
    pub raw_metadata: u64,
    /// The true bytes of data differ by no more than so many in 95 of 100 samples; 0 if they were
    /// counted.
    pub data_error: u64,
}

// SAFETY: it consists of integers of one size.
unsafe impl Extensible for papilio_estimate {
    const FIRST_SIZE: usize = 5 * 8;
}

/// The space of a subvolume.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_subvolume_space {
    /// The subvolume's id.
    pub id: u64,
    /// Bytes that it holds, alone or with others.
    pub referenced: papilio_estimate,
    /// Bytes that only it holds: deleting it, and nothing else, frees them.
    pub exclusive: papilio_estimate,
    /// Its path from the top level, without a leading slash; NULL if it has none. It belongs to the
    /// answers.
    pub path: *const c_char,
    /// The bytes of the path, without the NUL.
    pub path_length: size_t,
}

// SAFETY: it consists of integers and a pointer without padding, as the assertion verifies.
unsafe impl Extensible for papilio_subvolume_space {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(
    size_of::<papilio_subvolume_space>()
        == 8 + 2 * size_of::<papilio_estimate>() + size_of::<*const u8>() + size_of::<usize>()
);

/// The numbers of blocks that were read, and of those that could not be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_sharing_statistics {
    /// Subvolumes that were measured.
    pub subvolumes: u64,
    /// Subvolumes that are deleted and not yet cleaned. They are no holders.
    pub in_deletion: u64,
    /// Tree blocks of subvolumes.
    pub blocks: u64,
    /// Leaves that were read.
    pub leaves_read: u64,
    /// Tree blocks that could not be read: nothing below them is counted.
    pub bad_blocks: u64,
    /// The number of texts of papilio_sharing_error().
    pub errors: u64,
    /// Bits PAPILIO_SHARING_*.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it consists of integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_sharing_statistics {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(size_of::<papilio_sharing_statistics>() == 6 * 8 + 2 * 4);

/// The answers, with their texts for the program.
pub(crate) struct Sharing {
    sharing: SpaceSharing,
    rows: Vec<(SubvolumeSpace, Option<CString>)>,
    errors: Vec<CString>,
}

/// Which subvolumes share which bytes. Made by papilio_space_sharing(), freed by
/// papilio_sharing_free().
#[allow(non_camel_case_types)]
pub struct papilio_sharing {
    _incomplete: (),
}

handle!(papilio_sharing for Sharing);

/// Reads the trees of all subvolumes of `fs`, after a commit, and finds out which of them share
/// which bytes. References take at most `memory_bytes`, 0 for 256 MiB; more go to a temporary file.
/// With `sampled_leaves` other than 0, only about so many leaves are read, and bytes of data are
/// estimated. `progress` is NULL or called with `user`: with the blocks of one level that were
/// read, those that are known, and the level. The answers go to `*sharing`. Free them with
/// papilio_sharing_free().
///
/// Returns 0 or a negative errno: -ECANCELED if `progress` returns other than 0. Blocks that cannot
/// be read are left out and counted by papilio_sharing_statistics_get().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_space_sharing(
    fs: *mut papilio_fs,
    memory_bytes: size_t,
    sampled_leaves: u64,
    progress: papilio_progress_fn,
    user: *mut c_void,
    sharing: *mut *mut papilio_sharing,
) -> c_int {
    guard_unit(|| {
        check_result(sharing, "sharing")?;
        let user_of = User::new(&fs_of(fs)?)?;
        let mut options = SharingOptions::default();
        if memory_bytes > 0 {
            options.memory_bytes = memory_bytes;
        }
        options.sampled_leaves = (sampled_leaves > 0).then_some(sampled_leaves);
        let mut progress = Progress::new(progress, user);
        let measured = user_of.fs().space_sharing(&options, |now| {
            progress.call(now.blocks, now.known_blocks, now.level.into());
            !progress.is_canceled()
        })?;
        let measured = measured.ok_or_else(canceled)?;
        let object = Sharing {
            rows: measured.by_subvolume().into_iter().map(with_path).collect(),
            errors: measured.errors().iter().map(|error| c_text(error.to_string())).collect(),
            sharing: measured,
        };
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(sharing, handles::insert(object)) };
        Ok(())
    })
}

/// Returns a text for the program. Only a hostile image has a NUL in a name; the length tells.
pub(crate) fn c_text(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap_or_default()
}

fn with_path(space: SubvolumeSpace) -> (SubvolumeSpace, Option<CString>) {
    let path = space.subvolume.path.clone().map(c_text);
    (space, path)
}

/// Returns the pointer to a text of a list, and its length.
pub(crate) fn pointer_to(text: Option<&CString>) -> (*const c_char, size_t) {
    match text {
        Some(text) => (text.as_ptr(), text.as_bytes().len()),
        None => (std::ptr::null(), 0),
    }
}

fn estimate(found: &Estimate) -> papilio_estimate {
    papilio_estimate {
        data: found.bytes.data,
        metadata: found.bytes.metadata,
        raw_data: found.bytes.raw_data,
        raw_metadata: found.bytes.raw_metadata,
        data_error: found.data_error,
    }
}

/// Returns the number of subvolumes that were measured, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_sharing_count(sharing: *mut papilio_sharing) -> i64 {
    guard(|| Ok(count(handles::get::<Sharing>(sharing)?.rows.len() as u64)))
}

/// Describes the subvolume at `index`, counted from 0 in the order of creation. `space` points to a
/// papilio_subvolume_space, and `size` is its sizeof. Its path is valid until the answers are
/// freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_sharing_get(
    sharing: *mut papilio_sharing,
    index: size_t,
    space: *mut papilio_subvolume_space,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(space, size, "space")?;
        let object = handles::get::<Sharing>(sharing)?;
        let (found, path) = object.rows.get(index).ok_or_else(|| past_end(index, object.rows.len()))?;
        let (path, path_length) = pointer_to(path.as_ref());
        let value = papilio_subvolume_space {
            id: found.subvolume.id.0,
            referenced: estimate(&found.referenced),
            exclusive: estimate(&found.exclusive),
            path,
            path_length,
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(space, size, &value) };
        Ok(())
    })
}

/// Tells the bytes that deleting the `count` subvolumes with the ids at `ids`, and no others,
/// frees. Ids that were not measured count for nothing. `freed` points to a papilio_estimate, and
/// `size` is its sizeof.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_sharing_freed_by(
    sharing: *mut papilio_sharing,
    ids: *const u64,
    count: size_t,
    freed: *mut papilio_estimate,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(freed, size, "freed")?;
        // SAFETY: the caller promises `count` ids.
        let ids = trees(unsafe { array(ids, count, "ids") }?);
        let found = handles::get::<Sharing>(sharing)?.sharing.freed_by(&ids);
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(freed, size, &estimate(&found)) };
        Ok(())
    })
}

/// Tells the bytes of all subvolumes together. `total` points to a papilio_estimate, and `size` is
/// its sizeof.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_sharing_total(
    sharing: *mut papilio_sharing,
    total: *mut papilio_estimate,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(total, size, "total")?;
        let found = handles::get::<Sharing>(sharing)?.sharing.total();
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(total, size, &estimate(&found)) };
        Ok(())
    })
}

/// Chooses subvolumes whose deletion frees at least `wanted` bytes of data and tree blocks, the
/// first of the `count` ids at `candidates` first. None of the chosen could be spared. Their ids go
/// to `chosen`, which has room for `count` ids.
///
/// Returns the number of chosen subvolumes or a negative errno: -ENOSPC if all candidates together
/// free less.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_sharing_choose(
    sharing: *mut papilio_sharing,
    wanted: u64,
    candidates: *const u64,
    count: size_t,
    chosen: *mut u64,
) -> i64 {
    guard(|| {
        check_array(chosen.cast_const(), count, "chosen")?;
        // SAFETY: the caller promises `count` ids.
        let candidates = trees(unsafe { array(candidates, count, "candidates") }?);
        let object = handles::get::<Sharing>(sharing)?;
        let Some(found) = object.sharing.choose(wanted, &candidates) else {
            let most = object.sharing.freed_by(&candidates).bytes.total();
            let message = format!("deleting all {count} candidates frees {most} of {wanted} bytes");
            return Err(Failure::new(libc::ENOSPC, message));
        };
        for (at, id) in found.iter().enumerate() {
            // SAFETY: the array was checked; the chosen are some of the `count` candidates.
            unsafe { chosen.add(at).write(id.0) };
        }
        Ok(found.len() as i64)
    })
}

fn trees(ids: &[u64]) -> Vec<TreeId> {
    ids.iter().copied().map(TreeId).collect()
}

/// Tells what was read, and what could not be. `statistics` points to a papilio_sharing_statistics,
/// and `size` is its sizeof.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_sharing_statistics_get(
    sharing: *mut papilio_sharing,
    statistics: *mut papilio_sharing_statistics,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(statistics, size, "statistics")?;
        let object = handles::get::<Sharing>(sharing)?;
        let found = &object.sharing;
        let value = papilio_sharing_statistics {
            subvolumes: object.rows.len() as u64,
            in_deletion: found.in_deletion() as u64,
            blocks: found.blocks(),
            leaves_read: found.leaves_read(),
            bad_blocks: found.bad_blocks(),
            errors: object.errors.len() as u64,
            flags: if found.is_sampled() { PAPILIO_SHARING_SAMPLED } else { 0 },
            ..zeroed()
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(statistics, size, &value) };
        Ok(())
    })
}

/// Returns in `*text` the message of the error at `index`, counted from 0, NUL-terminated and valid
/// until the answers are freed. Only the first few bad blocks have a message.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_sharing_error(
    sharing: *mut papilio_sharing,
    index: size_t,
    text: *mut *const c_char,
) -> c_int {
    guard_unit(|| {
        check_result(text, "text")?;
        let object = handles::get::<Sharing>(sharing)?;
        let found = object.errors.get(index).ok_or_else(|| past_end(index, object.errors.len()))?;
        // SAFETY: the pointer was checked, and the caller promises memory for a pointer.
        unsafe { store(text, found.as_ptr()) };
        Ok(())
    })
}

/// Frees the answers, and the texts in them.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_sharing_free(sharing: *mut papilio_sharing) -> c_int {
    guard_unit(|| handles::remove::<Sharing>(sharing).map(drop))
}
