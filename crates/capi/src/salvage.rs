//! Plans for emergencies: deleted subvolumes that can come back, and room for full file systems.
//!
//! Nothing here writes. `papilio subvolume undelete` and `papilio rescue full` carry the plans out.

use crate::arguments::{
    Extensible, check_result, check_structure, host_path, store, store_structure, zeroed,
};
use crate::failure::{Failure, Result, guard, guard_unit};
use crate::file_system::{count, fs_of, papilio_fs};
use crate::handles::{self, handle};
use crate::open_options::{options_or_default, papilio_options};
use crate::sharing::{c_text, pointer_to};
use crate::subvolumes::past_end;
use crate::time::{papilio_time, time};
use libc::{c_char, c_int, size_t};
use papilio::{DeletedSubvolume, LogicalAddress, Relief, ReliefGroup, RepairOptions, RescueChange};
use papilio::{ScanOptions, TreeId, find_deleted_subvolumes, open_devices, plan_repair_with, scan_devices};
use std::ffi::CString;

/// Bit of papilio_deleted_subvolume.flags: its content is still being freed.
pub const PAPILIO_DELETED_BEING_FREED: u32 = 0x1;

/// Bit of papilio_undelete_summary.flags: the file system is sound after the change, or better than
/// before.
pub const PAPILIO_UNDELETE_BETTER: u32 = 0x1;

/// Kind of lines of a plan: the changes.
pub const PAPILIO_PLAN_CHANGES: u32 = 0;
/// Kind of lines of a plan: changes that cannot be made, with the reason.
pub const PAPILIO_PLAN_REFUSED: u32 = 1;
/// Kind of lines of a plan: everything that is lost.
pub const PAPILIO_PLAN_LOSSES: u32 = 2;

/// Kind of block groups of a relief: those without content.
pub const PAPILIO_RELIEF_EMPTY: u32 = 0;
/// Kind of block groups of a relief: those of data whose content fits into the others, the emptiest
/// first.
pub const PAPILIO_RELIEF_MOVABLE: u32 = 1;

/// Bit of papilio_relief_summary.flags: metadata has too little room for the kernel to work.
pub const PAPILIO_RELIEF_SHORT: u32 = 0x1;
/// Bit of papilio_relief_summary.flags: there is something to do besides deleting.
pub const PAPILIO_RELIEF_MEASURES: u32 = 0x2;

/// A subvolume that was deleted. The path belongs to the list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_deleted_subvolume {
    /// The id that it had.
    pub id: u64,
    /// The address of an older root tree that has it, for papilio_plan_undelete().
    pub root_tree: u64,
    /// The transaction that wrote that root tree.
    pub generation: u64,
    /// Blocks of its tree that can be read.
    pub blocks: u64,
    /// Blocks that were overwritten, besides all those below them. Data may be overwritten, too.
    pub missing: u64,
    /// The time of its last change.
    pub change_time: papilio_time,
    /// Its path from the top level, without a leading slash; NULL if it has none.
    pub path: *const c_char,
    /// The bytes of the path, without the NUL.
    pub path_length: size_t,
    /// Bits PAPILIO_DELETED_*.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it consists of integers and a pointer without padding, as the assertion verifies.
unsafe impl Extensible for papilio_deleted_subvolume {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(
    size_of::<papilio_deleted_subvolume>()
        == 5 * 8 + 16 + size_of::<*const u8>() + size_of::<usize>() + 2 * 4
);

/// The numbers of lines of a plan.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_undelete_summary {
    /// The number of changes.
    pub changes: u64,
    /// The number of changes that cannot be made.
    pub refused: u64,
    /// The number of losses.
    pub losses: u64,
    /// Bits PAPILIO_UNDELETE_*.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it consists of integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_undelete_summary {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(size_of::<papilio_undelete_summary>() == 3 * 8 + 2 * 4);

/// How much room metadata has, and what would help.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_relief_summary {
    /// Bytes of metadata space, without copies.
    pub metadata_total: u64,
    /// Bytes of it in use.
    pub metadata_used: u64,
    /// Bytes of metadata that chunks in unallocated space could provide.
    pub unallocated_metadata: u64,
    /// Bytes of room that metadata has: free, and in unallocated space.
    pub room: u64,
    /// The bytes of room that the kernel needs to work.
    pub needed: u64,
    /// Deleted subvolumes whose content is still there.
    pub deleted_subvolumes: u64,
    /// The number of block groups of the kind PAPILIO_RELIEF_EMPTY.
    pub empty_groups: u64,
    /// The number of block groups of the kind PAPILIO_RELIEF_MOVABLE.
    pub movable_groups: u64,
    /// The number of devices that are larger than the file system on them.
    pub slack_devices: u64,
    /// Bits PAPILIO_RELIEF_SHORT and _MEASURES.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it consists of integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_relief_summary {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(size_of::<papilio_relief_summary>() == 9 * 8 + 2 * 4);

/// A block group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_relief_group {
    /// Its logical address.
    pub start: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The bytes in use.
    pub used: u64,
    /// The bytes that it takes on devices.
    pub raw: u64,
}

