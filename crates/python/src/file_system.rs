//! The class `FileSystem`: opening, closing, and what concerns the whole file system.
//!
//! Owns [`FileSystem`]; the Python class of the same name derives from it. Paths are in
//! `names` and `attributes`, subvolumes in `subvolumes`, streams in `streams`.

use crate::check::{CheckReport, run_options};
use crate::device::Device;
use crate::errors::Raise;
use crate::handle::Handle;
use crate::paths::{PathArg, decode, host_path};
use crate::space_sharing::SpaceSharing;
use crate::usage::Usage;
use papilio::{CompressionChoice, Error, OpenOptions, SubvolumeChoice, TreeId, Uuid};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// The argument that selects the subvolume of `btrfs subvolume set-default`.
pub const DEFAULT_SUBVOLUME: i64 = -1;

/// An open Btrfs file system.
#[pyclass(name = "FileSystem", module = "papilio._papilio", subclass, frozen)]
pub struct FileSystem {
    pub handle: Arc<Handle>,
}

/// A subvolume as an argument: an id, or a path.
#[derive(FromPyObject)]
pub enum SubvolumeArg {
    #[pyo3(transparent)]
    Id(i64),
    #[pyo3(transparent)]
    Path(PathArg),
}

impl SubvolumeArg {
    /// Returns the subvolume that paths start from.
    fn choice(self) -> PyResult<SubvolumeChoice> {
        match self {
            Self::Id(DEFAULT_SUBVOLUME) => Ok(SubvolumeChoice::Default),
            Self::Id(id) => match u64::try_from(id) {
                Ok(id) => Ok(SubvolumeChoice::Id(TreeId(id))),
                Err(_) => Err(PyValueError::new_err("a subvolume id is above 0")),
            },
            Self::Path(path) => {
                let start = path.bytes.iter().position(|byte| *byte != b'/').unwrap_or(path.bytes.len());
                Ok(SubvolumeChoice::Path(path.bytes[start..].to_vec()))
            }
        }
    }
}

impl FileSystem {
    /// Runs `job` on the library's handle, without the GIL.
    pub fn run<R: Send>(
        &self,
        py: Python<'_>,
        job: impl FnOnce(&papilio::FileSystem) -> R + Send,
    ) -> PyResult<R> {
        let fs = self.handle.fs()?;
        Ok(py.detach(move || job(&fs)))
    }
}

/// Returns whether a mode allows writing.
fn is_writable(mode: &str) -> PyResult<bool> {
    match mode {
        "r" => Ok(false),
        "rw" | "r+" => Ok(true),
        other => {
            let text = format!("mode {other:?}: expected 'r' for reading or 'rw' for reading and writing");
            Err(PyValueError::new_err(text))
        }
    }
}

/// Parses a value of the mount option `compress`.
pub fn compression(value: &str) -> PyResult<CompressionChoice> {
    value.parse().map_err(|error: Error| PyValueError::new_err(error.to_string()))
}

