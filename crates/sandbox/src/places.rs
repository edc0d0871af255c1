//! The paths that a job keeps.

use std::path::PathBuf;

/// Paths that a job keeps.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Files and directories to read.
    pub(crate) read: Vec<PathBuf>,
    /// Directories below which files are made and removed.
    pub(crate) write: Vec<PathBuf>,
    /// Directories in which files are removed.
    pub(crate) remove: Vec<PathBuf>,
}
