//! Repositories of backups: opening, keys, pruning and verifying. docs/backup.md describes them.
//!
//! A repository is a folder of the host, or a prefix of a bucket. Its handle may be used by several
//! threads at once. One process writes at a time, by a lock in the repository.

use crate::arguments::{
    Extensible, array, check_flags, check_result, check_structure, host_path, store, store_structure, utf8,
    zeroed,
};
use crate::failure::{Failure, Result, guard, guard_unit};
use crate::handles::{self, handle};
use crate::streams::{canceled, papilio_message_fn, papilio_progress_fn};
use libc::{c_char, c_int, c_void, size_t};
use papilio::device::RemoteOptions;
use papilio_backup::{
    BackupError, Derivation, Encryption, PruneOptions, PrunePlan, Pruned, Repository, RepositoryLock,
    Retention, Secret, StoreWatch, VerifyOptions, open_store, plan_prune, prune, verify,
};
use parking_lot::Mutex;
use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ThreadId;

/// Flag of papilio_backup_create(), papilio_repository_prune() and those that change keys: takes
/// the lock away from another process, which must not run any more.
pub const PAPILIO_BACKUP_BREAK_LOCK: u32 = 0x1;
/// Flag of papilio_repository_prune(): joins kept backups with the bases that no rule keeps.
pub const PAPILIO_PRUNE_MERGE: u32 = 0x2;
/// Flag of papilio_repository_prune(): only counts what would be removed, and changes nothing.
pub const PAPILIO_PRUNE_DRY_RUN: u32 = 0x4;

/// The numbers of backups that papilio_repository_prune() keeps: the last one of each of the last
/// periods that have one, in UTC. Each series of snapshots counts alone.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_retention {
    /// The last ones.
    pub last: u32,
    /// Days.
    pub daily: u32,
    /// Weeks, which begin on Monday.
    pub weekly: u32,
    /// Months.
    pub monthly: u32,
    /// Years.
    pub yearly: u32,
}

// SAFETY: it consists of integers of one size.
unsafe impl Extensible for papilio_retention {
    const FIRST_SIZE: usize = 5 * 4;
}
const _: () = assert!(size_of::<papilio_retention>() == 5 * 4);

/// The result of papilio_repository_prune().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_pruned {
    /// Backups that stay.
    pub kept: u64,
    /// Backups that are gone.
    pub removed: u64,
    /// Backups that were joined with their bases.
    pub merged: u64,
    /// Objects that are gone.
    pub objects: u64,
    /// Bytes of these.
    pub bytes: u64,
}

// SAFETY: it consists of integers of one size.
unsafe impl Extensible for papilio_pruned {
    const FIRST_SIZE: usize = 5 * 8;
}
const _: () = assert!(size_of::<papilio_pruned>() == 5 * 8);

/// An open repository.
pub(crate) struct Opened(Mutex<Repository>);

/// A repository of backups. Made by papilio_repository_init() or papilio_repository_open(), closed
/// by papilio_repository_close().
#[allow(non_camel_case_types)]
pub struct papilio_repository {
    _incomplete: (),
}

handle!(papilio_repository for Opened);

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

/// Returns the repository of a handle.
pub(crate) fn repository_of(repository: *const papilio_repository) -> Result<Repository> {
    Ok(handles::get::<Opened>(repository)?.0.lock().clone())
}

/// The program's function of one call, and whether it ended that.
///
/// **Invariant:** the function is called on the thread of the call only.
#[derive(Debug)]
pub(crate) struct Calls {
    function: papilio_progress_fn,
    user: *mut c_void,
    thread: ThreadId,
    /// Whether each request to the store is a call.
    by_requests: bool,
    canceled: AtomicBool,
    requests: AtomicU64,
    bytes: AtomicU64,
}

// SAFETY: the pointers are used on the thread that made the value only, as `call` verifies.
unsafe impl Send for Calls {}
// SAFETY: as above; the other fields are atomics.
unsafe impl Sync for Calls {}

impl Calls {
    pub(crate) fn new(function: papilio_progress_fn, user: *mut c_void, by_requests: bool) -> Arc<Self> {
        let thread = std::thread::current().id();
        let (canceled, requests, bytes) = Default::default();
        Arc::new(Self { function, user, thread, by_requests, canceled, requests, bytes })
    }

