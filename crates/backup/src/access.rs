//! Files of a backup, without restoring it.
//!
//! Owns [`stream_chain`], and `extract` on hosts that confine a path to a directory.

use crate::backups::{Backup, Backups};
use crate::error::{BackupError, Result};
use crate::reader::{PartReader, Pieces};
use crate::repository::Repository;
#[cfg(target_os = "linux")]
use papilio::stream::{Extract, StreamError};
use papilio::stream::{LoadOptions, StreamChain, StreamInput};
use std::io::Read;
#[cfg(target_os = "linux")]
use std::path::Path;
use std::sync::Arc;

/// The most bytes of the outlines of a chain.
const MOST_OUTLINES: u64 = 4 << 30;

/// Loads the chain of a backup from the outlines, so that its files can be listed and read. Only
/// objects with data that is wanted are read later. The last part is the backup's snapshot.
///
/// # Errors
/// A base is missing; an outline cannot be read.
pub fn stream_chain(repository: &Repository, backups: &Backups, backup: &Backup) -> Result<StreamChain> {
    load(repository, &backups.chain(backup)?)
}

/// Loads the outlines of some backups, each the base of the next.
pub(crate) fn load(repository: &Repository, chain: &[&Backup]) -> Result<StreamChain> {
    let bytes = chain.iter().fold(0, |sum: u64, backup| sum.saturating_add(backup.manifest.outline_bytes));
    if bytes > MOST_OUTLINES {
        return Err(BackupError::Invalid(format!(
            "the outlines of the chain have {bytes} bytes, which is too much"
        )));
    }
    let shared = &repository.shared;
    let inputs = chain.iter().map(|backup| {
        let (manifest, name) = (&backup.manifest, format!("backup {}", backup.short_id()));
        let mut outline = Vec::new();
        let read = PartReader::new(shared, &manifest.outline).read_to_end(&mut outline);
        read.map_err(|source| BackupError::Store { object: name.clone(), source })?;
        let pieces = Arc::new(Pieces::new(shared, manifest));
        Ok(StreamInput::of_pieces(name, pieces, manifest.stream_bytes, outline))
    });
    let inputs = inputs.collect::<Result<_>>()?;
    Ok(StreamChain::load(inputs, LoadOptions::new())?)
}

/// Copies paths of a backup, with all below them, to `NAME` in a directory of the host, where NAME
/// is that of the snapshot. Only the objects that hold them are read. Paths are relative to the
/// root of the snapshot, and the empty one means everything. With `owners` the files get their
/// owners, which only root can give. `failed` hears of each entry that is missing or not whole.
///
/// # Errors
/// No such path; the directory cannot be opened or `NAME` not be made; an object that is missing or
/// damaged; a base is missing.
#[cfg(target_os = "linux")]
pub fn extract(
    repository: &Repository,
    backups: &Backups,
    backup: &Backup,
    paths: Vec<Vec<u8>>,
    directory: &Path,
    owners: bool,
    failed: &mut dyn FnMut(&papilio::Error),
) -> Result<()> {
    let chain = stream_chain(repository, backups, backup)?;
    let within = if paths.iter().any(Vec::is_empty) { Vec::new() } else { paths };
    let mut target = papilio::HostDirectory::open_plain(directory)?;
    let extract = Extract::new().owners(owners).within(within);
    let extracted = extract.to_target(&chain, chain.parts().len() - 1, &mut target, failed);
    extracted.map_err(|error| match error {
        StreamError::Other(error) => {
            BackupError::Extract { directory: directory.display().to_string(), source: Box::new(error) }
        }
        error => error.into(),
    })
}
