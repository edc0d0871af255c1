//! Making a backup.
//!
//! Owns [`create`], the choice of the base, and [`SnapshotSource`], which an image implements here
//! and mounts in the front end.

use crate::backups::{Backup, Backups, FOLDER};
use crate::error::{BackupError, Result};
use crate::holder::host_name;
use crate::lock::RepositoryLock;
use crate::manifest::{BaseName, MOST_DATA, Manifest, data_name};
use crate::repository::Repository;
use crate::writer::{self, BackupWriter, Written};
use papilio::format::TreeId;
use papilio::{FileSystem, Generation, SendObserver, SendOptions, SendProtocol, Subvolume, Uuid};
use papilio_keys::hex;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// A subvolume of the source's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The id.
    pub id: TreeId,
    /// Its own UUID.
    pub uuid: Uuid,
    /// The UUID of the subvolume that it is a snapshot of, or nil.
    pub parent_uuid: Uuid,
    /// The UUID at the sender, or nil if it was not received.
    pub received_uuid: Uuid,
    /// The transaction that last changed it.
    pub changed: Generation,
    /// The sender's transaction that last changed it.
    pub sent: Generation,
    /// Whether it is read-only.
    pub is_read_only: bool,
}

impl Snapshot {
    /// Returns what is needed of a subvolume.
    pub fn of(subvolume: &Subvolume) -> Self {
        let Subvolume { id, uuid, parent_uuid, received_uuid, changed, sent, .. } = *subvolume;
        Self { id, uuid, parent_uuid, received_uuid, changed, sent, is_read_only: subvolume.is_read_only() }
    }

    /// Returns the UUID by which streams name it.
    fn sent_uuid(&self) -> Uuid {
        if self.received_uuid.is_nil() { self.uuid } else { self.received_uuid }
    }

    /// Returns whether a backup has this state of it.
    fn is_in(&self, name: BaseName) -> bool {
        let same = |generation: Generation| generation.0 == name.ctransid;
        self.sent_uuid() == name.uuid
            && (same(self.changed) || !self.received_uuid.is_nil() && same(self.sent))
    }
}

/// A read-only snapshot that can be sent.
pub trait SnapshotSource {
    /// Returns the operand for messages.
    fn operand(&self) -> String;

    /// Returns the snapshot.
    fn snapshot(&self) -> Snapshot;

    /// Returns all subvolumes of its file system.
    ///
    /// # Errors
    /// They cannot be read.
    fn subvolumes(&self) -> Result<Vec<Snapshot>>;

    /// Writes the stream, as the difference from `parent` if there is one.
    ///
    /// # Errors
    /// The file system cannot be read; the error of `out`.
    fn send(&mut self, parent: Option<TreeId>, out: &mut (dyn Write + Send)) -> Result<()>;
}

/// How a backup is made.
#[derive(Clone, Debug, Default)]
pub struct CreateOptions {
    full: bool,
    time: Option<i64>,
    level: Option<i32>,
    part_bytes: Option<usize>,
}

impl CreateOptions {
    /// An incremental backup of now, where there is a base.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses a full backup in any case.
    pub fn full(mut self, full: bool) -> Self {
        self.full = full;
        self
    }

    /// Sets the time that retention goes by, in seconds since 1970; now by default.
    pub fn time(mut self, time: Option<i64>) -> Self {
        self.time = time;
        self
    }

    /// Sets the level of zstd, 3 by default.
    pub fn level(mut self, level: Option<i32>) -> Self {
        self.level = level;
        self
    }

    /// Sets the bytes of a part of the stream, 8 MiB by default; 4 KiB to 64 MiB.
    pub fn part_bytes(mut self, bytes: usize) -> Self {
        self.part_bytes = Some(bytes.clamp(4 << 10, MOST_DATA as usize));
        self
    }

    pub(crate) fn zstd_level(&self) -> i32 {
        self.level.unwrap_or(3)
    }
}

/// A backup that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Created {
    /// The backup.
    pub backup: Backup,
    /// Whether the repository had it before.
    pub existed: bool,
    /// Objects that the repository did not have.
    pub new_objects: u64,
    /// Bytes of these.
    pub new_bytes: u64,
}

/// Returns the last UUID of the line of parents: that of the subvolume from which all snapshots of
/// the line stem.
fn origin(snapshot: &Snapshot, all: &[Snapshot]) -> Uuid {
    let (mut at, mut seen) = (*snapshot, HashSet::new());
    while !at.parent_uuid.is_nil() && seen.insert(at.uuid) {
        match all.iter().find(|parent| parent.uuid == at.parent_uuid) {
            Some(parent) => at = *parent,
            None => return at.parent_uuid,
        }
    }
    at.uuid
}

/// Returns the last backup of a read-only snapshot with the same origin, and that snapshot's id.
/// The backup and all that it needs must be there.
fn base_of<'a>(
    snapshot: &Snapshot,
    all: &[Snapshot],
    backups: &'a Backups,
    known: &HashMap<String, u64>,
) -> Option<(&'a Backup, TreeId)> {
    let own = origin(snapshot, all);
    let is_whole = |backup: &Backup| {
        let chain = backups.chain(backup).unwrap_or_default();
        let mut objects = chain.iter().flat_map(|backup| backup.manifest.objects());
        !chain.is_empty() && objects.all(|object| known.get(&object.0) == Some(&object.2))
    };
    let others = all.iter().filter(|other| other.is_read_only && other.id != snapshot.id);
    let related: Vec<&Snapshot> = others.filter(|other| origin(other, all) == own).collect();
    backups.all().iter().rev().find_map(|backup| {
        let found = related.iter().find(|other| other.is_in(backup.manifest.snapshot))?;
        is_whole(backup).then_some((backup, found.id))
    })
}

