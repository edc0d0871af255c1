//! ioctls that no crate wraps: Btrfs subvolumes and quotas, clone ranges, FIEMAP, loop devices;
//! and threads that act as other users.
//!
//! The only unsafe code of this crate. Layouts: `include/uapi/linux/btrfs.h`, `fiemap.h`, `fs.h`,
//! `loop.h`.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BTRFS_MAGIC: u64 = 0x94;
/// `BTRFS_SUBVOL_RDONLY`.
const SUBVOL_RDONLY: u64 = 1 << 1;
/// Flag on the last extent of a FIEMAP answer (`FIEMAP_EXTENT_LAST`).
const FIEMAP_EXTENT_LAST: u32 = 1;
const FIEMAP_BATCH: usize = 128;
/// `LO_FLAGS_READ_ONLY`, `LO_FLAGS_AUTOCLEAR` and `LO_FLAGS_DIRECT_IO`.
const LOOP_READ_ONLY: u32 = 1;
const LOOP_AUTOCLEAR: u32 = 4;
const LOOP_DIRECT_IO: u32 = 16;
const LOOP_CLR_FD: u64 = 0x4c01;
const LOOP_CONFIGURE: u64 = 0x4c0a;
const LOOP_CTL_REMOVE: u64 = 0x4c81;
const LOOP_CTL_GET_FREE: u64 = 0x4c82;

const fn request(direction: u64, kind: u64, number: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | kind << 8 | number
}
const fn write_request<T>(kind: u64, number: u64) -> u64 {
    request(1, kind, number, size_of::<T>())
}
const fn both_request<T>(kind: u64, number: u64) -> u64 {
    request(3, kind, number, size_of::<T>())
}

