//! Device and inode numbers of files in subvolumes.
//!
//! A mount of Papilio shows files of the mounted subvolume with their own inode numbers, and puts
//! the id of any other subvolume in the bits from 40 up (docs/mount.md, "Inode numbers"). The
//! kernel's Btrfs gives each subvolume a device number, and shows own inode numbers.
//!
//! **Invariant**: the device number of a subvolume has a major number above all that the kernel
//! gives (12 bits), so it is that of nothing else.

/// The type number of Btrfs in `statfs` (`BTRFS_SUPER_MAGIC`, `include/uapi/linux/magic.h`).
pub const BTRFS_MAGIC: u32 = 0x9123_683e;
/// That of FUSE.
pub const FUSE_MAGIC: u32 = 0x6573_5546;

/// Bits of an inode's own number.
const NUMBER_BITS: u32 = 40;
/// The first number that only the server of the mount knows.
const OTHERS: u64 = 1 << 63;
/// The inode of a subvolume's root directory (`BTRFS_FIRST_FREE_OBJECTID`).
pub(crate) const ROOT_INODE: u64 = 256;
/// The major device number of subvolumes, before the minor number of the mount is added.
const MAJOR: u32 = 0xb_0000;

/// Returns whether a mount may show this inode number for a file of another subvolume than the
/// mounted one.
pub fn is_of_subvolume(inode: u64) -> bool {
    (1 << NUMBER_BITS..OTHERS).contains(&inode)
}

/// Returns the inode's own number.
pub fn own_number(inode: u64) -> u64 {
    if is_of_subvolume(inode) { inode & ((1 << NUMBER_BITS) - 1) } else { inode }
}

/// Returns the number that a directory shows for an entry: of a subvolume that is the id of its
/// tree (`btrfs_real_readdir`, `fs/btrfs/inode.c`), otherwise the inode's own number.
pub fn number_in_directory(inode: u64) -> u64 {
    match own_number(inode) {
        ROOT_INODE if is_of_subvolume(inode) => inode >> NUMBER_BITS,
        own => own,
    }
}

/// Returns the major and minor device number of the subvolume of an inode in the mount with the
/// minor number `mount`. `None` for the mounted subvolume, which has that of the mount.
pub fn device_of(mount: u32, inode: u64) -> Option<(u32, u32)> {
    // Ids of subvolumes in such numbers have 23 bits.
    is_of_subvolume(inode).then(|| (MAJOR.wrapping_add(mount), (inode >> NUMBER_BITS) as u32))
}

/// Returns whether a device number is one that [`device_of`] has made.
pub fn is_of_device(device: libc::dev_t) -> bool {
    (MAJOR..MAJOR + (1 << 20)).contains(&libc::major(device))
}

/// Changes the device and inode number that a mount of Papilio has shown to those that the kernel's
/// Btrfs would show.
pub fn rewrite(status: &mut libc::stat) {
    if let Some((major, minor)) = device_of(libc::minor(status.st_dev), status.st_ino) {
        status.st_dev = libc::makedev(major, minor);
        status.st_ino = own_number(status.st_ino);
    }
}

/// As [`rewrite`], for the answer of `statx`.
pub fn rewrite_extended(status: &mut libc::statx) {
    if let Some((major, minor)) = device_of(status.stx_dev_minor, status.stx_ino) {
        (status.stx_dev_major, status.stx_dev_minor) = (major, minor);
        status.stx_ino = own_number(status.stx_ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subvolumes_have_devices_of_their_own() {
        assert_eq!(device_of(45, 257), None);
        assert_eq!(device_of(45, 1 << 63 | 5), None);
        let (first, second) = (256 << 40 | 256, 300 << 40 | 256);
        assert_eq!(device_of(45, first), Some((0xb_002d, 256)));
        assert_ne!(device_of(45, first), device_of(45, second));
        assert_ne!(device_of(45, first), device_of(46, first));
        assert_eq!((own_number(first), own_number(257), own_number(1 << 63)), (256, 257, 1 << 63));
        assert_eq!((number_in_directory(second), number_in_directory(second + 1)), (300, 257));
        assert_eq!((number_in_directory(256), number_in_directory(9)), (256, 9));
        let (major, minor) = device_of(45, first).unwrap();
        assert!(is_of_device(libc::makedev(major, minor)) && !is_of_device(libc::makedev(0, 45)));
        // As the server of a mount makes them.
        assert_eq!(NUMBER_BITS, papilio_ioctl::shown_number::NUMBER_BITS);
        assert_eq!(OTHERS, papilio_ioctl::shown_number::OTHERS);
        // Above all major numbers of the kernel.
        assert!(device_of(0, first).unwrap().0 > 0xfff);
    }
}
