//! Joining the backups between two that are kept.
//!
//! Owns [`merge`]. The streams from the base that stays to a backup become one stream, and the
//! backup gets a new manifest, which counts from then on.

use crate::access::load;
use crate::backups::Backup;
use crate::create::{known_objects, publish};
use crate::error::{BackupError, Result};
use crate::lock::RepositoryLock;
use crate::manifest::{BaseName, Manifest};
use crate::repository::Repository;
use crate::writer::{BackupWriter, PART};
use papilio::stream::JoinOptions;
use std::time::{SystemTime, UNIX_EPOCH};

/// Joins backups, each the base of the next, into a new backup of the last one's snapshot. Its base
/// is `base`, that of the first one.
pub fn merge(
    repository: &Repository,
    lock: &RepositoryLock,
    parts: &[&Backup],
    base: Option<BaseName>,
    level: i32,
) -> Result<Backup> {
    let chain = load(repository, parts)?;
    let mut out = BackupWriter::new(&repository.shared, known_objects(repository)?, level, PART);
    let joined = JoinOptions::new().join(&chain, chain.parts().len() - 1, &mut out);
    if let Some(error) = out.take_error() {
        return Err(error);
    }
    joined?;
    let written = out.finish()?;
    let last = &parts[parts.len() - 1].manifest;
    let same_base = written.head.base.map(|base| base.uuid) == base.map(|base| base.uuid);
    if written.head.snapshot.uuid != last.snapshot.uuid || !same_base {
        return Err(BackupError::Invalid(format!("{}: the joined stream is of another snapshot", last.name)));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let manifest = Manifest {
        // Later than the one that it replaces, also if the clock was set back.
        written: (now.as_nanos() as u64).max(last.written + 1),
        base,
        stream_bytes: written.stream_bytes,
        stream: written.stream,
        outline_bytes: written.outline_bytes,
        outline: written.outline,
        ..last.clone()
    };
    publish(repository, lock, manifest, level)
}
