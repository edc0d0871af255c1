//! Backups of snapshots in a repository: made, listed, restored, and files taken out of them.

use crate::arguments::{
    Extensible, array, check_array, check_flags, check_result, check_structure, host_path, store,
    store_structure, text, utf8,
};
use crate::failure::{Failure, Result, guard, guard_unit};
use crate::file_system::{User, fs_of, papilio_fs};
use crate::handles::{self, handle};
use crate::repository::{Calls, PAPILIO_BACKUP_BREAK_LOCK, locked, papilio_repository, repository_of, tell};
use crate::sharing::{c_text, pointer_to};
use crate::streams::{papilio_message_fn, papilio_progress_fn};
use crate::subvolumes::past_end;
use ::papilio_backup::{
    Backup, BackupError, Backups, CreateOptions, ImageSnapshot, ImageTarget, Repository, RestoreOptions,
    RestoreTarget, create, restore,
};
use libc::{c_char, c_int, c_void, size_t};
use papilio::stream::plain_path;
use papilio::{ReceiveObserver, SendObserver, TreeId};
use std::ffi::CString;
use std::sync::Arc;

/// Flag of papilio_backup_create(): a full backup in any case.
pub const PAPILIO_BACKUP_FULL: u32 = 0x2;
/// Flag of papilio_backup_restore() and papilio_backup_restore_directory(): keeps the snapshots on
/// which the last one is based, under their names.
pub const PAPILIO_BACKUP_KEEP_CHAIN: u32 = 0x1;
/// Flag of papilio_backup_extract(): files keep the owners that they are made with.
pub const PAPILIO_BACKUP_NO_OWNERS: u32 = 0x1;

/// Bytes of the id of a backup: 64 hexadecimal digits and a NUL.
pub const PAPILIO_BACKUP_ID_SIZE: usize = 65;

/// A backup. The texts are NUL-terminated and belong to the list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_backup {
    /// The time that pruning goes by, in seconds since 1970.
    pub time: i64,
    /// The bytes of the stream.
    pub stream_bytes: u64,
    /// The bytes of its objects as they are stored. Other backups may use them, too.
    pub stored_bytes: u64,
    /// The number of its objects.
    pub objects: u64,
    /// The sender's transaction that last changed the snapshot.
    pub ctransid: u64,
    /// The UUID of the snapshot in the stream.
    pub uuid: [u8; 16],
    /// The id.
    pub id: *const c_char,
    /// The id of the backup that it is based on; NULL for a full backup, "" if it is not there.
    pub base: *const c_char,
    /// The name of the snapshot.
    pub name: *const c_char,
    /// The bytes of the name, without the NUL.
    pub name_length: size_t,
    /// The host that made the backup.
    pub host: *const c_char,
    /// The operand of that.
    pub source: *const c_char,
    /// The UUID, as text, of the subvolume from which the snapshots of the series stem.
    pub series: *const c_char,
}

// SAFETY: it consists of integers and pointers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_backup {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () =
    assert!(size_of::<papilio_backup>() == 5 * 8 + 16 + 6 * size_of::<*const u8>() + size_of::<usize>());

/// A backup with its texts for the program.
struct Listed {
    backup: Backup,
    id: CString,
    base: Option<CString>,
    name: CString,
    host: CString,
    source: CString,
    series: CString,
}

/// The backups of a repository.
pub(crate) struct BackupList(Vec<Listed>);

/// A list of backups, the oldest first. Made by papilio_backups(), freed by papilio_backups_free().
#[allow(non_camel_case_types)]
pub struct papilio_backup_list {
    _incomplete: (),
}

handle!(papilio_backup_list for BackupList);

/// Watches a send, and hears of the commands that fail in a receive.
struct BackupWatch {
    calls: Arc<Calls>,
    failed: papilio_message_fn,
    user: *mut c_void,
}

impl SendObserver for BackupWatch {
    fn progress(&mut self, done: u64, all: u64, bytes: u64) {
        self.calls.call(done, all, bytes);
    }
}

impl ReceiveObserver for BackupWatch {
    fn begins(&mut self, _name: &[u8], _snapshot: bool) {}

    fn progress(&mut self, bytes: u64) {
        self.calls.call(0, 0, bytes);
    }

    fn failed(&mut self, error: &papilio::Error) {
        tell(self.failed, self.user, &error.to_string());
    }
}

