//! Backups of snapshots in a folder or a bucket. docs/backup.md says what they are.
//!
//! Owns the class [`Repository`]. Ctrl+C ends every call.

use crate::backup_results::{Backup, BackupFault, BackupKey};
use crate::errors::{CorruptError, incomplete, of_library};
use crate::file_system::{FileSystem, SubvolumeArg};
use crate::paths::{PathArg, decode, encode, host_path};
use crate::slot::Slot;
use crate::streams::check_signals;
use crate::subvolumes::subvolume_id;
use papilio::device::RemoteOptions;
use papilio::stream::plain_path;
use papilio::{ReceiveObserver, SendObserver};
use papilio_backup::{
    BackupError, CreateOptions, Derivation, Encryption, ImageSnapshot, ImageTarget, PruneOptions,
    RepositoryLock, RestoreOptions, RestoreTarget, Retention, Secret, StoreWatch, VerifyOptions, create,
    open_store, plan_prune, prune, restore, stream_chain, verify,
};
use parking_lot::Mutex;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time between two looks for signals.
const PAUSE: Duration = Duration::from_millis(50);

/// A passphrase, or the bytes of a key file.
pub struct KeyArg(Secret);

impl<'py> FromPyObject<'_, 'py> for KeyArg {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let bytes = match object.cast::<PyString>() {
            Ok(text) => encode(&text)?,
            Err(_) => object.extract::<Vec<u8>>()?,
        };
        match bytes.is_empty() {
            true => Err(PyValueError::new_err("the key is empty")),
            false => Ok(Self(Secret::new(bytes))),
        }
    }
}

impl KeyArg {
    fn encryption(self) -> Encryption {
        Encryption { secret: self.0, derivation: Derivation::default() }
    }
}

/// Where a backup is restored.
#[derive(FromPyObject)]
enum TargetArg<'py> {
    #[pyo3(transparent)]
    FileSystem(Bound<'py, FileSystem>),
    #[pyo3(transparent)]
    Directory(PathArg),
}

/// Signals of a call: the exception that a handler raised ends all requests to the store.
#[derive(Debug, Default)]
struct Signals {
    raised: Mutex<Option<PyErr>>,
    /// The last time when signals were looked for: taking the GIL for each step would be slow.
    asked: Mutex<Option<Instant>>,
}

impl Signals {
    fn look(&self) -> io::Result<()> {
        let ended = || Err(io::ErrorKind::Interrupted.into());
        if self.raised.lock().is_some() {
            return ended();
        }
        {
            let mut asked = self.asked.lock();
            if asked.is_some_and(|asked| asked.elapsed() < PAUSE) {
                return Ok(());
            }
            *asked = Some(Instant::now());
        }
        let Err(error) = check_signals() else { return Ok(()) };
        *self.raised.lock() = error.downcast::<PyErr>().ok();
        ended()
    }

    /// Raises the failure of a call.
    fn raise<R>(&self, result: Result<R, BackupError>) -> PyResult<R> {
        result.map_err(|error| self.raised.lock().take().unwrap_or_else(|| of_backup(error)))
    }
}

impl StoreWatch for Signals {
    fn request(&self) -> io::Result<()> {
        self.look()
    }

    fn moved(&self, _bytes: u64) {}
}

/// Looks for signals while a stream is made or received. The next request then fails.
struct Watch(Arc<Signals>);

impl SendObserver for Watch {
    fn progress(&mut self, _done: u64, _all: u64, _bytes: u64) {
        let _ = self.0.look();
    }
}

impl ReceiveObserver for Watch {
    fn begins(&mut self, _name: &[u8], _snapshot: bool) {}

    fn progress(&mut self, _bytes: u64) {
        let _ = self.0.look();
    }

    fn failed(&mut self, _error: &papilio::Error) {}
}

/// Makes the exception. Damage of a repository is a `CorruptError`.
fn of_backup(error: BackupError) -> PyErr {
    match error {
        error if error.is_damage() => CorruptError::new_err((Errno::IO.raw_os_error(), error.to_string())),
        BackupError::FileSystem(error) => of_library(*error),
        error => PyOSError::new_err((error.errno(), error.to_string())),
    }
}

/// A repository of backups, in a folder or a bucket.
#[pyclass(name = "Repository", module = "papilio", frozen)]
pub struct Repository {
    slot: Slot<Mutex<papilio_backup::Repository>>,
}

impl Repository {
    fn new(opened: papilio_backup::Repository) -> Self {
        Self { slot: Slot::new("repository", Mutex::new(opened)) }
    }

    fn opened(&self) -> PyResult<papilio_backup::Repository> {
        Ok(self.slot.get()?.lock().clone())
    }

