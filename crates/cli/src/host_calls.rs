//! Calls of the host that differ between hosts: device numbers, files without names. Those
//! that the library makes, too, are its own.

pub use papilio::host_calls::{NO_XATTR, make_node, set_xattr, xattr};
use rustix::fs::Mode;
use std::fs::File;

/// Returns the major and the minor number of a device, in the form of the standard library.
// Device numbers have other types on other hosts.
#[allow(clippy::unnecessary_cast)]
pub fn device_numbers(device: u64) -> (u32, u32) {
    let device = device as rustix::fs::Dev;
    (rustix::fs::major(device) as u32, rustix::fs::minor(device) as u32)
}

/// Creates a file without a name, to read and write, in the folder of temporary files or in memory.
///
/// # Errors
/// The host's.
#[cfg(target_os = "linux")]
pub fn nameless_file() -> std::io::Result<File> {
    use rustix::fs::{MemfdFlags, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR)
        .or_else(|_| rustix::fs::memfd_create("papilio", MemfdFlags::CLOEXEC))?;
    Ok(File::from(file))
}

/// As on Linux, with a name for a moment.
///
/// # Errors
/// The host's.
#[cfg(not(target_os = "linux"))]
pub fn nameless_file() -> std::io::Result<File> {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let number = time.map_or(0, |time| time.as_nanos());
    let path = std::env::temp_dir().join(format!("papilio-{}-{number}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Makes an empty file one that is written in place, and reserves its space.
///
/// # Errors
/// The host's; [`std::io::ErrorKind::Unsupported`] on hosts other than Linux, which have no Btrfs.
pub fn reserve_in_place(file: &File, size: u64) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        rustix::fs::ioctl_setflags(file, rustix::fs::IFlags::NOCOW)?;
        Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, size)?)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (file, size);
        Err(std::io::ErrorKind::Unsupported.into())
    }
}