/// Backs up the read-only subvolume of `fs` with the id `subvolume`. The backup is incremental if
/// the repository has one of a snapshot of the same subvolume, and `fs` still has that snapshot.
/// `level` is that of zstd, 1 to 19. `time` is NULL for now, or points to the time that pruning
/// goes by, in seconds since 1970. `flags` has any of PAPILIO_BACKUP_FULL and
/// PAPILIO_BACKUP_BREAK_LOCK. `progress` is NULL or a function that is called with `user`, the
/// inodes that are sent, their total, and the bytes of the stream. `id` is NULL or points to
/// PAPILIO_BACKUP_ID_SIZE bytes, which get the id of the backup.
///
/// Returns 0, or 1 if the repository had the backup before, or a negative errno: -EINVAL for a
/// subvolume that is not read-only, -EBUSY if another process has the lock, -ECANCELED if
/// `progress` returns other than 0. After an error the repository lists what it listed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_backup_create(
    repository: *mut papilio_repository,
    fs: *mut papilio_fs,
    subvolume: u64,
    level: c_int,
    time: *const i64,
    flags: u32,
    progress: papilio_progress_fn,
    user: *mut c_void,
    id: *mut c_char,
) -> c_int {
    guard(|| {
        check_flags(flags, PAPILIO_BACKUP_FULL | PAPILIO_BACKUP_BREAK_LOCK)?;
        if !(1..=19).contains(&level) {
            return Err(Failure::invalid(format!("level {level}: there are 1 to 19")));
        }
        check_array(time, usize::from(!time.is_null()), "time")?;
        // SAFETY: the pointer is NULL, or was checked and points to a number.
        let time = unsafe { time.as_ref() }.copied();
        let opened = repository_of(repository)?;
        let user_of = User::new(&fs_of(fs)?)?;
        let calls = Calls::new(progress, user, false);
        let watched = opened.watched(calls.clone());
        let options =
            CreateOptions::new().full(flags & PAPILIO_BACKUP_FULL != 0).time(time).level(Some(level));
        let made = locked(&opened, flags, "papilio_backup_create", |lock| {
            let mut watch = BackupWatch { calls: calls.clone(), failed: None, user };
            let path = user_of.fs().subvolume(TreeId(subvolume))?.path.unwrap_or_default();
            let operand = format!("/{}", String::from_utf8_lossy(&path));
            let mut source = ImageSnapshot::new(user_of.fs(), TreeId(subvolume), operand, &mut watch)?;
            create(&watched, lock, &mut source, &options).map_err(|error| calls.failure(error))
        })?;
        if !id.is_null() {
            let text = c_text(made.backup.id.clone());
            let bytes = text.as_bytes_with_nul();
            // SAFETY: the caller promises PAPILIO_BACKUP_ID_SIZE bytes, which an id takes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast::<c_char>(), id, bytes.len()) };
        }
        Ok(c_int::from(made.existed))
    })
}

fn listed(backups: &Backups, backup: &Backup) -> Listed {
    let manifest = &backup.manifest;
    let of_base = |base| backups.of(base).map_or_else(String::new, |base| base.id.clone());
    Listed {
        id: c_text(backup.id.clone()),
        base: manifest.base.map(|base| c_text(of_base(base))),
        name: c_text(manifest.name_bytes().unwrap_or_default()),
        host: c_text(manifest.host.clone()),
        source: c_text(manifest.source.clone()),
        series: c_text(manifest.series.clone()),
        backup: backup.clone(),
    }
}

/// Lists the backups of a repository, the oldest first. `failed` is NULL or hears, with `user`, of
/// each manifest that cannot be read, whose backup is not listed. The list goes to `*list`. Free it
/// with papilio_backups_free().
///
/// Returns the number of backups or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_backups(
    repository: *mut papilio_repository,
    failed: papilio_message_fn,
    user: *mut c_void,
    list: *mut *mut papilio_backup_list,
) -> i64 {
    guard(|| {
        check_result(list, "list")?;
        let backups = repository_of(repository)?.backups()?;
        for (_, error) in backups.damaged() {
            tell(failed, user, &error.to_string());
        }
        let all: Vec<_> = backups.all().iter().map(|backup| listed(&backups, backup)).collect();
        let count = all.len() as i64;
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(list, handles::insert(BackupList(all))) };
        Ok(count)
    })
}