    pub(crate) fn call(&self, done: u64, total: u64, bytes: u64) {
        let is_canceled = self.canceled.load(Ordering::Relaxed);
        if is_canceled || std::thread::current().id() != self.thread {
            return;
        }
        if let Some(function) = self.function {
            // SAFETY: the program gave the function and its argument for this call, and this is the
            // call's thread.
            let ends = unsafe { function(self.user, done, total, bytes) } != 0;
            self.canceled.store(ends, Ordering::Relaxed);
        }
    }

    /// Returns the failure of the call, which the program may have canceled.
    pub(crate) fn failure(&self, error: impl Into<Failure>) -> Failure {
        if self.canceled.load(Ordering::Relaxed) { canceled() } else { error.into() }
    }
}

impl StoreWatch for Calls {
    fn request(&self) -> io::Result<()> {
        let requests = self.requests.fetch_add(1, Ordering::Relaxed);
        if self.by_requests {
            self.call(requests, 0, self.bytes.load(Ordering::Relaxed));
        }
        match self.canceled.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
            false => Ok(()),
        }
    }

    fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Calls the program's function with a message.
pub(crate) fn tell(function: papilio_message_fn, user: *mut c_void, message: &str) {
    let text = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    if let Some(function) = function {
        // SAFETY: the program gave the function and its argument for this call.
        unsafe { function(user, text.as_ptr()) };
    }
}

/// Takes the lock. A release that fails is the failure of the call.
pub(crate) fn locked<R>(
    repository: &Repository,
    flags: u32,
    job: &str,
    work: impl FnOnce(&RepositoryLock) -> Result<R>,
) -> Result<R> {
    let lock = repository.lock(job, flags & PAPILIO_BACKUP_BREAK_LOCK != 0)?;
    let result = work(&lock)?;
    lock.release()?;
    Ok(result)
}

/// Returns the secret that an array has.
///
/// # Safety
/// `key` points to `length` bytes, or is NULL with a length of 0.
unsafe fn secret(key: *const c_void, length: size_t) -> Result<Secret> {
    // SAFETY: the caller promises the bytes.
    let bytes = unsafe { array(key.cast::<u8>(), length, "key") }?;
    match bytes.is_empty() {
        true => Err(Failure::invalid("the key is empty")),
        false => Ok(Secret::new(bytes.to_vec())),
    }
}

/// Returns how a new key is made of a secret.
///
/// # Safety
/// As [`secret`].
unsafe fn encryption(key: *const c_void, length: size_t) -> Result<Encryption> {
    // SAFETY: the caller promises the bytes.
    Ok(Encryption { secret: unsafe { secret(key, length) }?, derivation: Derivation::default() })
}

/// Makes a repository at `place`, NUL-terminated: the path of a folder, which is made if it is
/// missing, or a URL such as "s3://BUCKET/PREFIX". The place is empty. `key` points to the
/// `key_length` bytes of a passphrase or of a key file, with which everything is encrypted; NULL
/// makes a plain repository. The handle goes to `*repository`.
///
/// Returns 0 or a negative errno: -EEXIST for a place that is not empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_repository_init(
    place: *const c_char,
    key: *const c_void,
    key_length: size_t,
    repository: *mut *mut papilio_repository,
) -> c_int {
    guard_unit(|| {
        check_result(repository, "repository")?;
        // SAFETY: the caller promises a NUL-terminated text.
        let place = unsafe { host_path(place, "place") }?;
        // SAFETY: the caller promises `key_length` bytes.
        let with = (!key.is_null()).then(|| unsafe { encryption(key, key_length) }).transpose()?;
        let opened = open_store(place, &RemoteOptions::default())?;
        let made = Repository::init(opened, with.as_ref())?;
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(repository, handles::insert(Opened(Mutex::new(made)))) };
        Ok(())
    })
}

