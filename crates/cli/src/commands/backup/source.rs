//! The snapshots that are backed up: in an image, or on a mount.

use crate::commands::send::SendProgress;
use crate::commands::send::mounted::MountedSend;
use crate::context::Context;
use crate::mounted::Target;
use papilio::PathError;
use papilio::format::TreeId;
use papilio_backup::{BackupError, ImageSnapshot, Result, Snapshot, SnapshotSource};
use std::ffi::OsStr;
use std::io::Write;

/// Calls `job` with the snapshot that an argument names.
///
/// # Errors
/// The argument names no subvolume; those of `job`.
pub fn with_snapshot<R>(
    context: &Context,
    argument: &OsStr,
    job: impl FnOnce(&mut dyn SnapshotSource) -> anyhow::Result<R>,
) -> anyhow::Result<R> {
    let path = match Target::parse(argument)? {
        Target::Image(path) => path,
        Target::Mounted(_) => {
            let root = MountedSend::open(argument)?;
            return job(&mut MountedSnapshot { snapshot: snapshot_of(&root)?, root });
        }
    };
    let fs = context.open(&path.image)?;
    let inode = context.inode(&path, true)?;
    if !inode.is_subvolume_root() {
        anyhow::bail!("{path}: {}", PathError::NoSubvolume);
    }
    let mut progress = SendProgress::new(context);
    let mut snapshot = ImageSnapshot::new(&fs, inode.tree(), path.to_string(), &mut progress)?;
    let done = job(&mut snapshot);
    context.set_progress(None);
    drop(snapshot);
    progress.finish();
    done
}

fn failed(root: &MountedSend, error: impl std::fmt::Display) -> BackupError {
    BackupError::Invalid(format!("{}: {error}", root.operand()))
}

fn snapshot_of(root: &MountedSend) -> Result<Snapshot> {
    let id = root.root().subvolume_id().map_err(|error| failed(root, error))?;
    let all = all_subvolumes(root)?;
    all.into_iter().find(|one| one.id == id).ok_or_else(|| failed(root, PathError::NoSubvolume))
}

fn all_subvolumes(root: &MountedSend) -> Result<Vec<Snapshot>> {
    let all = root.root().subvolumes().map_err(|error| failed(root, error))?;
    Ok(all.iter().filter(|one| !one.is_being_deleted()).map(Snapshot::of).collect())
}

/// A snapshot on a mount of Papilio or of the kernel.
struct MountedSnapshot {
    root: MountedSend,
    snapshot: Snapshot,
}

impl SnapshotSource for MountedSnapshot {
    fn operand(&self) -> String {
        self.root.operand().to_owned()
    }

    fn snapshot(&self) -> Snapshot {
        self.snapshot
    }

    fn subvolumes(&self) -> Result<Vec<Snapshot>> {
        all_subvolumes(&self.root)
    }

    fn send(&mut self, parent: Option<TreeId>, out: &mut (dyn Write + Send)) -> Result<()> {
        // Its errors name the operand.
        self.root.send_difference(parent, out).map_err(|error| BackupError::Invalid(format!("{error:#}")))
    }
}
