//! Extended attributes.
//!
//! Names are NUL-terminated and include the namespace, such as `user.comment`. Access control lists
//! are the attributes `system.posix_acl_access` and `system.posix_acl_default`.

use crate::arguments::{array, copy_out, text};
use crate::failure::{Failure, guard, guard_unit};
use crate::file_system::{fs_of, papilio_fs};
use crate::stat::{PAPILIO_NOFOLLOW, inode};
use libc::{c_char, c_int, c_void, size_t};
use papilio::{Error, PathError, XattrSet};

/// Flag of papilio_setxattr(): fails if the attribute exists.
pub const PAPILIO_XATTR_CREATE: u32 = 0x10;
/// Flag of papilio_setxattr(): fails if the attribute does not exist.
pub const PAPILIO_XATTR_REPLACE: u32 = 0x20;

/// Copies the value of the attribute `name` of the file at `path`, both NUL-terminated, to the
/// `size` bytes at `value`. With `size` 0, `value` may be NULL, and the call only returns the
/// length. `flags` is 0 or PAPILIO_NOFOLLOW.
///
/// Returns the length, or a negative errno: -ENODATA if there is no such attribute, -ERANGE if the
/// buffer is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_getxattr(
    fs: *mut papilio_fs,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
    flags: u32,
) -> i64 {
    guard(|| {
        // SAFETY: the caller promises NUL-terminated texts.
        let (inode, name) = unsafe { (inode(&*fs_of(fs)?, path, flags)?, text(name, "name")?) };
        let Some(found) = inode.xattr(name)? else {
            let message = format!("no attribute {}", String::from_utf8_lossy(name));
            let missing = Error::Path { path: name.to_vec(), kind: PathError::NoAttribute };
            return Err(Failure::new(missing.errno(), message));
        };
        // SAFETY: the caller promises `size` bytes.
        unsafe { copy_out(&found, value, size) }
    })
}

/// Sets the attribute `name` of the file at `path`, both NUL-terminated, to the `size` bytes at
/// `value`, which may be NULL if `size` is 0. `flags` is 0 or a combination of PAPILIO_NOFOLLOW
/// with PAPILIO_XATTR_CREATE or PAPILIO_XATTR_REPLACE.
///
/// Returns 0 or a negative errno: -EEXIST or -ENODATA as the flags require.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_setxattr(
    fs: *mut papilio_fs,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: size_t,
    flags: u32,
) -> c_int {
    guard_unit(|| {
        let how = match flags & !PAPILIO_NOFOLLOW {
            0 => XattrSet::Any,
            PAPILIO_XATTR_CREATE => XattrSet::Create,
            PAPILIO_XATTR_REPLACE => XattrSet::Replace,
            unknown => return Err(Failure::invalid(format!("unknown flags {unknown:#x}"))),
        };
        // SAFETY: the caller promises NUL-terminated texts, and `size` bytes.
        unsafe {
            let inode = inode(&*fs_of(fs)?, path, flags & PAPILIO_NOFOLLOW)?;
            Ok(inode.set_xattr(text(name, "name")?, array(value.cast::<u8>(), size, "value")?, how)?)
        }
    })
}

/// Copies the names of all attributes of the file at `path`, NUL-terminated, to the `size` bytes at
/// `list`, each followed by a NUL. With `size` 0, `list` may be NULL, and the call only returns the
/// length. `flags` is 0 or PAPILIO_NOFOLLOW.
///
/// Returns the length of the list, or a negative errno: -ERANGE if the buffer is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_listxattr(
    fs: *mut papilio_fs,
    path: *const c_char,
    list: *mut c_void,
    size: size_t,
    flags: u32,
) -> i64 {
    guard(|| {
        // SAFETY: the caller promises a NUL-terminated text.
        let inode = unsafe { inode(&*fs_of(fs)?, path, flags) }?;
        let mut names = Vec::new();
        for attribute in inode.xattrs()? {
            names.extend_from_slice(&attribute.name);
            names.push(0);
        }
        // SAFETY: the caller promises `size` bytes.
        unsafe { copy_out(&names, list, size) }
    })
}

/// Removes the attribute `name` of the file at `path`, both NUL-terminated. `flags` is 0 or
/// PAPILIO_NOFOLLOW.
///
/// Returns 0 or a negative errno: -ENODATA if there is no such attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_removexattr(
    fs: *mut papilio_fs,
    path: *const c_char,
    name: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the caller promises NUL-terminated texts.
    guard_unit(|| unsafe { Ok(inode(&*fs_of(fs)?, path, flags)?.remove_xattr(text(name, "name")?)?) })
}
