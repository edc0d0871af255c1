//! Open files: reading, writing, positions and durability.
//!
//! Any number of threads may use one file at once. `papilio_pread()` and `papilio_pwrite()` do not
//! use the position of the file; `papilio_read()`, `papilio_write()` and `papilio_lseek()` share
//! one. Written data is visible at once. It is durable after `papilio_fsync()` or `papilio_sync()`,
//! which also report errors of writing it back.

use crate::arguments::{
    array, buffer, check_flags, check_result, check_structure, store, store_structure, text,
};
use crate::failure::{Failure, Result, guard, guard_unit};
use crate::file_system::{User, count, fs_of, papilio_fs};
use crate::handles::{self, handle};
use crate::names::new_inode;
use crate::stat::{PAPILIO_NOFOLLOW, describe, papilio_stat};
use libc::{c_char, c_int, c_void, iovec, size_t};
use papilio::{ErrorKind, File, Inode, NewKind, PathError};
use parking_lot::Mutex;
use std::sync::Arc;

/// Flag of papilio_file_open(): creates the file if there is none.
pub const PAPILIO_CREATE: u32 = 0x2;
/// Flag of papilio_file_open(), with PAPILIO_CREATE: fails if the file exists.
pub const PAPILIO_EXCLUSIVE: u32 = 0x4;
/// Flag of papilio_file_open(): sets the size to 0.
pub const PAPILIO_TRUNCATE: u32 = 0x8;
/// Flag of papilio_file_open(): reads and writes of this handle bypass the page cache.
pub const PAPILIO_DIRECT: u32 = 0x10;
/// Flag of papilio_file_open(): creates a file without a name in the directory `path`. It is
/// deleted when it is closed.
pub const PAPILIO_UNNAMED: u32 = 0x20;

const KNOWN: u32 = PAPILIO_NOFOLLOW
    | PAPILIO_CREATE
    | PAPILIO_EXCLUSIVE
    | PAPILIO_TRUNCATE
    | PAPILIO_DIRECT
    | PAPILIO_UNNAMED;

/// An open file.
pub(crate) struct OpenFile {
    // Fields drop in this order: the file goes before the right to close the file system.
    file: Arc<File>,
    position: Mutex<u64>,
    user: User,
}

/// An open regular file. Opened by papilio_file_open(), closed by papilio_file_close().
#[allow(non_camel_case_types)]
pub struct papilio_file {
    _incomplete: (),
}

handle!(papilio_file for OpenFile);

impl std::ops::Deref for OpenFile {
    type Target = Arc<File>;

    fn deref(&self) -> &Arc<File> {
        &self.file
    }
}

impl OpenFile {
    /// Returns the file system that contains the file.
    pub(crate) fn user(&self) -> &User {
        &self.user
    }
}

/// Returns the file of a handle.
pub(crate) fn file_of(file: *const papilio_file) -> Result<Arc<OpenFile>> {
    handles::get::<OpenFile>(file)
}

/// Opens the regular file at `path`, NUL-terminated. `flags` is 0 or a combination of
/// PAPILIO_CREATE, PAPILIO_EXCLUSIVE, PAPILIO_TRUNCATE, PAPILIO_DIRECT, PAPILIO_NOFOLLOW and
/// PAPILIO_UNNAMED. A new file gets the permissions `mode`, less the umask of
/// papilio_set_creator(). The handle goes to `*file`, which is unchanged if the call fails. Whether
/// it can be written depends on the file system only.
///
/// Returns 0 or a negative errno: -EISDIR for a directory, -EINVAL for other types, -EEXIST as the
/// flags require.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_file_open(
    fs: *mut papilio_fs,
    path: *const c_char,
    flags: u32,
    mode: u32,
    file: *mut *mut papilio_file,
) -> c_int {
    guard_unit(|| {
        check_result(file, "file")?;
        check_flags(flags, KNOWN)?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { text(path, "path") }?;
        let user = User::new(&fs_of(fs)?)?;
        let opened = open(&user, path, flags, mode)?;
        let object = OpenFile { file: Arc::new(opened), position: Mutex::new(0), user };
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(file, handles::insert(object)) };
        Ok(())
    })
}