/// Opens the repository at `place`, as in papilio_repository_init(). `key` and `key_length` are
/// those of one of its keys; a plain repository needs none. The handle goes to `*repository`.
///
/// Returns 0 or a negative errno: -ENOENT for a place without a repository, -EACCES for a key that
/// is wrong or missing, -EIO for a damaged description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_repository_open(
    place: *const c_char,
    key: *const c_void,
    key_length: size_t,
    repository: *mut *mut papilio_repository,
) -> c_int {
    guard_unit(|| {
        check_result(repository, "repository")?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { host_path(place, "place") }?;
        let opened = open_store(path, &RemoteOptions::default())?;
        // SAFETY: the caller promises `key_length` bytes.
        let known = (!key.is_null()).then(|| unsafe { secret(key, key_length) }).transpose()?;
        let needed = || BackupError::KeyNeeded(path.display().to_string());
        let opened = Repository::open(opened, &mut || known.clone().ok_or_else(needed))?;
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(repository, handles::insert(Opened(Mutex::new(opened)))) };
        Ok(())
    })
}

/// Closes a repository. Its keys in memory are wiped when the last call that uses it ends.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_repository_close(repository: *mut papilio_repository) -> c_int {
    guard_unit(|| handles::remove::<Opened>(repository).map(drop))
}

/// Lets a further key open the repository: the `key_length` bytes at `key`. `label` is NULL or a
/// name for it, NUL-terminated. `flags` is 0 or PAPILIO_BACKUP_BREAK_LOCK.
///
/// Returns 0 or a negative errno: -EBUSY if another process has the lock, -EINVAL for a repository
/// that is not encrypted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_repository_add_key(
    repository: *mut papilio_repository,
    key: *const c_void,
    key_length: size_t,
    label: *const c_char,
    flags: u32,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_BACKUP_BREAK_LOCK)?;
        // SAFETY: the caller promises `key_length` bytes.
        let with = unsafe { encryption(key, key_length) }?;
        let label = match label.is_null() {
            true => None,
            // SAFETY: the caller promises a NUL-terminated text.
            false => Some(unsafe { utf8(label, "label") }?.to_owned()),
        };
        let opened = repository_of(repository)?;
        locked(&opened, flags, "papilio_repository_add_key", |lock| {
            opened.add_key(lock, &with, label)?;
            Ok(())
        })
    })
}

/// Replaces the key with which the repository was opened by the `key_length` bytes at `key`. The
/// data stays as it is. `flags` is 0 or PAPILIO_BACKUP_BREAK_LOCK.
///
/// Returns as papilio_repository_add_key(); after an error the old key opens the repository.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_repository_change_key(
    repository: *mut papilio_repository,
    key: *const c_void,
    key_length: size_t,
    flags: u32,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_BACKUP_BREAK_LOCK)?;
        // SAFETY: the caller promises `key_length` bytes.
        let with = unsafe { encryption(key, key_length) }?;
        let held = handles::get::<Opened>(repository)?;
        let mut opened = held.0.lock().clone();
        locked(&opened.clone(), flags, "papilio_repository_change_key", |lock| {
            opened.change_key(lock, &with)?;
            Ok(())
        })?;
        *held.0.lock() = opened;
        Ok(())
    })
}

/// Removes a key, which `name`, NUL-terminated, names by its id or its label. The last key stays.
/// `flags` is 0 or PAPILIO_BACKUP_BREAK_LOCK.
///
/// Returns as papilio_repository_add_key(); -ENOENT for a key that is not there, -EINVAL for the
/// last one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_repository_remove_key(
    repository: *mut papilio_repository,
    name: *const c_char,
    flags: u32,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_BACKUP_BREAK_LOCK)?;
        // SAFETY: the caller promises a NUL-terminated text.
        let name = unsafe { utf8(name, "name") }?;
        let opened = repository_of(repository)?;
        locked(&opened, flags, "papilio_repository_remove_key", |lock| {
            opened.remove_key(lock, name)?;
            Ok(())
        })
    })
}

