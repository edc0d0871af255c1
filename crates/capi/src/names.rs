//! Names: making, linking, renaming and removing files and directories.
//!
//! Paths are NUL-terminated bytes in no particular encoding, with or without a leading slash. They
//! start at the subvolume that the options chose, and cross into other subvolumes. New inodes
//! belong to the owner that `papilio_set_creator()` chose.

use crate::arguments::{copy_out, text};
use crate::failure::{Failure, Result, guard, guard_unit};
use crate::file_system::{Creator, fs_of, papilio_fs};
use libc::{c_char, c_int, c_void, size_t};
use papilio::{NewInode, NewKind, RenameMode};
use rustix::fs::{FileType, RawMode};

/// Flag of papilio_rename(): fails if the new name exists.
pub const PAPILIO_RENAME_NOREPLACE: u32 = 0x1;
/// Flag of papilio_rename(): exchanges the two names, which both exist.
pub const PAPILIO_RENAME_EXCHANGE: u32 = 0x2;

/// Describes a new inode.
pub(crate) fn new_inode<'a>(kind: NewKind<'a>, mode: u32, creator: Creator) -> NewInode<'a> {
    NewInode::new(kind, mode & 0o7777).owner(creator.uid, creator.gid).umask(creator.umask)
}

/// Creates an inode at a path.
///
/// # Safety
/// `path` is NULL or a NUL-terminated text.
unsafe fn create(fs: *const papilio_fs, path: *const c_char, kind: NewKind<'_>, mode: u32) -> Result<()> {
    let fs = fs_of(fs)?;
    // SAFETY: the caller's promise is the same.
    fs.create(unsafe { text(path, "path") }?, &new_inode(kind, mode, fs.creator()))?;
    Ok(())
}

/// Creates a directory at `path`, NUL-terminated, with the permissions `mode`, less the umask of
/// papilio_set_creator().
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_mkdir(fs: *mut papilio_fs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the caller promises a NUL-terminated text.
    guard_unit(|| unsafe { create(fs, path, NewKind::Directory, mode) })
}

/// Creates a file of any type at `path`, NUL-terminated. `mode` has type (S_IFREG, S_IFIFO,
/// S_IFSOCK, S_IFCHR, S_IFBLK, S_IFDIR) and permissions. Device files get the numbers `major`,
/// below 4,096, and `minor`, below 1,048,576; other types ignore them.
///
/// Returns 0 or a negative errno: -EINVAL for another type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_mknod(
    fs: *mut papilio_fs,
    path: *const c_char,
    mode: u32,
    major: u32,
    minor: u32,
) -> c_int {
    guard_unit(|| {
        let kind = match FileType::from_raw_mode(mode as RawMode) {
            FileType::RegularFile => NewKind::Regular,
            FileType::Directory => NewKind::Directory,
            FileType::Fifo => NewKind::Fifo,
            FileType::Socket => NewKind::Socket,
            FileType::CharacterDevice => NewKind::CharacterDevice { major, minor },
            FileType::BlockDevice => NewKind::BlockDevice { major, minor },
            _ => return Err(Failure::invalid(format!("mode {mode:#o} has no type that mknod can make"))),
        };
        // SAFETY: the caller promises a NUL-terminated text.
        unsafe { create(fs, path, kind, mode) }
    })
}

/// Creates a symbolic link to `target` at `path`, both NUL-terminated. The target need not exist.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_symlink(
    fs: *mut papilio_fs,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller promises NUL-terminated texts.
    guard_unit(|| unsafe { create(fs, path, NewKind::Symlink(text(target, "target")?), 0o777) })
}

/// Copies the target of the symbolic link at `path`, NUL-terminated, to the `size` bytes at
/// `buffer`, without a NUL. With `size` 0, `buffer` may be NULL, and the call only returns the
/// length.
///
/// Returns the length, or a negative errno: -EINVAL for other types, -ERANGE if the buffer is too
/// small. Unlike readlink(2), nothing is cut off.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_readlink(
    fs: *mut papilio_fs,
    path: *const c_char,
    buffer: *mut c_void,
    size: size_t,
) -> i64 {
    // SAFETY: the caller promises a NUL-terminated text, and `size` bytes.
    guard(|| unsafe { copy_out(&fs_of(fs)?.read_link(text(path, "path")?)?, buffer, size) })
}

/// Gives the file at `existing` the further name `path`, both NUL-terminated. A symbolic link is
/// not followed.
///
/// Returns 0 or a negative errno: -EXDEV between subvolumes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_link(
    fs: *mut papilio_fs,
    existing: *const c_char,
    path: *const c_char,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller promises NUL-terminated texts.
        let (existing, path) = unsafe { (text(existing, "existing")?, text(path, "path")?) };
        Ok(fs_of(fs)?.hard_link(existing, path)?)
    })
}

/// Renames `from` to `to`, both NUL-terminated. `flags` is 0, which replaces a file or an empty
/// directory at `to`, or PAPILIO_RENAME_NOREPLACE or PAPILIO_RENAME_EXCHANGE.
///
/// Returns 0 or a negative errno: -EXDEV between subvolumes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_rename(
    fs: *mut papilio_fs,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    guard_unit(|| {
        let mode = match flags {
            0 => RenameMode::Replace,
            PAPILIO_RENAME_NOREPLACE => RenameMode::NoReplace,
            PAPILIO_RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Failure::invalid(format!("unknown flags {flags:#x}"))),
        };
        // SAFETY: the caller promises NUL-terminated texts.
        let (from, to) = unsafe { (text(from, "from")?, text(to, "to")?) };
        Ok(fs_of(fs)?.rename_with(from, to, mode)?)
    })
}

/// Removes the name `path`, NUL-terminated, of anything but a directory. A file without names is
/// deleted once it is closed.
///
/// Returns 0 or a negative errno: -EISDIR for a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_unlink(fs: *mut papilio_fs, path: *const c_char) -> c_int {
    // SAFETY: the caller promises a NUL-terminated text.
    guard_unit(|| Ok(fs_of(fs)?.remove_file(unsafe { text(path, "path") }?)?))
}

/// Removes the empty directory at `path`, NUL-terminated.
///
/// Returns 0 or a negative errno: -ENOTEMPTY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_rmdir(fs: *mut papilio_fs, path: *const c_char) -> c_int {
    // SAFETY: the caller promises a NUL-terminated text.
    guard_unit(|| Ok(fs_of(fs)?.remove_dir(unsafe { text(path, "path") }?)?))
}
