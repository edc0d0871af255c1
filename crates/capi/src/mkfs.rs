//! Making file systems.
//!
//! The defaults are those of `mkfs.btrfs`: data once, metadata twice on one device and mirrored on
//! several, tree blocks of 16 KiB, CRC-32C. Nothing is written unless all devices can be used.

use crate::arguments::{
    Extensible, array, check_flags, check_result, check_structure, host_path, store, store_structure, text,
    utf8,
};
use crate::failure::{Failure, Result, guard_unit};
use crate::handles::{self, handle};
use crate::time::timespec;
use libc::{c_char, c_int, size_t};
use papilio::{ChecksumType, CompressionChoice, ContentSource, MkfsContent, MkfsOptions, RaidProfile, Uuid};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The options of a new file system.
pub(crate) struct Making {
    options: Mutex<MkfsOptions>,
    /// Whether the program set the size.
    sized: AtomicBool,
}

/// Options of a new file system. Made by papilio_mkfs_options_new().
#[allow(non_camel_case_types)]
pub struct papilio_mkfs_options {
    _incomplete: (),
}

handle!(papilio_mkfs_options for Making);

fn update(
    options: *const papilio_mkfs_options,
    set: impl FnOnce(MkfsOptions) -> Result<MkfsOptions>,
) -> c_int {
    guard_unit(|| {
        let object = handles::get::<Making>(options)?;
        let mut held = object.options.lock();
        *held = set(held.clone())?;
        Ok(())
    })
}

/// Makes an options object with the defaults. It goes to `*options`. Free it with
/// papilio_mkfs_options_free().
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_mkfs_options_new(options: *mut *mut papilio_mkfs_options) -> c_int {
    guard_unit(|| {
        check_result(options, "options")?;
        let object = handles::insert(Making {
            options: Mutex::new(MkfsOptions::new()),
            sized: AtomicBool::new(false),
        });
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(options, object) };
        Ok(())
    })
}

/// Frees an options object.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_mkfs_options_free(options: *mut papilio_mkfs_options) -> c_int {
    guard_unit(|| handles::remove::<Making>(options).map(drop))
}

/// Sets the size of the file system on each device in bytes, rounded down to whole sectors; by
/// default that of the device. A missing regular file is created, and a shorter one extended to
/// this size.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_mkfs_options_set_size(options: *mut papilio_mkfs_options, bytes: u64) -> c_int {
    let updated = update(options, |held| Ok(held.size(bytes)));
    if updated == 0 {
        return guard_unit(|| {
            handles::get::<Making>(options)?.sized.store(true, Ordering::Relaxed);
            Ok(())
        });
    }
    updated
}

/// Sets the label: at most 255 bytes, NUL-terminated, without a line break.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_mkfs_options_set_label(
    options: *mut papilio_mkfs_options,
    label: *const c_char,
) -> c_int {
    // SAFETY: the caller promises a NUL-terminated text.
    update(options, |held| Ok(held.label(unsafe { text(label, "label") }?)))
}

/// Sets the UUID of the file system to the 16 bytes at `uuid`. The default is a random one. With a
/// time as well, equal options make equal images.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_mkfs_options_set_uuid(
    options: *mut papilio_mkfs_options,
    uuid: *const u8,
) -> c_int {
    update(options, |held| {
        // SAFETY: the caller promises 16 bytes.
        let bytes = unsafe { array(uuid, 16, "uuid") }?;
        Ok(held.fsid(Uuid::from_slice(bytes).map_err(|error| Failure::invalid(error.to_string()))?))
    })
}

/// Sets the time of creation: `seconds` since 1970 and `nanoseconds`. The default is the current
/// time.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_mkfs_options_set_timestamp(
    options: *mut papilio_mkfs_options,
    seconds: i64,
    nanoseconds: u32,
) -> c_int {
    update(options, |held| Ok(held.timestamp(timespec(seconds, nanoseconds)?)))
}

/// Sets the bytes of a tree block: a power of two from 4 KiB to 64 KiB.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_mkfs_options_set_node_size(
    options: *mut papilio_mkfs_options,
    bytes: u32,
) -> c_int {
    update(options, |held| Ok(held.node_size(bytes)))
}

