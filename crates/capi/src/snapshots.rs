//! What snapshots cost, and which versions of a file they keep.

use crate::arguments::{
    Extensible, array, check_result, check_structure, store, store_structure, text, zeroed,
};
use crate::failure::{Failure, Result, guard, guard_unit};
use crate::file_system::{count, fs_of, papilio_fs};
use crate::handles::{self, handle};
use crate::subvolumes::past_end;
use crate::time::{papilio_time, time};
use libc::{c_char, c_int, size_t};
use papilio::{FileVersion, SharingOptions, SpaceSharing, SubvolumeSpace, TreeId};
use std::ffi::CString;

/// The bytes that a subvolume holds, as they lie on disk, without copies.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_subvolume_space {
    /// Its id.
    pub id: u64,
    /// Bytes that it holds, alone or with others.
    pub referenced: u64,
    /// Of these, bytes of data.
    pub referenced_data: u64,
    /// Bytes that only it holds: deleting it frees them.
    pub exclusive: u64,
    /// Of these, bytes of data.
    pub exclusive_data: u64,
}

// SAFETY: it consists of integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_subvolume_space {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(size_of::<papilio_subvolume_space>() == 5 * 8);

/// A version of a file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_version {
    /// The time of its last modification.
    pub modified: papilio_time,
    /// Its size in bytes.
    pub size: u64,
    /// The number of files that are this version: one in each of some subvolumes.
    pub holders: u64,
    /// The owner's user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The kind and the permissions, as `st_mode`.
    pub mode: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it consists of integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_version {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(size_of::<papilio_version>() == 16 + 2 * 8 + 4 * 4);

/// A file that is a version. The path belongs to the list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_version_holder {
    /// The id of the subvolume.
    pub subvolume: u64,
    /// The inode number in it.
    pub inode: u64,
    /// The path in it, without a leading slash.
    pub path: *const c_char,
    /// The bytes of the path, without the NUL.
    pub path_length: size_t,
}

// SAFETY: it consists of integers and a pointer without padding, as the assertion verifies.
unsafe impl Extensible for papilio_version_holder {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () =
    assert!(size_of::<papilio_version_holder>() == 2 * 8 + size_of::<*const u8>() + size_of::<usize>());

/// The measurement, and the space of each subvolume.
pub(crate) struct Sharing(SpaceSharing, Vec<SubvolumeSpace>);

/// Which subvolumes share which bytes. Made by papilio_sharing_measure(), freed by papilio_sharing_free().
#[allow(non_camel_case_types)]
pub struct papilio_sharing {
    _incomplete: (),
}

handle!(papilio_sharing for Sharing);

/// Versions of a file, with the paths of the holders of each for the program.
pub(crate) struct Versions(Vec<(FileVersion, Vec<CString>)>);

/// Versions of a file. Made by papilio_versions(), freed by papilio_versions_free().
#[allow(non_camel_case_types)]
pub struct papilio_version_list {
    _incomplete: (),
}

handle!(papilio_version_list for Versions);

/// Finds out which subvolumes of `fs` share which bytes, as of now: reads each of their tree blocks
/// once, and needs no quotas. The file system must not change meanwhile. The result goes to
/// `*sharing`. Free it with papilio_sharing_free().
///
/// Returns the number of tree blocks that could not be read, or a negative errno. What is below
/// such a block is not counted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_sharing_measure(
    fs: *mut papilio_fs,
    sharing: *mut *mut papilio_sharing,
) -> i64 {
    guard(|| {
        check_result(sharing, "sharing")?;
        let measured = fs_of(fs)?.space_sharing(&SharingOptions::default(), |_| true)?;
        let measured = measured.expect("nothing ended the measurement");
        let bad_blocks = count(measured.bad_blocks());
        let rows = measured.by_subvolume();
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(sharing, handles::insert(Sharing(measured, rows))) };
        Ok(bad_blocks)
    })
}

/// Returns the number of subvolumes, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_sharing_count(sharing: *mut papilio_sharing) -> i64 {
    guard(|| Ok(handles::get::<Sharing>(sharing)?.1.len() as i64))
}

/// Describes the space of the subvolume at `index`, counted from 0 in the order of creation.
/// `space` points to a papilio_subvolume_space, and `size` is its sizeof.
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
        let sharing = handles::get::<Sharing>(sharing)?;
        let found = sharing.1.get(index).ok_or_else(|| past_end(index, sharing.1.len()))?;
        let (referenced, exclusive) = (&found.referenced.bytes, &found.exclusive.bytes);
        let described = papilio_subvolume_space {
            id: found.subvolume.id.0,
            referenced: referenced.total(),
            referenced_data: referenced.data,
            exclusive: exclusive.total(),
            exclusive_data: exclusive.data,
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(space, size, &described) };
        Ok(())
    })
}

