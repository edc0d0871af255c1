//! Copies out of a file system: to a directory of the host, and as a tar archive.

use crate::arguments::{check_flags, descriptor, text};
use crate::failure::{Failure, Result, guard_unit};
use crate::file_system::{User, fs_of, papilio_fs};
use crate::streams::{Progress, canceled, papilio_message_fn, papilio_progress_fn};
use libc::{c_char, c_int, c_void};
use papilio::{Export, ExportError, ExportObserver, ExportProblem, FileKind, ImagePath};
use std::cell::{Cell, RefCell};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::io::BufWriter;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Flag of papilio_copy_out(): files get their mode less the umask, and the current owner and time.
/// Each hard link becomes a file.
pub const PAPILIO_COPY_NO_ATTRIBUTES: u32 = 0x1;
/// Flag of papilio_copy_out() and papilio_write_tar(): directories of other subvolumes stay empty.
pub const PAPILIO_COPY_ONE_SUBVOLUME: u32 = 0x2;
/// Flag of papilio_copy_out(): existing files of the host stay as they are.
pub const PAPILIO_COPY_KEEP_EXISTING: u32 = 0x4;

/// Tells the program of problems and of the progress, and counts the problems.
struct Problems {
    progress: RefCell<Progress>,
    /// Bytes of files so far.
    bytes: Cell<u64>,
    function: papilio_message_fn,
    user: *mut c_void,
    /// Their number, and the first one.
    found: RefCell<(u64, String)>,
}

impl ExportObserver for Problems {
    fn problem(&self, problem: ExportProblem) {
        let message = problem.to_string();
        if let Some(function) = self.function {
            let text = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
            // SAFETY: the program gave the function and its argument for this call.
            unsafe { function(self.user, text.as_ptr()) };
        }
        let mut found = self.found.borrow_mut();
        if found.0 == 0 {
            found.1 = message;
        }
        found.0 += 1;
    }

    fn proceed(&self) -> io::Result<()> {
        let mut progress = self.progress.borrow_mut();
        progress.call(0, 0, self.bytes.get());
        progress.check()
    }

    fn bytes(&self, count: u64) {
        self.bytes.set(self.bytes.get().saturating_add(count));
    }
}

impl Problems {
    fn new(progress: papilio_progress_fn, function: papilio_message_fn, user: *mut c_void) -> Self {
        Self {
            progress: RefCell::new(Progress::new(progress, user)),
            bytes: Cell::new(0),
            function,
            user,
            found: RefCell::default(),
        }
    }

    /// Fails if the copy ended early or lacks something.
    fn check(self, copied: std::result::Result<(), ExportError>) -> Result<()> {
        if self.progress.borrow().is_canceled() {
            return Err(canceled());
        }
        copied.map_err(failure)?;
        match self.found.into_inner() {
            (0, _) => Ok(()),
            (count, first) => Err(Failure::new(libc::EIO, format!("{count} problems; the first: {first}"))),
        }
    }
}

fn failure(error: ExportError) -> Failure {
    let text = match (&error, error.host_error()) {
        (ExportError::Archive { .. }, Some(cause)) => format!("{error}: {cause}"),
        _ => error.to_string(),
    };
    let errno = match &error {
        ExportError::NotADirectory => libc::ENOTDIR,
        ExportError::Refused(error) => error.errno(),
        ExportError::Full => libc::ENOSPC,
        other => other.host_error().and_then(std::io::Error::raw_os_error).unwrap_or(libc::EIO),
    };
    Failure::new(errno, text)
}

