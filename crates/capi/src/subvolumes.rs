//! Subvolumes and snapshots.
//!
//! The id of a subvolume stays the same for its life. A snapshot takes constant time and shares all
//! data and metadata with its source until one of them changes.

use crate::arguments::{
    Extensible, array, check_flags, check_result, check_structure, store, store_structure, text, zeroed,
};
use crate::failure::{Failure, Result, guard, guard_unit};
use crate::file_system::{count, fs_of, papilio_fs};
use crate::handles::{self, handle};
use crate::names::new_inode;
use crate::time::{papilio_time, time, timespec};
use libc::{c_char, c_int, size_t};
use papilio::{Generation, NewKind, Received, Subvolume, TreeId, Uuid};
use std::ffi::CString;

/// Flag of papilio_snapshot(): the snapshot is read-only, which sending needs.
pub const PAPILIO_SNAPSHOT_READ_ONLY: u32 = 0x1;

/// Bit of papilio_subvolume.flags: the subvolume is read-only.
pub const PAPILIO_SUBVOLUME_READ_ONLY: u32 = 0x1;
/// Bit of papilio_subvolume.flags: it was created as a snapshot.
pub const PAPILIO_SUBVOLUME_SNAPSHOT: u32 = 0x2;
/// Bit of papilio_subvolume.flags: it was deleted, and its space is being freed.
pub const PAPILIO_SUBVOLUME_DELETED: u32 = 0x4;

/// A subvolume.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_subvolume {
    /// Its id; 5 is the top level.
    pub id: u64,
    /// The id of the subvolume that contains it; 0 for the top level and for a deleted one.
    pub parent: u64,
    /// The inode number of the directory that contains it; 0 where `parent` is.
    pub directory: u64,
    /// The transaction that last changed its tree.
    pub generation: u64,
    /// The transaction that created it.
    pub created: u64,
    /// The transaction that last changed an inode in it.
    pub changed: u64,
    /// The sender's transaction, of a received subvolume.
    pub sent: u64,
    /// The transaction that received it.
    pub received: u64,
    /// The time of its creation.
    pub creation_time: papilio_time,
    /// The time of its last change.
    pub change_time: papilio_time,
    /// The time when it was sent.
    pub send_time: papilio_time,
    /// The time when it was received.
    pub receive_time: papilio_time,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The UUID of the subvolume that it is a snapshot of; zero for others.
    pub parent_uuid: [u8; 16],
    /// The UUID that it had on the sender's file system; zero for others.
    pub received_uuid: [u8; 16],
    /// Bits PAPILIO_SUBVOLUME_*.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// Its path from the top level, without a leading slash; NULL if it has none. It belongs to the
    /// list.
    pub path: *const c_char,
    /// The bytes of the path, without the NUL.
    pub path_length: size_t,
}

// SAFETY: it consists of integers and a pointer without padding, as the assertion verifies.
unsafe impl Extensible for papilio_subvolume {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(
    size_of::<papilio_subvolume>()
        == 8 * 8 + 4 * 16 + 3 * 16 + 2 * 4 + size_of::<*const u8>() + size_of::<usize>()
);

/// A list of subvolumes, with a path of each for the program.
pub(crate) struct Subvolumes(Vec<(Subvolume, Option<CString>)>);

/// A list of subvolumes. Made by papilio_subvolumes(), freed by papilio_subvolumes_free().
#[allow(non_camel_case_types)]
pub struct papilio_subvolume_list {
    _incomplete: (),
}

handle!(papilio_subvolume_list for Subvolumes);

/// Creates an empty subvolume at `path`, NUL-terminated, with the permissions 0755.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_subvolume_create(fs: *mut papilio_fs, path: *const c_char) -> c_int {
    guard_unit(|| {
        let fs = fs_of(fs)?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { text(path, "path") }?;
        let (parent, name) = fs.parent(path)?;
        parent.create_subvolume(name, &new_inode(NewKind::Directory, 0o755, fs.creator()))?;
        Ok(())
    })
}