/// Describes the backup at `index` of a list, counted from 0. `backup` points to a papilio_backup,
/// and `size` is its sizeof. Its texts are valid until the list is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_backup_get(
    list: *mut papilio_backup_list,
    index: size_t,
    backup: *mut papilio_backup,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(backup, size, "backup")?;
        let object = handles::get::<BackupList>(list)?;
        let found = object.0.get(index).ok_or_else(|| past_end(index, object.0.len()))?;
        let manifest = &found.backup.manifest;
        let (name, name_length) = pointer_to(Some(&found.name));
        let value = papilio_backup {
            time: manifest.time,
            stream_bytes: manifest.stream_bytes,
            stored_bytes: manifest.stored_bytes(),
            objects: manifest.objects().count() as u64,
            ctransid: manifest.snapshot.ctransid,
            uuid: *manifest.snapshot.uuid.as_bytes(),
            id: found.id.as_ptr(),
            base: pointer_to(found.base.as_ref()).0,
            name,
            name_length,
            host: found.host.as_ptr(),
            source: found.source.as_ptr(),
            series: found.series.as_ptr(),
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(backup, size, &value) };
        Ok(())
    })
}

/// Frees a list of backups, and the texts in it.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_backups_free(list: *mut papilio_backup_list) -> c_int {
    guard_unit(|| handles::remove::<BackupList>(list).map(drop))
}

/// Returns the options of a restore.
///
/// # Safety
/// `name` is NULL or a NUL-terminated text.
unsafe fn restoring(name: *const c_char, flags: u32) -> Result<RestoreOptions> {
    check_flags(flags, PAPILIO_BACKUP_KEEP_CHAIN)?;
    let name = match name.is_null() {
        true => None,
        // SAFETY: the caller promises a NUL-terminated text.
        false => Some(unsafe { text(name, "name") }?.to_vec()),
    };
    Ok(RestoreOptions::new().name(name).keep_chain(flags & PAPILIO_BACKUP_KEEP_CHAIN != 0))
}

/// Restores a backup, and returns the number of snapshots that were received.
///
/// # Safety
/// `backup` is a NUL-terminated text.
unsafe fn restore_to(
    opened: &Repository,
    backup: *const c_char,
    target: &mut dyn RestoreTarget,
    options: &RestoreOptions,
    mut watch: BackupWatch,
) -> Result<i64> {
    // SAFETY: the caller promises a NUL-terminated text.
    let name = unsafe { utf8(backup, "backup") }?;
    let calls = watch.calls.clone();
    let watched = opened.watched(calls.clone());
    let mut run = || -> ::papilio_backup::Result<i64> {
        let backups = watched.backups()?;
        let found = backups.find(name)?;
        let restored = restore(&watched, &backups, found, target, options, &mut watch)?;
        Ok(restored.received as i64)
    };
    run().map_err(|error| calls.failure(error))
}

/// Restores a backup into the directory of `fs` at `path`, NUL-terminated, as a read-only snapshot.
/// `backup` is its id or the first four digits or more, the name of its snapshot, or "latest",
/// NUL-terminated. `name` is NULL for the snapshot's name, or another one. `flags` is 0 or
/// PAPILIO_BACKUP_KEEP_CHAIN. The backups that it is based on are received first and deleted at the
/// end, unless `fs` has such a snapshot. `failed` is NULL or hears of commands of the stream that
/// fail. `progress` is NULL or a function that is called with `user`, 0, 0, and the bytes of the
/// stream that is received.
///
/// Returns the number of snapshots that were received, 0 if it was there already, or a negative
/// errno: -ENOENT for a backup that is not there, -EIO for an object that is missing or damaged,
/// -ECANCELED if `progress` returns other than 0. A restore that was interrupted goes on when it is
/// called again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_backup_restore(
    repository: *mut papilio_repository,
    backup: *const c_char,
    fs: *mut papilio_fs,
    path: *const c_char,
    name: *const c_char,
    flags: u32,
    progress: papilio_progress_fn,
    failed: papilio_message_fn,
    user: *mut c_void,
) -> i64 {
    guard(|| {
        // SAFETY: the caller promises a NUL-terminated text, or NULL.
        let options = unsafe { restoring(name, flags) }?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { text(path, "path") }?;
        let opened = repository_of(repository)?;
        let user_of = User::new(&fs_of(fs)?)?;
        let mut target = ImageTarget::new(user_of.fs(), path)?;
        let watch = BackupWatch { calls: Calls::new(progress, user, false), failed, user };
        // SAFETY: the caller promises a NUL-terminated text.
        unsafe { restore_to(&opened, backup, &mut target, &options, watch) }
    })
}

