//! Subvolumes that may be the parent of a stream.
//!
//! Owns [`Candidate`] and [`nearest`].
//!
//! Counterpart: `find_good_parent` of btrfs-progs (`cmds/send.c`).

use papilio::format::TreeId;
use papilio::{Generation, Subvolume, Uuid};

/// A subvolume that may be the parent of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The id.
    pub id: TreeId,
    /// Its own UUID.
    pub uuid: Uuid,
    /// The UUID of the subvolume that it is a snapshot of.
    pub parent_uuid: Uuid,
    /// The transaction that last changed it.
    pub changed: Generation,
}

impl Candidate {
    /// Returns the identity of a subvolume.
    pub fn of(subvolume: &Subvolume) -> Self {
        let Subvolume { id, uuid, parent_uuid, changed, .. } = *subvolume;
        Self { id, uuid, parent_uuid, changed }
    }
}

/// Returns the source that shares its origin with the snapshot and changed last before or after it.
pub fn nearest(snapshot: &Candidate, sources: &[Candidate]) -> Option<TreeId> {
    sources
        .iter()
        .filter(|source| {
            let siblings = !snapshot.parent_uuid.is_nil() && source.parent_uuid == snapshot.parent_uuid;
            siblings || source.uuid == snapshot.parent_uuid || source.parent_uuid == snapshot.uuid
        })
        .min_by_key(|source| source.changed.0.abs_diff(snapshot.changed.0))
        .map(|source| source.id)
}

/// Returns the UUID by which streams name a snapshot.
pub(super) fn sent_uuid(received: Uuid, own: Uuid) -> Uuid {
    if received.is_nil() { own } else { received }
}
