//! Entries of directories, as `os.scandir` returns them.
//!
//! Owns [`ScanDir`], the iterator, and [`DirEntry`]. Entries are read in batches together with
//! their inodes, so that `stat` of an entry costs no look-up. An entry holds no part of the file
//! system, and stays usable after it is closed, apart from what must be read.

use crate::errors::Raise;
use crate::handle::Handle;
use crate::paths::{PathArg, name_object};
use crate::slot::Slot;
use crate::stat::StatResult;
use papilio::{Entries, EntryTarget, FileKind, Metadata};
use parking_lot::Mutex;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

/// Entries that are read in one go without the GIL.
const BATCH: usize = 256;

/// An entry as it was read.
struct Found {
    name: Vec<u8>,
    kind: FileKind,
    target: EntryTarget,
    is_subvolume: bool,
    /// `None` if the inode cannot be read; `stat` meets the error.
    metadata: Option<Metadata>,
}

/// An iterator over the entries of a directory.
#[pyclass(name = "ScanDir", module = "papilio", frozen)]
pub struct ScanDir {
    handle: Arc<Handle>,
    path: Arc<PathArg>,
    entries: Arc<Slot<Mutex<Entries>>>,
    batch: Mutex<VecDeque<papilio::Result<Found>>>,
}

impl ScanDir {
    pub fn new(handle: Arc<Handle>, path: PathArg, entries: Entries) -> Self {
        let entries = handle.give("directory iterator", Mutex::new(entries));
        Self { handle, path: Arc::new(path), entries, batch: Mutex::new(VecDeque::new()) }
    }
}

#[pymethods]
impl ScanDir {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<DirEntry>> {
        let ready = self.batch.lock().pop_front();
        let next = match ready {
            Some(next) => Some(next),
            None if self.entries.is_closed() => None,
            None => {
                let entries = self.entries.get()?;
                py.detach(|| {
                    let read: Vec<_> =
                        entries.lock().by_ref().take(BATCH).map(|entry| entry.map(found)).collect();
                    let mut batch = self.batch.lock();
                    batch.extend(read);
                    batch.pop_front()
                })
            }
        };
        let Some(found) = next.transpose().raise_at(&self.path)? else {
            drop(self.entries.take());
            return Ok(None);
        };
        let entry = DirEntry { handle: Arc::clone(&self.handle), directory: Arc::clone(&self.path), found };
        Ok(Some(entry))
    }

    /// Ends the iteration.
    fn close(&self) {
        self.batch.lock().clear();
        drop(self.entries.take());
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }
}

/// Keeps what a Python object needs of an entry.
fn found(entry: papilio::DirEntry) -> Found {
    let inode = entry.inode().ok();
    let names_subvolume = matches!(entry.target(), EntryTarget::Subvolume(_));
    Found {
        name: entry.file_name().to_vec(),
        kind: entry.file_type(),
        target: entry.target(),
        // A snapshot has empty directories in the places of nested subvolumes.
        is_subvolume: inode.as_ref().map_or(names_subvolume, papilio::Inode::is_subvolume_root),
        metadata: inode.map(|inode| *inode.metadata()),
    }
}

/// An entry of a directory.
#[pyclass(name = "DirEntry", module = "papilio", frozen)]
pub struct DirEntry {
    handle: Arc<Handle>,
    directory: Arc<PathArg>,
    found: Found,
}

impl DirEntry {
    fn full_path(&self) -> PathArg {
        PathArg { bytes: self.directory.join(&self.found.name), is_bytes: self.directory.is_bytes }
    }

    /// Looks the entry up by its path, following a symbolic link.
    fn followed(&self, py: Python<'_>) -> PyResult<papilio::Result<Metadata>> {
        let fs = self.handle.fs()?;
        let path = self.full_path();
        Ok(py.detach(move || fs.metadata(&path.bytes)))
    }

    /// Whether the entry, or what the symbolic link points to, is of a kind. A broken link is of
    /// none.
    fn is_kind(&self, py: Python<'_>, kind: FileKind, follow: bool) -> PyResult<bool> {
        if !follow || self.found.kind != FileKind::Symlink {
            return Ok(self.found.kind == kind);
        }
        match self.followed(py)? {
            Ok(metadata) => Ok(metadata.file_type() == kind),
            Err(papilio::Error::Path { .. }) => Ok(false),
            Err(error) => Err(error).raise_at(&self.full_path()),
        }
    }
}

#[pymethods]
impl DirEntry {
    /// The name.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        name_object(py, &self.found.name, self.directory.is_bytes)
    }

    /// The path of the directory, as it was passed, joined with the name.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.full_path().to_object(py)
    }

    fn __fspath__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.path(py)
    }

    /// The inode number.
    fn inode(&self) -> u64 {
        match (self.found.metadata, self.found.target) {
            (Some(metadata), _) => metadata.number().0,
            (None, EntryTarget::Inode(number)) => number.0,
            // The root directory of a subvolume.
            (None, _) => 256,
        }
    }

    #[pyo3(signature = (*, follow_symlinks = true))]
    fn is_dir(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        self.is_kind(py, FileKind::Directory, follow_symlinks)
    }

    #[pyo3(signature = (*, follow_symlinks = true))]
    fn is_file(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        self.is_kind(py, FileKind::Regular, follow_symlinks)
    }

    fn is_symlink(&self) -> bool {
        self.found.kind == FileKind::Symlink
    }

    /// Whether the entry is a subvolume or a snapshot.
    fn is_subvolume(&self) -> bool {
        self.found.is_subvolume
    }

    /// Returns the metadata, as of when the directory was read unless a link is followed.
    #[pyo3(signature = (*, follow_symlinks = true))]
    fn stat(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<StatResult> {
        let follow = follow_symlinks && self.found.kind == FileKind::Symlink;
        match self.found.metadata {
            Some(metadata) if !follow => Ok(metadata.into()),
            _ if follow_symlinks => Ok(self.followed(py)?.raise_at(&self.full_path())?.into()),
            _ => {
                let (fs, path) = (self.handle.fs()?, self.full_path());
                let read = py.detach(|| fs.symlink_metadata(&path.bytes));
                Ok(read.raise_at(&path)?.into())
            }
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<papilio.DirEntry {}>", self.name(py)?.repr()?))
    }
}
