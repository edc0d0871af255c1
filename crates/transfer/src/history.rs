//! The changes of a directory from snapshot to snapshot.
//!
//! Owns [`directory_history`], its [`HistoryStep`]s, and [`only_in_snapshots`]. A subvolume's past
//! is the sequence of its snapshots, and before them that of the snapshot that it was made from:
//!
//! ```text
//! home  --snapshot--> day1   --snapshot--> day2
//!                       '--> home' (a rollback: the past of home' is the past of day1, then day1)
//! ```
//!
//! Two neighbours are compared as for send, so the cost follows the number of changes. A directory
//! is followed by its inode where it had another name.
//!
//! **Locks:** those of reading.

use crate::file_versions::{at_path, path_of};
use crate::send::changes::{NameChange, SnapshotChange, snapshot_changes};
use papilio_engine::errors::{Error, ErrorKind, PathError, Result};
use papilio_engine::subvolume::Subvolume;
use papilio_format::items::inode::FileKind;
use papilio_format::{Generation, InodeNumber, TreeId, objectid};
use papilio_fs::{FileSystem, Metadata};
use std::collections::{BTreeMap, HashSet};

/// Two neighbours in the past of a subvolume, and what changed from one to the other.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HistoryStep {
    /// The older one.
    pub old: Subvolume,
    /// The newer one.
    pub new: Subvolume,
    /// The changes in the directory, by path from the root of the subvolume.
    pub changes: Vec<SnapshotChange>,
}

/// A path that a directory has in snapshots only.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SnapshotOnly {
    /// The path from the root of the subvolume, without a leading slash.
    pub path: Vec<u8>,
    /// The newest snapshot that has it.
    pub subvolume: TreeId,
    /// The path of that snapshot from the top level; `None` if it has none.
    pub subvolume_path: Option<Vec<u8>>,
    /// Its metadata there.
    pub metadata: Metadata,
}

/// Passes the changes of the directory at `path` in `subvolume` to `take`, the oldest step first.
/// Only steps with both ends at `since` or later are compared. `take` returns whether to go on.
///
/// The directory may be gone from the subvolume. An empty path means the whole subvolume.
///
/// # Errors
/// [`PathError::NotFound`] if no subvolume of the past has such a directory;
/// [`PathError::NotADirectory`]; a tree block that cannot be read; as
/// [`snapshot_changes`](crate::send::changes::snapshot_changes).
pub fn directory_history(
    fs: &FileSystem,
    subvolume: TreeId,
    path: &[u8],
    since: Option<TreeId>,
    take: &mut dyn FnMut(HistoryStep) -> bool,
) -> Result<()> {
    directory_history_leaving_out(fs, subvolume, path, since, take, &mut |left| Err(left.error))
}

/// Something that a history leaves out because it cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub struct HistoryGap<'a> {
    /// The older end of a step; `None` for a subvolume in which the directory cannot be looked for,
    /// and which is left out of all steps.
    pub old: Option<&'a Subvolume>,
    /// The newer end of the step, or the subvolume.
    pub new: &'a Subvolume,
    /// The reason.
    pub error: Error,
}