// SAFETY: it consists of integers of one size.
unsafe impl Extensible for papilio_relief_group {
    const FIRST_SIZE: usize = 4 * 8;
}

/// Deleted subvolumes, each with its path.
pub(crate) struct DeletedList(Vec<(DeletedSubvolume, Option<CString>)>);

/// A list of deleted subvolumes. Made by papilio_find_deleted_subvolumes(), freed by
/// papilio_deleted_free().
#[allow(non_camel_case_types)]
pub struct papilio_deleted_list {
    _incomplete: (),
}

handle!(papilio_deleted_list for DeletedList);

/// The lines of a plan, by kind.
pub(crate) struct UndeletePlan {
    lines: [Vec<CString>; 3],
    is_better: bool,
}

/// A plan to bring a subvolume back. Made by papilio_plan_undelete(), freed by
/// papilio_undelete_plan_free().
#[allow(non_camel_case_types)]
pub struct papilio_undelete_plan {
    _incomplete: (),
}

handle!(papilio_undelete_plan for UndeletePlan);

/// The measures that would help a full file system. Made by papilio_plan_relief(), freed by
/// papilio_relief_free().
#[allow(non_camel_case_types)]
pub struct papilio_relief {
    _incomplete: (),
}

handle!(papilio_relief for Relief);

/// Scans the file system on the image or block device at `path`, NUL-terminated, which nobody has
/// open for writing, for subvolumes that were deleted and that older root trees still have, by id.
/// `options` names further devices, and may be NULL. The list goes to `*list`. Free it with
/// papilio_deleted_free().
///
/// Returns the number of subvolumes or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_find_deleted_subvolumes(
    path: *const c_char,
    options: *const papilio_options,
    list: *mut *mut papilio_deleted_list,
) -> i64 {
    guard(|| {
        check_result(list, "list")?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { host_path(path, "path") }?;
        let options = options_or_default(options)?.write(false);
        crate::failure::used();
        let devices = open_devices(path, &options)?;
        let scan = scan_devices(&devices, &ScanOptions::new())?;
        let found = find_deleted_subvolumes(&devices, &options, &scan)?;
        let with_path = |one: DeletedSubvolume| {
            let path = one.subvolume.path.clone().map(c_text);
            (one, path)
        };
        let object = DeletedList(found.into_iter().map(with_path).collect());
        let found = object.0.len() as i64;
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(list, handles::insert(object)) };
        Ok(found)
    })
}

/// Describes the subvolume at `index` of a list, counted from 0. `deleted` points to a
/// papilio_deleted_subvolume, and `size` is its sizeof. Its path is valid until the list is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_deleted_get(
    list: *mut papilio_deleted_list,
    index: size_t,
    deleted: *mut papilio_deleted_subvolume,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(deleted, size, "deleted")?;
        let object = handles::get::<DeletedList>(list)?;
        let (found, path) = object.0.get(index).ok_or_else(|| past_end(index, object.0.len()))?;
        let (path, path_length) = pointer_to(path.as_ref());
        let value = papilio_deleted_subvolume {
            id: found.subvolume.id.0,
            root_tree: found.root_tree.0,
            generation: found.generation.0,
            blocks: found.blocks,
            missing: found.missing,
            change_time: time(found.subvolume.change_time),
            path,
            path_length,
            flags: if found.is_being_freed { PAPILIO_DELETED_BEING_FREED } else { 0 },
            reserved: 0,
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(deleted, size, &value) };
        Ok(())
    })
}

/// Frees a list of deleted subvolumes, and the paths in it.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_deleted_free(list: *mut papilio_deleted_list) -> c_int {
    guard_unit(|| handles::remove::<DeletedList>(list).map(drop))
}

/// Plans in memory how the deleted subvolume with the id `id`, which the older root tree at the
/// address `root_tree` has, comes back; nothing is written. `path` and `options` are those of
/// papilio_find_deleted_subvolumes(). The plan goes to `*plan`. Free it with
/// papilio_undelete_plan_free().
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_plan_undelete(
    path: *const c_char,
    options: *const papilio_options,
    id: u64,
    root_tree: u64,
    plan: *mut *mut papilio_undelete_plan,
) -> c_int {
    guard_unit(|| {
        check_result(plan, "plan")?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { host_path(path, "path") }?;
        let options = options_or_default(options)?.write(false);
        crate::failure::used();
        let devices = open_devices(path, &options)?;
        let change = RescueChange::Undelete { tree: TreeId(id), root_tree: LogicalAddress(root_tree) };
        let made = plan_repair_with(&devices, &options, &RepairOptions::new().only(change))?;
        let texts = |lines: &[String]| lines.iter().map(|line| c_text(line.replace('\0', "\\0"))).collect();
        let lines = [texts(&made.changes), texts(&made.refused), texts(&made.losses)];
        let object = UndeletePlan { lines, is_better: made.better };
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(plan, handles::insert(object)) };
        Ok(())
    })
}