/// Passes `argument` to an ioctl.
///
/// # Safety
/// `request` must read and write at most a `T` at the address it receives (or memory behind it that
/// the `T` describes), and must accept any bytes that `argument` may hold.
unsafe fn ioctl<T>(fd: impl AsFd, request: u64, argument: &mut T) -> io::Result<i32> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the descriptor stays open while it is borrowed; the caller guarantees the rest.
    let result = unsafe { libc::ioctl(fd, request as _, std::ptr::from_mut(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct VolumeArguments {
    fd: i64,
    name: [u8; 4088],
}
const _: () = assert!(size_of::<VolumeArguments>() == 4096);

/// `struct btrfs_ioctl_vol_args_v2`.
#[repr(C)]
struct VolumeArguments2 {
    fd: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}
const _: () = assert!(size_of::<VolumeArguments2>() == 4096);

/// `struct btrfs_ioctl_ino_lookup_args`.
#[repr(C)]
struct InodeLookup {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}
const _: () = assert!(size_of::<InodeLookup>() == 4096);

#[repr(C)]
struct QuotaControl {
    command: u64,
    status: u64,
}

#[repr(C)]
struct CloneRange {
    source: i64,
    source_offset: u64,
    length: u64,
    destination_offset: u64,
}

fn put_name<const N: usize>(name: &[u8]) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    if name.len() >= N || name.contains(&0) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    bytes[..name.len()].copy_from_slice(name);
    Ok(bytes)
}

/// Opens the parent folder of `path`, and returns it with the last path component.
fn parent_and_name(path: &Path) -> io::Result<(File, &[u8])> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let name = path.file_name().ok_or_else(invalid)?.as_bytes();
    Ok((File::open(path.parent().ok_or_else(invalid)?)?, name))
}

/// Creates an empty subvolume at `path`.
///
/// # Errors
/// The kernel's.
pub fn create_subvolume(path: &Path) -> io::Result<()> {
    let (parent, name) = parent_and_name(path)?;
    let mut arguments = VolumeArguments { fd: 0, name: put_name(name)? };
    // SAFETY: BTRFS_IOC_SUBVOL_CREATE reads one btrfs_ioctl_vol_args with a terminated name.
    unsafe { ioctl(&parent, write_request::<VolumeArguments>(BTRFS_MAGIC, 14), &mut arguments) }?;
    Ok(())
}

/// Creates a snapshot of the subvolume at `source`.
///
/// # Errors
/// The kernel's.
pub fn create_snapshot(source: &Path, path: &Path, read_only: bool) -> io::Result<()> {
    let (parent, name) = parent_and_name(path)?;
    let source = File::open(source)?;
    let mut arguments = VolumeArguments2 {
        fd: i64::from(source.as_raw_fd()),
        transaction: 0,
        flags: if read_only { SUBVOL_RDONLY } else { 0 },
        unused: [0; 4],
        name: put_name(name)?,
    };
    let request = write_request::<VolumeArguments2>(BTRFS_MAGIC, 23);
    // SAFETY: BTRFS_IOC_SNAP_CREATE_V2 reads one btrfs_ioctl_vol_args_v2; no flag for a pointer is
    // set.
    unsafe { ioctl(&parent, request, &mut arguments) }?;
    Ok(())
}

/// Deletes the subvolume at `path`; the kernel frees its space later.
///
/// # Errors
/// The kernel's.
pub fn delete_subvolume(path: &Path) -> io::Result<()> {
    let (parent, name) = parent_and_name(path)?;
    let mut arguments = VolumeArguments { fd: 0, name: put_name(name)? };
    // SAFETY: BTRFS_IOC_SNAP_DESTROY reads one btrfs_ioctl_vol_args with a terminated name.
    unsafe { ioctl(&parent, write_request::<VolumeArguments>(BTRFS_MAGIC, 15), &mut arguments) }?;
    Ok(())
}

/// Returns the id of the subvolume that holds `path`, a folder or a regular file.
///
/// # Errors
/// The kernel's; `ENOTTY` if the file system is not Btrfs.
pub fn subvolume_id(path: &Path) -> io::Result<u64> {
    subvolume_of(File::open(path)?)
}

/// Returns the id of the subvolume that holds an open file.
///
/// # Errors
/// The kernel's; `ENOTTY` if the file system is not Btrfs.
pub fn subvolume_of(file: impl AsFd) -> io::Result<u64> {
    // 256 is the first object of each subvolume: its root folder, which always has a path.
    let mut lookup = InodeLookup { tree: 0, object: 256, name: [0; 4080] };
    // SAFETY: BTRFS_IOC_INO_LOOKUP reads and writes one btrfs_ioctl_ino_lookup_args.
    unsafe { ioctl(file, both_request::<InodeLookup>(BTRFS_MAGIC, 18), &mut lookup) }?;
    Ok(lookup.tree)
}

/// Makes the subvolume `id` the default of the file system mounted at `mounted`.
///
/// # Errors
/// The kernel's.
pub fn set_default_subvolume(mounted: &Path, id: u64) -> io::Result<()> {
    let mut id = id;
    // SAFETY: BTRFS_IOC_DEFAULT_SUBVOL reads one u64.
    unsafe { ioctl(File::open(mounted)?, write_request::<u64>(BTRFS_MAGIC, 19), &mut id) }?;
    Ok(())
}

/// Enables quotas on the file system mounted at `mounted`; `simple` selects simple quotas (kernel
/// 6.7).
///
/// # Errors
/// The kernel's.
pub fn enable_quota(mounted: &Path, simple: bool) -> io::Result<()> {
    let mut control = QuotaControl { command: if simple { 4 } else { 1 }, status: 0 };
    let request = both_request::<QuotaControl>(BTRFS_MAGIC, 40);
    // SAFETY: BTRFS_IOC_QUOTA_CTL reads and writes one btrfs_ioctl_quota_ctl_args.
    unsafe { ioctl(File::open(mounted)?, request, &mut control) }?;
    Ok(())
}

/// Makes the kernel forget a scanned device that is not mounted.
///
/// # Errors
/// The kernel's; `ENOENT` if it does not know the device.
pub fn forget_device(device: &Path) -> io::Result<()> {
    let control = File::options().read(true).write(true).open("/dev/btrfs-control")?;
    let mut arguments = VolumeArguments { fd: 0, name: put_name(device.as_os_str().as_bytes())? };
    // SAFETY: BTRFS_IOC_FORGET_DEV reads one btrfs_ioctl_vol_args with a terminated name.
    unsafe { ioctl(&control, write_request::<VolumeArguments>(BTRFS_MAGIC, 5), &mut arguments) }?;
    Ok(())
}

/// Shares `length` bytes of `source` from `source_offset` with `destination` (FICLONERANGE). A
/// length of 0 means "to the end".
///
/// # Errors
/// The kernel's; `EINVAL` for an offset that is not a multiple of the sector size.
pub fn clone_range(
    source: &File,
    source_offset: u64,
    length: u64,
    destination: &File,
    destination_offset: u64,
) -> io::Result<()> {
    let source = i64::from(source.as_raw_fd());
    let mut range = CloneRange { source, source_offset, length, destination_offset };
    // SAFETY: FICLONERANGE reads one file_clone_range.
    unsafe { ioctl(destination, write_request::<CloneRange>(BTRFS_MAGIC, 13), &mut range) }?;
    Ok(())
}

/// One extent in FIEMAP's answer, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FiemapExtent {
    /// Offset in the file.
    pub logical: u64,
    /// Logical address in the file system.
    pub physical: u64,
    /// Length in the file.
    pub length: u64,
    reserved64: [u64; 2],
    /// `FIEMAP_EXTENT_*`.
    pub flags: u32,
    reserved: [u32; 3],
}
const _: () = assert!(size_of::<FiemapExtent>() == 56);