/// Creates a snapshot of the subvolume at `source` at `path`, both NUL-terminated. `flags` is 0 or
/// PAPILIO_SNAPSHOT_READ_ONLY. Subvolumes nested in the source appear as empty directories.
/// Commits.
///
/// Returns 0 or a negative errno: -ENOENT if `source` is not the root of a subvolume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_snapshot(
    fs: *mut papilio_fs,
    source: *const c_char,
    path: *const c_char,
    flags: u32,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_SNAPSHOT_READ_ONLY)?;
        // SAFETY: the caller promises NUL-terminated texts.
        let (source, path) = unsafe { (text(source, "source")?, text(path, "path")?) };
        fs_of(fs)?.snapshot(source, path, flags & PAPILIO_SNAPSHOT_READ_ONLY != 0)?;
        Ok(())
    })
}

/// Deletes the subvolume at `path`, NUL-terminated, with its content. Its space is freed in the
/// background, or by papilio_subvolumes_clean().
///
/// Returns 0 or a negative errno: -ENOENT if `path` is not a subvolume, -ENOTEMPTY if it contains
/// other subvolumes, -EPERM for the default subvolume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_subvolume_delete(fs: *mut papilio_fs, path: *const c_char) -> c_int {
    // SAFETY: the caller promises a NUL-terminated text.
    guard_unit(|| Ok(fs_of(fs)?.delete_subvolume(unsafe { text(path, "path") }?)?))
}

/// Deletes the subvolume with the id `id`.
///
/// Returns 0 or a negative errno, as papilio_subvolume_delete().
#[unsafe(no_mangle)]
pub extern "C" fn papilio_subvolume_delete_by_id(fs: *mut papilio_fs, id: u64) -> c_int {
    guard_unit(|| Ok(fs_of(fs)?.delete_subvolume_by_id(TreeId(id))?))
}

/// Frees the space of deleted subvolumes, in the calling thread, until none is left.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_subvolumes_clean(fs: *mut papilio_fs) -> c_int {
    guard_unit(|| Ok(fs_of(fs)?.clean_subvolumes()?))
}

/// Makes the subvolume at `path`, NUL-terminated, read-only or writable.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_subvolume_set_read_only(
    fs: *mut papilio_fs,
    path: *const c_char,
    read_only: bool,
) -> c_int {
    // SAFETY: the caller promises a NUL-terminated text.
    guard_unit(|| Ok(fs_of(fs)?.set_subvolume_read_only(unsafe { text(path, "path") }?, read_only)?))
}

/// Returns 1 if the subvolume at `path`, NUL-terminated, is read-only, 0 if it is writable, or a
/// negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_subvolume_is_read_only(fs: *mut papilio_fs, path: *const c_char) -> c_int {
    guard(|| {
        let fs = fs_of(fs)?;
        // SAFETY: the caller promises a NUL-terminated text.
        let id = unsafe { id_at(&fs, path) }?;
        Ok(fs.subvolume(id)?.is_read_only().into())
    })
}

/// Returns the id of the subvolume at `path`, NUL-terminated, or a negative errno: -ENOENT if
/// `path` is not the root of a subvolume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_subvolume_id(fs: *mut papilio_fs, path: *const c_char) -> i64 {
    // SAFETY: the caller promises a NUL-terminated text.
    guard(|| Ok(count(unsafe { id_at(&*fs_of(fs)?, path) }?.0)))
}

/// # Safety
/// `path` is NULL or a NUL-terminated text.
unsafe fn id_at(fs: &crate::file_system::Fs, path: *const c_char) -> Result<TreeId> {
    // SAFETY: the caller's promise is the same.
    let path = unsafe { text(path, "path") }?;
    let inode = fs.inode(path)?;
    if !inode.is_subvolume_root() {
        let message = format!("{}: not a subvolume", String::from_utf8_lossy(path));
        return Err(Failure::new(libc::ENOENT, message));
    }
    Ok(inode.tree())
}

/// Returns the id of the subvolume that a mount without options shows, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_default_subvolume(fs: *mut papilio_fs) -> i64 {
    guard(|| Ok(count(fs_of(fs)?.default_subvolume()?.0)))
}

/// Makes the subvolume with the id `id` the one that a mount without options shows.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_set_default_subvolume(fs: *mut papilio_fs, id: u64) -> c_int {
    guard_unit(|| Ok(fs_of(fs)?.set_default_subvolume(TreeId(id))?))
}

