//! Archives of whole file systems: written to a descriptor, checked, and restored to devices.
//!
//! docs/images.md has the format, and says what an archive holds.

use crate::arguments::{array, check_flags, descriptor, host_path};
use crate::failure::{Failure, Result, guard_unit};
use crate::file_system::{User, fs_of, papilio_fs};
use crate::streams::{Canceled, Progress, failure, papilio_progress_fn};
use libc::{c_char, c_int, c_void, size_t};
use papilio::archive::{
    ArchiveChain, ArchiveError, ArchiveFault, ArchiveOptions, open_sources, restore_archive, restore_sizes,
    verify_archive,
};
use papilio::device::{Access, DeviceOptions};
use papilio::{Error, ImageTargets};
use std::cell::RefCell;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Flag of papilio_archive(): bytes that no copy gives are left out, and not an error.
pub const PAPILIO_ARCHIVE_SKIP_UNREADABLE: u32 = 0x1;
/// Flag of papilio_archive_restore(): files that have content, and devices, are overwritten.
pub const PAPILIO_RESTORE_FORCE: u32 = 0x1;

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Self {
        let errno = match &error.fault {
            ArchiveFault::NoParent(_) => libc::ENOENT,
            ArchiveFault::Io(source) => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EIO,
        };
        Self::new(errno, error.to_string())
    }
}

/// Returns the failure of reading an archive. The library's argument errors are faults of the file.
fn of_archive(error: Error) -> Failure {
    match &error {
        Error::Invalid(text) => Failure::new(libc::EIO, text.clone()),
        _ => error.into(),
    }
}

/// Returns the paths of an array.
///
/// # Safety
/// `first` points to `count` NUL-terminated texts, or is NULL with a `count` of 0.
unsafe fn paths(first: *const *const c_char, count: size_t, name: &str) -> Result<Vec<PathBuf>> {
    // SAFETY: the caller promises `count` pointers.
    let pointers = unsafe { array(first, count, name) }?;
    // SAFETY: the caller promises NUL-terminated texts.
    pointers.iter().map(|path| unsafe { host_path(*path, name) }.map(Path::to_owned)).collect()
}

/// Returns a failure if the source could not give all bytes.
fn check_whole(name: &str, damaged: u64, unreadable: u64) -> Result<()> {
    match (damaged, unreadable) {
        (0, 0) => Ok(()),
        _ => {
            let text =
                format!("{name}: {damaged} bytes have no good copy, and {unreadable} could not be read");
            Err(Failure::new(libc::EIO, text))
        }
    }
}

/// Writes an archive of the last commit of `fs` to the descriptor `fd`: the used bytes of all
/// devices, from which papilio_archive_restore() makes the same file system again. `since` is NULL,
/// or the path of an archive of the same file system, which the new one is based on and needs;
/// those that it is based on itself are found in its directory. `level` is that of zstd, 1 to 19,
/// or 0 for no compression. `threads` is the number of threads, 0 for one of each core. `flags` is
/// 0 or PAPILIO_ARCHIVE_SKIP_UNREADABLE. `progress` is NULL or a function that is called with
/// `user`, the bytes done, all bytes, and the bytes done.
///
/// Returns 0 if the archive is complete, or a negative errno: -EIO for damage, also if the archive
/// was written and lacks bytes or has some without a good copy; -ENOENT if an archive that `since`
/// is based on is not found, -EBADF if `fd` is not open, -ECANCELED if `progress` returns other
/// than 0, and the errors of writing to `fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_archive(
    fs: *mut papilio_fs,
    fd: c_int,
    since: *const c_char,
    level: c_int,
    threads: u32,
    flags: u32,
    progress: papilio_progress_fn,
    user: *mut c_void,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_ARCHIVE_SKIP_UNREADABLE)?;
        if !(0..=19).contains(&level) {
            return Err(Failure::invalid(format!("level {level}: there are 0 to 19")));
        }
        let user_of = User::new(&fs_of(fs)?)?;
        let parent = match since.is_null() {
            true => None,
            false => {
                // SAFETY: the caller promises a NUL-terminated text.
                let path = unsafe { host_path(since, "since") }?;
                let file = DeviceOptions::new(Access::ReadOnly).open(path).map_err(Error::from)?;
                Some(Arc::new(ArchiveChain::open_path(path, Arc::new(file), &[])?))
            }
        };
        let options = ArchiveOptions::new()
            .level(level)
            .threads(threads as usize)
            .skip_unreadable(flags & PAPILIO_ARCHIVE_SKIP_UNREADABLE != 0);
        let progress = RefCell::new(Progress::new(progress, user));
        let file = File::from(descriptor(fd)?.try_clone_to_owned()?);
        let mut out = BufWriter::with_capacity(1 << 20, Canceled(file, &progress));
        let created = user_of.fs().archive(parent, &mut out, &options, |done, all| {
            progress.borrow_mut().call(done, all, done);
        });
        let created = created.map_err(|error| failure(error, &progress))?;
        progress.borrow().check()?;
        out.flush()?;
        check_whole("the file system", created.damaged_bytes, created.unreadable_bytes)
    })
}

