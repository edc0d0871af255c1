//! Sharing the data of equal blocks of files.

use crate::arguments::{check_flags, check_result, store, text};
use crate::failure::{Failure, guard_unit};
use crate::file_system::{User, fs_of, papilio_fs};
use crate::streams::{Progress, canceled, papilio_message_fn, papilio_progress_fn};
use libc::{c_char, c_int, c_void};
use papilio::{ChecksumDedupe, Dedupe, DedupeError, DedupeObserver, DedupeReport, DedupeStage, WalkRoot};
use std::ffi::CString;
use std::io;

/// Flag of papilio_dedupe(): equal blocks are only counted, by their hashes.
pub const PAPILIO_DEDUPE_DRY_RUN: u32 = 0x1;

/// Flag of papilio_dedupe(): candidates come from the checksums that are stored.
pub const PAPILIO_DEDUPE_CHECKSUMS: u32 = 0x2;

struct DedupeWatch {
    progress: Progress,
    failed: papilio_message_fn,
    user: *mut c_void,
    /// The number of files that were left out, and the first message.
    left_out: (u64, String),
}

impl DedupeObserver for DedupeWatch {
    fn file(&mut self, _path: &[u8], before: &DedupeReport) -> io::Result<()> {
        self.progress.call(before.files, 0, before.read_bytes);
        self.progress.check()
    }

    fn stage(&mut self, _stage: DedupeStage, done: u64) -> io::Result<()> {
        self.progress.call(done, 0, 0);
        self.progress.check()
    }

    fn failed(&mut self, error: DedupeError) {
        let message = error.to_string();
        if let Some(function) = self.failed {
            let text = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
            // SAFETY: the program gave the function and its argument for this call.
            unsafe { function(self.user, text.as_ptr()) };
        }
        if self.left_out.0 == 0 {
            self.left_out.1 = message;
        }
        self.left_out.0 += 1;
    }
}

/// Shares extents; the report gets the bytes that became free.
fn by_checksums(
    fs: &papilio::FileSystem,
    roots: Option<Vec<WalkRoot>>,
    shortest_run: u64,
    dry_run: bool,
    report: &mut DedupeReport,
    watch: &mut DedupeWatch,
) -> Result<(), DedupeError> {
    let mut dedupe = ChecksumDedupe::new().dry_run(dry_run);
    if shortest_run > 0 {
        if !shortest_run.is_power_of_two() || !Dedupe::BLOCK_SIZES.contains(&shortest_run) {
            return Err(DedupeError::BlockSize(shortest_run));
        }
        dedupe = dedupe.shortest_run(shortest_run);
    }
    report.shared_bytes = dedupe.run(fs, roots, watch)?.freed_bytes;
    Ok(())
}

fn failure(error: DedupeError) -> Failure {
    let errno = match &error {
        DedupeError::BlockSize(_) => libc::EINVAL,
        other => other.image_error().map_or(libc::EIO, papilio::Error::errno),
    };
    Failure::new(errno, error.to_string())
}

/// Shares the data of equal blocks of all files below `path`, NUL-terminated. Blocks with equal
/// hashes are compared before. Content and times stay. `block_size` is a power of two from 4096 to
/// 16 MiB, or 0 for 128 KiB. `flags` is 0 or PAPILIO_DEDUPE_DRY_RUN. `shared_bytes` is NULL or gets
/// the number of bytes that share the data of others now.
///
/// With PAPILIO_DEDUPE_CHECKSUMS candidates come from the checksums that are stored, and extents
/// are only given up whole, with all references to them. `block_size` is the shortest run that
/// counts, or 0 for 16 KiB, and `shared_bytes` gets the number of bytes that became free. The path
/// "/" means the whole file system. Extents without checksums are left out silently.
///
/// Files that cannot be read or shared are left out, and `failed` is NULL or hears of each.
/// `progress` is NULL or a function that is called with `user`, the files so far, 0, and the bytes
/// read; with PAPILIO_DEDUPE_CHECKSUMS with the extents or places of a stage so far, 0 and 0.
///
/// Returns 0 or a negative errno: -EIO if files were left out, -EINVAL for another block size,
/// -ECANCELED if `progress` returns other than 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_dedupe(
    fs: *mut papilio_fs,
    path: *const c_char,
    block_size: u64,
    flags: u32,
    shared_bytes: *mut u64,
    progress: papilio_progress_fn,
    failed: papilio_message_fn,
    user: *mut c_void,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_DEDUPE_DRY_RUN | PAPILIO_DEDUPE_CHECKSUMS)?;
        if !shared_bytes.is_null() {
            check_result(shared_bytes, "shared_bytes")?;
        }
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { text(path, "path") }?;
        let user_of = User::new(&fs_of(fs)?)?;
        let dry_run = flags & PAPILIO_DEDUPE_DRY_RUN != 0;
        let mut dedupe = Dedupe::new().dry_run(dry_run);
        if block_size > 0 {
            dedupe = dedupe.block_size(block_size);
        }
        let root = WalkRoot::in_file_system(user_of.fs(), path)?;
        let mut watch = DedupeWatch {
            progress: Progress::new(progress, user),
            failed,
            user,
            left_out: Default::default(),
        };
        let mut report = DedupeReport::default();
        let done = if flags & PAPILIO_DEDUPE_CHECKSUMS == 0 {
            dedupe.run(vec![root], &mut report, &mut watch)
        } else {
            let roots = if path.iter().all(|byte| *byte == b'/') { None } else { Some(vec![root]) };
            by_checksums(user_of.fs(), roots, block_size, dry_run, &mut report, &mut watch)
        };
        if watch.progress.is_canceled() {
            return Err(canceled());
        }
        done.map_err(failure)?;
        if !shared_bytes.is_null() {
            // SAFETY: the pointer was checked, and the caller promises memory for a number.
            unsafe { store(shared_bytes, report.shared_bytes) };
        }
        match watch.left_out {
            (0, _) => Ok(()),
            (count, first) => {
                Err(Failure::new(libc::EIO, format!("{count} files were left out; the first: {first}")))
            }
        }
    })
}