/// Marks the writable subvolume at `path`, NUL-terminated, as received: from the subvolume with the
/// UUID in the 16 bytes at `uuid`, in the sender's transaction `sent`, at the time of `seconds`
/// since 1970 and `nanoseconds`. papilio_receive() does this by itself.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_subvolume_set_received(
    fs: *mut papilio_fs,
    path: *const c_char,
    uuid: *const u8,
    sent: u64,
    seconds: i64,
    nanoseconds: u32,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller promises a NUL-terminated text and 16 bytes.
        let (path, uuid) = unsafe { (text(path, "path")?, array(uuid, 16, "uuid")?) };
        let uuid = Uuid::from_slice(uuid).map_err(|error| Failure::invalid(error.to_string()))?;
        let send_time = timespec(seconds, nanoseconds)?;
        fs_of(fs)?.set_received(path, &Received { uuid, sent: Generation(sent), send_time })?;
        Ok(())
    })
}

/// Lists all subvolumes and snapshots, also those being deleted: the top level first, then by id.
/// The list, as of now, goes to `*list`. Free it with papilio_subvolumes_free().
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_subvolumes(
    fs: *mut papilio_fs,
    list: *mut *mut papilio_subvolume_list,
) -> c_int {
    guard_unit(|| {
        check_result(list, "list")?;
        let found = fs_of(fs)?.subvolumes()?;
        let with_path = |subvolume: Subvolume| {
            // Only a hostile image has a NUL in a name; the length in bytes tells.
            let path = subvolume.path.clone().map(|path| CString::new(path).unwrap_or_default());
            (subvolume, path)
        };
        let object = Subvolumes(found.into_iter().map(with_path).collect());
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(list, handles::insert(object)) };
        Ok(())
    })
}

/// Returns the number of subvolumes in a list, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_subvolumes_count(list: *mut papilio_subvolume_list) -> i64 {
    guard(|| Ok(handles::get::<Subvolumes>(list)?.0.len() as i64))
}

/// Describes the subvolume at `index` in a list, counted from 0. `subvolume` points to a
/// papilio_subvolume, and `size` is its sizeof. Its path is valid until the list is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_subvolumes_get(
    list: *mut papilio_subvolume_list,
    index: size_t,
    subvolume: *mut papilio_subvolume,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(subvolume, size, "subvolume")?;
        let list = handles::get::<Subvolumes>(list)?;
        let (found, path) = list.0.get(index).ok_or_else(|| past_end(index, list.0.len()))?;
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(subvolume, size, &describe(found, path.as_ref())) };
        Ok(())
    })
}

/// An index that is not below the number of elements.
pub(crate) fn past_end(index: usize, count: usize) -> Failure {
    Failure::new(libc::ERANGE, format!("index {index} is not below {count}, the number of elements"))
}

fn describe(found: &Subvolume, path: Option<&CString>) -> papilio_subvolume {
    let bit = |set: bool, bit: u32| if set { bit } else { 0 };
    papilio_subvolume {
        id: found.id.0,
        parent: found.parent.map_or(0, |id| id.0),
        directory: found.directory.map_or(0, |number| number.0),
        generation: found.generation.0,
        created: found.created.0,
        changed: found.changed.0,
        sent: found.sent.0,
        received: found.received.0,
        creation_time: time(found.creation_time),
        change_time: time(found.change_time),
        send_time: time(found.send_time),
        receive_time: time(found.receive_time),
        uuid: *found.uuid.as_bytes(),
        parent_uuid: *found.parent_uuid.as_bytes(),
        received_uuid: *found.received_uuid.as_bytes(),
        flags: bit(found.is_read_only(), PAPILIO_SUBVOLUME_READ_ONLY)
            | bit(found.is_snapshot(), PAPILIO_SUBVOLUME_SNAPSHOT)
            | bit(found.is_being_deleted(), PAPILIO_SUBVOLUME_DELETED),
        path: path.map_or(std::ptr::null(), |path| path.as_ptr()),
        path_length: path.map_or(0, |path| path.as_bytes().len()),
        ..zeroed()
    }
}

/// Frees a list of subvolumes, and the paths in it.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_subvolumes_free(list: *mut papilio_subvolume_list) -> c_int {
    guard_unit(|| handles::remove::<Subvolumes>(list).map(drop))
}
