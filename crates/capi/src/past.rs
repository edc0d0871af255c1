//! The versions of files that snapshots keep, and the changes from one to the next.
//!
//! A path is one from the root of a subvolume, without a leading slash. It need not exist there any
//! more. The lists are objects of their own, which outlive the file system.

use crate::arguments::{Extensible, check_result, check_structure, store, store_structure, text, zeroed};
use crate::failure::{Result, guard, guard_unit};
use crate::file_system::{User, fs_of, papilio_fs};
use crate::handles::{self, handle};
use crate::sharing::{c_text, pointer_to};
use crate::streams::{Progress, canceled, papilio_progress_fn};
use crate::subvolumes::past_end;
use crate::time::{papilio_time, time};
use libc::{c_char, c_int, c_void, size_t};
use papilio::{
    FileKind, FileVersion, HistoryStep, Metadata, NameChange, SnapshotChange, SnapshotOnly, TreeId,
};
use papilio::{directory_history, file_versions, only_in_snapshots};
use std::ffi::CString;

/// Value of papilio_change.name: the old snapshot lacks the path.
pub const PAPILIO_CHANGE_ADDED: u32 = 1;
/// Value of papilio_change.name: the new snapshot lacks the path.
pub const PAPILIO_CHANGE_DELETED: u32 = 2;
/// Value of papilio_change.name: it had another path. Files below a renamed directory are not
/// listed.
pub const PAPILIO_CHANGE_RENAMED: u32 = 3;
/// Value of papilio_change.name: both snapshots have the path, for the same inode.
pub const PAPILIO_CHANGE_KEPT: u32 = 4;

/// Bit of papilio_change.flags: data was written, or the size changed.
pub const PAPILIO_CHANGE_CONTENT: u32 = 0x1;
/// Bit of papilio_change.flags: mode, owner, flags, times or attributes changed.
pub const PAPILIO_CHANGE_METADATA: u32 = 0x2;

/// A version of a file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_version {
    /// The size in bytes.
    pub size: u64,
    /// The number of files that are this version, see papilio_version_holder_get().
    pub holders: u64,
    /// The time of the last change of the content.
    pub mtime: papilio_time,
    /// Type and permissions, as st_mode.
    pub mode: u32,
    /// The owner's user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it consists of integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_version {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(size_of::<papilio_version>() == 2 * 8 + 16 + 4 * 4);

/// A file that only snapshots have, or that is a version. The texts belong to the list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_version_holder {
    /// The id of the subvolume or snapshot that has the file.
    pub subvolume: u64,
    /// Its inode there.
    pub inode: u64,
    /// The path of the subvolume from the top level, without a leading slash; NULL if it has none.
    pub subvolume_path: *const c_char,
    /// The bytes of that path, without the NUL.
    pub subvolume_path_length: size_t,
    /// The path of the file in it, without a leading slash.
    pub path: *const c_char,
    /// The bytes of that path, without the NUL.
    pub path_length: size_t,
}

// SAFETY: it consists of integers and pointers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_version_holder {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(
    size_of::<papilio_version_holder>() == 2 * 8 + 2 * size_of::<*const u8>() + 2 * size_of::<usize>()
);

/// Two neighbours in the past of a subvolume.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_history_step {
    /// The id of the older one.
    pub old_subvolume: u64,
    /// The id of the newer one.
    pub new_subvolume: u64,
    /// The number of changes, see papilio_change_get().
    pub changes: u64,
}

// SAFETY: it consists of integers of one size.
unsafe impl Extensible for papilio_history_step {
    const FIRST_SIZE: usize = 3 * 8;
}

