//! Finds out whether an image file is mounted through a loop device.
//!
//! The lock on the image doesn't tell: the kernel's loop driver takes none. Each loop device names
//! its file in sysfs (drivers/block/loop.c, `backing_file`), and an exclusive open of a block device
//! that is mounted is refused. A loop device that is merely attached excludes nobody.
//!
//! Owns nothing, takes no locks. Where the loop device may not be opened, the mount table is asked.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The loop device through which `file` is mounted (or otherwise claimed), as a path in /dev.
pub(crate) fn claimed_through(file: &File) -> Option<PathBuf> {
    let image = file.metadata().ok()?;
    let is_image = |path: &Path| {
        fs::metadata(path).is_ok_and(|other| (other.dev(), other.ino()) == (image.dev(), image.ino()))
    };
    // No sysfs, no answer: then nothing is known against the open.
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

/// Whether the mount table names the device or a partition of it.
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
    fn the_mount_table_is_read_by_whole_names() {
        let mounts = "/dev/loop12 /mnt btrfs rw 0 0\nproc /proc proc rw 0 0\n/dev/loop3p2 /a ext4 rw 0 0\n";
        assert!(names_device(mounts, "/dev/loop12"));
        assert!(names_device(mounts, "/dev/loop3"));
        assert!(!names_device(mounts, "/dev/loop1"));
        assert!(!names_device(mounts, "/dev/loop"));
    }
}