#[pymethods]
impl FileSystem {
    #[new]
    #[pyo3(signature = (
        image, mode = "r", *, devices = Vec::new(), subvolume = None, degraded = false, compress = None,
        compress_force = None, cache_bytes = 0, node_cache_bytes = None, direct_io = false,
        commit_interval = Some(30.0), verify_data = true, use_backup_root = false, replay_log = true,
        allow_older = false, replay_bytes = None, ignore_signatures = false, superblock_mirror = None,
        discard = false, timestamp = None, owner = (0, 0), umask = 0o022,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        image: &Bound<'_, PyAny>,
        mode: &str,
        devices: Vec<PathArg>,
        subvolume: Option<SubvolumeArg>,
        degraded: bool,
        compress: Option<&str>,
        compress_force: Option<&str>,
        cache_bytes: u64,
        node_cache_bytes: Option<usize>,
        direct_io: bool,
        commit_interval: Option<f64>,
        verify_data: bool,
        use_backup_root: bool,
        replay_log: bool,
        allow_older: bool,
        replay_bytes: Option<u64>,
        ignore_signatures: bool,
        superblock_mirror: Option<usize>,
        discard: bool,
        timestamp: Option<Bound<'_, PyAny>>,
        owner: (u32, u32),
        umask: u32,
    ) -> PyResult<Self> {
        let write = is_writable(mode)?;
        let commit_interval = match commit_interval.map(Duration::try_from_secs_f64).transpose() {
            Ok(interval) => interval,
            Err(error) => return Err(PyValueError::new_err(format!("commit_interval: {error}"))),
        };
        let mut options = OpenOptions::new()
            .write(write)
            .degraded(degraded)
            .cache_bytes(cache_bytes)
            .direct_io(direct_io)
            .commit_interval(commit_interval)
            .verify_data(verify_data)
            .use_backup_root(use_backup_root)
            .replay_log(replay_log)
            .allow_older(allow_older)
            .ignore_signatures(ignore_signatures)
            .discard(discard)
            .timestamp(timestamp.map(|time| crate::times::from_seconds(&time)).transpose()?);
        if let Some(bytes) = node_cache_bytes {
            options = options.node_cache_bytes(bytes);
        }
        if let Some(bytes) = replay_bytes {
            options = options.replay_bytes(bytes);
        }
        if let Some(mirror) = superblock_mirror {
            options = options.superblock_mirror(mirror);
        }
        if let Some(choice) = compress {
            options = options.compress(compression(choice)?);
        }
        if let Some(choice) = compress_force {
            options = options.compress_force(compression(choice)?);
        }
        if let Some(which) = subvolume {
            options = options.subvolume(which.choice()?);
        }
        for device in &devices {
            options = options.device(host_path(device));
        }
        if let Ok(device) = image.cast::<Device>() {
            if write {
                return Err(PyValueError::new_err("a device that reads by a callback is for mode 'r' only"));
            }
            let device = device.get().shared();
            let name = papilio::device::Device::name(&*device).to_owned();
            let opened = py.detach(|| papilio::FileSystem::from_devices(vec![device], &options)).raise()?;
            return Ok(Self { handle: Arc::new(Handle::new(opened, name, false, owner, umask)) });
        }
        let image: PathArg = image.extract()?;
        let path = host_path(&image);
        let name = path.display().to_string();
        let opened = py.detach(|| papilio::FileSystem::open_with(&path, &options)).raise_at(&image)?;
        Ok(Self { handle: Arc::new(Handle::new(opened, name, write, owner, umask)) })
    }

    /// Commits what was changed, and closes the file system and all files of it.
    fn _close(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.check_process()?;
        let handle = Arc::clone(&self.handle);
        py.detach(move || handle.close()).raise()
    }

    /// Whether the file system is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// The path of the image, or the name of the device.
    #[getter]
    fn name(&self) -> &str {
        &self.handle.name
    }

    /// Whether the file system is open for writing.
    #[getter]
    fn writable(&self) -> bool {
        self.handle.write
    }

    /// Makes all changes durable by a commit.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, papilio::FileSystem::sync)?.raise()
    }

    /// The UUID of the file system.
    #[getter]
    fn uuid(&self, py: Python<'_>) -> PyResult<Uuid> {
        self.run(py, papilio::FileSystem::uuid)
    }

    /// The label; empty if there is none.
    #[getter]
    fn label<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let label = self.run(py, papilio::FileSystem::label)?;
        decode(py, &label)
    }

    /// How the space is used.
    fn usage(&self, py: Python<'_>) -> PyResult<Usage> {
        let usage = self.run(py, papilio::FileSystem::usage)?.raise()?;
        Usage::new(py, &usage)
    }

    /// Finds out which subvolumes share which bytes: reads each of their tree blocks once.
    fn space_sharing(&self, py: Python<'_>) -> PyResult<SpaceSharing> {
        let options = papilio::SharingOptions::default();
        let measured = self.run(py, |fs| fs.space_sharing(&options, |_| true))?.raise()?;
        Ok(SpaceSharing(measured.expect("nothing ended the walk")))
    }

    /// Discards unused space and returns the bytes discarded.
    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |fs| fs.trim(0..u64::MAX, 0))?.raise()
    }

    /// Checks the file system as of its last commit.
    #[pyo3(signature = (*, data_csum = false, max_findings = 10_000, progress = None))]
    fn check(
        &self,
        py: Python<'_>,
        data_csum: bool,
        max_findings: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<CheckReport> {
        let options = run_options(data_csum, max_findings, progress);
        let report = self.run(py, |fs| fs.check(&options))?.raise()?;
        CheckReport::new(py, &report)
    }

    fn __repr__(&self) -> String {
        let mode = if self.handle.write { "rw" } else { "r" };
        let closed = if self.handle.is_closed() { ", closed" } else { "" };
        format!("<papilio.FileSystem {:?} mode='{mode}'{closed}>", self.handle.name)
    }
}