/// A path that changed in a step. The texts belong to the history.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_change {
    /// The size of the file in bytes: in the new snapshot, or in the old one if it was deleted.
    pub size: u64,
    /// The path in the new snapshot, or in the old one if it was deleted, without a leading slash.
    pub path: *const c_char,
    /// The bytes of that path, without the NUL.
    pub path_length: size_t,
    /// The path that a renamed file had; NULL for others.
    pub old_path: *const c_char,
    /// The bytes of that path, without the NUL.
    pub old_path_length: size_t,
    /// PAPILIO_CHANGE_ADDED, _DELETED, _RENAMED or _KEPT.
    pub name: u32,
    /// Bits PAPILIO_CHANGE_CONTENT and _METADATA, which only files have that both snapshots have.
    pub flags: u32,
    /// The type of the file, as the type bits of st_mode.
    pub type_: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it consists of integers and pointers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_change {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () =
    assert!(size_of::<papilio_change>() == 8 + 2 * size_of::<*const u8>() + 2 * size_of::<usize>() + 4 * 4);

/// A file with its texts for the program.
struct Held {
    subvolume: u64,
    inode: u64,
    subvolume_path: Option<CString>,
    path: CString,
}

impl Held {
    fn new(subvolume: TreeId, inode: u64, subvolume_path: Option<&Vec<u8>>, path: &[u8]) -> Self {
        let subvolume_path = subvolume_path.cloned().map(c_text);
        Self { subvolume: subvolume.0, inode, subvolume_path, path: c_text(path) }
    }

    fn describe(&self) -> papilio_version_holder {
        let (subvolume_path, subvolume_path_length) = pointer_to(self.subvolume_path.as_ref());
        let (path, path_length) = pointer_to(Some(&self.path));
        papilio_version_holder {
            subvolume: self.subvolume,
            inode: self.inode,
            subvolume_path,
            subvolume_path_length,
            path,
            path_length,
        }
    }
}

/// The versions of a file.
pub(crate) struct Versions(Vec<(FileVersion, Vec<Held>)>);

/// A list of versions of a file. Made by papilio_versions(), freed by papilio_versions_free().
#[allow(non_camel_case_types)]
pub struct papilio_version_list {
    _incomplete: (),
}

handle!(papilio_version_list for Versions);

/// Files that only snapshots have.
pub(crate) struct Onlies(Vec<(SnapshotOnly, Held)>);

/// A list of files that only snapshots have. Made by papilio_only_in_snapshots(), freed by
/// papilio_only_free().
#[allow(non_camel_case_types)]
pub struct papilio_only_list {
    _incomplete: (),
}

handle!(papilio_only_list for Onlies);

/// The path of a change for the program, and the path that a renamed file had.
type ChangeTexts = (CString, Option<CString>);

/// The steps of a history, with the texts of each change.
pub(crate) struct History(Vec<(HistoryStep, Vec<ChangeTexts>)>);

/// The history of a directory. Made by papilio_history(), freed by papilio_history_free().
#[allow(non_camel_case_types)]
pub struct papilio_history_list {
    _incomplete: (),
}

handle!(papilio_history_list for History);

/// Lists the different versions of the file at `path`, NUL-terminated, in the subvolume with the id
/// `subvolume`, that it and the snapshots have: the one that was modified last comes last. The list
/// goes to `*list`. Free it with papilio_versions_free().
///
/// Returns the number of versions or a negative errno: -ENOENT if no subvolume has such a file.
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
        let user_of = User::new(&fs_of(fs)?)?;
        let found = file_versions(user_of.fs(), TreeId(subvolume), path)?;
        let with_texts = |version: FileVersion| {
            let held = version.holders.iter().map(|holder| {
                Held::new(holder.subvolume, holder.inode.0, holder.subvolume_path.as_ref(), &holder.path)
            });
            let held = held.collect();
            (version, held)
        };
        let versions: Vec<_> = found.into_iter().map(with_texts).collect();
        let count = versions.len() as i64;
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(list, handles::insert(Versions(versions))) };
        Ok(count)
    })
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
        let object = handles::get::<Versions>(list)?;
        let (found, held) = object.0.get(index).ok_or_else(|| past_end(index, object.0.len()))?;
        let value = version_of(&found.metadata, held.len());
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(version, size, &value) };
        Ok(())
    })
}

