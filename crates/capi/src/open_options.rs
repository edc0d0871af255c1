//! Options for opening a file system.
//!
//! An options object has the settings of `papilio_open()` and `papilio_check()`. One object may be
//! used for several calls. A setting that is not made keeps its default, which is the safe one.

use crate::arguments::{check_result, host_path, store, text, utf8};
use crate::failure::{Failure, Result, guard_unit};
use crate::handles::{self, handle};
use libc::{c_char, c_int};
use papilio::{CompressionChoice, OpenOptions, SubvolumeChoice, TreeId};
use parking_lot::Mutex;
use std::time::Duration;

/// The options of opening, under a lock for threads that share them.
pub(crate) struct Options(Mutex<OpenOptions>);

/// Options for opening a file system. Made by papilio_options_new().
#[allow(non_camel_case_types)]
pub struct papilio_options {
    _incomplete: (),
}

handle!(papilio_options for Options);

/// Returns the options of a handle, or the defaults for NULL.
pub(crate) fn options_or_default(options: *const papilio_options) -> Result<OpenOptions> {
    if options.is_null() {
        return Ok(OpenOptions::new());
    }
    Ok(handles::get::<Options>(options)?.0.lock().clone())
}

fn update(options: *const papilio_options, set: impl FnOnce(OpenOptions) -> OpenOptions) -> Result<()> {
    let object = handles::get::<Options>(options)?;
    let mut held = object.0.lock();
    *held = set(std::mem::take(&mut *held));
    Ok(())
}

fn change(options: *const papilio_options, set: impl FnOnce(OpenOptions) -> OpenOptions) -> c_int {
    guard_unit(|| update(options, set))
}

/// Makes an options object with the defaults: reading only, one device, none missing, the top-level
/// subvolume. The object goes to `*options`. Free it with papilio_options_free().
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_options_new(options: *mut *mut papilio_options) -> c_int {
    guard_unit(|| {
        check_result(options, "options")?;
        let object = handles::insert(Options(Mutex::new(OpenOptions::new())));
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(options, object) };
        Ok(())
    })
}

/// Frees an options object. File systems that were opened with it stay open.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_free(options: *mut papilio_options) -> c_int {
    guard_unit(|| handles::remove::<Options>(options).map(drop))
}

/// Sets whether the file system is opened for writing too. The default is false.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_write(options: *mut papilio_options, write: bool) -> c_int {
    change(options, |held| held.write(write))
}

/// Adds `path`, a NUL-terminated path of the host, as another device of a file system with several
/// devices.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_options_add_device(
    options: *mut papilio_options,
    path: *const c_char,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { host_path(path, "path") }?;
        update(options, |held| held.device(path))
    })
}

/// Sets whether the file system may be opened while devices are missing, as far as each chunk
/// tolerates it. The default is false.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_degraded(options: *mut papilio_options, degraded: bool) -> c_int {
    change(options, |held| held.degraded(degraded))
}

/// Lets all paths start at the subvolume at `path`, a NUL-terminated path from the top level. The
/// default is the top level.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_options_set_subvolume(
    options: *mut papilio_options,
    path: *const c_char,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { text(path, "path") }?.to_vec();
        update(options, |held| held.subvolume(SubvolumeChoice::Path(path)))
    })
}

/// Lets all paths start at the subvolume with the id `id`. 0 selects the subvolume that a mount
/// without options shows; 5 is the top level.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_subvolume_id(options: *mut papilio_options, id: u64) -> c_int {
    change(options, |held| {
        held.subvolume(if id == 0 { SubvolumeChoice::Default } else { SubvolumeChoice::Id(TreeId(id)) })
    })
}

/// Sets whether devices bypass the page cache of the host (O_DIRECT). The default is false. Queues
/// then keep many requests in flight without a thread for each.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_direct_io(options: *mut papilio_options, direct_io: bool) -> c_int {
    change(options, |held| held.direct_io(direct_io))
}

/// Sets the bytes of the page cache for file data. The default, 0, means none: data is read from
/// and written to the device directly. The cache is used only if the file system is open for
/// writing.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_cache_bytes(options: *mut papilio_options, bytes: u64) -> c_int {
    change(options, |held| held.cache_bytes(bytes))
}

/// Limits the memory for tree blocks, in bytes. The default is 64 MiB.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_node_cache_bytes(options: *mut papilio_options, bytes: u64) -> c_int {
    change(options, |held| held.node_cache_bytes(usize::try_from(bytes).unwrap_or(usize::MAX)))
}

/// Limits the bytes of changed tree blocks in memory beyond which a change waits for a commit. The
/// default is 128 MiB.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_dirty_bytes(options: *mut papilio_options, bytes: u64) -> c_int {
    change(options, |held| held.dirty_bytes(bytes))
}

