//! Finds the process or mount that holds an image which cannot be opened.
//!
//! `/proc/locks` names the process and the table of mounts the mount point.

use crate::devices::is_same_file;
use crate::host_calls::device_numbers;
use papilio::device::split_partition;
use papilio::format::objectid::CHUNK_TREE;
use papilio::{BlockFault, Corrupt, Error, FoundDevice, SuperblockError};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Adds the holder of a busy device to the error of opening a file system, if the holder is known.
/// Says of a file that is too short for a superblock that it is no file system, and of a chunk tree
/// without its root that the file system can be found by its other blocks.
pub fn explain(error: Error) -> anyhow::Error {
    if let Error::TreeBlock { tree, reason: BlockFault::Corrupt(reason), .. } = &error
        && *tree == CHUNK_TREE
        && matches!(reason, Corrupt::NodeIdentity { field: "address", found: 0, .. })
    {
        return anyhow::anyhow!("{error}; --scan finds the file system by its other blocks");
    }
    if let Error::Superblock { device, reason, .. } = &error
        && let SuperblockError::Corrupt(Corrupt::TooShort { have, .. }) = **reason
    {
        return anyhow::anyhow!("{device}: not a Btrfs file system: it has only {have} bytes");
    }
    busy_error(&error).unwrap_or_else(|| error.into())
}

/// Returns an error that names the holder of the device, if `error` says that the device is busy
/// and the holder is known.
pub fn busy_error(error: &Error) -> Option<anyhow::Error> {
    let Error::Open(open) = error else { return None };
    if error.errno() != rustix::io::Errno::BUSY.raw_os_error() {
        return None;
    }
    let path = &open.path;
    if let Some(mount) = mount_of_image(path) {
        let (shown, point) = (path.display(), mount.point.display());
        return Some(anyhow::Error::msg(format!(
            "{shown}: mounted on {point}{}; use paths in the mount, or unmount it first",
            locker(path).map_or(String::new(), |holder| format!(" (by {holder})"))
        )));
    }
    locker(path).map(|holder| anyhow::Error::msg(format!("{error} ({holder})")))
}

/// Returns the Papilio mount of the file system on `image`.
pub fn mount_of_image(image: &Path) -> Option<MountEntry> {
    let wanted = fs::metadata(split_partition(image).0).ok()?;
    let place = (wanted.dev(), wanted.ino());
    MountEntry::all().ok()?.into_iter().rev().filter(MountEntry::is_papilio).find(|mount| {
        mount.source == image
            || fs::metadata(split_partition(&mount.source).0)
                .is_ok_and(|found| (found.dev(), found.ino()) == place)
    })
}

/// Returns the mount of the kernel's Btrfs on a device, or on an image file behind a loop device.
pub fn kernel_mount_of(image: &Path) -> Option<MountEntry> {
    let wanted = fs::metadata(image).ok()?;
    let whole = image.canonicalize().ok()?;
    MountEntry::all().ok()?.into_iter().rev().filter(|mount| mount.fstype == "btrfs").find(|mount| {
        let Ok(source) = fs::metadata(&mount.source) else { return false };
        let device = source.rdev();
        let (major, minor) = device_numbers(device);
        let backing = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/loop/backing_file"));
        device != 0 && device == wanted.rdev()
            || backing.is_ok_and(|backing| Path::new(backing.trim_end_matches('\n')) == whole)
    })
}

/// Returns the mount, ours or the kernel's, of the file system that a device is part of.
pub fn mount_of_device(image: &Path) -> Option<MountEntry> {
    if let Some(mount) = mount_of_image(image) {
        // Another partition of the image is another file system.
        return (split_partition(&mount.source).1 == split_partition(image).1).then_some(mount);
    }
    let member = || mount_of_member(image, |mount| mount.is_papilio() || mount.fstype == "btrfs");
    kernel_mount_of(image).or_else(|| member().map(|(mount, _)| mount))
}

/// Returns the mount point for a device that is mounted, and the path itself for everything else.
pub fn place_of(path: &Path) -> PathBuf {
    let mount = if path.is_dir() { None } else { mount_of_device(path) };
    mount.map_or_else(|| path.to_path_buf(), |mount| mount.point)
}

/// Returns the mount of a file system on several devices of which this is one.
pub fn mount_of_member(
    image: &Path,
    is_meant: impl Fn(&MountEntry) -> bool,
) -> Option<(MountEntry, MountedPath)> {
    let found = FoundDevice::read(image).ok()??;
    if found.devices == 1 {
        return None;
    }
    let open = |mount: MountEntry| Some((mount.clone(), MountedPath::open(&mount.point).ok()?));
    let mounts = MountEntry::all().ok()?.into_iter().rev().filter(is_meant);
    mounts.filter_map(open).find(|(_, path)| {
        // A copy of one device does not belong to a mount that has the original.
        let same = path.fs_info().is_ok_and(|info| info.fsid == *found.fsid.as_bytes());
        let is_image = |path: &Option<Vec<u8>>| {
            path.as_ref().is_some_and(|path| is_same_file(Path::new(OsStr::from_bytes(path)), image))
        };
        same && path.device_paths().is_ok_and(|devices| devices.iter().any(|(_, path)| is_image(path)))
    })
}

/// Returns the process that holds a lock on a file.
pub fn lock_holder(path: &Path) -> Option<i32> {
    let metadata = fs::metadata(path).ok()?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    let (major, minor) = device_numbers(device);
    let place = format!("{major:02x}:{minor:02x}:{inode}");
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| {
        // `1: FLOCK  ADVISORY  WRITE 123 08:01:456 0 EOF`; a waiter has `->` after its number.
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        (fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&place.as_str()))
            .then(|| fields[4].to_owned())
    })?;
    pid.parse().ok().filter(|pid| *pid > 0)
}

/// Names the process that holds a lock on a file, as `process 123, papilio`.
fn locker(path: &Path) -> Option<String> {
    let pid = lock_holder(path)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim() {
        "" => Some(format!("process {pid}")),
        name => Some(format!("process {pid}, {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_holder_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(locker(file.path()), None);
        rustix::fs::flock(file.as_file(), rustix::fs::FlockOperation::LockExclusive).unwrap();
        let own = format!("process {}, ", std::process::id());
        // Some sandboxes hide the locks.
        if let Some(holder) = locker(file.path()) {
            assert!(holder.starts_with(&own), "{holder}");
        }
        assert_eq!(mount_of_image(file.path()), None);
    }
}
