//! Archives that are read in order, with those that they are based on.
//!
//! Owns [`open_source`], [`add_parents`] and [`open_sources`].

use super::ArchiveSource;
use papilio_device::archive::{ArchiveError, ArchiveFault, ArchiveReader, check_parent, find_parent};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// Bytes that are read of an archive at once.
const BUFFER: usize = 1 << 20;

/// Opens the archive at a path, without those that it is based on.
///
/// # Errors
/// The host's; no archive, or a damaged header.
pub fn open_source(path: &Path) -> Result<ArchiveSource, ArchiveError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| ArchiveError::at(&name, 0, error))?;
    let input: Box<dyn Read + Send> = Box::new(BufReader::with_capacity(BUFFER, file));
    ArchiveReader::new(input, &name)
}

/// Adds the archives that the first one of `sources` is based on, before it. `path` is that of the
/// first one: parents are found in its directory and in `parents`.
///
/// # Errors
/// A parent that is not found, or is of another state than its child says; an archive that is based
/// on itself; the errors of [`open_source`].
pub fn add_parents(
    path: &Path,
    parents: &[PathBuf],
    sources: &mut Vec<ArchiveSource>,
) -> Result<(), ArchiveError> {
    let mut beside = path.to_owned();
    while let Some(child) = sources.first().filter(|source| source.header().is_incremental()) {
        let failed = |fault| ArchiveError::at(child.name(), 0, fault);
        let wanted = child.header().parent;
        let found =
            find_parent(&beside, parents, wanted).ok_or_else(|| failed(ArchiveFault::NoParent(wanted)))?;
        let source = open_source(&found)?;
        if sources.iter().any(|known| known.header().id == source.header().id) {
            return Err(failed(ArchiveFault::Contradiction("it is based on itself".to_owned())));
        }
        check_parent(child.name(), child.header(), source.name(), source.header())?;
        sources.insert(0, source);
        beside = found;
    }
    Ok(())
}

/// Opens the archive at a path with all that it is based on, the full archive first.
///
/// # Errors
/// As [`add_parents`].
pub fn open_sources(path: &Path, parents: &[PathBuf]) -> Result<Vec<ArchiveSource>, ArchiveError> {
    let mut sources = vec![open_source(path)?];
    add_parents(path, parents, &mut sources)?;
    Ok(sources)
}