/// Sets the compression of new data: `compression` is the NUL-terminated text "zlib", "lzo",
/// "zstd", "zlib:1" to "zlib:9", "zstd:-15" to "zstd:15", or "none", the default. If `force` is
/// set, data of all files is compressed, also that which does not get smaller at first.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_options_set_compression(
    options: *mut papilio_options,
    compression: *const c_char,
    force: bool,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller promises a NUL-terminated text.
        let choice: CompressionChoice = unsafe { utf8(compression, "compression") }?.parse()?;
        update(options, |held| if force { held.compress_force(choice) } else { held.compress(choice) })
    })
}

/// Sets the longest time before a change is committed, in seconds. The default is 30. With 0 only
/// papilio_sync(), papilio_close() and lack of memory commit.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_commit_interval(options: *mut papilio_options, seconds: u32) -> c_int {
    change(options, |held| held.commit_interval((seconds > 0).then(|| Duration::from_secs(seconds.into()))))
}

/// Sets whether freed space is discarded after each commit. The default is false.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_discard(options: *mut papilio_options, discard: bool) -> c_int {
    change(options, |held| held.discard(discard))
}

/// Sets the most bytes of a file that are stored inline in a tree. The default is 2048; 0 stores no
/// file inline.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_max_inline(options: *mut papilio_options, bytes: u32) -> c_int {
    change(options, |held| held.max_inline(bytes))
}

/// Sets whether new files are created without checksums. The default is false.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_no_data_sums(options: *mut papilio_options, on: bool) -> c_int {
    change(options, |held| held.no_data_sums(on))
}

/// Sets whether new files are overwritten in place, which also means without checksums. The default
/// is false.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_no_data_cow(options: *mut papilio_options, on: bool) -> c_int {
    change(options, |held| held.no_data_cow(on))
}

/// Sets whether data that is read is verified against its checksums. The default is true.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_verify_data(options: *mut papilio_options, verify: bool) -> c_int {
    change(options, |held| held.verify_data(verify))
}

/// Sets whether a copy that a read found bad is rewritten from a good one, where the file system is
/// open for writing. The default is true.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_heal_reads(options: *mut papilio_options, heal: bool) -> c_int {
    change(options, |held| held.heal_reads(heal))
}

/// Sets whether an fsync may write to the log instead of committing. The default is true.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_tree_log(options: *mut papilio_options, log: bool) -> c_int {
    change(options, |held| held.tree_log(log))
}

/// Sets whether a log that a crash left is replayed. The default is true: a file system that is
/// opened for reading is replayed in memory, and opening fails if that is not possible. If it is
/// false, a file system with a log can be opened for reading only, and shows the last commit.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_replay_log(options: *mut papilio_options, replay: bool) -> c_int {
    change(options, |held| held.replay_log(replay))
}

/// Sets whether the last commit may be shown if a log of fsyncs cannot be replayed. The default is
/// false: papilio_open() fails then, and the message names files that are older. If it is true,
/// papilio_older() lists the reasons and those files. It counts only for opening for reading.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_allow_older(options: *mut papilio_options, allow: bool) -> c_int {
    change(options, |held| held.allow_older(allow))
}

/// Limits the memory for the replay of a log of fsyncs, in bytes for each device. The default is
/// 256 MiB. It counts only for opening for reading: a log that needs more cannot be replayed then.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_replay_bytes(options: *mut papilio_options, bytes: u64) -> c_int {
    change(options, |held| held.replay_bytes(bytes))
}

/// Sets whether a device may be written that has the signature of something else, such as a member
/// of an array or an encrypted volume. The default is false: papilio_open() gives -EBUSY.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_ignore_signatures(
    options: *mut papilio_options,
    ignore: bool,
) -> c_int {
    change(options, |held| held.ignore_signatures(ignore))
}

/// Sets whether older roots of the superblock are tried if the newest cannot be read. The default
/// is false.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_use_backup_root(options: *mut papilio_options, on: bool) -> c_int {
    change(options, |held| held.use_backup_root(on))
}

/// Selects the copy of the superblock to read, 0 to 2. The default is 0, the primary.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_superblock_mirror(options: *mut papilio_options, mirror: u32) -> c_int {
    guard_unit(|| {
        if mirror > 2 {
            return Err(Failure::invalid(format!("superblock copy {mirror}: there are 0, 1 and 2")));
        }
        update(options, |held| held.superblock_mirror(mirror as usize))
    })
}

/// Sets a fixed time for all changes, so that equal changes make equal images: `seconds` since 1970
/// and `nanoseconds` below 1,000,000,000. The default is the clock's time.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_options_set_timestamp(
    options: *mut papilio_options,
    seconds: i64,
    nanoseconds: u32,
) -> c_int {
    guard_unit(|| {
        let time = crate::time::timespec(seconds, nanoseconds)?;
        update(options, |held| held.timestamp(Some(time)))
    })
}
