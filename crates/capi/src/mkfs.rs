//! Making file systems.
//!
//! The defaults are those of `mkfs.btrfs`: data once, metadata twice on one device and mirrored on
//! several, tree blocks of 16 KiB, CRC-32C. Nothing is written unless all devices can be used.

use crate::arguments::{array, check_flags, check_result, host_path, store, text, utf8};
use crate::failure::{Failure, Result, guard_unit};
use crate::handles::{self, handle};
use crate::time::timespec;
use libc::{c_char, c_int, size_t};
use papilio::{ChecksumType, ContentSource, MkfsContent, MkfsOptions, RaidProfile, Uuid};
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
        let compression = match compression.is_null() {
            true => None,
            // SAFETY: the caller promises a NUL-terminated text.
            false => Some(unsafe { utf8(compression, "compression") }?.parse()?),
        };
        crate::failure::used();
        let make =
            MkfsContent::new().compress(compression).shrink(flags & PAPILIO_MKFS_SHRINK != 0).sized(sized);
        make.make(&[path], &options, ContentSource::at(content)?, &mut ())?;
        Ok(())
    })
}
