//! Older states: why a file system that is open for reading does not show the newest content.
//!
//! A log of fsyncs that cannot be replayed makes papilio_open() fail. With
//! papilio_options_set_allow_older() the last commit is shown instead, and these functions tell why
//! it is older, and which files are.

use crate::arguments::{Extensible, check_result, check_structure, store, store_structure, zeroed};
use crate::failure::{Result, guard, guard_unit};
use crate::file_system::{fs_of, papilio_fs};
use crate::handles::{self, handle};
use crate::subvolumes::past_end;
use libc::{c_char, c_int, size_t};
use papilio::{FileSystem, OlderFile, OlderState};
use std::ffi::CString;

/// Bit of papilio_older_state.flags: the options ask for exactly this state.
pub const PAPILIO_OLDER_ASKED: u32 = 0x1;
/// Bit of papilio_older_state.flags: a log of fsyncs belongs to the state.
pub const PAPILIO_OLDER_LOG: u32 = 0x2;

/// A state that is older than the newest one on the devices. The texts belong to the list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_older_state {
    /// A short name of the cause, such as "log-unusable", which stays the same between versions.
    pub cause: *const c_char,
    /// A description in one line.
    pub message: *const c_char,
    /// The generation that is shown.
    pub generation: u64,
    /// The number of files that are known to be older.
    pub files: u64,
    /// Bits PAPILIO_OLDER_*.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it consists of pointers and integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_older_state {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(size_of::<papilio_older_state>() == 2 * size_of::<*const u8>() + 2 * 8 + 2 * 4);

/// A file or directory for which the log of fsyncs has something newer. The texts belong to the
/// list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_older_file {
    /// The path from the top level, without a leading slash, as far as it is known.
    pub path: *const c_char,
    /// The bytes of the path, without the NUL.
    pub path_length: size_t,
    /// The difference: "changed", "missing", "removed", or "unknown" for a part of the log that
    /// cannot be read.
    pub part: *const c_char,
    /// The difference in words.
    pub reason: *const c_char,
    /// The id of the subvolume; 0 if the fault concerns all logs.
    pub subvolume: u64,
    /// The inode number; 0 for a fault of the log.
    pub inode: u64,
}

// SAFETY: it consists of pointers and integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_older_file {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () =
    assert!(size_of::<papilio_older_file>() == 3 * size_of::<*const u8>() + size_of::<usize>() + 2 * 8);

/// A state with its texts for the program.
struct ListedState {
    state: OlderState,
    cause: CString,
    message: CString,
    /// Each with path, part and reason.
    files: Vec<(OlderFile, [CString; 3])>,
}

/// The older states of a file system.
pub(crate) struct Older(Vec<ListedState>);

/// A list of older states. Made by papilio_older(), freed by papilio_older_free().
#[allow(non_camel_case_types)]
pub struct papilio_older_list {
    _incomplete: (),
}

handle!(papilio_older_list for Older);

fn c_text(text: impl Into<Vec<u8>>) -> CString {
    // Only a hostile image has a NUL in a name; the length in bytes tells.
    CString::new(text).unwrap_or_default()
}

fn read(fs: &FileSystem, state: &OlderState) -> ListedState {
    let texts = |file: OlderFile| {
        let texts = [c_text(file.path.clone()), c_text(file.part.name()), c_text(file.reason())];
        (file, texts)
    };
    ListedState {
        cause: c_text(state.cause.name()),
        message: c_text(state.to_string()),
        files: fs.older_files(state).into_iter().map(texts).collect(),
        state: state.clone(),
    }
}

/// Lists the reasons why `fs` shows an older state than the newest one on its devices, each with
/// the files for which the log of fsyncs has something newer. There are none if `fs` shows the
/// newest state, or is open for writing. The list goes to `*list`. Free it with
/// papilio_older_free().
///
/// Returns the number of states or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_older(fs: *mut papilio_fs, list: *mut *mut papilio_older_list) -> i64 {
    guard(|| {
        check_result(list, "list")?;
        let fs = fs_of(fs)?;
        let states: Vec<_> = fs.older_states().iter().map(|state| read(&fs, state)).collect();
        let count = states.len() as i64;
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(list, handles::insert(Older(states))) };
        Ok(count)
    })
}

fn with_state<T>(
    list: *mut papilio_older_list,
    index: size_t,
    take: impl FnOnce(&ListedState) -> Result<T>,
) -> Result<T> {
    let list = handles::get::<Older>(list)?;
    take(list.0.get(index).ok_or_else(|| past_end(index, list.0.len()))?)
}

/// Describes the state at `index` of a list, counted from 0. `state` points to a
/// papilio_older_state, and `size` is its sizeof. Its texts are NUL-terminated UTF-8, and valid
/// until the list is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_older_get(
    list: *mut papilio_older_list,
    index: size_t,
    state: *mut papilio_older_state,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(state, size, "state")?;
        with_state(list, index, |found| {
            let bit = |set: bool, bit: u32| if set { bit } else { 0 };
            let value = papilio_older_state {
                cause: found.cause.as_ptr(),
                message: found.message.as_ptr(),
                generation: found.state.shown.0,
                files: found.files.len() as u64,
                flags: bit(found.state.is_asked(), PAPILIO_OLDER_ASKED)
                    | bit(found.state.has_log(), PAPILIO_OLDER_LOG),
                ..zeroed()
            };
            // SAFETY: the structure was checked, and the caller promises `size` bytes.
            unsafe { store_structure(state, size, &value) };
            Ok(())
        })
    })
}

/// Describes file `number`, counted from 0, of the state at `index` of a list. `file` points to a
/// papilio_older_file, and `size` is its sizeof. Its texts are valid until the list is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_older_file_get(
    list: *mut papilio_older_list,
    index: size_t,
    number: size_t,
    file: *mut papilio_older_file,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(file, size, "file")?;
        with_state(list, index, |found| {
            let entry = found.files.get(number).ok_or_else(|| past_end(number, found.files.len()))?;
            let (older, [path, part, reason]) = entry;
            let value = papilio_older_file {
                path: path.as_ptr(),
                path_length: path.as_bytes().len(),
                part: part.as_ptr(),
                reason: reason.as_ptr(),
                subvolume: older.subvolume.map_or(0, |id| id.0),
                inode: older.inode.map_or(0, |inode| inode.0),
            };
            // SAFETY: the structure was checked, and the caller promises `size` bytes.
            unsafe { store_structure(file, size, &value) };
            Ok(())
        })
    })
}

/// Frees a list of older states, and the texts in it.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_older_free(list: *mut papilio_older_list) -> c_int {
    guard_unit(|| handles::remove::<Older>(list).map(drop))
}