fn version_of(metadata: &Metadata, holders: usize) -> papilio_version {
    papilio_version {
        size: metadata.size(),
        holders: holders as u64,
        mtime: time(metadata.mtime()),
        mode: metadata.mode(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        ..zeroed()
    }
}

/// Describes file `number`, counted from 0, that is the version at `index` of a list; the subvolume
/// that was created first comes first. `holder` points to a papilio_version_holder, and `size` is
/// its sizeof. Its texts are valid until the list is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_version_holder_get(
    list: *mut papilio_version_list,
    index: size_t,
    number: size_t,
    holder: *mut papilio_version_holder,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(holder, size, "holder")?;
        let object = handles::get::<Versions>(list)?;
        let (_, held) = object.0.get(index).ok_or_else(|| past_end(index, object.0.len()))?;
        let found = held.get(number).ok_or_else(|| past_end(number, held.len()))?;
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(holder, size, &found.describe()) };
        Ok(())
    })
}

/// Frees a list of versions, and the texts in it.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_versions_free(list: *mut papilio_version_list) -> c_int {
    guard_unit(|| handles::remove::<Versions>(list).map(drop))
}

/// Lists the paths below the directory at `path`, NUL-terminated, in the subvolume with the id
/// `subvolume`, that only snapshots of its past have. "" means the whole subvolume. The list goes
/// to `*list`. Free it with papilio_only_free().
///
/// Returns the number of paths or a negative errno: -ENOENT if no subvolume has such a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_only_in_snapshots(
    fs: *mut papilio_fs,
    subvolume: u64,
    path: *const c_char,
    list: *mut *mut papilio_only_list,
) -> i64 {
    guard(|| {
        check_result(list, "list")?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { text(path, "path") }?;
        let user_of = User::new(&fs_of(fs)?)?;
        let found = only_in_snapshots(user_of.fs(), TreeId(subvolume), path)?;
        let with_texts = |only: SnapshotOnly| {
            let inode = only.metadata.number().0;
            let held = Held::new(only.subvolume, inode, only.subvolume_path.as_ref(), &only.path);
            (only, held)
        };
        let onlies: Vec<_> = found.into_iter().map(with_texts).collect();
        let count = onlies.len() as i64;
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(list, handles::insert(Onlies(onlies))) };
        Ok(count)
    })
}

/// Describes the path at `index` of a list, counted from 0, with the newest snapshot that has it.
/// `holder` points to a papilio_version_holder, and `size` is its sizeof; `version`, which may be
/// NULL, to a papilio_version of `version_size` bytes. Texts are valid until the list is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_only_get(
    list: *mut papilio_only_list,
    index: size_t,
    holder: *mut papilio_version_holder,
    size: size_t,
    version: *mut papilio_version,
    version_size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(holder, size, "holder")?;
        if !version.is_null() {
            check_structure(version, version_size, "version")?;
        }
        let object = handles::get::<Onlies>(list)?;
        let (only, held) = object.0.get(index).ok_or_else(|| past_end(index, object.0.len()))?;
        let value = version_of(&only.metadata, 1);
        // SAFETY: the structures were checked, and the caller promises their bytes.
        unsafe {
            store_structure(holder, size, &held.describe());
            if !version.is_null() {
                store_structure(version, version_size, &value);
            }
        }
        Ok(())
    })
}

/// Frees a list of paths, and the texts in it.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_only_free(list: *mut papilio_only_list) -> c_int {
    guard_unit(|| handles::remove::<Onlies>(list).map(drop))
}

