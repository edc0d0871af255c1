//! Restoring a backup.
//!
//! Owns [`restore`]: it receives the chain of a backup, from the first snapshot that the target
//! lacks. The snapshots before the last one get names that begin with `.papilio-restore-`, and are
//! deleted at the end. A restore that was interrupted finds them again, and goes on.

use crate::backups::{Backup, Backups};
use crate::create::known_objects;
use crate::error::{BackupError, Result};
use crate::reader::PartReader;
use crate::repository::Repository;
use crate::target::RestoreTarget;
use papilio::{ExistingSubvolume, Receive, ReceiveObserver};

/// How a backup is restored.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    name: Option<Vec<u8>>,
    keep_chain: bool,
}

impl RestoreOptions {
    /// Restores under the snapshot's name, and nothing else.
    pub fn new() -> Self {
        Self::default()
    }

    /// Restores under another name.
    pub fn name(mut self, name: Option<Vec<u8>>) -> Self {
        self.name = name;
        self
    }

    /// Keeps the snapshots that the last one is based on, under their own names.
    pub fn keep_chain(mut self, keep: bool) -> Self {
        self.keep_chain = keep;
        self
    }
}

/// A backup that was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The path in the target.
    pub path: String,
    /// Snapshots that were received, with the last one.
    pub received: usize,
    /// Snapshots of the chain that the target had.
    pub found: usize,
}

/// Returns the name of a snapshot that is deleted at the end.
fn hidden_name(backup: &Backup) -> Vec<u8> {
    format!(".papilio-restore-{}", backup.manifest.snapshot.uuid).into_bytes()
}

fn exists(path: &str) -> BackupError {
    BackupError::Invalid(format!("{path}: the name exists already; choose another with --name"))
}

/// Restores a backup into a directory.
///
/// # Errors
/// An object that is missing or damaged, which is named; the name exists; as receiving.
pub fn restore(
    repository: &Repository,
    backups: &Backups,
    backup: &Backup,
    target: &mut dyn RestoreTarget,
    options: &RestoreOptions,
    observer: &mut dyn ReceiveObserver,
) -> Result<Restored> {
    let chain = backups.chain(backup)?;
    let name = options.name.clone().or_else(|| backup.manifest.name_bytes()).unwrap_or_default();
    let path = target.shown(&name);
    let last = chain.len() - 1;
    match target.existing(&name)? {
        ExistingSubvolume::Complete(sent) if sent == backup.manifest.snapshot.sent() => {
            return Ok(Restored { path, received: 0, found: chain.len() });
        }
        ExistingSubvolume::Missing | ExistingSubvolume::Incomplete(_) => {}
        _ => return Err(exists(&path)),
    }
    let first =
        chain[..last].iter().rposition(|one| target.has(one.manifest.snapshot)).map_or(0, |at| at + 1);
    // Found before anything is received, where it is known.
    let known = known_objects(repository)?;
    for object in chain[first..].iter().flat_map(|one| &one.manifest.stream) {
        if !known.contains_key(&object.0) {
            return Err(BackupError::Missing(object.place()));
        }
    }
    let receive = Receive::new().resume(true);
    let mut received = 0;
    for (index, one) in chain.iter().enumerate().skip(first) {
        let (own, is_hidden) = match index == last {
            true => (name.clone(), false),
            false if options.keep_chain => (one.manifest.name_bytes().unwrap_or_default(), false),
            false => (hidden_name(one), true),
        };
        if index < last {
            match target.existing(&own)? {
                ExistingSubvolume::Complete(sent) if sent == one.manifest.snapshot.sent() => continue,
                ExistingSubvolume::Missing | ExistingSubvolume::Incomplete(_) => {}
                // Left by a restore that was killed.
                _ if is_hidden => target.delete(&own)?,
                _ => return Err(exists(&target.shown(&own))),
            }
        }
        let mut input = PartReader::new(&repository.shared, &one.manifest.stream);
        input.rename(&own)?;
        target.receive(&receive, &mut input, observer)?;
        received += 1;
    }
    // Those that an interrupted restore left are among them.
    for one in chain[..last].iter().rev().filter(|_| !options.keep_chain) {
        let own = hidden_name(one);
        if target.existing(&own)? != ExistingSubvolume::Missing {
            target.delete(&own)?;
        }
    }
    Ok(Restored { path, received, found: first })
}
