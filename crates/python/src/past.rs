//! `FileSystem`: versions of files in snapshots, deleted subvolumes, plans for full file systems.
//!
//! Owns these methods, [`find_deleted_subvolumes`] and the classes of their answers.

use crate::errors::Raise;
use crate::file_system::{FileSystem, SubvolumeArg};
use crate::paths::{PathArg, decode, host_path};
use crate::subvolumes::subvolume_id;
use crate::times::to_seconds;
use papilio::{FileKind, Metadata, NameChange, OpenOptions, ScanOptions, SnapshotChange, TreeId};
use pyo3::prelude::*;

/// A version of a file that the subvolume or snapshots have.
#[pyclass(name = "FileVersion", module = "papilio", frozen, get_all)]
pub struct FileVersion {
    /// Bytes.
    size: u64,
    /// Type and permissions.
    mode: u32,
    uid: u32,
    gid: u32,
    /// The time of the last change of the content, in seconds since 1970.
    mtime: f64,
    /// The files that are this version: subvolume id, path of the subvolume, path in it.
    holders: Vec<(u64, Option<Py<PyAny>>, Py<PyAny>)>,
}

/// A path that only snapshots have.
#[pyclass(name = "SnapshotOnly", module = "papilio", frozen, get_all)]
pub struct SnapshotOnly {
    /// The path from the root of the subvolume.
    path: Py<PyAny>,
    /// The newest snapshot that has it.
    subvolume_id: u64,
    /// The path of that snapshot from the top level.
    subvolume_path: Option<Py<PyAny>>,
    size: u64,
    mode: u32,
    mtime: f64,
}

/// A path that changed from one snapshot to the next.
#[pyclass(name = "SnapshotChange", module = "papilio", frozen, get_all)]
pub struct Change {
    /// The path from the root of the subvolume.
    path: Py<PyAny>,
    /// "added", "deleted", "renamed" or "kept".
    name: &'static str,
    /// The path that a renamed file had.
    old_path: Option<Py<PyAny>>,
    is_directory: bool,
    size: u64,
    /// Whether data was written, or the size changed.
    content: bool,
    /// Whether mode, owner, flags, times or attributes changed.
    metadata: bool,
}

/// Two neighbours in the past of a subvolume, and what changed between them.
#[pyclass(name = "HistoryStep", module = "papilio", frozen, get_all)]
pub struct HistoryStep {
    /// The ids of both subvolumes.
    old_id: u64,
    new_id: u64,
    changes: Vec<Py<Change>>,
}

/// A subvolume that was deleted, and that an older root tree still has.
#[pyclass(name = "DeletedSubvolume", module = "papilio", frozen, get_all)]
pub struct DeletedSubvolume {
    id: u64,
    path: Option<Py<PyAny>>,
    /// The address of that root tree, and the transaction that wrote it.
    root_tree: u64,
    generation: u64,
    /// Blocks of its tree that can be read, and those that were overwritten.
    blocks: u64,
    missing: u64,
    is_being_freed: bool,
}

/// How much room metadata has, and what would help a full file system.
#[pyclass(name = "Relief", module = "papilio", frozen, get_all)]
pub struct Relief {
    metadata_total: u64,
    metadata_used: u64,
    /// Bytes of metadata that chunks in unallocated space could provide.
    unallocated_metadata: u64,
    /// Bytes of room that metadata has, and those that the kernel needs.
    room: u64,
    needed: u64,
    is_short: bool,
    deleted_subvolumes: u64,
    /// Block groups without content, and those that fit into others: start, length, used bytes.
    empty: Vec<(u64, u64, u64)>,
    movable: Vec<(u64, u64, u64)>,
    /// Devices that are larger than the file system on them: id, bytes.
    slack: Vec<(u64, u64)>,
}

/// Returns a path with a slash in front.
fn rooted(py: Python<'_>, path: &[u8]) -> PyResult<Py<PyAny>> {
    Ok(decode(py, &[b"/", path].concat())?.unbind())
}

fn rooted_if_any(py: Python<'_>, path: Option<&Vec<u8>>) -> PyResult<Option<Py<PyAny>>> {
    path.map(|path| rooted(py, path)).transpose()
}

fn without_slash(path: &PathArg) -> Vec<u8> {
    let start = path.bytes.iter().position(|byte| *byte != b'/').unwrap_or(path.bytes.len());
    path.bytes[start..].to_vec()
}

/// Returns the subvolume that an argument names; without one, that in which paths begin.
fn chosen(fs: &papilio::FileSystem, which: Option<&SubvolumeArg>) -> papilio::Result<TreeId> {
    match which {
        Some(which) => subvolume_id(fs, which),
        None => Ok(fs.inode("/")?.tree()),
    }
}

