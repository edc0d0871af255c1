//! `FileSystem`: subvolumes and snapshots.
//!
//! Owns these methods and the class [`Subvolume`].

use crate::errors::Raise;
use crate::file_system::{FileSystem, SubvolumeArg};
use crate::paths::{PathArg, decode};
use crate::times::to_seconds;
use papilio::{Error, NewKind, PathError, TreeId, Uuid};
use pyo3::prelude::*;

/// A subvolume or snapshot.
#[pyclass(name = "Subvolume", module = "papilio", frozen, get_all)]
pub struct Subvolume {
    /// The id.
    id: u64,
    /// The id of the subvolume that contains it; None for the top level and deleted ones.
    parent_id: Option<u64>,
    /// The name in its directory.
    name: Py<PyAny>,
    /// The path from the top level, with a leading slash; None if it has none.
    path: Option<Py<PyAny>>,
    uuid: Uuid,
    /// The UUID of the subvolume that it is a snapshot of.
    parent_uuid: Option<Uuid>,
    /// The UUID that it had on the sender's file system.
    received_uuid: Option<Uuid>,
    /// The transaction that last changed its tree.
    generation: u64,
    /// The transaction that created it.
    created_generation: u64,
    /// The time of its creation, in seconds since 1970.
    creation_time: f64,
    is_read_only: bool,
    is_snapshot: bool,
    is_being_deleted: bool,
}

#[pymethods]
impl Subvolume {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let path = match &self.path {
            Some(path) => path.bind(py).repr()?.to_string(),
            None => "None".to_owned(),
        };
        Ok(format!("<papilio.Subvolume {} {path}>", self.id))
    }
}

impl Subvolume {
    fn new(py: Python<'_>, of: papilio::Subvolume) -> PyResult<Self> {
        let path = match &of.path {
            Some(path) => Some(decode(py, &[b"/", &path[..]].concat())?.unbind()),
            None => None,
        };
        Ok(Self {
            id: of.id.0,
            parent_id: of.parent.map(|id| id.0),
            name: decode(py, &of.name)?.unbind(),
            path,
            uuid: of.uuid,
            parent_uuid: Some(of.parent_uuid).filter(|uuid| !uuid.is_nil()),
            received_uuid: Some(of.received_uuid).filter(|uuid| !uuid.is_nil()),
            generation: of.generation.0,
            created_generation: of.created.0,
            creation_time: to_seconds(of.creation_time),
            is_read_only: of.is_read_only(),
            is_snapshot: of.is_snapshot(),
            is_being_deleted: of.is_being_deleted(),
        })
    }
}

/// Returns the id of a subvolume that is given by id or by path.
pub fn subvolume_id(fs: &papilio::FileSystem, which: &SubvolumeArg) -> papilio::Result<TreeId> {
    match which {
        SubvolumeArg::Id(id) => match u64::try_from(*id) {
            Ok(id) => Ok(TreeId(id)),
            Err(_) => fs.default_subvolume(),
        },
        SubvolumeArg::Path(path) => {
            let root = fs.inode(&path.bytes)?;
            if !root.is_subvolume_root() {
                return Err(Error::Path { path: path.bytes.clone(), kind: PathError::NoSubvolume });
            }
            Ok(root.tree())
        }
    }
}

#[pymethods]
impl FileSystem {
    /// Returns all subvolumes and snapshots, the top level first.
    fn subvolumes(&self, py: Python<'_>) -> PyResult<Vec<Subvolume>> {
        let all = self.run(py, papilio::FileSystem::subvolumes)?.raise()?;
        all.into_iter().map(|subvolume| Subvolume::new(py, subvolume)).collect()
    }

    /// Returns the subvolume at a path, or with an id.
    fn subvolume(&self, py: Python<'_>, which: SubvolumeArg) -> PyResult<Subvolume> {
        let found = self.run(py, |fs| fs.subvolume(subvolume_id(fs, &which)?))?.raise()?;
        Subvolume::new(py, found)
    }

    /// The id of the subvolume that a mount without options shows.
    #[getter]
    fn default_subvolume(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.run(py, papilio::FileSystem::default_subvolume)?.raise()?.0)
    }

    /// Makes a subvolume the one that a mount without options shows.
    fn set_default_subvolume(&self, py: Python<'_>, which: SubvolumeArg) -> PyResult<()> {
        self.run(py, |fs| fs.set_default_subvolume(subvolume_id(fs, &which)?))?.raise()
    }

    /// Creates an empty subvolume.
    #[pyo3(signature = (path, mode = 0o777))]
    fn create_subvolume(&self, py: Python<'_>, path: PathArg, mode: u32) -> PyResult<()> {
        let new = self.handle.new_inode(NewKind::Directory, mode);
        let created = self.run(py, |fs| {
            let (parent, name) = fs.parent(&path.bytes)?;
            parent.create_subvolume(name, &new).map(drop)
        })?;
        created.raise_at(&path)
    }

    /// Creates a snapshot of the subvolume at source, and commits.
    #[pyo3(signature = (source, path, *, read_only = false))]
    fn snapshot(&self, py: Python<'_>, source: PathArg, path: PathArg, read_only: bool) -> PyResult<()> {
        let made = self.run(py, |fs| fs.snapshot(&source.bytes, &path.bytes, read_only).map(drop))?;
        made.raise_between(&source, &path)
    }

    /// Deletes a subvolume or snapshot with its content.
    fn delete_subvolume(&self, py: Python<'_>, which: SubvolumeArg) -> PyResult<()> {
        match &which {
            SubvolumeArg::Id(_) => {
                self.run(py, |fs| fs.delete_subvolume_by_id(subvolume_id(fs, &which)?))?.raise()
            }
            SubvolumeArg::Path(path) => self.run(py, |fs| fs.delete_subvolume(&path.bytes))?.raise_at(path),
        }
    }

    /// Makes a subvolume read-only, or writable again.
    #[pyo3(signature = (path, read_only = true))]
    fn set_read_only(&self, py: Python<'_>, path: PathArg, read_only: bool) -> PyResult<()> {
        self.run(py, |fs| fs.set_subvolume_read_only(&path.bytes, read_only))?.raise_at(&path)
    }

    /// Frees the space of deleted subvolumes now, which a thread does otherwise.
    fn clean_subvolumes(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, papilio::FileSystem::clean_subvolumes)?.raise()
    }
}