/// Copies the content of the directory at `path`, or the file there, into the existing directory
/// `directory` of the host; both are NUL-terminated. A symbolic link at the end of `path` is not
/// followed. The copy keeps owners, modes, times, extended attributes, access control lists, hard
/// links and holes. Owners can be set by root only; for another user they are the program's,
/// without an error. The directory gets the attributes of that at `path`, and existing files are
/// replaced. Below `directory` no link of the host is followed. `flags` is 0 or a combination of
/// PAPILIO_COPY_NO_ATTRIBUTES, PAPILIO_COPY_ONE_SUBVOLUME and PAPILIO_COPY_KEEP_EXISTING.
///
/// The copy goes on around everything that cannot be read or made. `problem` is NULL or hears of
/// each with `user`. `progress` is NULL or a function that is called with `user`, 0, 0, and the
/// bytes of files so far.
///
/// Returns 0 if the copy is complete, or a negative errno: -EIO if it lacks something, -ENOSPC,
/// -EDQUOT or -EROFS if the destination ended it, -ECANCELED if `progress` returns other than 0,
/// -EINVAL for a program under fakeroot, which would not see the owners.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_copy_out(
    fs: *mut papilio_fs,
    path: *const c_char,
    directory: *const c_char,
    flags: u32,
    progress: papilio_progress_fn,
    problem: papilio_message_fn,
    user: *mut c_void,
) -> c_int {
    guard_unit(|| {
        const ALL: u32 = PAPILIO_COPY_NO_ATTRIBUTES | PAPILIO_COPY_ONE_SUBVOLUME | PAPILIO_COPY_KEEP_EXISTING;
        check_flags(flags, ALL)?;
        // SAFETY: the caller promises NUL-terminated texts.
        let (path, directory) = unsafe { (text(path, "path")?, text(directory, "directory")?) };
        let directory = Path::new(OsStr::from_bytes(directory));
        let user_of = User::new(&fs_of(fs)?)?;
        let from = user_of.fs().inode_nofollow(path)?;
        let path = ImagePath::unnamed(path);
        let name = path.base_name().unwrap_or_default();
        let export = Export::new()
            .keep_attributes(flags & PAPILIO_COPY_NO_ATTRIBUTES == 0)
            .one_subvolume(flags & PAPILIO_COPY_ONE_SUBVOLUME != 0)
            .keep_existing(flags & PAPILIO_COPY_KEEP_EXISTING != 0);
        let problems = Problems::new(progress, problem, user);
        let copied = match from.file_type() {
            FileKind::Directory => export.to_directory(&from, directory, &problems),
            _ => export.to_entry(&from, directory, name, &problems),
        };
        problems.check(copied)
    })
}

/// Writes the file or directory at `path`, NUL-terminated, with everything below it as a tar
/// archive in pax format to the descriptor `fd`. The members' paths begin with the last name of
/// `path`, or with "." for the root. `flags` is 0 or PAPILIO_COPY_ONE_SUBVOLUME. `problem` is NULL
/// or hears of everything that the archive lacks. `progress` is as in papilio_copy_out().
///
/// Returns 0 if the archive is complete, or a negative errno: -EIO if it lacks something, -EBADF
/// for a descriptor that is not open, -ECANCELED if `progress` returns other than 0, the errno of
/// writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_write_tar(
    fs: *mut papilio_fs,
    path: *const c_char,
    fd: c_int,
    flags: u32,
    progress: papilio_progress_fn,
    problem: papilio_message_fn,
    user: *mut c_void,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_COPY_ONE_SUBVOLUME)?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { text(path, "path") }?;
        let user_of = User::new(&fs_of(fs)?)?;
        let from = user_of.fs().inode_nofollow(path)?;
        let path = ImagePath::unnamed(path);
        let name = path.base_name().unwrap_or_default();
        // A duplicate, so that the program's descriptor stays open.
        let mut out = BufWriter::with_capacity(256 << 10, File::from(descriptor(fd)?.try_clone_to_owned()?));
        let export = Export::new().one_subvolume(flags & PAPILIO_COPY_ONE_SUBVOLUME != 0);
        let problems = Problems::new(progress, problem, user);
        let copied = export.to_tar(&from, name, &mut out, &problems);
        // Bytes that a failed call left must not be written after it.
        drop(out.into_parts());
        problems.check(copied)
    })
}
