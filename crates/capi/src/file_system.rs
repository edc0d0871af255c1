//! Opening and closing file systems.
//!
//! Any number of threads may use a file system at once. Changes are visible at once, and durable
//! after `papilio_sync()`, `papilio_close()`, or the commit that follows within 30 seconds. A
//! process that ends without `papilio_close()` loses the changes since the last commit.
//!
//! `papilio_close()` refuses to close a file system with open files, directories, walks or queues.
//! A child that was forked cannot use the file systems of its parent: every call returns `-EBADF`
//! there until it calls exec.

use crate::arguments::{check_result, copy_out, host_path, store, text};
use crate::failure::{Failure, Result, guard, guard_unit};
use crate::handles::{self, handle};
use crate::open_options::{options_or_default, papilio_options};
use libc::{c_char, c_int, c_void, size_t};
use papilio::FileSystem;
use parking_lot::Mutex;
use std::sync::Arc;

/// An open file system.
pub(crate) struct Fs {
    fs: FileSystem,
    users: Mutex<Users>,
    creator: Mutex<Creator>,
}

/// An open file system. Opened by papilio_open(), closed by papilio_close().
#[allow(non_camel_case_types)]
pub struct papilio_fs {
    _incomplete: (),
}

handle!(papilio_fs for Fs);

/// The objects that refer to a file system.
#[derive(Default)]
struct Users {
    count: usize,
    closed: bool,
}

/// The owner of new inodes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Creator {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) umask: u32,
}

impl Fs {
    pub(crate) fn creator(&self) -> Creator {
        *self.creator.lock()
    }
}

impl std::ops::Deref for Fs {
    type Target = FileSystem;

    fn deref(&self) -> &FileSystem {
        &self.fs
    }
}

/// A reference of a file, directory, walk or queue to its file system, which cannot be closed
/// meanwhile.
pub(crate) struct User(Arc<Fs>);

impl User {
    /// # Errors
    /// `EBADF` if another thread closes the file system.
    pub(crate) fn new(fs: &Arc<Fs>) -> Result<Self> {
        let mut users = fs.users.lock();
        if users.closed {
            return Err(Failure::new(libc::EBADF, "another thread closes the file system"));
        }
        users.count += 1;
        Ok(Self(Arc::clone(fs)))
    }

    pub(crate) fn fs(&self) -> &Arc<Fs> {
        &self.0
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.users.lock().count -= 1;
    }
}

/// Returns the file system of a handle.
pub(crate) fn fs_of(fs: *const papilio_fs) -> Result<Arc<Fs>> {
    handles::get::<Fs>(fs)
}

/// Opens the image or block device at `path`, a NUL-terminated path of the host, with `options`, or
/// with the defaults if that is NULL. The handle goes to `*fs`, which is unchanged if the call
/// fails. The device is locked against other users until papilio_close(); for reading only, against
/// writers.
///
/// Returns 0 or a negative errno, among them -ENOENT, -EACCES, -EBUSY for a device in use, -EINVAL
/// for one without a Btrfs, -EOPNOTSUPP for unknown features, -EIO for a damaged file system.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_open(
    path: *const c_char,
    options: *const papilio_options,
    fs: *mut *mut papilio_fs,
) -> c_int {
    guard_unit(|| {
        check_result(fs, "fs")?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { host_path(path, "path") }?;
        let options = options_or_default(options)?;
        crate::failure::used();
        let opened = FileSystem::open_with(path, &options)?;
        let object = Fs { fs: opened, users: Mutex::default(), creator: Mutex::default() };
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(fs, handles::insert(object)) };
        Ok(())
    })
}

/// Adds a reference to the handle `fs`, for another part of the program. Each reference needs a
/// papilio_close() of its own.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_ref(fs: *mut papilio_fs) -> c_int {
    guard_unit(|| handles::add_reference::<Fs>(fs))
}

/// Drops a reference to the handle `fs`. With the last one, makes all changes durable and closes
/// the file system. Calls of other threads that run meanwhile end as if they came before.
///
/// Returns 0; -EBUSY while files, directories, walks or queues are open, and nothing is closed
/// then; or the errno of the commit, after which the handle is closed all the same.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_close(fs: *mut papilio_fs) -> c_int {
    guard_unit(|| {
        let closed = handles::drop_reference::<Fs>(fs, |object| {
            let mut users = object.users.lock();
            if users.count > 0 {
                let count = users.count;
                let message =
                    format!("{count} files, directories, walks or queues are open: close them first");
                return Err(Failure::new(libc::EBUSY, message));
            }
            users.closed = true;
            Ok(())
        })?;
        match closed {
            Some(object) => Ok(object.fs.clone().close()?),
            None => Ok(()),
        }
    })
}

