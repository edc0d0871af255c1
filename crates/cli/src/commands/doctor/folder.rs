//! Checks of the directory that an image is in.
//!
//! Owns [`findings`]. The checks work on a file without a name in that directory.

use super::finding::Finding;
use anyhow::Context as _;
use rustix::fs::FlockOperation;
#[cfg(target_os = "linux")]
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::fs::File;
#[cfg(target_os = "linux")]
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes of the file that the checks work on.
#[cfg(target_os = "linux")]
const SIZE: u64 = 1 << 20;

/// Checks the directory of `image`, or the directory itself.
pub(super) fn findings(image: &Path) -> anyhow::Result<Vec<Finding>> {
    let metadata = image.metadata().with_context(|| format!("{}", image.display()))?;
    if !metadata.is_dir() && !metadata.is_file() {
        return Ok(vec![Finding::works("directory", "a device: nothing to check")]);
    }
    let folder = if metadata.is_dir() {
        image.to_owned()
    } else {
        let parent = image.canonicalize()?.parent().map(Path::to_owned);
        parent.unwrap_or_else(|| PathBuf::from("/"))
    };
    let stat = rustix::fs::statvfs(&folder)?;
    let free = (stat.f_bavail * stat.f_frsize) >> 20;
    let mut findings = vec![];
    let file = match tempfile_in(&folder) {
        Ok(file) => file,
        Err(error) => {
            return Ok(vec![Finding::missing(
                "directory",
                format!("no file can be made beside the image: {error}"),
                "images there can only be read: use a directory that this user may write",
            )]);
        }
    };
    findings.push(Finding::works("directory", format!("{free} MiB are free")));
    findings.push(direct(&folder));
    findings.push(holes(&file));
    findings.push(match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Finding::works("locks", "an image cannot be opened twice for writing"),
        Err(error) => Finding::limited(
            "locks",
            format!("flock: {error}"),
            "nothing keeps two programs from writing one image there",
        ),
    });
    Ok(findings)
}

/// Creates a file without a name, or with one for a moment.
fn tempfile_in(folder: &Path) -> std::io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
            return Ok(File::from(file));
        }
    }
    let path = folder.join(format!(".papilio-doctor-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(target_os = "linux")]
fn direct(folder: &Path) -> Finding {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
    match rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
        Ok(_) => Finding::works("direct-io", "device_io=direct is possible"),
        Err(error) => Finding::limited(
            "direct-io",
            format!("O_DIRECT: {error}"),
            "requests pass through the host's page cache, which is the default for images",
        ),
    }
}

#[cfg(not(target_os = "linux"))]
fn direct(_folder: &Path) -> Finding {
    Finding::limited("direct-io", "not on this host", "requests pass through the host's page cache")
}

/// Checks that freed space of an image goes back.
#[cfg(target_os = "linux")]
fn holes(file: &File) -> Finding {
    let punch = || -> std::io::Result<u64> {
        file.write_all_at(&vec![1; SIZE as usize], 0)?;
        file.sync_all()?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, flags, 0, SIZE)?;
        Ok(file.metadata()?.blocks() * 512)
    };
    let advice = "an image keeps the space of deleted files: copy it with cp --sparse=always";
    match punch() {
        Ok(left) if left < SIZE / 2 => Finding::works("holes", "images give freed space back"),
        Ok(left) => Finding::limited("holes", format!("{left} of {SIZE} bytes stay"), advice),
        Err(error) => Finding::limited("holes", format!("fallocate: {error}"), advice),
    }
}

#[cfg(not(target_os = "linux"))]
fn holes(_file: &File) -> Finding {
    Finding::limited("holes", "not checked on this host", "cp of a sparse copy keeps an image small")
}
