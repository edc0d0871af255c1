//! The result of `stat`.
//!
//! Owns [`StatResult`], which has the fields of `os.stat_result` and those of Btrfs. It also acts
//! as the ten-element tuple that `os.stat_result` is.

use crate::times::{to_ns, to_seconds};
use papilio::Metadata;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Bytes of a sector, the preferred size of I/O.
const SECTOR: u64 = 4096;
/// Bytes of a unit of `st_blocks`.
const BLOCK: u64 = 512;

/// The metadata of an inode.
///
/// st_dev is the id of the subvolume, so that (st_dev, st_ino) is unique in the file system.
#[pyclass(name = "StatResult", module = "papilio", frozen)]
pub struct StatResult {
    metadata: Metadata,
}

impl From<Metadata> for StatResult {
    fn from(metadata: Metadata) -> Self {
        Self { metadata }
    }
}

#[pymethods]
impl StatResult {
    #[getter]
    fn st_mode(&self) -> u32 {
        self.metadata.mode()
    }

    #[getter]
    fn st_ino(&self) -> u64 {
        self.metadata.number().0
    }

    #[getter]
    fn st_dev(&self) -> u64 {
        self.metadata.tree().0
    }

    #[getter]
    fn st_nlink(&self) -> u32 {
        self.metadata.nlink()
    }

    #[getter]
    fn st_uid(&self) -> u32 {
        self.metadata.uid()
    }

    #[getter]
    fn st_gid(&self) -> u32 {
        self.metadata.gid()
    }

    #[getter]
    fn st_size(&self) -> u64 {
        self.metadata.size()
    }

    #[getter]
    fn st_blocks(&self) -> u64 {
        self.metadata.allocated_bytes().div_ceil(SECTOR) * (SECTOR / BLOCK)
    }

    #[getter]
    fn st_blksize(&self) -> u64 {
        SECTOR
    }

    #[getter]
    fn st_rdev(&self) -> u64 {
        let (major, minor) = self.metadata.rdev();
        rustix::fs::makedev(major, minor)
    }

    #[getter]
    fn st_atime(&self) -> f64 {
        to_seconds(self.metadata.atime())
    }

    #[getter]
    fn st_mtime(&self) -> f64 {
        to_seconds(self.metadata.mtime())
    }

    #[getter]
    fn st_ctime(&self) -> f64 {
        to_seconds(self.metadata.ctime())
    }

    #[getter]
    fn st_birthtime(&self) -> f64 {
        to_seconds(self.metadata.btime())
    }

    #[getter]
    fn st_atime_ns(&self) -> i128 {
        to_ns(self.metadata.atime())
    }

    #[getter]
    fn st_mtime_ns(&self) -> i128 {
        to_ns(self.metadata.mtime())
    }

    #[getter]
    fn st_ctime_ns(&self) -> i128 {
        to_ns(self.metadata.ctime())
    }

    #[getter]
    fn st_birthtime_ns(&self) -> i128 {
        to_ns(self.metadata.btime())
    }

    /// The inode flags, such as NODATACOW (bit 1), as btrfs inspect-internal dump-tree shows them.
    #[getter]
    fn flags(&self) -> u64 {
        self.metadata.flags().bits()
    }

    /// The generation of the transaction that created the inode.
    #[getter]
    fn generation(&self) -> u64 {
        self.metadata.generation().0
    }

    /// The generation of the transaction that last changed the inode.
    #[getter]
    fn transid(&self) -> u64 {
        self.metadata.last_changed().0
    }

    fn __len__(&self) -> usize {
        10
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        let tuple = self.tuple(py)?;
        let index = if index < 0 { index + 10 } else { index };
        let index = usize::try_from(index).map_err(|_| PyIndexError::new_err("tuple index out of range"))?;
        tuple.get_item(index)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.tuple(py)?.try_iter()?.into_any())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.get().metadata == self.metadata)
    }

    fn __hash__(&self) -> u64 {
        self.metadata.number().0 ^ self.metadata.tree().0.rotate_left(32) ^ self.metadata.last_changed().0
    }

    fn __repr__(&self) -> String {
        format!(
            "papilio.StatResult(st_mode={:#o}, st_ino={}, st_dev={}, st_nlink={}, st_uid={}, st_gid={}, \
             st_size={}, st_mtime={})",
            self.st_mode(),
            self.st_ino(),
            self.st_dev(),
            self.st_nlink(),
            self.st_uid(),
            self.st_gid(),
            self.st_size(),
            self.st_mtime(),
        )
    }
}

impl StatResult {
    /// Returns the ten elements of `os.stat_result`, whose times are whole seconds.
    fn tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let metadata = &self.metadata;
        (
            self.st_mode(),
            self.st_ino(),
            self.st_dev(),
            self.st_nlink(),
            self.st_uid(),
            self.st_gid(),
            self.st_size(),
            metadata.atime().seconds,
            metadata.mtime().seconds,
            metadata.ctime().seconds,
        )
            .into_pyobject(py)
    }
}