/// Sets the checksum algorithm: the NUL-terminated name "crc32c", "xxhash", "sha256" or "blake2".
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_mkfs_options_set_checksum(
    options: *mut papilio_mkfs_options,
    name: *const c_char,
) -> c_int {
    update(options, |held| {
        // SAFETY: the caller promises a NUL-terminated text.
        let wanted = match unsafe { utf8(name, "name") }? {
            "xxhash" => "xxhash64",
            "blake2b" => "blake2",
            name => name,
        };
        let found = ChecksumType::ALL.into_iter().find(|checksum| checksum.name() == wanted);
        let unknown =
            || Failure::invalid(format!("checksum {wanted:?}: there are crc32c, xxhash, sha256 and blake2"));
        Ok(held.checksum(found.ok_or_else(unknown)?))
    })
}

/// Switches features as `mkfs.btrfs -O` does: a NUL-terminated list of names with commas, such as
/// "^no-holes,block-group-tree", each with a "^" in front to switch it off.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_mkfs_options_set_features(
    options: *mut papilio_mkfs_options,
    list: *const c_char,
) -> c_int {
    // SAFETY: the caller promises a NUL-terminated text.
    update(options, |held| Ok(held.feature_list(unsafe { utf8(list, "list") }?)?))
}

/// Sets the profiles of data and metadata: the NUL-terminated names "single", "dup", "raid0",
/// "raid1", "raid1c3", "raid1c4", "raid10", "raid5" or "raid6". NULL keeps the default.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_mkfs_options_set_profiles(
    options: *mut papilio_mkfs_options,
    data: *const c_char,
    metadata: *const c_char,
) -> c_int {
    update(options, |mut held| {
        if !data.is_null() {
            // SAFETY: the caller promises a NUL-terminated text.
            held = held.data_profile(profile(unsafe { utf8(data, "data") }?)?);
        }
        if !metadata.is_null() {
            // SAFETY: as above.
            held = held.metadata_profile(profile(unsafe { utf8(metadata, "metadata") }?)?);
        }
        Ok(held)
    })
}

fn profile(name: &str) -> Result<RaidProfile> {
    let found = RaidProfile::ALL.into_iter().find(|profile| profile.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| Failure::invalid(format!("{name:?} is not a profile")))
}

/// Sets whether existing content of the devices is overwritten. The default is false: -EEXIST then.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_mkfs_options_set_force(options: *mut papilio_mkfs_options, force: bool) -> c_int {
    update(options, |held| Ok(held.force(force)))
}

/// Sets whether the old content of the devices is discarded. The default is true.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_mkfs_options_set_discard(
    options: *mut papilio_mkfs_options,
    discard: bool,
) -> c_int {
    update(options, |held| Ok(held.discard(discard)))
}

/// Makes a file system on the image or block device at `path`, a NUL-terminated path of the host,
/// with `options`, or with the defaults if that is NULL.
///
/// Returns 0 or a negative errno: -EEXIST for a device with content, -EBUSY for one in use, -EINVAL
/// for one that is too small or options that exclude one another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_mkfs(path: *const c_char, options: *const papilio_mkfs_options) -> c_int {
    // SAFETY: the caller's promise is that of papilio_mkfs_many() for one path.
    unsafe { papilio_mkfs_many(&path, 1, options) }
}

/// Makes one file system on several images or block devices: `paths` is an array of `count` paths,
/// NUL-terminated. The first device gets the id 1.
///
/// Returns 0 or a negative errno, as papilio_mkfs().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_mkfs_many(
    paths: *const *const c_char,
    count: size_t,
    options: *const papilio_mkfs_options,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller promises `count` paths.
        let paths = unsafe { array(paths, count, "paths") }?;
        // SAFETY: the caller promises NUL-terminated texts.
        let paths = paths.iter().map(|path| unsafe { host_path(*path, "path") });
        let paths = paths.collect::<Result<Vec<_>>>()?;
        let options = match options.is_null() {
            true => MkfsOptions::new(),
            false => handles::get::<Making>(options)?.options.lock().clone(),
        };
        crate::failure::used();
        papilio::mkfs_many(&paths, &options)?;
        Ok(())
    })
}

/// Flag of papilio_mkfs_content(): the file system, and the image if it is a regular file, shrink
/// to the content.
pub const PAPILIO_MKFS_SHRINK: u32 = 0x1;

