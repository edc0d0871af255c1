//! Directories and files of results.

use anyhow::Context;
use std::path::Path;

/// Creates a directory and checks that it is writable, before a run that may take an hour.
pub(crate) fn prepare_folder(folder: &Path) -> anyhow::Result<()> {
    let named = || folder.display().to_string();
    std::fs::create_dir_all(folder).with_context(named)?;
    tempfile::tempfile_in(folder).map(drop).with_context(named)
}

/// Writes a file; the error names it.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}