/// As [`directory_history`]. Steps and subvolumes that cannot be read go to `failed`, which leaves
/// them out by returning `Ok`.
///
/// # Errors
/// As [`directory_history`]; the errors of `failed`.
pub fn directory_history_leaving_out(
    fs: &FileSystem,
    subvolume: TreeId,
    path: &[u8],
    since: Option<TreeId>,
    take: &mut dyn FnMut(HistoryStep) -> bool,
    failed: &mut dyn FnMut(HistoryGap<'_>) -> Result<()>,
) -> Result<()> {
    let mut past = past_of(fs, subvolume)?;
    if let Some(since) = since {
        let Some(first) = past.iter().position(|found| found.id == since) else {
            return Err(Error::Invalid(format!("subvolume {since} is no snapshot of this past")));
        };
        past.drain(..first);
    }
    let places = Followed::new(fs, &mut past, path, failed)?;
    if !path.is_empty() && places.0.iter().all(Option::is_none) {
        return Err(Error::path(path, PathError::NotFound));
    }
    for (at, pair) in past.windows(2).enumerate() {
        let (before, after) = (&places.0[at], &places.0[at + 1]);
        if before.is_none() && after.is_none() {
            continue;
        }
        let mut changes = match snapshot_changes(fs, pair[0].id, pair[1].id) {
            Ok(changes) => changes,
            Err(error) => {
                failed(HistoryGap { old: Some(&pair[0]), new: &pair[1], error })?;
                continue;
            }
        };
        changes.retain(|change| concerns(change, before.as_deref(), after.as_deref()));
        let step = HistoryStep { old: pair[0].clone(), new: pair[1].clone(), changes };
        if !take(step) {
            break;
        }
    }
    Ok(())
}

/// Lists the paths below the directory at `path` in `subvolume` that only snapshots of its past
/// still have, by path. An empty path means the whole subvolume.
///
/// # Errors
/// As [`directory_history`].
pub fn only_in_snapshots(fs: &FileSystem, subvolume: TreeId, path: &[u8]) -> Result<Vec<SnapshotOnly>> {
    only_in_snapshots_leaving_out(fs, subvolume, path, &mut |left| Err(left.error))
}

/// As [`only_in_snapshots`]. Steps and subvolumes that cannot be read go to `failed`, which leaves
/// them out by returning `Ok`.
///
/// # Errors
/// As [`directory_history_leaving_out`].
pub fn only_in_snapshots_leaving_out(
    fs: &FileSystem,
    subvolume: TreeId,
    path: &[u8],
    failed: &mut dyn FnMut(HistoryGap<'_>) -> Result<()>,
) -> Result<Vec<SnapshotOnly>> {
    let mut last_seen: BTreeMap<Vec<u8>, (TreeId, Option<Vec<u8>>)> = BTreeMap::new();
    let mut take = |step: HistoryStep| {
        for change in step.changes {
            match change.name {
                NameChange::Deleted => {
                    last_seen.insert(change.path, (step.old.id, step.old.path.clone()));
                }
                NameChange::Added | NameChange::Renamed(_) => {
                    last_seen.remove(&change.path);
                }
                NameChange::Kept => {}
            }
        }
        true
    };
    directory_history_leaving_out(fs, subvolume, path, None, &mut take, failed)?;
    let mut found = Vec::new();
    for (path, (holder, subvolume_path)) in last_seen {
        // A directory may have moved here with what is in it.
        if at_path(fs, subvolume, &path)?.is_some() {
            continue;
        }
        if let Some(inode) = at_path(fs, holder, &path)? {
            let metadata = *inode.metadata();
            found.push(SnapshotOnly { path, subvolume: holder, subvolume_path, metadata });
        }
    }
    Ok(found)
}

/// Returns the past of a subvolume, the oldest first, and at the end the subvolume itself.
fn past_of(fs: &FileSystem, subvolume: TreeId) -> Result<Vec<Subvolume>> {
    let all: Vec<_> = fs.subvolumes()?.into_iter().filter(|found| !found.is_being_deleted()).collect();
    let Some(own) = all.iter().find(|found| found.id == subvolume) else {
        return Err(Error::path(format!("subvolume {subvolume}").as_bytes(), PathError::NoSubvolume));
    };
    let mut known = HashSet::from([own.id]);
    let mut past = vec![own.clone()];
    let (mut at, mut until) = (own.clone(), None::<Generation>);
    loop {
        // Its snapshots, those that were made after it became the next one's origin excepted.
        let mut snapshots: Vec<_> = all
            .iter()
            .filter(|found| !at.uuid.is_nil() && found.parent_uuid == at.uuid)
            .filter(|found| until.is_none_or(|until| found.created < until))
            // A writable snapshot of a snapshot went another way.
            .filter(|found| until.is_none() || found.is_read_only() || !at.is_snapshot())
            .filter(|found| known.insert(found.id))
            .cloned()
            .collect();
        past.append(&mut snapshots);
        if at.parent_uuid.is_nil() {
            break;
        }
        let Some(origin) = all.iter().find(|found| found.uuid == at.parent_uuid) else { break };
        until = Some(at.created);
        // The origin itself may have changed since. As a snapshot it still shows the past.
        if origin.is_snapshot() && known.insert(origin.id) {
            past.push(origin.clone());
        }
        if origin.id == at.id {
            break;
        }
        at = origin.clone();
    }
    past[1..].sort_by_key(|found| (found.created, found.id));
    past.rotate_left(1);
    Ok(past)
}

/// The path of a directory in each subvolume of a past; `None` where it is missing.
struct Followed(Vec<Option<Vec<u8>>>);

impl Followed {
    /// Finds the places. Takes the subvolumes out of the past that `failed` leaves out.
    fn new(
        fs: &FileSystem,
        past: &mut Vec<Subvolume>,
        path: &[u8],
        failed: &mut dyn FnMut(HistoryGap<'_>) -> Result<()>,
    ) -> Result<Self> {
        if path.is_empty() {
            return Ok(Self(vec![Some(Vec::new()); past.len()]));
        }
        let newest = past.last().map(|newest| newest.id);
        let mut places = Vec::new();
        let mut follow = Follow { inode: None, wanted: path.to_vec() };
        let mut kept = Vec::new();
        for subvolume in std::mem::take(past).into_iter().rev() {
            match follow.place_in(fs, subvolume.id) {
                Ok(FollowedPlace::Directory(place)) => places.push(Some(place)),
                Ok(FollowedPlace::Other) if Some(subvolume.id) == newest => {
                    return Err(Error::path(path, PathError::NotADirectory));
                }
                Ok(_) => places.push(None),
                Err(error) => {
                    failed(HistoryGap { old: None, new: &subvolume, error })?;
                    continue;
                }
            }
            kept.push(subvolume);
        }
        kept.reverse();
        places.reverse();
        *past = kept;
        Ok(Self(places))
    }
}

/// The find in a subvolume at the place of a directory.
enum FollowedPlace {
    Directory(Vec<u8>),
    Other,
    Nothing,
}

/// A directory on the way from the present into the past.
struct Follow {
    inode: Option<(InodeNumber, Generation)>,
    /// Its last known path.
    wanted: Vec<u8>,
}

impl Follow {
    fn place_in(&mut self, fs: &FileSystem, subvolume: TreeId) -> Result<FollowedPlace> {
        // The same inode first: its name may have been another one.
        if let Some((number, created)) = self.inode
            && let Some(found) = same_inode(fs, subvolume, number, created)?
        {
            self.wanted.clone_from(&found);
            return Ok(FollowedPlace::Directory(found));
        }
        let Some(found) = at_path(fs, subvolume, &self.wanted)? else { return Ok(FollowedPlace::Nothing) };
        if found.file_type() != FileKind::Directory {
            return Ok(FollowedPlace::Other);
        }
        self.inode = Some((found.number(), found.metadata().generation()));
        Ok(FollowedPlace::Directory(self.wanted.clone()))
    }
}

/// Returns the path of an inode in a subvolume, if it has the same one.
fn same_inode(
    fs: &FileSystem,
    id: TreeId,
    number: InodeNumber,
    created: Generation,
) -> Result<Option<Vec<u8>>> {
    match fs.inode_at(id, number) {
        Ok(inode) if inode.metadata().generation() == created && number != objectid::FIRST_INODE => {
            path_of(fs, id, number)
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::Path(PathError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a change concerns a directory, which had and has these paths, or an entry below it.
fn concerns(change: &SnapshotChange, before: Option<&[u8]>, after: Option<&[u8]>) -> bool {
    match &change.name {
        NameChange::Deleted => is_below(&change.path, before),
        NameChange::Renamed(old) => is_below(old, before) || is_below(&change.path, after),
        NameChange::Added | NameChange::Kept => is_below(&change.path, after),
    }
}

/// Whether a path is the directory or below it.
fn is_below(path: &[u8], directory: Option<&[u8]>) -> bool {
    let Some(directory) = directory else { return false };
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| directory.is_empty() || rest.is_empty() || rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::is_below;

    #[test]
    fn only_whole_names_count() {
        assert!(is_below(b"a/b", Some(b"a")) && is_below(b"a", Some(b"a")) && is_below(b"x", Some(b"")));
        assert!(!is_below(b"ab", Some(b"a")) && !is_below(b"a", Some(b"a/b")) && !is_below(b"a", None));
    }
}