/// `struct fiemap`, followed by a batch of extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [FiemapExtent; FIEMAP_BATCH],
}

/// Returns all extents of a file, in order of their offsets.
///
/// # Errors
/// The kernel's.
pub fn fiemap(file: &File) -> io::Result<Vec<FiemapExtent>> {
    let mut all = Vec::new();
    let mut start = 0;
    loop {
        let mut map = Fiemap {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped: 0,
            count: FIEMAP_BATCH as u32,
            reserved: 0,
            extents: [FiemapExtent::default(); FIEMAP_BATCH],
        };
        // SAFETY: FS_IOC_FIEMAP, whose number encodes the 32 bytes of the header, writes the header
        // and at most `count` extents behind it. The array has that many.
        unsafe { ioctl(file, request(3, u64::from(b'f'), 11, 32), &mut map) }?;
        let found = &map.extents[..(map.mapped as usize).min(FIEMAP_BATCH)];
        all.extend_from_slice(found);
        match found.last() {
            Some(last) if last.flags & FIEMAP_EXTENT_LAST == 0 => start = last.logical + last.length,
            _ => return Ok(all),
        }
    }
}

/// `struct loop_config` with its `struct loop_info64`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    device_inode_rdevice_offset_limit: [u64; 5],
    number_and_crypt: [u32; 3],
    flags: u32,
    file_name: [u8; 64],
    crypt_name_and_key: [u8; 96],
    init: [u64; 2],
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<LoopConfig>() == 304);

/// Returns the number of a loop device that was free at the time of the call.
///
/// # Errors
/// The kernel's.
pub fn free_loop_device() -> io::Result<i32> {
    let control = File::options().read(true).write(true).open("/dev/loop-control")?;
    // SAFETY: LOOP_CTL_GET_FREE takes no argument; the address is ignored.
    unsafe { ioctl(&control, LOOP_CTL_GET_FREE, &mut 0_u64) }
}

/// Removes a loop device that nobody uses, with the limits that were set for its queue.
///
/// # Errors
/// `EBUSY` if it is attached or open, and the kernel's other errors.
pub fn remove_loop_device(number: i32) -> io::Result<()> {
    let control = File::options().read(true).write(true).open("/dev/loop-control")?;
    // SAFETY: LOOP_CTL_REMOVE takes a number in the place of an address.
    let result = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_REMOVE as _, number) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Attaches `image` to an open loop device, which detaches itself on its last close. With `direct`,
/// I/O bypasses the page cache of the image's file system if possible.
///
/// # Errors
/// `EBUSY` if another process took the device first, and the kernel's other errors.
pub fn configure_loop_device(device: &File, image: &File, read_only: bool, direct: bool) -> io::Result<()> {
    let mut config = LoopConfig {
        fd: image.as_raw_fd().cast_unsigned(),
        block_size: 0,
        device_inode_rdevice_offset_limit: [0; 5],
        number_and_crypt: [0; 3],
        flags: LOOP_AUTOCLEAR
            | if read_only { LOOP_READ_ONLY } else { 0 }
            | if direct { LOOP_DIRECT_IO } else { 0 },
        file_name: [0; 64],
        crypt_name_and_key: [0; 96],
        init: [0; 2],
        reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads one loop_config.
    unsafe { ioctl(device, LOOP_CONFIGURE, &mut config) }?;
    Ok(())
}

/// Detaches a loop device, at once or on its last close.
///
/// # Errors
/// `ENXIO` if nothing is attached, and the kernel's other errors.
pub fn clear_loop_device(device: &File) -> io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument; the address is ignored.
    unsafe { ioctl(device, LOOP_CLR_FD, &mut 0_u64) }?;
    Ok(())
}

/// Converts a path to a C string.
///
/// # Errors
/// `InvalidInput` if the path contains a zero byte.
pub fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Runs `work` in a thread that acts as a user with these groups, and no capability unless the user
/// is root. Other threads keep their users: the C library's functions would change all of them.
///
/// # Errors
/// The kernel's, for a process without `CAP_SETUID` and `CAP_SETGID`.
///
/// # Panics
/// If `work` does.
pub fn as_user<T: Send>(
    uid: u32,
    gid: u32,
    groups: &[u32],
    work: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let checked = |result: libc::c_long| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            // SAFETY: the list has as many ids as the call is told, and the call only reads them.
            checked(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
            // SAFETY: the calls take numbers only, and change no memory.
            checked(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
            // SAFETY: as before.
            checked(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })?;
            Ok(work())
        });
        acting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