/// Makes a backup of a snapshot. It is incremental if the repository has a backup of a snapshot
/// that stems from the same subvolume and is still there.
///
/// # Errors
/// The snapshot is not read-only; errors of the file system and of the store. Then nothing is
/// visible, and the next prune removes what was stored.
pub fn create(
    repository: &Repository,
    lock: &RepositoryLock,
    source: &mut dyn SnapshotSource,
    options: &CreateOptions,
) -> Result<Created> {
    let snapshot = source.snapshot();
    if !snapshot.is_read_only {
        return Err(BackupError::Writable(source.operand()));
    }
    let backups = repository.backups()?;
    if let Some(backup) = backups.all().iter().find(|backup| snapshot.is_in(backup.manifest.snapshot)) {
        return Ok(Created { backup: backup.clone(), existed: true, new_objects: 0, new_bytes: 0 });
    }
    let known = known_objects(repository)?;
    let all = source.subvolumes()?;
    let base = if options.full { None } else { base_of(&snapshot, &all, &backups, &known) };
    let mut out = BackupWriter::new(
        &repository.shared,
        known,
        options.zstd_level(),
        options.part_bytes.unwrap_or(writer::PART),
    );
    let sent = source.send(base.map(|(_, id)| id), &mut out);
    if let Some(error) = out.take_error() {
        return Err(error);
    }
    sent?;
    let written = out.finish()?;
    let head = &written.head;
    let expected = base.map(|(backup, _)| backup.manifest.snapshot.uuid);
    if head.snapshot.uuid != snapshot.sent_uuid() || head.base.map(|base| base.uuid) != expected {
        let found = head.snapshot.uuid;
        let text = format!("{}: the stream is of {found}, which is not the snapshot", source.operand());
        return Err(BackupError::Invalid(text));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = String::from_utf8_lossy(&head.name).into_owned();
    let manifest = Manifest {
        version: Manifest::version(),
        name_hex: (name.as_bytes() != head.name).then(|| hex::text(&head.name)),
        name,
        host: host_name(),
        source: source.operand(),
        time: options.time.unwrap_or(now.as_secs() as i64),
        written: now.as_nanos() as u64,
        series: base
            .map_or_else(|| origin(&snapshot, &all).to_string(), |(base, _)| base.manifest.series.clone()),
        snapshot: head.snapshot,
        base: base.map(|(backup, _)| backup.manifest.snapshot),
        stream_bytes: written.stream_bytes,
        stream: written.stream.clone(),
        outline_bytes: written.outline_bytes,
        outline: written.outline.clone(),
    };
    let backup = publish(repository, lock, manifest, options.zstd_level())?;
    let Written { new_objects, new_bytes, .. } = written;
    Ok(Created { backup, existed: false, new_objects, new_bytes })
}

/// Returns the objects with data that the repository has, by the last part of their names.
pub(crate) fn known_objects(repository: &Repository) -> Result<HashMap<String, u64>> {
    let listed = repository.shared.list(writer::FOLDER)?;
    let named = listed.into_iter().filter_map(|(name, bytes)| {
        let last = name.rsplit('/').next()?.to_owned();
        (hex::array::<32>(&last).is_some() && data_name(&last) == name).then_some((last, bytes))
    });
    Ok(named.collect())
}

/// Stores a manifest, which makes the backup visible.
pub(crate) fn publish(
    repository: &Repository,
    lock: &RepositoryLock,
    manifest: Manifest,
    level: i32,
) -> Result<Backup> {
    let shared = &repository.shared;
    let bytes = manifest.to_bytes();
    let id = shared.sealer.name_of(&bytes);
    let object = format!("{FOLDER}{id}");
    let stored = shared.sealer.seal(&object, &bytes, level)?;
    // A process that broke the lock may have deleted the objects.
    lock.check()?;
    shared.put(&object, &stored)?;
    Ok(Backup { id, manifest })
}

/// A snapshot in an image.
pub struct ImageSnapshot<'a> {
    fs: FileSystem,
    subvolume: Subvolume,
    operand: String,
    observer: &'a mut dyn SendObserver,
}

impl std::fmt::Debug for ImageSnapshot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageSnapshot").field("operand", &self.operand).finish_non_exhaustive()
    }
}

impl<'a> ImageSnapshot<'a> {
    /// Names the snapshot with this id.
    ///
    /// # Errors
    /// There is none.
    pub fn new(
        fs: &FileSystem,
        id: TreeId,
        operand: String,
        observer: &'a mut dyn SendObserver,
    ) -> Result<Self> {
        Ok(Self { fs: fs.clone(), subvolume: fs.subvolume(id)?, operand, observer })
    }
}

impl SnapshotSource for ImageSnapshot<'_> {
    fn operand(&self) -> String {
        self.operand.clone()
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.subvolume)
    }

    fn subvolumes(&self) -> Result<Vec<Snapshot>> {
        let all = self.fs.subvolumes()?;
        Ok(all.iter().filter(|one| !one.is_being_deleted()).map(Snapshot::of).collect())
    }

    fn send(&mut self, parent: Option<TreeId>, out: &mut (dyn Write + Send)) -> Result<()> {
        let send = SendOptions::new().protocol(SendProtocol::V2).parent(parent);
        send.send(&self.fs, self.subvolume.id, out, self.observer)?;
        Ok(())
    }
}