    /// Runs `job` without the GIL. Its requests to the store look for signals.
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        job: impl FnOnce(&papilio_backup::Repository, &Arc<Signals>) -> Result<R, BackupError> + Send,
    ) -> PyResult<R> {
        let opened = self.opened()?;
        let signals = Arc::new(Signals::default());
        let watched = opened.watched(signals.clone());
        let result = py.detach(|| job(&watched, &signals));
        signals.raise(result)
    }

    /// As [`Self::run`], with the lock of the repository.
    fn locked<R: Send>(
        &self,
        py: Python<'_>,
        breaks: bool,
        name: &str,
        job: impl FnOnce(&papilio_backup::Repository, &RepositoryLock, &Arc<Signals>) -> Result<R, BackupError>
        + Send,
    ) -> PyResult<R> {
        // A signal must not keep the lock from being released.
        let opened = self.opened()?;
        self.run(py, |watched, signals| {
            let lock = opened.lock(name, breaks)?;
            let result = job(watched, &lock, signals)?;
            lock.release()?;
            Ok(result)
        })
    }
}

#[pymethods]
impl Repository {
    #[new]
    #[pyo3(signature = (place, *, key = None))]
    fn open(py: Python<'_>, place: PathArg, key: Option<KeyArg>) -> PyResult<Self> {
        let opened = py.detach(|| {
            let path = host_path(&place);
            let needed = || BackupError::KeyNeeded(path.display().to_string());
            let store = open_store(&path, &RemoteOptions::default())?;
            let mut secret = || key.as_ref().map(|key| key.0.clone()).ok_or_else(needed);
            papilio_backup::Repository::open(store, &mut secret)
        });
        Ok(Self::new(opened.map_err(of_backup)?))
    }

    /// Makes a repository in an empty place. With a key, everything in it is encrypted.
    #[staticmethod]
    #[pyo3(signature = (place, *, key = None))]
    fn init(py: Python<'_>, place: PathArg, key: Option<KeyArg>) -> PyResult<Self> {
        let made = py.detach(|| {
            let store = open_store(&host_path(&place), &RemoteOptions::default())?;
            papilio_backup::Repository::init(store, key.map(KeyArg::encryption).as_ref())
        });
        Ok(Self::new(made.map_err(of_backup)?))
    }

    /// The id: 32 hexadecimal digits.
    #[getter]
    fn id(&self) -> PyResult<String> {
        Ok(self.opened()?.id())
    }

    /// The folder or the URL.
    #[getter]
    fn place(&self) -> PyResult<String> {
        Ok(self.opened()?.place())
    }

    #[getter]
    fn is_encrypted(&self) -> PyResult<bool> {
        Ok(self.opened()?.is_encrypted())
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.slot.is_closed()
    }