fn open(user: &User, path: &[u8], flags: u32, mode: u32) -> Result<File> {
    let has = |flag| flags & flag != 0;
    let fs = user.fs();
    let new = new_inode(NewKind::Regular, mode, fs.creator());
    let mut file = if has(PAPILIO_UNNAMED) {
        fs.inode(path)?.create_unnamed(&new)?
    } else if has(PAPILIO_CREATE) && has(PAPILIO_EXCLUSIVE) {
        fs.create(path, &new)?.open()?
    } else if !has(PAPILIO_NOFOLLOW) {
        if has(PAPILIO_CREATE) { fs.open_or_create(path, &new) } else { fs.open_file(path) }?
    } else {
        let not = |error: &papilio::Error, reason| error.kind() == ErrorKind::Path(reason);
        let find = || fs.inode_nofollow(path);
        let found: papilio::Result<Inode> = match find() {
            Err(error) if has(PAPILIO_CREATE) && not(&error, PathError::NotFound) => {
                match fs.create(path, &new) {
                    // Another thread was first.
                    Err(error) if not(&error, PathError::Exists) => find(),
                    created => created,
                }
            }
            found => found,
        };
        found?.open()?
    };
    if has(PAPILIO_TRUNCATE) {
        file.set_len(0)?;
    }
    file.set_direct(has(PAPILIO_DIRECT));
    Ok(file)
}

/// Adds a reference to the handle `file`. Each reference needs a papilio_file_close() of its own.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_file_ref(file: *mut papilio_file) -> c_int {
    guard_unit(|| handles::add_reference::<OpenFile>(file))
}

/// Drops a reference to the handle `file`, and closes the file with the last one. Requests of
/// queues that are in flight keep it open until they complete. Closing a file does not make it
/// durable.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_file_close(file: *mut papilio_file) -> c_int {
    guard_unit(|| handles::drop_reference::<OpenFile>(file, |_| Ok(())).map(drop))
}

/// Reads up to `size` bytes at byte `offset` of the file into `buffer`, which has at least that
/// size. Holes read as zeros. All data is verified by its checksum, unless it has none or the
/// options say otherwise. After an error, the content of the buffer is unspecified.
///
/// Returns the bytes read, fewer than `size` only at the end of the file, or a negative errno: -EIO
/// if no copy of the data is good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_pread(
    file: *mut papilio_file,
    buffer: *mut c_void,
    size: size_t,
    offset: u64,
) -> i64 {
    guard(|| {
        // SAFETY: the caller promises `size` bytes.
        let to = unsafe { self::buffer(buffer, size, "buffer") }?;
        Ok(file_of(file)?.read_at(to, offset)? as i64)
    })
}

/// Writes the `size` bytes at `buffer` at byte `offset` of the file. If `offset` is past the end,
/// the gap reads as zeros. Neither needs alignment.
///
/// Returns the number of bytes that are stored, or a negative errno if none is: -ENOSPC, -EDQUOT,
/// -EFBIG, -EROFS. As with pwrite() it is less than `size` only if the others have no space, or
/// would exceed a limit, or a later step failed; writing them again gives the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_pwrite(
    file: *mut papilio_file,
    buffer: *const c_void,
    size: size_t,
    offset: u64,
) -> i64 {
    guard(|| {
        // SAFETY: the caller promises `size` bytes.
        let from = unsafe { array(buffer.cast::<u8>(), size, "buffer") }?;
        Ok(file_of(file)?.write_at(from, offset)? as i64)
    })
}

/// Reads at byte `offset` of the file into the `count` buffers that `buffers` describes, one after
/// the other.
///
/// Returns the bytes read, fewer than the buffers have only at the end of the file, or a negative
/// errno as papilio_pread().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_preadv(
    file: *mut papilio_file,
    buffers: *const iovec,
    count: size_t,
    offset: u64,
) -> i64 {
    guard(|| {
        let file = file_of(file)?;
        let mut total = 0_u64;
        // SAFETY: the caller promises `count` descriptions.
        for one in unsafe { array(buffers, count, "buffers") }? {
            // SAFETY: the caller promises the described bytes.
            let to = unsafe { buffer(one.iov_base, one.iov_len, "a buffer") }?;
            let read = file.read_at(to, offset.saturating_add(total))?;
            total += read as u64;
            if read < one.iov_len {
                break;
            }
        }
        Ok(self::count(total))
    })
}

/// Writes the `count` buffers that `buffers` describes, one after the other, at byte `offset` of
/// the file.
///
/// Returns the number of bytes that are stored, or a negative errno, as papilio_pwrite().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_pwritev(
    file: *mut papilio_file,
    buffers: *const iovec,
    count: size_t,
    offset: u64,
) -> i64 {
    guard(|| {
        let file = file_of(file)?;
        let mut total = 0_u64;
        // SAFETY: the caller promises `count` descriptions.
        for one in unsafe { array(buffers, count, "buffers") }? {
            // SAFETY: the caller promises the described bytes.
            let from = unsafe { array(one.iov_base.cast_const().cast::<u8>(), one.iov_len, "a buffer") }?;
            let stored = match file.write_at(from, offset.saturating_add(total)) {
                Err(_) if total > 0 => break,
                stored => stored?,
            };
            total += stored as u64;
            if stored < one.iov_len {
                break;
            }
        }
        Ok(self::count(total))
    })
}