/// Tells the numbers of lines of a plan. `summary` points to a papilio_undelete_summary, and `size`
/// is its sizeof.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_undelete_plan_get(
    plan: *mut papilio_undelete_plan,
    summary: *mut papilio_undelete_summary,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(summary, size, "summary")?;
        let object = handles::get::<UndeletePlan>(plan)?;
        let [changes, refused, losses] = object.lines.each_ref().map(|lines| lines.len() as u64);
        let flags = if object.is_better { PAPILIO_UNDELETE_BETTER } else { 0 };
        let value = papilio_undelete_summary { changes, refused, losses, flags, ..zeroed() };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(summary, size, &value) };
        Ok(())
    })
}

/// Returns in `*text` the line at `index`, counted from 0, of a kind PAPILIO_PLAN_*. It is
/// NUL-terminated and valid until the plan is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end, -EINVAL for an unknown kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_undelete_plan_line(
    plan: *mut papilio_undelete_plan,
    kind: u32,
    index: size_t,
    text: *mut *const c_char,
) -> c_int {
    guard_unit(|| {
        check_result(text, "text")?;
        let object = handles::get::<UndeletePlan>(plan)?;
        let lines = object.lines.get(kind as usize).ok_or_else(|| unknown_kind(kind))?;
        let line = lines.get(index).ok_or_else(|| past_end(index, lines.len()))?;
        // SAFETY: the pointer was checked, and the caller promises memory for a pointer.
        unsafe { store(text, line.as_ptr()) };
        Ok(())
    })
}

fn unknown_kind(kind: u32) -> Failure {
    Failure::invalid(format!("unknown kind {kind}"))
}

/// Frees a plan, and the texts in it.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_undelete_plan_free(plan: *mut papilio_undelete_plan) -> c_int {
    guard_unit(|| handles::remove::<UndeletePlan>(plan).map(drop))
}

/// Finds out whether metadata has too little room, and what would help, without changing anything.
/// The answer goes to `*relief`. Free it with papilio_relief_free().
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_plan_relief(fs: *mut papilio_fs, relief: *mut *mut papilio_relief) -> c_int {
    guard_unit(|| {
        check_result(relief, "relief")?;
        let planned = fs_of(fs)?.plan_relief()?;
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(relief, handles::insert(planned)) };
        Ok(())
    })
}

/// Tells how much room metadata has, and what would help. `summary` points to a
/// papilio_relief_summary, and `size` is its sizeof.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_relief_get(
    relief: *mut papilio_relief,
    summary: *mut papilio_relief_summary,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(summary, size, "summary")?;
        let found = handles::get::<Relief>(relief)?;
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        let value = papilio_relief_summary {
            metadata_total: found.metadata_total,
            metadata_used: found.metadata_used,
            unallocated_metadata: found.unallocated_metadata,
            room: found.metadata_room(),
            needed: found.needed,
            deleted_subvolumes: found.deleted_subvolumes,
            empty_groups: found.empty.len() as u64,
            movable_groups: found.movable.len() as u64,
            slack_devices: found.slack.len() as u64,
            flags: bit(found.is_short(), PAPILIO_RELIEF_SHORT)
                | bit(found.has_measures(), PAPILIO_RELIEF_MEASURES),
            ..zeroed()
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(summary, size, &value) };
        Ok(())
    })
}

/// Describes the block group at `index`, counted from 0, of a kind PAPILIO_RELIEF_EMPTY or
/// PAPILIO_RELIEF_MOVABLE. `group` points to a papilio_relief_group, and `size` is its sizeof.
///
/// Returns 0 or a negative errno: -ERANGE past the end, -EINVAL for an unknown kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_relief_group_get(
    relief: *mut papilio_relief,
    kind: u32,
    index: size_t,
    group: *mut papilio_relief_group,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(group, size, "group")?;
        let relief = handles::get::<Relief>(relief)?;
        let groups = groups_of(&relief, kind)?;
        let found = groups.get(index).ok_or_else(|| past_end(index, groups.len()))?;
        let value = papilio_relief_group {
            start: found.start.0,
            length: found.length,
            used: found.used,
            raw: found.raw,
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(group, size, &value) };
        Ok(())
    })
}

fn groups_of(relief: &Relief, kind: u32) -> Result<&[ReliefGroup]> {
    match kind {
        PAPILIO_RELIEF_EMPTY => Ok(&relief.empty),
        PAPILIO_RELIEF_MOVABLE => Ok(&relief.movable),
        unknown => Err(unknown_kind(unknown)),
    }
}

/// Tells which device at `index`, counted from 0, is larger than the file system on it: its id goes
/// to `*devid`.
///
/// Returns the bytes behind the end of the file system, or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_relief_slack(
    relief: *mut papilio_relief,
    index: size_t,
    devid: *mut u64,
) -> i64 {
    guard(|| {
        check_result(devid, "devid")?;
        let relief = handles::get::<Relief>(relief)?;
        let (device, bytes) = relief.slack.get(index).ok_or_else(|| past_end(index, relief.slack.len()))?;
        // SAFETY: the pointer was checked, and the caller promises memory for a number.
        unsafe { store(devid, device.0) };
        Ok(count(*bytes))
    })
}

/// Frees what papilio_plan_relief() made.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_relief_free(relief: *mut papilio_relief) -> c_int {
    guard_unit(|| handles::remove::<Relief>(relief).map(drop))
}