/// Returns the bytes that deleting the `count` subvolumes whose ids are at `ids`, and no others,
/// frees; or a negative errno. They are more than the sum of the exclusive bytes if these
/// subvolumes share something with one another only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_sharing_freed_by(
    sharing: *mut papilio_sharing,
    ids: *const u64,
    ids_count: size_t,
) -> i64 {
    guard(|| {
        // SAFETY: the caller promises so many ids.
        let ids = unsafe { array(ids, ids_count, "ids") }?;
        let ids: Vec<TreeId> = ids.iter().copied().map(TreeId).collect();
        Ok(count(handles::get::<Sharing>(sharing)?.0.freed_by(&ids).bytes.total()))
    })
}

/// Frees a result of papilio_sharing_measure().
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_sharing_free(sharing: *mut papilio_sharing) -> c_int {
    guard_unit(|| handles::remove::<Sharing>(sharing).map(drop))
}

/// Lists the versions that snapshots keep of the file at `path`, NUL-terminated, a path in the
/// subvolume with the id `subvolume`. The version that was modified last comes last. The file need
/// not exist there any more. The list goes to `*list`. Free it with papilio_versions_free().
///
/// Returns the number of versions, or a negative errno: -ENOENT if no subvolume has such a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_versions(
    fs: *mut papilio_fs,
    subvolume: u64,
    path: *const c_char,
    list: *mut *mut papilio_version_list,
) -> i64 {
    guard(|| {
        check_result(list, "list")?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { text(path, "path") }?;
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let fs = fs_of(fs)?;
        let found = papilio::file_versions(&fs, TreeId(subvolume), path)?;
        let with_paths = |version: FileVersion| {
            // Only a hostile image has a NUL in a name; the length in bytes tells.
            let paths = version.holders.iter();
            let paths = paths.map(|holder| CString::new(holder.path.clone()).unwrap_or_default());
            let paths = paths.collect();
            (version, paths)
        };
        let object = Versions(found.into_iter().map(with_paths).collect());
        let number = object.0.len() as i64;
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(list, handles::insert(object)) };
        Ok(number)
    })
}

fn with_version<T>(
    list: *mut papilio_version_list,
    index: size_t,
    take: impl FnOnce(&(FileVersion, Vec<CString>)) -> Result<T>,
) -> Result<T> {
    let list = handles::get::<Versions>(list)?;
    take(list.0.get(index).ok_or_else(|| past_end(index, list.0.len()))?)
}

/// Describes the version at `index` of a list, counted from 0. `version` points to a
/// papilio_version, and `size` is its sizeof.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_versions_get(
    list: *mut papilio_version_list,
    index: size_t,
    version: *mut papilio_version,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(version, size, "version")?;
        let described = with_version(list, index, |(found, _)| {
            let metadata = &found.metadata;
            Ok(papilio_version {
                modified: time(metadata.mtime()),
                size: metadata.size(),
                holders: found.holders.len() as u64,
                uid: metadata.uid(),
                gid: metadata.gid(),
                mode: metadata.mode(),
                ..zeroed()
            })
        })?;
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(version, size, &described) };
        Ok(())
    })
}

/// Describes the file at `holder` that is the version at `index` of a list, both counted from 0,
/// that of the subvolume that was created first at the front. `file` points to a
/// papilio_version_holder, and `size` is its sizeof. Its path is valid until the list is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_versions_holder(
    list: *mut papilio_version_list,
    index: size_t,
    holder: size_t,
    file: *mut papilio_version_holder,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(file, size, "file")?;
        let described = with_version(list, index, |(found, paths)| {
            let end = || -> Failure { past_end(holder, paths.len()) };
            let (one, path) = found.holders.get(holder).zip(paths.get(holder)).ok_or_else(end)?;
            Ok(papilio_version_holder {
                subvolume: one.subvolume.0,
                inode: one.inode.0,
                path: path.as_ptr(),
                path_length: path.as_bytes().len(),
            })
        })?;
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(file, size, &described) };
        Ok(())
    })
}

/// Frees a list of versions, and the paths in it.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_versions_free(list: *mut papilio_version_list) -> c_int {
    guard_unit(|| handles::remove::<Versions>(list).map(drop))
}