    /// Wipes the keys in memory, when the last call that uses them ends.
    fn close(&self) {
        drop(self.slot.take());
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_arguments))]
    fn __exit__(&self, _arguments: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        let place = self.opened().map_or_else(|_| "closed".to_owned(), |opened| opened.place());
        format!("<papilio.Repository {place}>")
    }

    /// Backs up a read-only snapshot. Returns the backup, and whether the repository had it before.
    #[pyo3(signature = (fs, snapshot, *, full = false, time = None, level = 3, break_lock = false))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn create(
        &self,
        py: Python<'_>,
        fs: &Bound<'_, FileSystem>,
        snapshot: SubvolumeArg,
        full: bool,
        time: Option<f64>,
        level: i32,
        break_lock: bool,
    ) -> PyResult<(Backup, bool)> {
        if !(1..=19).contains(&level) {
            return Err(PyValueError::new_err(format!("level {level}: there are 1 to 19")));
        }
        let fs = fs.get().handle.fs()?;
        let options =
            CreateOptions::new().full(full).time(time.map(|time| time.floor() as i64)).level(Some(level));
        let job = |repository: &papilio_backup::Repository, lock: &RepositoryLock, signals: &Arc<Signals>| {
            let id = subvolume_id(&fs, &snapshot)?;
            let path = fs.subvolume(id)?.path.unwrap_or_default();
            let operand = format!("/{}", String::from_utf8_lossy(&path));
            let mut watch = Watch(Arc::clone(signals));
            let mut source = ImageSnapshot::new(&fs, id, operand, &mut watch)?;
            let created = create(repository, lock, &mut source, &options)?;
            Ok((created, repository.backups()?))
        };
        let (created, backups) = self.locked(py, break_lock, "papilio.Repository.create", job)?;
        Ok((Backup::new(py, &created.backup, &backups)?, created.existed))
    }

    /// Returns the backups, the oldest first. Manifests that are damaged are left out: verify names
    /// them.
    fn backups(&self, py: Python<'_>) -> PyResult<Vec<Backup>> {
        let backups = self.run(py, |repository, _| repository.backups())?;
        backups.all().iter().map(|backup| Backup::new(py, backup, &backups)).collect()
    }

    /// Returns the backup with an id or the start of one, of the snapshot with a name, or 'latest'.
    fn find(&self, py: Python<'_>, backup: &str) -> PyResult<Backup> {
        let (found, backups) = self.run(py, |repository, _| {
            let backups = repository.backups()?;
            Ok((backups.find(backup)?.clone(), backups))
        })?;
        Backup::new(py, &found, &backups)
    }

    /// Restores a backup as a read-only snapshot: into the directory at path of an open file
    /// system, or into a directory of the host. Returns the path of the snapshot.
    #[pyo3(signature = (backup, target, path = None, *, name = None, keep_chain = false))]
    fn restore(
        &self,
        py: Python<'_>,
        backup: &str,
        target: TargetArg<'_>,
        path: Option<PathArg>,
        name: Option<PathArg>,
        keep_chain: bool,
    ) -> PyResult<String> {
        enum Place {
            Image(Arc<papilio::FileSystem>, Vec<u8>),
            Directory(std::path::PathBuf),
        }
        let place = match (target, path) {
            (TargetArg::FileSystem(fs), path) => {
                Place::Image(fs.get().handle.fs()?, path.map_or_else(|| b"/".to_vec(), |path| path.bytes))
            }
            (TargetArg::Directory(directory), None) => Place::Directory(host_path(&directory)),
            (TargetArg::Directory(_), Some(_)) => {
                return Err(PyValueError::new_err("path: only a file system has one"));
            }
        };
        let options = RestoreOptions::new().name(name.map(|name| name.bytes)).keep_chain(keep_chain);
        let restored = self.run(py, |repository, signals| {
            let backups = repository.backups()?;
            let found = backups.find(backup)?;
            let mut target: Box<dyn RestoreTarget> = match &place {
                Place::Image(fs, path) => Box::new(ImageTarget::new(fs, path)?),
                Place::Directory(directory) => directory_target(directory)?,
            };
            restore(repository, &backups, found, &mut *target, &options, &mut Watch(Arc::clone(signals)))
        })?;
        Ok(restored.path)
    }

    /// Returns the paths of the files of a backup below a path, relative to the snapshot's root.
    #[pyo3(signature = (backup, path = None))]
    fn files<'py>(
        &self,
        py: Python<'py>,
        backup: &str,
        path: Option<PathArg>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let path = path.map_or_else(Vec::new, |path| plain_path(&path.bytes));
        let files = self.run(py, |repository, _| {
            let backups = repository.backups()?;
            let chain = stream_chain(repository, &backups, backups.find(backup)?)?;
            let mut files = Vec::new();
            chain.for_each_entry(chain.parts().len() - 1, &path, |entry| {
                files.push(entry.path);
                Ok::<_, BackupError>(())
            })?;
            Ok(files)
        })?;
        files.iter().map(|path| decode(py, path)).collect()
    }

    /// Copies paths of a backup, with all below them, to NAME in a directory of the host, where
    /// NAME is that of the snapshot. Only the objects that hold them are read.
    #[cfg(target_os = "linux")]
    #[pyo3(signature = (backup, *paths, directory, owners = None))]
    fn extract(
        &self,
        py: Python<'_>,
        backup: &str,
        paths: Vec<PathArg>,
        directory: PathArg,
        owners: Option<bool>,
    ) -> PyResult<()> {
        if paths.is_empty() {
            return Err(PyValueError::new_err("no paths; '/' means everything"));
        }
        let paths = paths.iter().map(|path| plain_path(&path.bytes)).collect();
        let owners = owners.unwrap_or_else(|| rustix::process::geteuid().is_root());
        let problems = self.run(py, |repository, _| {
            let backups = repository.backups()?;
            let found = backups.find(backup)?;
            let mut problems = Vec::new();
            let mut failed = |error: &papilio::Error| problems.push(error.to_string());
            let directory = host_path(&directory);
            papilio_backup::extract(repository, &backups, found, paths, &directory, owners, &mut failed)?;
            Ok(problems)
        })?;
        if problems.is_empty() { Ok(()) } else { Err(incomplete(py, problems)) }
    }

    /// Checks that every backup can be restored, and returns the faults. Reads this part of the
    /// objects in full, in percent; all must be there with their lengths.
    #[pyo3(signature = (percent = 100.0))]
    fn verify(&self, py: Python<'_>, percent: f64) -> PyResult<Vec<BackupFault>> {
        if !(0.0..=100.0).contains(&percent) {
            return Err(PyValueError::new_err("percent: there are 0 to 100"));
        }
        let found = self.run(py, |repository, _| verify(repository, &VerifyOptions { percent }))?;
        Ok(found.faults.into_iter().map(BackupFault::from).collect())
    }

    /// Deletes the backups that no rule keeps, and objects that no backup uses. A rule keeps the
    /// last backup of each of the last N periods that have one; without a rule all backups stay.
    /// Returns the names of the snapshots whose backups go, the oldest first.
    #[pyo3(signature = (
        *, last = 0, daily = 0, weekly = 0, monthly = 0, yearly = 0, merge = false, dry_run = false,
        break_lock = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn prune<'py>(
        &self,
        py: Python<'py>,
        last: u32,
        daily: u32,
        weekly: u32,
        monthly: u32,
        yearly: u32,
        merge: bool,
        dry_run: bool,
        break_lock: bool,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let retention = Retention { last, daily, weekly, monthly, yearly };
        let options = PruneOptions { retention, merge };
        let plan = |repository: &papilio_backup::Repository| {
            let removed = plan_prune(&repository.backups()?, &options)?.removed;
            Ok::<_, BackupError>(removed)
        };
        let removed = if dry_run {
            self.run(py, |repository, _| plan(repository))?
        } else {
            self.locked(py, break_lock, "papilio.Repository.prune", |repository, lock, _| {
                let mut removed = plan(repository)?;
                prune(repository, lock, &options)?;
                // Where backups cannot be joined, their bases stay.
                let left = repository.backups()?;
                removed.retain(|backup| left.of(backup.manifest.snapshot).is_none());
                Ok(removed)
            })?
        };
        let name =
            |backup: &papilio_backup::Backup| decode(py, &backup.manifest.name_bytes().unwrap_or_default());
        removed.iter().map(name).collect()
    }

    /// Returns the keys of an encrypted repository.
    fn keys(&self, py: Python<'_>) -> PyResult<Vec<BackupKey>> {
        let keys = self.run(py, |repository, _| repository.keys())?;
        Ok(keys.into_iter().map(BackupKey::from).collect())
    }

    /// Lets a further key open the repository.
    #[pyo3(signature = (key, *, label = None, break_lock = false))]
    fn add_key(
        &self,
        py: Python<'_>,
        key: KeyArg,
        label: Option<String>,
        break_lock: bool,
    ) -> PyResult<BackupKey> {
        let with = key.encryption();
        let job = |repository: &papilio_backup::Repository, lock: &RepositoryLock, _: &Arc<Signals>| {
            repository.add_key(lock, &with, label)
        };
        Ok(self.locked(py, break_lock, "papilio.Repository.add_key", job)?.into())
    }

    /// Replaces the key with which the repository was opened. The data stays as it is.
    #[pyo3(signature = (key, *, break_lock = false))]
    fn change_key(&self, py: Python<'_>, key: KeyArg, break_lock: bool) -> PyResult<BackupKey> {
        let with = key.encryption();
        let mut opened = self.opened()?;
        let job = |_: &papilio_backup::Repository, lock: &RepositoryLock, _: &Arc<Signals>| {
            opened.change_key(lock, &with)
        };
        let changed = self.locked(py, break_lock, "papilio.Repository.change_key", job)?;
        *self.slot.get()?.lock() = opened;
        Ok(changed.into())
    }

    /// Removes a key, by its id or its label. The last one stays.
    #[pyo3(signature = (name, *, break_lock = false))]
    fn remove_key(&self, py: Python<'_>, name: &str, break_lock: bool) -> PyResult<()> {
        let job = |repository: &papilio_backup::Repository, lock: &RepositoryLock, _: &Arc<Signals>| {
            repository.remove_key(lock, name).map(drop)
        };
        self.locked(py, break_lock, "papilio.Repository.remove_key", job)
    }
}

#[cfg(target_os = "linux")]
fn directory_target(directory: &std::path::Path) -> Result<Box<dyn RestoreTarget>, BackupError> {
    Ok(Box::new(papilio_backup::DirectoryTarget::open(directory)?))
}

#[cfg(not(target_os = "linux"))]
fn directory_target(directory: &std::path::Path) -> Result<Box<dyn RestoreTarget>, BackupError> {
    let source = io::ErrorKind::Unsupported.into();
    Err(BackupError::Store { object: directory.display().to_string(), source })
}