/// Reads the archive at the path `archive`, and those that it is based on, and checks every
/// checksum, their order, contents and end marks. `parents` are `parent_count` paths of such
/// archives; those in the directory of `archive` are found without. All paths are NUL-terminated.
///
/// Returns 0, or a negative errno: -EIO for a fault, also if the source could not give all bytes;
/// -ENOENT if an archive is missing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_archive_verify(
    archive: *const c_char,
    parents: *const *const c_char,
    parent_count: size_t,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller promises NUL-terminated texts.
        let path = unsafe { host_path(archive, "archive") }?;
        // SAFETY: the caller promises `parent_count` NUL-terminated texts.
        let parents = unsafe { paths(parents, parent_count, "parents") }?;
        let mut sources = open_sources(path, &parents)?;
        let mut unreadable = 0;
        for source in &mut sources {
            unreadable = verify_archive(source, 0, &mut |_| {}).map_err(of_archive)?.unreadable_bytes;
        }
        check_whole(&path.display().to_string(), 0, unreadable)
    })
}

/// Restores the archive at the path `archive` to `count` images or block devices, in the order of
/// the ids of the archived devices. `parents` is as in papilio_archive_verify(). A missing or empty
/// image gets the size of the archived device, or that of `sizes`, which is NULL or has `count`
/// sizes in bytes. If a device is smaller than the archived one, the file system is shrunk to it,
/// with temporary files. `flags` is 0 or PAPILIO_RESTORE_FORCE. All paths are NUL-terminated.
///
/// Returns 0, or a negative errno: -EIO for damage, also if the archive lacks bytes; -EEXIST for a
/// target that has content, without PAPILIO_RESTORE_FORCE; -EINVAL for a wrong number of targets;
/// -ENOSPC if a target is too small. After an error no target has a superblock, and an image that
/// was missing is missing again, unless only bytes of the source are lacking.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_archive_restore(
    archive: *const c_char,
    parents: *const *const c_char,
    parent_count: size_t,
    images: *const *const c_char,
    sizes: *const u64,
    count: size_t,
    flags: u32,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_RESTORE_FORCE)?;
        // SAFETY: the caller promises NUL-terminated texts.
        let path = unsafe { host_path(archive, "archive") }?;
        // SAFETY: the caller promises as many NUL-terminated texts as the counts say.
        let (parents, images) =
            unsafe { (paths(parents, parent_count, "parents")?, paths(images, count, "images")?) };
        let mut sources = open_sources(path, &parents)?;
        let archived = sources.last().map(restore_sizes).unwrap_or_default();
        if archived.len() != images.len() {
            let (needed, name) = (archived.len(), path.display());
            let text = format!("{name}: the file system has {needed} devices, {count} were given");
            return Err(Failure::invalid(text));
        }
        let sizes = match sizes.is_null() {
            true => &archived[..],
            // SAFETY: the caller promises `count` sizes.
            false => unsafe { array(sizes, count, "sizes") }?,
        };
        let mut targets = ImageTargets::new();
        for (image, size) in images.iter().zip(sizes) {
            targets.add(image, *size, flags & PAPILIO_RESTORE_FORCE != 0).map_err(|error| match &error {
                Error::Host { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists => {
                    Failure::new(libc::EEXIST, error.to_string())
                }
                _ => error.into(),
            })?;
        }
        let restored = restore_archive(&mut sources, targets.devices(), &std::env::temp_dir(), |_| {});
        let restored = restored.map_err(of_archive)?;
        targets.keep();
        check_whole(&path.display().to_string(), 0, restored.unreadable_bytes)
    })
}