/// Makes all changes durable, those of all files included (syncfs).
///
/// Returns 0 or a negative errno: -EROFS if the file system is open for reading only, or became
/// read-only by a failure, see papilio_failure().
#[unsafe(no_mangle)]
pub extern "C" fn papilio_sync(fs: *mut papilio_fs) -> c_int {
    guard_unit(|| Ok(fs_of(fs)?.sync()?))
}

/// Sets owner, group and umask of what this file system's handle creates from now on: files,
/// directories, links, devices and subvolumes. All three are 0 at first, whatever the process is.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_set_creator(fs: *mut papilio_fs, uid: u32, gid: u32, umask: u32) -> c_int {
    guard_unit(|| {
        *fs_of(fs)?.creator.lock() = Creator { uid, gid, umask: umask & 0o777 };
        Ok(())
    })
}

/// Copies the UUID of the file system to the 16 bytes at `uuid`.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_uuid(fs: *mut papilio_fs, uuid: *mut u8) -> c_int {
    guard_unit(|| {
        check_result(uuid, "uuid")?;
        // SAFETY: the pointer was checked, and the caller promises 16 bytes.
        unsafe { store(uuid.cast::<[u8; 16]>(), *fs_of(fs)?.uuid().as_bytes()) };
        Ok(())
    })
}

/// Copies the label, without a NUL, to the `size` bytes at `buffer`. With `size` 0, `buffer` may be
/// NULL, and the call only returns the length.
///
/// Returns the length, 0 without a label, or a negative errno: -ERANGE if the buffer is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_label(fs: *mut papilio_fs, buffer: *mut c_void, size: size_t) -> i64 {
    // SAFETY: the caller promises `size` bytes.
    guard(|| unsafe { copy_out(&fs_of(fs)?.label(), buffer, size) })
}

/// Sets the label: at most 255 bytes, NUL-terminated, without a line break. "" removes it.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_set_label(fs: *mut papilio_fs, label: *const c_char) -> c_int {
    // SAFETY: the caller promises a NUL-terminated text.
    guard_unit(|| Ok(fs_of(fs)?.set_label(unsafe { text(label, "label") }?)?))
}

/// Copies the reason why the file system became read-only, without a NUL, to the `size` bytes at
/// `buffer`. With `size` 0, `buffer` may be NULL, and the call only returns the length.
///
/// Returns the length, 0 if no failure made it read-only, or a negative errno: -ERANGE if the
/// buffer is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_failure(fs: *mut papilio_fs, buffer: *mut c_void, size: size_t) -> i64 {
    // SAFETY: the caller promises `size` bytes.
    guard(|| unsafe { copy_out(fs_of(fs)?.failure().unwrap_or_default().as_bytes(), buffer, size) })
}

/// Returns 1 if there is a log of fsyncs whose changes are not visible, because the options forbid
/// its replay; 0 if not; or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_has_log(fs: *mut papilio_fs) -> c_int {
    guard(|| Ok(fs_of(fs)?.has_log().into()))
}

/// Returns 1 if requests wait for a device, as with papilio_options_set_direct_io(): it then pays
/// to keep many in flight in a queue. Returns 0 if not, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_waits_for_devices(fs: *mut papilio_fs) -> c_int {
    guard(|| Ok(fs_of(fs)?.waits_for_devices().into()))
}

/// Discards the free space of the devices. Commits first, so that deleted files count as free.
/// Skips runs of less than `min_length` bytes.
///
/// Returns the bytes discarded, or a negative errno: -EOPNOTSUPP if a device cannot discard.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_trim(fs: *mut papilio_fs, min_length: u64) -> i64 {
    guard(|| Ok(count(fs_of(fs)?.trim(0..u64::MAX, min_length)?)))
}

/// Sets the bytes that the file system uses of the device with the id `devid`; the first device has
/// the id 1. `bytes` is rounded down to whole sectors. Data behind the new end is moved. To shrink
/// an image file, truncate it after papilio_close(); to grow one, extend it before papilio_open().
///
/// Returns the new size, or a negative errno: -ENOSPC if what would be left is too small.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_resize(fs: *mut papilio_fs, devid: u64, bytes: u64) -> i64 {
    guard(|| {
        let devid = papilio::DeviceId(devid);
        let fs = fs_of(fs)?;
        if bytes >= fs.minimum_size(devid)? {
            return Ok(count(fs.resize(devid, bytes)?));
        }
        Ok(count(fs.shrink(devid, bytes, |_| true)?.unwrap_or(bytes)))
    })
}

/// Returns a number of bytes as a result, which is below 2^63 for every device.
pub(crate) fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
