//! Older states: why a file system that is open for reading does not show the newest content.
//!
//! Owns [`OlderState`], and the methods of `FileSystem` that list states and files.

use crate::file_system::FileSystem;
use crate::older_file::OlderFile;
use pyo3::prelude::*;

/// A state that is older than the newest one on the devices, and its cause.
#[pyclass(name = "OlderState", module = "papilio", frozen)]
pub struct OlderState(papilio::OlderState);

#[pymethods]
impl OlderState {
    /// A short name of the cause, which stays the same between versions: 'log-unusable'.
    #[getter]
    fn cause(&self) -> &'static str {
        self.0.cause.name()
    }

    /// A description in one line.
    #[getter]
    fn message(&self) -> String {
        self.0.to_string()
    }

    /// The generation that is shown.
    #[getter]
    fn generation(&self) -> u64 {
        self.0.shown.0
    }

    /// Whether the options ask for exactly this state.
    #[getter]
    fn is_asked(&self) -> bool {
        self.0.is_asked()
    }

    /// Whether a log of fsyncs belongs to the state.
    #[getter]
    fn has_log(&self) -> bool {
        self.0.has_log()
    }

    fn __repr__(&self) -> String {
        format!("<papilio.OlderState {}: generation {}>", self.cause(), self.generation())
    }
}

#[pymethods]
impl FileSystem {
    /// Why an older state than the newest one is shown; empty if it is the newest.
    fn older_states(&self, py: Python<'_>) -> PyResult<Vec<OlderState>> {
        self.run(py, |fs| fs.older_states().iter().cloned().map(OlderState).collect())
    }

    /// The files for which the log of fsyncs of a state has something newer.
    fn older_files(&self, py: Python<'_>, state: PyRef<'_, OlderState>) -> PyResult<Vec<OlderFile>> {
        let state = state.0.clone();
        let files = self.run(py, |fs| fs.older_files(&state))?;
        files.iter().map(|file| OlderFile::new(py, file)).collect()
    }
}