fn version(py: Python<'_>, of: &papilio::FileVersion) -> PyResult<FileVersion> {
    let metadata: &Metadata = &of.metadata;
    let holders = of.holders.iter().map(|holder| {
        let place = rooted_if_any(py, holder.subvolume_path.as_ref())?;
        Ok((holder.subvolume.0, place, rooted(py, &holder.path)?))
    });
    Ok(FileVersion {
        size: metadata.size(),
        mode: metadata.mode(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime: to_seconds(metadata.mtime()),
        holders: holders.collect::<PyResult<_>>()?,
    })
}

fn change(py: Python<'_>, of: &SnapshotChange) -> PyResult<Py<Change>> {
    let (name, old_path) = match &of.name {
        NameChange::Added => ("added", None),
        NameChange::Deleted => ("deleted", None),
        NameChange::Renamed(old) => ("renamed", Some(rooted(py, old)?)),
        _ => ("kept", None),
    };
    let is_directory = of.kind == FileKind::Directory;
    let (size, content, metadata) = (of.size, of.content, of.metadata);
    Py::new(py, Change { path: rooted(py, &of.path)?, name, old_path, is_directory, size, content, metadata })
}

#[pymethods]
impl FileSystem {
    /// Lists the versions of a file that a subvolume and snapshots have, the last modified last.
    #[pyo3(signature = (path, *, subvolume = None))]
    fn versions(
        &self,
        py: Python<'_>,
        path: PathArg,
        subvolume: Option<SubvolumeArg>,
    ) -> PyResult<Vec<FileVersion>> {
        let inside = without_slash(&path);
        let found =
            self.run(py, |fs| papilio::file_versions(fs, chosen(fs, subvolume.as_ref())?, &inside))?;
        found.raise_at(&path)?.iter().map(|one| version(py, one)).collect()
    }

    /// Lists the paths below a directory of a subvolume that only snapshots of its past have.
    #[pyo3(signature = (path = None, *, subvolume = None))]
    fn only_in_snapshots(
        &self,
        py: Python<'_>,
        path: Option<PathArg>,
        subvolume: Option<SubvolumeArg>,
    ) -> PyResult<Vec<SnapshotOnly>> {
        let inside = path.as_ref().map(without_slash).unwrap_or_default();
        let found =
            self.run(py, |fs| papilio::only_in_snapshots(fs, chosen(fs, subvolume.as_ref())?, &inside))?;
        let only = |one: &papilio::SnapshotOnly| {
            Ok(SnapshotOnly {
                path: rooted(py, &one.path)?,
                subvolume_id: one.subvolume.0,
                subvolume_path: rooted_if_any(py, one.subvolume_path.as_ref())?,
                size: one.metadata.size(),
                mode: one.metadata.mode(),
                mtime: to_seconds(one.metadata.mtime()),
            })
        };
        found.raise()?.iter().map(only).collect()
    }

    /// Lists the changes in a directory of a subvolume from snapshot to snapshot, the oldest first.
    #[pyo3(signature = (path = None, *, subvolume = None, since = None))]
    fn history(
        &self,
        py: Python<'_>,
        path: Option<PathArg>,
        subvolume: Option<SubvolumeArg>,
        since: Option<u64>,
    ) -> PyResult<Vec<HistoryStep>> {
        let inside = path.as_ref().map(without_slash).unwrap_or_default();
        let found = self.run(py, |fs| {
            let (mut steps, id) = (Vec::new(), chosen(fs, subvolume.as_ref())?);
            papilio::directory_history(fs, id, &inside, since.map(TreeId), &mut |step| {
                steps.push(step);
                true
            })?;
            Ok::<_, papilio::Error>(steps)
        })?;
        let step = |one: &papilio::HistoryStep| {
            let changes = one.changes.iter().map(|one| change(py, one)).collect::<PyResult<_>>()?;
            Ok(HistoryStep { old_id: one.old.id.0, new_id: one.new.id.0, changes })
        };
        found.raise()?.iter().map(step).collect()
    }

    /// Finds out whether metadata has too little room, and what would help. Changes nothing.
    fn plan_relief(&self, py: Python<'_>) -> PyResult<Relief> {
        let found = self.run(py, papilio::FileSystem::plan_relief)?.raise()?;
        let groups = |groups: &[papilio::ReliefGroup]| {
            groups.iter().map(|group| (group.start.0, group.length, group.used)).collect()
        };
        Ok(Relief {
            metadata_total: found.metadata_total,
            metadata_used: found.metadata_used,
            unallocated_metadata: found.unallocated_metadata,
            room: found.metadata_room(),
            needed: found.needed,
            is_short: found.is_short(),
            deleted_subvolumes: found.deleted_subvolumes,
            empty: groups(&found.empty),
            movable: groups(&found.movable),
            slack: found.slack.iter().map(|(device, bytes)| (device.0, *bytes)).collect(),
        })
    }
}

/// Scans an image that nobody writes for subvolumes that were deleted.
#[pyfunction]
#[pyo3(signature = (image, *, devices = Vec::new()))]
pub fn find_deleted_subvolumes(
    py: Python<'_>,
    image: PathArg,
    devices: Vec<PathArg>,
) -> PyResult<Vec<DeletedSubvolume>> {
    let path = host_path(&image);
    let options = devices.iter().fold(OpenOptions::new(), |options, one| options.device(host_path(one)));
    let found = py.detach(|| {
        let devices = papilio::open_devices(&path, &options)?;
        let scan = papilio::scan_devices(&devices, &ScanOptions::new())?;
        papilio::find_deleted_subvolumes(&devices, &options, &scan)
    });
    let deleted = |one: &papilio::DeletedSubvolume| {
        Ok(DeletedSubvolume {
            id: one.subvolume.id.0,
            path: rooted_if_any(py, one.subvolume.path.as_ref())?,
            root_tree: one.root_tree.0,
            generation: one.generation.0,
            blocks: one.blocks,
            missing: one.missing,
            is_being_freed: one.is_being_freed,
        })
    };
    found.raise_at(&image)?.iter().map(deleted).collect()
}
