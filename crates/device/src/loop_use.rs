//! Detects an image file that is mounted through a loop device.
//!
//! A lock on the image cannot detect this, because the kernel's loop driver takes none. Instead,
//! sysfs names each loop device's file (drivers/block/loop.c, `backing_file`), and an exclusive
//! open of a mounted block device fails. A loop device that is attached but not mounted excludes
//! nobody. If the loop device cannot be opened, the mount table decides.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns the loop device (a path in /dev) through which `file` is mounted or otherwise claimed.
pub(crate) fn claimed_through(file: &File) -> Option<PathBuf> {
    let image = file.metadata().ok()?;
    let is_image = |path: &Path| {
        fs::metadata(path).is_ok_and(|other| (other.dev(), other.ino()) == (image.dev(), image.ino()))
    };
    // Without sysfs nothing is known against the open.
    fs::read_dir("/sys/block")
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"loop"))
        .filter(|entry| {
            fs::read_to_string(entry.path().join("loop/backing_file"))
                .is_ok_and(|backing| is_image(Path::new(backing.trim_end_matches('\n'))))
        })
        .map(|entry| Path::new("/dev").join(entry.file_name()))
        .find(|device| is_claimed(device))
}

fn is_claimed(device: &Path) -> bool {
    match rustix::fs::open(device, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => false,
        Err(Errno::BUSY) => true,
        Err(_) => is_mount_source(device),
    }
}

/// Returns whether the mount table names the device or one of its partitions.
fn is_mount_source(device: &Path) -> bool {
    let Some(device) = device.to_str() else { return false };
    fs::read_to_string("/proc/self/mounts").is_ok_and(|mounts| names_device(&mounts, device))
}

fn names_device(mounts: &str, device: &str) -> bool {
    mounts.lines().filter_map(|line| line.split(' ').next()).any(|source| {
        source.strip_prefix(device).is_some_and(|rest| {
            rest.is_empty() || (rest.starts_with('p') && rest[1..].parse::<u32>().is_ok())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_matches_whole_device_names() {
        let mounts = "/dev/loop12 /mnt btrfs rw 0 0\nproc /proc proc rw 0 0\n/dev/loop3p2 /a ext4 rw 0 0\n";
        assert!(names_device(mounts, "/dev/loop12"));
        assert!(names_device(mounts, "/dev/loop3"));
        assert!(!names_device(mounts, "/dev/loop1"));
        assert!(!names_device(mounts, "/dev/loop"));
    }
}