/// Reads up to `size` bytes at the file's position into `buffer`, which has at least that size, and
/// advances the position.
///
/// Returns the bytes read, 0 at the end of the file, or a negative errno as papilio_pread().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_read(file: *mut papilio_file, buffer: *mut c_void, size: size_t) -> i64 {
    guard(|| {
        // SAFETY: the caller promises `size` bytes.
        let to = unsafe { self::buffer(buffer, size, "buffer") }?;
        let file = file_of(file)?;
        let mut position = file.position.lock();
        let read = file.read_at(to, *position)?;
        *position += read as u64;
        Ok(read as i64)
    })
}

/// Writes the `size` bytes at `buffer` at the file's position, and advances the position by what is
/// stored.
///
/// Returns the number of bytes that are stored, or a negative errno, as papilio_pwrite(); the
/// position is unchanged after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_write(file: *mut papilio_file, buffer: *const c_void, size: size_t) -> i64 {
    guard(|| {
        // SAFETY: the caller promises `size` bytes.
        let from = unsafe { array(buffer.cast::<u8>(), size, "buffer") }?;
        let file = file_of(file)?;
        let mut position = file.position.lock();
        let stored = file.write_at(from, *position)?;
        *position += stored as u64;
        Ok(stored as i64)
    })
}

/// Moves the file's position. `whence` is SEEK_SET, SEEK_CUR or SEEK_END, or SEEK_DATA or SEEK_HOLE
/// for the first byte of data or of a hole at or after `offset`. The end of a file counts as a
/// hole, preallocated ranges count as holes.
///
/// Returns the new position, or a negative errno: -ENXIO if there is no such byte, -EINVAL before
/// the start of the file.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_lseek(file: *mut papilio_file, offset: i64, whence: c_int) -> i64 {
    guard(|| {
        let file = file_of(file)?;
        let mut position = file.position.lock();
        let from = |base: u64| {
            let moved = base.checked_add_signed(offset).filter(|at| i64::try_from(*at).is_ok());
            moved.ok_or_else(|| Failure::invalid(format!("offset {offset} leads out of every file")))
        };
        *position = match whence {
            libc::SEEK_SET => from(0)?,
            libc::SEEK_CUR => from(*position)?,
            libc::SEEK_END => from(file.size()?)?,
            libc::SEEK_DATA => {
                let none = || Failure::new(libc::ENXIO, format!("no data follows offset {offset}"));
                file.seek_data(start(offset)?)?.ok_or_else(none)?
            }
            libc::SEEK_HOLE => file.seek_hole(start(offset)?)?,
            _ => return Err(Failure::invalid(format!("whence {whence} is no SEEK_ constant"))),
        };
        Ok(count(*position))
    })
}

fn start(offset: i64) -> Result<u64> {
    u64::try_from(offset)
        .map_err(|_| Failure::new(libc::ENXIO, format!("offset {offset} is before the file")))
}

/// Sets the size of the file in bytes. A longer file reads as zeros at its end.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_ftruncate(file: *mut papilio_file, size: u64) -> c_int {
    guard_unit(|| Ok(file_of(file)?.set_len(size)?))
}

/// Makes all changes of the file up to now durable, and its names if they changed.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_fsync(file: *mut papilio_file) -> c_int {
    guard_unit(|| Ok(file_of(file)?.sync_all()?))
}

/// Makes all data written to the file up to now durable, with the metadata that is needed to read
/// it.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_fdatasync(file: *mut papilio_file) -> c_int {
    guard_unit(|| Ok(file_of(file)?.sync_data()?))
}

/// Makes what is at `path`, NUL-terminated, durable as papilio_fsync() does, for every type of
/// file. For a directory this includes the changes of its entries and new directories below it.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_fsync_path(fs: *mut papilio_fs, path: *const c_char) -> c_int {
    // SAFETY: the caller promises a NUL-terminated text.
    guard_unit(|| Ok(fs_of(fs)?.inode_nofollow(unsafe { text(path, "path") }?)?.sync_all()?))
}

/// Describes the open file `file` as it is now. `stat` points to a papilio_stat, and `size` is its
/// sizeof.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_fstat(
    file: *mut papilio_file,
    stat: *mut papilio_stat,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(stat, size, "stat")?;
        let file = file_of(file)?;
        let now = file.metadata()?;
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(stat, size, &describe(file.inode(), &now)) };
        Ok(())
    })
}