/// As papilio_backup_restore(), into the directory `directory` of the host, NUL-terminated. In a
/// mount of Papilio or of the kernel's Btrfs it becomes a snapshot, elsewhere a plain directory.
/// Linux only.
///
/// Returns as papilio_backup_restore(), and -EOPNOTSUPP on other hosts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_backup_restore_directory(
    repository: *mut papilio_repository,
    backup: *const c_char,
    directory: *const c_char,
    name: *const c_char,
    flags: u32,
    progress: papilio_progress_fn,
    failed: papilio_message_fn,
    user: *mut c_void,
) -> i64 {
    guard(|| {
        // SAFETY: the caller promises a NUL-terminated text, or NULL.
        let options = unsafe { restoring(name, flags) }?;
        // SAFETY: the caller promises a NUL-terminated text.
        let directory = unsafe { host_path(directory, "directory") }?;
        let opened = repository_of(repository)?;
        let watch = BackupWatch { calls: Calls::new(progress, user, false), failed, user };
        #[cfg(target_os = "linux")]
        {
            let mut target = ::papilio_backup::DirectoryTarget::open(directory)?;
            // SAFETY: the caller promises a NUL-terminated text.
            unsafe { restore_to(&opened, backup, &mut target, &options, watch) }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (backup, directory, options, opened, watch);
            Err(Failure::new(libc::EOPNOTSUPP, "only Linux confines a stream to a directory"))
        }
    })
}

/// Copies `count` paths of a backup, with all below them, to NAME in the directory `directory` of
/// the host, where NAME is that of the snapshot. `backup` is as in papilio_backup_restore(). The
/// texts of `paths` are relative to the snapshot's root; "" means everything. Only the objects that
/// hold them are read. `flags` is 0 or PAPILIO_BACKUP_NO_OWNERS; only root can give files their
/// owners. `failed` is NULL or hears of each file that is missing or not whole. `progress` is NULL
/// or a function that is called with `user`, the requests to the store, 0, and the bytes that they
/// moved. All texts are NUL-terminated. Linux only.
///
/// Returns 0, or a negative errno: -EIO if something is missing or not whole, or an object is
/// damaged; -ENOENT for a path or a backup that is not there; -ECANCELED if `progress` returns
/// other than 0; -EOPNOTSUPP on other hosts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_backup_extract(
    repository: *mut papilio_repository,
    backup: *const c_char,
    paths: *const *const c_char,
    count: size_t,
    directory: *const c_char,
    flags: u32,
    progress: papilio_progress_fn,
    failed: papilio_message_fn,
    user: *mut c_void,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, PAPILIO_BACKUP_NO_OWNERS)?;
        // SAFETY: the caller promises `count` pointers.
        let pointers = unsafe { array(paths, count, "paths") }?;
        // SAFETY: the caller promises NUL-terminated texts.
        let paths = pointers.iter().map(|path| unsafe { text(*path, "paths") }.map(plain_path));
        let paths = paths.collect::<Result<Vec<_>>>()?;
        // SAFETY: the caller promises a NUL-terminated text.
        let directory = unsafe { host_path(directory, "directory") }?;
        // SAFETY: the caller promises a NUL-terminated text.
        let name = unsafe { utf8(backup, "backup") }?;
        let calls = Calls::new(progress, user, true);
        let watched = repository_of(repository)?.watched(calls.clone());
        let mut missing = 0_u64;
        let mut hears = |error: &papilio::Error| {
            missing += 1;
            tell(failed, user, &error.to_string());
        };
        let owners = flags & PAPILIO_BACKUP_NO_OWNERS == 0;
        #[cfg(target_os = "linux")]
        let run = || -> ::papilio_backup::Result<()> {
            let backups = watched.backups()?;
            let found = backups.find(name)?;
            ::papilio_backup::extract(&watched, &backups, found, paths, directory, owners, &mut hears)
        };
        #[cfg(not(target_os = "linux"))]
        let run = || -> ::papilio_backup::Result<()> {
            let _ = (&watched, name, paths, directory, owners, &mut hears);
            Err(BackupError::FileSystem(Box::new(papilio::Error::Host {
                path: directory.to_owned(),
                source: std::io::Error::from_raw_os_error(libc::EOPNOTSUPP),
            })))
        };
        let extracted: std::result::Result<(), BackupError> = run();
        extracted.map_err(|error| calls.failure(error))?;
        match missing {
            0 => Ok(()),
            missing => Err(Failure::new(libc::EIO, format!("{missing} files are missing or not whole"))),
        }
    })
}
