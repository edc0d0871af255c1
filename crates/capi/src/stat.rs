//! Metadata of files.
//!
//! A call that fills a structure takes its size, so that programs and libraries of different
//! versions work together. Later versions add fields at the end of a structure only.

use crate::arguments::{Extensible, check_flags, check_structure, store_structure, text, zeroed};
use crate::failure::{Result, guard_unit};
use crate::file_system::{Fs, fs_of, papilio_fs};
use crate::time::{papilio_time, time};
use libc::{c_char, c_int, size_t};
use papilio::{Inode, Metadata};

/// Flag of calls with a path: a symbolic link in the last component is not followed.
pub const PAPILIO_NOFOLLOW: u32 = 0x1;

/// Bit of papilio_stat.attributes: the root directory of a subvolume.
pub const PAPILIO_STAT_SUBVOLUME: u32 = 0x1;
/// Bit of papilio_stat.attributes: an empty directory that stands for a nested subvolume in a
/// snapshot.
pub const PAPILIO_STAT_STUB: u32 = 0x2;

/// The metadata of a file, as of the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_stat {
    /// The inode number, unique in its subvolume only.
    pub inode: u64,
    /// The id of the subvolume that contains the inode.
    pub subvolume: u64,
    /// The size in bytes; of a directory, twice the total length of its names.
    pub size: u64,
    /// The bytes without holes, before compression.
    pub allocated_bytes: u64,
    /// The transaction that created the inode.
    pub generation: u64,
    /// The transaction that last changed the inode.
    pub last_changed: u64,
    /// The inode's flags, BTRFS_INODE_* of <linux/btrfs_tree.h>.
    pub inode_flags: u64,
    /// Type and permissions, as st_mode.
    pub mode: u32,
    /// The number of names; 1 for a directory.
    pub nlink: u32,
    /// The owner's user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The major number of a device file.
    pub rdev_major: u32,
    /// The minor number of a device file.
    pub rdev_minor: u32,
    /// Bits PAPILIO_STAT_*.
    pub attributes: u32,
    /// Zero.
    pub reserved: u32,
    /// The time of the last read.
    pub atime: papilio_time,
    /// The time of the last change of the content.
    pub mtime: papilio_time,
    /// The time of the last change of the inode.
    pub ctime: papilio_time,
    /// The time of creation.
    pub btime: papilio_time,
}

// SAFETY: it consists of integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_stat {
    const FIRST_SIZE: usize = 152;
}
const _: () = assert!(size_of::<papilio_stat>() == 7 * 8 + 8 * 4 + 4 * 16);

/// Describes an inode.
pub(crate) fn describe(inode: &Inode, metadata: &Metadata) -> papilio_stat {
    let (rdev_major, rdev_minor) = metadata.rdev();
    let root = if inode.is_subvolume_root() { PAPILIO_STAT_SUBVOLUME } else { 0 };
    let stub = if inode.is_subvolume_stub() { PAPILIO_STAT_STUB } else { 0 };
    papilio_stat {
        inode: metadata.number().0,
        subvolume: metadata.tree().0,
        size: metadata.size(),
        allocated_bytes: metadata.allocated_bytes(),
        generation: metadata.generation().0,
        last_changed: metadata.last_changed().0,
        inode_flags: metadata.flags().bits(),
        mode: metadata.mode(),
        nlink: metadata.nlink(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev_major,
        rdev_minor,
        attributes: root | stub,
        atime: time(metadata.atime()),
        mtime: time(metadata.mtime()),
        ctime: time(metadata.ctime()),
        btime: time(metadata.btime()),
        ..zeroed()
    }
}

/// Returns the inode at a path.
///
/// # Safety
/// `path` is NULL or a NUL-terminated text.
pub(crate) unsafe fn inode(fs: &Fs, path: *const c_char, flags: u32) -> Result<Inode> {
    check_flags(flags, PAPILIO_NOFOLLOW)?;
    // SAFETY: the caller's promise is the same.
    let path = unsafe { text(path, "path") }?;
    Ok(if flags & PAPILIO_NOFOLLOW == 0 { fs.inode(path)? } else { fs.inode_nofollow(path)? })
}

/// Describes the file at `path`, NUL-terminated. `flags` is 0 or PAPILIO_NOFOLLOW. `stat` points to
/// a papilio_stat, and `size` is its sizeof.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_stat(
    fs: *mut papilio_fs,
    path: *const c_char,
    flags: u32,
    stat: *mut papilio_stat,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(stat, size, "stat")?;
        // SAFETY: the caller promises a NUL-terminated text.
        let inode = unsafe { inode(&*fs_of(fs)?, path, flags) }?;
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(stat, size, &describe(&inode, inode.metadata())) };
        Ok(())
    })
}