/// Makes a file system on the image or block device at `path`, and fills it from `content`: a
/// directory of the host, or a tar archive, which may be compressed. Both are NUL-terminated paths
/// of the host. Owners, modes, times, extended attributes, access control lists, hard links, device
/// files and holes are kept. `options` may be NULL. Unless they have a size, a missing or empty
/// image gets the size that the content needs. `compression` is NULL or as in
/// papilio_options_set_compression(). `flags` is 0 or PAPILIO_MKFS_SHRINK.
///
/// Returns 0 or a negative errno, as papilio_mkfs(); -ENOSPC if the content does not fit, and the
/// errors of reading it. After an error no image looks complete, and a missing one stays missing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_mkfs_content(
    path: *const c_char,
    content: *const c_char,
    options: *const papilio_mkfs_options,
    compression: *const c_char,
    flags: u32,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_MKFS_SHRINK)?;
        // SAFETY: the caller promises NUL-terminated texts.
        let (path, content) = unsafe { (host_path(path, "path")?, host_path(content, "content")?) };
        let (options, sized) = match options.is_null() {
            true => (MkfsOptions::new(), false),
            false => {
                let object = handles::get::<Making>(options)?;
                let held = object.options.lock().clone();
                (held, object.sized.load(Ordering::Relaxed))
            }
        };
        // SAFETY: as above.
        let compression = unsafe { compression_of(compression) }?;
        crate::failure::used();
        let make =
            MkfsContent::new().compress(compression).shrink(flags & PAPILIO_MKFS_SHRINK != 0).sized(sized);
        make.make(&[path], &options, ContentSource::at(content)?, &mut ())?;
        Ok(())
    })
}

/// The result of papilio_update_content().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_content_update {
    /// Names that were made, where none was.
    pub created: u64,
    /// Entries whose data, attributes or kind were changed.
    pub changed: u64,
    /// Names that were removed. A directory counts as one.
    pub removed: u64,
    /// Entries that were as they should be.
    pub unchanged: u64,
    /// Bytes of file data written, without holes.
    pub bytes_written: u64,
    /// Bytes of file data that were equal.
    pub bytes_equal: u64,
}

// SAFETY: it consists of integers of one size.
unsafe impl Extensible for papilio_content_update {
    const FIRST_SIZE: usize = 6 * 8;
}
const _: () = assert!(size_of::<papilio_content_update>() == 6 * 8);

/// Makes the content of the file system on the image or block device at `path` that of `content`, a
/// directory of the host. Both are NUL-terminated paths of the host. Files are compared byte by
/// byte, and only what differs is written. Names that the directory lacks are removed. An image
/// that is a regular file may grow. `compression` is NULL or as in
/// papilio_options_set_compression(). `flags` is 0 or PAPILIO_MKFS_SHRINK, which cuts off what is
/// unused at the end. `done` is NULL or points to a papilio_content_update of `size` bytes.
///
/// Returns 0 or a negative errno: -EINVAL if the file system has subvolumes; -ENOTDIR if `content`
/// is no directory; the errors of opening the file system and of reading the content. After an
/// error the file system may have a part of the update, and another call does the rest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_update_content(
    path: *const c_char,
    content: *const c_char,
    compression: *const c_char,
    flags: u32,
    done: *mut papilio_content_update,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_MKFS_SHRINK)?;
        if !done.is_null() {
            check_structure(done, size, "done")?;
        }
        // SAFETY: the caller promises NUL-terminated texts.
        let (path, content) = unsafe { (host_path(path, "path")?, host_path(content, "content")?) };
        // SAFETY: as above.
        let compression = unsafe { compression_of(compression) }?;
        crate::failure::used();
        let make = MkfsContent::new().compress(compression).shrink(flags & PAPILIO_MKFS_SHRINK != 0);
        let updated = make.update(&[path], content, &mut ())?;
        if !done.is_null() {
            let value = papilio_content_update {
                created: updated.created,
                changed: updated.changed,
                removed: updated.removed,
                unchanged: updated.unchanged,
                bytes_written: updated.bytes_written,
                bytes_equal: updated.bytes_equal,
            };
            // SAFETY: the structure was checked, and the caller promises its bytes.
            unsafe { store_structure(done, size, &value) };
        }
        Ok(())
    })
}

/// Returns the compression that a text names; `None` for NULL.
unsafe fn compression_of(text: *const c_char) -> Result<Option<CompressionChoice>> {
    match text.is_null() {
        true => Ok(None),
        // SAFETY: the caller promises a NUL-terminated text.
        false => Ok(Some(unsafe { utf8(text, "compression") }?.parse()?)),
    }
}