/// Lists what changed in the directory at `path`, NUL-terminated, in the subvolume with the id
/// `subvolume`, from snapshot to snapshot of its past, the oldest step first. "" means the whole
/// subvolume. With `since` other than 0, only from the snapshot with this id on. `progress` is NULL
/// or called with `user` after each step: with the number of steps, 0, and the number of changes so
/// far. The history goes to `*history`. Free it with papilio_history_free().
///
/// A subvolume of a file system that is open for writing must be read-only.
///
/// Returns the number of steps or a negative errno: -ENOENT if no subvolume of the past has such a
/// directory; -ECANCELED if `progress` returns other than 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_history(
    fs: *mut papilio_fs,
    subvolume: u64,
    path: *const c_char,
    since: u64,
    progress: papilio_progress_fn,
    user: *mut c_void,
    history: *mut *mut papilio_history_list,
) -> i64 {
    guard(|| {
        check_result(history, "history")?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { text(path, "path") }?;
        let user_of = User::new(&fs_of(fs)?)?;
        let since = (since > 0).then_some(TreeId(since));
        let mut progress = Progress::new(progress, user);
        let (mut steps, mut changes) = (Vec::new(), 0);
        directory_history(user_of.fs(), TreeId(subvolume), path, since, &mut |step| {
            changes += step.changes.len() as u64;
            let texts = step.changes.iter().map(texts_of).collect();
            steps.push((step, texts));
            progress.call(steps.len() as u64, 0, changes);
            !progress.is_canceled()
        })?;
        if progress.is_canceled() {
            return Err(canceled());
        }
        let count = steps.len() as i64;
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(history, handles::insert(History(steps))) };
        Ok(count)
    })
}

fn texts_of(change: &SnapshotChange) -> ChangeTexts {
    let old = match &change.name {
        NameChange::Renamed(old) => Some(c_text(old.clone())),
        _ => None,
    };
    (c_text(change.path.clone()), old)
}

/// Describes the step at `index` of a history, counted from 0. `step` points to a
/// papilio_history_step, and `size` is its sizeof.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_history_get(
    history: *mut papilio_history_list,
    index: size_t,
    step: *mut papilio_history_step,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(step, size, "step")?;
        let object = handles::get::<History>(history)?;
        let (found, _) = object.0.get(index).ok_or_else(|| past_end(index, object.0.len()))?;
        let value = papilio_history_step {
            old_subvolume: found.old.id.0,
            new_subvolume: found.new.id.0,
            changes: found.changes.len() as u64,
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(step, size, &value) };
        Ok(())
    })
}

/// Describes change `number`, counted from 0 in the order of paths, of the step at `index` of a
/// history. `change` points to a papilio_change, and `size` is its sizeof. Its texts are valid
/// until the history is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_change_get(
    history: *mut papilio_history_list,
    index: size_t,
    number: size_t,
    change: *mut papilio_change,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(change, size, "change")?;
        let object = handles::get::<History>(history)?;
        let (step, texts) = object.0.get(index).ok_or_else(|| past_end(index, object.0.len()))?;
        let found = step.changes.get(number).ok_or_else(|| past_end(number, step.changes.len()))?;
        let value = describe(found, &texts[number])?;
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(change, size, &value) };
        Ok(())
    })
}

fn describe(change: &SnapshotChange, (path, old): &ChangeTexts) -> Result<papilio_change> {
    let bit = |set: bool, bit: u32| if set { bit } else { 0 };
    let (path, path_length) = pointer_to(Some(path));
    let (old_path, old_path_length) = pointer_to(old.as_ref());
    let name = match change.name {
        NameChange::Added => PAPILIO_CHANGE_ADDED,
        NameChange::Deleted => PAPILIO_CHANGE_DELETED,
        NameChange::Renamed(_) => PAPILIO_CHANGE_RENAMED,
        NameChange::Kept => PAPILIO_CHANGE_KEPT,
        _ => return Err(crate::failure::Failure::invalid("a change of a later version of the library")),
    };
    let type_ = match change.kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::CharacterDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
    };
    Ok(papilio_change {
        size: change.size,
        path,
        path_length,
        old_path,
        old_path_length,
        name,
        flags: bit(change.content, PAPILIO_CHANGE_CONTENT) | bit(change.metadata, PAPILIO_CHANGE_METADATA),
        type_,
        reserved: 0,
    })
}

/// Frees a history, and the texts in it.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_history_free(history: *mut papilio_history_list) -> c_int {
    guard_unit(|| handles::remove::<History>(history).map(drop))
}
