//! `OlderFile`: a file for which a log of fsyncs has something newer than the state that is shown.

use crate::paths::decode;
use pyo3::prelude::*;

/// A file or directory for which the log of fsyncs has something newer.
#[pyclass(name = "OlderFile", module = "papilio", frozen, get_all)]
pub struct OlderFile {
    /// The path from the top level, as far as it is known.
    path: Py<PyAny>,
    /// 'changed', 'missing', 'removed', or 'unknown' for a part of the log that cannot be read.
    part: &'static str,
    /// The difference in words.
    reason: String,
    /// The id of the subvolume; None if the fault concerns all logs.
    subvolume: Option<u64>,
    /// The inode number; None for a fault of the log.
    inode: Option<u64>,
}

impl OlderFile {
    /// Makes the object that Python sees.
    pub fn new(py: Python<'_>, of: &papilio::OlderFile) -> PyResult<Self> {
        let path = [b"/", of.path.as_slice()].concat();
        Ok(Self {
            path: decode(py, &path)?.unbind(),
            part: of.part.name(),
            reason: of.reason(),
            subvolume: of.subvolume.map(|id| id.0),
            inode: of.inode.map(|inode| inode.0),
        })
    }
}

#[pymethods]
impl OlderFile {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<papilio.OlderFile {}: {}>", self.path.bind(py).repr()?, self.part))
    }
}