/// Checks that every backup of a repository can be restored. `percent`, 0 to 100, is the part of
/// the objects that is read in full; all must be there with their lengths. `failed` is NULL or
/// hears of each fault. `progress` is NULL or a function that is called with `user`, the requests
/// to the store, 0, and the bytes that they moved.
///
/// Returns the number of faults or a negative errno: -ECANCELED if `progress` returns other than 0,
/// and the store's errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_repository_verify(
    repository: *mut papilio_repository,
    percent: f64,
    progress: papilio_progress_fn,
    failed: papilio_message_fn,
    user: *mut c_void,
) -> i64 {
    guard(|| {
        if !(0.0..=100.0).contains(&percent) {
            return Err(Failure::invalid(format!("{percent} percent: there are 0 to 100")));
        }
        let calls = Calls::new(progress, user, true);
        let watched = repository_of(repository)?.watched(calls.clone());
        let found = verify(&watched, &VerifyOptions { percent }).map_err(|error| calls.failure(error))?;
        for fault in &found.faults {
            tell(failed, user, &format!("{}: {}", fault.object, fault.fault));
        }
        Ok(found.faults.len() as i64)
    })
}

/// Removes the backups that no rule keeps, and objects that no backup uses. `retention` points to a
/// papilio_retention and `size` is its sizeof; without a rule all backups stay. Backups on which a
/// kept one is based stay, too, unless `flags` has PAPILIO_PRUNE_MERGE. `flags` has any of
/// PAPILIO_PRUNE_* and PAPILIO_BACKUP_BREAK_LOCK. `failed` is NULL or hears of each backup that
/// could not be joined with its bases. `pruned` is NULL or points to a papilio_pruned of
/// `pruned_size` bytes. `progress` is as in papilio_repository_verify().
///
/// Returns 0 or a negative errno: -EINVAL for rules that keep nothing, and while a manifest is
/// damaged; -EBUSY if another process has the lock; -ECANCELED if `progress` returns other than 0.
/// After an error, all backups that are listed are whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_repository_prune(
    repository: *mut papilio_repository,
    retention: *const papilio_retention,
    size: size_t,
    flags: u32,
    progress: papilio_progress_fn,
    failed: papilio_message_fn,
    user: *mut c_void,
    pruned: *mut papilio_pruned,
    pruned_size: size_t,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_BACKUP_BREAK_LOCK | PAPILIO_PRUNE_MERGE | PAPILIO_PRUNE_DRY_RUN)?;
        check_structure(retention.cast_mut(), size, "retention")?;
        if !pruned.is_null() {
            check_structure(pruned, pruned_size, "pruned")?;
        }
        // SAFETY: the pointer was checked, and the caller promises `size` bytes, enough for the
        // first version.
        let papilio_retention { last, daily, weekly, monthly, yearly } = unsafe { *retention };
        let retention = Retention { last, daily, weekly, monthly, yearly };
        let options = PruneOptions { retention, merge: flags & PAPILIO_PRUNE_MERGE != 0 };
        let calls = Calls::new(progress, user, true);
        let opened = repository_of(repository)?;
        let watched = opened.watched(calls.clone());
        let work = |lock: Option<&RepositoryLock>| -> Result<(PrunePlan, Pruned)> {
            let plan = watched.backups().and_then(|backups| plan_prune(&backups, &options));
            let plan = plan.map_err(|error| calls.failure(error))?;
            let done = match lock {
                Some(lock) => prune(&watched, lock, &options).map_err(|error| calls.failure(error))?,
                None => Pruned::default(),
            };
            Ok((plan, done))
        };
        let (plan, done) = match flags & PAPILIO_PRUNE_DRY_RUN {
            0 => locked(&opened, flags, "papilio_repository_prune", |lock| work(Some(lock)))?,
            _ => work(None)?,
        };
        for (id, reason) in &done.not_merged {
            tell(failed, user, &format!("backup {}: not joined with its bases: {reason}", &id[..12]));
        }
        if !pruned.is_null() {
            let value = match flags & PAPILIO_PRUNE_DRY_RUN {
                0 => papilio_pruned {
                    kept: (plan.kept.len() + plan.removed.len() - done.removed) as u64,
                    removed: done.removed as u64,
                    merged: done.merged as u64,
                    objects: done.objects,
                    bytes: done.bytes,
                },
                _ => papilio_pruned {
                    kept: plan.kept.len() as u64,
                    removed: plan.removed.len() as u64,
                    merged: plan.merged.len() as u64,
                    ..zeroed()
                },
            };
            // SAFETY: the structure was checked, and the caller promises its bytes.
            unsafe { store_structure(pruned, pruned_size, &value) };
        }
        Ok(())
    })
}
